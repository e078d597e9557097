"""Telling a frame that ends connections from a server that is ill.

A strike is a refusal to be retried, or a connection that a server closed with a complaint. Strikes count for the frame
that was first in line. So many of them, and spread over enough time that a restarting server is not the reason, make
the frame the cause. An acceptance at or beyond it takes all strikes back. Pure.
"""

from __future__ import annotations

from holdfast.clock import NS_PER_S


class PoisonDetector:
    """Counts the strikes of one frame at a time."""

    def __init__(self, *, strikes_max: int, window_ms: int) -> None:
        self._strikes_max = strikes_max
        self._window_ns = window_ms * NS_PER_S // 1000
        self._fsn = -1
        self._first_at_ns = 0
        self.strikes = 0

    def strike(self, fsn: int, *, now_ns: int) -> bool:
        """One more; True when the frame is to be taken for the cause."""
        if fsn != self._fsn:
            self._fsn, self.strikes, self._first_at_ns = fsn, 0, now_ns
        self.strikes += 1
        return self.strikes >= self._strikes_max and now_ns - self._first_at_ns >= self._window_ns

    def accepted(self, fsn: int) -> None:
        """The server took this frame and all before it."""
        if self.strikes and fsn >= self._fsn:
            self._fsn, self.strikes = -1, 0
