"""Who holds which messages until when, and which ones are to be delivered again. One feed, pure, in given time.

    fresh ──delivered──► held by one member ──ack──► done
                           │ nack, time over, member lost (counted), member left (not counted)
                           ▼
                        waiting until due ──due──► being read ──delivered──► held …      (ack of the last holder: done)
                           │ attempts used up
                           ▼
                        dead: to be buried

Promises:

- A message is held by at most one member at a time.
- A held message is delivered again after its time, never before; `extend` starts the time anew.
- An answer counts for what its member holds, and an ack also for what it held last and nobody else got since.
  Everything else is stale, and changes nothing.
- An attempt counts when it ended without an ack: by nack, by time, or because the member was lost. A member that leaves
  in order gives its messages back: that does not count, and is remembered, so that the next one is told.

Work is done per range, not per message: a batch that is delivered and acknowledged as a whole costs one entry.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count

from holdfast.delivery.spans import SpanMap
from holdfast.model.intervals import IntervalSet

Span = tuple[int, int]
Counted = tuple[int, int, int]
"""First and last seq, and the number of the attempt."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How long answers may take, and how often a message is tried."""

    ack_wait_ns: int
    backoff_ns: tuple[int, ...] = ()
    max_deliver: int = 0
    """0 is without limit."""

    def wait_ns(self, attempt: int) -> int:
        """How long the answer of an attempt may take."""
        return self.backoff_ns[min(attempt, len(self.backoff_ns)) - 1] if self.backoff_ns else self.ack_wait_ns

    def pause_ns(self, attempt: int) -> int:
        """How long a message waits after the nack of an attempt that names no delay."""
        return self.backoff_ns[min(attempt, len(self.backoff_ns)) - 1] if self.backoff_ns else 0

    def is_last(self, attempt: int) -> bool:
        """Whether the message is dead when this attempt fails."""
        return 0 < self.max_deliver <= attempt

    def forbids(self, attempt: int) -> bool:
        """Whether all attempts before this one were all there may be."""
        return 0 < self.max_deliver < attempt


@dataclass(slots=True, eq=False)
class Hold:
    """One delivery, as far as it is unanswered."""

    member: int
    ranges: tuple[Span, ...]
    attempt: int
    deadline_ns: int
    policy: Policy
    rows: int
    bytes: int


@dataclass(slots=True, eq=False)
class Wait:
    """Messages that are to be delivered again."""

    due_ns: int
    attempt: int
    """The number of the delivery to come."""
    last_member: int
    """Who held them last; 0 for nobody who may still answer."""


@dataclass(slots=True)
class Taken:
    """What an answer, or an end, took from a member."""

    spans: list[Span] = field(default_factory=list)
    rows: int = 0
    failed: list[Span] = field(default_factory=list)
    """Attempts that count as failed."""
    dead: list[Counted] = field(default_factory=list)
    """Messages to be buried: rejected, or their attempts are used up; with the number of the last."""


@dataclass(slots=True)
class Load:
    """What one member holds."""

    rows: int = 0
    bytes: int = 0


NOTHING = Load()


