"""An admin server that runs: a real store, real sockets on loopback, a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import ssl
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from holdfast.clock import Clock, SystemClock
from holdfast.config.server import ServerConfig
from holdfast.console import attach
from holdfast.disk.local import LocalFilesystem
from holdfast.server.access import AuditLog, Gatekeeper, ReloadableTls
from holdfast.server.access.tokens import TokenFile
from holdfast.server.admin import AdminServer, build, serve_admin
from holdfast.server.state import ServerState
from holdfast.store.store import Store

WAIT_S = 60.0
NDJSON = {"Content-Type": "application/x-ndjson"}
JSON = {"Content-Type": "application/json"}
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
LOOP_THREAD = "admin"


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, decoded."""
        return json.loads(self.body)

    @property
    def data(self) -> Any:
        """Of a request that was answered."""
        assert self.status == 200, self.body
        return self.json["data"]

    @property
    def error(self) -> Any:
        """Of a request that was refused."""
        assert set(self.json) == {"error"}
        assert set(self.json["error"]) == {"code", "message", "where"}
        return self.json["error"]


class Running:
    """A context: the server runs inside it."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, object] | None = None,
        *,
        store: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        insecure: bool = False,
        console: bool = False,
        access_filesystem: LocalFilesystem | None = None,
    ) -> None:
        base = {"data": str(directory), "server.admin": "127.0.0.1:0"}
        self.config = ServerConfig.from_mapping({**base, **(settings or {})})
        self._with_console = console
        self.clock = clock or SystemClock()
        self.audit_lines: list[bytes] = []
        self.filesystem = access_filesystem or LocalFilesystem()
        self.store = Store.open(directory, store, clock=self.clock)
        audit = AuditLog(self.audit_lines.append, self.clock)
        self.gatekeeper = Gatekeeper(self.config, self.clock, self.filesystem, audit=audit)
        self.state = ServerState(
            self.store,
            self.config,
            self.gatekeeper,
            self.clock,
            started_at_ns=self.clock.wall_ns(),
            insecure=insecure,
        )
        self.tls = ReloadableTls(self.config) if self.config.has_tls else None
        self.tokens = TokenFile(self.filesystem, self.config.tokens_path)
        self._ready: Future[AdminServer] = Future()
        self._thread = threading.Thread(target=self._run, name=LOOP_THREAD)

    def _run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        app = build(self.state)
        if self._with_console:
            attach(app, self.state)
        server = serve_admin(app, self.config, tls=self.tls)
        self._ready.set_result(server)
        await server.serve()

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._ready.result(WAIT_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(lambda: self._server.stop(now=True))
        self._thread.join(WAIT_S)
        self.gatekeeper.close()
        self.store.close()

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.port

    def token(self, name: str, **changes: int) -> dict[str, str]:
        """A new token, as a header."""
        _, secret = self.tokens.create(name, now_ns=self.clock.wall_ns(), **changes)
        self.gatekeeper.poll()
        return {"Authorization": f"Bearer {secret}"}

    def revoke(self, name: str) -> None:
        """End a token, and let the loop look at once."""
        self.tokens.revoke(name, now_ns=self.clock.wall_ns())
        self._loop.call_soon_threadsafe(self.gatekeeper.poll)

    def open(self, head: str, headers: Mapping[str, str] | None = None, body: bytes = b"") -> socket.socket:
        """A connection on which a request was begun; it takes little that is not read."""
        peer = socket.socket()
        peer.settimeout(WAIT_S)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        peer.connect(("127.0.0.1", self.port))
        lines = [f"{head} HTTP/1.1", "Host: x", *(f"{name}: {value}" for name, value in (headers or {}).items())]
        peer.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        return peer

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Answer:
        """One request on a connection of its own."""
        connection: http.client.HTTPConnection
        if tls is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        else:
            connection = http.client.HTTPSConnection("localhost", self.port, timeout=WAIT_S, context=tls)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """GET."""
        return self.ask("GET", path, headers=headers)

    def post(self, channel: str, body: bytes, headers: Mapping[str, str] = NDJSON) -> Answer:
        """Events."""
        return self.ask("POST", f"/api/v1/channels/{channel}/events", body, headers)


def batch(rows: int, *, start: int = 0) -> pa.RecordBatch:
    """Some events."""
    return pa.record_batch({"n": pa.array(range(start, start + rows), pa.int64())})


def stream(*batches: pa.RecordBatch) -> bytes:
    """An Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema) as writer:
        for item in batches:
            writer.write_batch(item)
    return bytes(sink.getvalue())
