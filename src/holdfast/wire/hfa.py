"""HFA1: our frame. What one producer hands over at once, with its identity, as Arrow.

    0   4  magic "HFA1"
    4   1  version, 1
    5   1  flags: bit 0 = the identity is a slot id and an fsn, bit 1 = the identity is a GUID; never both
    6   2  entries, at least 1
    8  16  slot id, or GUID, or zeros
    24  8  fsn, or zeros
    32     entries

    entry  u16 channel bytes | u16 partitions | u32 stream bytes | channel | per partition: u16 bytes, UTF-8 |
           zeros up to a multiple of 8 | one Arrow IPC stream (see `arrowstream`), a multiple of 8 bytes

Little-endian. A frame stands alone: it needs nothing that was sent before. Everything begins at a multiple of 8 from
the start of the frame, so that a reader whose message is aligned gets aligned values. Bodies may be compressed as Arrow
does it (LZ4, ZSTD).

Reading copies nothing that is not compressed, and checks every length before it is used; the values of the batches are
left to the store that takes them. Writing pays one copy, in Arrow. The identity has a fixed place, so that `stamp` can
write it when the frame is already encoded.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import pyarrow as pa

from holdfast.errors import Category, InvalidBatch, InvalidName, WireError
from holdfast.model.columns import has_dictionary
from holdfast.model.frame import Entry
from holdfast.model.names import check_channel_name
from holdfast.wire.arrowstream import END_OF_STREAM, Malformed, read_stream, refusal
from holdfast.wire.limits import FrameLimits

MAGIC = b"HFA1"
VERSION = 1
FLAG_SLOT = 0x01
FLAG_GUID = 0x02
HEADER_BYTES = 32
CHANNELS_KNOWN_MAX = 1024
"""Channels a `FrameEncoder` remembers; beyond, it forgets them all and learns again."""

_HEADER = struct.Struct("<4sBBH16sQ")
_ENTRY = struct.Struct("<HHI")
_IDENTITY = struct.Struct("<16sQ")
_U16 = struct.Struct("<H")
_NO_ID = bytes(16)
_FSN_END = 1 << 63


class HfaFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame as it came; it has a slot id and an fsn, or a GUID, or neither."""

    slot_id: bytes | None
    fsn: int
    entries: tuple[Entry, ...]
    guid: bytes | None


# -------------------------------------------------------------------------------------------------------------- reading


def decode(message: bytes | bytearray | memoryview, limits: FrameLimits) -> HfaFrame:
    """One frame, or `WireError`. Its batches are views of `message`, which must not change while they live."""
    buffer = pa.py_buffer(message)
    view = memoryview(buffer).cast("B")  # Arrow says its bytes are signed
    if len(view) > limits.message_bytes:
        raise _refuse(0, f"the frame has {len(view)} bytes, at most {limits.message_bytes} are allowed")
    if len(view) < HEADER_BYTES:
        raise _refuse(len(view), f"the frame has {len(view)} bytes, its header alone {HEADER_BYTES}")
    magic, version, flags, count, identity, fsn = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise _refuse(0, f"the frame begins with {magic.hex()}, not with {MAGIC.hex()}")
    if version != VERSION:
        raise _refuse(4, f"version {version} is not known; this release reads version {VERSION}")
    _check_identity(flags, identity, fsn)
    if not 0 < count <= limits.entries:
        raise _refuse(6, f"the frame has {count} entries, 1 to {limits.entries} are allowed")
    entries = _read_entries(buffer, view, count, limits)
    if flags == FLAG_SLOT:
        return HfaFrame(identity, fsn, entries, None)
    return HfaFrame(None, 0, entries, identity if flags == FLAG_GUID else None)


def _check_identity(flags: int, identity: bytes, fsn: int) -> None:
    if flags not in {0, FLAG_SLOT, FLAG_GUID}:
        raise _refuse(5, f"flags {flags:#04x} are not known; allowed are 0x00, 0x01 (slot) and 0x02 (guid)")
    if (identity == _NO_ID) != (flags == 0):
        raise _refuse(8, f"flags {flags:#04x} with an identity of {'zeros' if identity == _NO_ID else 'other bytes'}")
    if flags != FLAG_SLOT and fsn:
        raise _refuse(24, f"fsn {fsn} without a slot id")
    if fsn >= _FSN_END:
        raise _refuse(24, f"fsn {fsn} is out of range 0..2^63-1")


