"""Where connections come in: the handshake, and which protocol lives at which path.

Promises: nothing is read from a peer before it is known and within its limits. A peer that does not finish its
handshake is dropped after `ingest.handshake_timeout`, and earlier when more than `HANDSHAKES_MAX` are at it: the one
that has been at it longest goes first, so that slow ones never keep others out.

What takes time for a caller, a password that is checked and a slot that is looked up, happens on a thread before the
request is answered; the loop and everybody else on it go on meanwhile. If it fails, the answer is 503, and the log says
why.

A path belongs to a `Route`. It sees the request of a caller that is authenticated, and answers with a refusal or with
what to speak. Later protocols add a route; nothing else changes.
"""

from __future__ import annotations

import asyncio
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
from holdfast.server.access.signin import split_header
from holdfast.server.connection import Connection, Handler
from holdfast.server.handshake import (
    Refusal,
    check_upgrade,
    path_of,
    refusal_of,
    slot_origin,
    split_head,
    unavailable,
)
from holdfast.server.state import ConnectionInfo, ServerState
from holdfast.server.unfinished import Unfinished
from holdfast.telemetry import event
from holdfast.wire.ingest import SlotOrigin

HANDSHAKES_MAX = 256
"""Peers that may be in the middle of a handshake; a real one takes a millisecond."""
HEAD_END = b"\r\n\r\n"
HEAD_BYTES_MAX = 16 << 10
"""Of a request; picows reads no longer ones."""
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
    parts_bytes_max: int = 0
    """What a message that comes in several frames may have; 0 takes none."""


Route = Callable[[Upgrade], "Opening | Refusal"]
Known = Principal | AccessRefused | RetryLater | Refusal
"""Who calls, or why nobody does; a refusal if that could not be found out."""
Answer = tuple[WSUpgradeResponse, Connection | None]


