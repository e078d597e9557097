"""How long producers wait for their answer: from when a frame has arrived to when its OK is sent.

Promise: of each connection one frame at a time is timed, so that a thousand small frames a millisecond cost what one
does. Counts are since the start; whoever compares two moments gets what happened between.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

BOUNDS_S = tuple(round(0.0001 * 1.5**step, 6) for step in range(33))
"""Upper ends of the classes, 0.1 ms to 43 s: two neighbours are half as much again, which is how true a quantile is."""


@dataclass(frozen=True, slots=True)
class LatencyStatistics:
    """How many waits were in each class of `BOUNDS_S`, and beyond the last."""

    counts: tuple[int, ...]
    sum_s: float


class Latencies:
    """A histogram. Written on the event loop."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS_S) + 1)
        self._sum_s = 0.0

    def note(self, seconds: float) -> None:
        """Somebody waited."""
        self._counts[bisect_left(BOUNDS_S, seconds)] += 1
        self._sum_s += seconds

    def statistics(self) -> LatencyStatistics:
        """A copy."""
        return LatencyStatistics(tuple(self._counts), self._sum_s)
