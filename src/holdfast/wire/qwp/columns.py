"""The values of each column type to an Arrow array.

Values are copied once, because they do not stand aligned in a message; the bytes of texts are not copied at all. Which
Arrow type a column becomes depends on its type code alone. Decimals also have a scale and arrays a depth; where such a
column has no value at all it becomes Arrow's null type, because clients go on sending columns they no longer fill.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.wire.qwp import arrays, gorilla
from holdfast.wire.qwp.reader import Numbers, Reader, gather, texts
from holdfast.wire.qwp.slots import Slots, read_slots
from holdfast.wire.qwp.symbols import SymbolDictionary, check_texts
from holdfast.wire.qwp.types import INT_NULL, LONG_NULL, ColumnType

_GEOHASH_LETTERS: Numbers = np.frombuffer(b"0123456789bcdefghjkmnpqrstuvwxyz", np.uint8)
_GEOHASH_BITS_MAX = 60
_ADDRESS_LETTERS_MAX = 15
PIECE_ROWS = 1 << 15
"""What has many letters per row is read in pieces of so many: each letter takes eight bytes for a moment."""
_SYMBOL = pa.dictionary(pa.int32(), pa.string())
_DECIMALS = {
    ColumnType.DECIMAL64: (8, pa.decimal128, 18),
    ColumnType.DECIMAL128: (16, pa.decimal128, 38),
    ColumnType.DECIMAL256: (32, pa.decimal256, 76),
}


class Context(NamedTuple):
    """What holds for all columns of a message."""

    dictionary: SymbolDictionary
    is_delta: bool
    is_gorilla: bool


def read_column(reader: Reader, column_type: ColumnType, rows: int, context: Context) -> pa.Array:
    """The column at the reader's place."""
    slots = read_slots(reader, rows)
    if column_type in _FIXED:
        return _read_fixed(reader, slots, _FIXED[column_type])
    if column_type is ColumnType.SYMBOL:
        return _read_symbols(reader, slots, context)
    if column_type in _TIMESTAMPS:
        return _read_timestamps(reader, slots, _TIMESTAMPS[column_type], is_gorilla=context.is_gorilla)
    if column_type in _DECIMALS:
        return _read_decimals(reader, slots, column_type)
    return _OTHERS[column_type](reader, slots)


# -------------------------------------------------------------------------------------------------------------- numbers


class _Fixed(NamedTuple):
    """A type whose values stand as Arrow keeps them."""

    dtype: str
    width: int
    data_type: pa.DataType
    null: int | None = None
    """The sentinel; for floats it is NaN."""


_FIXED = {
    ColumnType.BYTE: _Fixed("i1", 1, pa.int8()),
    ColumnType.SHORT: _Fixed("<i2", 2, pa.int16()),
    ColumnType.INT: _Fixed("<i4", 4, pa.int32(), INT_NULL),
    ColumnType.LONG: _Fixed("<i8", 8, pa.int64(), LONG_NULL),
    ColumnType.FLOAT: _Fixed("<f4", 4, pa.float32()),
    ColumnType.DOUBLE: _Fixed("<f8", 8, pa.float64()),
    ColumnType.DATE: _Fixed("<i8", 8, pa.timestamp("ms", "UTC"), LONG_NULL),
}
_TIMESTAMPS = {
    ColumnType.TIMESTAMP: _Fixed("<i8", 8, pa.timestamp("us", "UTC"), LONG_NULL),
    ColumnType.TIMESTAMP_NANOS: _Fixed("<i8", 8, pa.timestamp("ns", "UTC"), LONG_NULL),
}


def _read_fixed(reader: Reader, slots: Slots, fixed: _Fixed) -> pa.Array:
    reader.charge(slots.rows * fixed.width)
    return _with_sentinels(slots, fixed, slots.spread(reader.numbers(fixed.dtype, slots.filled)))


def _with_sentinels(slots: Slots, fixed: _Fixed, values: Numbers) -> pa.Array:
    if not slots.has_bitmap:
        if fixed.null is not None:
            slots = slots.without(values == fixed.null)
        elif values.dtype.kind == "f":
            slots = slots.without(np.isnan(values))
    return slots.array(fixed.data_type, values)


def _read_timestamps(reader: Reader, slots: Slots, fixed: _Fixed, *, is_gorilla: bool) -> pa.Array:
    encoding = reader.u8() if is_gorilla else 0
    if encoding == 0:
        return _read_fixed(reader, slots, fixed)
    if encoding != 1:
        raise reader.refuse(f"timestamps of encoding {encoding}, allowed are 0 (plain) and 1 (gorilla)")
    reader.charge(slots.rows * 8)
    reader.borrow(slots.rows * 32)
    return _with_sentinels(slots, fixed, slots.spread(gorilla.decode(reader, slots.filled)))


