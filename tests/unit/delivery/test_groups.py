"""Who gets the next messages of a group."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from holdfast.delivery.groups import Candidate, Member, Offer, offers
from holdfast.delivery.redelivery import Load, Policy

POLICY = Policy(ack_wait_ns=1)
MIB = 1 << 20


def member(number: int, **fields: int | None) -> Member:
    values: dict[str, int | None] = {"max_inflight": 10, "max_inflight_bytes": MIB, "batch_rows": 100, **fields}
    return Member(number, POLICY, **values)  # type: ignore[arg-type]


def candidate(number: int, *, held: int = 0, held_bytes: int = 0, send: int = MIB, **fields: int | None) -> Candidate:
    return Candidate(member(number, **fields), Load(held, held_bytes), send)


def shared(found: list[Offer]) -> dict[int, int]:
    counts: Counter[int] = Counter()
    for offer in found:
        counts[offer.member] += offer.rows
    return dict(counts)


def test_a_few_messages_are_spread_over_all_members() -> None:
    assert shared(offers([candidate(1), candidate(2), candidate(3)], wanted=3)) == {1: 1, 2: 1, 3: 1}


def test_who_holds_least_comes_first() -> None:
    found = offers([candidate(1, held=5), candidate(2, held=1), candidate(3, held=3)], wanted=1)
    assert [offer.member for offer in found] == [2]


def test_equals_take_turns() -> None:
    first, second = candidate(1, served_at=7), candidate(2, served_at=3)
    assert [offer.member for offer in offers([first, second], wanted=1)] == [2]


def test_stalled_members_are_passed_over() -> None:
    found = offers([candidate(1, held=10), candidate(2), candidate(3, send=0)], wanted=50)
    assert shared(found) == {2: 10}


def test_the_highest_priority_gets_everything_it_has_room_for() -> None:
    found = offers([candidate(1, priority=1), candidate(2, priority=5), candidate(3, priority=5)], wanted=8)
    assert shared(found) == {2: 4, 3: 4}


def test_lower_priorities_get_what_spills_over() -> None:
    found = offers([candidate(1, priority=1), candidate(2, priority=5), candidate(3, priority=5, held=10)], wanted=13)
    assert shared(found) == {2: 10, 1: 3}
    assert [offer.member for offer in found] == [2, 1]


def test_credit_is_a_total_over_the_life_of_a_subscription() -> None:
    assert shared(offers([candidate(1, credit=25, delivered=22)], wanted=9)) == {1: 3}
    assert offers([candidate(1, credit=22, delivered=22)], wanted=9) == []
    assert offers([candidate(1, credit=5, delivered=22)], wanted=9) == []


def test_max_inflight_of_zero_pauses_a_member() -> None:
    assert offers([candidate(1, max_inflight=0)], wanted=9) == []


def test_bytes_in_flight_bound_a_member_but_one_message_always_fits() -> None:
    assert offers([candidate(1, held=1, held_bytes=MIB)], wanted=1) == []
    assert shared(offers([candidate(1, max_inflight_bytes=1)], wanted=1)) == {1: 1}


def test_no_offer_is_larger_than_the_batch_a_member_wants() -> None:
    found = offers([candidate(1, batch_rows=1)], wanted=3)
    assert [offer.rows for offer in found] == [1, 1, 1]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20), st.integers(1, 7)), min_size=1, max_size=6),
    st.integers(0, 200),
)
def test_offers_never_exceed_room_and_leave_no_room_unused(members: list[tuple[int, int, int]], wanted: int) -> None:
    candidates = [
        candidate(number, priority=priority, max_inflight=room, batch_rows=batch)
        for number, (priority, room, batch) in enumerate(members, start=1)
    ]
    given_out = shared(offers(candidates, wanted=wanted))
    rooms = {item.member.number: item.member.max_inflight for item in candidates}
    assert all(rows <= rooms[number] for number, rows in given_out.items())
    assert sum(given_out.values()) == min(wanted, sum(rooms.values()))
    for item in candidates:  # nobody below gets anything while somebody above has room
        if given_out.get(item.member.number, 0):
            above = [other for other in candidates if other.member.priority > item.member.priority]
            assert all(given_out.get(other.member.number, 0) == rooms[other.member.number] for other in above)
