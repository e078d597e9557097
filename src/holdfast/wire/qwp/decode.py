"""A QWP message to entries, one per table that has rows.

The message is valid as a whole or it is refused as a whole: then the dictionary is as it was before. Batches may be
views of the message.
"""

from __future__ import annotations

import struct

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.errors import Category, InvalidName, WireError
from holdfast.model.frame import Entry
from holdfast.model.names import check_channel_name
from holdfast.wire.limits import FrameLimits
from holdfast.wire.qwp.columns import Context, read_column
from holdfast.wire.qwp.reader import Reader
from holdfast.wire.qwp.symbols import SymbolDictionary, read_delta
from holdfast.wire.qwp.types import (
    DESIGNATED,
    FLAG_DEFER,
    FLAG_DELTA,
    FLAG_GORILLA,
    FLAGS,
    HEADER_BYTES,
    MAGIC,
    TIMES,
    VERSION,
    ColumnType,
)

COLUMN_BYTES = 1024
"""What an array costs however few values it has: a message may say a column in five bytes, and say it often."""

_HEADER = struct.Struct("<4sBBHI")
_TYPES = {column_type.value: column_type for column_type in ColumnType}


class QwpMessage(msgspec.Struct, frozen=True, gc=False):
    """What one message says. `tables` counts those without rows too; `deferred`: its rows wait for the first later
    message that is not."""

    entries: tuple[Entry, ...]
    tables: int
    deferred: bool


def decode(
    message: bytes | bytearray | memoryview, dictionary: SymbolDictionary, limits: FrameLimits, *, now_us: int
) -> QwpMessage:
    """One message, or `WireError`; the message must not change while its batches live.

    `now_us` becomes the `timestamp` of rows that bring none.
    """
    buffer = pa.py_buffer(message)
    flags, tables = _read_header(buffer, limits)
    reader = Reader(buffer, limits, offset=HEADER_BYTES)
    undo = read_delta(reader, dictionary) if flags & FLAG_DELTA else None
    context = Context(dictionary, is_delta=bool(flags & FLAG_DELTA), is_gorilla=bool(flags & FLAG_GORILLA))
    try:
        entries = [_read_table(reader, context, now_us) for _ in range(tables)]
        if reader.rest_bytes:
            raise reader.refuse(f"{reader.rest_bytes} bytes behind the last table")
    except BaseException:
        if undo is not None:
            dictionary.revert(undo)
        raise
    kept = tuple([entry for entry in entries if entry is not None])
    return QwpMessage(kept, tables, bool(flags & FLAG_DEFER))


def _read_header(buffer: pa.Buffer, limits: FrameLimits) -> tuple[int, int]:
    size = buffer.size
    if size > limits.message_bytes:
        raise _refuse(0, f"the message has {size} bytes, at most {limits.message_bytes} are allowed")
    if size < HEADER_BYTES:
        raise _refuse(size, f"the message has {size} bytes, its header alone {HEADER_BYTES}")
    magic, version, flags, tables, payload_bytes = _HEADER.unpack_from(buffer)
    if magic != MAGIC:
        raise _refuse(0, f"the message begins with {magic.hex()}, not with {MAGIC.hex()}")
    if version != VERSION:
        raise _refuse(4, f"version {version} is not known; this release reads version {VERSION}")
    if flags & ~FLAGS:
        raise _refuse(5, f"flags {flags:#04x} are not known; allowed are bits of {FLAGS:#04x}")
    if tables > min(limits.tables, limits.entries):
        raise _refuse(6, f"{tables} tables, at most {min(limits.tables, limits.entries)} are allowed in a message")
    if payload_bytes != size - HEADER_BYTES:
        raise _refuse(8, f"the header says {payload_bytes} bytes follow, there are {size - HEADER_BYTES}")
    return flags, tables


def _refuse(offset: int, reason: str) -> WireError:
    return WireError(category=Category.PARSE_ERROR, reason=reason, place=f"byte {offset}")


def _read_table(reader: Reader, context: Context, now_us: int) -> Entry | None:
    reader.table = reader.column = None
    channel = reader.text("table")
    reader.table = channel
    try:
        check_channel_name(channel)
    except InvalidName as error:
        raise reader.refuse(f"the table cannot be a channel: {error}") from None
    rows = reader.count("rows", reader.limits.rows)
    fields = _read_fields(reader)
    columns: dict[str, pa.Array] = {}
    for name, column_type in fields:
        reader.column = name
        columns[name] = read_column(reader, column_type, rows, context)
    reader.column = None
    if rows == 0:
        return None
    if DESIGNATED not in columns:
        reader.charge(rows * 8)
        columns[DESIGNATED] = pa.array(np.full(rows, now_us, np.int64)).view(pa.timestamp("us", "UTC"))
    return Entry(channel, pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns)))


def _read_fields(reader: Reader) -> list[tuple[str, ColumnType]]:
    fields: dict[str, ColumnType] = {}
    count = reader.count("columns", reader.limits.columns)
    reader.charge(count * COLUMN_BYTES)
    for _ in range(count):
        name = reader.text("column")
        reader.column = name
        code = reader.u8()
        column_type = _TYPES.get(code)
        if column_type is None:
            raise reader.refuse(f"type {code:#04x} is not known")
        if not name and column_type not in TIMES:
            raise reader.refuse(f"a column of type {column_type.name} without a name; only a timestamp may have none")
        name = name or DESIGNATED
        if name in fields:
            raise reader.refuse(f"column {name!r} appears twice; the timestamp without a name is {DESIGNATED!r}")
        fields[name] = column_type
        reader.column = None
    return list(fields.items())
