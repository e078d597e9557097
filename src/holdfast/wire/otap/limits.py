"""How much one batch and one stream may become, and a budget that is asked before memory is taken.

A dictionary of one long text and a column of small keys, or one resource and many rows, stand for far more than their
bytes. So what a batch becomes is counted from lengths first.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.errors import LimitReached
from holdfast.wire.otap.ids import Numbers

EXPANSION = 8
"""Rows of a batch against its bytes: resources repeat in every row, and keys in every attribute."""
STATE = 4
"""Dictionaries of a stream against one batch."""
ROWS_MAX = 1 << 19
"""Of one table: as many as an OTLP request may have."""


class Limits(msgspec.Struct, frozen=True, gc=False):
    """Bounds of a stream."""

    batch_bytes: int
    """One batch, after decompression."""

    @property
    def expanded_bytes(self) -> int:
        """The rows of one batch."""
        return EXPANSION * self.batch_bytes

    @property
    def state_bytes(self) -> int:
        """The dictionaries of one stream."""
        return STATE * self.batch_bytes


class Budget:
    """What the rows of one batch may still take."""

    def __init__(self, limits: Limits) -> None:
        self._allowed = limits.expanded_bytes
        self._spent = 0

    def spend(self, size_bytes: int) -> None:
        """Raise `LimitReached` if so much more is too much."""
        self._spent += size_bytes
        if self._spent > self._allowed:
            raise LimitReached(what="the rows of a batch", limit="bytes", allowed=self._allowed)

    def take(self, column: pa.Array, at: Numbers) -> pa.Array:
        """The column's values at these places; nothing is copied before it is known to fit."""
        self.spend(int(_sizes(column)[at].sum()) if len(column) else 0)
        return column.take(pa.array(at))

    def decode(self, column: pa.DictionaryArray) -> pa.Array:
        """The column without its dictionary."""
        values, keys = column.dictionary, column.indices
        if len(values):
            at = np.asarray(keys.fill_null(0)).astype(np.int64)
            self.spend(int(_sizes(values)[at].sum()))
        return column.dictionary_decode()


def row_bytes(rows: pa.RecordBatch) -> Numbers:
    """About how many bytes each row has."""
    return _added([_sizes(column) for column in rows.columns])


def _sizes(column: pa.Array) -> Numbers:
    """Bytes of each value; the fixed part of nested ones is not counted."""
    kind = column.type
    if pa.types.is_map(kind):
        return _within(column.offsets, _sizes(column.keys) + _sizes(column.items))
    if pa.types.is_list(kind):
        return _within(column.offsets, _sizes(column.values))
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        begins = np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, 4 * column.offset)
        return np.diff(begins).astype(np.int64)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        wide = np.frombuffer(column.buffers()[1], np.int64, len(column) + 1, 8 * column.offset)
        return np.diff(wide).astype(np.int64)
    if pa.types.is_struct(kind):
        return _added([np.zeros(len(column), np.int64), *(_sizes(part) for part in column.flatten())])
    width = kind.bit_width // 8 if pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind) else 8
    return np.full(len(column), max(1, width), np.int64)


def _added(sizes: list[Numbers]) -> Numbers:
    found: Numbers = np.sum(sizes, axis=0, dtype=np.int64)
    return found


def _within(offsets: pa.Array, sizes: Numbers) -> Numbers:
    totals = np.append(0, np.cumsum(sizes))
    begins = np.asarray(offsets).astype(np.int64)
    found: Numbers = totals[begins[1:]] - totals[begins[:-1]]
    return found
