"""The ring between producers and the wire: frames in FSN order, bounded, kept until they are acknowledged.

    producers ── append ──► active ── full ──► sealed, sealed, … ── acknowledged ──► trimmed
                              ▲                  ▲
                            spare              Cursor (the I/O loop reads here, also from the active one)

Segments are files of a `Slot` or lists in `Memory`; the ring does not know which. One spare segment is made ahead by
a maintenance thread, so that an append never waits for the allocation of a file. The thread sleeps on a condition
and wakes for: a spare that is missing and fits under the cap, segments that can be trimmed, a periodic sync that is
due. Memory needs no thread; neither does a ring with `threaded=False`, whose owner (a test) calls `step`.

Promises:

1. `append` gives FSNs without gaps, in the order in which frames become readable. It returns when the frame is where
   a killed process leaves it; `durability` "append": when it survives a power cut. `sync` does that for "flush".
2. The bytes of all segments stay within the cap. At the cap `append` waits, up to its deadline, then raises
   `SlotFull`, which says whether the server is slow or away, or `DiskFull`. A frame that no segment can hold raises
   at once.
3. A frame can be read until it is acknowledged, and what was read stays valid for as long as somebody holds it:
   views are of memory that nobody unmaps. A segment that a cursor stands in is not deleted.
4. A failed write or sync is never repeated: the ring is failed, every call raises `SlotFailed`, and what is on disk
   is for the next opening to judge. `halt` does the same with an error of the caller's choice.

In every mode but "memory" a full segment is synced before the next one gets its first frame. Otherwise a power
cut could take the end of one and leave the start of the next: a gap, which recovery refuses.

Thread-safe. Time is the clock's; waiting is on conditions, in slices, so that a clock set by hand is noticed.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident

from holdfast.clock import NS_PER_S, Clock
from holdfast.disk.filesystem import Bytes, is_full
from holdfast.errors import Closed, FrameTooLarge, HoldfastError, Reentered, SlotFailed, SlotFull
from holdfast.sender.cursor import Cursor
from holdfast.sender.fate import Fate, file_of
from holdfast.sender.rejected import Rejection
from holdfast.sender.segment import OVERHEAD_BYTES, PAYLOAD_BYTES_MAX
from holdfast.sender.substrate import (
    Backing,
    LinkState,
    RingOptions,
    RingStatistics,
    Segment,
    Stamp,
    connected,
)
from holdfast.telemetry import event

TRIM_SEGMENTS_MAX = 64
"""Segments deleted with one watermark: bounds how long the thread is busy with one step."""
WAIT_SLICE_S = 0.1
"""How often a waiting thread looks at its clock; wake-ups come through the condition."""
FULL_PAUSE_S = 0.2
"""How long to wait before asking a full disk for a spare segment again, while a producer waits for it."""


class Ring:
    """See the module. `on_published` is called, on a producer's thread, once a frame comes for a cursor without one."""

    def __init__(
        self,
        backing: Backing,
        options: RingOptions,
        *,
        clock: Clock,
        link_state: LinkState = connected,
        threaded: bool = True,
    ) -> None:
        self.on_published: Callable[[], None] | None = None
        self.frame_bytes_max = min(options.segment_bytes - OVERHEAD_BYTES, PAYLOAD_BYTES_MAX)
        self.link_state = link_state
        self._backing = backing
        self._options = options
        self._clock = clock
        self._pid = os.getpid()
        self.lock = threading.RLock()
        self._durable = options.durability != "memory"
        self._room = threading.Condition(self.lock)  # a spare came, or nothing more will
        self._news = threading.Condition(self.lock)  # published, acknowledged or synced further
        self._work = threading.Condition(self.lock)  # something for the maintenance thread
        self._sealed: deque[Segment] = deque()
        self._spare: Segment | None = None
        self._published = backing.next_fsn - 1
        self._acked = backing.acked_fsn
        self._synced = self._published if self._durable else self._acked
        self._fate = Fate(backing.directory, self.lock, (self._room, self._news, self._work))
        self._full: OSError | None = None
        self._hungry = False
        self._inside: set[int] = set()  # threads that are handing over a frame
        self._waiting = 0  # threads that wait for news
        self._starved = 0  # producers that wait for room
        self._syncing = False
        self._stalls = self._trimmed = self._syncs = 0
        self._synced_at_ns = clock.monotonic_ns()
        self._full_at_ns = 0
        recovered = backing.recovered()
        self._active = recovered.pop() if recovered else self._first_segment()
        self._sealed.extend(recovered)
        self._used_bytes = sum(segment.size_bytes for segment in (*self._sealed, self._active))
        self._thread: threading.Thread | None = None
        if threaded and not backing.instant:
            self._thread = threading.Thread(target=self._maintain, name="holdfast-ring", daemon=True)
            self._thread.start()

    def _first_segment(self) -> Segment:
        base = self._backing.next_fsn
        try:
            with self._fate.disk_errors(full=True):
                segment: Segment = self._backing.create(base, self._options.segment_bytes)
                self._backing.activated(base)
        except BaseException:
            self._backing.abandon([])
            raise
        return segment

    # --- what producers call ---------------------------------------------------------------------------------------

    def append(self, payload: Bytes | Sequence[Bytes], stamp: Stamp | None = None) -> int:
        """Publish one frame and return its FSN. With `stamp`, the first part is writable and gets its FSN in place."""
        parts: Sequence[Bytes] = payload if isinstance(payload, list | tuple) else (payload,)
        size = sum(memoryview(part).nbytes for part in parts)
        self._check_size(size)
        me = get_ident()
        with self.lock:
            if me in self._inside:  # a signal handler, let in by the lock, under the very call that it interrupts
                raise Reentered(what="handing over a frame")
            try:
                self._inside.add(me)
                fsn = self._publish(parts, size, stamp)
            finally:
                self._inside.discard(me)
            wake, self._hungry = self._hungry, False
        if wake and self.on_published is not None:
            self.on_published()
        if self._options.durability == "append":
            self.sync(fsn)
        elif self._options.durability == "periodic" and self._synced == fsn - 1:
            with self.lock:
                self._work.notify()  # the first frame after a sync starts the interval
        return fsn

    def _publish(self, parts: Sequence[Bytes], size: int, stamp: Stamp | None) -> int:
        self._fate.check()
        if not self._active.fits(size):
            self._rotate(size)
        fsn = self._active.next_fsn
        self._published = fsn - 1  # an append that was interrupted after its write has published its frame
        if stamp is not None:
            stamp(memoryview(parts[0]), fsn)
        self._write(parts, size)
        self._published = fsn
        if self._waiting:
            self._news.notify_all()
        return fsn

    def _check_size(self, size: int) -> None:
        if size == 0:
            raise ValueError("an empty frame")
        if size > self.frame_bytes_max:
            raise FrameTooLarge(frame_bytes=size, allowed_bytes=self.frame_bytes_max)
        if not self._backing.slot_id:
            raise Closed(what="a slot that is only drained")
        if os.getpid() != self._pid:  # before the lock, which a thread of the parent may have held for ever
            raise Closed(what="a sender that was open when this process was forked")

    def _write(self, parts: Sequence[Bytes], size: int) -> None:
        active = self._active
        try:
            active.append(parts, size)
        except OSError as error:
            if not is_full(error):
                raise self._fate.fail(error) from error
            with self._fate.disk_errors():
                active.forget_tail()
            raise self._fate.full(error) from error

    def _rotate(self, size: int) -> None:
        """Make the spare the active segment; wait for one up to the deadline."""
        started_ns = self._clock.monotonic_ns()
        self._starved += 1
        try:
            stalled = False
            while not self._active.fits(size):
                if self._spare is None and self._thread is None:
                    while self._can_trim():
                        self._trim()
                    self.step()
                if self._spare is None:
                    self._stalls += not stalled
                    stalled = True
                    self._wait_for_room(started_ns)
                elif self._durable and self._syncing:
                    self._wait_for_news(None)
                elif self._durable and self._active.dirty:
                    self._sync_once()
                else:
                    self._seal()
        finally:
            self._starved -= 1

    def _wait_for_room(self, started_ns: int) -> None:
        waited_ns = self._clock.monotonic_ns() - started_ns
        left_s = self._options.append_deadline_ms / 1000 - waited_ns / NS_PER_S
        if left_s <= 0:
            if self._full is not None:
                raise self._fate.full(self._full)
            raise SlotFull(
                used_bytes=self._used_bytes,
                cap_bytes=self._options.cap_bytes,
                waited_s=waited_ns / NS_PER_S,
                outage=str(outage) if (outage := self.link_state()) else None,
            )
        self._work.notify()
        self._wait(self._room, min(WAIT_SLICE_S, left_s))
        self._fate.check()

    def _seal(self) -> None:
        old, new = self._active, self._spare
        assert new is not None
        new.rebase(old.next_fsn)
        with self._fate.disk_errors():
            old.seal()
            self._backing.activated(old.next_fsn)
        if not old.pins:
            old.park()
        self._sealed += (old,)  # no call from here to the end of the exchange, so no interrupt finds half of it
        self._active, self._spare = new, None
        self._work.notify()

    def sync(self, fsn: int | None = None) -> None:
        """Return when every frame up to `fsn` (default: the last) survives a power cut. Callers share one sync."""
        with self.lock:
            target = self._published if fsn is None else min(fsn, self._published)
            while self._synced < target:
                self._fate.check_failure()
                if self._syncing:
                    self._wait_for_news(None)
                else:
                    self._sync_once()

    def _sync_once(self) -> None:
        """Sync all that is published, without the lock while the disk works; the lock is held before and after."""
        goal = self._published
        segments = [segment for segment in (*self._sealed, self._active) if segment.dirty]
        self._syncing = True
        try:
            for segment in segments:
                self.pin(segment)
                segment.dirty = False
            self._sync_unlocked(segments)
        except BaseException:
            for segment in segments:
                segment.dirty = True  # an interrupt came first; a failed sync is not repeated, it has ended the ring
            raise
        finally:
            self._syncing = False
            self._synced_at_ns = self._clock.monotonic_ns()
            for segment in segments:
                self.unpin(segment)
            self._news.notify_all()
        self._syncs += 1
        self._synced = max(self._synced, goal)
        self._news.notify_all()

    def _sync_unlocked(self, segments: list[Segment]) -> None:
        try:
            self.lock.release()
            with self._fate.disk_errors():
                for segment in segments:
                    segment.sync()
        finally:
            self.lock.acquire()

    def _wait(self, condition: threading.Condition, seconds: float) -> None:
        try:
            condition.wait(seconds)
        except BaseException:  # an interrupt may come when the condition has just let go of the lock
            if not self.lock._is_owned():  # type: ignore[attr-defined]
                self.lock.acquire()
            raise

    # --- what the I/O loop calls -----------------------------------------------------------------------------------

    @property
    def slot_id(self) -> bytes:
        """The id under which servers know the frames appended here."""
        return self._backing.slot_id

    def session_of(self, fsn: int) -> tuple[bytes, int | None]:
        """The id of an unacknowledged frame, and the first FSN that has another id."""
        return self._backing.session_of(fsn)

    @property
    def published_fsn(self) -> int:
        """The last frame; -1 before the first."""
        return self._published

    @property
    def acked_fsn(self) -> int:
        """Every frame up to this one is acknowledged; -1 before the first."""
        return self._acked

    @property
    def synced_fsn(self) -> int:
        """Every frame up to this one is known to survive a power cut."""
        return self._synced

    def cursor(self, fsn: int) -> Cursor:
        """A reader that starts at this frame, which may not be published yet. Close it."""
        self._fate.check_open()
        return Cursor(self, fsn)

    def segment_at(self, fsn: int) -> Segment:
        """For cursors, with the lock held: the segment that holds this frame, or will if it is the next one."""
        for segment in (*self._sealed, self._active):
            if segment.base <= fsn < segment.next_fsn:
                return segment
        if fsn == self._published + 1:
            return self._active
        raise LookupError(f"FSN {fsn} is not here: unacknowledged are {self._acked + 1}..{self._published}")

    def segment_after(self, segment: Segment) -> Segment | None:
        """For cursors, with the lock held: the next one; None, and a wake-up to come, when there is none."""
        self._fate.check_open()
        if segment is self._active:
            self._hungry = True
            return None
        return next((later for later in self._sealed if later.base >= segment.next_fsn), self._active)

    def pin(self, segment: Segment) -> Segment:
        """With the lock held: keep this segment from being deleted."""
        segment.pins += 1
        return segment

    def unpin(self, segment: Segment) -> None:
        """With the lock held: the opposite."""
        segment.pins -= 1
        if not segment.pins and segment is not self._active:
            segment.park()
            self._work.notify()

    def acknowledge(self, fsn: int) -> bool:
        """The server has everything up to `fsn`. Never moves back, never beyond what is published; True if it moved."""
        with self.lock:
            self._fate.check_open()
            fsn = min(fsn, self._published)
            if fsn <= self._acked:
                return False
            self._acked = fsn
            if self._waiting:
                self._news.notify_all()
            with self._fate.disk_errors():
                self._backing.acknowledged(fsn)
            if self._sealed and self._sealed[0].next_fsn <= fsn + 1:
                if self._backing.instant:
                    self.step()
                else:
                    self._work.notify()
            return True

    def reject(self, rejection: Rejection) -> Path | None:
        """Keep a copy of a span that was refused for good, then acknowledge up to its end. None: nowhere to keep it."""
        with self.cursor(rejection.first_fsn) as cursor, self._fate.disk_errors(full=True):
            frames = (frame.payload for frame in cursor.until(rejection.last_fsn))
            place = self._backing.reject(rejection, frames)
        self.acknowledge(rejection.last_fsn)
        return place

    def halt(self, error: HoldfastError) -> None:
        """Latch an error: producers that wait or call get it. The first one stays."""
        self._fate.latch(error)

    def wait_published(self, fsn: int, timeout_s: float | None = None) -> bool:
        """Whether the frame is published; waits for it."""
        return self._wait_until(lambda: self._published >= fsn, timeout_s)

    def wait_acked(self, fsn: int, timeout_s: float | None = None) -> bool:
        """Whether the frame is acknowledged; waits for it."""
        return self._wait_until(lambda: self._acked >= fsn, timeout_s)

    def _wait_until(self, reached: Callable[[], bool], timeout_s: float | None) -> bool:
        started_ns = self._clock.monotonic_ns()
        with self.lock:
            while not reached():
                self._fate.check()
                left_s = None
                if timeout_s is not None:
                    left_s = timeout_s - (self._clock.monotonic_ns() - started_ns) / NS_PER_S
                    if left_s <= 0:
                        return False
                self._wait_for_news(left_s)
            return True

    def _wait_for_news(self, left_s: float | None) -> None:
        self._waiting += 1
        try:
            self._wait(self._news, WAIT_SLICE_S if left_s is None else min(WAIT_SLICE_S, left_s))
        finally:
            self._waiting -= 1

    def statistics(self) -> RingStatistics:
        """The ring now."""
        with self.lock:
            return RingStatistics(
                published_fsn=self._published,
                acked_fsn=self._acked,
                synced_fsn=self._synced,
                used_bytes=self._used_bytes,
                cap_bytes=self._options.cap_bytes,
                segments=len(self._segments()),
                stalls=self._stalls,
                trimmed_segments=self._trimmed,
                syncs=self._syncs,
            )

    def close(self) -> bool:
        """Stop, and release the slot. True when everything was acknowledged, so that nothing is left to send.

        Close cursors first. Frames that are not acknowledged stay in the slot, synced unless `durability` is "memory".
        """
        with self.lock:
            if self._fate.closed:
                return self._acked >= self._published
            self._fate.close()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self.lock:
            while self._syncing:
                self._wait_for_news(None)
            drained = self._acked >= self._published
            try:
                if isinstance(self._fate.failure, SlotFailed):
                    return drained  # what is on disk is for recovery to judge
                while self._can_trim():
                    self._trim()
                if self._durable and not drained:
                    self._sync_once()
                with self._fate.disk_errors():
                    self._backing.close(self._segments(), acked_fsn=self._acked, next_fsn=self._published + 1)
            finally:
                self._backing.abandon(self._segments())
            return drained

    def _segments(self) -> list[Segment]:
        return [*self._sealed, self._active, *([self._spare] if self._spare else [])]

    # --- maintenance -----------------------------------------------------------------------------------------------

    def _maintain(self) -> None:
        while True:
            with self.lock:
                while not self._fate.is_over and self._due() is None:
                    self._work.wait(self._seconds_until_due())
                if self._fate.is_over:
                    return
            try:
                self.step()
            except HoldfastError:
                return  # latched: whoever calls next is told
            except BaseException as error:  # a producer must not wait for a thread that is gone
                self.halt(SlotFailed(file=self._backing.directory, reason=f"maintenance ended: {error!r}"))
                raise

    def step(self) -> bool:
        """Do one piece of maintenance, if one is due."""
        with self.lock:
            due = self._due()
            if due is not None:
                due()
            return due is not None

    def _due(self) -> Callable[[], None] | None:
        can_make = self._spare is None and self._has_room() and (self._full is None or self._full_pause_s() <= 0)
        if can_make and (self._starved or not self._can_trim()):  # trimming waits for the disk, a producer for this
            return self._make_spare
        if self._can_trim():
            return self._trim
        return self._sync_once if self._sync_pause_s() == 0 else None

    def _can_trim(self) -> bool:
        return bool(self._sealed) and self._sealed[0].next_fsn <= self._acked + 1 and not self._sealed[0].pins

    def _has_room(self) -> bool:
        """Whether a spare fits under the cap. Beside a lone segment it always does, or a large one blocked for ever."""
        if not self._backing.slot_id or (self._backing.instant and not self._starved):
            return False
        return not self._sealed or self._used_bytes + self._options.segment_bytes <= self._options.cap_bytes

    def _full_pause_s(self) -> float:
        return FULL_PAUSE_S - (self._clock.monotonic_ns() - self._full_at_ns) / NS_PER_S

    def _sync_pause_s(self) -> float | None:
        """Seconds until the periodic sync; None when there is nothing to sync."""
        if self._options.durability != "periodic" or self._synced >= self._published or self._syncing:
            return None
        passed_s = (self._clock.monotonic_ns() - self._synced_at_ns) / NS_PER_S
        return max(0.0, self._options.sync_interval_ms / 1000 - passed_s)

    def _seconds_until_due(self) -> float | None:
        pauses = [pause for pause in [self._sync_pause_s()] if pause is not None]
        if self._full is not None and self._spare is None and self._starved:
            pauses.append(max(0.001, self._full_pause_s()))
        return min(pauses, default=None)

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        """Let others work while the maintenance thread waits for the disk; without a thread nobody else needs it."""
        if self._thread is None:
            yield
            return
        self.lock.release()
        try:
            yield
        finally:
            self.lock.acquire()

    def _make_spare(self) -> None:
        base, size = self._published + 1, self._options.segment_bytes
        self._used_bytes += size
        try:
            with self._unlocked():
                spare: Segment = self._backing.create(base, size)
        except OSError as error:
            self._used_bytes -= size
            if not is_full(error):
                raise self._fate.fail(error) from error
            if self._full is None:
                event("sender.disk.full", file=file_of(error, self._backing.directory), reason=error.strerror)
            self._full, self._full_at_ns = error, self._clock.monotonic_ns()
            return
        self._full = None
        self._spare = spare
        self._room.notify_all()

    def _trim(self) -> None:
        victims: list[Segment] = []
        while len(victims) < TRIM_SEGMENTS_MAX and self._can_trim():
            victims.append(self._sealed.popleft())
        head_base = (self._sealed[0] if self._sealed else self._active).base
        with self._fate.disk_errors(), self._unlocked():
            self._backing.remove(victims, head_base=head_base)
        self._used_bytes -= sum(segment.size_bytes for segment in victims)
        self._trimmed += len(victims)
