"""Thousands of durable subscriptions on one server: each gets every event, and memory stays bounded."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from holdfast.wire import consume
from holdfast.wire.consumesession import SUBS_MAX
from tests.unit.delivery.harness import Consumer, DeliveryServer

BYTES_PER_DURABLE = 40_000
"""In memory, with its connection's share, its feed, and what the store keeps of it."""


def subscribe_all(server: DeliveryServer, durables: int) -> list[Consumer]:
    """So many durables over as few connections as allowed."""
    consumers = []
    for start in range(0, durables, SUBS_MAX):
        consumer = server.consumer()
        consumers.append(consumer)
        subs = range(1, min(SUBS_MAX, durables - start) + 1)
        for sub in subs:
            name = f"d{start + sub}"
            consumer.send(
                consume.Subscribe(request=sub, sub=sub, channel="trades", durable=name, ack_wait_ms=3_600_000)
            )
        for _ in subs:
            consumer.expect(consume.Subscribed)
    return consumers


def receive_and_ack(consumer: Consumer, subs: int, rows: int) -> None:
    """Take so many messages on each subscription, and confirm them."""
    left = dict.fromkeys(range(1, subs + 1), rows)
    while any(left.values()):
        delivery = consumer.delivery()
        left[delivery.head.sub] -= delivery.head.rows
        assert left[delivery.head.sub] >= 0
        consumer.send(consume.Ack(sub=delivery.head.sub, ranges=delivery.head.ranges))
    consumer.ack_upto(1, sub=1)


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("durables", [100, pytest.param(10_000, marks=[pytest.mark.long, pytest.mark.timeout(1500)])])
def test_durables_by_the_thousand_stay_within_bounds(tmp_path: Path, durables: int) -> None:
    patient = {"ingest.idle_timeout": "1h", "ingest.ping_interval": "30m"}
    with DeliveryServer(tmp_path, patient, store={"max_subs": 0}) as server:
        server.commit(1, 2)
        before = psutil.Process().memory_info().rss
        consumers = subscribe_all(server, durables)
        for consumer in consumers:
            receive_and_ack(consumer, min(SUBS_MAX, durables), 2)
        for number in range(3, 8):
            server.commit(number)
        for consumer in consumers:
            receive_and_ack(consumer, min(SUBS_MAX, durables), 5)
        grown = psutil.Process().memory_info().rss - before
        assert grown < durables * BYTES_PER_DURABLE + (64 << 20)
        server.until(lambda: not server.delivery.settler.is_busy)
        assert {item.channels[0].mark for item in server.store.subscribers()[:50]} == {7}
