"""Ways to an OTLP server: gRPC and HTTP, and which failures pass.

| the server says | it means | what becomes of the request |
|---|---|---|
| OK, 200 | taken, perhaps not all records | done; refused records are counted |
| CANCELLED, DEADLINE_EXCEEDED, ABORTED, OUT_OF_RANGE, UNAVAILABLE, DATA_LOSS; no answer | not now | again |
| 408, 429, 502, 503, 504 | not now | again |
| RESOURCE_EXHAUSTED with RetryInfo | not now | again, when it says |
| UNAUTHENTICATED, PERMISSION_DENIED, UNIMPLEMENTED; 401, 403, 404, 405, 407 | it refuses us, not the data | again |
| anything else | never | rejected |

The last but one row is ours: OTLP would drop the data because a token has expired.
"""

from __future__ import annotations

import http.client
import ssl
import threading
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from enum import Enum
from typing import Any, Protocol
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]
import msgspec
import pyarrow as pa
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from holdfast.config.values import whole_number
from holdfast.wire.otlp.answers import retry_delay_s
from holdfast.wire.otlp.signals import Signal

GRPC_AGAIN = {
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DATA_LOSS,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
}
HTTP_AGAIN = {401, 403, 404, 405, 407, 408, 429, 502, 503, 504}
ANSWER_BYTES_MAX = 1 << 20
"""An answer has a count and a sentence."""
MESSAGE_BYTES_MAX = 1 << 30
"""A request that was accepted may be sent on, whatever its size."""


class Fate(Enum):
    """What becomes of a request."""

    DONE = "done"
    AGAIN = "again"
    NEVER = "never"


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The answer to one request."""

    fate: Fate
    reason: str = ""
    after_s: float = 0.0
    refused_records: int = 0


class Link(Protocol):
    """A way to a server."""

    def send(self, signal: Signal, body: bytes) -> Future[Outcome]:
        """Send; the future never fails."""

    def close(self) -> None:
        """Let go of connections."""


def _taken(signal: Signal, answer: bytes) -> Outcome:
    try:
        partial = signal.response.FromString(answer).partial_success
    except DecodeError:
        return Outcome(Fate.DONE, "the answer cannot be parsed")
    return Outcome(Fate.DONE, partial.error_message, refused_records=getattr(partial, signal.rejected_field))


def grpc_channel(endpoint: str) -> grpc.Channel:
    """A channel to a server, given as a URL."""
    parts = urlsplit(endpoint)
    target = parts.netloc or parts.path
    options = [
        ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
        ("grpc.max_receive_message_length", ANSWER_BYTES_MAX),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 5000),
    ]
    if parts.scheme == "https":
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(), options)
    return grpc.insecure_channel(target, options)


class GrpcLink:
    """Over one gRPC channel, which reconnects by itself."""

    def __init__(self, endpoint: str, *, compression: str, timeout_s: float, headers: Mapping[str, str]) -> None:
        self._channel = grpc_channel(endpoint)
        self._compression = grpc.Compression.Gzip if compression == "gzip" else grpc.Compression.NoCompression
        self._timeout_s = timeout_s
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())
        self._methods = {signal: self._channel.unary_unary(signal.method) for signal in Signal}

    def send(self, signal: Signal, body: bytes) -> Future[Outcome]:
        """Send one request."""
        answer: Future[Outcome] = Future()
        call: Any = self._methods[signal].future(
            body, timeout=self._timeout_s, metadata=self._metadata, compression=self._compression
        )
        call.add_done_callback(lambda done: answer.set_result(_grpc_outcome(signal, done)))
        return answer

    def close(self) -> None:
        """End the channel."""
        self._channel.close()


def _grpc_outcome(signal: Signal, call: Any) -> Outcome:
    code = call.code()
    if code is grpc.StatusCode.OK:
        return _taken(signal, call.result())
    details = next((value for key, value in call.trailing_metadata() or () if key == "grpc-status-details-bin"), b"")
    after_s = retry_delay_s(details)
    passes = code in GRPC_AGAIN or (code is grpc.StatusCode.RESOURCE_EXHAUSTED and after_s is not None)
    return Outcome(Fate.AGAIN if passes else Fate.NEVER, f"{code.name}: {call.details()}", after_s or 0.0)


class HttpLink:
    """Over kept HTTP connections, one per thread."""

    def __init__(
        self, endpoint: str, *, compression: str, timeout_s: float, headers: Mapping[str, str], width: int
    ) -> None:
        self._parts = urlsplit(endpoint)
        self._compression = compression
        self._timeout_s = timeout_s
        self._headers = {**headers, "content-type": "application/x-protobuf"}
        if compression != "none":
            self._headers["content-encoding"] = compression
        self._pool = ThreadPoolExecutor(width, thread_name_prefix="holdfast-otlp-http")
        self._local = threading.local()
        self._opened: list[http.client.HTTPConnection] = []

    def send(self, signal: Signal, body: bytes) -> Future[Outcome]:
        """Send one request."""
        return self._pool.submit(self._send, signal, body)

    def _send(self, signal: Signal, body: bytes) -> Outcome:
        connection = self._connection()
        path = self._parts.path.rstrip("/") + signal.path
        try:
            connection.request("POST", path, self._packed(body), self._headers)
            response = connection.getresponse()
            answer = response.read(ANSWER_BYTES_MAX)
            response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return Outcome(Fate.AGAIN, f"{type(error).__name__}: {error}")
        if response.status == 200:
            return _taken(signal, answer)
        fate = Fate.AGAIN if response.status in HTTP_AGAIN else Fate.NEVER
        after = response.headers.get("retry-after", "")
        reason = f"HTTP {response.status} {response.reason}"
        return Outcome(fate, reason, float(whole_number(after) or 0))

    def _connection(self) -> http.client.HTTPConnection:
        found: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if found is None:
            host, port = self._parts.hostname or "", self._parts.port
            if self._parts.scheme == "https":
                context = ssl.create_default_context()
                found = http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=context)
            else:
                found = http.client.HTTPConnection(host, port, timeout=self._timeout_s)
            self._local.connection = found
            self._opened.append(found)
        return found

    def _packed(self, body: bytes) -> bytes:
        if self._compression == "gzip":
            return zlib.compress(body, level=1, wbits=31)
        if self._compression == "zstd":
            packed: bytes = pa.Codec("zstd").compress(body, asbytes=True)
            return packed
        return body

    def close(self) -> None:
        """End the threads and their connections."""
        self._pool.shutdown(wait=True)
        for connection in self._opened:
            connection.close()