def _read_booleans(reader: Reader, slots: Slots) -> pa.Array:
    size = (slots.filled + 7) // 8
    reader.need(size, f"{slots.filled} values")
    start = reader.offset
    reader.offset += size
    if slots.valid is None:
        return slots.array(pa.bool_(), reader.buffer.slice(start, size))
    reader.borrow(2 * slots.rows)
    reader.charge(slots.rows // 8 + 1)
    bits = np.unpackbits(reader.bytes[start : start + size], count=slots.filled, bitorder="little")
    return slots.array(pa.bool_(), np.packbits(slots.spread(bits), bitorder="little"))


def _read_decimals(reader: Reader, slots: Slots, column_type: ColumnType) -> pa.Array:
    width, make_type, digits = _DECIMALS[column_type]
    scale = reader.u8()
    if scale > digits:
        raise reader.refuse(f"scale {scale}, at most {digits} is allowed for {column_type.name}")
    if slots.filled == 0:  # clients say scale 0 then, whatever the channel has; the null type fits every channel
        return pa.nulls(slots.rows)
    words = max(2, width // 8)
    reader.charge(slots.rows * words * 8)
    reader.borrow(slots.filled * words * 8)
    values = reader.numbers("<i8", slots.filled * width // 8).reshape(slots.filled, width // 8)
    if width == 8:  # the sign fills the upper half
        values = np.concatenate((values, values >> 63), axis=1)
    return slots.array(make_type(digits, scale), slots.spread(values))


def _read_big_endian(width: int) -> Callable[[Reader, Slots], pa.Array]:
    """Numbers that stand with their lowest byte first and are kept with their highest byte first."""

    def read(reader: Reader, slots: Slots) -> pa.Array:
        reader.charge(slots.rows * width)
        reader.borrow(slots.filled * width)
        values = reader.numbers("u1", slots.filled * width).reshape(slots.filled, width)[:, ::-1]
        return slots.array(pa.binary(width), slots.spread(np.ascontiguousarray(values)))

    return read


# ---------------------------------------------------------------------------------------------------------------- texts


def _read_bytes(data_type: pa.DataType) -> Callable[[Reader, Slots], pa.Array]:
    def read(reader: Reader, slots: Slots) -> pa.Array:
        reader.charge(4 * (slots.rows + 1))
        reader.borrow(slots.rows * 24)
        offsets = reader.numbers("<u4", slots.filled + 1).astype(np.int64)
        if offsets[0] != 0 or (offsets[1:] < offsets[:-1]).any():
            raise reader.refuse("the offsets do not begin at 0, or fall")
        size = int(offsets[-1])
        reader.need(size, "values")
        data = reader.buffer.slice(reader.offset, size)
        array = slots.array(data_type, slots.spread_offsets(offsets), data)
        if data_type.id == pa.string().id:
            check_texts(reader, array, "a text")
        reader.offset += size
        return array

    return read


def _text_rows(slots: Slots, letters: Numbers) -> pa.Array:
    """Texts of equal length, one per row of a matrix of ASCII letters."""
    count, length = letters.shape
    offsets = np.arange(count + 1, dtype=np.int64) * length
    return slots.array(pa.string(), slots.spread_offsets(offsets), letters.reshape(-1))


def _read_chars(reader: Reader, slots: Slots) -> pa.Array:
    """One UTF-16 unit each; 0 means null where there is no bitmap."""
    reader.borrow(slots.rows * 40)
    units = reader.numbers("<u2", slots.filled).astype(np.uint32)
    if ((units >= 0xD800) & (units < 0xE000)).any():
        raise reader.refuse("half of a surrogate pair is not a character")
    if not slots.has_bitmap:
        slots, units = slots.without(units == 0), units[units != 0]
    offsets = np.zeros(slots.filled + 1, np.int64)
    np.cumsum(1 + (units >= 0x80) + (units >= 0x800), out=offsets[1:])
    reader.charge(4 * (slots.rows + 1) + int(offsets[-1]))
    data = units.astype("<u4").tobytes().decode("utf-32-le").encode()
    return slots.array(pa.string(), slots.spread_offsets(offsets), pa.py_buffer(data))


def _read_geohashes(reader: Reader, slots: Slots) -> pa.Array:
    """As text: letters if the precision is a multiple of five bits, else `##` and bits."""
    bits = reader.count("bits in a geohash", _GEOHASH_BITS_MAX)
    if bits == 0:
        raise reader.refuse("a geohash of no bits")
    width = (bits + 7) // 8
    length = bits // 5 if bits % 5 == 0 else bits + 2
    reader.charge(4 * (slots.rows + 1) + slots.filled * length)
    reader.borrow(slots.rows * 40)
    raw = np.zeros((slots.filled, 8), np.uint8)
    raw[:, :width] = reader.numbers("u1", slots.filled * width).reshape(slots.filled, width)
    values = raw.view("<u8").reshape(slots.filled)
    if not slots.has_bitmap:
        is_null = values == (1 << 8 * width) - 1
        slots, values = slots.without(is_null), values[~is_null]
    if (values >> np.uint64(bits)).any():
        raise reader.refuse(f"a geohash has more than its {bits} bits")
    step, letters = (5, _GEOHASH_LETTERS) if bits % 5 == 0 else (1, _GEOHASH_LETTERS[:2])
    shifts = np.arange(bits - step, -1, -step, dtype=np.uint64)
    text = np.full((len(values), length), ord("#"), np.uint8)
    for start in range(0, len(values), PIECE_ROWS):
        piece = values[start : start + PIECE_ROWS, None]
        text[start : start + PIECE_ROWS, -len(shifts) :] = letters[(piece >> shifts) & np.uint64((1 << step) - 1)]
    return _text_rows(slots, text)


def _read_addresses(reader: Reader, slots: Slots) -> pa.Array:
    """IPv4 as text, `1.2.3.4`."""
    reader.charge(slots.rows * (4 + _ADDRESS_LETTERS_MAX) + 4)
    reader.borrow(slots.rows * (4 + _ADDRESS_LETTERS_MAX))
    octets = slots.spread(reader.numbers("u1", slots.filled * 4).reshape(slots.filled, 4))
    pieces = []
    for start in range(0, max(1, slots.rows), PIECE_ROWS):
        rows = slice(start, start + PIECE_ROWS)
        parts = [pa.array(octets[rows, i]).cast(pa.string()) for i in (3, 2, 1, 0)]
        joined = pc.binary_join_element_wise(*parts, ".")
        if slots.valid is not None:
            joined = pc.if_else(pa.array(slots.valid[rows]), joined, pa.scalar(None, pa.string()))
        pieces.append(joined)
    return pa.concat_arrays(pieces) if len(pieces) != 1 else pieces[0]


# -------------------------------------------------------------------------------------------------------------- symbols


def _read_symbols(reader: Reader, slots: Slots, context: Context) -> pa.Array:
    if context.is_delta:
        return _symbol_array(reader, slots, context.dictionary)
    size = reader.varint()
    starts, lengths = reader.strings(size)
    own = SymbolDictionary(entries_max=size, bytes_max=reader.limits.message_bytes)
    if size:
        reader.charge(int(lengths.sum()))
        data, offsets = gather(reader.bytes, starts, lengths)
        check_texts(reader, texts(data, offsets), "a symbol")
        own.apply(0, data, offsets)
    return _symbol_array(reader, slots, own)


def _symbol_array(reader: Reader, slots: Slots, dictionary: SymbolDictionary) -> pa.Array:
    """A dictionary array of the symbols that occur, in the order of their ids."""
    reader.charge(slots.rows * 4)
    reader.borrow(slots.rows * 40)
    ids = reader.ids(slots.filled)
    highest = int(ids.max(initial=-1))
    if highest >= dictionary.size:
        raise reader.refuse(f"symbol id {highest}, but the dictionary has {dictionary.size} symbols")
    if highest <= 4 * len(ids):
        seen = np.zeros(highest + 1, np.bool_)
        seen[ids] = True
        used = np.flatnonzero(seen)
        places: Numbers = np.cumsum(seen)[ids] - 1
    else:
        used, places = np.unique(ids, return_inverse=True)
    reader.charge(dictionary.bytes_of(used) + 4 * (len(used) + 1))
    indices = slots.array(pa.int32(), slots.spread(places.astype(np.int32)))
    return pa.DictionaryArray.from_arrays(indices, dictionary.take(used), safe=False)


_OTHERS: dict[ColumnType, Callable[[Reader, Slots], pa.Array]] = {
    ColumnType.BOOLEAN: _read_booleans,
    ColumnType.UUID: _read_big_endian(16),
    ColumnType.LONG256: _read_big_endian(32),
    ColumnType.GEOHASH: _read_geohashes,
    ColumnType.VARCHAR: _read_bytes(pa.string()),
    ColumnType.BINARY: _read_bytes(pa.binary()),
    ColumnType.DOUBLE_ARRAY: arrays.reader_of("<f8", pa.float64()),
    ColumnType.LONG_ARRAY: arrays.reader_of("<i8", pa.int64()),
    ColumnType.CHAR: _read_chars,
    ColumnType.IPV4: _read_addresses,
}
