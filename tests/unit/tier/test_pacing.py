"""The limit of bytes in a second."""

from __future__ import annotations

from holdfast.clock import NS_PER_S
from holdfast.tier.pacing import TokenBucket


def test_a_burst_of_one_second_goes_at_once_and_then_the_rate_holds() -> None:
    bucket = TokenBucket(1000, now_ns=0)
    waits = [bucket.wait_s(500, now_ns=0) for _ in range(6)]
    assert waits == [0.0, 0.0, 0.5, 1.0, 1.5, 2.0]


def test_a_pause_of_the_sender_saves_one_second_and_no_more() -> None:
    bucket = TokenBucket(1000, now_ns=0)
    later_ns = 60 * NS_PER_S
    assert [bucket.wait_s(1000, later_ns) for _ in range(3)] == [0.0, 0.0, 1.0]


def test_without_a_rate_nobody_waits() -> None:
    assert TokenBucket(0, now_ns=0).wait_s(1 << 40, now_ns=0) == 0.0
