"""Access to the object store of a server: alone, or behind another access.

Alone, it is a server's channels as far as its manifest lists them: what is durable there, and nothing else. Nothing is
asked of the server, which may be down or gone.

Behind a directory or a server, it is where tasks read: an object is fetched straight from the store, and a segment that
is damaged or missing in the directory is read from its object. The bytes must be the same: the checksum is the
catalog's. There, an object store that does not answer is passed over for `PAUSE_S` where a server can give the bytes.
"""

from __future__ import annotations

import logging
import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from holdfast.clock import NS_PER_S, SystemClock
from holdfast.disk.filesystem import Mode
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, DamagedData, DamagedObject, OnlyInTier, TierUnavailable, UnknownChannel
from holdfast.spark.access import ChannelFacts, SegmentRef, StoreAccess
from holdfast.spark.waiting import tell_away
from holdfast.store.segments.reader import SegmentReader
from holdfast.telemetry import event
from holdfast.tier.journal import Journal
from holdfast.tier.manifest import ManifestState, SegmentNote
from holdfast.tier.objects import Objects

PAUSE_S = 30.0
"""An object store may take long to not answer; that is not waited for with each segment."""


class Chosen(Protocol):
    """Which channels are read."""

    def matches(self, channel: str) -> bool:
        """Whether a channel is."""


class TierAccess:
    """Reads one tier. Used by one thread."""

    def __init__(self, chosen: Chosen, objects: Objects) -> None:
        self._chosen = chosen
        self._objects = objects
        self._journal = Journal(objects, nonce="")
        self._state: ManifestState | None = None
        self._segments: dict[str, list[SegmentRef]] = {}

    def channels(self) -> list[ChannelFacts]:
        """By name; those that have segments, or had."""
        state = self._refreshed()
        found = {}
        for note in state.channels.values():
            if self._chosen.matches(note.name):
                segments = self._segments.get(note.name)
                first, end = (segments[0].first_seq, segments[-1].last_seq + 1) if segments else (note.first_seq,) * 2
                found[note.name] = ChannelFacts(note.name, first, end)
        return [found[name] for name in sorted(found)]

    def schema(self, channel: str) -> pa.Schema:
        """As the manifest noted it last."""
        schemas = [note.schema for note in self._known().channels.values() if note.name == channel and note.schema]
        if not schemas:
            raise UnknownChannel(channel=channel)
        return pa.ipc.read_schema(pa.py_buffer(schemas[-1]))

    def skipped(self, channel: str) -> list[tuple[int, int]]:
        """As the manifest says; any other hole between two segments was evicted before it could be uploaded."""
        notes = self._known().channels.values()
        return sorted(span for note in notes if note.name == channel for span in note.skipped)

    def segments(self, channel: str, *, from_seq: int) -> Iterator[SegmentRef]:
        """In order."""
        self._known()
        segments = self._segments.get(channel, [])
        return iter(segments[bisect_left(segments, from_seq, key=lambda segment: segment.last_seq) :])

    @contextmanager
    def opened(self, segment: SegmentRef) -> Iterator[SegmentReader]:
        """From a copy of its object that is made for this."""
        with tempfile.TemporaryDirectory(prefix="holdfast-object-") as folder:
            path = Path(folder) / f"{segment.channel}-{segment.number}.arrow"
            try:
                with path.open("wb") as sink:
                    for part in self._objects.parts(segment.object_key):
                        sink.write(part)
            except DamagedObject as error:
                raise FileNotFoundError(str(error)) from error
            file = LocalFilesystem().open(path, Mode.READ)
            try:
                with SegmentReader.open(file, expected_crc32c=segment.crc32c) as reader:
                    yield reader
            finally:
                file.close()

    def seal(self, channel: str) -> None:
        """An object store has nothing to seal."""

    def names(self) -> dict[int, str]:
        """The objects of all segments as of now, by the segment's number."""
        return {number: note.key for number, note in self._refreshed().segments.items()}

    def _known(self) -> ManifestState:
        return self._state if self._state is not None else self._refreshed()

    def _refreshed(self) -> ManifestState:
        if self._state is None:
            self._state = self._journal.load()
            if not self._state.number:
                raise BadRequest(f"{self._objects.url} has no manifest: no server has used it as its tier")
        else:
            number = self._state.number
            self._journal.refresh(self._state)
            if self._state.number == number:
                return self._state
        self._segments = {}
        for note in sorted(self._state.segments.values(), key=lambda note: note.meta.first_seq):
            self._segments.setdefault(note.meta.channel, []).append(_ref(note))
        return self._state


