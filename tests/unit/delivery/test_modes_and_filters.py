"""Broadcast, filters, partitions, columns."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.delivery.harness import DeliveryServer


def test_broadcast_reaches_everybody_connected_at_most_once(server: DeliveryServer) -> None:
    server.commit(1)
    one, two = server.consumer(), server.consumer()
    for consumer in (one, two):
        consumer.subscribe(mode="broadcast", max_inflight=1)
    server.commit(2, 3)
    assert one.numbers(2) == two.numbers(2) == [2, 3]
    answer = one.ack(2)
    assert (answer.settled, answer.stale) == (0, 1)
    one.close_sub()
    server.commit(4)
    assert two.numbers(1) == [4]
    one.subscribe(mode="broadcast")
    one.nothing_more()


def test_a_filter_lets_pass_only_what_matches(server: DeliveryServer) -> None:
    consumer = server.consumer()
    consumer.subscribe(start="first", filter="n > 2 and n != 5")
    server.commit(*range(1, 8))
    assert consumer.numbers(4) == [3, 4, 6, 7]


@pytest.mark.guarantee("G7")
def test_what_a_filter_leaves_out_is_confirmed_for_the_durable(server: DeliveryServer) -> None:
    consumer = server.consumer()
    consumer.subscribe(durable="d", filter="n in (3, 5)")
    server.commit(*range(1, 8))
    assert consumer.seqs(2) == [3, 5]
    server.until(lambda: server.mark("d") == 2)
    assert server.gaps("d") == [(3, 3), (5, 5)]
    consumer.ack(5)
    assert server.gaps("d") == [(3, 3)]
    consumer.ack(3)
    server.until(lambda: server.mark("d") == 7)


def test_a_filter_that_matches_nothing_does_not_hold_data_back(tmp_path: Path) -> None:
    with DeliveryServer(tmp_path, store={"retention.tick": "100ms"}) as server:
        consumer = server.consumer()
        consumer.subscribe(durable="d", filter="false")
        server.commit(*range(1, 5001))
        server.until(lambda: server.mark("d") == 5000)
        server.store.flush()
        server.until(lambda: server.rows("trades") == [])


def test_a_filter_that_cannot_be_read_is_refused_with_the_place(server: DeliveryServer) -> None:
    refused = server.consumer().refused(filter="n >")
    assert (refused.code, refused.retry) == ("invalid_filter", False)
    assert "character 3" in refused.reason


def test_a_filter_over_a_column_that_comes_later_begins_to_match(server: DeliveryServer) -> None:
    consumer = server.consumer()
    consumer.subscribe(start="first", filter="colour = 'red'")
    server.commit(1)
    server.store.commit("trades", pa.record_batch({"n": [2, 3], "colour": ["red", "blue"]}))
    assert consumer.numbers(1) == [2]


def test_partitions_choose_frames_from_memory_and_from_segments(server: DeliveryServer) -> None:
    server.commit(1, 2, partitions=("eu",))
    server.commit(3, partitions=("us", "asia"))
    server.store.flush()
    server.commit(4)
    server.commit(5, partitions=("asia",))
    consumer = server.consumer()
    consumer.subscribe(1, start="first", partitions=("asia",))
    assert consumer.numbers(2) == [3, 5]
    consumer.subscribe(2, start="first", partitions=("eu", ""))
    assert consumer.numbers(3) == [1, 2, 4]


def test_columns_and_system_columns_are_delivered_as_asked(server: DeliveryServer) -> None:
    server.store.commit("trades", pa.record_batch({"n": [1, 2, 3], "s": ["a", "b", "c"]}))
    consumer = server.consumer()
    consumer.subscribe(start="first", columns=("s", "nothing"), system=("_seq", "_channel"), filter="n != 2")
    batch = consumer.delivery().batch()
    assert batch.to_pydict() == {"s": ["a", "c"], "_seq": [1, 3], "_channel": ["trades", "trades"]}


def test_many_consumers_of_the_live_tail_share_what_is_read(server: DeliveryServer) -> None:
    consumers = [server.consumer() for _ in range(10)]
    for consumer in consumers:
        consumer.subscribe()
    for number in range(20):
        server.commit(number)
    assert all(consumer.numbers(20) == list(range(20)) for consumer in consumers)
