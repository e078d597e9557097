"""Slow lines, seen by who sends or consumes: a ping or its answer that stands behind a large message ends nothing."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import socket
import struct
import threading
from collections.abc import Callable

import pytest
import uvloop
from picows import WSFrame, WSMsgType, WSTransport

from holdfast.sender import dialing
from holdfast.sender.conf import SenderConfig
from holdfast.sender.dialing import Listener, dial
from holdfast.sender.sender import Sender
from holdfast.wire import replies

PATIENCE_S = 30.0
IMPATIENCE_S = 0.4
"""In place of the 45 s after which a server is asked, and after which it is given up."""
PACE_S = 0.02
PIECE_BYTES = 64 << 10
ROOM_BYTES = 256 << 10
"""Of the one who takes slowly: more than a segment of the loopback, so that the line moves evenly."""
PING_HEAD = 0x89
MESSAGE_BYTES = 2000
WEBSOCKET_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "IDLE_PING_S", IMPATIENCE_S)
    monkeypatch.setattr(dialing, "PONG_TIMEOUT_S", IMPATIENCE_S)


class SlowServer:
    """Takes connections one after the other, and does with each what it is told, on a thread."""

    def __init__(self, serve: Callable[[SlowServer, socket.socket], None]) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, ROOM_BYTES)  # before a connection: it stays
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen()
        self._serve = serve
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.port = self._listener.getsockname()[1]
        self.connections = 0

    def _run(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                if self._end.is_set():
                    return
                self.connections += 1
                connection.settimeout(PATIENCE_S)
                try:
                    self._upgrade(connection)
                    self._serve(self, connection)
                except ConnectionError:
                    pass

    def _upgrade(self, connection: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(4096)
        (key,) = [line.partition(b":")[2].strip() for line in head.split(b"\r\n") if b"websocket-key" in line.lower()]
        accept = base64.b64encode(hashlib.sha1(key + WEBSOCKET_GUID).digest())
        answer = b"HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: " + accept
        connection.sendall(answer + b"\r\n\r\n")

    def pace(self) -> None:
        """Let a moment of the line pass."""
        self._end.wait(PACE_S)

    def __enter__(self) -> SlowServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        socket.create_connection(("127.0.0.1", self.port)).close()
        self._thread.join(PATIENCE_S)
        self._listener.close()


def take_slowly(server: SlowServer, connection: socket.socket) -> None:
    """One frame, then the answer that accepts it; then nothing until the peer is gone."""
    head = connection.recv(14, socket.MSG_WAITALL)
    left_bytes = int(struct.unpack(">Q", head[2:10])[0])
    while left_bytes:
        taken = len(connection.recv(min(PIECE_BYTES, left_bytes)))
        if not taken:
            return
        left_bytes -= taken
        server.pace()
    answer = replies.encode_ok(0, [("t", 1)])
    connection.sendall(bytes([0x82, len(answer)]) + answer)
    while connection.recv(PIECE_BYTES):
        pass


def give_slowly(server: SlowServer, connection: socket.socket) -> None:
    """Once it is asked, a message that drips for longer than anybody would wait for a pong."""
    while connection.recv(1)[0] != PING_HEAD:
        pass
    for byte in b"\x82\x7e" + struct.pack(">H", MESSAGE_BYTES) + bytes(3 * round(IMPATIENCE_S / PACE_S)):
        connection.sendall(bytes([byte]))
        server.pace()
    connection.sendall(bytes(MESSAGE_BYTES))
    while connection.recv(PIECE_BYTES):
        pass


def test_frame_that_leaves_slowly_is_sent_once_on_one_connection() -> None:
    pad = os.urandom(1_900_000).hex()
    with SlowServer(take_slowly) as server:
        with Sender.from_conf(f"ws::addr=127.0.0.1:{server.port};auto_flush=off;") as sender:
            sender.send("t", {"pad": pad})
            assert sender.drain(PATIENCE_S)
            statistics = sender.statistics()
        assert (statistics.total_frames_sent, server.connections) == (1, 1)


class Received(Listener):
    """What came, and whether the connection ended."""

    def __init__(self) -> None:
        self.over: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def on_ws_frame(self, _transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.BINARY and not self.over.done():
            self.over.set_result(len(frame.get_payload_as_bytes()))

    def on_ws_disconnected(self, _transport: WSTransport) -> None:
        if not self.over.done():
            self.over.set_result(0)


def test_message_that_comes_slowly_is_waited_for() -> None:
    async def received_bytes(config: SenderConfig) -> int:
        listener = Received()
        transport, _ = await dial(config, config.addr[0], listener, tls=None)
        try:
            return await asyncio.wait_for(listener.over, PATIENCE_S)
        finally:
            transport.disconnect(graceful=False)

    with SlowServer(give_slowly) as server:
        config = SenderConfig.from_conf(f"ws::addr=127.0.0.1:{server.port};")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            assert runner.run(received_bytes(config)) == MESSAGE_BYTES
        assert server.connections == 1