class TieredAccess:
    """A store whose segments are read from its tier where that is better."""

    def __init__(self, store: StoreAccess, tier: TierAccess, *, local: bool) -> None:
        """`local`: tasks may see the store's own files, which are nearer than objects."""
        self._store = store
        self._tier = tier
        self._local = local
        self._names: dict[int, str] = {}
        self._clock = SystemClock()
        self._away_until_ns = 0

    def channels(self) -> list[ChannelFacts]:
        """Of the store."""
        return self._store.channels()

    def schema(self, channel: str) -> pa.Schema:
        """Of the store."""
        return self._store.schema(channel)

    def skipped(self, channel: str) -> list[tuple[int, int]]:
        """Of the store."""
        return self._store.skipped(channel)

    def segments(self, channel: str, *, from_seq: int) -> Iterator[SegmentRef]:
        """Of the store, with the names of their objects as far as they are uploaded."""
        looked = False
        for segment in self._store.segments(channel, from_seq=from_seq):
            if segment.number not in self._names and (segment.remote or not looked):
                looked = True
                self._look(needed=segment.remote)
            yield replace(segment, object_key=self._names.get(segment.number, ""))

    def _look(self, *, needed: bool) -> None:
        """The names of objects. A segment without one is read from the store, if it is there."""
        if needed:
            self._names = self._tier.names()
        if needed or self._is_away():
            return
        try:
            self._names = self._tier.names()
        except TierUnavailable as error:
            self._passed_over(error)

    def _is_away(self) -> bool:
        return self._clock.monotonic_ns() < self._away_until_ns

    def _passed_over(self, error: TierUnavailable) -> None:
        self._away_until_ns = self._clock.monotonic_ns() + round(PAUSE_S * NS_PER_S)
        tell_away(error)

    @contextmanager
    def opened(self, segment: SegmentRef) -> Iterator[SegmentReader]:
        """From its file, else from its object, else from the server."""
        with ExitStack() as held:
            yield self._first(held, self._places(segment), segment)

    def _places(self, segment: SegmentRef) -> list[StoreAccess]:
        if not segment.object_key:
            return [self._store]
        if self._local:
            return [self._store, self._tier]
        return [self._store] if self._is_away() else [self._tier, self._store]

    def _first(self, held: ExitStack, places: list[StoreAccess], segment: SegmentRef) -> SegmentReader:
        """The first place whose bytes are right."""
        for place in places[:-1]:
            try:
                return held.enter_context(place.opened(segment))
            except TierUnavailable as error:
                self._passed_over(error)
            except (FileNotFoundError, DamagedData, OnlyInTier) as error:
                event("spark.segment.elsewhere", level=logging.WARNING, channel=segment.channel, reason=error)
        return held.enter_context(places[-1].opened(segment))

    def seal(self, channel: str) -> None:
        """Of the store."""
        self._store.seal(channel)


def _ref(note: SegmentNote) -> SegmentRef:
    meta = note.meta
    return SegmentRef(
        channel=meta.channel,
        number=meta.segment_seq,
        first_seq=meta.first_seq,
        last_seq=meta.last_seq,
        size_bytes=note.size_bytes,
        crc32c=note.crc32c,
        first_committed_id=meta.first_committed_id,
        last_ingested_at_ns=meta.last_ingested_at_ns,
        last_committed_id=meta.last_committed_id,
        first_ingested_at_ns=meta.first_ingested_at_ns,
        first_event_time_ns=meta.first_event_time_ns,
        last_event_time_ns=meta.last_event_time_ns,
        event_time_column=meta.event_time_column or "",
        object_key=note.key,
    )
