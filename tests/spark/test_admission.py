"""How much a micro-batch takes, and how it becomes tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from holdfast.spark.access import SegmentRef
from holdfast.spark.admission import NO_LIMITS, admit
from holdfast.spark.options import TASK_BYTES_DEFAULT, Limits
from holdfast.spark.planning import PIECE_EVENTS_MIN, Piece, tasks_of

MB = 1 << 20


def segment(channel: str, first: int, last: int, *, size: int = MB, committed: int = 0) -> SegmentRef:
    return SegmentRef(channel, first, first, last, size, 0, committed or first, 0)


def listing(*segments: SegmentRef) -> Callable[[str, int], Iterable[SegmentRef]]:
    return lambda channel, start: [s for s in segments if s.channel == channel and s.last_seq >= start]


TEN = [segment("t", first, first + 9) for first in range(1, 101, 10)]


def test_events_are_limited_exactly_inside_a_segment() -> None:
    assert admit({"t": 4}, {"t": 101}, Limits(events=25), segments=listing(*TEN)) == {"t": 29}


def test_segments_are_counted_also_when_only_a_part_is_left() -> None:
    limits = Limits(segments=2, size_bytes=0)
    assert admit({"t": 4}, {"t": 101}, limits, segments=listing(*TEN)) == {"t": 21}


def test_bytes_are_limited_by_the_share_of_rows() -> None:
    assert admit({"t": 1}, {"t": 101}, Limits(size_bytes=2 * MB + MB // 2), segments=listing(*TEN)) == {"t": 26}


def test_a_long_backlog_is_listed_only_as_far_as_it_is_taken() -> None:
    listed: list[int] = []

    def segments(channel: str, start: int) -> Iterable[SegmentRef]:
        for at in range(start, 10_001):
            listed.append(at)
            yield segment(channel, at, at)

    assert admit({"t": 1}, {"t": 10_001}, Limits(events=50), segments=segments) == {"t": 51}
    assert len(listed) == 51
    listed.clear()
    assert admit({"t": 1}, {"t": 10_001}, Limits(size_bytes=0, events=20_000), segments=segments) == {"t": 10_001}


def test_one_event_is_taken_however_small_the_limit() -> None:
    assert admit({"t": 1}, {"t": 101}, Limits(size_bytes=1), segments=listing(*TEN)) == {"t": 2}


def test_channels_take_turns_in_the_order_of_commits() -> None:
    segments = [segment("b", 1, 10, committed=1), segment("a", 1, 10, committed=11), segment("b", 11, 20, committed=21)]
    end = admit({"a": 1, "b": 1}, {"a": 11, "b": 21}, Limits(events=15), segments=listing(*segments))
    assert end == {"a": 6, "b": 11}
    assert list(end) == ["a", "b"]


def test_a_channel_that_is_new_starts_at_its_first_event() -> None:
    assert admit({"t": 101}, {"t": 101, "u": 1}, NO_LIMITS, segments=listing()) == {"t": 101}
    assert admit({"t": 101}, {"t": 101, "u": 9}, NO_LIMITS, segments=listing()) == {"t": 101, "u": 9}


def test_what_no_segment_holds_is_passed_over() -> None:
    assert admit({"t": 1}, {"t": 101}, Limits(events=500), segments=listing()) == {"t": 101}


@given(
    sizes=st.lists(st.tuples(st.integers(1, 100_000), st.integers(1, 300 * MB)), min_size=1, max_size=20),
    tasks_min=st.integers(1, 8),
)
def test_tasks_hold_every_event_once_and_are_about_equal(sizes: list[tuple[int, int]], tasks_min: int) -> None:
    pieces, first = [], 1
    for rows, size in sizes:
        pieces.append(Piece(segment("t", first, first + rows - 1, size=size), first, first + rows - 1))
        first += rows
    tasks = tasks_of(pieces, tasks_min=tasks_min)
    spans = [(part.first_seq, part.last_seq) for task in tasks for part in task.pieces]
    assert spans[0][0] == 1
    assert spans[-1][1] == first - 1
    assert all(after[0] == before[1] + 1 for before, after in pairwise(spans))
    assert all(task.pieces for task in tasks)
    shares = [sum(part.size_bytes for part in task.pieces) for task in tasks]
    planned = max(tasks_min, -(-sum(piece.size_bytes for piece in pieces) // TASK_BYTES_DEFAULT))
    least = max(-(-piece.size_bytes * PIECE_EVENTS_MIN // max(PIECE_EVENTS_MIN, rows_of(piece))) for piece in pieces)
    rounding = len(spans)
    assert max(shares) <= 2 * max(sum(shares) / planned, least) + rounding, "the share of a task, twice"


def rows_of(piece: Piece) -> int:
    return piece.last_seq - piece.first_seq + 1


def test_large_segments_are_cut_and_small_ones_packed() -> None:
    large = [Piece(segment("t", 1, 1_000_000, size=512 * MB), 1, 1_000_000)]
    assert [len(task.pieces) for task in tasks_of(large)] == [1, 1, 1, 1]
    small = [Piece(segment("t", at, at, size=MB), at, at) for at in range(1, 257)]
    assert [len(task.pieces) for task in tasks_of(small)] == [128, 128]
