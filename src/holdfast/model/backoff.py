"""How long to wait before the next attempt, for every part that tries again. Pure: chance is an argument.

Pauses double from `first_s` up to `most_s`. `spread` is how much chance changes each of them, so that many that lost
one server do not come back to it at once: 1 makes a pause up to twice as long, -0.5 up to half as short.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

_DOUBLINGS_MAX = 60  # far beyond any pause that means something, and still a number that a float holds


@dataclass(frozen=True, slots=True)
class Backoff:
    """The pauses between attempts."""

    first_s: float
    most_s: float
    spread: float = 1.0

    def pause_s(self, failures: int, chance: random.Random) -> float:
        """The pause after so many failures in a row, from 1."""
        doubled_s = self.first_s * 2 ** min(failures - 1, _DOUBLINGS_MAX)
        return self.spread_s(min(doubled_s, self.most_s), chance)

    def spread_s(self, pause_s: float, chance: random.Random) -> float:
        """A pause of another length, changed by chance in the same way."""
        return pause_s * (1 + self.spread * chance.random())

    def pauses(self, chance: random.Random) -> Iterator[float]:
        """One pause after the other, for ever."""
        return (self.pause_s(failures, chance) for failures in count(1))
