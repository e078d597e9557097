"""What the manifest of a tier says: the form of its entries, and the sum of them.

    manifest/<number:016d>.json              one entry: {"crc32c": "<8 hex digits>", "body": {…}}
    manifest/checkpoint-<number:016d>.json   the sum of all entries up to that number, in the same form
    segments/<channel>/<segment_seq:016d>-<sha256[:32]>.arrow    a segment, as the store published it
    segments/<channel>/<segment_seq:016d>-<sha256[:32]>.ids      ids of its events, in channels that use them

The checksum covers the bytes of `body`; this frame stays the same in every format. Numbers begin at 1 and have no
gaps. An entry is never changed.

**Torn numbers.** A write may store other bytes than it was given, and whoever wrote may die before it has read them
back. Such an object is no entry, and never counted. Its number stays taken, and the next entry says how many such
numbers are right before it (`torn`): a reader passes over those that are no entries. Anywhere else they are damage.

`kind` is `open` (a process took over), `progress`, `remove`, or `checkpoint`. Lists hold what changed; a schema and
skipped numbers are given when they changed, the latter all of them.

**Reserved numbers.** After a wipe nobody knows which numbers were given out since the last entry. So an entry reserves:
`committed_id` is a ceiling the store does not reach before a later entry raises it, `window` how far it was away. Every
event takes one committed_id, so no channel can have gone further than `window` beyond the `next_seq` that was noted, a
channel the manifest does not know not further than `window` beyond `birth_seq`, and there are not more segments than
events. A restored store starts behind all of that, and no number comes twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from holdfast.disk.checksum import crc32c
from holdfast.model.intervals import IntervalSet
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.subscribers.notes import Snapshot

FORMAT = 1
MANIFEST = "manifest"
SEGMENTS = "segments"
CHECKPOINT_EVERY = 1000
"""Entries that a restore reads one by one, at most; each is a request."""
RESERVED_NUMBERS = 10**11
"""How many events may be accepted while the tier is away: eleven days of 100,000 in a second."""
SEGMENT_NUMBERS = RESERVED_NUMBERS + 1_000_000
"""Each start leaves out a block of segment numbers; a million of them are between two entries at the most."""


class SegmentNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """A segment in the tier."""

    channel_id: int
    key: str
    size_bytes: int
    crc32c: int
    sha256: str
    has_guids: bool
    meta: SegmentMeta
    slots: dict[str, list[tuple[int, int]]] = {}
    """Per slot id, in hex, the frame numbers it holds."""
    ids_key: str = ""
    """The object with the ids of its events; empty without ids."""

    @property
    def segment_seq(self) -> int:
        """Its number."""
        return self.meta.segment_seq


class ChannelNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """A channel, as far as a restore needs it."""

    channel_id: int
    name: str
    next_seq: int
    first_seq: int = 1
    schema: bytes = b""
    skipped: list[tuple[int, int]] = []
    """Ranges of seqs that no event was ever given; any other hole between two segments was evicted, or is damage."""


class Reserved(msgspec.Struct, frozen=True):
    """Numbers that may have been given out; see above."""

    window: int
    committed_id: int
    segment_seq: int
    birth_seq: int


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry, or the sum of many."""

    number: int
    kind: Literal["open", "progress", "remove", "checkpoint"]
    store_id: str
    epoch: int
    nonce: str
    at_ns: int
    format: int
    added: tuple[SegmentNote, ...] = ()
    removed: tuple[int, ...] = ()
    channels: tuple[ChannelNote, ...] = ()
    reserved: Reserved | None = None
    readers: Snapshot | None = None
    slots: dict[str, list[tuple[int, int]]] = {}
    """Frame numbers of slots of which nothing is listed, since they were evicted before; in a checkpoint all of them,
    also of segments that are gone."""
    torn: int = 0
    """So many numbers right before this one are of objects that may be no entries; see above."""


class Torn(ValueError):
    """The bytes are not what was to be stored, or not all of it."""


class _Sealed(msgspec.Struct):
    crc32c: str
    body: msgspec.Raw


# Made once, here: several threads that make msgspec learn a type at the same time crash the process.
_SEALED = msgspec.json.Decoder(_Sealed)
_ENTRY = msgspec.json.Decoder(Entry)


def entry_key(number: int) -> str:
    """Where an entry is."""
    return f"{MANIFEST}/{number:016d}.json"


