"""An HTTP proxy before an object store in which every request fails the first time, in one way after the other.

| way | what the client sees |
|---|---|
| `ERROR_500`, `ERROR_503` | that status; the store never saw the request |
| `LOST` | the connection ends without an answer, after the store did what was asked |
| `PARTIAL` | the beginning of the body, then the end of the connection |
| `SLOW` | nothing for longer than the client waits, after the store did what was asked |
| `TAKEN` | 412 for a put, whatever is there; 503 for others |

A request is the same as another if method and target are. The second attempt goes through.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle
from urllib.parse import urlsplit


class Way(Enum):
    """How a request fails."""

    ERROR_500 = 500
    ERROR_503 = 503
    LOST = "lost"
    PARTIAL = "partial"
    SLOW = "slow"
    TAKEN = "taken"


class FaultProxy(ThreadingHTTPServer):
    """Listens on loopback."""

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        parts = urlsplit(target)
        self.target = (parts.hostname or "", parts.port or 80)
        self.failed: dict[str, Way] = {}
        """Every request that came, and how it failed."""
        self.closing = threading.Event()
        self._ways = cycle(Way)
        self._lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        """Where clients connect."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def way_of(self, request: str) -> Way | None:
        """How to fail it; None if it failed before."""
        with self._lock:
            if request in self.failed:
                return None
            self.failed[request] = next(self._ways)
            return self.failed[request]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultProxy

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        way = self.server.way_of(f"{self.command} {self.path}")
        if way is Way.TAKEN:
            self._refuse(412 if self.command == "PUT" else 503)
        elif way in {Way.ERROR_500, Way.ERROR_503}:
            self._refuse(int(way.value))
        else:
            self._forward(body, way)

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _handle

    def _refuse(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _forward(self, body: bytes, way: Way | None) -> None:
        connection = http.client.HTTPConnection(*self.server.target, timeout=30)
        try:
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        if way is Way.SLOW:
            self.server.closing.wait(5)
        if way in {Way.SLOW, Way.LOST}:
            self.close_connection = True
            return
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"connection", "transfer-encoding", "content-length", "server", "date"}:
                self.send_header(name, value)
        length = answer.getheader("Content-Length", "0") if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        if way is Way.PARTIAL and data:
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
        elif self.command != "HEAD":
            self.wfile.write(data)


@contextmanager
def fault_proxy(target: str) -> Iterator[FaultProxy]:
    """A proxy for the length of a block."""
    with FaultProxy(target) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, daemon=True)
        thread.start()
        try:
            yield proxy
        finally:
            proxy.closing.set()
            proxy.shutdown()
            thread.join()
