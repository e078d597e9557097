"""The consumer against a server on a real socket that delivers as the test says."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast import AsyncConsumer, Consumer
from holdfast.consumer.core import Notice
from holdfast.errors import Closed, InvalidConfig, NotConfirmed, NotConnected, SubscriptionRefused, Unauthenticated
from holdfast.sender.happenings import ConnectionEvent, EventKind
from holdfast.wire import consume
from tests.e2e.served import free_port
from tests.unit.consumer.scripted import FAST, deliver, requests, say, sent, serving
from tests.unit.sender.loopback import PATIENCE_S, Loopback, Peer
from tests.unit.sender.test_link import Heard


def connect(server: Loopback, **keys: Any) -> Consumer:
    return Consumer(addr=f"127.0.0.1:{server.port}", **{"channel": "trades", **FAST, **keys})


def acked(peer: Peer) -> list[tuple[int, int]]:
    """The ranges that were acknowledged on a connection."""
    return [span for ack in sent(peer, consume.Ack) for span in ack.ranges]


def test_messages_come_in_order_and_acks_go_back_together() -> None:
    with serving(lambda peer: deliver(peer, 1, 500)) as server, connect(server) as consumer:
        for message in consumer.fetch(500, PATIENCE_S):
            assert message.data == {"n": message.seq}
            message.ack()
        server.until(lambda: sum(last - first + 1 for first, last in acked(server.peers[0])) == 500)
        assert len(sent(server.peers[0], consume.Ack)) < 100


def test_close_sends_the_acks_that_are_on_their_way() -> None:
    with serving(lambda peer: deliver(peer, 1, 3)) as server:
        with connect(server) as consumer:
            for message in consumer.fetch(3, PATIENCE_S):
                message.ack()
        assert [type(item) for item in requests(server.peers[0])][-1] is consume.Close
        assert acked(server.peers[0]) == [(1, 3)]


def test_closing_a_consumer_is_nothing_to_be_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="holdfast")
    with serving(lambda peer: deliver(peer, 1, 1)) as server, connect(server) as consumer:
        assert consumer.fetch(1, PATIENCE_S)
    (told,) = [record for record in caplog.records if "consumer.link.disconnected" in record.getMessage()]
    assert told.levelname == "INFO"


def test_batches_are_record_batches_confirmed_by_the_consumer() -> None:
    with serving(lambda peer: deliver(peer, 1, 3)) as server, connect(server) as consumer:
        for batch in consumer.batches(PATIENCE_S):
            assert batch.to_pydict() == {"n": [1, 2, 3]}
            consumer.ack()
            break
        server.until(lambda: acked(server.peers[0]) == [(1, 3)])


def test_answers_that_wait_say_what_became_of_the_message() -> None:
    with serving(lambda peer: deliver(peer, 1, 4, attempt=2)) as server, connect(server) as consumer:
        first, second, third, fourth = consumer.fetch(4, PATIENCE_S)
        assert (first.attempt, first.redelivered) == (2, True)
        first.nack(2.5)
        second.reject("cannot be read")
        third.in_progress()
        fourth.ack_sync()
        peer = server.peers[0]
        assert [(item.ranges, item.delay_ms) for item in sent(peer, consume.Nack)] == [(((1, 1),), 2500)]
        assert [(item.ranges, item.reason) for item in sent(peer, consume.Reject)] == [(((2, 2),), "cannot be read")]
        assert [item.ranges for item in sent(peer, consume.Extend)] == [((3, 3),)]
        assert acked(peer) == [(4, 4)]


def test_lost_connection_is_won_back_and_unanswered_messages_come_again() -> None:
    heard = Heard()
    with serving(lambda peer: deliver(peer, 1, 2)) as server, connect(server, durable="d", on_event=heard) as consumer:
        (first, _) = consumer.fetch(2, PATIENCE_S)
        server.do(server.peers[0].drop)
        again = consumer.next(PATIENCE_S)
        assert again is not None
        assert again.seq == first.seq
        again.ack_sync()
        heard.until(4)
        kinds = [item.kind for item in heard.items if isinstance(item, ConnectionEvent)]
        assert kinds == [EventKind.CONNECTED, EventKind.DISCONNECTED, EventKind.RECONNECTED, EventKind.STATE_RESTORED]
        assert consumer.statistics().reconnects == 1


def test_lost_server_is_replaced_by_the_next_of_the_list() -> None:
    heard = Heard()
    with serving(lambda peer: deliver(peer, 1, 2)) as one, serving(lambda peer: deliver(peer, 2, 3)) as other:
        one._upgrade = lambda _headers, number: (101, []) if number == 0 else (503, [])
        addr = f"127.0.0.1:{one.port},127.0.0.1:{other.port}"
        with Consumer(addr=addr, channel="trades", durable="d", on_event=heard, **FAST) as consumer:
            assert [message.seq for message in consumer.fetch(2, PATIENCE_S)] == [1, 2]
            one.do(one.peers[0].drop)
            heard.until_kind(EventKind.STATE_RESTORED)
            following = consumer.next(PATIENCE_S)
            assert following is not None
            assert following.seq == 2
            following.ack_sync()
            assert acked(other.peers[0]) == [(2, 2)]
            kinds = [item.kind for item in heard.items if isinstance(item, ConnectionEvent)]
            assert EventKind.FAILED_OVER in kinds


def test_messages_nobody_took_are_dropped_with_their_connection() -> None:
    arrivals = threading.Semaphore(0)

    def opened(peer: Peer) -> None:
        deliver(peer, 10 * peer.number + 1, 10 * peer.number + 2)
        arrivals.release()

    heard = Heard()
    with serving(opened) as server, connect(server, durable="d", on_event=heard) as consumer:
        assert arrivals.acquire(timeout=PATIENCE_S)
        server.do(server.peers[0].drop)
        heard.until_kind(EventKind.STATE_RESTORED)
        message = consumer.next(PATIENCE_S)
        assert message is not None
        assert message.seq == 11


def test_confirmations_are_not_buffered_while_disconnected() -> None:
    heard = Heard()

    def upgrade(_headers: object, number: int) -> tuple[int, list[tuple[str, str]]]:
        return (101, []) if number == 0 else (503, [])

    server = serving(lambda peer: deliver(peer, 1, 1))
    server._upgrade = upgrade
    with server, connect(server, durable="d", on_event=heard) as consumer:
        message = consumer.next(PATIENCE_S)
        assert message is not None
        server.do(server.peers[0].drop)
        heard.until_kind(EventKind.DISCONNECTED)
        for answer in (message.ack, message.ack_sync, message.nack, message.reject):
            with pytest.raises(NotConfirmed):
                answer()
        with pytest.raises(NotConnected):
            message.ack()


def test_change_of_limits_reaches_the_server() -> None:
    with serving(lambda _peer: None) as server, connect(server) as consumer:
        consumer.configure(max_inflight=7, ack_wait=1.5)
        (change,) = sent(server.peers[0], consume.Configure)
        assert (change.max_inflight, change.ack_wait_ms) == (7, 1500)


def test_open_is_buffered_while_no_server_is_there() -> None:
    port = free_port()
    consumer = Consumer(addr=f"127.0.0.1:{port}", channel="trades", initial_connect_retry="async", **FAST)
    assert consumer.next(0.0) is None
    consumer.close()
    with pytest.raises(Closed):
        consumer.configure(max_inflight=1)


def test_start_without_a_server_says_so() -> None:
    with pytest.raises(NotConnected, match=r"127\.0\.0\.1"):
        Consumer(addr=f"127.0.0.1:{free_port()}", channel="trades")


def test_wrong_credential_ends_the_start() -> None:
    server = serving(lambda _peer: None)
    server._upgrade = lambda _headers, _number: (401, [])
    with server, pytest.raises(Unauthenticated, match="consume from"):
        connect(server, token="wrong")


def test_refused_subscription_is_the_error_of_the_start() -> None:
    def script(peer: Peer) -> None:
        for request in sent(peer, consume.Subscribe):
            refused = consume.Refused(request=request.request, sub=1, code="limit_reached", reason="max_subs is 1")
            say(peer, refused)

    with Loopback(script) as server, pytest.raises(SubscriptionRefused, match="max_subs is 1"):
        connect(server)


def test_subscription_taken_over_by_another_ends_the_iteration_with_the_reason() -> None:
    ended = consume.Event(event="ended", sub=1, code="in_use", reason="replaced")
    heard = Heard()
    with (
        serving(lambda peer: say(peer, ended)) as server,
        connect(server, on_event=heard) as consumer,
        pytest.raises(SubscriptionRefused, match="replaced"),
    ):
        consumer.next(PATIENCE_S)
    assert [item for item in heard.items if isinstance(item, Notice)] == [Notice("ended", (), "replaced")]


def test_handler_may_close_the_consumer_without_a_deadlock() -> None:
    done = threading.Event()
    holder: list[Consumer] = []

    def handle(message: Any) -> None:
        message.ack()
        holder[0].close()
        done.set()

    opened = threading.Event()

    def when_open(peer: Peer) -> None:
        opened.wait(PATIENCE_S)
        deliver(peer, 1, 1)

    with serving(when_open) as server:
        holder.append(connect(server, on_message=handle))
        opened.set()
        assert done.wait(PATIENCE_S)
        assert acked(server.peers[0]) == [(1, 1)]


def test_handler_that_raises_gives_its_message_back() -> None:
    def handle(_message: Any) -> None:
        raise ValueError("cannot")

    with serving(lambda peer: deliver(peer, 1, 1)) as server, connect(server, on_message=handle):
        server.until(lambda: bool(sent(server.peers[0], consume.Nack)))


def test_keys_of_producers_are_refused_by_name() -> None:
    with pytest.raises(InvalidConfig, match="sf_dir"):
        Consumer("ws::addr=127.0.0.1:1;sf_dir=/nowhere;", channel="trades")


def test_connect_string_shared_with_a_producer_serves_both(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda peer: deliver(peer, 1, 1)) as server:
        monkeypatch.setenv("HOLDFAST_CONF", f"ws::addr=127.0.0.1:{server.port};auto_flush_rows=10;")
        with Consumer.from_env(channel="trades") as consumer:
            assert [message.seq for message in consumer.fetch(1, PATIENCE_S)] == [1]


def test_asyncio_consumer_gets_the_same_messages() -> None:
    async def consume_all(port: int) -> list[int]:
        found = []
        async with AsyncConsumer.from_conf(f"ws::addr=127.0.0.1:{port};", channel="trades") as consumer:
            async for message in consumer:
                message.ack()
                found.append(message.seq)
                if len(found) == 3:
                    break
            assert await consumer.next(0.0) is None
        return found

    with serving(lambda peer: deliver(peer, 1, 3)) as server:
        assert asyncio.run(consume_all(server.port)) == [1, 2, 3]
        assert acked(server.peers[0]) == [(1, 3)]
