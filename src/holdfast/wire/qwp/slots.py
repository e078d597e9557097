"""Which rows of a column have a value, and how values come to their rows.

A column opens with its null flag:

    0     one value per row; where the type has a sentinel, that value means null
    else  a bitmap, one bit per row, 1 = null; then only the values that are there, close together

Both become the same Arrow array.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.wire.qwp.reader import Numbers, Reader


class Slots(NamedTuple):
    """The rows of one column."""

    rows: int
    filled: int
    """Values that there are."""
    valid: Numbers | None
    """One boolean per row; None if every row has a value."""
    has_bitmap: bool

    def spread(self, values: Numbers) -> Numbers:
        """The values at their rows, zeros elsewhere; a copy."""
        if self.valid is None:
            return values.copy()
        spread = np.zeros((self.rows, *values.shape[1:]), values.dtype)
        spread[self.valid] = values
        return spread

    def spread_offsets(self, offsets: Numbers) -> Numbers:
        """Offsets of the values as offsets of the rows; a null is empty."""
        if self.valid is None:
            return offsets.astype(np.int32)
        spread = np.zeros(self.rows + 1, np.int64)
        np.cumsum(self.valid, out=spread[1:])
        return offsets[spread].astype(np.int32)

    def without(self, is_null: Numbers) -> Slots:
        """The same rows after sentinels were found among the values; a bitmap leaves no room for sentinels."""
        if self.has_bitmap or not is_null.any():
            return self
        return Slots(self.rows, self.rows - int(np.count_nonzero(is_null)), ~is_null, has_bitmap=False)

    def array(self, data_type: pa.DataType, *buffers: Numbers | pa.Buffer, inner: pa.Array | None = None) -> pa.Array:
        """An Arrow array of all rows around buffers that were spread before."""
        validity = None if self.valid is None else pa.py_buffer(np.packbits(self.valid, bitorder="little"))
        raw = [buffer if isinstance(buffer, pa.Buffer) else pa.py_buffer(buffer) for buffer in buffers]
        children = None if inner is None else [inner]
        return pa.Array.from_buffers(data_type, self.rows, [validity, *raw], children=children)


def read_slots(reader: Reader, rows: int) -> Slots:
    """The null flag and bitmap at the reader's place."""
    if reader.u8() == 0:
        return Slots(rows, rows, None, has_bitmap=False)
    bitmap = reader.numbers("u1", (rows + 7) // 8)
    reader.borrow(rows)
    reader.charge(len(bitmap))
    valid = np.unpackbits(bitmap, count=rows, bitorder="little") == 0
    count = int(np.count_nonzero(valid))
    return Slots(rows, count, None if count == rows else valid, has_bitmap=True)
