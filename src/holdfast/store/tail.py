"""The events that are committed but not yet in a published segment, and the bounds on them.

Each channel has *units*: at most one open (being filled), before it those cut and waiting to be sealed. A unit becomes
one segment. It holds the bytes that were written to the log, not the caller's buffers, so a caller that reuses its
memory changes nothing here.

Promises:

- Queued, open and cut bytes together stay within `memory_limit`, but for those that are read from a file (`direct.py`),
  which together with the log stay within `wal.max_size`; at a limit the largest open units are cut, and callers wait in
  `reserve` until sealing frees room, then get `Backpressure` (G11). One frame that is larger than `frame.max_size` may
  stand above either: it is let in as soon as half of the memory and half of the log are free, since there may be no
  moment without others, and while it is there nobody else is.
- Segments, log and what will become a segment together stay within `retention.size_cap`: at the cap large open units
  are cut early, and callers wait in the same way until segments are evicted. Sealing itself never waits for the cap,
  and events that make room when they are stored (dead letters) do not either, so nobody waits for himself. A frame for
  which no eviction makes room is refused for good (`LimitReached`), before anything is evicted for it.
- A unit is cut when it reaches `segment.target_size`, is older than `segment.max_open_duration`, changes schema, would
  not be contiguous, or pins the oldest log file of a full log. A restart does not make it younger. However often
  somebody asks for room, units that pin nothing but the log's newest file are cut once for it.
- `oldest_file` never passes a file that holds an event of a unit: the log is trimmed below it only.

Thread-safe: one lock, held briefly, never during I/O.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from holdfast.clock import NS_PER_S, Clock
from holdfast.config import StoreConfig
from holdfast.errors import Backpressure, Closed, HoldfastError, LimitReached, again
from holdfast.store.channels import Channel
from holdfast.store.units import Chunk, Unit

BATCH_BYTES_MAX = 4 << 20
"""Small units that are published together: enough to share a transaction, little enough that memory comes back soon."""
EARLY_SEAL_PARTS = 4
"""At the size cap units of a quarter of a segment are sealed early; smaller ones would make many small files."""
WAIT_SLICE_S = 1.0
"""A waiting caller looks again this often, in case a clock or a limit moved without a signal."""


def _first_seq_of(chunk: Chunk) -> int:
    return chunk.run.first_seq


def _end_of(chunk: Chunk) -> int:
    return chunk.run.first_seq + chunk.run.rows


@dataclass(frozen=True, slots=True)
class TailStatistics:
    """How much is between the log and the segments."""

    queued_bytes: int
    open_bytes: int
    cut_bytes: int
    open_units: int
    cut_units: int
    throttled: int


class Tail:
    """All units of a store."""

    def __init__(self, config: StoreConfig, clock: Clock, *, segment_bytes: int = 0) -> None:
        self._config = config
        self._clock = clock
        self.lock = threading.Lock()
        self.room = threading.Condition(self.lock)
        self.work = threading.Condition(self.lock)
        self._open: dict[int, Unit] = {}
        self._cut: deque[Unit] = deque()
        self._sealing: list[Unit] = []
        self._pinned: list[Unit] = []
        self._deferred: dict[Unit, None] = {}
        self._announcing = False
        self._files: Counter[int] = Counter()
        self._newest_file = self._emptied_file = 0
        self._queued_bytes = self._open_bytes = self._cut_bytes = 0
        self._filed_bytes = self._cut_filed_bytes = 0
        self._waiting = 0
        self._throttled = 0
        self._wal_bytes = 0
        self._segment_bytes = segment_bytes
        self._cap_bytes = config.retention_size_cap_bytes
        self._pressed_bytes = 0
        self.on_pressure: Callable[[], None] = lambda: None
        self.watches: list[set[int]] = []  # ids of channels that get events are added to each
        self.failure: HoldfastError | None = None
        self.closed = False

    # -- the bound --------------------------------------------------------------------------------------------------

    def reserve(self, size_bytes: int, *, wait: bool, capped: bool = True) -> None:
        """Count `size_bytes` as queued, waiting for room; raises `Backpressure`, or why the store stopped.

        `capped=False` is for events that must be stored before others can go: they do not wait for the size cap.
        """
        with self.lock:
            if self._full(size_bytes, capped=capped):
                self._wait_for_room(size_bytes, wait=wait, capped=capped)
            if self.failure is not None:
                raise again(self.failure)
            self._queued_bytes += size_bytes

    def check_size(self, size_bytes: int) -> None:
        """Raise `LimitReached` if there would be no room for a frame of that size in an empty store."""
        if self._never_fits(size_bytes):
            what = f"a frame of {size_bytes} bytes, which takes twice that beside a file of the log"
            raise LimitReached(what=what, limit="retention.size_cap", allowed=self._config.retention_size_cap_bytes)

    def has_room(self, size_bytes: int, *, capped: bool) -> bool:
        """Whether there is nothing to wait for. If there is, room is being made."""
        if capped and self._never_fits(size_bytes):
            return True
        with self.lock:
            full = self._full(size_bytes, capped=capped)
            if full:
                self._make_room(size_bytes, capped=capped)
            return not full

    def release(self, size_bytes: int) -> None:
        """Give back what `reserve` counted: the frame was refused."""
        with self.lock:
            self._queued_bytes -= size_bytes
            self.room.notify_all()

    def note_wal_bytes(self, size_bytes: int) -> None:
        """How long the log is now."""
        with self.lock:
            self._wal_bytes = size_bytes
            if self._waiting:
                self.room.notify_all()

    def charged_bytes(self) -> int:
        """What counts against the size cap: segments, the log, and what is to be written to either."""
        with self.lock:
            return self._charged()

    def allow(self, cap_bytes: int, *, if_fits: bool = False) -> bool:
        """How much may be used from now on; 0 is no bound. With `if_fits`, not if more is used, which is said."""
        with self.lock:
            if if_fits and self._charged() > cap_bytes:
                return False
            self._cap_bytes = cap_bytes
            self.room.notify_all()
            return True

    def take_pressed_bytes(self) -> int:
        """The most that somebody did not find room for since the last call; 0 if nobody."""
        with self.lock:
            pressed, self._pressed_bytes = self._pressed_bytes, 0
            return pressed

    @property
    def is_throttling(self) -> bool:
        """Whether somebody waits for room."""
        return self._waiting > 0 or self._pressed_bytes > 0

    def _charged(self) -> int:
        unsealed = 2 * self._queued_bytes + self._open_bytes + self._cut_bytes  # what is queued goes to log and segment
        return self._segment_bytes + self._wal_bytes + unsealed

    def _full(self, size_bytes: int, *, capped: bool = True) -> bool:
        return self._over_memory(size_bytes) or self._over_wal(size_bytes) or (capped and self._over_cap(size_bytes))

    def _never_fits(self, size_bytes: int) -> bool:
        """Whether it is too large for the size cap when nothing is left but the file of the log that is written."""
        cap_bytes = self._config.retention_size_cap_bytes
        return 0 < cap_bytes < self._config.wal_rotation_bytes + 2 * size_bytes

    def _over_cap(self, size_bytes: int) -> bool:
        return 0 < self._cap_bytes < self._charged() + 2 * size_bytes

    def _memory_used(self) -> int:
        return self._queued_bytes + self._open_bytes + self._cut_bytes - self._filed_bytes

    def _over_memory(self, size_bytes: int) -> bool:
        used, limit = self._memory_used(), self._config.memory_limit_bytes
        return used > 0 and used + min(size_bytes, max(self._config.frame_bytes_max, limit // 2)) > limit

    def _over_wal(self, size_bytes: int) -> bool:
        pinned = bool(self._files) or self._queued_bytes > 0
        used = self._wal_bytes + self._filed_bytes + self._queued_bytes
        return pinned and used + self._wal_share(size_bytes) > self._config.wal_max_bytes

    def _wal_share(self, size_bytes: int) -> int:
        """How much of the log must be free for it: half is enough."""
        return min(size_bytes, max(self._config.frame_bytes_max, self._config.wal_max_bytes // 2))

    def _wait_for_room(self, size_bytes: int, *, wait: bool, capped: bool) -> None:
        started_ns = self._clock.monotonic_ns()
        self._throttled += 1
        self._waiting += 1
        try:
            while self._full(size_bytes, capped=capped) and self.failure is None:
                self._make_room(size_bytes, capped=capped)
                if self._pressed_bytes:
                    self.on_pressure()
                waited_ns = self._clock.monotonic_ns() - started_ns
                if not wait or waited_ns >= self._config.commit_timeout_ns:
                    raise self._backpressure(size_bytes, waited_ns)
                self.room.wait(min(WAIT_SLICE_S, (self._config.commit_timeout_ns - waited_ns) / NS_PER_S))
        finally:
            self._waiting -= 1

    def _make_room(self, size_bytes: int, *, capped: bool) -> None:
        """Cut what gives room; over the size cap note how much must be evicted."""
        self._cut_under_pressure(memory_bytes=size_bytes, wal_bytes=size_bytes)
        if capped and self._over_cap(size_bytes):
            self._cut_large_units()
            self._pressed_bytes = max(self._pressed_bytes, 2 * size_bytes)

    def _backpressure(self, size_bytes: int, waited_ns: int) -> Backpressure:
        bound, used, cap = "wal.max_size", self._wal_bytes + self._filed_bytes, self._config.wal_max_bytes
        if self._over_memory(size_bytes):
            bound, used, cap = "memory_limit", self._memory_used(), self._config.memory_limit_bytes
        elif self._over_cap(size_bytes):
            used, bound, cap = self._charged(), "retention.size_cap", self._cap_bytes
        return Backpressure(bound=bound, used_bytes=used, cap_bytes=cap, waited_s=waited_ns / NS_PER_S)

    def not_sealed(self, waited_ns: int) -> Backpressure:
        """Sealing does not get on; what waits for it is in memory."""
        with self.lock:
            used, cap = self._cut_bytes, self._config.memory_limit_bytes
        return Backpressure(bound="memory_limit", used_bytes=used, cap_bytes=cap, waited_s=waited_ns / NS_PER_S)

    # -- committer --------------------------------------------------------------------------------------------------

    def append(self, chunks: Iterable[tuple[Channel, Chunk]], *, queued_bytes: int, wal_bytes: int) -> None:
        """Add committed events, cutting units as their bounds say. `queued_bytes` were reserved for them."""
        with self.lock:
            self._queued_bytes -= queued_bytes
            self._wal_bytes = wal_bytes
            self._unpin()
            for channel, chunk in chunks:
                self._append(channel, chunk)
                self._newest_file = max(self._newest_file, chunk.wal_file)
            self._cut_deferred()
            self._cut_under_pressure(
                memory_bytes=self._config.memory_limit_bytes // 8, wal_bytes=self._config.wal_rotation_bytes
            )
            if self._waiting:
                self.room.notify_all()

    def restore(self, chunks: Iterable[tuple[Channel, Chunk]], *, wal_bytes: int, now_ns: int) -> None:
        """Add what the log held at a start. Its units have been open since their first event was committed: a process
        that never lives for `segment.max_open_duration` would not seal them otherwise."""
        self.append(chunks, queued_bytes=0, wal_bytes=wal_bytes)
        with self.lock:
            for unit in self._open.values():
                unit.opened_at_ns -= max(0, now_ns - unit.chunks[0].run.ingested_at_ns)

    def _append(self, channel: Channel, chunk: Chunk) -> None:
        unit = self._open.get(channel.id)
        if unit is not None and not unit.goes_on_with(chunk):
            self._cut_unit(unit)
            unit = None
        if unit is None:
            unit = Unit(channel, chunk, self._clock.monotonic_ns())
            self._open[channel.id] = unit
            self._files[unit.wal_file] += 1
            unit.chunks.append(chunk)
            channel.units.append(unit)  # never without a chunk: some look at it without the lock
            if len(self._open) == 1:
                self.work.notify_all()
        else:
            unit.chunks.append(chunk)
        channel.active_at_ns = max(channel.active_at_ns, chunk.run.ingested_at_ns)
        for watch in self.watches:
            watch.add(channel.id)
        size = chunk.payload.buffer.size
        unit.bytes += size
        self._open_bytes += size
        unit.growing = unit.growing or chunk.growing
        if chunk.filed:
            unit.filed_bytes += size
            self._filed_bytes += size
        if self.is_full(channel, size_bytes=unit.bytes, rows=unit.rows):
            self._cut_unit(unit)

    def is_full(self, channel: Channel, *, size_bytes: int, rows: int) -> bool:
        """Whether a unit of that size is cut."""
        limits = channel.limits
        bytes_max = min(self._config.segment_target_bytes, limits.slice_max_bytes or self._config.segment_target_bytes)
        return size_bytes >= bytes_max or bool(limits.slice_max_msgs and rows >= limits.slice_max_msgs)

    def pin(self, channels: Iterable[Channel]) -> list[Unit | None]:
        """The open units of channels, none of which is cut before the next `append` or `unpin`."""
        with self.lock:
            units = [self._open.get(channel.id) for channel in channels]
            for unit in units:
                if unit is not None:
                    unit.pinned = True
                    self._pinned.append(unit)
            return units

    def unpin(self) -> None:
        """Nothing came of it."""
        with self.lock:
            self._unpin()
            self._cut_deferred()

    def _unpin(self) -> None:
        for unit in self._pinned:
            unit.pinned = False
        self._pinned.clear()

    # -- cutting ----------------------------------------------------------------------------------------------------

    def _cut_unit(self, unit: Unit) -> None:
        if unit.pinned:
            self._deferred[unit] = None
            return
        del self._open[unit.channel.id]
        self._cut.append(unit)
        self._open_bytes -= unit.bytes
        self._cut_bytes += unit.bytes
        self._cut_filed_bytes += unit.filed_bytes
        self.work.notify_all()

    def _cut_deferred(self) -> None:
        """Cut what was to be cut while it was pinned."""
        deferred, self._deferred = self._deferred, {}
        for unit in deferred:
            if self._open.get(unit.channel.id) is unit:
                self._cut_unit(unit)

    def _cut_under_pressure(self, *, memory_bytes: int, wal_bytes: int) -> None:
        """Cut what gives the most room: units in the oldest files for the log, the largest ones for memory."""
        if self._over_wal(wal_bytes) and self._files:
            self._cut_for_log(self._wal_share(wal_bytes))
        goal = self._config.memory_limit_bytes // 4
        if self._over_memory(memory_bytes) and self._cut_bytes - self._cut_filed_bytes < goal:
            for unit in sorted(self._open.values(), key=lambda unit: unit.filed_bytes - unit.bytes):
                self._cut_unit(unit)
                if self._cut_bytes - self._cut_filed_bytes >= goal:
                    break

    def _cut_for_log(self, wanted_bytes: int) -> None:
        """Cut what pins the oldest file, and what is in files already unless enough of that is on its way.

        Units of the newest file do not give it back, but to publish them deletes files below it: once is enough.
        """
        oldest = min(self._files)
        if oldest < self._newest_file or self._emptied_file < self._newest_file:
            if oldest == self._newest_file:
                self._emptied_file = self._newest_file
            for unit in [unit for unit in self._open.values() if unit.wal_file == oldest]:
                self._cut_unit(unit)
        left = self._wal_bytes + self._queued_bytes + self._filed_bytes - self._cut_filed_bytes
        if left + wanted_bytes > self._config.wal_max_bytes:
            for unit in [unit for unit in self._open.values() if unit.filed_bytes]:
                self._cut_unit(unit)

    def _cut_large_units(self) -> None:
        """Over the size cap: what is sealed can be confirmed, or dropped, and gives back its part of the log."""
        oldest = min(self._files, default=0)
        several_files = any(number > oldest for number in self._files)
        for unit in list(self._open.values()):
            pins = several_files and unit.wal_file == oldest
            if pins or unit.bytes >= self._config.segment_target_bytes // EARLY_SEAL_PARTS:
                self._cut_unit(unit)

    def cut_expired(self) -> None:
        """Cut the units that have been open too long."""
        with self.lock:
            now_ns = self._clock.monotonic_ns()
            for unit in [unit for unit in self._open.values() if now_ns - unit.opened_at_ns >= self._open_ns_max(unit)]:
                self._cut_unit(unit)

    def _open_ns_max(self, unit: Unit) -> int:
        limit_ns = self._config.segment_max_open_ns
        return min(limit_ns, unit.channel.limits.slice_max_age_ns or limit_ns)

    def cut_all(self) -> None:
        """Cut every open unit: flush and close."""
        with self.lock:
            for unit in list(self._open.values()):
                self._cut_unit(unit)

    def cut_channel(self, channel: Channel) -> None:
        """Cut the open unit of a channel: somebody waits for its segment."""
        with self.lock:
            for unit in [unit for unit in self._open.values() if unit.channel is channel]:
                self._cut_unit(unit)

    def cut_all_if_older(self, age_ns: int) -> None:
        """Cut every open unit if one has been open for so long; all at once, so that no frame is cut in two."""
        with self.lock:
            now_ns = self._clock.monotonic_ns()
            if any(now_ns - unit.opened_at_ns >= age_ns for unit in self._open.values()):
                for unit in list(self._open.values()):
                    self._cut_unit(unit)

    def first_committed_id(self) -> int | None:
        """The lowest committed_id of all frames of which a part is in a unit; None without units."""
        with self.lock:
            units = (*self._open.values(), *self._cut, *self._sealing)
            return min((unit.frame_committed_id for unit in units), default=None)

    def last_committed_id(self) -> int:
        """The highest committed_id in a unit; 0 without units."""
        with self.lock:
            lasts = [unit.chunks[-1].run for unit in (*self._open.values(), *self._cut, *self._sealing)]
            return max((run.first_committed_id + run.rows - 1 for run in lasts), default=0)

    def slot_frames(self) -> dict[bytes, set[int]]:
        """Per slot the numbers of the frames of which a part is in a unit."""
        found: dict[bytes, set[int]] = {}
        with self.lock:
            for unit in (*self._open.values(), *self._cut, *self._sealing):
                for chunk in unit.chunks:
                    if chunk.run.slot_id is not None and chunk.run.fsn is not None:
                        found.setdefault(chunk.run.slot_id, set()).add(chunk.run.fsn)
        return found

    # -- sealer -----------------------------------------------------------------------------------------------------

    def wait_for_work(self) -> None:
        """Return when a unit is cut, one is due, or after a while."""
        with self.lock:
            if self._cut or self.failure is not None:
                return
            self.work.wait(self._seconds_until_due())

    def _seconds_until_due(self) -> float:
        if not self._open:
            return WAIT_SLICE_S
        opened_at_ns = next(iter(self._open.values())).opened_at_ns
        left_ns = opened_at_ns + self._config.segment_max_open_ns - self._clock.monotonic_ns()
        return min(WAIT_SLICE_S, max(0.0, left_ns / NS_PER_S))

    def take(self, count_max: int) -> list[Unit]:
        """The oldest cut units: one large one, or so many small ones. The same ones again until `published`."""
        with self.lock:
            size = sum(unit.bytes for unit in self._sealing)
            while (
                self._cut
                and len(self._sealing) < count_max
                and (not size or size + self._cut[0].bytes <= BATCH_BYTES_MAX)
            ):
                unit = self._cut.popleft()
                self._sealing.append(unit)
                size += unit.bytes
            return list(self._sealing)

    def oldest_file(self, *, active: int, without: Iterable[Unit] = ()) -> int:
        """The oldest log file still needed once `without` is published."""
        with self.lock:
            files = self._files.copy()
        for unit in without:
            files[unit.wal_file] -= 1
        return min((number for number, uses in files.items() if uses > 0), default=active)

    def published(self, units: Iterable[Unit], sizes_bytes: Iterable[int]) -> None:
        """Forget units whose segments are in the catalog; their readers find them there."""
        with self.lock:
            for unit, size_bytes in zip(units, sizes_bytes, strict=True):
                unit.channel.segment_bytes += size_bytes
                unit.channel.segment_events += unit.rows
                self._segment_bytes += size_bytes
                self._sealing.remove(unit)
                unit.channel.published_seq = unit.end_seq - 1  # before the unit leaves: see `Channel.last_seq`
                unit.channel.units.remove(unit)
                self._cut_bytes -= unit.bytes
                self._cut_filed_bytes -= unit.filed_bytes
                self._filed_bytes -= unit.filed_bytes
                self._files[unit.wal_file] -= 1
            self._files += Counter()  # drops the zeros
            self._announcing = True
            if self._pressed_bytes:
                self.on_pressure()  # what is published can go
            self.room.notify_all()

    def announced(self) -> None:
        """Everybody who waits for these segments has been told."""
        with self.lock:
            self._announcing = False
            self.room.notify_all()

    def evicted(self, channel: Channel, *, events: int, size_bytes: int, local_bytes: int) -> None:
        """Segments of a channel are gone; so many of their bytes were on this disk."""
        with self.lock:
            channel.segment_bytes -= size_bytes
            channel.segment_events -= events
            self._segment_bytes -= local_bytes
            self.room.notify_all()

    def released(self, size_bytes: int) -> None:
        """Segments stay, but so many of their bytes left this disk."""
        with self.lock:
            self._segment_bytes -= size_bytes
            self.room.notify_all()

    @property
    def segment_bytes(self) -> int:
        """Bytes of segments on this disk."""
        return self._segment_bytes

    def stored(self, channel: Channel) -> tuple[int, int]:
        """Events and bytes of a channel, in segments and in memory."""
        with self.lock:
            return channel.stored_events(), channel.stored_bytes()

    def drained(self) -> bool:
        """Whether nothing waits to be sealed."""
        with self.lock:
            return not (self._cut or self._sealing or self._deferred)

    def is_nearly_empty(self) -> bool:
        """Whether nothing waits to be sealed, and little is open: a burst is over."""
        with self.lock:
            return not (self._cut or self._sealing) and self._open_bytes * 8 <= self._config.memory_limit_bytes

    def settled(self) -> bool:
        """Whether, besides, all that was sealed has been announced."""
        with self.lock:
            return not (self._cut or self._sealing or self._announcing or self._deferred)

    # -- readers ----------------------------------------------------------------------------------------------------

    def snapshot(self, channel: Channel) -> tuple[int, list[Chunk]]:
        """The first seq that is not in a published segment, and the chunks from there on."""
        return self.snapshots((channel,))[0]

    def snapshots(self, channels: Iterable[Channel]) -> list[tuple[int, list[Chunk]]]:
        """The same of several channels at one moment, so that a frame is in all of its channels or in none."""
        with self.lock:
            return [
                (channel.published_seq + 1, [chunk for unit in channel.units for chunk in unit.chunks])
                for channel in channels
            ]

    def chunks_from(self, channel: Channel, seq: int, *, bytes_max: int) -> tuple[int, list[Chunk]]:
        """As `snapshot`, but only consecutive chunks from the one on that holds `seq`, up to about so many bytes."""
        with self.lock:
            chunks: list[Chunk] = []
            size = 0
            for unit in channel.units:
                start = bisect_right(unit.chunks, seq, key=_first_seq_of) - 1 if unit.first_seq < seq else 0
                if unit.end_seq <= seq or (chunks and unit.first_seq != _end_of(chunks[-1])):
                    if chunks:
                        break
                    continue
                for chunk in islice(unit.chunks, start, None):
                    chunks.append(chunk)
                    size += chunk.payload.buffer.size
                    if size >= bytes_max:
                        return channel.published_seq + 1, chunks
            return channel.published_seq + 1, chunks

    def check(self) -> None:
        """Raise why the store takes no more calls, if it does not."""
        if self.failure is not None:
            raise again(self.failure)
        if self.closed:
            raise Closed(what="store")

    def fail(self, error: HoldfastError) -> None:
        """Wake everybody with the reason the store stopped."""
        with self.lock:
            if self.failure is None:
                self.failure = error
            self.room.notify_all()
            self.work.notify_all()

    def statistics(self) -> TailStatistics:
        """A consistent picture."""
        with self.lock:
            return TailStatistics(
                self._queued_bytes,
                self._open_bytes,
                self._cut_bytes,
                len(self._open),
                len(self._cut) + len(self._sealing),
                self._throttled,
            )
