"""Pauses between attempts: they double, they end at the longest, and chance spreads them."""

from __future__ import annotations

import random
from itertools import islice

import pytest

from holdfast.model.backoff import Backoff


class Still(random.Random):
    """Chance that always says the same."""

    def __init__(self, value: float) -> None:
        super().__init__(0)
        self._value = value

    def random(self) -> float:
        return self._value


def test_pauses_double_up_to_the_longest() -> None:
    assert list(islice(Backoff(0.1, 0.5).pauses(Still(0)), 5)) == pytest.approx([0.1, 0.2, 0.4, 0.5, 0.5])


@pytest.mark.parametrize(("spread", "low", "high"), [(1.0, 2.0, 4.0), (-0.5, 1.0, 2.0), (0.0, 2.0, 2.0)])
def test_chance_changes_a_pause_within_its_spread(spread: float, low: float, high: float) -> None:
    backoff, chance = Backoff(1.0, 60.0, spread), random.Random(3)
    found = [backoff.pause_s(2, chance) for _ in range(500)]
    assert low <= min(found) <= max(found) <= high
    assert spread == 0 or max(found) - min(found) > 0.9 * (high - low)


def test_any_number_of_failures_ends_at_the_longest_pause() -> None:
    assert Backoff(0.001, 5.0).pause_s(1_000_000, Still(0)) == 5.0
