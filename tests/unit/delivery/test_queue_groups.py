"""Groups: exactly one member holds a message, and what happens when members stall, die or leave."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.delivery.harvest import Harvest, Wish
from holdfast.testing import ManualClock
from holdfast.wire import consume
from tests.unit.delivery.harness import Consumer, DeliveryServer


def members(server: DeliveryServer, count: int, **fields: object) -> list[Consumer]:
    """Consumers of one group."""
    consumers = [server.consumer() for _ in range(count)]
    for consumer in consumers:
        consumer.subscribe(1, "trades", **{"group": "g", "start": "first", **fields})
    return consumers


def held(server: DeliveryServer) -> dict[int, int]:
    """Which member holds each message."""

    def look() -> dict[int, int]:
        (feed,) = server.delivery.feeds.values()
        holders = {seq: feed.book.holder(seq) for seq in range(1, server.store.handing.last_seq("trades") + 1)}
        return {seq: holder for seq, holder in holders.items() if holder is not None}

    return server.ask(look)


@pytest.mark.guarantee("G7")
def test_messages_read_for_a_member_that_left_meanwhile_come_to_others_in_order(server: DeliveryServer) -> None:
    """Nobody held them, so what was read behind them must not come first."""
    _, two = members(server, 2, batch_rows=2, max_inflight=20)

    def leave_while_reading() -> None:
        desk = server.delivery
        turn = desk.turn

        def turn_without_first(wish: Wish, then: Callable[[Harvest | None, BaseException | None], None]) -> None:
            def done(found: Harvest | None, error: BaseException | None) -> None:
                assert found is not None
                assert {cut.member for cut in found.cuts} == {offer.member for offer in wish.offers}
                (feed,) = desk.feeds.values()
                feed.detach(found.cuts[0].member, lost=True)
                then(found, error)

            desk.turn = turn  # type: ignore[method-assign]
            turn(wish, done)

        desk.turn = turn_without_first  # type: ignore[method-assign]

    server.ask(leave_while_reading)
    server.commit(*range(1, 9))
    assert two.seqs(8) == list(range(1, 9))


@pytest.mark.guarantee("G7")
def test_exactly_one_member_of_a_group_holds_a_message(server: DeliveryServer) -> None:
    one, two, three = members(server, 3, batch_rows=1, max_inflight=4)
    server.commit(*range(1, 13))
    got = [consumer.seqs(4) for consumer in (one, two, three)]
    assert sorted(seq for seqs in got for seq in seqs) == list(range(1, 13))
    assert Counter(held(server).values()) == Counter(dict.fromkeys(set(held(server).values()), 4))


def test_messages_are_spread_over_the_members_in_turn(server: DeliveryServer) -> None:
    one, two = members(server, 2, batch_rows=1)
    for number in range(1, 7):
        server.commit(number)
        server.until(lambda number=number: len_held(server) == number)  # type: ignore[misc]
    assert len(one.seqs(3)) == len(two.seqs(3)) == 3


def len_held(server: DeliveryServer) -> int:
    (feed,) = server.delivery.feeds.values()
    return feed.book.held_rows


def test_stalled_queue_delivery_goes_on_with_members_that_have_room(server: DeliveryServer) -> None:
    one, two = members(server, 2, max_inflight=2, batch_rows=1)
    server.commit(*range(1, 5))
    one.seqs(2)
    first = two.seqs(2)
    server.commit(5, 6)
    one.nothing_more()
    two.ack(*first)
    assert two.seqs(2) == [5, 6]
    one.nothing_more()


def test_queue_redelivery_after_members_crash_goes_to_the_others(server: DeliveryServer) -> None:
    one, two = members(server, 2, max_inflight=3, batch_rows=1, durable="d")
    server.commit(1, 2, 3, 4)
    server.until(lambda: len_held(server) == 4)
    lost = one.seqs(2)
    kept = two.seqs(2)
    one.drop()
    again = two.delivery().head  # it has room for one more
    assert (again.attempt, again.redelivered) == (2, True)
    two.ack(*kept, again.ranges[0][0])
    rest = two.delivery().head
    assert {again.ranges[0][0], rest.ranges[0][0]} == set(lost)
    two.ack(rest.ranges[0][0])
    assert server.mark("d") == 4


def test_queue_ack_removes_only_from_the_owning_member(server: DeliveryServer) -> None:
    one, two = members(server, 2, max_inflight=1, batch_rows=1)
    server.commit(1, 2)
    (mine,), (other,) = one.seqs(1), two.seqs(1)
    stale = one.ack(other)
    assert (stale.settled, stale.stale) == (0, 1)
    assert set(held(server)) == {1, 2}
    assert one.ack(mine).settled == 1
    assert set(held(server)) == {other}


def test_a_message_that_expired_goes_to_whoever_has_room(tmp_path: Path) -> None:
    clock = ManualClock()
    with DeliveryServer(tmp_path, clock=clock) as server:
        one, two = members(server, 2, max_inflight=1, batch_rows=1, ack_wait_ms=1000)
        server.commit(1, 2)
        (mine,), (other,) = one.seqs(1), two.seqs(1)
        two.ack(other)
        clock.advance(1)
        server.wake()
        one.event("expired")
        holder = held(server)
        server.until(lambda: len_held(server) == 1)
        assert len(holder) <= 1
        late = one.ack(mine)
        assert late.settled + late.stale == 1


def test_a_member_that_leaves_in_order_hands_over_without_a_count(server: DeliveryServer) -> None:
    one, two = members(server, 2, max_inflight=1, batch_rows=1)
    server.commit(1, 2)
    (mine,), (other,) = one.seqs(1), two.seqs(1)
    one.close_sub()
    two.ack(other)
    again = two.delivery().head
    assert (again.ranges, again.attempt) == (((mine, mine),), 1)


def test_a_durable_group_keeps_its_place_when_its_last_member_closes(server: DeliveryServer) -> None:
    one, two = members(server, 2, durable="d")
    server.commit(1, 2)
    one.close_sub()
    seqs = two.seqs(2)
    two.ack(seqs[0])
    assert not two.close_sub().removed
    assert [item.name for item in server.store.subscribers()] == ["d"]
    assert two.subscribe(durable="d", group="g").resumed
    assert two.seqs(1) == [seqs[1]]


def test_a_durable_group_is_removed_when_its_last_member_unsubscribes(server: DeliveryServer) -> None:
    one, two = members(server, 2, durable="d")
    assert not one.unsubscribe().removed
    assert [item.name for item in server.store.subscribers()] == ["d"]
    assert two.unsubscribe().removed
    assert server.store.subscribers() == []


def test_a_group_ends_with_its_last_member(server: DeliveryServer) -> None:
    (one,) = members(server, 1)
    server.commit(1)
    one.seqs(1)
    one.close_sub()
    assert not one.subscribe(group="g", start="new").resumed
    one.nothing_more()


def test_members_must_agree_on_what_they_share(server: DeliveryServer) -> None:
    members(server, 1, filter="n > 1")
    other = server.consumer()
    for fields in ({"filter": "n > 2"}, {"mode": "priority"}, {"partitions": ("eu",)}):
        refused = other.refused(1, "trades", **{"group": "g", "filter": "n > 1", **fields})
        assert refused.code == "mismatch"
        assert next(iter(fields)) in refused.reason


def test_the_highest_priority_gets_all_and_the_rest_spills_over(server: DeliveryServer) -> None:
    low, high, high2 = (server.consumer() for _ in range(3))
    for consumer, priority in ((low, 1), (high, 5), (high2, 5)):
        consumer.subscribe(group="g", mode="priority", priority=priority, max_inflight=2, batch_rows=1)
    server.commit(1, 2)
    assert len(high.seqs(1)) == len(high2.seqs(1)) == 1
    server.commit(3, 4, 5)
    assert len(high.seqs(1)) == len(high2.seqs(1)) == len(low.seqs(1)) == 1
    server.until(lambda: len_held(server) == 5)


def test_priority_can_be_changed_on_the_fly(server: DeliveryServer) -> None:
    one, two = server.consumer(), server.consumer()
    one.subscribe(group="g", mode="priority", priority=5)
    two.subscribe(group="g", mode="priority", priority=1)
    server.commit(1)
    assert one.seqs(1) == [1]
    assert two.configure(priority=9).priority == 9
    server.commit(2)
    assert two.seqs(1) == [2]
    one.nothing_more()


def test_priority_means_nothing_outside_of_its_mode(server: DeliveryServer) -> None:
    consumer = server.consumer()
    consumer.subscribe()
    refused = consumer.ask(consume.Configure(request=9, sub=1, priority=3), consume.Refused)
    assert "mode priority" in refused.reason
