"""What goes: confirmed, then old, then over a channel's limit, then over the store's size cap.

A tick looks at the channels where something changed, and at time. It runs on its own thread, every `retention.tick` and
whenever somebody waits for room.

Promises:

- A segment all subscribers of its channel have confirmed goes in the next tick, oldest first, also when an older one is
  still needed. A channel nobody follows keeps its segments. `retention.steady_state_headroom` keeps the newest of them
  all; `retention.grace` keeps each for a time after it was seen to be confirmed, by this process. A subscriber may ask
  for a longer one for its channels; it counts until the size cap is reached.
- In a channel of mode `limits` a segment goes when every partition has passed it and it is owed to nobody.
- By age: only by a time that does not believe jumps of the clock (`timekeeping.py`), and not while that is in doubt.
- Over a channel's limit: as many of its oldest events as are too many, told and counted; one always stays.
- With a tier: local copies beyond `retention.local`, and segments that are too old or too much for the tier, as
  `tiered.py` says.
- Over the size cap: confirmed segments first, headroom or not; then, under `drop_oldest`, the oldest of all, told and
  counted; under `backpressure` nothing, and callers wait until subscribers catch up. Where several stores share the cap
  (`sharedroom.py`), what goes first is the oldest of all of them.
- A channel that nobody writes to for `max_inactivity`, and to whose subscribers nothing is owed, is retired: its
  segments go, and it is not shown or counted any more, also after a restart. Its numbers stay, so that it goes on where
  it was when somebody writes to it again. The same becomes of a channel that an operator removes.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from itertools import islice

from holdfast.clock import NS_PER_S
from holdfast.disk.filesystem import is_full
from holdfast.errors import RetryLater, StoreFailed
from holdfast.model.intervals import IntervalSet
from holdfast.store.catalog import PublishedSegment
from holdfast.store.channels import Channel
from holdfast.store.ground import Ground
from holdfast.store.retention.evict import ACKED, INACTIVE, PASSED, Evictor
from holdfast.store.retention.partitions import PartitionFloors
from holdfast.store.retention.sharedroom import LOOK_S, Candidate, SharedRoom
from holdfast.store.retention.tiered import TieredRetention
from holdfast.store.subscribers.desk import Going, SubscriberDesk
from holdfast.telemetry import event

BATCH = 256
"""Segments evicted in one transaction."""
TIME_NOTE_NS = 60 * NS_PER_S
"""How often the trusted time is written down."""
ROOM_PARTS = 8
"""Of a shared size cap, the part that each store may keep free for what comes next."""


class Touched:
    """Channels where something changed: a segment was published, or events were settled. Thread-safe."""

    def __init__(self, channel_ids: Iterable[int]) -> None:
        self._ids = set(channel_ids)
        self._lock = threading.Lock()

    def add(self, *channel_ids: int) -> None:
        """Look at these channels in the next tick."""
        with self._lock:
            self._ids.update(channel_ids)

    def take(self) -> list[int]:
        """All of them, ascending; they are looked at now."""
        with self._lock:
            taken, self._ids = self._ids, set()
        return sorted(taken)


class Keeper:
    """Applies retention. `tick` is called by one thread; `remove` and `retire_if_empty` by any, beside it."""

    def __init__(
        self,
        ground: Ground,
        desk: SubscriberDesk,
        evictor: Evictor,
        *,
        touched: Touched,
        partitions: PartitionFloors,
    ) -> None:
        self._ground = ground
        self._config = ground.config
        self._catalog = ground.catalog
        self._registry = desk.registry
        self._desk = desk
        self._evictor = evictor
        self._touched = touched
        self._partitions = partitions
        self._tiered = TieredRetention(ground, desk, evictor)
        self.time = ground.time
        self.turn = threading.Lock()  # one thread at a time lets segments go: a tick, an operator's, a compaction
        self._wake = threading.Event()
        self._stop = False
        self._noted_ns = 0
        self._due_ns = ground.clock.monotonic_ns()
        self._confirmed_at_ns: dict[int, int] = {}  # segment -> when it was seen to be confirmed, in its grace
        self._age_due_ns: dict[int, int] = {}  # channel -> not before then is any of its segments too old
        self._next_seqs_at_start = {channel.id: channel.next_seq for channel in ground.channels}  # some were skipped
        self.size_emergencies = 0
        self._room: SharedRoom | None = None
        evictor.finish_doomed()
        for channel in ground.channels:
            channel.active_at_ns = channel.active_at_ns or self.time.now_ns()  # unknown counts as just now
            self._count_hidden(channel)
            if channel.is_closed_off:
                ground.channels.retire(channel, next_seq=channel.next_seq)

    def share(self, room: SharedRoom) -> None:
        """From now on the size cap is that of several stores, which share it."""
        self._room = room
        with self.turn:
            self._enforce_cap(self.time.now_ns())
        self.wake()

    # -- when -------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Do not wait for the next tick."""
        self._wake.set()

    def run(self) -> None:
        """Tick until stopped."""
        while not self._stop and self._ground.tail.failure is None:
            tick_s = self._config.retention_tick_ns / NS_PER_S
            self._wake.wait(tick_s if self._room is None else min(tick_s, LOOK_S))
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
            with self.turn:
                self.tick()
        except Exception as error:  # whatever it is, a keeper that stopped in silence would leave callers waiting
            event("store.retention.fail", reason=error)
            full = isinstance(error, OSError | sqlite3.Error) and is_full(error)
            if not full and not isinstance(error, RetryLater):
                self._ground.tail.fail(error if isinstance(error, StoreFailed) else self._failure(error))

    def _failure(self, error: Exception) -> StoreFailed:
        reason = f"retention failed: {type(error).__name__}: {error}"
        return StoreFailed(file=self._ground.channels_directory, reason=reason)

    def tick(self) -> None:
        """Everything that is due."""
        now_ns = self.time.now_ns()
        touched = self._touched.take()
        try:
            self._look_at(touched, now_ns)
        except Exception:
            self._touched.add(*touched)
            raise
        self._expire_subscribers()
        self._tiered.trim(now_ns, lambda channel, segments, reason: self._evict(channel, segments, reason=reason))
        self._tiered.release()
        self._enforce_cap(now_ns)
        self._note_time(now_ns)

    def _look_at(self, touched: list[int], now_ns: int) -> None:
        for channel_id in touched:
            channel = self._ground.channels.get_by_id(channel_id)
            if channel is not None:
                self._age_due_ns.pop(channel_id, None)
                self._clear_below_floor(channel)
                self._evict_passed(channel)
                if not self._config.retention_steady_state_headroom_bytes:
                    self._evict(channel, self._freeable(channel, now_ns), reason=ACKED)
        if touched and self._config.retention_steady_state_headroom_bytes:
            self._evict_beyond_headroom(now_ns)
        for channel in self._ground.channels:
            self._evict_old(channel, now_ns)
            self._enforce_limits(channel)
            self._retire_if_inactive(channel, now_ns)

    def _note_time(self, now_ns: int) -> None:
        if now_ns - self._noted_ns >= TIME_NOTE_NS and not self.time.holding:
            self._catalog.set_meta(trusted_time_ns=now_ns)
            self._noted_ns = now_ns

    def _evict(self, channel: Channel, segments: Iterable[PublishedSegment], *, reason: str, told: bool = False) -> int:
        """Evict segments of one channel, some at a time; returns the bytes freed."""
        rest, freed = iter(segments), 0
        while batch := list(islice(rest, BATCH)):
            freed += self._evictor.evict(channel, batch, reason=reason, told=told)
            for segment in batch:
                self._confirmed_at_ns.pop(segment.meta.segment_seq, None)
        if freed:
            self._count_hidden(channel)
        return freed

    def forget(self, numbers: Iterable[int]) -> None:
        """These segments are no more: others hold their events. The caller has the turn."""
        for number in numbers:
            self._confirmed_at_ns.pop(number, None)

    def remove(self, channel: Channel, *, last_seq: int) -> int:
        """Evict the segments that begin at `last_seq` or before, because an operator says so; returns the events."""
        with self.turn:
            segments = list(self._catalog.segments(channel.id, last_seq=last_seq))
            self._evict(channel, segments, reason="removed")
        return sum(segment.meta.rows for segment in segments)

    def retire_if_empty(self, channel: Channel) -> None:
        """A channel that was removed, and not written to since, is not shown any more."""
        with self.turn:
            next_seq = channel.next_seq
            if not channel.segment_events and self._is_quiet(channel, next_seq):
                self._retire(channel, next_seq)

    # -- confirmed --------------------------------------------------------------------------------------------------

    def _freeable(
        self, channel: Channel, now_ns: int, *, mode: str = "acked", pressed: bool = False
    ) -> Iterator[PublishedSegment]:
        """Segments that all subscribers have confirmed, out of their grace, oldest first; none where nobody reads."""
        if channel.limits.retention_mode != mode:
            return
        grace_ns = self._config.retention_grace_ns if pressed else self._grace_ns(channel)
        for first, last in self._settled_spans(channel):
            for segment in self._catalog.segments(channel.id, first_seq=first, last_seq=last):
                inside = first <= segment.meta.first_seq and segment.meta.last_seq <= last
                if inside and self._is_out_of_grace(segment, now_ns, grace_ns=grace_ns):
                    yield segment

    def _grace_ns(self, channel: Channel) -> int:
        """The longest that the settings or a subscriber of the channel ask for; a full store keeps to the settings."""
        with self._registry.lock:
            asked = [state.note.grace_ns for state, _ in self._registry.followers(channel)]
        return max(self._config.retention_grace_ns, *asked, 0)

    def _is_out_of_grace(self, segment: PublishedSegment, now_ns: int, *, grace_ns: int) -> bool:
        if not grace_ns:
            return True
        since_ns = self._confirmed_at_ns.setdefault(segment.meta.segment_seq, now_ns)
        if now_ns - since_ns < grace_ns:
            self._touched.add(segment.channel_id)
            return False
        return True

    def _settled_spans(self, channel: Channel) -> list[tuple[int, int]]:
        """What somebody follows and nobody is owed, as ranges."""
        with self._registry.lock:
            followers = self._registry.followers(channel)
            if not followers:
                return []
            owed = IntervalSet()
            for _, progress in followers:
                for first, last in progress.owed(1, channel.published_seq):
                    owed.add(first, last)
        return list(owed.missing(1, channel.published_seq))

    def _evict_beyond_headroom(self, now_ns: int) -> None:
        """Of all confirmed segments keep the newest that fit into the headroom."""
        room = self._config.retention_steady_state_headroom_bytes
        beyond: list[PublishedSegment] = []
        for segment in sorted(self._all_freeable(now_ns, modes=("acked",)), key=_number, reverse=True):
            room -= segment.size_bytes
            if room < 0:
                beyond.append(segment)
        for segment in reversed(beyond):
            self._evict(self._ground.channels.by_id(segment.channel_id), [segment], reason=ACKED)

    def _all_freeable(self, now_ns: int, *, modes: tuple[str, ...], pressed: bool = False) -> list[PublishedSegment]:
        channels = list(self._ground.channels)
        return [
            item
            for channel in channels
            for mode in modes
            for item in self._freeable(channel, now_ns, mode=mode, pressed=pressed)
        ]

    def _evict_passed(self, channel: Channel) -> None:
        """In a `limits` channel: what no partition needs and nobody is owed."""
        highest = self._partitions.highest(channel)
        if channel.limits.retention_mode != "limits" or highest <= 1:
            return
        with self._registry.lock:
            followers = [progress for _, progress in self._registry.followers(channel)]
        passed = [
            segment
            for segment in self._catalog.segments(channel.id, last_seq=highest - 1)
            if all(progress.is_settled(segment.meta.first_seq, segment.meta.last_seq) for progress in followers)
            and self._partitions.passed(channel, segment)
        ]
        self._evict(channel, passed, reason=PASSED)

    # -- old --------------------------------------------------------------------------------------------------------

    def _evict_old(self, channel: Channel, now_ns: int) -> None:
        ages = [age for age in (channel.limits.max_age_ns, self._config.retention_max_retain_ns) if age]
        if not ages or self.time.holding or self._age_due_ns.get(channel.id, 0) > now_ns:
            return
        by_event = self._config.retention_time_basis == "event"
        old = self._catalog.segments_older_than(channel.id, now_ns - min(ages), by_event_time=by_event)
        self._evict(channel, old, reason="age")
        oldest_ns = self._catalog.oldest_time(channel.id, by_event_time=by_event)
        self._age_due_ns[channel.id] = oldest_ns + min(ages) if oldest_ns is not None else 2**62

    # -- channel limits ---------------------------------------------------------------------------------------------

    def _enforce_limits(self, channel: Channel) -> None:
        limits = channel.limits
        if limits.discard != "old" or not (limits.max_msgs or limits.max_bytes):
            return
        events, _ = self._ground.tail.stored(channel)
        if limits.max_msgs and events > limits.max_msgs:
            self._raise_floor(channel, self._floor_without(channel, events - limits.max_msgs))
        _, size_bytes = self._ground.tail.stored(channel)
        if limits.max_bytes and size_bytes > limits.max_bytes:
            self._trim_bytes(channel, size_bytes - limits.max_bytes)

    def _floor_without(self, channel: Channel, excess: int) -> int:
        """The first event that is left when the `excess` oldest are gone."""
        border, chunks = self._ground.tail.snapshot(channel)  # first: what leaves it is in the catalog by then
        segments = self._catalog.segment_spans(channel.id, first_seq=channel.first_seq, last_seq=border - 1)
        spans = [(first, last) for first, last, _ in segments]
        spans += [(chunk.run.first_seq, chunk.run.first_seq + chunk.run.rows - 1) for chunk in chunks]
        for first, last in spans:
            start = max(first, channel.first_seq)
            if last - start + 1 > excess:
                return start + excess
            excess -= max(0, last - start + 1)
        return channel.last_seq

    def _trim_bytes(self, channel: Channel, excess: int) -> None:
        """Whole segments go, except the one with the last event."""
        floor = channel.first_seq
        for segment in self._catalog.segments(channel.id):
            if excess <= 0 or segment.meta.last_seq >= channel.last_seq:
                break
            excess -= segment.size_bytes
            floor = segment.meta.last_seq + 1
        self._raise_floor(channel, floor)

    def _raise_floor(self, channel: Channel, floor: int) -> None:
        """Events below `floor` are gone, for ever: also when the limit is raised again."""
        floor = min(floor, channel.last_seq)  # one event always stays
        if floor <= channel.first_seq:
            return
        if not channel.warned:
            channel.warned = True
            event("store.channel.limit", channel=channel.name, first_seq=floor)
        with self._desk.membership:
            losses = self._evictor.tell(channel, self._going(channel, floor), reason="limit")
            self._catalog.set_floor(channel.id, floor, losses)
            channel.first_seq = floor
        self._clear_below_floor(channel)

    def _going(self, channel: Channel, floor: int) -> list[Going]:
        """What falls below a new floor: whole segments, parts of them, and events that are in no segment yet."""
        border, chunks = self._ground.tail.snapshot(channel)
        edge = min(border, floor) - 1
        spans = [
            (item.meta.first_seq, item.meta.last_seq, item.size_bytes, item.meta.segment_seq)
            for item in self._catalog.segments(channel.id, first_seq=channel.first_seq, last_seq=edge)
        ]
        for chunk in chunks:
            run = chunk.run
            spans.append((run.first_seq, run.first_seq + run.rows - 1, chunk.payload.buffer.size, 0))
        going = []
        for first, last, size_bytes, number in spans:
            low, high = max(first, channel.first_seq), min(last, floor - 1)
            if low <= high:
                share = size_bytes * (high - low + 1) // (last - first + 1)
                going.append(Going(low, high, share, number if high == last else 0))
        return going

    def _clear_below_floor(self, channel: Channel) -> None:
        """Delete the segments all of whose events are below the floor; some were in memory when it was raised."""
        if channel.first_seq > 1:
            below = self._catalog.segments(channel.id, last_seq=channel.first_seq - 1)
            whole = [item for item in below if item.meta.last_seq < channel.first_seq]
            self._evict(channel, whole, reason="limit", told=True)
            self._count_hidden(channel)

    def _count_hidden(self, channel: Channel) -> None:
        """Events below the floor that are still there: in the one segment, or in memory, where the floor is."""
        if channel.first_seq <= 1:
            return
        border, chunks = self._ground.tail.snapshot(channel)
        spans = self._catalog.segment_spans(channel.id, first_seq=1, last_seq=min(border, channel.first_seq) - 1)
        hidden = sum(min(last, channel.first_seq - 1) - first + 1 for first, last, _ in spans)
        for chunk in chunks:
            hidden += max(0, min(chunk.run.rows, channel.first_seq - chunk.run.first_seq))
        channel.hidden_events = hidden

    # -- size cap ---------------------------------------------------------------------------------------------------

    def _enforce_cap(self, now_ns: int) -> None:
        cap, tail = self._config.retention_size_cap_bytes, self._ground.tail
        if not cap:
            return
        if self._room is not None:
            self._room.balance(_Tenant(self, now_ns))
            return
        soft = cap - self._room_bytes(tail.take_pressed_bytes())
        if tail.charged_bytes() > soft:
            freeable = self._all_freeable(now_ns, modes=("acked", "limits"), pressed=True)
            self._free(freeable, soft, reason=ACKED)
        if tail.charged_bytes() > soft and self._config.retention_size_cap_policy == "drop_oldest":
            self.size_emergencies += 1
            self._free(self._catalog.local_segments(), soft, reason="size")

    def _room_bytes(self, pressed_bytes: int) -> int:
        """To be kept free, in log and segment: room for the next segment, or for an ordinary frame that waits. A larger
        one gets room of its own beside it, so that those that go on meanwhile do not take it."""
        next_bytes = max(self._config.segment_target_bytes, 2 * self._config.frame_bytes_max)
        return next_bytes if pressed_bytes <= next_bytes else next_bytes + pressed_bytes

    def _free(self, segments: Iterable[PublishedSegment], soft: int, *, reason: str) -> None:
        """Evict the oldest until what is charged is at the soft mark."""
        ordered = sorted(segments, key=_number) if isinstance(segments, list) else segments
        for segment in ordered:
            if segment.remote:
                continue  # its bytes are not on this disk
            if self._ground.tail.charged_bytes() <= soft:
                return
            self._evict(self._ground.channels.by_id(segment.channel_id), [segment], reason=reason)

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
        limit_ns, next_seq = channel.limits.max_inactivity_ns, channel.next_seq
        if not limit_ns or self.time.holding or now_ns - channel.active_at_ns < limit_ns:
            return
        if not self._is_quiet(channel, next_seq):
            return
        with self._registry.lock:
            followers = self._registry.followers(channel)
            if any(progress.unconfirmed(channel.last_seq) for _, progress in followers):
                return
        self._evict(channel, self._catalog.segments(channel.id, last_seq=next_seq - 1), reason=INACTIVE)
        if channel.segment_events:  # somebody came to read them just now
            return
        self._retire(channel, next_seq)

    def _is_quiet(self, channel: Channel, next_seq: int) -> bool:
        """Whether all events below `next_seq`, read before, are in segments: none is on its way to the log or there."""
        if channel.units:
            return False
        return channel.published_seq == next_seq - 1 or self._next_seqs_at_start.get(channel.id) == next_seq

    def _retire(self, channel: Channel, next_seq: int) -> None:
        """Its floor says so to the next start: no limit raises it above all events."""
        self._catalog.set_floor(channel.id, next_seq)
        channel.first_seq = next_seq
        if self._ground.channels.retire(channel, next_seq=next_seq):
            event("store.channel.retire", channel=channel.name)

    def _expire_subscribers(self) -> None:
        expiry_ns = self._config.subscriber_expiry_ns
        if not expiry_ns:
            return
        now_ns = self._ground.clock.monotonic_ns()
        for state in self._registry.states():
            if now_ns - state.last_seen_ns > expiry_ns:
                owed = self._desk.deregister(state.note.name)
                event("store.subscriber.expire", subscriber=state.note.name, owed=owed)


