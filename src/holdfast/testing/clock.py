"""Time that moves only when told to.

Promise: `ManualClock` is a `holdfast.clock.Clock`; both clocks stand still between calls of `advance`, which moves them
together, and `jump_wall`, which moves only the wall clock, forth or back, as an operator or NTP would. Thread-safe.
"""

from __future__ import annotations

import threading

from holdfast.clock import NS_PER_S

START_WALL_NS = 1_700_000_000 * NS_PER_S
"""A moment in 2023, so that a wall time taken for a monotonic one is seen at once."""


class ManualClock:
    """Both clocks, moved by hand."""

    def __init__(self, *, wall_ns: int = START_WALL_NS, monotonic_ns: int = 0) -> None:
        self._lock = threading.Lock()
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def monotonic_ns(self) -> int:
        return self._monotonic_ns

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: {seconds} s; use jump_wall to set the wall clock back")
        passed_ns = round(seconds * NS_PER_S)
        with self._lock:
            self._wall_ns += passed_ns
            self._monotonic_ns += passed_ns

    def jump_wall(self, seconds: float) -> None:
        """Set the wall clock forth or back; the monotonic one does not notice."""
        with self._lock:
            self._wall_ns += round(seconds * NS_PER_S)
