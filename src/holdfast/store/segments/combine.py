"""Many small batches into few, and all dictionaries of a column into one.

Promise: the rows and their order stay; a batch that is already large is not copied (of its dictionary columns, only
the indices may be). Each output batch has at least 64 Ki rows or 1 MiB, but for the last before a large batch and the
last of all. Every column has one dictionary over all output batches, because an Arrow file holds only one.

If an index type is too narrow for the united dictionary it becomes int32, and a null inside a dictionary becomes a null
index; then the output has wider types than the input, and the values are the same. A channel whose schema began with
`channel_schema` has wide indices already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyarrow import lib

from holdfast.model.columns import child_arrays, has_dictionary, map_type, with_children, with_wide_index


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """When small batches are many enough, when one is large, and how much is written before a sync."""

    rows_target: int = 1 << 16
    bytes_target: int = 1 << 20
    large_bytes: int = 1 << 18
    """A copy of this much takes longer than a reader's overhead for one more batch."""
    sync_every_bytes: int = 0
    """0: once, at the end. More syncs were not faster, but make each one shorter."""


DEFAULT_SIZES = SegmentSizes()


class LazyBatches:
    """Batches made one at a time while they are written, so that a segment is not in memory twice."""

    def __init__(self, pieces: Sequence[tuple[int, Callable[[], pa.RecordBatch]]]) -> None:
        """Each piece: its rows, and how to make it."""
        self.rows = [rows for rows, _ in pieces]
        self._makers = [make for _, make in pieces]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return (make() for make in self._makers)


def combine(
    batches: Sequence[pa.RecordBatch], schema: pa.Schema, *, sizes: SegmentSizes = DEFAULT_SIZES
) -> list[pa.RecordBatch]:
    """The batches of one segment. All have `schema`, or all the same wider one."""
    filled = [batch for batch in batches if batch.num_rows]
    if not has_dictionary(schema):
        return [_concatenate(group) for group in _groups(filled, sizes)]
    try:
        return _combine_dictionaries(filled, sizes)
    except pa.ArrowInvalid:  # an index is too narrow, or a dictionary holds a null
        return _combine_dictionaries([_with_roomy_dictionaries(batch) for batch in filled], sizes)


def _groups(batches: Sequence[pa.RecordBatch], sizes: SegmentSizes) -> Iterator[list[pa.RecordBatch]]:
    """Neighbours to be joined; a large batch stands alone."""
    group: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        batch_bytes = _size_bytes(batch, sizes.large_bytes)
        is_large = batch_bytes >= sizes.large_bytes
        if group and (is_large or rows >= sizes.rows_target or size_bytes >= sizes.bytes_target):
            yield group
            group, rows, size_bytes = [], 0, 0
        if is_large:
            yield [batch]
            continue
        group.append(batch)
        rows += batch.num_rows
        size_bytes += batch_bytes
    if group:
        yield group


def _size_bytes(batch: pa.RecordBatch, large_bytes: int) -> int:
    """Bytes of the batch; exact when large. The quick number counts all of a buffer that is used in part."""
    quick: int = batch.get_total_buffer_size()
    return quick if quick < large_bytes else int(pa.ipc.get_record_batch_size(batch))


def _concatenate(group: list[pa.RecordBatch]) -> pa.RecordBatch:
    return group[0] if len(group) == 1 else pa.concat_batches(group)


def _combine_dictionaries(batches: list[pa.RecordBatch], sizes: SegmentSizes) -> list[pa.RecordBatch]:
    joined = [_concatenate(group) for group in _groups(batches, sizes)]
    return pa.Table.from_batches(joined).unify_dictionaries().to_batches() if len(joined) > 1 else joined


def _with_roomy_dictionaries(batch: pa.RecordBatch) -> pa.RecordBatch:
    columns = [_roomy(column) for column in batch.columns]
    fields = [field.with_type(column.type) for field, column in zip(batch.schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields, metadata=batch.schema.metadata))


def _roomy(array: pa.Array) -> pa.Array:
    """The same values; each dictionary in it has no null and an index of at least 32 bits."""
    if array.type.id == lib.Type_DICTIONARY:
        indices = array.indices.cast(with_wide_index(array.type).index_type)
        values = array.dictionary
        if values.null_count:
            indices, values = _without_null(values).take(indices).cast(indices.type), values.drop_null()
        return pa.DictionaryArray.from_arrays(indices, values, ordered=array.type.ordered)
    inner = child_arrays(array)
    if not inner:
        return array
    return with_children(array, map_type(array.type, with_wide_index), [_roomy(child) for child in inner])


def _without_null(values: pa.Array) -> pa.Array:
    """For each value of a dictionary its place once nulls are dropped; null for a null."""
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    return pa.array(np.cumsum(valid) - 1, mask=~valid)