def checkpoint_key(number: int) -> str:
    """Where a checkpoint is."""
    return f"{MANIFEST}/checkpoint-{number:016d}.json"


def segment_key(channel: str, segment_seq: int, sha256: str, suffix: str = "arrow") -> str:
    """Where a segment is: its content is part of its name."""
    return f"{SEGMENTS}/{channel}/{segment_seq:016d}-{sha256[:32]}.{suffix}"


def encode(entry: Entry) -> bytes:
    """The object of an entry."""
    body = msgspec.json.encode(entry)
    return b'{"crc32c":"%08x","body":%s}' % (crc32c(body), body)


def decode(data: bytes) -> Entry:
    """The entry of an object; `Torn` if the bytes are none, `ValueError` if they are of a later format."""
    try:
        sealed = _SEALED.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Torn(str(error)) from None
    if sealed.crc32c != f"{crc32c(bytes(sealed.body)):08x}":
        raise Torn("its checksum is wrong")
    try:
        entry = _ENTRY.decode(sealed.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if entry.format > FORMAT:
        raise ValueError(f"it has format {entry.format}; this release reads up to {FORMAT}: upgrade holdfast")
    return entry


class ManifestState:
    """The sum of a manifest up to one number. Not thread-safe."""

    def __init__(self) -> None:
        self.number = 0
        self.previous = 0  # the last number before `number` that was surely an entry
        self.torn = 0  # numbers behind `number` that are taken by what is no entry
        self.store_id = ""
        self.epoch = 0
        self.nonce = ""
        self.at_ns = 0
        self.segments: dict[int, SegmentNote] = {}
        self.bytes = 0  # of the segments
        self.channels: dict[int, ChannelNote] = {}
        self.slots: dict[str, IntervalSet] = {}
        self.reserved: Reserved | None = None
        self.readers: Snapshot | None = None

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> ManifestState:
        """Entries in order, from the first or from a checkpoint on."""
        state = cls()
        for entry in entries:
            state.apply(entry)
        return state

    def apply(self, entry: Entry) -> None:
        """Add the next entry; `ValueError` if it does not follow."""
        follows = entry.number - entry.torn <= self.number + 1 <= entry.number
        if not follows and not (entry.kind == "checkpoint" and self.number == 0):
            raise ValueError(f"entry {entry.number} does not follow {self.number}")
        if self.store_id not in {"", entry.store_id}:
            raise ValueError(f"entry {entry.number} is of store {entry.store_id}, those before it of {self.store_id}")
        self.number, self.store_id, self.epoch = entry.number, entry.store_id, entry.epoch
        self.nonce, self.at_ns = entry.nonce, entry.at_ns
        self.previous, self.torn = entry.number - entry.torn - 1, 0
        for note in entry.channels:
            self._channel(note)
        for segment in entry.added:
            self._forget(segment.segment_seq)
            self.segments[segment.segment_seq] = segment
            self.bytes += segment.size_bytes
            self._slots(segment.slots)
        self._slots(entry.slots)
        for number in entry.removed:
            self._forget(number)
        self.reserved = entry.reserved or self.reserved
        self.readers = entry.readers or self.readers

    def as_next(self, entry: Entry) -> Entry:
        """The same entry with the number that is free, as far as is known."""
        return msgspec.structs.replace(entry, number=self.number + self.torn + 1, torn=self.torn)

    def _forget(self, number: int) -> None:
        known = self.segments.pop(number, None)
        self.bytes -= known.size_bytes if known is not None else 0

    def _channel(self, note: ChannelNote) -> None:
        known = self.channels.get(note.channel_id)
        if known is not None:
            note = msgspec.structs.replace(
                note, schema=note.schema or known.schema, skipped=note.skipped or known.skipped
            )
        self.channels[note.channel_id] = note

    def _slots(self, slots: dict[str, list[tuple[int, int]]]) -> None:
        for slot_id, ranges in slots.items():
            known = self.slots.setdefault(slot_id, IntervalSet())
            for first, last in ranges:
                known.add(first, last)

    def checkpoint(self) -> Entry:
        """The state as one entry."""
        return Entry(
            self.number,
            "checkpoint",
            self.store_id,
            self.epoch,
            self.nonce,
            self.at_ns,
            FORMAT,
            added=tuple(self.segments.values()),
            channels=tuple(self.channels.values()),
            reserved=self.reserved,
            readers=self.readers,
            slots={slot_id: list(ranges) for slot_id, ranges in self.slots.items()},
        )
