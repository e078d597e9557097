"""A time of day for retention that does not believe jumps of the wall clock.

Within a process, time passes as the monotonic clock says; the wall clock is followed only while the two agree. A jump
is told (`jumps`, a log event) and ignored, until the wall clock comes back or the process restarts.

At a restart the wall clock must be believed, but not blindly: if it is behind the last time known, that one counts; if
it is more than a day ahead, `holding` is true for an hour, in which nothing goes by age, so that a person who reads the
alarm can act. The time of such an hour is not written down as known, so a process that restarts again and again does
not come to believe it that way.

Promise: what is stamped with `stamp_ns` is never taken for older than it is, whatever the wall clock did before, then
or since: the stamp is the later of wall clock and trusted time, and trusted time runs ahead of neither for long. Age is
measured late rather than early: an event stamped by a clock that was ahead stays until its time has come.

Thread-safe.
"""

from __future__ import annotations

import threading

from holdfast.clock import NS_PER_S, Clock
from holdfast.telemetry import event

TOLERANCE_NS = 60 * NS_PER_S
"""Slewing and leap seconds stay far below."""
LONG_GAP_NS = 24 * 3600 * NS_PER_S
HOLD_NS = 3600 * NS_PER_S


class TrustedTime:
    """One for a store, for whoever stamps and for whoever compares."""

    def __init__(self, clock: Clock, *, last_known_ns: int) -> None:
        self._clock = clock
        self._lock = threading.Lock()
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
        with self._lock:
            monotonic_ns, wall_ns = self._clock.monotonic_ns(), self._clock.wall_ns()
            expected_ns = self._now_ns + monotonic_ns - self._monotonic_ns
            agrees = abs(wall_ns - expected_ns) <= TOLERANCE_NS
            if self._agrees and not agrees:
                self._alarm(wall_ns, expected_ns)
            self._agrees = agrees
            self._now_ns = max(self._now_ns, wall_ns if agrees else expected_ns)
            self._monotonic_ns = monotonic_ns
            return self._now_ns

    def stamp_ns(self) -> int:
        """The time to write beside what comes in now."""
        return max(self.now_ns(), self._clock.wall_ns())

    @property
    def holding(self) -> bool:
        """Whether nothing is to be deleted by age for now."""
        return self._clock.monotonic_ns() < self._hold_until_ns

    def _alarm(self, wall_ns: int, expected_ns: int) -> None:
        self.jumps += 1
        event("store.retention.clock_jump", wall_ns=wall_ns, expected_ns=expected_ns)
