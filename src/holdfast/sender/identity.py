"""`.slot-id`: under which ids the frames of a slot are known to servers, so that a replay is recognised and nothing
else ever is.

A server drops a frame whose (slot id, FSN) it has seen. So one pair must never mean two contents, whatever happens
to the files: a power cut may take frames that were sent already, an operator may delete or copy segments, a snapshot
may bring an old directory back, and then FSNs are given out again. Therefore **each opening of a slot for writing
has a slot id of its own**, random and synced before its first frame, and an id is never taken up again. Within one
opening FSNs only rise. That makes the pair unique without trusting any file to be there.

Frames that are replayed keep the id they were written under. Arrow frames carry it themselves. For frames that
cannot, this file remembers which FSNs belong to which id (`Session`), until they are acknowledged. Frames that
another client wrote get one fresh id when we first take them over.

`floor` is the lowest FSN for a slot without segments, so that FSNs of one slot rise across clean shutdowns too. That
is for people; no guarantee needs it.

    "SID1" | u32 version 1 | u64 floor | u32 sessions | sessions x (u64 first fsn, 16 bytes id) | u32 crc32c of all that

Little-endian; replaced as a whole. A file that is damaged is renamed `.corrupt` and counts as missing,
which costs at most a frame stored twice, never one lost.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Filesystem
from holdfast.disk.smallfiles import read_whole, replace_whole

NAME = ".slot-id"
MAGIC = b"SID1"
VERSION = 1
ID_BYTES = 16
SESSIONS_MAX = 4096
"""Restarts during one outage, each of which left frames behind; beyond that the oldest frames share one fresh id."""

_HEAD = struct.Struct("<4sIQI")
_SESSION = struct.Struct("<Q16s")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Session:
    """Frames from `first_fsn` up to the next session's first are known under this id."""

    first_fsn: int
    slot_id: bytes


@dataclass(frozen=True, slots=True)
class Identity:
    """What `.slot-id` says."""

    floor: int = 0
    sessions: tuple[Session, ...] = ()

    def of(self, fsn: int) -> Session | None:
        """The session that wrote this frame."""
        return next((session for session in reversed(self.sessions) if session.first_fsn <= fsn), None)

    def end_of(self, session: Session) -> int | None:
        """The first FSN that belongs to a later session; None for the last."""
        at = self.sessions.index(session) + 1
        return self.sessions[at].first_fsn if at < len(self.sessions) else None

    def within(self, start: int, end: int) -> Identity:
        """Only what concerns frames `start <= fsn < end`; every one of them, or none, has a session."""
        kept = [
            session
            for session in self.sessions
            if session.first_fsn < end and ((until := self.end_of(session)) is None or until > start)
        ]
        return replace(self, sessions=tuple(kept))

    def adopt(self, start: int, end: int, slot_id: bytes) -> Identity:
        """Every frame `start <= fsn < end` that has no session gets this one; what is said of others is forgotten."""
        if start >= end:
            return replace(self, sessions=())
        known = self.within(start, end).sessions
        if known and known[0].first_fsn <= start:
            return replace(self, sessions=known)
        return replace(self, sessions=(Session(start, slot_id), *known))

    def begin(self, next_fsn: int, slot_id: bytes) -> Identity:
        """Frames from `next_fsn` on belong to this new id, whatever was said of them before."""
        kept = tuple(session for session in self.sessions if session.first_fsn < next_fsn)
        return replace(self, sessions=(*kept, Session(next_fsn, slot_id)))

    def limited(self, slot_id: bytes) -> Identity:
        """At most `SESSIONS_MAX` sessions; the oldest of too many become one under this id."""
        if len(self.sessions) <= SESSIONS_MAX:
            return self
        newest = self.sessions[-(SESSIONS_MAX - 1) :]
        return replace(self, sessions=(Session(self.sessions[0].first_fsn, slot_id), *newest))


def encode(identity: Identity) -> bytes:
    """The whole file."""
    head = _HEAD.pack(MAGIC, VERSION, identity.floor, len(identity.sessions))
    body = head + b"".join(_SESSION.pack(session.first_fsn, session.slot_id) for session in identity.sessions)
    return body + _CRC.pack(crc32c(body))


def decode(data: bytes) -> Identity | None:
    """What the bytes say, or None when they are damaged."""
    if len(data) < _HEAD.size + _CRC.size or _CRC.unpack(data[-4:])[0] != crc32c(data[:-4]):
        return None
    magic, version, floor, count = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION or len(data) != _HEAD.size + count * _SESSION.size + _CRC.size:
        return None
    return Identity(floor, tuple(Session(*item) for item in _SESSION.iter_unpack(data[_HEAD.size : -_CRC.size])))


def read_identity(filesystem: Filesystem, directory: Path) -> Identity | None:
    """What the slot's file says; an empty one without a file; None when it is damaged."""
    data = read_whole(filesystem, directory / NAME)
    return Identity() if data is None else decode(data)


def write_identity(filesystem: Filesystem, directory: Path, identity: Identity) -> None:
    """Replace the file; it survives a power cut when this returns."""
    replace_whole(filesystem, directory / NAME, encode(identity))
