"""Where connections come in: the handshake, and which protocol lives at which path.

Promises: nothing is read from a peer before it is known and within its limits. A peer that does not finish its
handshake is dropped after `ingest.handshake_timeout`, and earlier when more than `HANDSHAKES_MAX` are at it: the one
that has been at it longest goes first, so that slow ones never keep others out.

A path belongs to a `Route`. It sees the request of a caller that is authenticated, and answers with a refusal or with
what to speak. Later protocols add a route; nothing else changes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from picows import WSAutoPingStrategy, WSUpgradeRequest, WSUpgradeResponse, WSUpgradeResponseWithListener
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # its listener factory alone never sees the socket

from holdfast.clock import NS_PER_S
from holdfast.errors import AccessRefused, RetryLater
from holdfast.server.access import Principal
from holdfast.server.connection import Connection, Handler
from holdfast.server.handshake import Refusal, check_upgrade, refusal_of, unavailable
from holdfast.server.state import ConnectionInfo, ServerState

HANDSHAKES_MAX = 256
"""Peers that may be in the middle of a handshake; a real one takes a millisecond."""
READ_BUFFER_BYTES = 4096
"""What an idle connection costs; the buffer grows with what comes."""

_LOGGER = logging.getLogger("holdfast.picows")
_LOGGER.setLevel(logging.CRITICAL)  # it logs an error for each peer that speaks nonsense


@dataclass(frozen=True, slots=True)
class Upgrade:
    """A request of a caller that is known."""

    path: str
    headers: Mapping[str, str]
    peer: str
    principal: Principal


@dataclass(frozen=True, slots=True)
class Opening:
    """What is spoken on a connection that was let in."""

    kind: str
    handler: Callable[[Connection], Handler]
    headers: tuple[tuple[str, str], ...] = ()
    speaks_text: bool = False


Route = Callable[[Upgrade], "Opening | Refusal"]


class Door:
    """Makes connections. Everything happens on the event loop."""

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.routes: dict[str, Route] = {}
        self.connections: dict[int, Connection] = {}
        self.on_close: Callable[[Connection], None] = lambda _connection: None
        self._handshakes: dict[DoorProtocol, None] = {}
        self._next_id = 1

    def protocol(self) -> DoorProtocol:
        """For `loop.create_server`."""
        return DoorProtocol(self)

    # -- handshakes under way ---------------------------------------------------------------------------------------

    def arrived(self, protocol: DoorProtocol) -> None:
        """A socket was accepted."""
        self._handshakes[protocol] = None
        if len(self._handshakes) > HANDSHAKES_MAX:
            slowest = next(iter(self._handshakes))
            del self._handshakes[slowest]
            slowest.transport.disconnect(graceful=False)

    def left(self, protocol: DoorProtocol) -> None:
        """Its handshake is over, one way or the other."""
        self._handshakes.pop(protocol, None)

    # -- the decision -----------------------------------------------------------------------------------------------

    def answer(self, request: WSUpgradeRequest, socket: Any) -> WSUpgradeResponseWithListener:
        """The response to an upgrade request, and the connection if it is let in."""
        address = socket.get_extra_info("peername")
        peer = f"{address[0]}:{address[1]}" if address else "unknown"
        outcome = self._judge(request, peer, socket.get_extra_info("peercert"))
        if isinstance(outcome, Refusal):
            return self._refuse(outcome)
        opening, principal = outcome
        try:
            principal.admit_connection(peer)
        except RetryLater as error:
            return self._refuse(refusal_of(error))
        request.headers["Connection"] = "Upgrade"  # checked above; picows does not read a list there
        connection = self._connect(opening, principal, peer)
        response = WSUpgradeResponse.create_101_response(opening.headers)
        return WSUpgradeResponseWithListener(response, connection)

    def _judge(self, request: WSUpgradeRequest, peer: str, cert: Any) -> tuple[Opening, Principal] | Refusal:
        path = request.path.decode("ascii", "replace").partition("?")[0]
        route = self.routes.get(path)
        if route is None:
            return Refusal(HTTPStatus.NOT_FOUND, f"nothing is spoken at this path; there is {', '.join(self.routes)}")
        state, headers = self.state, request.headers
        refusal = check_upgrade(headers, origins=state.config.ingest_origins)
        if refusal is not None:
            return refusal
        if state.draining or state.failure is not None:
            return unavailable("the server is stopping")
        if len(self.connections) >= state.config.ingest_connections_max:
            return unavailable(f"the server has {len(self.connections)} connections, as many as it may")
        try:
            principal = state.gatekeeper.authenticate(headers, cert, peer=peer)
            opening = route(Upgrade(path, headers, peer, principal))
        except (AccessRefused, RetryLater) as error:
            return refusal_of(error)
        return opening if isinstance(opening, Refusal) else (opening, principal)

    def _refuse(self, refusal: Refusal) -> WSUpgradeResponseWithListener:
        refused = self.state.totals.handshakes_refused
        refused[refusal.status] = refused.get(refusal.status, 0) + 1
        body = f"{refusal.reason}\n".encode() if refusal.reason else None
        response = WSUpgradeResponse.create_error_response(refusal.status, body, refusal.headers)
        return WSUpgradeResponseWithListener(response, None)

    def _connect(self, opening: Opening, principal: Principal, peer: str) -> Connection:
        state = self.state
        info = ConnectionInfo(self._next_id, peer, principal.name, opening.kind, state.clock.monotonic_ns())
        self._next_id += 1
        connection = Connection(info, principal, speaks_text=opening.speaks_text, on_close=self._closed)
        connection.handler = opening.handler(connection)
        self.connections[info.id] = connection
        state.connections_by_id[info.id] = info
        state.totals.connections += 1
        return connection

    def _closed(self, connection: Connection) -> None:
        connection.principal.release_connection()
        self.connections.pop(connection.info.id, None)
        self.state.connections_by_id.pop(connection.info.id, None)
        self.on_close(connection)


class DoorProtocol(WSProtocol):  # type: ignore[misc]
    """picows' protocol, which here also says when a handshake begins and ends, and on which socket."""

    def __init__(self, door: Door) -> None:
        config = door.state.config
        super().__init__(
            None,
            None,
            False,  # the server's side
            self._answer,
            _LOGGER,
            True,  # an exception in a handler ends its connection
            config.ingest_handshake_timeout_ns / NS_PER_S,
            False,  # pings are the sweep's
            0,
            0,
            WSAutoPingStrategy.PING_WHEN_IDLE,
            True,  # a ping is answered
            config.ingest_batch_bytes_max,
            None,
            READ_BUFFER_BYTES,
        )
        self._door = door
        self._socket: Any = None

    def connection_made(self, transport: Any) -> None:
        """A socket was accepted, and its TLS handshake is over."""
        self._socket = transport
        super().connection_made(transport)
        self._door.arrived(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._door.left(self)
        super().connection_lost(exc)

    def _answer(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        self._door.left(self)
        return self._door.answer(request, self._socket)