def _read_entries(buffer: pa.Buffer, view: memoryview, count: int, limits: FrameLimits) -> tuple[Entry, ...]:
    entries = []
    offset, inflated_bytes = HEADER_BYTES, 0
    for _ in range(count):
        try:
            channel, partitions, start, stream_bytes = _read_names(view, offset, limits)
        except struct.error:
            raise _refuse(offset, "the frame ends inside an entry") from None
        if start + stream_bytes > len(view):
            raise _refuse(offset + 4, f"a stream of {stream_bytes} bytes reaches beyond the frame")
        stream = buffer.slice(start, stream_bytes)
        try:
            batch, message, inflated_bytes = read_stream(stream, limits, channel=channel, inflated_bytes=inflated_bytes)
        except Malformed as error:
            raise refusal(error, base=start, channel=channel) from None
        if message is not None and message.size * 2 < len(view):
            message = None  # keeping it would keep the whole frame in memory
        entries.append(Entry(channel, batch, partitions, message))
        offset = start + stream_bytes
    if offset != len(view):
        raise _refuse(offset, f"{len(view) - offset} bytes behind the last entry")
    return tuple(entries)


def _read_names(view: memoryview, offset: int, limits: FrameLimits) -> tuple[str, tuple[str, ...], int, int]:
    """Channel and partitions of the entry at `offset`, and where its stream begins and how long it is."""
    channel_bytes, count, stream_bytes = _ENTRY.unpack_from(view, offset)
    if offset + _ENTRY.size + channel_bytes > len(view):
        raise _refuse(offset, f"a name of {channel_bytes} bytes reaches beyond the frame")
    if count > limits.partitions:
        raise _refuse(offset + 2, f"an entry has {count} partitions, at most {limits.partitions} are allowed")
    place = offset + _ENTRY.size
    try:
        channel = _known_channel(bytes(view[place : place + channel_bytes]))
    except InvalidName as error:
        raise _refuse(place, str(error)) from None
    place += channel_bytes
    partitions = []
    for _ in range(count):
        (name_bytes,) = _U16.unpack_from(view, place)
        name, place = _read_text(view, place + 2, name_bytes)
        partitions.append(name)
    start = (place + 7) & ~7
    if any(view[place:start]):
        raise _refuse(place, "the bytes before a stream are not zeros")
    if stream_bytes & 7:
        raise _refuse(offset + 4, f"a stream has {stream_bytes} bytes, not a multiple of 8")
    return channel, tuple(partitions), start, stream_bytes


@lru_cache(CHANNELS_KNOWN_MAX)
def _known_channel(raw: bytes) -> str:
    """A name that was checked once is not checked again."""
    channel = raw.decode(errors="backslashreplace")
    check_channel_name(channel)
    return channel


def _read_text(view: memoryview, start: int, size: int) -> tuple[str, int]:
    end = start + size
    if end > len(view):
        raise _refuse(start, f"a name of {size} bytes reaches beyond the frame")
    try:
        return str(view[start:end], "utf-8"), end
    except UnicodeDecodeError:
        raise _refuse(start, "a name is not UTF-8") from None


def _refuse(offset: int, reason: str) -> WireError:
    return WireError(category=Category.PARSE_ERROR, reason=reason, place=f"byte {offset}")


# -------------------------------------------------------------------------------------------------------------- writing


class _Channel(msgspec.Struct, frozen=True, gc=False):
    """What is the same in every frame for one channel."""

    schema: pa.Schema
    partitions: tuple[str, ...]
    channel_bytes: int
    names: bytes
    """Channel, partitions and zeros, as they stand in the frame."""
    head: bytes
    """The schema message; nothing where the stream must be written whole."""


