"""Who holds what until when: in virtual time, against a model of single messages."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.delivery.redelivery import Book, Policy

SECOND = 1_000_000_000
WAIT = Policy(ack_wait_ns=30 * SECOND)


def book_with(*ranges: tuple[int, int], member: int = 1, policy: Policy = WAIT, attempt: int = 1) -> Book:
    book = Book()
    book.deliver(member, ranges, attempt=attempt, size_bytes=1000, policy=policy, now_ns=0)
    return book


def test_messages_are_delivered_again_after_ack_wait_and_not_before() -> None:
    book = book_with((1, 10))
    assert book.expire(30 * SECOND - 1) == {}
    assert book.due(30 * SECOND - 1, rows_max=100) == []
    assert book.expire(30 * SECOND)[1].spans == [(1, 10)]
    assert book.due(30 * SECOND, rows_max=100) == [(1, 10, 2)]


def test_what_is_acknowledged_is_not_delivered_again() -> None:
    book = book_with((1, 10))
    assert book.ack(1, [(1, 4), (7, 7)]).rows == 5
    book.expire(30 * SECOND)
    assert book.due(30 * SECOND, rows_max=100) == [(5, 6, 2), (8, 10, 2)]


def test_an_answer_of_somebody_else_is_stale() -> None:
    book = book_with((1, 10))
    assert book.ack(2, [(1, 10)]).rows == 0
    assert book.nack(2, [(1, 10)], delay_ns=0, now_ns=0).rows == 0
    assert book.reject(2, [(1, 10)]).rows == 0
    assert book.extend(2, [(1, 10)], now_ns=0).rows == 0
    assert book.holder(5) == 1


def test_a_late_ack_counts_while_nobody_else_has_the_message() -> None:
    book = book_with((1, 2))
    book.expire(31 * SECOND)
    assert book.ack(1, [(1, 1)]).rows == 1
    ((first, last, attempt),) = book.due(31 * SECOND, rows_max=10)
    book.deliver(2, [(first, last)], attempt=attempt, size_bytes=1, policy=WAIT, now_ns=31 * SECOND)
    assert book.ack(1, [(2, 2)]).rows == 0
    assert book.ack(2, [(2, 2)]).rows == 1


def test_nack_with_a_delay_waits_for_it() -> None:
    book = book_with((1, 3))
    assert book.nack(1, [(2, 2)], delay_ns=5 * SECOND, now_ns=SECOND).failed == [(2, 2)]
    assert book.due(6 * SECOND - 1, rows_max=10) == []
    assert book.due(6 * SECOND, rows_max=10) == [(2, 2, 2)]
    assert book.load(1).rows == 2


def test_extend_starts_the_time_anew_for_what_it_names() -> None:
    book = book_with((1, 3))
    book.extend(1, [(2, 2)], now_ns=20 * SECOND)
    assert book.expire(30 * SECOND)[1].spans == [(1, 1), (3, 3)]
    assert book.expire(50 * SECOND - 1) == {}
    assert book.expire(50 * SECOND)[1].spans == [(2, 2)]


def test_backoff_gives_each_attempt_its_own_wait_and_the_last_repeats() -> None:
    policy = Policy(ack_wait_ns=30 * SECOND, backoff_ns=(SECOND, 5 * SECOND))
    assert [policy.wait_ns(attempt) for attempt in (1, 2, 3, 9)] == [SECOND, 5 * SECOND, 5 * SECOND, 5 * SECOND]
    book = book_with((1, 1), policy=policy)
    book.nack(1, [(1, 1)], delay_ns=None, now_ns=0)
    assert book.due(SECOND - 1, rows_max=1) == []
    assert book.due(SECOND, rows_max=1) == [(1, 1, 2)]


def test_after_max_deliver_attempts_a_message_is_dead() -> None:
    policy = Policy(ack_wait_ns=SECOND, max_deliver=3)
    book = Book()
    now = 0
    for attempt in (1, 2):
        book.deliver(1, [(7, 7)], attempt=attempt, size_bytes=1, policy=policy, now_ns=now)
        now += SECOND
        assert book.expire(now)[1].dead == []
        assert book.due(now, rows_max=1) == [(7, 7, attempt + 1)]
    book.deliver(1, [(7, 7)], attempt=3, size_bytes=1, policy=policy, now_ns=now)
    taken = book.expire(now + SECOND)[1]
    assert (taken.dead, taken.failed) == ([(7, 7, 3)], [(7, 7)])
    assert book.due(now + SECOND, rows_max=1) == []
    assert book.held_rows == book.waiting_rows == 0


def test_a_lost_member_counts_as_an_attempt_and_one_that_leaves_does_not() -> None:
    lost, left = book_with((1, 5)), book_with((1, 5))
    assert lost.leave(1, lost=True, now_ns=SECOND).failed == [(1, 5)]
    assert left.leave(1, lost=False, now_ns=SECOND).failed == []
    assert lost.due(SECOND, rows_max=9) == [(1, 5, 2)]
    assert left.due(SECOND, rows_max=9) == [(1, 5, 1)]


def test_poison_is_dead_when_it_kills_its_consumers() -> None:
    policy = Policy(ack_wait_ns=30 * SECOND, max_deliver=2)
    book = book_with((1, 1), policy=policy)
    book.leave(1, lost=True, now_ns=0)
    assert book.due(0, rows_max=1) == [(1, 1, 2)]
    book.deliver(2, [(1, 1)], attempt=2, size_bytes=1, policy=policy, now_ns=0)
    assert book.leave(2, lost=True, now_ns=0).dead == [(1, 1, 2)]


def test_what_is_due_and_finds_no_room_stays_due() -> None:
    book = book_with((1, 10))
    book.expire(30 * SECOND)
    assert book.due(30 * SECOND, rows_max=4) == [(1, 4, 2)]
    assert book.due(30 * SECOND, rows_max=100) == [(5, 10, 2)]
    book.again([(1, 4, 2)], due_ns=40 * SECOND)
    assert book.due(30 * SECOND, rows_max=4) == []
    assert book.next_ns(30 * SECOND) == 40 * SECOND


def test_what_is_rejected_is_to_be_buried_and_nobody_holds_it() -> None:
    book = book_with((1, 5), attempt=3)
    assert book.reject(1, [(2, 3)]).dead == [(2, 3, 3)]
    assert book.holder(2) is None
    assert book.expire(31 * SECOND)[1].spans == [(1, 1), (4, 5)]


def test_loads_follow_rows_and_bytes_down_to_nothing() -> None:
    book = book_with((1, 10))
    assert (book.load(1).rows, book.load(1).bytes) == (10, 1000)
    book.ack(1, [(1, 5)])
    assert (book.load(1).rows, book.load(1).bytes) == (5, 500)
    book.ack(1, [(6, 10)])
    assert (book.load(1).rows, book.load(1).bytes) == (0, 0)


def test_a_delivery_that_is_acknowledged_whole_costs_one_entry() -> None:
    book = book_with((1, 100_000))
    assert book.ack(1, [(1, 99_999)]).spans == [(1, 99_999)]
    assert book.held_by(1) == [(100_000, 100_000)]


@dataclass
class Single:
    """One message of the model: fresh, held, waiting, dead or done."""

    state: str = "fresh"
    member: int = 0
    deadline: int = 0
    due: int = 0
    attempt: int = 1
    last: int = 0


class Model:
    """The same rules, one message at a time."""

    def __init__(self, count: int, policy: Policy) -> None:
        self.messages = {seq: Single() for seq in range(1, count + 1)}
        self.policy = policy

    def deliver(self, member: int, seq: int, now: int) -> None:
        one = self.messages[seq]
        one.state, one.member, one.deadline = "held", member, now + self.policy.wait_ns(one.attempt)

    def fail(self, seq: int, due: int, last: int) -> None:
        one = self.messages[seq]
        if self.policy.is_last(one.attempt):
            one.state = "dead"
        else:
            one.state, one.due, one.last, one.attempt = "waiting", due, last, one.attempt + 1


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["new", "again", "ack", "nack", "extend", "tick", "lost", "left"]),
        st.integers(1, 3),
        st.integers(1, 20),
        st.integers(0, 6),
    ),
    max_size=60,
)


@pytest.mark.guarantee("G7")
@given(ACTIONS)
def test_the_book_agrees_with_a_model_of_single_messages(steps: list[tuple[str, int, int, int]]) -> None:
    policy = Policy(ack_wait_ns=10, backoff_ns=(7, 12), max_deliver=3)
    book, model, now, fresh = Book(), Model(40, policy), 0, 1
    for action, member, first, length in steps:
        last = min(40, first + length)
        if action == "new" and fresh + length <= 40:
            book.deliver(member, [(fresh, fresh + length)], attempt=1, size_bytes=9, policy=policy, now_ns=now)
            for seq in range(fresh, fresh + length + 1):
                model.deliver(member, seq, now)
            fresh += length + 1
        elif action == "again":
            deliver_due(book, model, member, now, rows_max=length + 1)
        elif action == "tick":
            now += first
            expire(book, model, now)
        else:
            answer(book, model, (action, member, first, last), now)
        compare(book, model, now)


def deliver_due(book: Book, model: Model, member: int, now: int, rows_max: int) -> None:
    for low, high, attempt in book.due(now, rows_max=rows_max):
        for seq in range(low, high + 1):
            one = model.messages[seq]
            assert (one.state, one.attempt) == ("waiting", attempt)
            assert one.due <= now, "delivered again before its time"
            model.deliver(member, seq, now)
        book.deliver(member, [(low, high)], attempt=attempt, size_bytes=9, policy=model.policy, now_ns=now)


def expire(book: Book, model: Model, now: int) -> None:
    expired = {seq for taken in book.expire(now).values() for low, high in taken.spans for seq in range(low, high + 1)}
    assert expired == {seq for seq, one in model.messages.items() if one.state == "held" and one.deadline <= now}
    for seq in expired:
        model.fail(seq, now, model.messages[seq].member)


def answer(book: Book, model: Model, step: tuple[str, int, int, int], now: int) -> None:
    action, member, first, last = step
    mine = [seq for seq, one in model.messages.items() if one.state == "held" and one.member == member]
    named = [seq for seq in mine if first <= seq <= last]
    if action == "ack":
        late = [
            seq
            for seq, one in model.messages.items()
            if one.state == "waiting" and one.last == member and first <= seq <= last
        ]
        assert book.ack(member, [(first, last)]).rows == len(named) + len(late)
        for seq in [*named, *late]:
            model.messages[seq].state = "done"
    elif action == "nack":
        book.nack(member, [(first, last)], delay_ns=first, now_ns=now)
        for seq in named:
            model.fail(seq, now + first, 0)
    elif action == "extend":
        book.extend(member, [(first, last)], now_ns=now)
        for seq in named:
            model.messages[seq].deadline = now + model.policy.wait_ns(model.messages[seq].attempt)
    elif action in {"lost", "left"}:
        leave(book, model, member, mine, lost=action == "lost", now=now)


def leave(book: Book, model: Model, member: int, mine: list[int], *, lost: bool, now: int) -> None:
    book.leave(member, lost=lost, now_ns=now)
    for seq in mine:
        one = model.messages[seq]
        if lost:
            model.fail(seq, now, 0)
        else:
            one.state, one.due, one.last = "waiting", now, 0
    for one in model.messages.values():
        if one.last == member:
            one.last = 0


def compare(book: Book, model: Model, now: int) -> None:
    held = {seq: one.member for seq, one in model.messages.items() if one.state == "held"}
    assert {seq: book.holder(seq) for seq in model.messages if book.holder(seq)} == held
    for member in (1, 2, 3):
        assert book.load(member).rows == sum(holder == member for holder in held.values())
    assert book.waiting_rows == sum(one.state == "waiting" for one in model.messages.values())
    due = [one.due for one in model.messages.values() if one.state == "waiting"]
    assert book.has_due(now) == any(at <= now for at in due)
