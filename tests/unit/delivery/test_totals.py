"""What `/metrics` says about delivery."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from holdfast.server.admin.metrics import figures_of, render
from holdfast.wire import consume
from tests.unit.delivery.harness import DeliveryServer


def metrics(server: DeliveryServer) -> dict[str, float]:
    """The series of delivery: `name` or `name/label`."""
    text = render(server.store, server.ask(lambda: figures_of(server.server.state))).decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("holdfast_delivery_"):
                name = "/".join([sample.name.removeprefix("holdfast_delivery_"), *sample.labels.values()])
                found[name] = sample.value
    return found


def test_every_kind_of_subscription_is_counted(server: DeliveryServer) -> None:
    consumer = server.consumer()
    consumer.subscribe(1)
    consumer.subscribe(2, durable="lake")
    consumer.subscribe(3, group="pool")
    consumer.subscribe(4, group="pool")
    consumer.subscribe(5, group="crew", durable="crew")
    found = metrics(server)
    kinds = {name.partition("/")[2]: value for name, value in found.items() if name.startswith("subscriptions/")}
    assert kinds == {"ephemeral": 1, "durable": 1, "group": 2, "durable_group": 1}
    consumer.close_sub(2)
    assert metrics(server)["subscriptions/durable"] == 0


def test_messages_are_counted_by_what_became_of_them(server: DeliveryServer) -> None:
    server.commit(*range(1, 11))
    consumer = server.consumer()
    consumer.subscribe(durable="lake", start="first")
    assert consumer.seqs(10) == list(range(1, 11))
    assert metrics(server)["inflight_messages"] == 10
    consumer.ack(1, 2, 3)
    consumer.ack(1, 2)
    consumer.nack(4)
    assert consumer.seqs(1) == [4]
    consumer.ask(consume.Reject(sub=1, ranges=((5, 6),), reason="bad", request=99), consume.Settled)
    consumer.nack(7, delay_ms=3_600_000)
    found = metrics(server)
    assert (found["messages_total"], found["redelivered_total"]) == (11, 1)
    assert (found["dead_letters_total"], found["stale_answers_total"]) == (2, 2)
    assert (found["inflight_messages"], found["waiting_messages"]) == (4, 1)


def test_a_feed_without_room_is_told_as_stalled(tmp_path: Path) -> None:
    with DeliveryServer(tmp_path / "data") as server:
        server.commit(1, 2, 3)
        consumer = server.consumer()
        consumer.subscribe(start="first", max_inflight=2)
        assert consumer.seqs(2) == [1, 2]
        assert metrics(server)["stalled_feeds"] == 1
        consumer.ack(1, 2)
        assert consumer.seqs(1) == [3]
        assert metrics(server)["stalled_feeds"] == 0
