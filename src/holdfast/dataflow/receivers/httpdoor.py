"""OTLP over HTTP: `POST /v1/logs`, `/v1/traces`, `/v1/metrics`, protobuf or JSON, answered in kind.

Promise: a body is not read beyond `max_request_size`, whatever its headers say. Refusals are a `google.rpc.Status` with
the status of HTTP that OTLP names, and `Retry-After` where a retry helps.
"""

from __future__ import annotations

import asyncio
import math
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.dataflow.receivers.guards import Guard
from holdfast.dataflow.receivers.intake import Intake
from holdfast.dataflow.receivers.settings import ReceiverSettings
from holdfast.dataflow.settings import require_address
from holdfast.errors import CannotListen
from holdfast.wire.otlp.answers import Answer, Refusal, status, status_json, success, success_json
from holdfast.wire.otlp.signals import Signal

KEY_HEADER = "idempotency-key"
PROTOBUF, JSON = "application/x-protobuf", "application/json"
_PROTOCOLS = {PROTOBUF: "http/protobuf", JSON: "http/json"}
BACKLOG = 1024
KEEP_ALIVE_S = 65
"""Longer than the pause between two exports of a client, so that it need not connect each time."""
CONNECTIONS_MAX = 4096
BODY_S = 60.0
"""How long a client may take to send a body; memory is held meanwhile."""


class HttpDoor:
    """The HTTP server of one receiver. Made and used on one event loop."""

    def __init__(self, settings: ReceiverSettings, intake: Intake, *, guard: Guard, shared: bool = False) -> None:
        self._settings = settings
        self._intake = intake
        self._guard = guard
        self._reading_bytes = 0
        self._socket = _bound(settings.doors()["http_listening_addr"], shared=shared)
        self.port: int = self._socket.getsockname()[1]
        routes = [Route(signal.path, self._endpoint(signal), methods=["POST"]) for signal in Signal]
        config = uvicorn.Config(
            Starlette(routes=routes),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=5,
            ssl_context_factory=(lambda _config, _default: _tls(settings)) if settings.tls_cert else None,
        )
        self._server = _QuietServer(config)

    async def serve(self) -> None:
        """Serve until `stop`."""
        await self._server.serve(sockets=[self._socket])

    def stop(self) -> None:
        """Answer what came, then end."""
        self._server.should_exit = True

    def _endpoint(self, signal: Signal) -> Callable[[Request], Awaitable[Response]]:
        async def export(request: Request) -> Response:
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in _PROTOCOLS:
                text = f"the content type is one of {', '.join(_PROTOCOLS)}"
                return Response(text, 415, media_type="text/plain")
            answer = await self._answer(signal, request, kind)
            return _response(signal, answer, kind)

        return export

    async def _answer(self, signal: Signal, request: Request, kind: str) -> Answer:
        judged = await self._guard(request.headers, signal)
        if isinstance(judged, Answer):
            return judged
        try:
            body = await self._body(request)
        except BaseException:
            judged.claim.refuse()
            raise
        if isinstance(body, Answer):
            judged.claim.refuse()
            return body
        return await self._intake.submit(
            signal,
            body,
            protocol=_PROTOCOLS[kind],
            encoding=request.headers.get("content-encoding", "").strip().lower(),
            key=request.headers.get(KEY_HEADER, ""),
            sending=judged,
        )

    async def _body(self, request: Request) -> bytes | Answer:
        """The body; a refusal if it is too large, too slow, or one of too many."""
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_S):
                async for chunk in request.stream():
                    body += chunk
                    self._reading_bytes += len(chunk)
                    if len(body) > self._settings.request_bytes_max:
                        return self._intake.too_large()
                    if self._reading_bytes > max(self._settings.inflight_bytes_max, self._settings.request_bytes_max):
                        return self._intake.later("too many bodies are under way", Refusal.BUSY)
        except (ClientDisconnect, TimeoutError):
            return Answer(Refusal.BAD, "the body does not end")
        finally:
            self._reading_bytes -= len(body)
        return bytes(body)


def _response(signal: Signal, answer: Answer, kind: str) -> Response:
    if answer.refusal is None:
        return Response((success_json if kind == JSON else success)(signal, answer), media_type=kind)
    headers = {"retry-after": str(math.ceil(answer.retry_after_s))} if answer.retry_after_s else {}
    body = (status_json if kind == JSON else status)(answer)
    return Response(body, answer.refusal.http_status, headers, media_type=kind)


def _tls(settings: ReceiverSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.tls_cert, settings.tls_key)
    if settings.tls_client_ca:
        context.load_verify_locations(settings.tls_client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _bound(address: str, *, shared: bool) -> socket.socket:
    host, port = require_address(address, key="http_listening_addr")
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            sock.setblocking(False)
            sock.bind(target)
            sock.listen(BACKLOG)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise CannotListen(key="http_listening_addr", address=address, reason=str(error)) from error
    return sock


class _QuietServer(uvicorn.Server):
    """Signals belong to the process, not to one of its servers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