class FrameEncoder:
    """Encodes frames and remembers what channels look like, so that a frame of one row costs microseconds.

    Not for several threads at once. `compression` is None, "lz4" or "zstd".
    """

    def __init__(self, *, compression: str | None = None) -> None:
        self._options = pa.ipc.IpcWriteOptions(compression=compression)
        self._compressed = compression is not None
        self._channels: dict[str, _Channel] = {}

    def encode(
        self, entries: Sequence[Entry], *, slot_id: bytes | None = None, fsn: int = 0, guid: bytes | None = None
    ) -> list[memoryview | bytes]:
        """The parts of one frame, to be written one behind the other."""
        if not 0 < len(entries) < 1 << 16:
            raise InvalidBatch(channel="", reason=f"a frame has 1 to 65535 entries, this one has {len(entries)}")
        parts: list[memoryview | bytes] = []
        lead = _header(len(entries), slot_id, fsn, guid)
        for entry in entries:
            channel = self._channel_of(entry)
            stream = memoryview(entry.batch.serialize() if channel.head else self._whole_stream(entry.batch)).cast("B")
            end = END_OF_STREAM if channel.head else b""
            stream_bytes = len(channel.head) + len(stream) + len(end)
            if stream_bytes >= 1 << 32:
                raise InvalidBatch(channel=entry.channel, reason=f"it has {stream_bytes} bytes, a frame holds 4 GiB")
            numbers = _ENTRY.pack(channel.channel_bytes, len(channel.partitions), stream_bytes)
            parts += (b"".join((lead, numbers, channel.names, channel.head)), stream)
            lead = end
        if lead:
            parts.append(lead)
        return parts

    def _channel_of(self, entry: Entry) -> _Channel:
        known = self._channels.get(entry.channel)
        schema = entry.batch.schema
        if known is None or known.partitions != entry.partitions:
            return self._learn(entry, schema)
        return known if known.schema.equals(schema, check_metadata=True) else self._learn(entry, schema)

    def _learn(self, entry: Entry, schema: pa.Schema) -> _Channel:
        check_channel_name(entry.channel)
        raw = entry.channel.encode()
        names = raw + b"".join([_text(entry.channel, name) for name in entry.partitions])
        in_pieces = not self._compressed and not has_dictionary(schema)
        known = _Channel(
            schema,
            entry.partitions,
            len(raw),
            names + bytes(-len(names) & 7),
            bytes(schema.serialize()) if in_pieces else b"",
        )
        if len(self._channels) >= CHANNELS_KNOWN_MAX:
            self._channels.clear()
        self._channels[entry.channel] = known
        return known

    def _whole_stream(self, batch: pa.RecordBatch) -> pa.Buffer:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=self._options) as writer:
            writer.write_batch(batch)
        return sink.getvalue()


def encode(
    entries: Sequence[Entry], *, slot_id: bytes | None = None, fsn: int = 0, guid: bytes | None = None
) -> list[memoryview | bytes]:
    """The parts of one frame, to be written one behind the other. For many frames, keep a `FrameEncoder`."""
    return FrameEncoder().encode(entries, slot_id=slot_id, fsn=fsn, guid=guid)


def stamp(message: bytearray | memoryview, slot_id: bytes, fsn: int) -> None:
    """Write the identity into an encoded frame that has none, or has another slot's."""
    magic, version, flags, *_ = _HEADER.unpack_from(message)
    if magic != MAGIC or version != VERSION or flags not in {0, FLAG_SLOT}:
        raise ValueError(f"not a frame to stamp: magic {magic!r}, version {version}, flags {flags:#04x}")
    _check_slot(slot_id, fsn)
    message[5] = FLAG_SLOT
    _IDENTITY.pack_into(message, 8, slot_id, fsn)


def _header(count: int, slot_id: bytes | None, fsn: int, guid: bytes | None) -> bytes:
    if slot_id is not None:
        if guid is not None:
            raise ValueError("a frame has a slot id or a guid, not both")
        _check_slot(slot_id, fsn)
        return _HEADER.pack(MAGIC, VERSION, FLAG_SLOT, count, slot_id, fsn)
    if fsn:
        raise ValueError(f"fsn {fsn} without a slot id")
    if guid is None:
        return _HEADER.pack(MAGIC, VERSION, 0, count, _NO_ID, 0)
    if len(guid) != 16 or guid == _NO_ID:
        raise ValueError(f"guid {guid.hex()} is not 16 bytes of which one is not zero")
    return _HEADER.pack(MAGIC, VERSION, FLAG_GUID, count, guid, 0)


def _check_slot(slot_id: bytes, fsn: int) -> None:
    if len(slot_id) != 16 or slot_id == _NO_ID:
        raise ValueError(f"slot id {slot_id.hex()} is not 16 bytes of which one is not zero")
    if not 0 <= fsn < _FSN_END:
        raise ValueError(f"fsn {fsn} is out of range 0..2^63-1")


def _text(channel: str, name: str) -> bytes:
    raw = name.encode()
    if len(raw) >= 1 << 16:
        raise InvalidBatch(channel=channel, reason=f"a partition name has {len(raw)} bytes, at most 65535 are allowed")
    return _U16.pack(len(raw)) + raw
