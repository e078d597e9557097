"""Durable subscriptions: their place, who may have them, restarts, and what retention sees of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast.wire import consume
from tests.unit.delivery.harness import Consumer, DeliveryServer


def test_close_keeps_a_durables_place_and_unsubscribe_removes_it(server: DeliveryServer) -> None:
    server.commit(1, 2, 3)
    consumer = server.consumer()
    consumer.subscribe(durable="d")
    consumer.seqs(3)
    consumer.ack(1)
    assert not consumer.close_sub().removed
    assert [item.name for item in server.store.subscribers()] == ["d"]
    consumer.subscribe(durable="d")
    assert consumer.seqs(2) == [2, 3]
    assert consumer.unsubscribe().removed
    assert server.store.subscribers() == []
    fresh = consumer.subscribe(durable="d")
    assert not fresh.resumed
    assert consumer.seqs(3) == [1, 2, 3]


def test_duplicate_durable_registration_is_refused(server: DeliveryServer) -> None:
    one, two = server.consumer(), server.consumer()
    one.subscribe(durable="d")
    refused = two.refused(durable="d")
    assert (refused.code, refused.retry) == ("in_use", True)
    assert "'d'" in refused.reason


def test_durable_replaced_ends_the_one_that_had_it(server: DeliveryServer) -> None:
    server.commit(1)
    one, two = server.consumer(), server.consumer()
    one.subscribe(durable="d")
    one.seqs(1)
    two.subscribe(durable="d", replace=True)
    ended = one.event("ended")
    assert (ended.sub, ended.code) == (1, "in_use")
    assert two.delivery().head.attempt == 1
    one.subscribe(1, channel="other")  # its number is free again


def test_a_durable_has_a_place_in_each_channel_it_is_used_for(server: DeliveryServer) -> None:
    server.commit(1, 2)
    server.commit(10, 20, 30, channel="orders")
    consumer = server.consumer()
    consumer.subscribe(1, "trades", durable="d")
    consumer.subscribe(2, "orders", durable="d")
    consumer.seqs(5)
    consumer.ack(1, 2, sub=1)
    consumer.ack(1, sub=2)
    assert (server.mark("d"), server.mark("d", "orders")) == (2, 1)
    assert consumer.unsubscribe(1).removed
    assert [item.patterns for item in server.store.subscribers()] == [("orders",)]
    assert server.mark("d", "orders") == 1


def test_a_durable_that_follows_by_pattern_is_used_but_not_removed(server: DeliveryServer) -> None:
    server.commit(1)
    server.store.subscriber("lake", ["tr*"]).close()
    consumer = server.consumer()
    assert consumer.subscribe(durable="lake").resumed
    consumer.seqs(1)
    consumer.ack(1)
    assert server.mark("lake") == 1
    refused = consumer.ask(consume.Unsubscribe(request=77, sub=1), consume.Refused)
    assert "by a pattern" in refused.reason
    server.commit(2)
    assert consumer.seqs(1) == [2]


def test_a_subscriber_that_is_removed_ends_its_subscription(server: DeliveryServer) -> None:
    consumer = server.consumer()
    consumer.subscribe(durable="d")
    server.store.deregister("d")
    server.commit(1)
    server.ask(server.delivery.look)
    assert consumer.event("ended").code == "unknown_subscription"


@pytest.mark.guarantee("G7")
def test_persistent_store_automatic_delivery_on_restart(tmp_path: Path) -> None:
    """What was not confirmed comes again after a restart of the server, and nothing else."""
    with DeliveryServer(tmp_path) as server:
        server.commit(1, 2, 3, 4, 5)
        consumer = server.consumer()
        consumer.subscribe(durable="d")
        consumer.seqs(5)
        consumer.ack(1, 2, 4)
        assert (server.mark("d"), server.gaps("d")) == (2, [(3, 3)])
    with DeliveryServer(tmp_path) as server:
        consumer = server.consumer()
        assert consumer.subscribe(durable="d").next_seq == 3
        assert consumer.seqs(2) == [3, 5]
        consumer.ack(3, 5)
        assert server.mark("d") == 5


def test_persistent_store_redelivery_count_goes_on_after_a_restart(tmp_path: Path) -> None:
    with DeliveryServer(tmp_path) as server:
        server.commit(1, 2)
        consumer = server.consumer()
        consumer.subscribe(durable="d", batch_rows=1)
        for attempt in (1, 2, 3):
            while consumer.delivery().head.ranges != ((1, 1),):
                pass
            if attempt < 3:
                consumer.nack(1)
        consumer.close_sub()
    with DeliveryServer(tmp_path) as server:
        consumer = server.consumer()
        consumer.subscribe(durable="d")
        found = {delivery.head.ranges: delivery.head for delivery in (consumer.delivery(), consumer.delivery())}
        assert found[((1, 1),)].attempt == 3
        assert found[((1, 1),)].redelivered
        assert (found[((2, 2),)].attempt, found[((2, 2),)].redelivered) == (1, True)


def heads_of(consumer: Consumer, messages: int) -> dict[int, tuple[int, bool]]:
    """The next so many messages: their seqs, the number of the delivery, and whether it says that they came before."""
    found: dict[int, tuple[int, bool]] = {}
    while len(found) < messages:
        head = consumer.delivery().head
        for first, last in head.ranges:
            found |= dict.fromkeys(range(first, last + 1), (head.attempt, head.redelivered))
    return found


def written_as_handed(server: DeliveryServer, durable: str = "d") -> list[tuple[int, int]]:
    """What the store would know of deliveries if the server died now."""
    place = server.store.handing.join(durable, "trades", start="first", others=0)
    return server.store.handing.handed(place, 1, server.store.handing.last_seq("trades"))


def test_what_was_in_flight_when_the_server_crashed_comes_again_marked_and_counted(tmp_path: Path) -> None:
    with DeliveryServer(tmp_path / "running") as server:
        server.commit(1, 2, 3)
        consumer = server.consumer()
        consumer.subscribe(durable="d")
        assert consumer.seqs(3) == [1, 2, 3]
        consumer.ack(1)
        consumer.nack(3)
        assert consumer.seqs(1) == [3]
        server.commit(4)
        consumer.configure(max_inflight=0)
        server.until(lambda: written_as_handed(server) in ([(2, 3)], [(2, 4)]) and not server.delivery.settler.is_busy)
        came = {4} if written_as_handed(server) == [(2, 4)] else set()
        shutil.copytree(tmp_path / "running", tmp_path / "crashed")  # as a kill at this moment leaves it
    with DeliveryServer(tmp_path / "crashed") as server:
        consumer = server.consumer()
        assert consumer.subscribe(durable="d").mark == 1
        assert heads_of(consumer, 3) == {2: (2, True), 3: (3, True), 4: (2, True) if came else (1, False)}


def test_deliveries_are_written_also_when_nobody_answers(server: DeliveryServer) -> None:
    server.commit(1, 2, 3)
    consumer = server.consumer()
    consumer.subscribe(durable="d")
    consumer.seqs(3)
    server.until(lambda: written_as_handed(server) == [(1, 3)])


def test_what_is_answered_at_once_is_not_written_as_handed_out(server: DeliveryServer) -> None:
    consumer = server.consumer()
    consumer.subscribe(durable="d")
    before = server.store.statistics().ack_records
    for seq in range(1, 21):
        server.commit(seq)
        assert consumer.seqs(1) == [seq]
        consumer.ack(seq)
    assert server.store.statistics().ack_records - before <= 25  # the acks, and a delivery that a slow moment caught


@pytest.mark.parametrize("how", ["closed", "stopped"])
def test_what_was_given_back_in_order_comes_again_marked_and_not_counted(tmp_path: Path, how: str) -> None:
    with DeliveryServer(tmp_path) as server:
        server.commit(1, 2)
        consumer = server.consumer()
        consumer.subscribe(durable="d", max_inflight=1)
        consumer.seqs(1)
        if how == "closed":
            consumer.close_sub()
        else:
            server.stop_gently()
            consumer.event("draining")
    with DeliveryServer(tmp_path) as server:
        consumer = server.consumer()
        consumer.subscribe(durable="d")
        assert heads_of(consumer, 2) == {1: (1, True), 2: (1, False)}


def test_what_was_given_back_is_marked_for_the_next_consumer_of_the_same_server(server: DeliveryServer) -> None:
    server.commit(1, 2, 3)
    first, second = server.consumer(), server.consumer()
    first.subscribe(group="g", max_inflight=2)
    second.subscribe(group="g", max_inflight=0)
    server.commit(4)
    server.commit(5)
    assert len(first.seqs(2)) == 2
    first.close_sub()
    second.configure(max_inflight=10)
    marked = heads_of(second, 2)
    assert list(marked.values()) == [(1, True), (1, True)]


def test_poison_that_kills_the_server_is_a_dead_letter_after_its_attempts(tmp_path: Path) -> None:
    """Each life of the server ends with the message in flight."""
    for life in range(2):
        with DeliveryServer(tmp_path / str(life)) as server:
            if not life:
                server.commit(1)
            consumer = server.consumer()
            consumer.subscribe(durable="d", max_deliver=2)
            assert heads_of(consumer, 1) == {1: (life + 1, life > 0)}
            server.until(lambda server=server: written_as_handed(server) == [(1, 1)])  # type: ignore[misc]
            server.until(lambda server=server: not server.delivery.settler.is_busy)  # type: ignore[misc]
            shutil.copytree(tmp_path / str(life), tmp_path / str(life + 1))
    with DeliveryServer(tmp_path / "2") as server:
        consumer = server.consumer()
        consumer.subscribe(durable="d", max_deliver=2)
        server.until(lambda: server.mark("d") == 1)
        consumer.nothing_more()
        (letter,) = [row for part in server.store.read("trades.dead") for row in part.to_pylist()]
        assert letter["reason"] == "max_deliver: 2 deliveries, the last one: the server crashed"


def test_client_crash_and_reconnect_brings_what_was_not_confirmed(server: DeliveryServer) -> None:
    server.commit(1, 2, 3)
    first = server.consumer()
    first.subscribe(durable="d")
    assert first.seqs(3) == [1, 2, 3]
    first.ack(2)
    first.drop()
    server.until(lambda: not any(feed.members for feed in server.delivery.feeds.values()))
    again = server.consumer()
    assert again.subscribe(durable="d").resumed
    assert again.seqs(2) == [1, 3]


def test_durable_restart_with_max_inflight_delivers_all_that_was_pending(tmp_path: Path) -> None:
    with DeliveryServer(tmp_path) as server:
        server.commit(*range(1, 11))
        consumer = server.consumer()
        consumer.subscribe(durable="d", max_inflight=5)
        assert consumer.seqs(5) == [1, 2, 3, 4, 5]
        consumer.drop()
    with DeliveryServer(tmp_path) as server:
        consumer = server.consumer()
        consumer.subscribe(durable="d", max_inflight=2)
        for seq in range(1, 11, 2):
            assert consumer.seqs(2) == [seq, seq + 1]
            consumer.nothing_more()
            consumer.ack(seq, seq + 1)
        assert server.mark("d") == 10


def test_fanout_durables_each_have_a_mark_over_one_copy(tmp_path: Path) -> None:
    """Data goes when the last of them has confirmed it."""
    with DeliveryServer(tmp_path, store={"retention.tick": "100ms"}) as server:
        server.commit(1, 2, 3)
        server.store.flush()
        consumer = server.consumer()
        for sub, name in enumerate(("a", "b"), start=1):
            consumer.subscribe(sub, durable=name)
        consumer.seqs(6)
        consumer.ack(1, 2, 3, sub=1)
        assert (server.mark("a"), server.mark("b")) == (3, 0)
        assert server.rows("trades") == [1, 2, 3]
        consumer.ack(1, 2, 3, sub=2)
        server.until(lambda: server.rows("trades") == [])


def test_too_many_subs_of_a_channel_is_a_clear_error(tmp_path: Path) -> None:
    with DeliveryServer(tmp_path, store={"max_subs": 2}) as server:
        server.commit(1)
        consumer = server.consumer()
        consumer.subscribe(1, durable="a")
        consumer.close_sub(1)  # one that is offline counts too
        consumer.subscribe(2)
        for fields in ({"durable": "b"}, {}, {"group": "g"}, {"mode": "broadcast"}):
            refused = consumer.refused(3, **fields)
            assert refused.code == "limit_reached"
            assert "max_subs is 2" in refused.reason
        consumer.subscribe(1, durable="a")
        consumer.close_sub(2)
        consumer.subscribe(2, group="g")
        consumer.subscribe(4, group="g")  # a group counts once
