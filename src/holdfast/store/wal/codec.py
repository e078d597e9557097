"""What stands in the records of the write-ahead log.

Every file of the log stands alone: it opens with FLOORS, and a SCHEMA record comes before the first frame that uses it.

| kind | record | payload |
|---|---|---|
| 1 | FLOORS | MessagePack: the next numbers of everything that is never reused |
| 2 | SCHEMA | MessagePack: channel id, schema id, channel name, Arrow schema message |
| 3 | FRAME | the Arrow bytes of each entry, then per entry its options, then the directory below |

The directory stands behind the Arrow bytes, so that a caller's thread checksums the Arrow bytes before the committer
knows the numbers; both parts are covered by the record's checksum. From the end of the payload backwards:

    frame, 48 bytes:   u8 version | u8 identity | u16 entries | u32 zero | u64 first committed_id | i64 ingested at
    (ns) |
                       u64 fsn | 16 bytes slot id or GUID
    entry, 40 bytes:   u32 channel id | u32 schema id | u64 first seq | u32 rows | u16 form | u16 zero |
    (before it)        u32 option bytes | u32 zero | u64 Arrow bytes

Little-endian. `form` 0 is one Arrow record batch message (its schema is the SCHEMA record's); `form` 1 is a whole Arrow
IPC stream, for batches with dictionaries. Arrow bytes and options are padded to 8.

`form` 2 is a reference: the message of a large entry stands in the file of its segment to be, where the frame was
written straight into it (`segments/growing.py`). In place of the Arrow bytes there are 32 bytes; the frame's version is
2 instead of 1:

    u64 segment number | u64 offset in the file | u64 bytes | u32 CRC32C of those bytes | u32 zero
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec
import pyarrow as pa

from holdfast.disk.appendlog import NewRecord
from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Bytes
from holdfast.model.frame import EventIds, Guid, Identity, SlotFrame
from holdfast.model.positions import ChannelId, Fsn
from holdfast.store.wal.alike import join_alike

KIND_FLOORS = 1
KIND_SCHEMA = 2
KIND_FRAME = 3
KIND_NAMES = {KIND_FLOORS: "floors", KIND_SCHEMA: "schema", KIND_FRAME: "frame", 0xFFFF: "close"}

POOL = pa.system_memory_pool()
"""Frames come and go in the order of a queue; the system's allocator gives their memory back, Arrow's own keeps it."""
SMALL_BYTES = 1 << 18
"""Below this a copy is cheaper than one more batch."""
JOINED_BYTES = 1 << 20
"""What small ones are joined to."""
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

FORM_MESSAGE = 0
FORM_STREAM = 1
FORM_REFERENCE = 2

_FRAME = struct.Struct("<BBHIQqQ16s")
_ENTRY = struct.Struct("<IIQIHHIIQ")
_ENTRY_AND_FRAME = struct.Struct(_ENTRY.format + _FRAME.format[1:])
_REFERENCE = struct.Struct("<QQQII")
_VERSION = 1
_VERSION_REFERRING = 2
_NO_ID = bytes(16)
_IDENTITIES = {type(None): 0, SlotFrame: 1, Guid: 2, EventIds: 3}


class Floors(msgspec.Struct, frozen=True, array_like=True):
    """Numbers at and above these were never given out when the record was written."""

    committed_id: int
    segment_seq: int
    channel_id: int
    channels: list[tuple[int, str, int]]
    """(channel id, name, next seq)"""


class SchemaNote(msgspec.Struct, frozen=True, array_like=True):
    """Binds a channel id and a schema id to their meaning, within one file."""

    channel_id: int
    schema_id: int
    channel: str
    schema: bytes


class EntryOptions(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """What only some entries have."""

    partitions: tuple[str, ...] = ()
    id_column: str = ""


class Reference(msgspec.Struct, frozen=True, gc=False):
    """Where the Arrow bytes of an entry are: in the file of a segment that is being filled."""

    segment_seq: int
    offset_bytes: int
    size_bytes: int
    crc32c: int

    @property
    def end_bytes(self) -> int:
        """One past the last byte."""
        return self.offset_bytes + self.size_bytes

    def payload(self, rows: int) -> Payload:
        """What stands in the log."""
        packed = _REFERENCE.pack(self.segment_seq, self.offset_bytes, self.size_bytes, self.crc32c, 0)
        return Payload(pa.py_buffer(packed), FORM_REFERENCE, rows)


class Payload(msgspec.Struct, frozen=True, gc=False):
    """The Arrow bytes of one entry, encoded and ready for the log; or, as read from there, where they are."""

    buffer: pa.Buffer
    form: int
    rows: int
    crc: int = -1
    """Checksum of the buffer, if somebody knows it."""

    def decode(self, schema: pa.Schema) -> pa.RecordBatch:
        """The batch, without a copy."""
        if self.form == FORM_MESSAGE:
            return pa.ipc.read_record_batch(self.buffer, schema)
        if self.form == FORM_REFERENCE:
            raise ValueError("the bytes of the batch are not in the log")
        with pa.ipc.open_stream(self.buffer) as reader:
            return reader.read_next_batch()

    @property
    def reference(self) -> Reference | None:
        """Where the bytes are, if they are elsewhere."""
        return Reference(*_REFERENCE.unpack(self.buffer)[:4]) if self.form == FORM_REFERENCE else None

    @property
    def arrow_bytes(self) -> int:
        """How many Arrow bytes there are, here or elsewhere."""
        reference = self.reference
        return reference.size_bytes if reference is not None else self.buffer.size


class EntryPlace(msgspec.Struct, frozen=True, gc=False):
    """An entry with its numbers, in the directory of a frame."""

    channel_id: ChannelId
    schema_id: int
    first_seq: int
    payload: Payload
    options: EntryOptions


class FrameRecord(msgspec.Struct, frozen=True, gc=False):
    """A frame as read back from the log."""

    first_committed_id: int
    ingested_at_ns: int
    identity: SlotFrame | Guid | None
    entries: tuple[EntryPlace, ...]


def encode_batch(batch: pa.RecordBatch, *, has_dictionaries: bool) -> Payload:
    """The bytes of one batch; the one copy a frame pays."""
    if not has_dictionaries:
        return Payload(batch.serialize(memory_pool=POOL), FORM_MESSAGE, batch.num_rows)
    sink = pa.BufferOutputStream(POOL)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return Payload(sink.getvalue(), FORM_STREAM, batch.num_rows)


def decode_pieces(payloads: Iterable[Payload], schema: pa.Schema) -> list[tuple[int, Callable[[], pa.RecordBatch]]]:
    """The batches of many payloads of one schema, in order: the rows of each, and how to make it.

    Large ones are views of their bytes. Neighbours that are small are read as one stream and come as one batch: a
    segment may hold tens of thousands of them, and each would cost as much as its bytes.
    """
    pieces: list[tuple[int, Callable[[], pa.RecordBatch]]] = []
    small: list[Payload] = []
    small_bytes = 0

    def join() -> None:
        if small:
            pieces.append((sum(payload.rows for payload in small), partial(_decode_joined, small, schema)))

    for payload in payloads:
        is_small = payload.form == FORM_MESSAGE and payload.buffer.size < SMALL_BYTES
        if not is_small or small_bytes >= JOINED_BYTES:
            join()
            small, small_bytes = [], 0
        if is_small:
            small.append(payload)
            small_bytes += payload.buffer.size
        else:
            pieces.append((payload.rows, partial(payload.decode, schema)))
    join()
    return pieces


def _decode_joined(payloads: list[Payload], schema: pa.Schema) -> pa.RecordBatch:
    if len(payloads) == 1:
        return payloads[0].decode(schema)
    alike = join_alike([payload.buffer for payload in payloads], schema)
    if alike is not None:
        return alike
    stream = b"".join([schema.serialize(), *[payload.buffer for payload in payloads], END_OF_STREAM])
    with pa.ipc.open_stream(pa.py_buffer(stream), memory_pool=POOL) as reader:
        (batch,) = reader.read_all().combine_chunks(memory_pool=POOL).to_batches()
    return batch


def encode_floors(floors: Floors) -> NewRecord:
    """The record that opens a file."""
    return NewRecord.of(KIND_FLOORS, msgspec.msgpack.encode(floors))


def encode_schema_note(note: SchemaNote) -> NewRecord:
    """The record that comes before a schema's first use in a file."""
    return NewRecord.of(KIND_SCHEMA, msgspec.msgpack.encode(note))


