"""`IntervalSet` by example; `tests/property/test_intervals.py` compares it with a set of integers."""

from __future__ import annotations

import pytest

from holdfast.model.intervals import IntervalSet


def test_producer_that_counts_up_costs_one_range() -> None:
    seen = IntervalSet()
    for number in range(10_000):
        seen.add(number, number)
    assert list(seen) == [(0, 9999)]
    assert len(seen) == 1


def test_ranges_that_touch_become_one() -> None:
    assert list(IntervalSet([(5, 6), (1, 2), (3, 4)])) == [(1, 6)]


def test_range_in_the_middle_joins_its_neighbours() -> None:
    assert list(IntervalSet([(1, 2), (10, 12), (20, 21), (2, 19)])) == [(1, 21)]


def test_range_behind_the_last_one_keeps_its_distance() -> None:
    assert list(IntervalSet([(1, 2), (4, 4)])) == [(1, 2), (4, 4)]


def test_taking_out_of_the_middle_leaves_two_ranges() -> None:
    seen = IntervalSet([(1, 10)])
    seen.discard(4, 6)
    assert list(seen) == [(1, 3), (7, 10)]
    assert 5 not in seen


@pytest.mark.parametrize("method", ["add", "discard"])
def test_range_upside_down_is_refused(method: str) -> None:
    with pytest.raises(ValueError, match=r"2\.\.1 is upside down"):
        getattr(IntervalSet(), method)(2, 1)


def test_empty_set_has_no_highest_number() -> None:
    assert IntervalSet().highest is None
    assert list(IntervalSet().missing(3, 5)) == [(3, 5)]


def test_set_shows_its_ranges_and_is_no_key() -> None:
    assert repr(IntervalSet([(1, 2)])) == "IntervalSet([(1, 2)])"
    assert IntervalSet() != "nothing"
    with pytest.raises(TypeError):
        hash(IntervalSet())
