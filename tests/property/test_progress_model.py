"""Marks, gap sets and what is free, against sets of integers that say the same in one line."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from holdfast.store.subscribers.progress import Progress, bytes_owed

LAST = 40

Steps = list[tuple[str, int, int]]


@dataclass
class Model:
    """The same as `Progress`, slow and obvious."""

    start: int
    confirmed: set[int] = field(default_factory=set)
    claimed: set[int] = field(default_factory=set)

    @property
    def mark(self) -> int:
        """The last of the run that begins at the start."""
        mark = self.start - 1
        while mark + 1 in self.confirmed:
            mark += 1
        return mark

    @property
    def gaps(self) -> set[int]:
        """What is missing below the highest confirmed."""
        return set(range(self.mark + 1, max(self.confirmed, default=0))) - self.confirmed

    def step(self, what: str, first: int, last: int) -> None:
        """Do one thing."""
        span = set(range(first, last + 1))
        if what == "settle":
            self.confirmed |= {seq for seq in span if seq >= self.start}
            self.claimed |= {seq for seq in span if seq >= self.start}
        elif what == "claim":
            self.claimed |= span
        else:
            self.claimed -= span - self.confirmed

    def free(self, last: int) -> set[int]:
        """What may be handed out."""
        return set(range(self.start, last + 1)) - self.claimed


spans = st.tuples(st.integers(1, LAST), st.integers(1, LAST)).map(sorted)
steps = st.lists(
    st.builds(lambda what, span: (what, span[0], span[1]), st.sampled_from(["settle", "claim", "unclaim"]), spans)
)


def integers(ranges: list[tuple[int, int]]) -> set[int]:
    """Ranges as a set."""
    return {seq for first, last in ranges for seq in range(first, last + 1)}


def run(start: int, done: Steps) -> tuple[Progress, Model]:
    """Both, after the same steps."""
    progress, model = Progress(start), Model(start)
    for what, first, last in done:
        getattr(progress, what)(first, last)
        model.step(what, first, last)
    return progress, model


@given(st.integers(1, LAST), steps)
def test_mark_and_gap_set_are_those_of_a_set_of_integers(start: int, done: Steps) -> None:
    progress, model = run(start, done)
    assert progress.mark == model.mark
    assert integers(progress.gaps()) == model.gaps
    assert integers(list(progress.confirmed)) == model.confirmed
    assert progress.unconfirmed(LAST) == len(set(range(start, LAST + 1)) - model.confirmed)


@given(st.integers(1, LAST), steps, spans)
def test_what_is_owed_is_what_was_not_confirmed_since_the_start(start: int, done: Steps, span: list[int]) -> None:
    progress, model = run(start, done)
    expected = set(range(max(start, span[0]), span[1] + 1)) - model.confirmed
    assert integers(progress.owed(*span)) == expected
    assert progress.is_settled(*span) == (not expected)


@given(st.integers(1, LAST), steps)
def test_mark_never_passes_a_hole_and_never_moves_back(start: int, done: Steps) -> None:
    progress = Progress(start)
    mark = start - 1
    for what, first, last in done:
        getattr(progress, what)(first, last)
        assert progress.mark >= mark
        mark = progress.mark
        assert progress.is_settled(start, mark)
        assert mark + 1 not in progress.confirmed


@given(st.integers(1, LAST), steps, st.integers(0, LAST), st.booleans())
def test_next_free_range_is_the_lowest_or_highest_that_is_not_claimed(
    start: int, done: Steps, last: int, newest_first: bool
) -> None:
    progress, model = run(start, done)
    free = model.free(last)
    found = progress.next_free(last, newest_first=newest_first)
    if not free:
        assert found is None
        return
    assert found is not None
    assert set(range(found[0], found[1] + 1)) <= free
    edge = max(free) if newest_first else min(free)
    assert edge in found
    beyond = found[0] - 1 if newest_first else found[1] + 1
    assert beyond not in free, "the range is as long as it can be"


@given(st.integers(1, LAST), steps)
def test_confirmed_events_are_never_free_again(start: int, done: Steps) -> None:
    progress, model = run(start, done)
    assert model.confirmed <= integers(list(progress.claimed))


@given(st.integers(1, LAST), steps)
def test_progress_rebuilt_from_its_confirmed_ranges_is_the_same(start: int, done: Steps) -> None:
    progress, _ = run(start, done)
    again = Progress(start)
    for first, last in progress.confirmed:
        again.settle(first, last)
    assert (again.mark, again.gaps()) == (progress.mark, progress.gaps())


@given(st.lists(spans, max_size=5), st.integers(1, 8), st.integers(1, 1000))
def test_bytes_owed_add_up_over_whole_and_partial_segments(owed: list[list[int]], rows: int, size: int) -> None:
    segments = [(first, first + rows - 1, size) for first in range(1, LAST, rows)]
    seqs = integers([(first, last) for first, last in owed])
    expected = sum(size * len(seqs & set(range(first, last + 1))) // rows for first, last, _ in segments)
    assert bytes_owed([(first, last) for first, last in owed], segments) == expected
