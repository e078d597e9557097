"""A token bucket: so much per second on average, one second's worth at once.

Promise: taking always succeeds and may leave a debt; the answer is how long to wait until it is paid. So a piece
that is larger than the bucket gets through, and is paid for afterwards. Time is the monotonic clock's.
"""

from __future__ import annotations

from holdfast.clock import NS_PER_S, Clock


class Bucket:
    """One rate. Not thread-safe: its owner has a lock, or one thread."""

    __slots__ = ("_at_ns", "_burst", "_clock", "_level", "rate")

    def __init__(self, clock: Clock, rate: int, *, burst: float = 0) -> None:
        """`rate` per second; 0 is without limit. `burst` is how much may come at once, a second's worth if 0."""
        self.rate = rate
        self._burst = burst or float(rate)
        self._clock = clock
        self._level = self._burst
        self._at_ns = clock.monotonic_ns()

    def take(self, count: float) -> float:
        """Take; returns the seconds to wait before taking again."""
        if self.rate == 0:
            return 0.0
        self._fill()
        self._level -= count
        return max(0.0, -self._level / self.rate)

    def try_take(self, count: float = 1.0) -> bool:
        """Take only if there is enough."""
        if self.rate == 0:
            return True
        self._fill()
        if self._level < count:
            return False
        self._level -= count
        return True

    def _fill(self) -> None:
        now_ns = self._clock.monotonic_ns()
        self._level = min(self._burst, self._level + (now_ns - self._at_ns) * self.rate / NS_PER_S)
        self._at_ns = now_ns
