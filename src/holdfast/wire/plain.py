"""Frames that look like one before: recognised by comparing bytes instead of parsing them.

A producer that sends a frame per event repeats everything but the identity and the values. `PlainReader` remembers what
the first frame of a channel looked like, from its name to the end of its schema, and takes a later one apart with two
reads and a comparison; where the layout of the batch is that of an earlier one, too, with one read. What is plain:
HFA1, one entry, no partitions, one batch that is neither compressed nor has dictionaries, and not large.

Promises: what is not plain is None, and so is everything malformed; `hfa.decode` then says what is wrong. Every length
is checked here, and a plain frame stands for no more memory than it has bytes. Its flatbuffer and its values are
unchecked: whoever stores it lets Arrow verify both.
"""

from __future__ import annotations

import struct

import msgspec
import pyarrow as pa

from holdfast.model.columns import has_dictionary
from holdfast.model.frame import Guid, Identity, MakeGuid, PlainFrame, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.wire import hfa
from holdfast.wire.arrowstream import END_OF_STREAM, plain_rows
from holdfast.wire.limits import FrameLimits

PLAIN_BYTES_MAX = 32 << 10
"""Beyond this a frame's bytes cost more than the calls it takes, and copying them is not free."""
SHAPES_MAX = 64
"""Channels a reader remembers; beyond, it forgets them all and learns again."""
LAYOUTS_MAX = 16
"""Sizes of messages whose layout is remembered; beyond, it forgets them all."""

_FIRST = struct.Struct("<4sBBH16sQHHI")  # the header of the frame and the lengths of its first entry
_NAME_AT = _FIRST.size
_PLAIN = (hfa.MAGIC, hfa.VERSION, 1, 0)  # one entry, no partitions
_NO_ID = bytes(16)
_NO_FSN = 1 << 63
_I32 = struct.Struct("<i")
_IDENTITY = struct.Struct("<16sQ")
_IDENTITY_AT, _ENTRY_AT = 8, 32  # the identity stands between what never differs and what seldom does


class _Shape(msgspec.Struct, frozen=True, gc=False):
    """What frames of one channel have in common."""

    channel: str
    schema: pa.Schema
    head: bytes
    """From the channel's name to the end of the schema message."""
    start: int
    """Where the stream begins."""
    batch: int
    """Where the batch message begins."""


class _Layout(msgspec.Struct, frozen=True, gc=False):
    """A message that was found plain. One of its size with these bytes has the same rows in the same places."""

    shape: _Shape
    start: bytes
    """Up to the identity."""
    entry: bytes
    """From behind the identity to the end of the batch's metadata."""
    flags: int
    rows: int


class PlainReader:
    """Of one connection."""

    def __init__(self, limits: FrameLimits, guid: MakeGuid = Guid) -> None:
        self._rows_max = limits.rows
        self._guid = guid
        self._shapes: dict[bytes, _Shape] = {}
        self._layouts: dict[int, _Layout] = {}

    def read(self, message: bytes) -> PlainFrame | None:
        """The frame, if it is plain and its channel was learnt."""
        like = self._layouts.get(len(message))
        if (
            like is None
            or not message.startswith(like.start)
            or not message.startswith(like.entry, _ENTRY_AT)
            or not message.endswith(END_OF_STREAM)
        ):
            return self._examine(message)
        identity = _identity(self._guid, like.flags, *_IDENTITY.unpack_from(message, _IDENTITY_AT))
        if identity is _UNKNOWN:
            return None
        shape = like.shape
        return PlainFrame(shape.channel, shape.schema, message[shape.batch : -len(END_OF_STREAM)], like.rows, identity)

    def _examine(self, message: bytes) -> PlainFrame | None:
        size = len(message)
        if not _FIRST.size < size <= PLAIN_BYTES_MAX:
            return None
        magic, version, flags, count, raw_id, fsn, name_bytes, partitions, stream_bytes = _FIRST.unpack_from(message)
        shape = self._shapes.get(message[_NAME_AT : _NAME_AT + name_bytes])
        if (
            shape is None
            or (magic, version, count, partitions) != _PLAIN
            or shape.start + stream_bytes != size
            or stream_bytes % 8
            or not message.startswith(shape.head, _NAME_AT)
            or not message.endswith(END_OF_STREAM)
        ):
            return None
        identity = _identity(self._guid, flags, raw_id, fsn)
        try:
            rows = plain_rows(message, shape.batch, size - len(END_OF_STREAM))
        except (struct.error, IndexError):
            return None
        if identity is _UNKNOWN or not 0 < rows <= self._rows_max:
            return None
        body = shape.batch + 8 + _I32.unpack_from(message, shape.batch + 4)[0]
        if len(self._layouts) >= LAYOUTS_MAX:
            self._layouts.clear()
        self._layouts[size] = _Layout(shape, message[:_IDENTITY_AT], message[_ENTRY_AT:body], flags, rows)
        return PlainFrame(shape.channel, shape.schema, message[shape.batch : -len(END_OF_STREAM)], rows, identity)

    def learn(self, message: bytes, frame: hfa.HfaFrame) -> None:
        """What `hfa.decode` found in a message: the next one may look the same."""
        entry = frame.entries[0]
        if len(frame.entries) > 1 or entry.partitions or len(message) > PLAIN_BYTES_MAX:
            return
        schema = entry.batch.schema
        if has_dictionary(schema):
            return
        name = entry.channel.encode()
        start = (_NAME_AT + len(name) + 7) & ~7
        batch = start + 8 + _I32.unpack_from(message, start + 4)[0]
        if len(self._shapes) >= SHAPES_MAX:
            self._shapes.clear()
        self._layouts.clear()
        self._shapes[name] = _Shape(entry.channel, schema, message[_NAME_AT:batch], start, batch)


_UNKNOWN = Guid(_NO_ID)
"""Stands for an identity that is none."""


def _identity(guid: MakeGuid, flags: int, raw_id: bytes, fsn: int) -> Identity:
    if flags == hfa.FLAG_SLOT:
        return SlotFrame(raw_id, Fsn(fsn)) if raw_id != _NO_ID and fsn < _NO_FSN else _UNKNOWN
    if fsn or (flags == 0) != (raw_id == _NO_ID):
        return _UNKNOWN
    if flags == 0:
        return None
    return guid(raw_id) if flags == hfa.FLAG_GUID else _UNKNOWN