NO_OPTIONS = EntryOptions()
"""What most entries have; compared by identity."""


def encode_frame(
    entries: list[EntryPlace], *, identity: Identity, first_committed_id: int, ingested_at_ns: int, payload_crc: int
) -> NewRecord:
    """A frame's record; `payload_crc` is the checksum of the entries' Arrow bytes in order."""
    count = len(entries)
    if count == 1 and entries[0].options is NO_OPTIONS and entries[0].payload.form != FORM_REFERENCE:
        return encode_plain(
            entries[0],
            identity,
            first_committed_id=first_committed_id,
            ingested_at_ns=ingested_at_ns,
            payload_crc=payload_crc,
        )
    fsn, frame_id = _identity_fields(identity)
    kind = _IDENTITIES[type(identity)]
    tail = b"".join(_directory(entries))
    version = _VERSION_REFERRING if any([e.payload.form == FORM_REFERENCE for e in entries]) else _VERSION
    tail += _FRAME.pack(version, kind, count, 0, first_committed_id, ingested_at_ns, fsn, frame_id)
    buffers: list[Bytes] = [e.payload.buffer for e in entries]
    size = sum([e.payload.buffer.size for e in entries]) + len(tail)
    buffers.append(tail)
    return NewRecord(KIND_FRAME, buffers, size, crc32c(tail, payload_crc))


