"""N-dimensional arrays to nested lists.

    per value  u8 dimensions | i32 length of each | the elements, last dimension fastest

All values of a column have the same number of dimensions, and that is how deep the lists are nested; a column without
any value says nothing about its depth and becomes a column of Arrow's null type, which fits every channel. An array
without elements becomes an empty list whatever its shape says, so that no shape stands for more lists than there are
elements.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from holdfast.errors import WireError
from holdfast.wire.qwp.reader import Numbers, Reader, gather
from holdfast.wire.qwp.slots import Slots
from holdfast.wire.qwp.types import DIMENSIONS_MAX

ELEMENT_BYTES = 8


def reader_of(dtype: str, element_type: pa.DataType) -> Callable[[Reader, Slots], pa.Array]:
    """A reader of columns whose elements have this type."""

    def read(reader: Reader, slots: Slots) -> pa.Array:
        if slots.filled == 0:
            return pa.nulls(slots.rows)
        dimensions = _peek_dimensions(reader)
        reader.charge(4 * (slots.rows + 1))
        reader.borrow(slots.filled * 8 * (dimensions + 4))
        shapes, elements = _read_equal(reader, slots.filled, dimensions) or _read_each(reader, slots.filled, dimensions)
        return _nest(reader, slots, shapes, pa.array(elements.view(dtype), element_type))

    return read


def _peek_dimensions(reader: Reader) -> int:
    reader.need(1, "an array")
    dimensions = reader.view[reader.offset]
    if not 0 < dimensions <= DIMENSIONS_MAX:
        raise reader.refuse(f"an array of {dimensions} dimensions, 1 to {DIMENSIONS_MAX} are allowed")
    return dimensions


def _read_equal(reader: Reader, count: int, dimensions: int) -> tuple[Numbers, Numbers] | None:
    """Shapes and elements if all values have the shape of the first; None if they do not, and nothing is read."""
    head = 1 + 4 * dimensions
    if reader.rest_bytes < head:
        return None
    shape = struct.unpack_from(f"<{dimensions}i", reader.view, reader.offset + 1)
    size = head + ELEMENT_BYTES * math.prod(shape)
    if min(shape) < 0 or size * count > reader.rest_bytes:
        return None
    rows = reader.bytes[reader.offset : reader.offset + size * count].reshape(count, size)
    if (rows[:, :head] != rows[0, :head]).any():
        return None
    reader.charge(count * (size - head))
    elements = np.ascontiguousarray(rows[:, head:]).reshape(-1).view("<u8")
    reader.offset += size * count
    return np.tile(np.array(shape, np.int64), (count, 1)), elements


def _read_each(reader: Reader, count: int, dimensions: int) -> tuple[Numbers, Numbers]:
    """Shapes and elements of values of different shapes; one must be read to find the next."""
    shape_of = struct.Struct(f"<{dimensions}i")
    head = 1 + shape_of.size
    reader.need(count * head, f"{count} arrays")
    shapes, starts, sizes = array("q"), array("q"), array("q")
    view, offset, end = reader.view, reader.offset, len(reader.view)
    for _ in range(count):
        if end - offset < head or view[offset] != dimensions:
            raise _refuse_head(reader, offset, head, dimensions)
        shape = shape_of.unpack_from(view, offset + 1)
        offset += head
        size = ELEMENT_BYTES * math.prod(shape)
        if min(shape) < 0 or size > end - offset:
            reader.offset = offset
            raise reader.refuse(f"an array of shape {shape}, but only {end - offset} bytes are left")
        shapes.extend(shape)
        starts.append(offset)
        sizes.append(size)
        offset += size
    reader.offset = offset
    reader.charge(sum(sizes))
    data, _ = gather(reader.bytes, np.frombuffer(starts, np.int64), np.frombuffer(sizes, np.int64))
    return np.frombuffer(shapes, np.int64).reshape(count, dimensions), data.view("<u8")


def _refuse_head(reader: Reader, offset: int, head: int, dimensions: int) -> WireError:
    reader.offset = offset
    reader.need(head, "an array")
    return reader.refuse(f"an array of {reader.view[offset]} dimensions in a column that has one of {dimensions}")


def _nest(reader: Reader, slots: Slots, shapes: Numbers, elements: pa.Array) -> pa.Array:
    """Lists of lists of elements; the outermost has the column's rows."""
    shapes = shapes * (shapes.min(axis=1, initial=1, keepdims=True) > 0)
    inner = elements
    for depth in range(shapes.shape[1] - 1, 0, -1):
        lists = shapes[:, :depth].prod(axis=1)  # how many lists of this depth each value has
        count = int(lists.sum())
        reader.charge(4 * (count + 1))
        reader.borrow(8 * count)
        lengths = np.repeat(shapes[:, depth], lists)
        inner = pa.ListArray.from_arrays(pa.array(_offsets(lengths)), inner)
    offsets = slots.spread_offsets(_offsets(shapes[:, 0]))
    return slots.array(pa.list_(inner.type), offsets, inner=inner)


def _offsets(lengths: Numbers) -> Numbers:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
