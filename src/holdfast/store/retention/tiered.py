"""What a tier behind the store changes about retention: which local copies go, and what goes from the tier.

Promises:

- `retention.local`: while more than that lies on this disk, the oldest local copies go, of all channels together. Only
  those go that the tier has proven and listed; whether a subscriber still needs the segment plays no part, since it
  stays readable. Those that are not in the tier yet count, and stay. A channel with an archive script keeps its copies:
  the script is given files.
- `retention.remote`: a segment in the tier goes, from there and from the store, when it is older than `max_age`, or
  among the oldest beyond `max_size`; never one that a subscriber still needs; by age not while the time is in doubt.

The keeper calls both, one after the other, as part of its tick.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from holdfast.clock import NS_PER_S
from holdfast.store.catalog import PublishedSegment
from holdfast.store.channels import Channel
from holdfast.store.ground import Ground
from holdfast.store.retention.evict import REMOTE_AGE, REMOTE_SIZE, Evictor
from holdfast.store.subscribers.desk import SubscriberDesk

BATCH = 256
"""Local copies noted in one transaction."""
TRIM_EVERY_NS = 10 * NS_PER_S
"""How often the tier is looked through for what is too much; it takes a reading of the whole catalog."""

Evict = Callable[[Channel, list[PublishedSegment], str], int]


class TieredRetention:
    """Used by the keeper's thread."""

    def __init__(self, ground: Ground, desk: SubscriberDesk, evictor: Evictor) -> None:
        self._ground = ground
        self._config = ground.config
        self._desk = desk
        self._evictor = evictor
        self._due_ns = 0

    def release(self) -> None:
        """Local copies beyond `retention.local` go, oldest first."""
        limit, tail = self._config.retention_local_bytes, self._ground.tail
        if not limit or self._ground.source is None or tail.segment_bytes <= limit:
            return
        going = self._beyond(tail.segment_bytes - limit)
        while batch := list(islice(going, BATCH)):
            self._evictor.release(batch)

    def _beyond(self, excess_bytes: int) -> Iterator[PublishedSegment]:
        for segment in self._ground.catalog.local_segments():
            if excess_bytes <= 0:
                return
            channel = self._ground.channels.get_by_id(segment.channel_id)
            keeps_files = channel is not None and bool(channel.limits.archive_script)
            if not keeps_files and self._holds(segment):
                excess_bytes -= segment.size_bytes
                yield segment

    def trim(self, now_ns: int, evict: Evict) -> None:
        """What is too old, or too much, goes from the tier and from the store."""
        config, source = self._config, self._ground.source
        if source is None or not (config.retention_remote_age_ns or config.retention_remote_bytes):
            return
        if self._ground.clock.monotonic_ns() < self._due_ns:
            return
        self._due_ns = self._ground.clock.monotonic_ns() + TRIM_EVERY_NS
        if config.retention_remote_age_ns and not self._ground.time.holding:
            before_ns = now_ns - config.retention_remote_age_ns
            old = (segment for segment in self._spare() if segment.meta.last_ingested_at_ns < before_ns)
            self._evict(old, REMOTE_AGE, evict)
        if config.retention_remote_bytes and source.held_bytes > config.retention_remote_bytes:
            self._evict(self._oldest(source.held_bytes - config.retention_remote_bytes), REMOTE_SIZE, evict)

    def _evict(self, segments: Iterable[PublishedSegment], reason: str, evict: Evict) -> None:
        """Channel by channel: many segments go in one transaction."""
        by_channel: dict[int, list[PublishedSegment]] = {}
        for segment in segments:
            by_channel.setdefault(segment.channel_id, []).append(segment)
        for channel_id, going in by_channel.items():
            evict(self._ground.channels.by_id(channel_id), going, reason)

    def _oldest(self, excess_bytes: int) -> Iterator[PublishedSegment]:
        for segment in self._spare():
            if excess_bytes <= 0:
                return
            excess_bytes -= segment.size_bytes
            yield segment

    def _spare(self) -> Iterator[PublishedSegment]:
        """Segments in the tier that no subscriber needs, oldest first."""
        for segment in self._ground.catalog.all_segments():
            if self._holds(segment) and not self._desk.owes(self._channel(segment), segment):
                yield segment

    def _holds(self, segment: PublishedSegment) -> bool:
        return self._ground.source is not None and self._ground.source.holds(segment)

    def _channel(self, segment: PublishedSegment) -> Channel:
        return self._ground.channels.by_id(segment.channel_id)
