"""A batch as several that are each stored in at most so many bytes, in order.

A frame may be larger than what one of its entries may be (`Store.commit_frame_async`): its entries become several then.
A slice is stored with its own bytes only. A dictionary stands in each slice, so a large one is cut down to what the
slice uses; so is what the values of a view column point into. A single row is never cut: it may be larger, and whoever
stores it says so. Slices are made one at a time, so that whoever counts them can stop.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from pyarrow import lib

from holdfast.model.columns import BINARIES, VIEWS, hidden_bytes

FILL = 0.75
"""How full slices are meant to be: rows differ in size, and one that is too large is halved."""
DICTIONARY_PART = 16
"""A dictionary of less than such a part of a slice is repeated as it is."""


def in_slices(batch: pa.RecordBatch, *, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batch itself if it is not larger."""
    size = stored_bytes(batch)
    if size > bytes_max and any(column.type.id in VIEWS for column in batch.columns):
        batch = _lean(batch, dictionary_bytes_max=size)
        size = stored_bytes(batch)
    if size <= bytes_max or batch.num_rows <= 1:
        yield batch
        return
    count = max(2, -int(-size // (bytes_max * FILL)))
    rows = -(-batch.num_rows // count)
    for start in range(0, batch.num_rows, rows):
        part = batch.slice(start, rows)
        yield from in_slices(_lean(part, dictionary_bytes_max=bytes_max // DICTIONARY_PART), bytes_max=bytes_max)


def stored_bytes(batch: pa.RecordBatch) -> int:
    """What the log takes for a batch, dictionaries included."""
    dictionaries = [column for column in batch.columns if column.type.id == lib.Type_DICTIONARY]
    return int(pa.ipc.get_record_batch_size(batch)) + sum(map(hidden_bytes, dictionaries))


def _lean(batch: pa.RecordBatch, *, dictionary_bytes_max: int) -> pa.RecordBatch:
    """The same without values that only other slices use."""

    def lean(column: pa.Array) -> pa.Array:
        if column.type.id in VIEWS:
            plain = pa.large_binary() if column.type.id in BINARIES else pa.large_string()
            return column.cast(plain).cast(column.type)
        if column.type.id == lib.Type_DICTIONARY and column.dictionary.nbytes > dictionary_bytes_max:
            return _compacted(column)
        return column

    return pa.RecordBatch.from_arrays([lean(column) for column in batch.columns], schema=batch.schema)


def _compacted(column: pa.DictionaryArray) -> pa.DictionaryArray:
    """The same values, and no others in the dictionary."""
    indices = column.indices
    is_null = indices.is_null().to_numpy(zero_copy_only=False) if indices.null_count else None
    places = (indices.fill_null(0) if indices.null_count else indices).to_numpy()
    used, inverse = np.unique(places, return_inverse=True)
    shorter = pa.array(inverse.astype(places.dtype), mask=is_null)
    values = column.dictionary.take(pa.array(used))
    return pa.DictionaryArray.from_arrays(shorter, values, ordered=column.type.ordered)
