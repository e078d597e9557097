"""A time of day for retention that does not believe jumps of the wall clock.

Within a process, time passes as the monotonic clock says; the wall clock is followed only while the two agree. A jump
is told (`jumps`, a log event) and ignored, until the wall clock comes back or the process restarts.

At a restart the wall clock must be believed, but not blindly: if it is behind the last time known, that one counts; if
it is more than a day ahead, `holding` is true for an hour: at most one segment per channel goes by age meanwhile, so
that a person who reads the alarm can act.
"""

from __future__ import annotations

from holdfast.clock import NS_PER_S, Clock
from holdfast.telemetry import event

TOLERANCE_NS = 60 * NS_PER_S
"""Slewing and leap seconds stay far below."""
LONG_GAP_NS = 24 * 3600 * NS_PER_S
HOLD_NS = 3600 * NS_PER_S


class TrustedTime:
    """Used by one thread."""

    def __init__(self, clock: Clock, *, last_known_ns: int) -> None:
        self._clock = clock
        wall_ns, self._monotonic_ns = clock.wall_ns(), clock.monotonic_ns()
        self._now_ns = max(wall_ns, last_known_ns)
        self._agrees = wall_ns >= last_known_ns
        self.jumps = 0
        self._hold_until_ns = self._monotonic_ns
        if not self._agrees:
            self._alarm(wall_ns, last_known_ns)
        elif last_known_ns and wall_ns - last_known_ns > LONG_GAP_NS:
            self._hold_until_ns += HOLD_NS
            self._alarm(wall_ns, last_known_ns)

    def now_ns(self) -> int:
        """Nanoseconds since 1970 UTC, never going back and never jumping ahead."""
        monotonic_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
        expected_ns = self._now_ns + monotonic_ns - self._monotonic_ns
        agrees = abs(wall_ns - expected_ns) <= TOLERANCE_NS
        if self._agrees and not agrees:
            self._alarm(wall_ns, expected_ns)
        self._agrees = agrees
        self._now_ns = max(self._now_ns, wall_ns if agrees else expected_ns)
        self._monotonic_ns = monotonic_ns
        return self._now_ns

    @property
    def holding(self) -> bool:
        """Whether deleting by age goes one step at a time."""
        return self._clock.monotonic_ns() < self._hold_until_ns

    def _alarm(self, wall_ns: int, expected_ns: int) -> None:
        self.jumps += 1
        event("store.retention.clock_jump", wall_ns=wall_ns, expected_ns=expected_ns)
