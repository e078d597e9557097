"""Slow lines and peers that only seem slow: bytes on their way are signs of life; messages that drip are bounded."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.server import server
from holdfast.server.connection import LEAST_BYTES_PER_S, Connection
from holdfast.testing import ManualClock
from holdfast.traffic import traffic_of
from holdfast.wire import consume
from tests.unit.delivery.harness import DeliveryServer
from tests.unit.server.harness import (
    CONTINUATION,
    PATIENCE_S,
    PING,
    PONG,
    TEXT,
    RawClient,
    RunningServer,
    arrow_frame,
    frame_bytes,
)
from tests.unit.sync.served import SyncServer
from tests.unit.sync.world import seed

STEP_S = 40
SETTINGS = {"ingest.ping_interval": "20s", "ingest.idle_timeout": "60s"}
PIECE_BYTES = 48 << 10
"""More than enough for `STEP_S`."""
SMALL_BUFFER_BYTES = 64 << 10
MESSAGE_BYTES = 6 << 20


@pytest.fixture(autouse=True)
def only_the_test_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "SWEEP_S_MAX", 3600.0)


def only_connection(running: RunningServer) -> Connection:
    (connection,) = running.ask(lambda: list(running.server.door.connections.values()))
    return connection


def let_pass(running: RunningServer, clock: ManualClock, seconds: float) -> None:
    """Time passes, then the server looks at its connections."""

    def look() -> None:
        clock.advance(seconds)
        now_ns, config = clock.monotonic_ns(), running.config
        for connection in list(running.server.door.connections.values()):
            connection.sweep(now_ns, config)
        running.server.door.unfinished.sweep(now_ns, config.ingest_idle_timeout_ns)

    running.ask(look)


def send_in_pieces(running: RunningServer, clock: ManualClock, client: RawClient, whole: bytes) -> None:
    """Each piece a while after the one before; all but the last keep the message unfinished."""
    connection = only_connection(running)
    came_bytes = connection._came_bytes
    for start in range(0, len(whole), PIECE_BYTES):
        if start:
            running.until(lambda: connection._came_bytes == came_bytes + start)  # noqa: B023
            let_pass(running, clock, STEP_S)
        client.socket.sendall(whole[start : start + PIECE_BYTES])


def drip(running: RunningServer, clock: ManualClock, client: RawClient, drops: Callable[[int], bytes]) -> int:
    """Send a little again and again until the server has had enough; how long that took."""
    door = running.server.door
    connection = only_connection(running)
    waited_s = 0
    while running.ask(lambda: bool(door.connections)) and waited_s < 100 * STEP_S:
        came_bytes = running.ask(lambda: connection._came_bytes)
        with suppress(ConnectionError):
            client.socket.sendall(drops(waited_s))
            running.until(lambda: connection._came_bytes > came_bytes or not door.connections)  # noqa: B023
        let_pass(running, clock, STEP_S)
        waited_s += STEP_S
        running.until(lambda: connection.info.last_error == "" or not door.connections)
    return waited_s


@pytest.mark.guarantee("G4")
def test_frame_that_comes_slowly_is_taken(tmp_path: Path) -> None:
    clock = ManualClock()
    with RunningServer(tmp_path, SETTINGS, clock=clock) as running, running.client() as client:
        send_in_pieces(running, clock, client, frame_bytes(arrow_frame(1, pad_bytes=900_000)))
        assert client.acknowledged(0) == {"trades": 1}
        assert clock.monotonic_ns() > 5 * running.config.ingest_idle_timeout_ns


def test_request_of_a_consumer_that_comes_slowly_is_answered(tmp_path: Path) -> None:
    clock = ManualClock()
    ack = consume.Ack(sub=1, ranges=tuple((10**12 + 2 * at, 10**12 + 2 * at) for at in range(10_000)), request=7)
    with DeliveryServer(tmp_path, SETTINGS, clock=clock) as running:
        consumer = running.consumer()
        send_in_pieces(running, clock, consumer.raw, frame_bytes(consume.encode(ack)))
        assert getattr(consumer.next(), "request", None) == 7
        assert clock.monotonic_ns() > running.config.ingest_idle_timeout_ns


@pytest.mark.parametrize("in_parts", [False, True], ids=["whole", "in parts"])
def test_message_of_sync_that_comes_slowly_is_answered(tmp_path: Path, in_parts: bool) -> None:
    clock = ManualClock()
    message = b" " * 240_000 + json.dumps(seed("connect", token="t", client_id="A", last_committed_id=0)).encode()
    with SyncServer(tmp_path, settings=SETTINGS, clock=clock) as running, running.talk() as talker:
        whole = frame_bytes(message, opcode=TEXT)
        if in_parts:
            half = len(message) // 2
            first = frame_bytes(message[:half], opcode=TEXT, fin=False)
            whole = first + frame_bytes(message[half:], opcode=CONTINUATION)
        send_in_pieces(running, clock, talker.client, whole)
        assert talker.hear()["type"] == "connected"
        assert clock.monotonic_ns() > running.config.ingest_idle_timeout_ns


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("size", [1, LEAST_BYTES_PER_S * STEP_S // 2], ids=["a byte", "half of enough"])
def test_message_that_drips_ends_its_connection(tmp_path: Path, size: int) -> None:
    """Also one that was most of the way: what came at once earns no time for the rest."""
    clock = ManualClock()
    head = frame_bytes(bytes(16 << 20))[:1_000_000]
    with RunningServer(tmp_path, SETTINGS, clock=clock) as running, running.client() as client:
        waited_s = drip(running, clock, client, lambda waited_s: head if waited_s == 0 else bytes(size))
        assert waited_s <= 5 * STEP_S
        assert client.ended()


@pytest.mark.guarantee("G11")
def test_parts_that_drip_end_the_connection(tmp_path: Path) -> None:
    clock = ManualClock()
    with SyncServer(tmp_path, settings=SETTINGS, clock=clock) as running, running.talk() as talker:
        first, part = (frame_bytes(b" ", opcode=kind, fin=False) for kind in (TEXT, CONTINUATION))
        assert drip(running, clock, talker.client, lambda waited_s: part if waited_s else first) <= 4 * STEP_S
        assert talker.client.ended()


def test_peer_that_only_pings_stays_and_is_no_message_on_its_way(tmp_path: Path) -> None:
    clock = ManualClock()
    with RunningServer(tmp_path, SETTINGS, clock=clock) as running, running.client() as client:
        for _ in range(10):
            client.send(b"here", opcode=PING)
            while client.receive() != (PONG, b"here"):
                pass
            let_pass(running, clock, STEP_S)
        assert running.ask(lambda: running.server.door.unfinished.total_bytes) == 0
        client.send(arrow_frame(1))
        client.acknowledged(0)


def reading_slowly(running: DeliveryServer) -> RawClient:
    """A consumer that was sent more than the buffers between take, and reads nothing yet."""
    running.store.commit("trades", pa.record_batch({"pad": [bytes(MESSAGE_BYTES)]}))
    consumer = running.consumer()
    consumer.raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    consumer.send(consume.Subscribe(request=1, sub=1, channel="trades", start="first", max_inflight_bytes=1 << 30))
    transport = only_connection(running).transport.underlying_transport
    running.until(lambda: traffic_of(transport).is_waiting)
    return consumer.raw


def test_consumer_that_takes_a_large_message_slowly_stays(tmp_path: Path) -> None:
    """It cannot answer a ping that stands behind the message."""
    clock = ManualClock()
    with DeliveryServer(tmp_path, SETTINGS, store={"frame.max_size": "16MiB"}, clock=clock) as running:
        raw = reading_slowly(running)
        connection = only_connection(running)
        transport = connection.transport.underlying_transport
        raw.socket.setblocking(False)
        taken_bytes = 0

        def has_taken_more() -> bool:
            with suppress(BlockingIOError):
                raw.pending += raw.socket.recv(SMALL_BUFFER_BYTES)
            return traffic_of(transport).taken_bytes > taken_bytes

        while running.ask(lambda: traffic_of(transport).is_waiting):
            let_pass(running, clock, STEP_S)
            taken_bytes = running.ask(lambda: traffic_of(transport).taken_bytes)
            running.until(has_taken_more)
        assert clock.monotonic_ns() > 3 * running.config.ingest_idle_timeout_ns
        raw.socket.settimeout(PATIENCE_S)
        while len(raw.receive()[1]) < MESSAGE_BYTES:
            pass
        assert not connection.is_closing


@pytest.mark.guarantee("G11")
def test_consumer_that_takes_nothing_is_dropped(tmp_path: Path) -> None:
    clock = ManualClock()
    with DeliveryServer(tmp_path, SETTINGS, store={"frame.max_size": "16MiB"}, clock=clock) as running:
        reading_slowly(running)
        for _ in range(6):
            let_pass(running, clock, STEP_S)
        running.until(lambda: not running.server.state.connections)


@pytest.mark.guarantee("G11")
def test_message_that_drips_while_others_have_no_room_has_one_idle_timeout(tmp_path: Path) -> None:
    """Fast enough by itself, but nobody else is read meanwhile."""
    clock = ManualClock()
    settings = {
        **SETTINGS,
        "ingest.max_batch_size": "1MiB",
        "ingest.connection_inflight": "1MiB",
        "ingest.total_inflight": "1MiB",
    }
    begun = frame_bytes(bytes(1 << 20))[: 900 << 10]
    with RunningServer(tmp_path, settings, clock=clock) as running, running.client() as slow:
        unfinished = running.server.door.unfinished
        slow.socket.sendall(begun)
        running.until(lambda: unfinished.total_bytes == len(begun))
        dripping = only_connection(running)
        with running.client() as other:
            other.socket.sendall(frame_bytes(arrow_frame(7, pad_bytes=500_000)))
            running.until(lambda: bool(unfinished._waiting))
            for _ in range(3):
                came_bytes = running.ask(lambda: dripping._came_bytes)
                slow.socket.sendall(bytes(STEP_S * LEAST_BYTES_PER_S))
                running.until(lambda: dripping._came_bytes > came_bytes)  # noqa: B023
                let_pass(running, clock, STEP_S)
            assert other.acknowledged(0) == {"trades": 1}
        assert slow.ended()
        assert "a message took 60 s" in dripping.info.last_error
