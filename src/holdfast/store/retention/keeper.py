"""What goes: confirmed, then old, then over a channel's limit, then over the store's size cap.

A tick looks at the channels where something changed, and at time. It runs on its own thread, every `retention.tick` and
whenever somebody waits for room.

Promises:

- A segment all subscribers of its channel have confirmed goes in the next tick, oldest first, also when an older one is
  still needed. A channel nobody follows keeps its segments. `retention.steady_state_headroom` keeps the newest of them.
- By age: only by a time that does not believe jumps of the clock.
- Over the size cap: confirmed segments first; then, under `drop_oldest`, the oldest of all, told and counted; under
  `backpressure` nothing, and callers wait until subscribers catch up.
- A channel that nobody writes to for `max_inactivity`, and to whose subscribers nothing is owed, is retired: its
  segments and its directory go. Its numbers stay, so that it goes on where it was when somebody writes to it again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from itertools import islice

from holdfast.clock import NS_PER_S
from holdfast.disk.filesystem import is_full
from holdfast.errors import HoldfastError, StoreFailed
from holdfast.model.intervals import IntervalSet
from holdfast.store.catalog import PublishedSegment
from holdfast.store.channels import Channel
from holdfast.store.ground import Ground
from holdfast.store.retention.evict import Evictor
from holdfast.store.retention.timekeeping import TrustedTime
from holdfast.store.subscribers.desk import SubscriberDesk
from holdfast.telemetry import event

BATCH = 256
"""Segments evicted in one transaction."""
TIME_NOTE_NS = 60 * NS_PER_S
"""How often the trusted time is written down."""


class Touched:
    """Channels where something changed: a segment was published, or events were settled. Thread-safe."""

    def __init__(self, channel_ids: Iterable[int]) -> None:
        self._ids = set(channel_ids)
        self._lock = threading.Lock()

    def add(self, channel_id: int) -> None:
        """Look at this channel in the next tick."""
        with self._lock:
            self._ids.add(channel_id)

    def take(self) -> list[int]:
        """All of them, ascending; they are looked at now."""
        with self._lock:
            taken, self._ids = self._ids, set()
        return sorted(taken)


class Keeper:
    """Applies retention. `tick` is called by one thread at a time."""

    def __init__(self, ground: Ground, desk: SubscriberDesk, evictor: Evictor, touched: Touched) -> None:
        self._ground = ground
        self._config = ground.config
        self._catalog = ground.catalog
        self._registry = desk.registry
        self._desk = desk
        self._evictor = evictor
        self._touched = touched
        self._wake = threading.Event()
        self._stop = False
        known = ground.catalog.meta("trusted_time_ns")
        self.time = TrustedTime(ground.clock, last_known_ns=int(known or 0))
        self._noted_ns = 0
        self._due_ns = ground.clock.monotonic_ns()
        self.size_emergencies = 0

    # -- when -------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Do not wait for the next tick."""
        self._wake.set()

    def run(self) -> None:
        """Tick until stopped."""
        while not self._stop and self._ground.tail.failure is None:
            self._wake.wait(self._config.retention_tick_ns / NS_PER_S)
            self._wake.clear()
            if not self._stop:
                self.tick_safely()

    def stop(self) -> None:
        """`run` returns after the current tick."""
        self._stop = True
        self._wake.set()

    def tick_if_due(self) -> None:
        """For a store without threads: tick when the clock says so."""
        if self._ground.clock.monotonic_ns() >= self._due_ns:
            self.tick_safely()

    def tick_safely(self) -> None:
        """A failed disk stops the store; a full one is tried again at the next tick."""
        self._due_ns = self._ground.clock.monotonic_ns() + self._config.retention_tick_ns
        try:
            self.tick()
        except HoldfastError as error:
            if isinstance(error, StoreFailed):
                self._ground.tail.fail(error)
            event("store.retention.fail", reason=error)
        except (OSError, sqlite3.Error) as error:
            if not is_full(error):
                self._ground.tail.fail(
                    StoreFailed(file=self._ground.channels_directory, reason=f"retention failed: {error}")
                )
            event("store.retention.fail", reason=error)

    def tick(self) -> None:
        """Everything that is due."""
        now_ns = self.time.now_ns()
        for channel_id in self._touched.take():
            channel = self._ground.channels.get_by_id(channel_id)
            if channel is not None:
                self._evict_confirmed(channel, now_ns)
                self._enforce_limits(channel)
        for channel in self._ground.channels:
            self._evict_old(channel, now_ns)
            self._retire_if_inactive(channel, now_ns)
        self._expire_subscribers()
        self._enforce_cap()
        self._note_time(now_ns)

    def _note_time(self, now_ns: int) -> None:
        if now_ns - self._noted_ns >= TIME_NOTE_NS:
            self._catalog.set_meta(trusted_time_ns=now_ns)
            self._noted_ns = now_ns

    # -- confirmed --------------------------------------------------------------------------------------------------

    def _evict_confirmed(self, channel: Channel, now_ns: int, *, headroom: bool = True) -> None:
        limits = channel.limits
        if limits.retention_mode != "acked":
            return
        freeable = self._freeable(channel, now_ns)
        if headroom and self._config.retention_steady_state_headroom_bytes:
            freeable = self._beyond_headroom(list(freeable))
        while batch := list(islice(freeable, BATCH)):
            self._evictor.evict(channel, batch, reason="acked", script=limits.archive_script)
        if self._config.retention_grace_ns and self._any_freeable(channel):
            self._touched.add(channel.id)

    def _freeable(self, channel: Channel, now_ns: int) -> Iterator[PublishedSegment]:
        """Segments that all subscribers have confirmed, oldest first; none where nobody reads."""
        for first, last in self._settled_spans(channel):
            for segment in self._catalog.segments(channel.id, first_seq=first, last_seq=last):
                meta = segment.meta
                young = now_ns - meta.last_ingested_at_ns < self._config.retention_grace_ns
                if first <= meta.first_seq and meta.last_seq <= last and not young:
                    yield segment

    def _any_freeable(self, channel: Channel) -> bool:
        return any(True for _ in self._freeable(channel, 2**62))

    def _settled_spans(self, channel: Channel) -> list[tuple[int, int]]:
        """What is owed to nobody, as ranges."""
        with self._registry.lock:
            followers = self._registry.followers(channel)
            if not followers:
                return []
            owed = IntervalSet()
            for _, progress in followers:
                for first, last in progress.confirmed.missing(progress.start_seq, channel.published_seq):
                    owed.add(first, last)
        return list(owed.missing(1, channel.published_seq))

    def _beyond_headroom(self, segments: list[PublishedSegment]) -> Iterator[PublishedSegment]:
        """All but the newest that fit into the headroom."""
        kept = 0
        keep: set[int] = set()
        for segment in reversed(segments):
            kept += segment.size_bytes
            if kept > self._config.retention_steady_state_headroom_bytes:
                break
            keep.add(segment.meta.segment_seq)
        return (segment for segment in segments if segment.meta.segment_seq not in keep)

    # -- old --------------------------------------------------------------------------------------------------------

    def _evict_old(self, channel: Channel, now_ns: int) -> None:
        limits = channel.limits
        ages = [age for age in (limits.max_age_ns, self._config.retention_max_retain_ns) if age]
        if not ages:
            return
        by_event = self._config.retention_time_basis == "event"
        cutoff_ns = now_ns - min(ages)
        old = self._catalog.segments_older_than(channel.id, cutoff_ns, by_event_time=by_event)
        for batch_start in range(0, len(old), BATCH):
            batch = old[batch_start : batch_start + BATCH]
            if self.time.holding:
                event("store.retention.hold", channel=channel.name, due=len(old))
                batch = batch[:1] if not channel.aged_while_holding else []
                channel.aged_while_holding = True
            self._evictor.evict(channel, batch, reason="age", script=limits.archive_script)
            if self.time.holding:
                return

    # -- channel limits ---------------------------------------------------------------------------------------------

    def _enforce_limits(self, channel: Channel) -> None:
        limits = channel.limits
        if limits.discard != "old":
            return
        if limits.max_msgs and channel.stored_events() > limits.max_msgs:
            self._raise_floor(channel, channel.next_seq - limits.max_msgs, script=limits.archive_script)
        if limits.max_bytes:
            self._trim_bytes(channel, limits.max_bytes, script=limits.archive_script)

    def _raise_floor(self, channel: Channel, floor: int, *, script: str) -> None:
        """Events below `floor` are gone; whole segments below it are deleted."""
        floor = min(floor, channel.next_seq - 1)  # one event always stays
        if floor <= channel.first_seq:
            return
        if not channel.warned:
            channel.warned = True
            event("store.channel.limit", channel=channel.name, first_seq=floor)
        self._evictor.tell_dropped(channel, channel.first_seq, floor - 1, reason="limit")
        self._catalog.set_floor(channel.id, floor)
        channel.first_seq = floor
        while batch := list(islice(self._catalog.segments(channel.id, last_seq=floor - 1), BATCH)):
            whole = [segment for segment in batch if segment.meta.last_seq < floor]
            if not whole:
                return
            self._evictor.evict(channel, whole, reason="limit", script=script)

    def _trim_bytes(self, channel: Channel, bytes_max: int, *, script: str) -> None:
        total = channel.stored_bytes()
        for segment in self._catalog.segments(channel.id):
            if total <= bytes_max or segment.meta.last_seq >= channel.next_seq - 1:
                return
            total -= segment.size_bytes
            self._raise_floor(channel, segment.meta.last_seq + 1, script=script)

    # -- size cap ---------------------------------------------------------------------------------------------------

    def _enforce_cap(self) -> None:
        tail = self._ground.tail
        cap = self._config.retention_size_cap_bytes
        if not cap:
            return
        soft = cap - self._config.segment_target_bytes
        if tail.disk_bytes() > soft:
            now_ns = self.time.now_ns()
            for channel in self._ground.channels:
                self._evict_confirmed(channel, now_ns, headroom=False)
        if self._config.retention_size_cap_policy == "drop_oldest" and tail.disk_bytes() > soft:
            self._drop_oldest(tail.disk_bytes() - soft)

    def _drop_oldest(self, excess: int) -> None:
        """Delete the oldest segments of all channels until `excess` bytes are free."""
        freed = 0
        self.size_emergencies += 1
        for segment in self._catalog.all_segments():
            if freed >= excess:
                break
            channel = self._ground.channels.by_id(segment.channel_id)
            script = channel.limits.archive_script
            freed += self._evictor.evict(channel, [segment], reason="size", script=script)

    def slowest(self) -> str:
        """Who keeps the most from being deleted, for the error text of a caller that waited in vain."""
        worst, most = "", 0
        for state in self._registry.states():
            owed = sum(lag.bytes for lag in self._desk.lag_of(state))
            if owed > most:
                worst, most = state.note.name, owed
        return worst

    # -- the quiet --------------------------------------------------------------------------------------------------

    def _retire_if_inactive(self, channel: Channel, now_ns: int) -> None:
        limits = channel.limits
        if not limits.max_inactivity_ns or channel.units or now_ns - channel.active_at_ns < limits.max_inactivity_ns:
            return
        with self._registry.lock:
            followers = self._registry.followers(channel)
            if any(progress.unconfirmed(channel.next_seq - 1) for _, progress in followers):
                return
        while batch := list(islice(self._catalog.segments(channel.id), BATCH)):
            self._evictor.evict(channel, batch, reason="inactive", script=limits.archive_script)
        self._ground.channels.retire(channel)
        event("store.channel.retire", channel=channel.name)

    def _expire_subscribers(self) -> None:
        expiry_ns = self._config.subscriber_expiry_ns
        if not expiry_ns:
            return
        now_ns = self._ground.clock.monotonic_ns()
        for state in self._registry.states():
            if now_ns - state.last_seen_ns > expiry_ns and not state.claims:
                owed = self._registry.deregister(state.note.name)
                event("store.subscriber.expire", subscriber=state.note.name, owed=owed)
                for channel in self._ground.channels:
                    self._touched.add(channel.id)
