"""How far one subscriber is in one channel: high-water mark, gap set, and what may be handed out next. Pure.

    start          mark                 highest confirmed            published
      |  confirmed  |  gap  | confirmed | gap |  confirmed |   not read   |
      +-------------+-------+-----------+-----+------------+--------------+

- The **mark** is the highest seq such that everything from `start` to it is confirmed (acked, dropped or rejected). It
  never passes a hole and never moves back (G7).
- The **gap set** is what is missing between the mark and the highest confirmed seq.
- **Claimed** is what must not be handed out: confirmed, leased, or waiting for its time after a nack.
- **Attempts** are the failed deliveries of events that are still owed.
- **Handed** are owed events that were handed out over the network at some time; those of them **in flight** have no
  answer yet. A process that dies leaves them in flight: then the attempt has failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum

from holdfast.model.intervals import IntervalSet
from holdfast.store.subscribers.attempts import Attempts, Counted


class Outcome(IntEnum):
    """What became of events for one subscriber. The numbers are those of ack.log."""

    ACK = 1
    NACK = 2
    DROPPED = 3
    REJECTED = 4
    HANDED = 5
    """On its way to a consumer; not an answer."""
    RETURNED = 6
    """Given back in order and not tried: as if it had not been handed out, but it was."""

    @property
    def settles(self) -> bool:
        """Whether the events are done with."""
        return self in (Outcome.ACK, Outcome.DROPPED, Outcome.REJECTED)

    @property
    def is_answer(self) -> bool:
        """Whether somebody said what became of the events."""
        return self.settles or self is Outcome.NACK


def bytes_owed(owed: Iterable[tuple[int, int]], segments: Iterable[tuple[int, int, int]]) -> int:
    """What owed events take in segments, given as (first seq, last seq, bytes); a part of one counts by its rows."""
    ranges = IntervalSet(owed)
    return sum(size * ranges.count(first, last) // (last - first + 1) for first, last, size in segments)


class Progress:
    """One subscriber, one channel."""

    __slots__ = ("attempts", "claimed", "confirmed", "flying", "handed", "start_seq")

    def __init__(
        self,
        start_seq: int,
        confirmed: IntervalSet | None = None,
        *,
        attempts: Iterable[Counted] = (),
        handed: Iterable[tuple[int, int]] = (),
        flying: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.start_seq = start_seq
        self.confirmed = confirmed if confirmed is not None else IntervalSet()
        self.claimed = IntervalSet(self.confirmed)
        self.attempts = Attempts(attempts)
        self.handed = IntervalSet(handed)
        self.flying = IntervalSet(flying)

    @property
    def mark(self) -> int:
        """The high-water mark; one below the start when nothing is confirmed."""
        return self.confirmed.end_of_run(self.start_seq)

    def gaps(self) -> list[tuple[int, int]]:
        """The gap set, as ranges."""
        highest = self.confirmed.highest
        return [] if highest is None else list(self.confirmed.missing(self.mark + 1, highest))

    def settle(self, first_seq: int, last_seq: int) -> None:
        """Events are acked, dropped or rejected. Those before the start do not concern this subscriber."""
        first_seq = max(first_seq, self.start_seq)
        if first_seq <= last_seq:
            self.confirmed.add(first_seq, last_seq)
            self.claimed.add(first_seq, last_seq)
            self.attempts.settle(first_seq, last_seq)
            self.handed.discard(first_seq, last_seq)
            self.flying.discard(first_seq, last_seq)

    def take(self, outcome: Outcome, first_seq: int, last_seq: int) -> None:
        """An outcome takes effect."""
        if outcome.settles:
            self.settle(first_seq, last_seq)
            return
        self.flying.discard(first_seq, last_seq)
        for first, last in self.owed(first_seq, last_seq):
            self.handed.add(first, last)
            if outcome is Outcome.HANDED:
                self.flying.add(first, last)
            elif outcome is Outcome.NACK:
                self.attempts.fail(first, last)

    def crash(self) -> bool:
        """The process died: what was in flight has failed. Whether anything was."""
        flying = list(self.flying)
        for first, last in flying:
            self.take(Outcome.NACK, first, last)
        return bool(flying)

    def is_settled(self, first_seq: int, last_seq: int) -> bool:
        """Whether nothing of the range is owed to this subscriber."""
        return self.confirmed.covers(max(first_seq, self.start_seq), last_seq)

    def owed(self, first_seq: int, last_seq: int) -> list[tuple[int, int]]:
        """The parts of the range that are owed to this subscriber."""
        return list(self.confirmed.missing(max(first_seq, self.start_seq), last_seq))

    def claim(self, first_seq: int, last_seq: int) -> None:
        """Do not hand these out again for now."""
        self.claimed.add(first_seq, last_seq)

    def unclaim(self, first_seq: int, last_seq: int) -> None:
        """Hand these out again, except what was confirmed meanwhile."""
        self.claimed.discard(first_seq, last_seq)
        for first, last in self.confirmed.overlap(first_seq, last_seq):
            self.claimed.add(first, last)

    def next_free(self, last_seq: int, *, newest_first: bool) -> tuple[int, int] | None:
        """The next range up to `last_seq` that may be handed out."""
        if newest_first:
            return self.claimed.highest_missing(self.start_seq, last_seq)
        return self.claimed.lowest_missing(self.start_seq, last_seq)

    def unconfirmed(self, last_seq: int) -> int:
        """How many events up to `last_seq` are owed."""
        return sum(last - first + 1 for first, last in self.confirmed.missing(self.start_seq, last_seq))
