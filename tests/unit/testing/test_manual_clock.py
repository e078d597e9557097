"""`ManualClock`: time that moves only when told to."""

from __future__ import annotations

import pytest

from holdfast.testing import ManualClock


def test_time_stands_still_until_it_is_advanced() -> None:
    clock = ManualClock(wall_ns=1_000, monotonic_ns=5)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (1_000, 5)
    clock.advance(0.25)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (250_001_000, 250_000_005)


def test_a_jump_moves_the_wall_clock_alone() -> None:
    clock = ManualClock(wall_ns=10_000_000_000, monotonic_ns=5)
    clock.jump_wall(-2)
    assert (clock.wall_ns(), clock.monotonic_ns()) == (8_000_000_000, 5)


def test_time_refuses_to_be_advanced_backwards() -> None:
    with pytest.raises(ValueError, match="backwards"):
        ManualClock().advance(-1)
