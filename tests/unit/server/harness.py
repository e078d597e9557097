"""A real server on a real socket inside the test's process, and a WebSocket client that may break every rule."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPMessage, parse_headers
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import pyarrow as pa
import uvloop

from holdfast.clock import Clock, SystemClock
from holdfast.config import StoreConfig
from holdfast.config.server import ServerConfig
from holdfast.disk.filesystem import Filesystem
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import HoldfastError
from holdfast.model.frame import Entry
from holdfast.server.access import AuditLog, Gatekeeper, ReloadableTls
from holdfast.server.server import Parts, Server
from holdfast.store.store import Store
from holdfast.wire import hfa, replies

PATIENCE_S = 30.0
"""How long a test waits for what must happen before it fails."""
CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
SLOT = bytes(range(1, 17))
LOOP_THREAD = "test-server"

_T = TypeVar("_T")


class RunningServer:
    """A server with its store and its loop on a thread; ends in order when the block does."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, object] | None = None,
        *,
        store: Mapping[str, object] | None = None,
        filesystem: Filesystem | None = None,
        access_filesystem: Filesystem | None = None,
        clock: Clock | None = None,
        tls: bool = False,
    ) -> None:
        self.directory = directory
        self.config = ServerConfig.from_mapping(
            {"data": str(directory), "server.listen": "127.0.0.1:0", **(settings or {})}
        )
        self.clock = clock or SystemClock()
        self.filesystem = filesystem or LocalFilesystem()
        self.audit: list[bytes] = []
        self.audit_threads: list[str] = []
        """On which thread each line of the audit log was written."""
        self.tls = ReloadableTls(self.config) if tls else None
        self.store = Store.open(
            directory, StoreConfig.from_mapping(store or {}), filesystem=self.filesystem, clock=self.clock
        )
        self.gatekeeper = Gatekeeper(
            self.config,
            self.clock,
            access_filesystem or LocalFilesystem(),
            audit=AuditLog(self._take_audit_line, self.clock),
        )
        self.failure: HoldfastError | None = None
        self.server: Server
        self.loop: asyncio.AbstractEventLoop
        self.port = 0
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name=LOOP_THREAD)

    def _take_audit_line(self, line: bytes) -> None:
        self.audit.append(line)
        self.audit_threads.append(threading.current_thread().name)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runner.run(self._serve())
            finally:
                self._ready.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = Server(self.config, Parts(self.store, self.gatekeeper, self.clock, self.tls))
        _, self.port = await self.server.start()
        self.failure = await self.server.run(on_ready=self._ready.set)

    def __enter__(self) -> RunningServer:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        assert self.port, "the server did not start"
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.stop()
        self.join()
        self.gatekeeper.close()
        self.store.close()

    def stop(self) -> None:
        """As SIGTERM does."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.server.stop)

    def join(self) -> None:
        """Until the server has ended."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server did not end"

    def ask(self, question: Callable[[], _T]) -> _T:
        """The answer of something that only the loop may look at."""

        async def answer() -> _T:
            return question()

        return asyncio.run_coroutine_threadsafe(answer(), self.loop).result(PATIENCE_S)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the loop sees a condition hold."""
        done = threading.Event()

        def look() -> None:
            if condition():
                done.set()
            else:
                self.loop.call_later(0.002, look)

        self.loop.call_soon_threadsafe(look)
        assert done.wait(PATIENCE_S), "the condition never held"

    def client(self, path: str = "/api/v4/write", **headers: str) -> RawClient:
        """A client that is let in."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        client, answer = open_client(self.port, path, named)
        assert answer.status == 101, answer
        return client

    def rows(self, channel: str, column: str = "n") -> list[object]:
        """What the store holds now."""
        if channel not in self.store.channels():
            return []
        return [value for batch in self.store.read(channel, columns=[column]) for value in batch.column(0).to_pylist()]


@dataclass
class Answer:
    """What a handshake got."""

    status: int
    headers: HTTPMessage
    body: bytes = b""