class Door:
    """Makes connections. Everything happens on the event loop."""

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self.routes: dict[str, Route] = {}
        self.late_paths: set[str] = set()
        """Where a caller without a credential is let in, because what is spoken there asks for one."""
        self.connections: dict[int, Connection] = {}
        self.on_close: Callable[[Connection], None] = lambda _connection: None
        self.unfinished = Unfinished(lambda: state.config.ingest_total_inflight_bytes)
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

    def homework(self, head: bytes, socket: Any) -> Callable[[], Known] | None:
        """What has to be done on a thread before a request with this head can be answered."""
        path, headers = split_head(head)
        if self._turned_away(path, headers) is not None:
            return None
        origin = slot_origin(headers)
        gatekeeper = self.state.gatekeeper
        if gatekeeper.is_quick(headers) and not isinstance(origin, SlotOrigin):
            return None
        peer, certificate = _peer_of(socket), socket.get_extra_info("peercert")

        def identify() -> Known:
            try:
                principal = gatekeeper.authenticate(headers, certificate, peer=peer)
                if isinstance(origin, SlotOrigin):
                    principal.bind_slot(origin.slot_id)
            except (AccessRefused, RetryLater) as error:
                return error
            except Exception as error:  # nobody else would answer
                return _failed(error, peer)
            return principal

        return identify

    def answer(self, request: WSUpgradeRequest, socket: Any, known: Known | None) -> Answer:
        """The response to an upgrade request, and the connection if it is let in. `known` is what homework found."""
        peer = _peer_of(socket)
        outcome = self._judge(request, peer, known or self._identify(request, peer, socket))
        if isinstance(outcome, Refusal):
            return self._refuse(outcome, peer), None
        opening, principal = outcome
        try:
            principal.admit_connection(peer)
        except RetryLater as error:
            return self._refuse(refusal_of(error), peer), None
        request.headers["Connection"] = "Upgrade"  # checked above; picows does not read a list there
        connection = self._connect(opening, principal, peer)
        return WSUpgradeResponse.create_101_response(opening.headers), connection

    def _identify(self, request: WSUpgradeRequest, peer: str, socket: Any) -> Known | None:
        """Who calls, where that takes no time; None where it does."""
        gatekeeper, headers, certificate = self.state.gatekeeper, request.headers, socket.get_extra_info("peercert")
        if not gatekeeper.is_quick(headers):
            return None
        try:
            is_late = path_of(request.path) in self.late_paths and gatekeeper.auth_on
            if is_late and not certificate and split_header(headers) is None:
                return gatekeeper.stranger()
            return gatekeeper.authenticate(headers, certificate, peer=peer)
        except (AccessRefused, RetryLater) as error:
            return error

    def _judge(self, request: WSUpgradeRequest, peer: str, known: Known | None) -> tuple[Opening, Principal] | Refusal:
        path, headers = path_of(request.path), request.headers
        refusal = self._turned_away(path, headers)
        if refusal is not None:
            return refusal
        if known is None:
            return unavailable("the request was not understood; send its head as HTTP says")
        if isinstance(known, Refusal):
            return known
        if not isinstance(known, Principal):
            return refusal_of(known)
        try:
            opening = self.routes[path](Upgrade(path, headers, peer, known))
        except (AccessRefused, RetryLater) as error:
            return refusal_of(error)
        return opening if isinstance(opening, Refusal) else (opening, known)

    def _turned_away(self, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Why a request is refused whoever sends it."""
        if path not in self.routes:
            return Refusal(HTTPStatus.NOT_FOUND, f"nothing is spoken at this path; there is {', '.join(self.routes)}")
        state = self.state
        refusal = check_upgrade(headers, origins=state.config.ingest_origins)
        if refusal is not None:
            return refusal
        if state.draining or state.failure is not None:
            return unavailable("the server is stopping")
        if len(self.connections) >= state.config.ingest_connections_max:
            return unavailable(f"the server has {len(self.connections)} connections, as many as it may")
        return None

    def _refuse(self, refusal: Refusal, peer: str) -> WSUpgradeResponse:
        self.state.troubles.note(f"HANDSHAKE {int(refusal.status)}", refusal.reason, peer=peer)
        refused = self.state.totals.handshakes_refused
        refused[refusal.status] = refused.get(refusal.status, 0) + 1
        body = f"{refusal.reason}\n".encode() if refusal.reason else None
        response: WSUpgradeResponse = WSUpgradeResponse.create_error_response(refusal.status, body, refusal.headers)
        return response

    def _connect(self, opening: Opening, principal: Principal, peer: str) -> Connection:
        state = self.state
        info = ConnectionInfo(self._next_id, peer, principal.name, opening.kind, state.clock.monotonic_ns())
        self._next_id += 1
        connection = Connection(
            info,
            principal,
            speaks_text=opening.speaks_text,
            parts_bytes_max=opening.parts_bytes_max,
            on_close=self._closed,
        )
        connection.handler = opening.handler(connection)
        self.connections[info.id] = connection
        state.connections_by_id[info.id] = info
        state.totals.connections += 1
        return connection

    def _closed(self, connection: Connection) -> None:
        connection.principal.release_connection()
        self.unfinished.gone(connection)
        self.connections.pop(connection.info.id, None)
        self.state.connections_by_id.pop(connection.info.id, None)
        self.on_close(connection)


def _failed(error: Exception, peer: str) -> Refusal:
    """What a caller gets whose password or slot could not be looked up, as after an I/O error."""
    event("server.handshake.fail", level=logging.ERROR, peer=peer, error=repr(error))
    return unavailable("the server cannot look up its callers now; its log has the reason")


def _peer_of(socket: Any) -> str:
    address = socket.get_extra_info("peername")
    return f"{address[0]}:{address[1]}" if address else "unknown"


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
            False,  # pings are answered by the connection, which counts what they brought
            config.ingest_batch_bytes_max,
            None,
            READ_BUFFER_BYTES,
        )
        self._door = door
        self._socket: Any = None
        self._head = b""
        self._known: Known | None = None
        self._connection: Connection | None = None
        self._is_open = False  # whether the head was read, so that bytes need no look

    def connection_made(self, transport: Any) -> None:
        """A socket was accepted, and its TLS handshake is over."""
        self._socket = transport
        super().connection_made(transport)
        self._door.arrived(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        self._door.left(self)
        super().connection_lost(exc)

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came in. Those that end the head of a request wait until its homework is done."""
        if self._is_open:
            if self._connection is not None:
                self._connection.received(nbytes)
            super().buffer_updated(nbytes)
            if self._connection is not None and not self._connection.is_closing:
                self._door.unfinished.received(self._connection, nbytes, self._room)
            return
        self._head += bytes(super().get_buffer(-1)[:nbytes])
        if HEAD_END not in self._head and len(self._head) <= HEAD_BYTES_MAX:
            super().buffer_updated(nbytes)
            return
        self._is_open = True
        work = self._door.homework(self._head, self._socket) if HEAD_END in self._head else None
        self._head = b""
        if work is None:
            super().buffer_updated(nbytes)
            return
        self._socket.pause_reading()
        done = asyncio.get_running_loop().run_in_executor(None, work)
        done.add_done_callback(lambda found: self._go_on(found, nbytes))

    def _go_on(self, found: asyncio.Future[Known], nbytes: int) -> None:
        if self._socket.is_closing():
            return  # it took longer than the peer, or the handshake timeout, would wait
        self._known = found.result()
        self._socket.resume_reading()
        super().buffer_updated(nbytes)

    def _answer(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        self._door.left(self)
        response, self._connection = self._door.answer(request, self._socket, self._known)
        return WSUpgradeResponseWithListener(response, self._connection)

    def _room(self) -> memoryview:
        """Where the next bytes go."""
        room: memoryview = super().get_buffer(-1)
        return room
