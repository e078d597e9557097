"""A message's bytes, read from front to back: every read is checked, every array is counted.

Nothing is allocated in proportion to a number in the message before that number was held against the bytes that are
left (`need`), against what all arrays of the message may take in memory (`charge`), or against as much again for what
a column needs while it is read (`borrow`). Errors say byte, table and column.
"""

from __future__ import annotations

from array import array
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from holdfast.errors import Category, WireError
from holdfast.wire.limits import FrameLimits

Numbers: TypeAlias = np.ndarray[Any, Any]

VARINT_BYTES_MAX = 10
ID_BYTES_MAX = 5
"""A symbol id needs no more."""
GATHER_BYTES = 1 << 20
"""What is gathered in one step."""


class Reader:
    """A place in a message."""

    __slots__ = ("_left_bytes", "buffer", "bytes", "column", "limits", "offset", "table", "view")

    def __init__(self, buffer: pa.Buffer, limits: FrameLimits, *, offset: int) -> None:
        self.buffer = buffer
        self.view = memoryview(buffer).cast("B")  # Arrow says its bytes are signed
        self.bytes: Numbers = np.frombuffer(buffer, np.uint8)
        self.limits = limits
        self.offset = offset
        self.table: str | None = None
        self.column: str | None = None
        self._left_bytes = limits.decoded_bytes

    @property
    def rest_bytes(self) -> int:
        """Bytes not read yet."""
        return len(self.view) - self.offset

    def refuse(self, reason: str, *, category: Category = Category.PARSE_ERROR) -> WireError:
        """An error that says where the reader is."""
        place = f"byte {self.offset}"
        if self.table is not None:
            place += f", table {self.table!r}"
        if self.column is not None:
            place += f", column {self.column!r}"
        return WireError(category=category, reason=reason, place=place)

    def need(self, size: int, what: str) -> None:
        """`size` more bytes must be there."""
        if size > len(self.view) - self.offset:
            raise self.refuse(f"{what} of {size} bytes, but only {len(self.view) - self.offset} are left")

    def borrow(self, size: int) -> None:
        """`size` bytes are needed until the column is read; no two columns are read at a time."""
        if size > self.limits.decoded_bytes:
            raise self.refuse(f"reading the column takes more than {self.limits.decoded_bytes} bytes in memory")

    def charge(self, size: int) -> None:
        """`size` bytes are about to be allocated, and stay."""
        self._left_bytes -= size
        if self._left_bytes < 0:
            raise self.refuse(f"the message takes more than {self.limits.decoded_bytes} bytes in memory")

    def u8(self) -> int:
        """One byte."""
        self.need(1, "a value")
        value = self.view[self.offset]
        self.offset += 1
        return value

    def varint(self) -> int:
        """One unsigned LEB128."""
        value = shift = 0
        for byte in self.view[self.offset : self.offset + VARINT_BYTES_MAX]:
            self.offset += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
        raise self.refuse("a number does not end" if shift == 7 * VARINT_BYTES_MAX else "the message ends in a number")

    def count(self, what: str, allowed: int) -> int:
        """A varint that may not be more than `allowed`."""
        value = self.varint()
        if value > allowed:
            raise self.refuse(f"{value} {what}, at most {allowed} are allowed")
        return value

    def text(self, what: str) -> str:
        """A name: its length as a varint, then UTF-8."""
        size = self.count(f"bytes in a {what} name", self.limits.name_bytes)
        self.need(size, f"a {what} name")
        start = self.offset
        self.offset += size
        try:
            return str(self.view[start : self.offset], "utf-8")
        except UnicodeDecodeError:
            raise self.refuse(f"a {what} name is not UTF-8") from None

    def numbers(self, dtype: str, count: int) -> Numbers:
        """`count` values as they stand in the message; not aligned."""
        size = np.dtype(dtype).itemsize * count
        self.need(size, f"{count} values")
        values = np.frombuffer(self.buffer, dtype, count, self.offset)
        self.offset += size
        return values

    def ids(self, count: int) -> Numbers:
        """`count` varints of at most 32 bits, all at once."""
        self.need(count, f"{count} symbol ids")
        head = self.bytes[self.offset : self.offset + count]
        if count == 0 or head.max() < 0x80:
            self.offset += count
            return head.astype(np.int64)
        window = self.bytes[self.offset : self.offset + count * ID_BYTES_MAX]
        ends = np.flatnonzero(window < 0x80)[:count]
        if len(ends) < count:
            raise self.refuse(f"{count} symbol ids, but only {len(ends)} end within {ID_BYTES_MAX} bytes each")
        starts = np.concatenate(([0], ends[:-1] + 1))
        lengths = ends - starts + 1
        if lengths.max() > ID_BYTES_MAX:
            raise self.refuse(f"a symbol id has more than {ID_BYTES_MAX} bytes")
        values = np.zeros(count, np.int64)
        for i in range(int(lengths.max())):
            longer = lengths > i
            values[longer] |= (window[starts[longer] + i].astype(np.int64) & 0x7F) << (7 * i)
        self.offset += int(ends[-1]) + 1
        return values

    def strings(self, count: int) -> tuple[Numbers, Numbers]:
        """Where `count` strings begin, each with its length in front, and how long they are.

        One must be read to find the next, so this is a loop; it runs once for each new symbol, not for each row.
        """
        self.need(count, f"{count} symbols")
        self.charge(16 * count)
        view, offset, end = self.view, self.offset, len(self.view)
        starts, lengths = array("q"), array("q")
        for _ in range(count):
            size = view[offset] if offset < end else 0x80
            if size < 0x80:
                offset += 1
            else:
                self.offset = offset
                size = self.varint()
                offset = self.offset
            if size > end - offset:
                self.offset = offset
                raise self.refuse(f"a symbol of {size} bytes, but only {end - offset} are left")
            starts.append(offset)
            lengths.append(size)
            offset += size
        self.offset = offset
        return np.frombuffer(starts, np.int64), np.frombuffer(lengths, np.int64)


def gather(source: Numbers, starts: Numbers, lengths: Numbers) -> tuple[Numbers, Numbers]:
    """The bytes of many slices one behind the other, and the offsets between them."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    lengths.cumsum(out=offsets[1:])
    total = int(offsets[-1])
    shifts = starts - offsets[:-1]
    if total <= GATHER_BYTES:
        index = shifts.repeat(lengths)
        index += np.arange(total)
        return source[index], offsets
    data = np.empty(total, np.uint8)
    first = 0
    while first < len(lengths):  # in steps, because the index takes eight times the bytes
        last = int(offsets.searchsorted(offsets[first] + GATHER_BYTES, side="right")) - 1
        end = max(last, first + 1)
        into = data[offsets[first] : offsets[end]]
        if end == first + 1:
            into[:] = source[starts[first] : starts[first] + lengths[first]]
        else:
            index = shifts[first:end].repeat(lengths[first:end])
            index += np.arange(offsets[first], offsets[end])
            np.take(source, index, out=into)
        first = end
    return data, offsets


def texts(data: Numbers, offsets: Numbers) -> pa.StringArray:
    """A string array around bytes and offsets; not validated."""
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data))
