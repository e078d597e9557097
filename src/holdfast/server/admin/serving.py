"""The admin server as a task of the server's own loop: uvicorn without its signals, its logging and its sockets.

Promise: `serve` runs until `stop`, then answers what is under way and returns, within `server.shutdown_timeout`. A peer
that does not finish its request head within `ingest.handshake_timeout` is cut, and earlier when more than `RESTING_MAX`
connections have no request under way: the one that has had none for longest goes first, so that slow and idle ones
never keep others out. In a request's state are `peer_cert`, what a verified client certificate says, and `cut`, which
ends its connection at once.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, cast

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from holdfast.clock import NS_PER_S
from holdfast.config.server import ServerConfig
from holdfast.errors import CannotListen
from holdfast.server.access.tls import ReloadableTls

CONNECTIONS_MAX = 512
"""At the same time, for people, metrics and readers of segments; beyond it the answer is 503."""
RESTING_MAX = 256
"""Connections without a request under way: as many as there may be handshakes at the data port. A request head takes a
millisecond, and whoever is cut between two requests connects again."""
KEEP_ALIVE_S = 30
HEAD_BYTES_MAX = 64 * 1024
BACKLOG = 128


def bind_admin(config: ServerConfig) -> socket.socket:
    """The listening socket; the system chooses the port if the settings say 0."""
    host, port = config.admin_address
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setblocking(False)
            sock.bind(address)
            sock.listen(BACKLOG)  # from now on nobody is turned away: who comes before `serve` waits
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise CannotListen(key="server.admin", address=config.admin, reason=str(error)) from error
    return sock


class AdminServer:
    """One admin server. Made and used on one event loop."""

    def __init__(
        self,
        app: Starlette,
        config: ServerConfig,
        *,
        sock: socket.socket | None = None,
        tls: ReloadableTls | None = None,
    ) -> None:
        """Binds at once, so that `port` is known; `sock` is for callers that did."""
        self._socket = sock or bind_admin(config)
        self.port: int = self._socket.getsockname()[1]
        timeout_s = config.ingest_handshake_timeout_ns / NS_PER_S
        settings = uvicorn.Config(
            app,
            http=type("AdminProtocol", (_Protocol,), {"timeout_s": timeout_s, "resting": {}}),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=max(1, config.shutdown_timeout_ns // NS_PER_S),
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            ssl_context_factory=_fixed_context(tls.context) if tls else None,
        )
        self._server = _QuietServer(settings)

    async def serve(self) -> None:
        """Serve until `stop`."""
        await self._server.serve(sockets=[self._socket])

    def stop(self, *, now: bool = False) -> None:
        """Accept nothing more and end when what is under way is answered; `now` does not wait for that."""
        self._server.should_exit = True
        self._server.force_exit = self._server.force_exit or now


def serve_admin(
    app: Starlette, config: ServerConfig, *, sock: socket.socket | None = None, tls: ReloadableTls | None = None
) -> AdminServer:
    """Bind the admin port; the caller runs `serve()` as a task and calls `stop()`."""
    return AdminServer(app, config, sock=sock, tls=tls)


class _QuietServer(uvicorn.Server):
    """Signals belong to the process, not to one of its servers."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _fixed_context(context: ssl.SSLContext) -> Callable[..., ssl.SSLContext]:
    return lambda _config, _default: context


class _Protocol(H11Protocol):
    """uvicorn's HTTP protocol, with bounds on connections that ask nothing, and the peer's certificate."""

    timeout_s: ClassVar[float]
    resting: ClassVar[dict[_Protocol, None]]
    """Those without a request under way, the one that has had none for longest first."""
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls: ssl.SSLObject | None = transport.get_extra_info("ssl_object")
        certificate = tls.getpeercert() if tls is not None else None
        self.app_state: dict[str, Any] = {**self.app_state, "peer_cert": certificate or None, "cut": transport.abort}
        self._expect_head()
        self._rest()

    def data_received(self, data: bytes) -> None:
        if self._is_idle():
            self._expect_head()
        super().data_received(data)
        if not self._is_idle():
            self._head_came()

    def on_response_complete(self) -> None:
        super().on_response_complete()  # a request that came meanwhile is begun there
        if self._is_idle() and not self.transport.is_closing():
            self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_came()
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)  # None until the first request, whatever its type says
        return cycle is None or cycle.response_complete

    def _rest(self) -> None:
        """Wait for a request, unless too many do."""
        self.resting.pop(self, None)
        self.resting[self] = None
        if len(self.resting) > RESTING_MAX:
            longest = next(iter(self.resting))
            del self.resting[longest]
            longest.transport.abort()

    def _expect_head(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.timeout_s, self.transport.abort)

    def _head_came(self) -> None:
        """Or will not come."""
        self.resting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