class _Tenant:
    """The store of a keeper, as the room that it shares sees it, for one look."""

    def __init__(self, keeper: Keeper, now_ns: int) -> None:
        self._keeper = keeper
        self._config = keeper._config
        self._tail = keeper._ground.tail
        self._now_ns = now_ns
        self.cap_bytes = self._config.retention_size_cap_bytes
        self.may_drop = self._config.retention_size_cap_policy == "drop_oldest"

    def needed_bytes(self) -> int:
        """As for one store: room for the next segment or frame; a small cap cannot promise that to everyone."""
        next_bytes = max(self._config.segment_target_bytes, 2 * self._config.frame_bytes_max)
        room_bytes = max(min(next_bytes, self.cap_bytes // ROOM_PARTS), self._tail.take_pressed_bytes())
        return self._tail.charged_bytes() + room_bytes

    def allow(self, bytes_max: int, *, if_fits: bool) -> bool:
        """See `Tail.allow`."""
        return self._tail.allow(bytes_max, if_fits=if_fits)

    def candidates(self) -> Iterator[Candidate]:
        """Confirmed segments, oldest first; then, where they may be dropped, the others."""
        keeper = self._keeper
        freeable = keeper._all_freeable(self._now_ns, modes=("acked", "limits"), pressed=True)
        confirmed = {_number(segment) for segment in freeable if not segment.remote}
        yield from (_candidate(segment, True) for segment in sorted(freeable, key=_number) if not segment.remote)
        if self.may_drop:
            local = (segment for segment in keeper._catalog.local_segments() if not segment.remote)
            yield from (_candidate(segment, False) for segment in local if _number(segment) not in confirmed)

    def let_go(self, number: int, *, drop: bool) -> None:
        """Evict one segment."""
        keeper = self._keeper
        segment = keeper._catalog.segment(number)
        if segment is None or segment.remote:
            return
        channel = keeper._ground.channels.by_id(segment.channel_id)
        if not keeper._evict(channel, [segment], reason=ACKED) and drop:
            keeper.size_emergencies += 1
            keeper._evict(channel, [segment], reason="size")


def _candidate(segment: PublishedSegment, confirmed: bool) -> Candidate:
    return Candidate(segment.meta.last_ingested_at_ns, _number(segment), segment.size_bytes, confirmed)


def _number(segment: PublishedSegment) -> int:
    return segment.meta.segment_seq
