"""Small messages of one layout, joined column by column.

A producer that sends a frame per event sends messages that differ in their values alone. Arrow takes several
microseconds to read one of them and as long to forget it; here one call of numpy handles a column of all of them.

Promises: the batch holds what Arrow reads from the messages one after the other, and there is none unless every message
has byte for byte the metadata of the first, which Arrow has read, and its offsets and counts of nulls fit its values.
What else may be wrong with values `RecordBatch.validate(full=True)` finds in the joined batch as in the single ones.
Types that have more than a bitmap, values and offsets are not joined here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.disk.filesystem import Bytes

ALIKE_MIN = 12
"""With fewer messages Arrow is as fast."""
_JOINED_BYTES_MAX = 1 << 30  # far from what an offset of 32 bits can say
_METADATA_BYTES = struct.Struct("<4xi")
_VARIABLE = {pa.string().id, pa.binary().id}
_FIXED = {
    *(pa.int8().id, pa.int16().id, pa.int32().id, pa.int64().id),
    *(pa.uint8().id, pa.uint16().id, pa.uint32().id, pa.uint64().id),
    *(pa.float16().id, pa.float32().id, pa.float64().id, pa.decimal128(1).id, pa.decimal256(1).id),
    *(pa.timestamp("s").id, pa.duration("s").id, pa.date32().id, pa.date64().id, pa.time32("s").id, pa.time64("us").id),
    pa.binary(1).id,
}
_BOOL = pa.bool_().id
_JOINABLE = _FIXED | _VARIABLE | {_BOOL}

_Bytes2D = npt.NDArray[np.uint8]


class _Unlike(Exception):
    """The messages are not joined here; what is wrong with them, if anything, Arrow says."""


def join_alike(messages: Sequence[Bytes], schema: pa.Schema) -> pa.RecordBatch | None:
    """The rows of all messages as one batch; None if they are not alike. Each is one record batch message."""
    first, count = messages[0], len(messages)
    size = len(first)
    if count < ALIKE_MIN or size < _METADATA_BYTES.size or count * size > _JOINED_BYTES_MAX:
        return None
    if any([len(message) != size for message in messages]) or not _JOINABLE.issuperset(
        [field.type.id for field in schema]
    ):
        return None
    joined = b"".join(messages)
    table = np.frombuffer(joined, np.uint8).reshape(count, size)
    start = 8 + _METADATA_BYTES.unpack_from(first)[0]
    if not 8 < start <= size or (table[:, :start] != table[0, :start]).any():
        return None
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(joined), schema)
        batch.validate()
        join = _Join(joined, table, batch.num_rows)
        return pa.record_batch([join.column(column) for column in batch.columns], schema=schema)
    except (_Unlike, pa.ArrowException, OSError, ValueError):
        return None


class _Join:
    """Messages, one in a row of `table`, and where in them Arrow found the columns of the first."""

    def __init__(self, joined: bytes, table: _Bytes2D, rows: int) -> None:
        self._joined = joined
        self._table = table
        self._rows = rows
        self._address = pa.py_buffer(joined).address
        if rows == 0:
            raise _Unlike

    def column(self, column: pa.Array) -> pa.Array:
        """The values of all messages."""
        count, rows, kind = len(self._table), self._rows, column.type
        bitmap, *values = column.buffers()
        validity = None
        if bitmap is not None:  # Arrow leaves it out where the message says that nothing is null
            bits = self._bits(bitmap)
            if (bits.sum(axis=1) != rows - column.null_count).any():
                raise _Unlike
            validity = _packed(bits)
        if kind.id in _VARIABLE:
            buffers = self._strings(*values)
        elif kind.id == _BOOL:
            buffers = [_packed(self._bits(values[0]))]
        else:
            buffers = [_buffer(self._part(values[0], rows * kind.bit_width // 8))]
        return pa.Array.from_buffers(kind, count * rows, [validity, *buffers], column.null_count * count)

    def _part(self, buffer: pa.Buffer | None, size: int) -> _Bytes2D:
        """The first bytes of a buffer, in every message."""
        at = self._at(buffer, size)
        return self._table[:, at : at + size]

    def _at(self, buffer: pa.Buffer | None, size: int) -> int:
        """Where a buffer of at least that size begins in every message."""
        if buffer is None:
            raise _Unlike
        at: int = buffer.address - self._address
        if buffer.size < size or not 0 <= at <= self._table.shape[1] - buffer.size:
            raise _Unlike  # Arrow has copied it, or has an empty one of its own
        return at

    def _bits(self, buffer: pa.Buffer | None) -> _Bytes2D:
        packed = self._part(buffer, (self._rows + 7) // 8)
        return np.unpackbits(packed, axis=1, count=self._rows, bitorder="little")

    def _strings(self, offset_buffer: pa.Buffer | None, data: pa.Buffer | None) -> list[pa.Buffer]:
        """Offsets and bytes, without what lies between the messages."""
        offsets = np.ascontiguousarray(self._part(offset_buffer, 4 * (self._rows + 1))).view("<i4")
        starts, ends = offsets[:, 0], offsets[:, -1]
        data_bytes = data.size if data is not None else 0
        if starts.min() < 0 or ends.max() > data_bytes or (offsets[:, 1:] < offsets[:, :-1]).any():
            raise _Unlike
        lengths = ends - starts
        places = np.zeros(len(lengths) + 1, np.int32)
        np.cumsum(lengths, out=places[1:])
        joined = np.empty(offsets.shape[0] * self._rows + 1, np.int32)
        np.add(offsets[:, :-1], (places[:-1] - starts)[:, None], out=joined[:-1].reshape(-1, self._rows))
        joined[-1] = places[-1]
        if not data_bytes:
            return [_buffer(joined), pa.py_buffer(b"")]
        at, size = self._at(data, data_bytes), self._table.shape[1]
        if starts.any() or (ends != ends[0]).any():
            begins = (np.arange(len(lengths)) * size + at + starts).tolist()
            parts = zip(begins, lengths.tolist(), strict=True)
            return [_buffer(joined), pa.py_buffer(b"".join([self._joined[b : b + length] for b, length in parts]))]
        return [_buffer(joined), _buffer(self._table[:, at : at + int(ends[0])])]


def _packed(bits: _Bytes2D) -> pa.Buffer:
    return pa.py_buffer(np.packbits(bits, bitorder="little"))


def _buffer(values: npt.NDArray[np.generic]) -> pa.Buffer:
    """The values one after the other, in memory of their own."""
    return pa.py_buffer(np.ascontiguousarray(values))
