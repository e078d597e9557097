"""Ack, nack, reject, extend: what they do, what is stale, attempts and dead letters."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing import ManualClock
from holdfast.wire import consume
from tests.unit.delivery.harness import DeliveryServer

MOMENT = 0.001
"""In seconds."""


def dead(server: DeliveryServer, channel: str = "trades.dead") -> list[tuple[int, str]]:
    """Seq and reason of the dead letters."""
    if channel not in server.store.channels():
        return []
    rows = [row for batch in server.store.read(channel) for row in batch.to_pylist()]
    return [(row["seq"], row["reason"]) for row in rows]


def test_cumulative_ranges_and_single_acks_confirm_what_they_name(server: DeliveryServer) -> None:
    server.commit(*range(1, 11))
    consumer = server.consumer()
    consumer.subscribe(durable="d")
    consumer.seqs(10)
    assert consumer.ack_upto(3).settled == 3
    assert server.mark("d") == 3
    ranges = consume.Ack(sub=1, ranges=((5, 6), (9, 9)), request=50)
    assert consumer.ask(ranges, consume.Settled).settled == 3
    assert (server.mark("d"), server.gaps("d")) == (3, [(4, 4), (7, 8)])
    consumer.ack(4)
    assert server.mark("d") == 6


def test_an_ack_without_a_request_is_made_durable_soon(server: DeliveryServer) -> None:
    server.commit(1, 2)
    consumer = server.consumer()
    consumer.subscribe(durable="d")
    consumer.seqs(2)
    consumer.send(consume.Ack(sub=1, upto=2))
    server.until(lambda: server.mark("d") == 2)


def test_confirmations_of_what_is_not_held_are_counted_unless_it_is_confirmed(server: DeliveryServer) -> None:
    server.commit(1, 2)
    consumer = server.consumer()
    consumer.subscribe(durable="d", max_inflight=1)
    consumer.seqs(1)
    answer = consumer.ack(1, 2)
    assert (answer.settled, answer.stale, server.mark("d")) == (1, 1, 1)
    answer = consumer.ack(1)
    assert (answer.settled, answer.stale) == (1, 0)


def test_nack_brings_a_message_again_at_once_with_a_higher_attempt(server: DeliveryServer) -> None:
    server.commit(1, 2, 3)
    consumer = server.consumer()
    consumer.subscribe(durable="d")
    assert not consumer.delivery().head.redelivered
    consumer.nack(2)
    head = consumer.delivery().head
    assert (head.ranges, head.attempt, head.redelivered) == (((2, 2),), 2, True)


@pytest.mark.guarantee("G7")
def test_redelivery_comes_after_ack_wait_and_not_before(tmp_path: Path) -> None:
    clock = ManualClock()
    with DeliveryServer(tmp_path, clock=clock) as server:
        server.commit(1, 2)
        consumer = server.consumer()
        consumer.subscribe(durable="d", ack_wait_ms=30_000)
        consumer.seqs(2)
        clock.advance(30 - MOMENT)
        server.wake()
        consumer.nothing_more()
        consumer.ack(1)
        clock.advance(MOMENT)
        server.wake()
        assert consumer.event("expired").ranges == ((2, 2),)
        head = consumer.delivery().head
        assert (head.ranges, head.attempt) == (((2, 2),), 2)


def test_redeliveries_come_before_new_messages(server: DeliveryServer) -> None:
    server.commit(1, 2, 3, 4)
    consumer = server.consumer()
    consumer.subscribe(durable="d", max_inflight=2)
    assert consumer.seqs(2) == [1, 2]
    consumer.nack(2)
    assert consumer.seqs(1) == [2]
    consumer.ack(1, 2)
    assert consumer.seqs(2) == [3, 4]


def test_redelivery_does_not_pass_max_inflight(tmp_path: Path) -> None:
    clock = ManualClock()
    with DeliveryServer(tmp_path, clock=clock) as server:
        server.commit(1, 2, 3)
        consumer = server.consumer()
        consumer.subscribe(durable="d", ack_wait_ms=1000)
        assert consumer.seqs(3) == [1, 2, 3]
        consumer.configure(max_inflight=1)
        clock.advance(1)
        server.wake()
        assert consumer.seqs(1) == [1]
        consumer.nothing_more()
        consumer.ack(1)
        assert consumer.seqs(1) == [2]


def test_nack_with_delay_waits_for_it(tmp_path: Path) -> None:
    clock = ManualClock()
    with DeliveryServer(tmp_path, clock=clock) as server:
        server.commit(1)
        consumer = server.consumer()
        consumer.subscribe(durable="d")
        consumer.seqs(1)
        consumer.nack(1, delay_ms=5000)
        clock.advance(5 - MOMENT)
        server.wake()
        consumer.nothing_more()
        clock.advance(MOMENT)
        server.wake()
        assert consumer.delivery().head.attempt == 2


def test_extend_holds_a_message_for_another_ack_wait(tmp_path: Path) -> None:
    clock = ManualClock()
    with DeliveryServer(tmp_path, clock=clock) as server:
        server.commit(1, 2)
        consumer = server.consumer()
        consumer.subscribe(ack_wait_ms=1000, start="first")
        consumer.seqs(2)
        clock.advance(0.5)
        answer = consumer.ask(consume.Extend(sub=1, ranges=((2, 2),), request=9), consume.Settled)
        assert answer.settled == 1
        clock.advance(0.5)
        server.wake()
        assert consumer.seqs(1) == [1]
        clock.advance(0.5)
        server.wake()
        assert consumer.seqs(1) == [2]


def test_backoff_takes_the_place_of_ack_wait(tmp_path: Path) -> None:
    clock = ManualClock()
    with DeliveryServer(tmp_path, clock=clock) as server:
        server.commit(1)
        consumer = server.consumer()
        consumer.subscribe(start="first", backoff_ms=(1000, 3000))
        for wait_s in (1, 3, 3):
            consumer.seqs(1)
            clock.advance(wait_s - MOMENT)
            server.wake()
            consumer.nothing_more()
            clock.advance(MOMENT)
            server.wake()
        assert consumer.delivery().head.attempt == 4


def test_reject_puts_a_message_into_the_dead_letter_channel(server: DeliveryServer) -> None:
    server.commit(1, 2, 3)
    consumer = server.consumer()
    consumer.subscribe(durable="d")
    consumer.seqs(3)
    request = consume.Reject(sub=1, ranges=((2, 2),), reason="cannot be parsed", request=9)
    assert consumer.ask(request, consume.Settled).settled == 1
    assert dead(server) == [(2, "cannot be parsed")]
    consumer.ack(1, 3)
    assert server.mark("d") == 3


def test_reject_of_an_ephemeral_subscription_is_kept_too(server: DeliveryServer) -> None:
    server.commit(1)
    consumer = server.consumer()
    consumer.subscribe(start="first")
    consumer.seqs(1)
    consumer.ask(consume.Reject(sub=1, ranges=((1, 1),), reason="no", request=9), consume.Settled)
    assert dead(server) == [(1, "no")]


def test_after_max_deliver_attempts_a_message_is_a_dead_letter(server: DeliveryServer) -> None:
    server.commit(1, 2)
    consumer = server.consumer()
    consumer.subscribe(durable="d", max_deliver=2, batch_rows=1)
    consumer.seqs(2)
    consumer.nack(1)
    assert consumer.delivery().head.attempt == 2
    consumer.nack(1)
    assert consumer.event("dead").ranges == ((1, 1),)
    server.until(lambda: server.mark("d") == 1)
    ((seq, reason),) = dead(server)
    assert (seq, reason) == (1, "max_deliver: 2 deliveries, the last one: nack")


def test_poison_messages_count_when_their_consumer_dies(server: DeliveryServer) -> None:
    """Each consumer dies with the message unconfirmed, and says nothing."""
    server.commit(1)
    for attempt in (1, 2, 3):
        consumer = server.consumer()
        consumer.subscribe(durable="d", max_deliver=3)
        assert consumer.delivery().head.attempt == attempt
        consumer.drop()
        server.until(lambda: not any(feed.members for feed in server.delivery.feeds.values()))
    server.until(lambda: server.mark("d") == 1)
    assert dead(server) == [(1, "max_deliver: 3 deliveries, the last one: the consumer was lost")]


def test_poison_count_survives_restarts_of_the_server(tmp_path: Path) -> None:
    for attempt in (1, 2):
        with DeliveryServer(tmp_path) as server:
            if attempt == 1:
                server.commit(1)
            consumer = server.consumer()
            consumer.subscribe(durable="d", max_deliver=2)
            assert consumer.delivery().head.attempt == attempt
            consumer.drop()
            server.until(
                lambda: server.delivery.feeds == {} or not any(f.members for f in server.delivery.feeds.values())
            )
            if attempt == 2:
                server.until(lambda: server.mark("d") == 1)
                assert [seq for seq, _ in dead(server)] == [1]


def test_a_subscription_that_closes_in_order_does_not_count_as_an_attempt(server: DeliveryServer) -> None:
    server.commit(1)
    consumer = server.consumer()
    for _ in range(3):
        consumer.subscribe(durable="d", max_deliver=1)
        assert consumer.delivery().head.attempt == 1
        consumer.close_sub()
    assert dead(server) == []


def test_a_message_that_is_answered_late_by_its_last_holder_is_done(tmp_path: Path) -> None:
    clock = ManualClock()
    with DeliveryServer(tmp_path, clock=clock) as server:
        server.commit(1)
        consumer = server.consumer()
        consumer.subscribe(durable="d", ack_wait_ms=1000, credit=1)
        consumer.seqs(1)
        clock.advance(2)
        server.wake()
        consumer.event("expired")
        assert consumer.ack(1).settled == 1
        assert server.mark("d") == 1
