"""Trying again until it works, and when it becomes an alarm."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from holdfast.clock import NS_PER_S
from holdfast.errors import Closed, DamagedObject, TierRefused, TierUnavailable
from holdfast.model.backoff import Backoff
from holdfast.testing import ManualClock
from holdfast.tier.persistence import Persistence

AWAY = TierUnavailable(url="u", action="a", reason="away")
NO = TierRefused(url="u", reason="no")
WRONG = DamagedObject(url="u", key="k", reason="wrong")


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.persistence = Persistence(
            self.clock, random.Random(1), backoff=Backoff(1, 8, -0.5), alarm_after_ns=60 * NS_PER_S, pause=self._pause
        )
        self.alarms: list[str | None] = []

    def _pause(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        self.alarms.append(self.persistence.alarm)
        return self.persistence.closed

    def failing(self, times: int, error: Exception) -> Callable[[], str]:
        left = [error] * times

        def action() -> str:
            if left:
                raise left.pop()
            return "done"

        return action


@pytest.mark.parametrize("error", [AWAY, NO, WRONG])
def test_an_action_is_repeated_until_it_works(error: Exception) -> None:
    bench = Bench()
    assert bench.persistence.call(bench.failing(50, error), "try") == "done"
    assert bench.persistence.failures == 50
    assert bench.persistence.trouble is None


def test_trouble_that_lasts_becomes_an_alarm_and_ends_with_success() -> None:
    bench = Bench()
    bench.persistence.call(bench.failing(30, AWAY), "try")
    assert bench.alarms[0] is None
    assert "try: tier u: a: away" in (bench.alarms[-1] or "")
    assert bench.persistence.alarm is None


def test_who_waits_learns_of_a_refusal_at_once() -> None:
    bench = Bench()
    with pytest.raises(TierRefused):
        bench.persistence.call(bench.failing(1, NO), "try", limit_s=30)
    assert bench.persistence.failures == 0


def test_who_waits_gets_an_outage_told_when_the_time_is_up() -> None:
    bench = Bench()
    assert bench.persistence.call(bench.failing(3, AWAY), "try", limit_s=30) == "done"
    with pytest.raises(TierUnavailable):
        bench.persistence.call(bench.failing(1000, AWAY), "try", limit_s=30)
    assert bench.persistence.trouble is None  # nobody goes on trying, so nothing of it becomes an alarm


def test_garbled_bytes_are_asked_for_again_a_few_times() -> None:
    bench = Bench()
    assert bench.persistence.call(bench.failing(3, WRONG), "try", limit_s=3600) == "done"
    with pytest.raises(DamagedObject):
        bench.persistence.call(bench.failing(4, WRONG), "try", limit_s=3600)


def test_closing_ends_whoever_is_trying() -> None:
    bench = Bench()

    def action() -> None:
        bench.persistence.close()
        raise AWAY

    with pytest.raises(Closed):
        bench.persistence.call(action, "try")
    with pytest.raises(Closed):
        bench.persistence.call(lambda: None, "try")


def test_other_errors_are_not_repeated() -> None:
    bench = Bench()
    with pytest.raises(ZeroDivisionError):
        bench.persistence.call(bench.failing(1, ZeroDivisionError()), "try")
