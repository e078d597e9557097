"""Inboxes in front of handlers: bounded, in order, and no handler can hurt the sender."""

from __future__ import annotations

import logging
import threading

import pytest

from holdfast.errors import Category
from holdfast.sender.errorinbox import Inbox, log_error
from holdfast.sender.happenings import SenderError
from holdfast.sender.policies import Policy

PATIENCE_S = 10.0


def test_items_reach_the_handler_in_order() -> None:
    seen: list[int] = []
    inbox: Inbox[int] = Inbox(seen.append, capacity=1000, name="test")
    for number in range(500):
        inbox.offer(number)
    inbox.close(PATIENCE_S)
    assert seen == list(range(500))
    assert (inbox.delivered, inbox.dropped) == (500, 0)


def test_full_inbox_drops_the_oldest_and_counts_them() -> None:
    started, go_on, seen = threading.Event(), threading.Event(), []

    def handler(number: int) -> None:
        started.set()
        assert go_on.wait(PATIENCE_S)
        seen.append(number)

    inbox: Inbox[int] = Inbox(handler, capacity=16, name="test")
    inbox.offer(-1)
    assert started.wait(PATIENCE_S)
    for number in range(100):
        inbox.offer(number)
    go_on.set()
    inbox.close(PATIENCE_S)
    assert seen == [-1, *range(84, 100)]
    assert inbox.dropped == 84


def test_handler_that_raises_is_logged_and_called_again(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def handler(number: int) -> None:
        seen.append(number)
        raise RuntimeError("a bug of the user's")

    inbox: Inbox[int] = Inbox(handler, capacity=16, name="test")
    with caplog.at_level(logging.ERROR):
        inbox.offer(1)
        inbox.offer(2)
        inbox.close(PATIENCE_S)
    assert seen == [1, 2]
    assert "sender.handler.fail" in caplog.text


def test_handler_that_closes_does_not_wait_for_itself() -> None:
    closed = threading.Event()

    def handler(_number: int) -> None:
        inbox.close(PATIENCE_S)
        closed.set()

    inbox: Inbox[int] = Inbox(handler, capacity=16, name="test")
    inbox.offer(1)
    assert closed.wait(PATIENCE_S)


def test_handler_that_hangs_does_not_hold_up_close() -> None:
    go_on = threading.Event()

    def handler(_number: int) -> None:
        go_on.wait(PATIENCE_S)

    inbox: Inbox[int] = Inbox(handler, capacity=16, name="test")
    inbox.offer(1)
    inbox.close(0.01)
    go_on.set()


def test_flush_waits_until_everything_is_handled() -> None:
    seen: list[int] = []
    inbox: Inbox[int] = Inbox(seen.append, capacity=1000, name="test")
    for number in range(100):
        inbox.offer(number)
    assert inbox.flush(PATIENCE_S)
    assert len(seen) == 100
    inbox.close(PATIENCE_S)


def test_offer_after_close_is_counted_as_dropped() -> None:
    inbox: Inbox[int] = Inbox(lambda _number: None, capacity=16, name="test")
    inbox.close(PATIENCE_S)
    inbox.offer(1)
    assert inbox.dropped == 1


@pytest.mark.parametrize(("policy", "level"), [(Policy.HALT, logging.ERROR), (Policy.DROP, logging.WARNING)])
def test_errors_without_a_handler_are_logged(caplog: pytest.LogCaptureFixture, policy: Policy, level: int) -> None:
    with caplog.at_level(logging.INFO):
        log_error(SenderError(category=Category.WRITE_ERROR, policy=policy, message="full", first_fsn=3, last_fsn=3))
    (record,) = caplog.records
    assert record.levelno == level
    assert "category=WRITE_ERROR" in record.getMessage()
    assert "first_fsn=3" in record.getMessage()
