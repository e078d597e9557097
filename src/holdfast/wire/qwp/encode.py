"""Entries to a QWP message.

Symbols are always sent as a delta. With the dictionary of the connection a message carries only what is new to it, and
the other side must have seen all messages before; without one it carries all it needs. Partitions have no form in QWP.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pyarrow as pa
from pyarrow import lib

from holdfast.errors import InvalidBatch
from holdfast.model.frame import Entry
from holdfast.wire.limits import FrameLimits
from holdfast.wire.qwp.symbols import SymbolDictionary
from holdfast.wire.qwp.types import FLAG_DEFER, FLAG_DELTA, FLAG_GORILLA, HEADER_BYTES, MAGIC, TIMES, VERSION
from holdfast.wire.qwp.values import Column, NotEncodable, column_of

_HEADER = struct.Struct("<4sBBHI")
_LIMITS = FrameLimits()
CATCH_UP_SYMBOLS = 1 << 16
"""Looked at in one step, so that two million are not all Python objects at once."""


def encode(
    entries: Sequence[Entry],
    dictionary: SymbolDictionary | None,
    *,
    deferred: bool = False,
    designated: str | None = None,
    gorilla: bool = False,
) -> bytes:
    """One message, or `InvalidBatch`, and then the dictionary is as before.

    `designated` is the column that is sent as the designated timestamp, where a batch has it. If the message is not
    sent after all, `dictionary.truncate` takes its symbols back.
    """
    if len(entries) > _LIMITS.tables:
        raise InvalidBatch(channel="", reason=f"{len(entries)} tables, at most {_LIMITS.tables} are allowed")
    symbols = SymbolDictionary() if dictionary is None else dictionary
    first = symbols.size
    blocks: list[bytes] = []
    try:
        for entry in entries:
            blocks += _table(entry, symbols, designated, is_gorilla=gorilla)
        new = symbols.encoded(first, symbols.size)
        flags = FLAG_DELTA | (FLAG_DEFER if deferred else 0) | (FLAG_GORILLA if gorilla else 0)
        return _message(flags, len(entries), [*_delta(first, new), *blocks])
    except BaseException:
        symbols.truncate(first)
        raise


def catch_up(dictionary: SymbolDictionary, limit_bytes: int) -> list[bytes]:
    """Messages without tables, each of at most `limit_bytes`, that teach a new connection the whole dictionary."""
    messages: list[bytes] = []
    pending: list[bytes] = []
    first = pending_bytes = 0
    room = limit_bytes - HEADER_BYTES - 20  # two varints of ten bytes
    for start in range(0, dictionary.size, CATCH_UP_SYMBOLS):
        for symbol in dictionary.encoded(start, min(start + CATCH_UP_SYMBOLS, dictionary.size)):
            size = len(symbol) + len(varint(len(symbol)))
            if size > room:
                raise ValueError(f"a symbol of {len(symbol)} bytes does not fit a message of {limit_bytes}")
            if pending_bytes + size > room:
                messages.append(_message(FLAG_DELTA, 0, _delta(first, pending)))
                first, pending, pending_bytes = first + len(pending), [], 0
            pending.append(symbol)
            pending_bytes += size
    if pending:
        messages.append(_message(FLAG_DELTA, 0, _delta(first, pending)))
    return messages


def varint(value: int) -> bytes:
    """An unsigned LEB128."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _message(flags: int, tables: int, parts: list[bytes]) -> bytes:
    size = sum([len(part) for part in parts])
    if size >= 1 << 32:
        raise InvalidBatch(channel="", reason=f"the message has {size} bytes, at most 4 GiB are allowed")
    return b"".join([_HEADER.pack(MAGIC, VERSION, flags, tables, size), *parts])


def _delta(first: int, symbols: list[bytes]) -> list[bytes]:
    parts = [varint(first), varint(len(symbols))]
    for symbol in symbols:
        parts += (varint(len(symbol)), symbol)
    return parts


def _table(entry: Entry, symbols: SymbolDictionary, designated: str | None, *, is_gorilla: bool) -> list[bytes]:
    batch = entry.batch
    if batch.num_rows > _LIMITS.rows or batch.num_columns > _LIMITS.columns:
        reason = f"{batch.num_rows} rows and {batch.num_columns} columns, at most {_LIMITS.rows} and {_LIMITS.columns}"
        raise InvalidBatch(channel=entry.channel, reason=reason)
    fields, data = [], []
    columns = [(name, array) for name, array in zip(batch.schema.names, batch.columns, strict=True) if _says(array)]
    for name, array in columns:
        column = _column(entry.channel, name, array, symbols, is_gorilla=is_gorilla)
        is_designated = name == designated
        if is_designated and column.column_type not in TIMES:
            raise InvalidBatch(
                channel=entry.channel,
                reason=f"column {name!r} of type {array.type} cannot be the designated timestamp; use us or ns",
            )
        fields += [_name(entry.channel, "" if is_designated else name), bytes([column.column_type])]
        data += [b"\0" if column.bitmap is None else b"\1" + column.bitmap, column.values]
    head = [_name(entry.channel, entry.channel), varint(batch.num_rows), varint(len(columns))]
    return [*head, *fields, *data]


def _says(array: pa.Array) -> bool:
    """A column of the null type has no type in QWP and no value to lose; it is left out."""
    return bool(array.type.id != lib.Type_NA)


def _column(channel: str, name: str, array: pa.Array, symbols: SymbolDictionary, *, is_gorilla: bool) -> Column:
    try:
        return column_of(array, symbols, is_gorilla=is_gorilla)
    except NotEncodable as error:
        raise InvalidBatch(channel=channel, reason=f"column {name!r}: {error}") from None


def _name(channel: str, name: str) -> bytes:
    raw = name.encode()
    if len(raw) > _LIMITS.name_bytes:
        raise InvalidBatch(channel=channel, reason=f"name {name!r} has more than {_LIMITS.name_bytes} bytes")
    return varint(len(raw)) + raw
