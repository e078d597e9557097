"""A message just below the largest one is read, whatever its types: as Arrow no type takes 16 times as much."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from holdfast.wire.limits import FrameLimits
from tests.unit.wire.qwp.raw import decode, message, number, refusal_of, table

MESSAGE_BYTES = 1 << 20
ROWS_MAX = MESSAGE_BYTES // 4
"""As many as a server's defaults allow for its largest message."""
LIMITS = FrameLimits(message_bytes=MESSAGE_BYTES, rows=ROWS_MAX, decoded_bytes=16 * MESSAGE_BYTES)
NO_NULLS = b"\0"
SYMBOL = b"\0\1\1a"

Plain = tuple[int, int, bytes]
"""Type code, bytes of a value, and what stands before the values."""

FIXED: dict[str, Plain] = {
    "byte": (0x02, 1, b""),
    "short": (0x03, 2, b""),
    "int": (0x04, 4, b""),
    "long": (0x05, 8, b""),
    "float": (0x06, 4, b""),
    "double": (0x07, 8, b""),
    "symbol": (0x09, 1, b""),
    "timestamp": (0x0A, 8, b""),
    "date": (0x0B, 8, b""),
    "uuid": (0x0C, 16, b""),
    "long256": (0x0D, 32, b""),
    "nanos": (0x10, 8, b""),
    "decimal64": (0x13, 8, b"\2"),
    "decimal128": (0x14, 16, b"\2"),
    "decimal256": (0x15, 32, b"\2"),
    "char": (0x16, 2, b""),
    "ipv4": (0x18, 4, b""),
    **{f"geohash of {bits} bits": (0x0E, (bits + 7) // 8, number(bits)) for bits in (1, 5, 7, 8, 9, 16, 20, 59, 60)},
}


def near_limit(code: int, value_bytes: int, before: bytes, *, value: int, with_bitmap: bool) -> bytes:
    """A column of that type and the timestamps, in a message of the largest size but for some bytes."""
    rows = (MESSAGE_BYTES - 200) // (value_bytes + 8 + (1 if with_bitmap else 0))
    values = np.full((rows, value_bytes), value, np.uint8)
    bitmap = b"\1" + bytes((rows + 7) // 8) if with_bitmap else NO_NULLS
    times = NO_NULLS + np.arange(rows, dtype="<i8").tobytes()
    raw = message(table("t", rows, ("c", code, bitmap + before + values.tobytes()), ("", 0x0A, times)), symbols=SYMBOL)
    assert MESSAGE_BYTES * 0.9 < len(raw) <= MESSAGE_BYTES
    return raw


@pytest.mark.parametrize("with_bitmap", [False, True], ids=["sentinels", "bitmap"])
@pytest.mark.parametrize("name", FIXED)
def test_message_of_nearly_the_largest_size_is_read_for_every_type_of_fixed_width(name: str, with_bitmap: bool) -> None:
    code, value_bytes, before = FIXED[name]
    widest = 0x00 if name.startswith(("geohash", "decimal", "symbol")) else 0x7F
    decode(near_limit(code, value_bytes, before, value=widest, with_bitmap=with_bitmap), limits=LIMITS)


@pytest.mark.parametrize("name", ["byte", "symbol", "geohash of 8 bits", "ipv4", "char"])
def test_columns_of_one_type_fill_a_message_and_are_read_with_the_servers_time(name: str) -> None:
    """The most that a value's bytes become, and eight more per row."""
    code, value_bytes, before = FIXED[name]
    rows = min(ROWS_MAX, MESSAGE_BYTES // value_bytes) * 99 // 100
    widest = {"ipv4": 0xFF, "char": 0x7F}.get(name, 0)
    body = NO_NULLS + before + bytes([widest]) * (rows * value_bytes)
    count = MESSAGE_BYTES // (rows * value_bytes)
    raw = message(table("t", rows, *[(f"c{n}", code, body) for n in range(count)]), symbols=SYMBOL)
    assert decode(raw, limits=LIMITS).entries[0].batch.num_rows == rows


@pytest.mark.parametrize(("code", "length"), [(0x0F, 1), (0x0F, 1000), (0x17, 1), (0x17, 1000)])
def test_message_of_nearly_the_largest_size_is_read_for_texts_and_bytes(code: int, length: int) -> None:
    rows = min(ROWS_MAX, (MESSAGE_BYTES - 200) // (length + 4))
    offsets = (np.arange(rows + 1, dtype="<u4") * length).tobytes()
    decode(message(table("t", rows, ("c", code, NO_NULLS + offsets + b"x" * (rows * length)))), limits=LIMITS)


@pytest.mark.parametrize(("dimensions", "length"), [(1, 1), (1, 100), (3, 2), (15, 1)])
@pytest.mark.parametrize("code", [0x11, 0x12])
def test_message_of_nearly_the_largest_size_is_read_for_arrays(code: int, dimensions: int, length: int) -> None:
    value = struct.pack(f"<B{dimensions}i", dimensions, *[length] * dimensions) + bytes(8 * length**dimensions)
    rows = min(ROWS_MAX, (MESSAGE_BYTES - 300) // len(value))
    same = decode(message(table("t", rows, ("c", code, NO_NULLS + value * rows))), limits=LIMITS)
    shorter = struct.pack(f"<B{dimensions}i", dimensions, *[0] * dimensions)
    other = decode(message(table("t", rows, ("c", code, NO_NULLS + value * (rows - 1) + shorter))), limits=LIMITS)
    assert same.entries[0].batch.num_rows == other.entries[0].batch.num_rows == rows


def test_booleans_that_fill_a_message_are_read() -> None:
    rows, columns = ROWS_MAX, 31
    body = NO_NULLS + b"\xaa" * (rows // 8)
    raw = message(table("t", rows, *[(f"c{n}", 0x01, body) for n in range(columns)]))
    assert decode(raw, limits=LIMITS).entries[0].batch.num_rows == rows


def test_what_a_column_needs_while_it_is_read_is_bounded_too() -> None:
    raw = message(table("t", 1_000_000, ("c", 0x16, NO_NULLS + b"a\0" * 1_000_000)))
    assert "reading the column takes more than" in refusal_of(raw, limits=FrameLimits(decoded_bytes=20 << 20)).reason
