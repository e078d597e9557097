"""The judge of the soak is judged: what goes wrong with one event of a frame is named, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from holdfast.testing.history import HistoryBroken, Kind
from tests.faults.wholeframes import UNKNOWN_SESSION, WholeFrames

ROWS = 10
LIFE = 1000
"""Numbers that a process of a producer has to itself."""


class Run:
    """Frames of one producer, each an argument by its number, in the order in which the channel has them."""

    def __init__(self) -> None:
        self.frames = WholeFrames("soak", "reader", ROWS)
        self.published = 0

    def deliver(
        self, first_seq: int, *frames: int, rows: slice = slice(None), again: bool = False, session: int = 1
    ) -> None:
        numbers = np.concatenate([np.arange(frame * ROWS, (frame + 1) * ROWS) for frame in frames])[rows]
        first = first_seq + (rows.start or 0)
        ranges = ((first, first + len(numbers) - 1),)
        self.frames.deliver(np.zeros(len(numbers), np.int64), numbers, ranges, again=again, session=session)

    def kinds(self, *, published: int = 3) -> set[Kind]:
        """What is wrong, if so many frames were published."""
        try:
            self.frames.judge({0: [(0, published * ROWS - 1)]}, LIFE)
        except HistoryBroken as broken:
            return {finding.kind for finding in broken.findings}
        return set()


def run_of(*deliveries: tuple[int, Sequence[int]]) -> Run:
    run = Run()
    for first_seq, frames in deliveries:
        run.deliver(first_seq, *frames)
    return run


def test_frames_that_come_in_parts_and_again_pass() -> None:
    run = Run()
    run.deliver(1, 0, 1, 2, rows=slice(0, 15))
    run.frames.ack([(1, 15)])
    run.frames.mark(15)
    run.deliver(1, 0, 1, 2, rows=slice(5, 15), again=True)
    run.deliver(1, 0, 1, 2, rows=slice(15, 30))
    run.deliver(1, 0, 1, 2, session=2)
    run.deliver(1, 0, 1, 2, rows=slice(0, 25), session=UNKNOWN_SESSION)
    run.frames.ack([(16, 30)])
    run.frames.settle([(1, 30)])
    run.frames.mark(30)
    run.frames.evict(25)
    assert run.kinds() == set()


def test_frame_that_never_came_whole_is_lost() -> None:
    run = run_of((1, [0, 1]))
    run.deliver(21, 2, rows=slice(0, ROWS - 1))
    assert run.kinds() == {Kind.LOST}
    assert run.kinds(published=2) == set()


def test_frame_that_was_sent_and_never_called_published_may_come() -> None:
    assert run_of((1, [0, 1, 2, 3])).kinds(published=2) == set()
    assert run_of((1, [0, 1, 3])).kinds(published=2) == {Kind.PHANTOM}


def test_event_in_the_middle_of_another_frame_is_seen_at_once() -> None:
    with pytest.raises(AssertionError, match="in the middle of a frame"):
        run_of((2, [0]))


def test_frames_in_another_order_than_they_were_sent_are_named() -> None:
    assert run_of((1, [0, 2, 1])).kinds() == {Kind.REORDER}


def test_frame_at_two_places_and_two_frames_at_one_are_named() -> None:
    assert run_of((1, [0, 1, 2]), (31, [2])).kinds() == {Kind.POSITION}
    run = run_of((1, [0, 1]), (11, [2]))
    assert Kind.POSITION in run.kinds()
    run = run_of((1, [0, 1]))
    run.frames.crash("server")
    run.deliver(11, 2, session=2)
    assert Kind.REUSED in run.kinds()


def test_frame_that_is_new_behind_a_later_one_is_named() -> None:
    run = run_of((1, [0, 1]))
    run.deliver(1, 0)
    run.deliver(21, 2)
    assert run.kinds() == {Kind.REORDER}


def test_gap_in_the_channel_is_named() -> None:
    assert run_of((1, [0]), (21, [1, 2])).kinds() == {Kind.SKIP}


def test_mark_past_what_came_or_was_confirmed_or_back_is_named() -> None:
    run = run_of((1, [0, 1, 2]))
    run.frames.ack([(1, 9), (11, 30)])
    run.frames.mark(9)
    assert run.kinds() == set()
    run.frames.mark(10)
    assert run.kinds() == {Kind.HOLE}
    run.frames.ack([(10, 10)])
    run.frames.mark(30)
    run.frames.mark(20)
    assert run.kinds() == {Kind.HOLE, Kind.BACK}
    run.frames.mark(40)
    assert run.kinds() == {Kind.HOLE, Kind.BACK, Kind.SKIP}


def test_eviction_of_what_was_not_confirmed_is_named() -> None:
    run = run_of((1, [0, 1, 2]))
    run.frames.ack([(1, 19)])
    run.frames.evict(11)
    assert run.kinds() == set()
    run.frames.evict(21)
    assert run.kinds() == {Kind.LOST}


def test_frame_that_comes_in_a_later_session_than_its_durable_confirmation_is_named() -> None:
    """In the same one it may have been on its way by then."""
    run = run_of((1, [0, 1, 2]))
    run.frames.ack([(1, 10)])
    run.frames.settle([(1, 10)])
    run.deliver(1, 0, again=True, session=1)
    run.deliver(1, 0, again=True, session=UNKNOWN_SESSION)
    assert run.kinds() == set()
    run.deliver(1, 0, again=True, session=2)
    assert run.kinds() == {Kind.DUPLICATE}


def test_confirmation_that_the_reader_never_sent_is_named() -> None:
    run = run_of((1, [0, 1, 2]))
    run.frames.settle([(1, 30)])
    assert run.kinds() == {Kind.HOLE}
