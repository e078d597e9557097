"""Who may consume, messages that may not be sent, and how a server stops."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.config.server import ServerConfig
from holdfast.disk.local import LocalFilesystem
from holdfast.server.access.tokens import TokenFile
from holdfast.wire import consume
from tests.unit.delivery.harness import Consumer, DeliveryServer
from tests.unit.server.harness import TEXT, open_client


@pytest.mark.guarantee("G12")
def test_a_consumer_gets_only_channels_it_may_consume(tmp_path: Path) -> None:
    rules = [
        {"principal": "reader", "allow": "consume", "channels": ["trades"]},
        {"principal": "writer", "allow": "publish"},
    ]
    with DeliveryServer(tmp_path, {"access": rules}) as server:
        secrets = {}
        for name in ("reader", "writer"):
            tokens = TokenFile(LocalFilesystem(), server.config.tokens_path)
            _, secrets[name] = tokens.create(name, now_ns=server.clock.wall_ns())
        server.ask(server.gatekeeper.poll)
        server.commit(1)
        server.commit(2, channel="salaries")
        assert open_client(server.port, consume.PATH)[1].status == 401
        reader = server.consumer(Authorization=f"Bearer {secrets['reader']}")
        reader.subscribe(1, "trades", start="first")
        assert reader.numbers(1) == [1]
        refused = reader.refused(2, "salaries", start="first")
        assert refused.code == "forbidden"
        assert "salaries" in refused.reason
        writer = server.consumer(Authorization=f"Bearer {secrets['writer']}")
        assert writer.refused(1, "trades").code == "forbidden"
        assert reader.refused(2, "salaries", durable="d").code == "forbidden"
        assert server.store.subscribers() == []


@pytest.mark.guarantee("G12")
def test_a_right_that_is_taken_away_ends_the_subscription(tmp_path: Path) -> None:
    def rules(*channels: str) -> ServerConfig:
        settings = {"access": [{"principal": "*", "allow": "consume", "channels": list(channels)}]}
        return ServerConfig.from_mapping({"data": str(tmp_path), "server.listen": "127.0.0.1:0", **settings})

    with DeliveryServer(tmp_path, {"access": [{"principal": "*", "allow": "consume"}]}) as server:
        consumer = server.consumer()
        consumer.subscribe()
        server.commit(1)
        assert consumer.numbers(1) == [1]
        server.ask(lambda: server.server.reload(rules("other")))
        server.commit(2)
        assert consumer.event("ended").code == "forbidden"
        consumer.nothing_more_on(1)


@pytest.mark.parametrize(
    "raw",
    [
        b"nonsense",
        consume.encode(consume.Hello()),
        consume.encode(consume.Ack(sub=1, ranges=((5, 1),))),
        consume.encode(consume.Closed(request=1, sub=1)),
    ],
    ids=["no message", "hello twice", "range upside down", "what servers say"],
)
def test_a_message_that_may_not_be_sent_ends_the_connection(server: DeliveryServer, raw: bytes) -> None:
    consumer = server.consumer()
    consumer.raw.send(raw)
    assert consumer.raw.closed() == 1002


def test_a_message_that_is_too_large_ends_the_connection(server: DeliveryServer) -> None:
    consumer = server.consumer()
    consumer.raw.send(bytes(consume.REQUEST_BYTES_MAX + 1))
    assert consumer.raw.closed() == 1009


def test_text_ends_the_connection(server: DeliveryServer) -> None:
    consumer = server.consumer()
    consumer.raw.send(b"hello", opcode=TEXT)
    assert consumer.raw.closed() == 1003


def test_a_request_for_a_subscription_that_is_not_open_is_refused(server: DeliveryServer) -> None:
    consumer = server.consumer()
    assert consumer.ask(consume.Close(request=1, sub=7), consume.Refused).code == "unknown_subscription"
    consumer.send(consume.Ack(sub=7, upto=3))  # stale: nobody is told
    consumer.subscribe()


def test_large_messages_arrive_as_they_were_sent(server: DeliveryServer) -> None:
    """Many of more than 8 KiB at once, to a peer that is slow: each with its own header."""
    consumer = server.consumer()
    consumer.subscribe(start="first", batch_rows=1, max_inflight=10_000, max_inflight_bytes=1 << 30)
    bodies = [bytes([number % 251]) * (8000 + 37 * number) for number in range(300)]
    server.store.commit("trades", pa.record_batch({"b": bodies}))
    assert [consumer.delivery().batch().column("b")[0].as_py() for _ in bodies] == bodies


def test_a_server_that_stops_takes_answers_and_says_so(tmp_path: Path) -> None:
    with DeliveryServer(tmp_path) as server:
        server.commit(1, 2)
        consumer = server.consumer()
        consumer.subscribe(durable="d")
        consumer.seqs(2)
        server.stop_gently()
        consumer.event("draining")
        refused = consumer.refused(2, durable="other")
        assert (refused.code, refused.retry) == ("unavailable", True)
        consumer.ack(1, 2)
        assert consumer.raw.closed() == 1001
        server.join()
        assert server.mark("d") == 2


def test_a_consumer_without_messages_is_let_go_at_once(tmp_path: Path) -> None:
    with DeliveryServer(tmp_path) as server:
        consumer = server.consumer()
        consumer.subscribe(durable="d")
        server.stop_gently()
        assert consumer.raw.closed() == 1001


def test_many_subscriptions_share_one_connection(server: DeliveryServer) -> None:
    consumer = server.consumer()
    for sub in range(1, 51):
        consumer.subscribe(sub, f"channel-{sub}")
    for sub in range(1, 51):
        server.commit(sub, channel=f"channel-{sub}")
    found = {}
    for _ in range(50):
        delivery = consumer.delivery()
        found[delivery.head.sub] = delivery.batch().column("n").to_pylist()
    assert found == {sub: [sub] for sub in range(1, 51)}


def feeds(server: DeliveryServer) -> int:
    """How many the server has in memory."""
    server.ask(server.delivery.look)
    return server.ask(lambda: len(server.delivery.feeds))


def test_what_a_connection_leaves_behind_is_forgotten(server: DeliveryServer) -> None:
    consumers: list[Consumer] = [server.consumer() for _ in range(3)]
    for number, consumer in enumerate(consumers):
        consumer.subscribe(1)
        consumer.subscribe(2, durable=f"d{number}")
        consumer.subscribe(3, group="g")
    assert feeds(server) == 7
    for consumer in consumers:
        consumer.drop()
    server.until(lambda: not any(feed.members for feed in server.delivery.feeds.values()))
    assert feeds(server) == 0
