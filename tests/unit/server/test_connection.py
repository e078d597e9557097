"""The rules of the socket, and what happens to peers that break them, stop reading or fall silent."""

from __future__ import annotations

import random
import select
import socket
import ssl
import struct
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from holdfast.errors import Category
from holdfast.model.frame import Entry
from holdfast.server.door import HANDSHAKES_MAX
from holdfast.testing import ManualClock
from holdfast.wire import qwp
from holdfast.wire.replies import Refusal
from tests.conformance.certificates import OPENSSL, make_certificates
from tests.unit.server.harness import (
    BINARY,
    CONTINUATION,
    PATIENCE_S,
    PING,
    PONG,
    TEXT,
    RawClient,
    RunningServer,
    arrow_frame,
    frame_bytes,
    open_client,
)

BOMB_ROWS = 20 << 20


def with_stream(stream: bytes) -> bytes:
    """An Arrow frame around an Arrow stream, by hand: the encoder would not make it."""
    name = b"bomb"
    entry = struct.pack("<HHI", len(name), 0, len(stream)) + name
    entry += bytes(-len(entry) % 8)
    return struct.pack("<4sBBH16sQ", b"HFA1", 1, 0, 1, bytes(16), 0) + entry + stream


def bare_socket(running: RunningServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (frame_bytes(arrow_frame(1), fin=False), 1002),
        (frame_bytes(b"x", opcode=CONTINUATION), 1002),
        (frame_bytes(arrow_frame(1), masked=False), 1002),
        (frame_bytes(arrow_frame(1), reserved=4), 1002),
        (frame_bytes(b"x", opcode=5), 1002),
        (frame_bytes(b"x" * 126, opcode=PING), 1002),
        (b"\x82\xfe\x00\x05" + bytes(9), 1002),
        (b"\x82\xff" + struct.pack(">Q", 1 << 63) + bytes(8), 1002),
        (frame_bytes(b"hello", opcode=TEXT), 1003),
        (b"\x82\xff" + struct.pack(">Q", (1 << 20) + 1) + bytes(4), 1009),
        (b"\x82\xff" + struct.pack(">Q", 1 << 62) + bytes(4), 1009),
    ],
    ids=[
        "fragment",
        "continuation",
        "unmasked",
        "reserved bit",
        "unknown opcode",
        "long ping",
        "wasteful length",
        "negative length",
        "text",
        "too large",
        "far too large",
    ],
)
def test_broken_rule_closes_with_its_code_and_stores_nothing(tmp_path: Path, frame: bytes, code: int) -> None:
    with RunningServer(tmp_path, {"ingest.max_batch_size": "1MiB"}) as running:
        with running.client() as client:
            client.socket.sendall(frame)
            assert client.closed() == code
        running.until(lambda: not running.server.state.connections)
        assert running.store.channels() == []