@dataclass
class RawClient:
    """A WebSocket over a plain socket; it sends what it is told, right or wrong."""

    socket: socket.socket
    pending: bytes = b""
    sent: int = field(default=0)

    def __enter__(self) -> RawClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the connection without a word."""
        self.socket.close()

    def send(
        self, payload: bytes, *, opcode: int = BINARY, fin: bool = True, masked: bool = True, reserved: int = 0
    ) -> None:
        """One frame."""
        self.socket.sendall(frame_bytes(payload, opcode=opcode, fin=fin, masked=masked, reserved=reserved))
        self.sent += 1

    def send_close(self, code: int = 1000) -> None:
        """Say goodbye."""
        self.send(struct.pack(">H", code), opcode=CLOSE)

    def receive(self) -> tuple[int, bytes]:
        """The next frame from the server: opcode and payload."""
        head = self._exactly(2)
        assert head[0] & 0x70 == 0
        assert head[1] & 0x80 == 0, "a server must not mask"
        size = head[1] & 0x7F
        if size == 126:
            (size,) = struct.unpack(">H", self._exactly(2))
        elif size == 127:
            (size,) = struct.unpack(">Q", self._exactly(8))
        return head[0] & 0x0F, self._exactly(size)

    def reply(self) -> replies.Ok | replies.DurableAck | replies.Refusal:
        """The next answer; control frames in between are skipped."""
        while True:
            opcode, payload = self.receive()
            if opcode == BINARY:
                return replies.decode(payload)
            assert opcode in {PING, PONG}, f"the server closed: {payload!r}"

    def acknowledged(self, wire_seq: int) -> dict[str, int]:
        """Wait for the OK that covers a message; the last seqs on the way."""
        marks: dict[str, int] = {}
        while True:
            reply = self.reply()
            assert isinstance(reply, replies.Ok), reply
            marks |= dict(reply.channels)
            if reply.wire_seq >= wire_seq:
                return marks

    def refusal(self) -> replies.Refusal:
        """Wait for a refusal, past the OKs before it."""
        while True:
            reply = self.reply()
            if isinstance(reply, replies.Refusal):
                return reply

    def closed(self) -> int:
        """Wait for the close frame; its code. 1006 if the connection ended without one."""
        try:
            while True:
                opcode, payload = self.receive()
                if opcode == CLOSE:
                    return int(struct.unpack(">H", payload[:2])[0])
        except (ConnectionError, EOFError):
            return 1006

    def ended(self) -> bool:
        """Whether the server ends the connection; waits for it."""
        try:
            while self.socket.recv(65536):
                pass
        except ConnectionError:
            return True
        return True

    def _exactly(self, size: int) -> bytes:
        while len(self.pending) < size:
            received = self.socket.recv(65536)
            if not received:
                raise EOFError("the server closed the connection")
            self.pending += received
        taken, self.pending = self.pending[:size], self.pending[size:]
        return taken


def frame_bytes(
    payload: bytes, *, opcode: int = BINARY, fin: bool = True, masked: bool = True, reserved: int = 0
) -> bytes:
    """A WebSocket frame."""
    head = bytes([(0x80 if fin else 0) | (reserved << 4) | opcode])
    bit, size = 0x80 if masked else 0, len(payload)
    if size < 126:
        head += bytes([bit | size])
    elif size < 65536:
        head += bytes([bit | 126]) + struct.pack(">H", size)
    else:
        head += bytes([bit | 127]) + struct.pack(">Q", size)
    return head + (bytes(4) if masked else b"") + payload  # a mask of zeros changes nothing


UPGRADE = {
    "Host": "localhost",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(bytes(16)).decode(),
}


def open_client(
    port: int,
    path: str = "/api/v4/write",
    headers: Mapping[str, str | None] | None = None,
    *,
    context: ssl.SSLContext | None = None,
    piece_bytes: int = 1 << 20,
) -> tuple[RawClient, Answer]:
    """Connect and ask for an upgrade; `None` leaves a header out. A client that is refused comes closed."""
    raw = ask_for_upgrade(port, path, headers, context=context, piece_bytes=piece_bytes)
    try:
        return _read_answer(raw)
    except (OSError, EOFError):
        raw.close()
        raise


def ask_for_upgrade(
    port: int,
    path: str = "/api/v4/write",
    headers: Mapping[str, str | None] | None = None,
    *,
    context: ssl.SSLContext | None = None,
    piece_bytes: int = 1 << 20,
) -> socket.socket:
    """The socket on which an upgrade was asked for, in pieces of that size."""
    raw = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if context is not None:
        raw = context.wrap_socket(raw, server_hostname="localhost")
    lines = [f"{name}: {value}" for name, value in {**UPGRADE, **(headers or {})}.items() if value is not None]
    head = "\r\n".join([f"GET {path} HTTP/1.1", *lines, "", ""]).encode()
    for start in range(0, len(head), piece_bytes):
        raw.sendall(head[start : start + piece_bytes])
    return raw


def _read_answer(raw: socket.socket) -> tuple[RawClient, Answer]:
    data = b""
    while b"\r\n\r\n" not in data:
        received = raw.recv(65536)
        if not received:
            raise EOFError(f"the server closed during the handshake: {data!r}")
        data += received
    head, _, rest = data.partition(b"\r\n\r\n")
    line, _, fields = head.partition(b"\r\n")
    answer = Answer(int(line.split()[1]), parse_headers(BytesIO(fields + b"\r\n\r\n")))
    client = RawClient(raw, rest)
    if answer.status != 101:
        answer.body = client._exactly(int(answer.headers.get("Content-Length", "0")))
        client.close()
    return client, answer


def arrow_frame(
    *numbers: int,
    channel: str = "trades",
    fsn: int | None = None,
    slot_id: bytes = SLOT,
    guid: bytes | None = None,
    pad_bytes: int = 0,
) -> bytes:
    """An Arrow frame with a column `n`, and one of padding if wanted."""
    columns: dict[str, pa.Array] = {"n": pa.array(numbers, pa.int64())}
    if pad_bytes:
        columns["pad"] = pa.array([os.urandom(pad_bytes) for _ in numbers], pa.binary())
    entry = Entry(channel, pa.record_batch(columns))
    return b"".join(hfa.encode([entry], slot_id=slot_id if fsn is not None else None, fsn=fsn or 0, guid=guid))
