"""What an open store holds, for people and programs that look from outside: channels, segments, slots.

Promise: nothing here changes anything. Pages are bounded by their caller. Answers are pictures: what they list may be
gone a moment later. Thread-safe; calls read the catalog, so a loop hands them to a thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from holdfast.disk.filesystem import File
from holdfast.store.catalog import PublishedSegment
from holdfast.store.ground import Ground
from holdfast.store.limits import ChannelLimits
from holdfast.store.partitioned import PartitionReader
from holdfast.store.reading import Reader


@dataclass(frozen=True, slots=True)
class ChannelStatistics:
    """A channel. The seqs are those of events that readers can see; without any, `last_seq` is below `first_seq`."""

    name: str
    first_seq: int
    last_seq: int
    next_seq: int
    events: int
    bytes: int
    published_seq: int
    """The last event that is in a segment."""
    active_at_ns: int
    """When the last event came in; 0 if none did since the store was opened."""
    limits: ChannelLimits


@dataclass(frozen=True, slots=True)
class ChannelSummary:
    """A channel in short: what is known without a look into the catalog."""

    name: str
    next_seq: int
    events: int
    bytes: int
    active_at_ns: int


class Listing:
    """Over one open store."""

    def __init__(self, ground: Ground, reader: Reader) -> None:
        self._ground = ground
        self._reader = reader

    def channel(self, name: str) -> ChannelStatistics:
        """A channel, or `UnknownChannel`."""
        channel = self._ground.channels.find(name)
        with self._ground.tail.lock:
            events, size_bytes = channel.stored_events(), channel.stored_bytes()
        first = self._ground.catalog.first_seq(channel.id) or channel.published_seq + 1
        return ChannelStatistics(
            name=channel.name,
            first_seq=max(first, channel.first_seq),
            last_seq=channel.last_seq,
            next_seq=channel.next_seq,
            events=events,
            bytes=size_bytes,
            published_seq=channel.published_seq,
            active_at_ns=channel.active_at_ns,
            limits=channel.limits,
        )

    def summaries(self) -> list[ChannelSummary]:
        """All channels, by name. The lock is taken for each, so that commits never wait for a thousand."""
        found = []
        for channel in sorted(self._ground.channels, key=lambda channel: channel.name):
            with self._ground.tail.lock:
                events, size_bytes = channel.stored_events(), channel.stored_bytes()
                found.append(ChannelSummary(channel.name, channel.next_seq, events, size_bytes, channel.active_at_ns))
        return found

    def check_channel(self, name: str) -> None:
        """Raise why a channel of this name cannot be written to: its name, or `max_channels`."""
        self._ground.channels.check(name)

    def partition_reader(self) -> PartitionReader:
        """For one who reads by partition again and again: it remembers what is in which segment."""
        return PartitionReader(self._ground, self._reader)

    @property
    def store_id(self) -> bytes:
        """Made with the store; a copy or a restored one has the same."""
        return self._ground.store_id

    def segments(self, channel: str, *, from_seq: int, limit: int) -> list[PublishedSegment]:
        """Segments of a channel that hold events at or above `from_seq`, in order."""
        found = self._ground.channels.find(channel)
        return list(islice(self._ground.catalog.segments(found.id, first_seq=max(from_seq, found.first_seq)), limit))

    def skipped(self, channel: str) -> list[tuple[int, int]]:
        """First and last seq of ranges that were never given to an event."""
        found = self._ground.channels.find(channel)
        return [(first, last) for first, last, reason in self._ground.catalog.gone(found.id) if reason == "skipped"]

    def segment(self, channel: str, segment_seq: int) -> PublishedSegment | None:
        """One segment of a channel."""
        found = self._ground.channels.find(channel)
        segment = self._ground.catalog.segment(segment_seq)
        return segment if segment is not None and segment.channel_id == found.id else None

    def check_segment(self, segment: PublishedSegment) -> bool:
        """Compare the file with its checksum, the first time in this process (G9); False if it was evicted."""
        return self._reader.check(segment)

    @contextmanager
    def segment_file(self, segment: PublishedSegment) -> Iterator[File]:
        """Its file, open inside the block also when it is evicted meanwhile; `FileNotFoundError` if it was before."""
        with self._reader.lend(segment) as file:
            yield file

    def slots(self, *, after: bytes, limit: int) -> list[tuple[bytes, list[tuple[int, int]]]]:
        """Producer slots above `after`, by id, with the ranges of frames that are, or were, in segments."""
        catalog = self._ground.catalog
        return [(slot_id, catalog.slot_ranges(slot_id)) for slot_id in catalog.slot_ids(after=after, limit=limit)]
