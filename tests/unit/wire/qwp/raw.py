"""QWP messages put together by hand, so that the decoder is not tested against our own encoder."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa
import pytest

from holdfast.errors import Category, WireError
from holdfast.wire import qwp
from holdfast.wire.limits import FrameLimits

LIMITS = FrameLimits()
NOW_US = 1_700_000_000_000_000

LONG, SYMBOL, TIMESTAMP, VARCHAR = 0x05, 0x09, 0x0A, 0x0F


def number(value: int) -> bytes:
    """An unsigned LEB128."""
    encoded = b""
    while value >= 0x80:
        encoded += bytes([value & 0x7F | 0x80])
        value >>= 7
    return encoded + bytes([value])


def named(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return number(len(raw)) + raw


def delta(first: int, *symbols: str | bytes) -> bytes:
    return number(first) + number(len(symbols)) + b"".join(named(symbol) for symbol in symbols)


def table(name: str | bytes, rows: int, *columns: tuple[str | bytes, int, bytes]) -> bytes:
    """Columns are (name, type, null flag and everything behind it)."""
    fields = b"".join(named(column) + bytes([code]) for column, code, _ in columns)
    data = b"".join(body for _, _, body in columns)
    return named(name) + number(rows) + number(len(columns)) + fields + data


def message(*blocks: bytes, flags: int = 0x08, symbols: bytes = b"\0\0", tables: int | None = None) -> bytes:
    payload = (symbols if flags & 0x08 else b"") + b"".join(blocks)
    count = len(blocks) if tables is None else tables
    return struct.pack("<4sBBHI", b"QWP1", 1, flags, count, len(payload)) + payload


def longs(*values: int) -> bytes:
    return b"\0" + struct.pack(f"<{len(values)}q", *values)


def decode(raw: bytes, dictionary: qwp.SymbolDictionary | None = None, limits: FrameLimits = LIMITS) -> qwp.QwpMessage:
    found = qwp.decode(raw, qwp.SymbolDictionary() if dictionary is None else dictionary, limits, now_us=NOW_US)
    for entry in found.entries:
        entry.batch.validate(full=True)
    return found


def column(code: int, rows: int, body: bytes, *, flags: int = 0x08, symbols: bytes = b"\0\0") -> pa.Array:
    """The one column of the one table of a message."""
    found = decode(message(table("t", rows, ("c", code, body)), flags=flags, symbols=symbols))
    return found.entries[0].batch.column("c")


def refusal_of(
    raw: bytes,
    dictionary: qwp.SymbolDictionary | None = None,
    *,
    limits: FrameLimits = LIMITS,
    category: Category = Category.PARSE_ERROR,
) -> WireError:
    with pytest.raises(WireError) as caught:
        decode(raw, dictionary, limits)
    assert caught.value.category is category
    return caught.value


def symbols_of(dictionary: qwp.SymbolDictionary) -> Sequence[bytes]:
    return dictionary.encoded(0, dictionary.size)
