"""An Arrow array to the values of a QWP column: the way back of `columns` and `arrays`.

A null is always said by a bitmap. A column that holds a sentinel as a value (NaN, the lowest integer, …) gets a bitmap
too, even if nothing is null, because without one a reader takes the sentinel for a null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import lib

from holdfast.wire.qwp import gorilla
from holdfast.wire.qwp.reader import Numbers, gather
from holdfast.wire.qwp.symbols import SymbolDictionary
from holdfast.wire.qwp.types import DIMENSIONS_MAX, INT_NULL, LONG_NULL, ColumnType


class NotEncodable(Exception):
    """Why a column has no form in QWP; the door adds its name."""


class Column(NamedTuple):
    """A column ready to be written: its type, and the bytes behind its null flag and bitmap."""

    column_type: ColumnType
    bitmap: bytes | None
    values: bytes


_WIDENED = {
    lib.Type_UINT8: pa.int16(),
    lib.Type_UINT16: pa.int32(),
    lib.Type_UINT32: pa.int64(),
    lib.Type_UINT64: pa.int64(),
    lib.Type_HALF_FLOAT: pa.float32(),
    lib.Type_DATE32: pa.timestamp("ms"),
    lib.Type_DATE64: pa.timestamp("ms"),
    lib.Type_LARGE_STRING: pa.string(),
    lib.Type_STRING_VIEW: pa.string(),
    lib.Type_LARGE_BINARY: pa.binary(),
    lib.Type_BINARY_VIEW: pa.binary(),
}
"""Types that QWP has not, and the type that holds their values; a value that does not fit is refused."""

_INTS = {
    lib.Type_INT8: (ColumnType.BYTE, "i1", None),
    lib.Type_INT16: (ColumnType.SHORT, "<i2", None),
    lib.Type_INT32: (ColumnType.INT, "<i4", INT_NULL),
    lib.Type_INT64: (ColumnType.LONG, "<i8", LONG_NULL),
}
_FLOATS = {lib.Type_FLOAT: (ColumnType.FLOAT, "<f4"), lib.Type_DOUBLE: (ColumnType.DOUBLE, "<f8")}
_TIMES = {"us": ColumnType.TIMESTAMP, "ns": ColumnType.TIMESTAMP_NANOS, "ms": ColumnType.DATE}
_BIG_ENDIAN = {16: ColumnType.UUID, 32: ColumnType.LONG256}
_DECIMALS = {
    lib.Type_DECIMAL128: (ColumnType.DECIMAL128, 16),
    lib.Type_DECIMAL256: (ColumnType.DECIMAL256, 32),
}
_ELEMENTS = {lib.Type_DOUBLE: ColumnType.DOUBLE_ARRAY, lib.Type_INT64: ColumnType.LONG_ARRAY}
_LISTS = frozenset({lib.Type_LIST, lib.Type_LARGE_LIST, lib.Type_FIXED_SIZE_LIST})


def column_of(array: pa.Array, dictionary: SymbolDictionary, *, is_gorilla: bool) -> Column:
    """The column, or `NotEncodable`. Symbols new to the dictionary are added to it."""
    array = _plain(array)
    bitmap = _bitmap(array) if array.null_count else None
    dense = array.drop_null() if array.null_count else array
    type_id = array.type.id
    if type_id == lib.Type_DICTIONARY:
        return Column(ColumnType.SYMBOL, bitmap, _symbols(dense, dictionary))
    if type_id == lib.Type_TIMESTAMP:
        return _times(dense, bitmap, is_gorilla=is_gorilla)
    writer = _WRITERS.get(type_id)
    if writer is None:
        raise NotEncodable(f"type {array.type} has no form in QWP")
    return writer(dense, bitmap)


def _plain(array: pa.Array) -> pa.Array:
    """The same values in a type that QWP has, if there is one."""
    data_type = array.type
    if data_type.id == lib.Type_DICTIONARY:
        return _plain_dictionary(array)
    target = _WIDENED.get(data_type.id)
    if data_type.id == lib.Type_TIMESTAMP and data_type.unit == "s":
        target = pa.timestamp("us", data_type.tz)
    elif data_type.id in {lib.Type_DECIMAL32, lib.Type_DECIMAL64}:
        target = pa.decimal128(data_type.precision, data_type.scale)
    elif data_type.id == lib.Type_FIXED_SIZE_BINARY and data_type.byte_width not in _BIG_ENDIAN:
        target = pa.binary()
    try:
        return array if target is None else array.cast(target)
    except pa.ArrowInvalid as error:
        raise NotEncodable(f"a value of type {data_type} does not fit: {error}") from None


def _plain_dictionary(array: pa.DictionaryArray) -> pa.Array:
    """Symbols as they are, unless one of them is null; other values without their dictionary."""
    if array.type.value_type.id not in {lib.Type_STRING, lib.Type_LARGE_STRING, lib.Type_STRING_VIEW}:
        return _plain(array.dictionary_decode())
    return array.dictionary_decode().dictionary_encode() if array.dictionary.null_count else array


def _bitmap(array: pa.Array) -> bytes:
    return np.packbits(array.is_null().to_numpy(zero_copy_only=False), bitorder="little").tobytes()


def _no_nulls(array: pa.Array) -> bytes:
    """A bitmap that says every row has a value, sentinels too."""
    return bytes((len(array) + 7) // 8)


def _fixed(dense: pa.Array, width: int) -> Numbers:
    """The bytes of a fixed-width array without nulls, one row per value."""
    buffer = dense.buffers()[1]
    if len(dense) == 0 or buffer is None:
        return np.empty((0, width), np.uint8)
    return np.frombuffer(buffer, np.uint8, len(dense) * width, dense.offset * width).reshape(len(dense), width)


def _ints(dense: pa.Array, bitmap: bytes | None) -> Column:
    column_type, dtype, sentinel = _INTS[dense.type.id]
    values = dense.to_numpy().astype(dtype)
    if bitmap is None and sentinel is not None and (values == sentinel).any():
        bitmap = _no_nulls(dense)
    return Column(column_type, bitmap, values.tobytes())


def _floats(dense: pa.Array, bitmap: bytes | None) -> Column:
    column_type, dtype = _FLOATS[dense.type.id]
    values = dense.to_numpy().astype(dtype)
    if bitmap is None and np.isnan(values).any():
        bitmap = _no_nulls(dense)
    return Column(column_type, bitmap, values.tobytes())


def _booleans(dense: pa.Array, bitmap: bytes | None) -> Column:
    bits = np.packbits(dense.to_numpy(zero_copy_only=False), bitorder="little")
    return Column(ColumnType.BOOLEAN, bitmap, bits.tobytes())


def _times(dense: pa.Array, bitmap: bytes | None, *, is_gorilla: bool) -> Column:
    column_type = _TIMES[dense.type.unit]
    values = _fixed(dense, 8).reshape(-1).view("<i8")
    if bitmap is None and (values == LONG_NULL).any():
        bitmap = _no_nulls(dense)
    if column_type is ColumnType.DATE or not is_gorilla:
        return Column(column_type, bitmap, values.tobytes())
    packed = gorilla.encode(values)
    return Column(column_type, bitmap, b"\0" + values.tobytes() if packed is None else b"\1" + packed)


def _decimals(dense: pa.Array, bitmap: bytes | None) -> Column:
    column_type, width = _DECIMALS[dense.type.id]
    if dense.type.scale < 0:
        raise NotEncodable(f"a decimal of scale {dense.type.scale}; 0 or more is allowed")
    return Column(column_type, bitmap, bytes([dense.type.scale]) + _fixed(dense, width).tobytes())


def _big_endian(dense: pa.Array, bitmap: bytes | None) -> Column:
    width = dense.type.byte_width
    return Column(_BIG_ENDIAN[width], bitmap, _fixed(dense, width)[:, ::-1].tobytes())


def _bytes(dense: pa.Array, bitmap: bytes | None) -> Column:
    column_type = ColumnType.VARCHAR if dense.type.id == lib.Type_STRING else ColumnType.BINARY
    if len(dense) == 0:
        return Column(column_type, bitmap, bytes(4))
    _, raw_offsets, data = dense.buffers()
    offsets = np.frombuffer(raw_offsets, np.int32, len(dense) + 1, 4 * dense.offset)
    start, end = int(offsets[0]), int(offsets[-1])
    text = data[start:end].to_pybytes() if end > start else b""
    return Column(column_type, bitmap, (offsets - start).astype("<u4").tobytes() + text)


# -------------------------------------------------------------------------------------------------------------- symbols


def _symbols(dense: pa.DictionaryArray, dictionary: SymbolDictionary) -> bytes:
    places = dense.indices.to_numpy()
    if len(places) == 0:
        return b""
    used, inverse = np.unique(places, return_inverse=True)
    try:
        ids = dictionary.intern(dense.dictionary.take(pa.array(used)).to_pylist())
    except ValueError as error:
        raise NotEncodable(str(error)) from None
    return varints(np.array(ids, np.int64)[inverse])


def varints(values: Numbers) -> bytes:
    """Each value as an unsigned LEB128."""
    if values.max(initial=0) < 0x80:
        return values.astype(np.uint8).tobytes()
    lengths = np.ones(len(values), np.int64)
    for bits in range(7, 63, 7):
        lengths += values >> bits > 0
    ends = np.cumsum(lengths)
    encoded = np.empty(ends[-1], np.uint8)
    for i in range(int(lengths.max())):
        longer = lengths > i
        more = (lengths[longer] > i + 1).astype(np.uint8) << 7
        encoded[(ends - lengths)[longer] + i] = ((values[longer] >> (7 * i)) & 0x7F).astype(np.uint8) | more
    return encoded.tobytes()


# --------------------------------------------------------------------------------------------------------------- arrays


def _arrays(dense: pa.Array, bitmap: bytes | None) -> Column:
    lengths, elements = _levels(dense)
    column_type = _ELEMENTS.get(elements.type.id)
    if column_type is None or elements.null_count or len(lengths) > DIMENSIONS_MAX:
        raise NotEncodable(
            f"type {dense.type}: arrays of float64 or int64 without nulls, of at most {DIMENSIONS_MAX} dimensions, are"
            " allowed"
        )
    shapes, sizes = _shapes(lengths)
    heads = np.empty((len(dense), 1 + 4 * len(lengths)), np.uint8)
    heads[:, 0] = len(lengths)
    heads[:, 1:] = np.ascontiguousarray(shapes.T.astype("<i4")).view(np.uint8).reshape(len(dense), 4 * len(lengths))
    source = np.concatenate((heads.reshape(-1), _fixed(elements, 8).reshape(-1)))
    starts, slices = np.empty(2 * len(dense), np.int64), np.empty(2 * len(dense), np.int64)
    starts[0::2], slices[0::2] = np.arange(len(dense)) * heads.shape[1], heads.shape[1]
    starts[1::2], slices[1::2] = heads.size + 8 * (np.cumsum(sizes) - sizes), 8 * sizes
    return Column(column_type, bitmap, gather(source, starts, slices)[0].tobytes())


def _levels(dense: pa.Array) -> tuple[list[Numbers], pa.Array]:
    """The lengths of the lists of each level, outermost first, and the elements."""
    lengths: list[Numbers] = []
    while dense.type.id in _LISTS:
        if dense.null_count:
            raise NotEncodable("a null inside an array")
        lengths.append(pc.list_value_length(dense).to_numpy(zero_copy_only=False).astype(np.int64))
        dense = dense.flatten()
    return lengths, dense


def _shapes(levels: Sequence[Numbers]) -> tuple[Numbers, Numbers]:
    """One shape per value (a row per dimension), and how many elements each has."""
    shapes = np.empty((len(levels), len(levels[0])), np.int64)
    lists = np.ones(len(levels[0]), np.int64)  # lists of the level, per value
    for depth, lengths in enumerate(levels):
        ends = np.cumsum(lists)
        present = lists > 0
        shapes[depth] = 0
        shapes[depth][present] = lengths[(ends - lists)[present]]
        if (np.repeat(shapes[depth], lists) != lengths).any():
            raise NotEncodable("an array whose rows have different lengths")
        lists = lists * shapes[depth]
    return shapes, lists


_WRITERS: dict[int, Callable[[pa.Array, bytes | None], Column]] = {
    lib.Type_BOOL: _booleans,
    lib.Type_STRING: _bytes,
    lib.Type_BINARY: _bytes,
    lib.Type_FIXED_SIZE_BINARY: _big_endian,
    **dict.fromkeys(_INTS, _ints),
    **dict.fromkeys(_FLOATS, _floats),
    **dict.fromkeys(_DECIMALS, _decimals),
    **dict.fromkeys(_LISTS, _arrays),
}
