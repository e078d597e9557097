"""How long a server or an object store that is away is waited for, and what ends the wait."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.errors import HoldfastError, ServerAway, TierUnavailable
from holdfast.spark.waiting import TELL_EVERY_S, Patience
from holdfast.testing import ManualClock

SERVER = ServerAway(addr="http://h:1", reason="refused", waited_s=1.0)
TIER = TierUnavailable(url="s3://b", action="list manifest", reason="refused")


class Away:
    """A call that fails some times before it answers; each attempt takes time."""

    def __init__(self, clock: ManualClock, error: HoldfastError, *, times: int, each_s: float) -> None:
        self._clock, self._error, self._left, self._each_s = clock, error, times, each_s

    def __call__(self) -> str:
        self._clock.advance(self._each_s)
        if self._left:
            self._left -= 1
            raise self._error
        return "answered"


@pytest.mark.parametrize("error", [SERVER, TIER])
def test_patience_without_an_end_outlasts_any_outage_and_says_so_now_and_then(
    error: HoldfastError, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    call = Away(clock, error, times=5, each_s=TELL_EVERY_S / 2)
    assert Patience(float("inf"), clock=clock).spend(call) == "answered"
    assert len([record for record in caplog.records if "spark.server.away" in record.message]) == 3
    day = Away(clock, error, times=2, each_s=24 * 3600)
    assert Patience(float("inf"), clock=clock).spend(day) == "answered"


def test_patience_with_an_end_raises_what_came_last_with_the_time_that_it_waited() -> None:
    clock = ManualClock()
    with pytest.raises(ServerAway, match=r"does not answer after 60\.0 s: refused"):
        Patience(60.0, clock=clock).spend(Away(clock, SERVER, times=3, each_s=30.0))
    with pytest.raises(TierUnavailable, match="list manifest"):
        Patience(60.0, clock=clock).spend(Away(clock, TIER, times=3, each_s=30.0))


def test_another_error_is_not_waited_for() -> None:
    clock = ManualClock()
    with pytest.raises(HoldfastError, match="no such thing"):
        Patience(float("inf"), clock=clock).spend(Away(clock, HoldfastError("no such thing"), times=1, each_s=0.0))


WAITS = """
from holdfast.errors import ServerAway
from holdfast.spark.waiting import Patience
def call():
    print("asked", flush=True)
    raise ServerAway(addr="http://h:1", reason="refused", waited_s=0)
try:
    Patience(float("inf")).spend(call)
except ServerAway:
    print("gave up", flush=True)
"""
STARTS = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"


def test_a_process_whose_parent_is_dead_does_not_wait_for_ever() -> None:
    parent = subprocess.Popen([sys.executable, "-c", STARTS, WAITS], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        assert parent.stdout.readline() == "asked\n"
        parent.kill()
        parent.wait()
        rest = parent.stdout.read().split("\n")  # ends with the last process that could write to it
    assert rest[-2:] == ["gave up", ""]
