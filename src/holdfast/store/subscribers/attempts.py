"""How often the delivery of events failed, for one subscriber and channel. Pure.

A failed attempt is a nack: the event was handed out and not confirmed. Counts are kept as one set of ranges per level:
level n has the events with at least n failures. So a thousand events that fail together cost one range, and a single
event that fails for ever costs one range per failure, up to `COUNT_MAX`, where counting stops.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.intervals import IntervalSet

COUNT_MAX = 1000
"""Failures beyond this are not told apart: bounds what one event costs."""
RANGES_MAX = 100_000
"""Ranges of all levels; beyond it new failures are not counted, so that memory and checkpoints stay small."""

Counted = tuple[int, int, int]
"""First and last seq, and a count."""


class Attempts:
    """Failures of events that are still owed."""

    __slots__ = ("_levels",)

    def __init__(self, counted: Iterable[Counted] = ()) -> None:
        self._levels: list[IntervalSet] = []
        for first, last, count in counted:
            for level in range(min(count, COUNT_MAX)):
                self._level(level).add(first, last)

    def __bool__(self) -> bool:
        return bool(self._levels)

    def fail(self, first: int, last: int) -> None:
        """One more failure of each event of the range."""
        if sum(map(len, self._levels)) >= RANGES_MAX:
            return
        rising, level = [(first, last)], 0
        while rising and level < COUNT_MAX:
            here = self._level(level)
            above = [part for span in rising for part in here.overlap(*span)]
            for span in rising:
                here.add(*span)
            rising, level = above, level + 1

    def settle(self, first: int, last: int) -> None:
        """The events are done with."""
        if first <= last:
            for level in self._levels:
                level.discard(first, last)
            while self._levels and not self._levels[-1]:
                self._levels.pop()

    def split(self, first: int, last: int) -> list[Counted]:
        """The range in parts of one count each, in order."""
        parts = [(first, last, 0)]
        for count, level in enumerate(self._levels, start=1):
            inside = level.overlap(first, last)
            if not inside:
                break
            parts = [part for below in parts for part in _split(below, inside, count)]
        return parts

    def counted(self) -> tuple[Counted, ...]:
        """All events with failures, with their counts."""
        if not self._levels:
            return ()
        return tuple(part for first, last in self._levels[0] for part in self.split(first, last))

    def _level(self, level: int) -> IntervalSet:
        if level == len(self._levels):
            self._levels.append(IntervalSet())
        return self._levels[level]


def _split(part: Counted, inside: list[tuple[int, int]], count: int) -> list[Counted]:
    """A part in which some events have a higher count."""
    first, last, below = part
    cursor, out = first, []
    for low, high in inside:
        start, end = max(low, first), min(high, last)
        if start > end:
            continue
        if cursor < start:
            out.append((cursor, start - 1, below))
        out.append((start, end, count))
        cursor = end + 1
    if cursor <= last:
        out.append((cursor, last, below))
    return out