def test_ping_is_answered_with_its_payload(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        client.send(b"are you there", opcode=PING)
        assert client.receive() == (PONG, b"are you there")


def test_close_is_answered_and_the_socket_ends(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        client.send_close(1000)
        assert client.closed() == 1000
        assert client.ended()
        running.until(lambda: not running.server.state.connections)


def test_dropped_connection_is_a_normal_end_and_undoes_an_open_group(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        with running.client() as client:
            client.send(arrow_frame(1))
            client.acknowledged(0)
            running.until(lambda: len(running.server.state.connections) == 1)
        running.until(lambda: not running.server.state.connections)
        assert running.rows("trades") == [1]


def next_ping(running: RunningServer, client: RawClient, clock: ManualClock) -> bytes:
    """Let time pass until the server asks."""

    def has_asked() -> bool:
        clock.advance(0.1)
        return bool(select.select([client.socket], [], [], 0)[0])

    running.until(has_asked)
    opcode, payload = client.receive()
    assert opcode == PING
    return payload


def test_silent_peer_is_asked_then_dropped(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = {"ingest.ping_interval": "10ms", "ingest.idle_timeout": "60s"}
    with RunningServer(tmp_path, settings, clock=clock) as running, running.client() as client:
        client.send(next_ping(running, client, clock), opcode=PONG)
        next_ping(running, client, clock)
        running.ask(lambda: clock.advance(61))
        assert client.ended()
        running.until(lambda: not running.server.state.connections)


def test_peer_that_answers_pings_stays_connected(tmp_path: Path) -> None:
    clock = ManualClock()
    settings = {"ingest.ping_interval": "10ms", "ingest.idle_timeout": "1h"}
    with RunningServer(tmp_path, settings, clock=clock) as running, running.client() as client:
        for _ in range(12):
            client.send(next_ping(running, client, clock), opcode=PONG)
            running.ask(lambda: clock.advance(600))
        client.send(arrow_frame(1))
        client.acknowledged(0)


@pytest.mark.guarantee("G11")
def test_peer_that_does_not_read_its_answers_is_not_read_either(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.socket.setblocking(False)
        ping = frame_bytes(bytes(125), opcode=PING) * 100

        def has_paused() -> bool:
            with suppress(BlockingIOError):
                client.socket.send(ping)
            return running.server.state.connections[0].paused == "peer"

        running.until(has_paused)


@pytest.mark.guarantee("G11")
def test_slow_handshakes_keep_nobody_out(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        slow = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(HANDSHAKES_MAX + 50)]
        for raw in slow:
            raw.sendall(b"GET /api/v4/write HTTP/1.1\r\nHost: ")
        with running.client() as client:
            client.send(arrow_frame(1))
            client.acknowledged(0)
        running.until(lambda: len(running.server.door._handshakes) <= HANDSHAKES_MAX)
        for raw in slow:
            raw.close()
        running.until(lambda: not running.server.door._handshakes)


@pytest.mark.guarantee("G11")
@pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command to make an authority")
def test_slow_tls_handshakes_keep_nobody_out_and_are_dropped(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "files")
    settings = {"tls.cert": str(files.cert), "tls.key": str(files.key), "ingest.handshake_timeout": "2s"}
    hello = bytes.fromhex("16030100f8010000f40303") + bytes(20)  # a client's first words, and no more
    with RunningServer(tmp_path / "data", settings, tls=True) as running:
        slow = [bare_socket(running) for _ in range(200)]
        for number, raw in enumerate(slow):
            raw.sendall(hello[: number % len(hello)])
        context = ssl.create_default_context(cafile=str(files.authority))
        client, answer = open_client(running.port, context=context)
        with client:
            assert answer.status == 101
            client.send(arrow_frame(1))
            client.acknowledged(0)
        for raw in slow:
            with raw, suppress(ConnectionError):
                while raw.recv(4096):  # an alert at most, then the end
                    pass


def test_handshake_that_never_ends_is_dropped(tmp_path: Path) -> None:
    with RunningServer(tmp_path, {"ingest.handshake_timeout": "50ms"}) as running, bare_socket(running) as raw:
        raw.sendall(b"GET /api")
        assert raw.recv(1) == b""


def test_endless_request_head_is_dropped(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, bare_socket(running) as raw:
        try:
            for _ in range(100):
                raw.sendall(b"X-Header: " + b"x" * 1000 + b"\r\n")
            ended = raw.recv(1) == b""
        except ConnectionError:
            ended = True
        assert ended


GROWTH_BYTES_MAX = 64 << 20
"""What hostile peers may cost, beyond what the process had before; generous, for it holds the test as well."""


def own_bytes() -> int:
    """Memory of this process, in which the server runs, that is no mapped file."""
    found = psutil.Process().memory_info()
    return int(found.rss - found.shared)


QWP_FRAME = qwp.encode([Entry("trades", pa.record_batch({"n": pa.array([1, 2, 3], pa.int64())}))], None)


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("whole", [arrow_frame(1, 2, 3, fsn=1), QWP_FRAME], ids=["arrow", "qwp"])
def test_every_cut_of_a_frame_is_refused_and_the_server_goes_on(tmp_path: Path, whole: bytes) -> None:
    """Behind a good frame, so that the cut one is met on every way a frame can take."""
    with RunningServer(tmp_path) as running:
        before = own_bytes()
        for size in range(len(whole)):
            with running.client() as client:
                good, cut = frame_bytes(arrow_frame(1, 2, 3, fsn=1)), frame_bytes(whole[:size])
                client.socket.sendall(good + good + cut)
                refusal = client.refusal()
                assert (refusal.category, refusal.wire_seq) == (Category.PARSE_ERROR, 2), size
        assert running.rows("trades") == [1, 2, 3]
        assert own_bytes() - before < GROWTH_BYTES_MAX


@pytest.mark.guarantee("G9")
def test_cut_in_the_middle_of_a_message_is_a_lost_connection(tmp_path: Path) -> None:
    """The bytes of the socket end; nothing of the message is stored."""
    whole = frame_bytes(arrow_frame(1, 2, 3))
    with RunningServer(tmp_path) as running:
        for size in range(len(whole)):
            with running.client() as client:
                client.socket.sendall(whole[:size])
        running.until(lambda: not running.server.state.connections)
        assert running.store.channels() == []


@pytest.mark.guarantee("G9")
def test_random_bytes_never_stop_the_server_nor_store_anything(tmp_path: Path) -> None:
    chance = random.Random(4)
    with RunningServer(tmp_path) as running:
        before = own_bytes()
        for _ in range(60):
            with running.client() as client:
                client.send(chance.choice([b"HFA1", b"QWP1", b""]) + chance.randbytes(chance.randrange(400)))
                assert isinstance(client.reply(), Refusal)
            client, _ = open_client(running.port)
            with client:
                client.socket.sendall(chance.randbytes(300))
                client.socket.shutdown(socket.SHUT_WR)
                assert client.ended()
        with running.client() as client:
            client.send(arrow_frame(7))
            assert client.acknowledged(0) == {"trades": 1}
        assert running.store.channels() == ["trades"]
        assert own_bytes() - before < GROWTH_BYTES_MAX


@pytest.mark.guarantee("G11")
def test_small_message_that_inflates_to_a_huge_one_is_refused(tmp_path: Path) -> None:
    batch = pa.record_batch(
        {"n": pa.Array.from_buffers(pa.int64(), BOMB_ROWS, [None, pa.py_buffer(bytes(8 * BOMB_ROWS))])}
    )
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    bomb = with_stream(sink.getvalue().to_pybytes())
    assert len(bomb) < 1 << 20
    with RunningServer(tmp_path) as running, running.client() as client:
        before = own_bytes()
        client.send(bomb)
        refusal = client.refusal()
        assert "inflate" in refusal.message or "allowed" in refusal.message
        assert own_bytes() - before < GROWTH_BYTES_MAX
        assert running.store.channels() == []


WHOLE = arrow_frame(1, 2, 3)
MEND_YOURS = {Category.PARSE_ERROR, Category.SCHEMA_MISMATCH, Category.DICTIONARY_GAP}
"""Categories of a frame that was damaged on its way: the fault is the frame's, not the server's."""


def some_of(whole: bytes, *, all_of_it: bool) -> Sequence[int]:
    return range(8 * len(whole)) if all_of_it else random.Random(5).sample(range(8 * len(whole)), 120)


@pytest.mark.guarantee("G9")
@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("all_of_it", [False, pytest.param(True, marks=pytest.mark.long)], ids=["some", "all"])
@pytest.mark.parametrize("whole", [WHOLE, QWP_FRAME], ids=["arrow", "qwp"])
def test_flipped_bits_of_a_frame_are_refused_or_stored_whole(tmp_path: Path, whole: bytes, all_of_it: bool) -> None:
    with RunningServer(tmp_path) as running:
        with running.client() as client:
            client.send(whole)
            client.acknowledged(0)
        before = own_bytes()
        for bit in some_of(whole, all_of_it=all_of_it):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            with running.client() as client:
                client.send(bytes(flipped))
                client.send(whole)  # ends what a flipped flag has left open
                reply = client.reply()
                assert not isinstance(reply, Refusal) or reply.category in MEND_YOURS, (bit, reply)
        assert own_bytes() - before < GROWTH_BYTES_MAX
        for channel in running.store.channels():
            assert len(running.rows(channel, running.store.schema(channel).names[0])) % 3 == 0
        with running.client() as client:
            client.send(whole)
            client.reply()


def test_stopping_server_answers_what_came_then_says_it_goes(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as client, running.client() as idle:
        for fsn in range(300):
            client.send(arrow_frame(fsn, fsn=fsn))
        running.until(lambda: running.server.state.connections[0].frames == 300)
        running.stop()
        assert client.acknowledged(299) == {"trades": 300}
        assert client.closed() == 1001
        assert idle.closed() == 1001
        running.join()
        assert running.failure is None


def test_stopping_server_lets_nobody_in(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as stays:
        running.ask(lambda: setattr(running.server.state, "draining", True))
        _, answer = open_client(running.port)
        assert answer.status == 503
        running.ask(lambda: setattr(running.server.state, "draining", False))
        stays.send(b"", opcode=BINARY)
        assert isinstance(stays.reply(), Refusal)


IDLE_CONNECTIONS = 5000
IDLE_BYTES_MAX = 32 << 10
"""What one may cost: its read buffer of 4 KiB, what Python keeps of it, and the client of the test."""


@pytest.mark.long
@pytest.mark.guarantee("G11")
def test_five_thousand_idle_connections_cost_little_and_disturb_nobody(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        running.client().close()  # what the first one loads is no connection's cost
        running.until(lambda: not running.server.state.connections)
        before = own_bytes()
        clients = [running.client() for _ in range(IDLE_CONNECTIONS)]
        assert (own_bytes() - before) / IDLE_CONNECTIONS < IDLE_BYTES_MAX
        with running.client() as busy:
            for fsn in range(500):
                busy.send(arrow_frame(fsn, fsn=fsn))
            assert busy.acknowledged(499) == {"trades": 500}
            assert running.ask(lambda: len(running.server.state.connections)) == IDLE_CONNECTIONS + 1
        for client in clients:
            client.close()
        running.until(lambda: len(running.server.state.connections) <= 1)
