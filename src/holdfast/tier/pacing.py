"""How fast to send. Pure: time is an argument. (When to try again is `holdfast.model.backoff`.)"""

from __future__ import annotations

from holdfast.clock import NS_PER_S


class TokenBucket:
    """At most `rate` bytes in a second over time; one burst of a second."""

    def __init__(self, rate_bytes_per_s: int, now_ns: int) -> None:
        """A rate of 0 is no limit."""
        self._rate = rate_bytes_per_s
        self._free_at_ns = now_ns

    def wait_s(self, size_bytes: int, now_ns: int) -> float:
        """Count the bytes as sent; how long to wait first."""
        if not self._rate:
            return 0.0
        start_ns = max(self._free_at_ns, now_ns - NS_PER_S)
        self._free_at_ns = start_ns + size_bytes * NS_PER_S // self._rate
        return max(0.0, (self._free_at_ns - now_ns) / NS_PER_S - 1)