class Book:
    """All messages of a feed that were delivered and are not done."""

    def __init__(self) -> None:
        self._held: SpanMap[Hold] = SpanMap()
        self._waiting: SpanMap[Wait] = SpanMap()
        self._deadlines: list[tuple[int, int, Hold]] = []
        self._dues: list[tuple[int, int, int, int, Wait]] = []
        self._loads: dict[int, Load] = {}
        self._given_back = IntervalSet()
        self._order = count()

    # -- what is where ----------------------------------------------------------------------------------------------

    def load(self, member: int) -> Load:
        """What a member holds."""
        return self._loads.get(member, NOTHING)

    @property
    def held_rows(self) -> int:
        """Messages that members hold."""
        return sum(load.rows for load in self._loads.values())

    @property
    def waiting_rows(self) -> int:
        """Messages that wait to be delivered again."""
        return sum(last - first + 1 for first, last, _ in self._waiting)

    def holder(self, seq: int) -> int | None:
        """Who holds a message."""
        found = self._held.overlap(seq, seq)
        return found[0][2].member if found else None

    def next_ns(self, now_ns: int) -> int | None:
        """When something happens by itself, after now. What is due already waits for somebody with room."""
        while self._deadlines and not self._deadlines[0][2].rows:
            heapq.heappop(self._deadlines)
        tops = [heap[0][0] for heap in (self._deadlines, self._dues) if heap]
        return min((at_ns for at_ns in tops if at_ns > now_ns), default=None)

    # -- out and back -----------------------------------------------------------------------------------------------

    def deliver(
        self, member: int, ranges: Sequence[Span], *, attempt: int, size_bytes: int, policy: Policy, now_ns: int
    ) -> None:
        """A member got messages that nobody holds."""
        rows = sum([last - first + 1 for first, last in ranges])
        hold = Hold(member, tuple(ranges), attempt, now_ns + policy.wait_ns(attempt), policy, rows, size_bytes)
        self._hold(hold)

    def _hold(self, hold: Hold) -> None:
        for first, last in hold.ranges:
            self._held.put(first, last, hold)
        load = self._loads.setdefault(hold.member, Load())
        load.rows += hold.rows
        load.bytes += hold.bytes
        heapq.heappush(self._deadlines, (hold.deadline_ns, next(self._order), hold))

    def _release(self, first: int, last: int, hold: Hold) -> int:
        """Messages are not held any more; returns their share of the delivery's bytes."""
        rows = last - first + 1
        share = hold.bytes if rows == hold.rows else hold.bytes * rows // hold.rows
        load = self._loads[hold.member]
        hold.rows -= rows
        hold.bytes -= share
        load.rows -= rows
        load.bytes -= share
        if not load.rows:
            del self._loads[hold.member]
        return share

    def _wait(self, first: int, last: int, wait: Wait) -> None:
        self._waiting.put(first, last, wait)
        heapq.heappush(self._dues, (wait.due_ns, next(self._order), first, last, wait))

    # -- answers ----------------------------------------------------------------------------------------------------

    def ack(self, member: int, ranges: Iterable[Span]) -> Taken:
        """Done with what the member holds of the ranges, or held last."""
        taken = Taken()
        for first, last in ranges:
            for low, high, hold in self._held.take(first, last, only=lambda hold: hold.member == member):
                self._release(low, high, hold)
                _add(taken, low, high)
                self._forget(low, high)
            for low, high, _ in self._waiting.take(first, last, only=lambda wait: wait.last_member == member):
                _add(taken, low, high)
        return taken

    def nack(self, member: int, ranges: Iterable[Span], *, delay_ns: int | None, now_ns: int) -> Taken:
        """Give back what the member holds of the ranges; it counts as a failed attempt."""
        taken = Taken()
        for first, last in ranges:
            for low, high, hold in self._held.take(first, last, only=lambda hold: hold.member == member):
                pause_ns = hold.policy.pause_ns(hold.attempt) if delay_ns is None else delay_ns
                self._fail(taken, (low, high), hold, due_ns=now_ns + pause_ns, last_member=0)
        return taken

    def reject(self, member: int, ranges: Iterable[Span]) -> Taken:
        """Take what the member holds of the ranges; nobody holds it any more, and it does not come again by itself."""
        taken = Taken()
        for first, last in ranges:
            for low, high, hold in self._held.take(first, last, only=lambda hold: hold.member == member):
                self._release(low, high, hold)
                _add(taken, low, high)
                self._forget(low, high)
                taken.dead.append((low, high, hold.attempt))
        return taken

    def extend(self, member: int, ranges: Iterable[Span], *, now_ns: int) -> Taken:
        """Start the time of what the member holds of the ranges anew."""
        taken = Taken()
        for first, last in ranges:
            for low, high, hold in self._held.take(first, last, only=lambda hold: hold.member == member):
                share = self._release(low, high, hold)
                _add(taken, low, high)
                deadline_ns = now_ns + hold.policy.wait_ns(hold.attempt)
                rows = high - low + 1
                self._hold(Hold(member, ((low, high),), hold.attempt, deadline_ns, hold.policy, rows, share))
        return taken

    def held_by(self, member: int) -> list[Span]:
        """What a member holds."""
        return [(first, last) for first, last, hold in self._held if hold.member == member]

    # -- ends -------------------------------------------------------------------------------------------------------

    def expire(self, now_ns: int) -> dict[int, Taken]:
        """Take messages away whose time is over, by member; they are due at once."""
        out: dict[int, Taken] = {}
        while self._deadlines and (self._deadlines[0][0] <= now_ns or not self._deadlines[0][2].rows):
            _, _, hold = heapq.heappop(self._deadlines)
            if not hold.rows:
                continue
            taken = out.setdefault(hold.member, Taken())
            for first, last in hold.ranges:
                for low, high, _ in self._held.take(first, last, only=lambda other, mine=hold: other is mine):  # type: ignore[misc]
                    self._fail(taken, (low, high), hold, due_ns=now_ns, last_member=hold.member)
        return out

    def leave(self, member: int, *, lost: bool, now_ns: int) -> Taken:
        """A member is gone; what it held is due at once. Only if it was lost, the attempts count."""
        taken = Taken()
        for first, last in self.held_by(member):
            for low, high, hold in self._held.take(first, last):
                if lost:
                    self._fail(taken, (low, high), hold, due_ns=now_ns, last_member=0)
                else:
                    self._release(low, high, hold)
                    _add(taken, low, high)
                    self._given_back.add(low, high)
                    self._wait(low, high, Wait(now_ns, hold.attempt, 0))
        for _, _, wait in self._waiting:
            if wait.last_member == member:
                wait.last_member = 0
        return taken

    def _fail(self, taken: Taken, span: Span, hold: Hold, *, due_ns: int, last_member: int) -> None:
        self._release(*span, hold)
        _add(taken, *span)
        self._forget(*span)  # its number tells from now on
        taken.failed.append(span)
        if hold.policy.is_last(hold.attempt):
            taken.dead.append((*span, hold.attempt))
        else:
            self._wait(*span, Wait(due_ns, hold.attempt + 1, last_member))

    def _forget(self, first: int, last: int) -> None:
        if self._given_back:
            self._given_back.discard(first, last)

    # -- again ------------------------------------------------------------------------------------------------------

    def has_due(self, now_ns: int) -> bool:
        """Whether messages are to be delivered again now."""
        return bool(self._dues) and self._dues[0][0] <= now_ns

    def due(self, now_ns: int, *, rows_max: int) -> list[Counted]:
        """Messages to be delivered again now, taken out to be read; in the order of their seqs."""
        out: list[Counted] = []
        rows = 0
        while rows < rows_max and self.has_due(now_ns):
            _, _, first, last, wait = heapq.heappop(self._dues)
            parts = self._waiting.take(first, last, only=lambda other, mine=wait: other is mine)  # type: ignore[misc]
            for low, high, _ in parts:
                fits = min(high, low + (rows_max - rows) - 1)
                if low <= fits:
                    out.append((low, fits, wait.attempt))
                    rows += fits - low + 1
                if fits < high:
                    self._wait(max(low, fits + 1), high, wait)
        return sorted(out)

    def given_back(self, spans: Iterable[Counted]) -> list[Span]:
        """The parts that somebody had before, in a delivery that does not count."""
        if not self._given_back:
            return []
        return [part for first, last, _ in spans for part in self._given_back.overlap(first, last)]

    def again(self, spans: Iterable[Counted], *, due_ns: int) -> None:
        """Messages that were taken out, or just read, and reached nobody; the attempt has not begun."""
        for first, last, attempt in spans:
            self._wait(first, last, Wait(due_ns, attempt, 0))


def _add(taken: Taken, first: int, last: int) -> None:
    taken.spans.append((first, last))
    taken.rows += last - first + 1