def encode_plain(
    entry: EntryPlace, identity: Identity, *, first_committed_id: int, ingested_at_ns: int, payload_crc: int
) -> NewRecord:
    """The record of a frame of one entry, without options or a reference, packed in one go.

    It is the common case: the same bytes at a third of the cost.
    """
    payload = entry.payload
    size, (fsn, frame_id) = payload.buffer.size, _identity_fields(identity)
    tail = _ENTRY_AND_FRAME.pack(
        entry.channel_id, entry.schema_id, entry.first_seq, payload.rows, payload.form, 0, 0, 0, size,
        _VERSION, _IDENTITIES[type(identity)], 1, 0, first_committed_id, ingested_at_ns, fsn, frame_id,
    )  # fmt: skip
    return NewRecord(KIND_FRAME, (payload.buffer, tail), size + len(tail), crc32c(tail, payload_crc))


def _directory(entries: list[EntryPlace]) -> Iterator[bytes]:
    """The options of all entries, then their fixed parts."""
    lengths = []
    for e in entries:
        option = b"" if e.options is NO_OPTIONS else msgspec.msgpack.encode(e.options)
        lengths.append(len(option))
        if option:
            yield _padded(option)
    for e, length in zip(entries, lengths, strict=True):
        p = e.payload
        yield _ENTRY.pack(e.channel_id, e.schema_id, e.first_seq, p.rows, p.form, 0, length, 0, p.buffer.size)


def _identity_fields(identity: Identity) -> tuple[int, bytes]:
    if isinstance(identity, SlotFrame):
        return identity.fsn, identity.slot_id
    if isinstance(identity, Guid):
        return 0, identity.value
    return 0, _NO_ID


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _padded_bytes(count: int) -> int:
    return (count + 7) & -8


def decode_floors(payload: pa.Buffer) -> Floors:
    """The content of a FLOORS record."""
    return msgspec.msgpack.decode(memoryview(payload), type=Floors)


def decode_schema_note(payload: pa.Buffer) -> SchemaNote:
    """The content of a SCHEMA record."""
    return msgspec.msgpack.decode(memoryview(payload), type=SchemaNote)


def decode_frame(payload: pa.Buffer) -> FrameRecord:
    """The content of a FRAME record. The record's checksum was right; `ValueError` says the writer was wrong."""
    view = memoryview(payload)
    at = len(view) - _FRAME.size
    version, kind, count, _, first_committed_id, ingested_at_ns, fsn, frame_id = _FRAME.unpack_from(view, at)
    if version not in (_VERSION, _VERSION_REFERRING):
        raise ValueError(f"frame version {version} is unknown")
    at -= count * _ENTRY.size
    rows = [_ENTRY.unpack_from(view, at + n * _ENTRY.size) for n in range(count)]
    option_at, arrow_at = at - sum(_padded_bytes(row[6]) for row in rows), 0
    entries = []
    for channel_id, schema_id, first_seq, row_count, form, _, option_bytes, _, arrow_bytes in rows:
        options = _read_options(view[option_at : option_at + option_bytes])
        arrow = Payload(payload.slice(arrow_at, arrow_bytes), form, row_count)
        entries.append(EntryPlace(ChannelId(channel_id), schema_id, first_seq, arrow, options))
        option_at, arrow_at = option_at + _padded_bytes(option_bytes), arrow_at + arrow_bytes
    return FrameRecord(first_committed_id, ingested_at_ns, _read_identity(kind, fsn, frame_id), tuple(entries))


def refers(payload: pa.Buffer) -> bool:
    """Whether any entry of a FRAME record has its Arrow bytes elsewhere."""
    return bool(payload.size >= _FRAME.size and memoryview(payload)[payload.size - _FRAME.size] == _VERSION_REFERRING)


def encode_again(payload: pa.Buffer, found: Callable[[EntryPlace], Payload]) -> NewRecord:
    """A FRAME record with the Arrow bytes of every entry in it; `found` gives them."""
    frame = decode_frame(payload)
    kind = memoryview(payload)[payload.size - _FRAME.size + 1]
    places = [msgspec.structs.replace(entry, payload=found(entry)) for entry in frame.entries]
    crc = 0
    for place in places:
        crc = crc32c(place.payload.buffer, crc)
    identity = EventIds("") if kind == _IDENTITIES[EventIds] else frame.identity
    return encode_frame(
        places,
        identity=identity,
        first_committed_id=frame.first_committed_id,
        ingested_at_ns=frame.ingested_at_ns,
        payload_crc=crc,
    )


def _read_identity(kind: int, fsn: int, frame_id: bytes) -> SlotFrame | Guid | None:
    if kind == _IDENTITIES[SlotFrame]:
        return SlotFrame(frame_id, Fsn(fsn))
    return Guid(frame_id) if kind == _IDENTITIES[Guid] else None


def _read_options(view: memoryview) -> EntryOptions:
    if not view:
        return NO_OPTIONS
    return msgspec.msgpack.decode(view, type=EntryOptions)
