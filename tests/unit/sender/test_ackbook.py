"""Futures of frames: how each of them ends."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest

from holdfast.errors import Category, Closed, FrameRefused
from holdfast.sender.ackbook import CANCELLED_MIN, REFUSALS_MAX, AckBook
from holdfast.sender.happenings import SenderError
from holdfast.sender.policies import Policy

PATIENCE_S = 10.0


def refusal(fsn: int) -> SenderError:
    return SenderError(category=Category.WRITE_ERROR, policy=Policy.DROP, message="full", first_fsn=fsn, last_fsn=fsn)


def test_futures_end_in_order_once_their_frame_is_answered() -> None:
    book, ended = AckBook(), []
    futures = [book.future(fsn, -1) for fsn in (3, 1, 2)]
    for future in futures:
        future.add_done_callback(lambda done: ended.append(done.result()))
    book.acked(1)
    assert ended == [1]
    book.acked(5)
    assert ended == [1, 2, 3]
    assert not book.is_waited_for


def test_future_of_an_answered_frame_has_ended_already() -> None:
    book = AckBook()
    assert book.future(4, 4).result(0) == 4
    book.acked(9)
    assert book.future(9, 4).result(0) == 9


def test_refused_frames_fail_and_their_neighbours_do_not() -> None:
    book = AckBook()
    futures = {fsn: book.future(fsn, -1) for fsn in range(3)}
    book.refused(refusal(1))
    book.acked(2)
    assert futures[0].result(0) == 0
    with pytest.raises(FrameRefused):
        futures[1].result(0)
    assert futures[2].result(0) == 2
    with pytest.raises(FrameRefused):
        book.future(1, 2).result(0)


def test_answer_about_a_frame_waits_while_it_is_being_set_aside() -> None:
    book, asked, answers = AckBook(), threading.Event(), []

    def ask() -> None:
        asked.set()
        answers.append(book.refusal_of(7))

    book.refusing(refusal(7))
    assert book.refusal_of(6) is None
    thread = threading.Thread(target=ask)
    thread.start()
    assert asked.wait(PATIENCE_S)
    book.refused(msgspec.structs.replace(refusal(7), kept_in=Path("slot/rejected/x")))
    thread.join(PATIENCE_S)
    (answer,) = answers
    assert isinstance(answer, FrameRefused)
    assert answer.kept_in == Path("slot/rejected/x")


def test_error_that_ends_the_sender_ends_every_future() -> None:
    book = AckBook()
    waiting, error = book.future(5, -1), Closed(what="the sender")
    book.refusing(refusal(5))
    book.failed(error)
    assert waiting.exception(0) is error
    assert book.future(6, -1).exception(0) is error
    assert book.future(0, 3).result(0) == 0


def test_cancelled_future_is_left_alone() -> None:
    book = AckBook()
    future = book.future(1, -1)
    assert future.cancel()
    book.acked(1)
    assert future.cancelled()


def test_cancelled_futures_do_not_pile_up() -> None:
    book = AckBook()
    kept = book.future(9, -1)
    for _ in range(20 * CANCELLED_MIN):
        book.future(9, -1).cancel()
    assert len(book._waiting) <= CANCELLED_MIN
    book.acked(9)
    assert kept.result(0) == 9


def test_only_so_many_refusals_are_remembered() -> None:
    book = AckBook()
    for fsn in range(REFUSALS_MAX + 1):
        book.refused(refusal(fsn))
    assert book.refusal_of(0) is None
    assert book.refusal_of(1) is not None
