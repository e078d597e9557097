"""Bounds: messages and bytes in flight, credit, and consumers that do not read."""

from __future__ import annotations

import pyarrow as pa

from holdfast.delivery.consumer import SEND_BYTES_MAX
from holdfast.wire import consume
from tests.unit.delivery.harness import Consumer, DeliveryServer


def test_stalled_delivery_goes_on_when_there_is_room(server: DeliveryServer) -> None:
    server.commit(*range(1, 11))
    consumer = server.consumer()
    consumer.subscribe(start="first", max_inflight=3)
    assert consumer.seqs(3) == [1, 2, 3]
    consumer.nothing_more()
    (found,) = server.ask(server.delivery.statistics)
    assert (found.channel, found.held, found.stalled, found.next_seq, found.delivered) == ("trades", 3, True, 4, 3)
    consumer.ack(2)
    assert consumer.seqs(1) == [4]
    consumer.ack(1, 3, 4)
    assert consumer.seqs(3) == [5, 6, 7]
    consumer.nothing_more()


def test_max_inflight_of_zero_pauses_until_it_is_raised(server: DeliveryServer) -> None:
    server.commit(1, 2)
    consumer = server.consumer()
    consumer.subscribe(start="first", max_inflight=0)
    consumer.nothing_more()
    assert consumer.configure(max_inflight=1).max_inflight == 1
    assert consumer.seqs(1) == [1]
    consumer.configure(max_inflight=0)
    consumer.ack(1)
    consumer.nothing_more()


def test_configure_changes_only_what_it_names(server: DeliveryServer) -> None:
    consumer = server.consumer()
    consumer.subscribe(ack_wait_ms=5000, max_inflight=7, backoff_ms=(1, 2))
    found = consumer.configure(batch_rows=3, max_deliver=4)
    assert (found.ack_wait_ms, found.max_inflight, found.backoff_ms) == (5000, 7, (1, 2))
    assert (found.batch_rows, found.max_deliver) == (3, 4)


def test_bytes_in_flight_bound_a_consumer_and_one_message_always_fits(server: DeliveryServer) -> None:
    server.store.commit("trades", pa.record_batch({"b": [bytes(100_000)] * 6}))
    consumer = server.consumer()
    consumer.subscribe(start="first", max_inflight_bytes=250_000)
    assert len(consumer.seqs(2)) == 2
    consumer.nothing_more()
    consumer.configure(max_inflight_bytes=1)
    consumer.ack(1, 2)
    assert consumer.seqs(1) == [3]
    consumer.nothing_more()


def test_credit_is_a_total_that_can_be_raised_and_taken_back(server: DeliveryServer) -> None:
    server.commit(*range(1, 11))
    consumer = server.consumer()
    consumer.subscribe(start="first", credit=0)
    consumer.nothing_more()
    consumer.send(consume.Credit(sub=1, upto=3))
    assert consumer.seqs(3) == [1, 2, 3]
    consumer.ack(1, 2, 3)
    consumer.nothing_more()
    consumer.send(consume.Credit(sub=1, upto=5))
    assert consumer.seqs(2) == [4, 5]
    consumer.send(consume.Credit(sub=1, upto=5))
    consumer.nothing_more()
    consumer.send(consume.Credit(sub=1))
    assert consumer.seqs(5) == [6, 7, 8, 9, 10]


def test_single_messages_come_one_by_one(server: DeliveryServer) -> None:
    server.commit(1, 2, 3)
    consumer = server.consumer()
    consumer.subscribe(start="first", batch_rows=1)
    assert [consumer.delivery().head.ranges for _ in range(3)] == [((1, 1),), ((2, 2),), ((3, 3),)]


def buffered(server: DeliveryServer, consumer: Consumer) -> int:
    """What the server keeps for a peer that does not read."""
    return max(
        (one.sink._buffered() for feed in server.delivery.feeds.values() for one in feed.members.values()),  # type: ignore[attr-defined]
        default=0,
    )


def test_a_consumer_that_does_not_read_costs_bounded_memory_and_slows_nobody(server: DeliveryServer) -> None:
    """It falls behind; when it reads again it gets everything, from segments, without a gap."""
    rows = 400
    slow, quick = server.consumer(), server.consumer()
    slow.subscribe(start="first", max_inflight=1_000_000, max_inflight_bytes=1 << 30, batch_rows=16)
    quick.subscribe(start="first", max_inflight=1_000_000, max_inflight_bytes=1 << 30)
    for number in range(rows):
        server.store.commit("trades", pa.record_batch({"n": [number], "b": [bytes(100_000)]}))
    assert quick.numbers(rows) == list(range(rows))  # while the other one has not read anything
    limit = SEND_BYTES_MAX + (2 << 20)
    assert server.ask(lambda: buffered(server, slow)) <= limit
    server.store.flush()
    assert slow.numbers(rows) == list(range(rows))


def test_answers_are_read_while_the_peer_does_not_take_messages(server: DeliveryServer) -> None:
    server.store.commit("trades", pa.record_batch({"b": [bytes(1_000_000)] * 12}))
    consumer = server.consumer()
    consumer.subscribe(durable="d", max_inflight_bytes=1 << 30, batch_rows=1)
    server.until(lambda: any(feed.book.held_rows >= 3 for feed in server.delivery.feeds.values()))
    consumer.send(consume.Ack(sub=1, upto=2))
    server.until(lambda: server.mark("d") == 2)
    assert consumer.seqs(12) == list(range(1, 13))


def test_what_is_kept_of_pieces_is_bounded(server: DeliveryServer) -> None:
    consumer = server.consumer()
    consumer.subscribe(start="first", max_inflight=1_000_000, max_inflight_bytes=1 << 30)
    for _ in range(30):
        server.store.commit("trades", pa.record_batch({"b": [bytes(1_000_000)] * 4}))
    consumer.seqs(120)
    assert server.ask(lambda: server.delivery.pieces.bytes) <= 80 << 20
