"""A file of a log, record by record; of the write-ahead log also what the records hold.

Promise: every intact record up to the first flaw is described; a flaw says whether it is a torn tail or damage, and
shows the bytes. Channel ids are shown as names, as far as the file itself tells them.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import pyarrow as pa

from holdfast.disk import records
from holdfast.disk.appendlog import KIND_CLOSE, LogFile, log_numbers, log_path
from holdfast.disk.filesystem import Filesystem
from holdfast.disk.records import Record
from holdfast.errors import CorruptData, UnsupportedFormat
from holdfast.model.frame import Guid, SlotFrame
from holdfast.store.inspect.copies import Damage, read_log_copy, read_whole
from holdfast.store.wal.codec import (
    KIND_FLOORS,
    KIND_FRAME,
    KIND_NAMES,
    KIND_SCHEMA,
    FrameRecord,
    decode_floors,
    decode_frame,
    decode_schema_note,
)
from holdfast.store.wal.log import WAL_NAME

MAKES_NO_SENSE = (ValueError, LookupError, struct.error, pa.ArrowException)
"""What decoding the payload of an intact record can raise."""


@dataclass(frozen=True, slots=True)
class LogHeader:
    """What the first 64 bytes say."""

    store_id: str
    number: int
    start_position: int
    file_id: str
    weak: bool
    name: str


@dataclass(frozen=True, slots=True)
class FloorsContent:
    """The next numbers when the file was begun."""

    next_committed_id: int
    next_segment_seq: int
    next_channel_id: int
    next_seqs: dict[str, int]


@dataclass(frozen=True, slots=True)
class SchemaContent:
    """A schema, before its first use in the file."""

    channel: str
    schema_id: int
    columns: dict[str, str]


@dataclass(frozen=True, slots=True)
class EntryContent:
    """A frame's part for one channel."""

    channel: str
    schema_id: int
    first_seq: int
    last_seq: int
    rows: int
    arrow_bytes: int
    partitions: tuple[str, ...]
    id_column: str
    in_segment: int | None = None
    """The segment whose file holds the Arrow bytes, if the log only refers to them."""


@dataclass(frozen=True, slots=True)
class FrameContent:
    """A frame: when it came, whose it is, what it holds."""

    first_committed_id: int
    ingested_at_ns: int
    identity: dict[str, str | int] | None
    entries: tuple[EntryContent, ...]


Content: TypeAlias = FloorsContent | SchemaContent | FrameContent


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One intact record. `content` is None for a close, and where the content makes no sense."""

    offset_bytes: int
    position: int
    kind: str
    size_bytes: int
    synced: int
    content: Content | None


@dataclass(frozen=True, slots=True)
class LogView:
    """A file of a log."""

    file: str
    size_bytes: int
    header: LogHeader | None
    records: tuple[LogRecord, ...]
    end_offset: int
    closed: bool
    damage: tuple[Damage, ...]
    kind: Literal["log"] = "log"


def inspect_log(filesystem: Filesystem, path: Path) -> LogView:
    """A log file up to its end or its first flaw."""
    try:
        found = read_log_copy(filesystem, path, last=_is_last(filesystem, path))
    except (CorruptData, UnsupportedFormat) as error:
        size_bytes = len(read_whole(filesystem, path))
        return LogView(str(path), size_bytes, None, (), 0, closed=False, damage=(Damage.of(error),))
    described, damage = _describe(found)
    head = found.header
    return LogView(
        file=str(path),
        size_bytes=found.buffer.size,
        header=LogHeader(
            head.store_id.hex(), head.number, head.start_position, f"{head.file_id:016x}", head.weak, head.name
        ),
        records=tuple(described),
        end_offset=found.end_offset,
        closed=found.closed,
        damage=(*damage, *flaw_of(found)),
    )


def flaw_of(found: LogFile) -> tuple[Damage, ...]:
    """The place where the file stops being readable, if it has one."""
    flaw = found.flaw
    if flaw is None:
        return ()
    dump = records.dump(found.buffer, offset=flaw.offset_bytes)
    return (Damage(str(found.path), flaw.offset_bytes, flaw.reason, dump, flaw.torn),)


def _is_last(filesystem: Filesystem, path: Path) -> bool:
    """Only the newest file of a log may have a torn tail."""
    name = path.name.partition("-")[0]
    numbers = log_numbers(filesystem, path.parent, name)
    return not numbers or path.name >= log_path(path.parent, name, numbers[-1]).name


def _describe(found: LogFile) -> tuple[list[LogRecord], list[Damage]]:
    names: dict[int, str] = {}
    described: list[LogRecord] = []
    damage: list[Damage] = []
    is_wal = found.header.name == WAL_NAME
    for record in found.records:
        offset = record.position - found.header.start_position
        content: Content | None = None
        try:
            content = _content(record, names) if is_wal else None
        except MAKES_NO_SENSE as error:
            damage.append(Damage(str(found.path), offset, f"the record is intact but makes no sense: {error}"))
        known = KIND_NAMES if is_wal else {KIND_CLOSE: "close"}
        kind = known.get(record.kind, f"kind {record.kind}")
        described.append(LogRecord(offset, record.position, kind, record.size_bytes, record.synced, content))
    return described, damage


def _content(record: Record, names: dict[int, str]) -> Content | None:
    if record.kind == KIND_FLOORS:
        floors = decode_floors(record.payload)
        names.update({channel_id: name for channel_id, name, _ in floors.channels})
        next_seqs = {name: next_seq for _, name, next_seq in floors.channels}
        return FloorsContent(floors.committed_id, floors.segment_seq, floors.channel_id, next_seqs)
    if record.kind == KIND_SCHEMA:
        note = decode_schema_note(record.payload)
        names[note.channel_id] = note.channel
        return SchemaContent(note.channel, note.schema_id, columns_of(note.schema))
    return _frame(decode_frame(record.payload), names) if record.kind == KIND_FRAME else None


def columns_of(schema: bytes) -> dict[str, str]:
    """Name to type, of a serialized Arrow schema."""
    return {column.name: str(column.type) for column in pa.ipc.read_schema(pa.py_buffer(schema))}


def _frame(frame: FrameRecord, names: dict[int, str]) -> FrameContent:
    entries = tuple(
        EntryContent(
            channel=names.get(entry.channel_id, f"#{entry.channel_id}"),
            schema_id=entry.schema_id,
            first_seq=entry.first_seq,
            last_seq=entry.first_seq + entry.payload.rows - 1,
            rows=entry.payload.rows,
            arrow_bytes=entry.payload.arrow_bytes,
            partitions=entry.options.partitions,
            id_column=entry.options.id_column,
            in_segment=entry.payload.reference.segment_seq if entry.payload.reference else None,
        )
        for entry in frame.entries
    )
    identity: dict[str, str | int] | None = None
    if isinstance(frame.identity, SlotFrame):
        identity = {"slot_id": frame.identity.slot_id.hex(), "fsn": frame.identity.fsn}
    elif isinstance(frame.identity, Guid):
        identity = {"guid": frame.identity.value.hex()}
    return FrameContent(frame.first_committed_id, frame.ingested_at_ns, identity, entries)
