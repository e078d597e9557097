"""When to try again, and how fast to send. Pure: time and chance are arguments.

`Backoff` doubles its pause from `first_s` to `most_s`, each shortened by chance up to a half, so that several servers
that lost one store do not come back to it at once. `TokenBucket` says how long to wait before so many bytes may go.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.clock import NS_PER_S


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between attempts."""

    first_s: float = 0.1
    most_s: float = 30.0

    def pauses(self, chance: random.Random) -> Iterator[float]:
        """One pause after the other, for ever."""
        pause_s = self.first_s
        while True:
            yield pause_s * (1 - chance.random() / 2)
            pause_s = min(self.most_s, pause_s * 2)


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
