"""`IntervalSet` against a set of integers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.intervals import IntervalSet

HIGH = 60
ranges = st.tuples(st.integers(0, HIGH), st.integers(0, 12)).map(lambda drawn: (drawn[0], drawn[0] + drawn[1]))
changes = st.lists(st.tuples(st.sampled_from(("add", "discard")), ranges), max_size=40)


def both(steps: list[tuple[str, tuple[int, int]]]) -> tuple[IntervalSet, set[int]]:
    intervals, integers = IntervalSet(), set[int]()
    for step, (first, last) in steps:
        if step == "add":
            intervals.add(first, last)
            integers |= set(range(first, last + 1))
        else:
            intervals.discard(first, last)
            integers -= set(range(first, last + 1))
    return intervals, integers


@given(changes)
def test_any_changes_give_the_same_set_as_integers(steps: list[tuple[str, tuple[int, int]]]) -> None:
    intervals, integers = both(steps)
    assert {value for value in range(HIGH + 20) if value in intervals} == integers
    assert intervals.highest == max(integers, default=None)


@given(changes)
def test_ranges_are_sorted_disjoint_and_never_adjacent(steps: list[tuple[str, tuple[int, int]]]) -> None:
    listed = list(both(steps)[0])
    assert all(first <= last for first, last in listed)
    assert all(last + 1 < first for (_, last), (first, _) in pairwise(listed))


@given(changes)
def test_set_made_from_its_own_ranges_is_equal(steps: list[tuple[str, tuple[int, int]]]) -> None:
    intervals = both(steps)[0]
    assert IntervalSet(intervals) == intervals
    assert IntervalSet(reversed(list(intervals))) == intervals


@given(changes, ranges)
def test_missing_ranges_are_the_complement(steps: list[tuple[str, tuple[int, int]]], window: tuple[int, int]) -> None:
    intervals, integers = both(steps)
    first, last = window
    missing = [value for low, high in intervals.missing(first, last) for value in range(low, high + 1)]
    assert missing == [value for value in range(first, last + 1) if value not in integers]


@given(changes, st.integers(0, HIGH))
def test_end_of_run_is_the_last_integer_without_a_hole(steps: list[tuple[str, tuple[int, int]]], start: int) -> None:
    intervals, integers = both(steps)
    expected = start - 1
    while expected + 1 in integers:
        expected += 1
    assert intervals.end_of_run(start) == expected


@given(changes, ranges)
def test_overlap_and_count_are_those_of_the_integers(
    steps: list[tuple[str, tuple[int, int]]], window: tuple[int, int]
) -> None:
    intervals, integers = both(steps)
    inside = [value for value in range(window[0], window[1] + 1) if value in integers]
    assert [value for low, high in intervals.overlap(*window) for value in range(low, high + 1)] == inside
    assert intervals.count(*window) == len(inside)
    assert intervals.covers(*window) == (len(inside) == window[1] - window[0] + 1)


@given(changes, ranges)
def test_lowest_and_highest_missing_are_the_ends_of_the_complement(
    steps: list[tuple[str, tuple[int, int]]], window: tuple[int, int]
) -> None:
    intervals = both(steps)[0]
    missing = list(intervals.missing(*window))
    assert intervals.lowest_missing(*window) == (missing[0] if missing else None)
    assert intervals.highest_missing(*window) == (missing[-1] if missing else None)
