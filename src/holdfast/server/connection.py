"""One WebSocket connection, whatever is spoken on it: the rules of the socket, when to read, whether the peer lives.

Promises:

- Only whole, masked messages reach the handler. A fragment, a reserved bit or a continuation closes with 1002, a text
  where none is spoken with 1003; `picows` closes with 1002 for malformed and unmasked frames and with 1009 for large
  ones before they are here. Where browsers are spoken to, a message may come in several frames, since they cut long
  ones: they are put together up to `parts_bytes_max`, and beyond it closed with 1009.
- Reading stops while anybody has a reason to (`pause`) and goes on when the last one took it back. What had arrived
  before still comes, at most one read buffer.
- A peer that does not read is not read either, so its answers never pile up; one that is silent is asked (ping), then
  dropped. Silent is one from which no byte comes and that takes none of what waits for it, so a slow line is not.
- A message comes within bounds: one that brings less than `LEAST_BYTES_PER_S` for `ingest.idle_timeout` ends the
  connection. No peer holds a part of a message for ever.
- After `close` nothing is handed on. The socket stays open for a moment, so that the peer finds out why.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from typing import Protocol

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from holdfast.clock import NS_PER_S
from holdfast.config.server import ServerConfig
from holdfast.server.access import Principal
from holdfast.server.state import ConnectionInfo
from holdfast.telemetry import event
from holdfast.traffic import Traffic, traffic_of

WRITE_BUFFER_BYTES_MAX = 256 << 10
"""Answers a peer has not taken yet; an answer has tens of bytes, so thousands fit."""
LINGER_S = 1.0
"""How long a closed connection waits for the peer to close too before the socket goes."""
LEAST_BYTES_PER_S = 1024
"""What a message on its way brings at least, over `ingest.idle_timeout`: the slowest modems have been faster."""

SAFE_BYTES_MAX = 8192
"""Up to this `picows` copies a message together with its header before it sends it."""
HEADER_BYTES_MAX = 14


def send_message(transport: WSTransport, kind: WSMsgType, message: bytes) -> None:
    """Queue a message for the peer.

    For a longer one picows lends its own buffer for the header to the event loop, and uvloop sends from it later, when
    the next header is in it. With room for the header before the message it copies what it cannot send at once.
    """
    if len(message) <= SAFE_BYTES_MAX:
        transport.send(kind, message)
        return
    whole = bytearray(HEADER_BYTES_MAX)
    whole += message
    transport.send_reuse_external_bytearray(kind, whole, HEADER_BYTES_MAX)


class Pause(enum.StrEnum):
    """Reasons not to read."""

    STORE = "store"  # a frame waits for room in the store
    INFLIGHT = "inflight"  # too much of this connection waits for its commit
    TOTAL = "total"  # too much of all connections does
    QUOTA = "quota"  # the principal is above its rate
    UNFINISHED = "unfinished"  # too much of all connections is of messages that are not whole yet
    PEER = "peer"  # the peer does not read its answers
    DRAIN = "drain"  # the server stops


class Handler(Protocol):
    """What is spoken on a connection."""

    def message(self, data: bytes) -> None:
        """A whole message."""

    def finish(self) -> None:
        """Answer what came, then close the connection: the server stops."""

    def closed(self) -> None:
        """The connection is gone."""


class Connection(WSListener):
    """The socket's side of a connection. Everything happens on the event loop."""

    def __init__(
        self,
        info: ConnectionInfo,
        principal: Principal,
        *,
        speaks_text: bool,
        parts_bytes_max: int = 0,
        on_close: Callable[[Connection], None],
    ) -> None:
        self.info = info
        self.principal = principal
        self.handler: Handler
        self.transport: WSTransport
        self._kind = WSMsgType.TEXT if speaks_text else WSMsgType.BINARY
        self._parts_bytes_max = parts_bytes_max
        self._parts = bytearray()  # of a message whose last frame has not come
        self._in_parts = False
        self.on_flow: Callable[[bool], None] | None = None
        """For what paces itself: told whether the peer takes what it is sent, in place of a pause of reading."""
        self._on_close = on_close
        self._pauses: set[Pause] = set()
        self._closing = False
        self._heard_at_ns = info.opened_at_ns
        self._pinged_at_ns = info.opened_at_ns
        self._heard = False
        self._asked: Traffic | None = None  # what had moved when the last ping went
        self._came_bytes = 0
        self._counted_at_ns, self._counted_bytes = info.opened_at_ns, 0
        self._is_anew = True
        self.part_bytes = 0
        """What has come of a message that is not whole yet; kept by `unfinished`."""
        self.messages = 0
        """How many whole ones were handed on."""
        self.tail_bytes = -1
        """What the last read brought behind its last message; -1 if it brought none. See `unfinished`."""

    # -- called by picows -------------------------------------------------------------------------------------------

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The handshake is done."""
        self.transport = transport
        transport.underlying_transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)

    def on_ws_frame(self, _transport: WSTransport, frame: WSFrame) -> None:
        """A frame came in."""
        self._heard = True
        self.tail_bytes = frame.tail_size + len(self._parts)
        if self._closing:
            if frame.msg_type == WSMsgType.CLOSE:
                self.transport.disconnect()
            return
        kind = frame.msg_type
        if kind == self._kind and frame.fin and not (self._in_parts or frame.rsv1 or frame.rsv2 or frame.rsv3):
            self._hand_on(frame.get_payload_as_bytes())
        elif kind == WSMsgType.PING:
            self.transport.send_pong(frame.get_payload_as_bytes())
        elif kind == WSMsgType.CLOSE:
            self.info.goodbye = True
            self.close(WSCloseCode.OK)
            self.transport.disconnect()
        elif kind != WSMsgType.PONG:
            if self._is_part(frame):
                self._add_part(frame)
            else:
                self._refuse(frame)

    def _is_part(self, frame: WSFrame) -> bool:
        expected = WSMsgType.CONTINUATION if self._in_parts else self._kind
        return bool(
            self._parts_bytes_max and frame.msg_type == expected and not (frame.rsv1 or frame.rsv2 or frame.rsv3)
        )

    def _add_part(self, frame: WSFrame) -> None:
        self._in_parts = not frame.fin
        self._parts += frame.get_payload_as_bytes()
        if len(self._parts) > self._parts_bytes_max:
            self._parts = bytearray()
            self.info.last_error = f"a message in parts has more than {self._parts_bytes_max} bytes"
            self.close(WSCloseCode.MESSAGE_TOO_BIG, self.info.last_error)
        elif frame.fin:
            whole, self._parts = bytes(self._parts), bytearray()
            self._hand_on(whole)
        self.tail_bytes = frame.tail_size + len(self._parts)

    def _hand_on(self, message: bytes) -> None:
        self.messages += 1
        self._is_anew = True
        self.handler.message(message)

    def on_ws_disconnected(self, _transport: WSTransport) -> None:
        """The socket is gone."""
        self._closing = True
        self.handler.closed()
        self._on_close(self)

    def pause_writing(self) -> None:
        """The peer does not take its answers."""
        if self.on_flow is not None:
            self.on_flow(False)
        else:
            self.pause(Pause.PEER)

    def resume_writing(self) -> None:
        """It does again."""
        if self.on_flow is not None:
            self.on_flow(True)
        else:
            self.resume(Pause.PEER)

    # -- called by the handler --------------------------------------------------------------------------------------

    @property
    def is_closing(self) -> bool:
        """Whether nothing more is handed on."""
        return self._closing

    @property
    def is_paused(self) -> bool:
        """Whether nothing is read from it now."""
        return bool(self._pauses)

    def send(self, message: bytes) -> None:
        """Queue a message for the peer."""
        send_message(self.transport, WSMsgType.BINARY, message)

    def pause(self, reason: Pause) -> None:
        """Stop reading."""
        if not self._pauses and not self._closing:
            self.transport.underlying_transport.pause_reading()
        self._pauses.add(reason)
        self.info.paused = ", ".join(self._pauses)

    def resume(self, reason: Pause) -> None:
        """Read again, unless somebody else has a reason not to."""
        if reason not in self._pauses:
            return
        self._pauses.discard(reason)
        self.info.paused = ", ".join(self._pauses)
        if not self._pauses:
            self._heard = self._is_anew = True  # while nothing was read, nothing could be heard
            if not self._closing:
                self.transport.underlying_transport.resume_reading()

    def close(self, code: WSCloseCode, reason: str = "") -> None:
        """Say why, then end the connection."""
        if self._closing:
            return
        self._closing = True
        self.transport.send_close(code, reason)
        if self._pauses:
            self.transport.underlying_transport.resume_reading()  # to see the peer's close
        asyncio.get_running_loop().call_later(LINGER_S, self.transport.disconnect)

    def abort(self, reason: str) -> None:
        """End the connection now: the peer does not listen."""
        self.info.last_error = reason
        event("server.connection.abort", peer=self.info.peer, reason=reason)
        self._closing = True
        self.transport.disconnect(graceful=False)

    def _refuse(self, frame: WSFrame) -> None:
        fragment = frame.msg_type == WSMsgType.CONTINUATION or not frame.fin or self._in_parts
        reserved = frame.rsv1 or frame.rsv2 or frame.rsv3
        if fragment or reserved:
            frames = "whole, or its frames in order," if self._parts_bytes_max else "one frame"
            code, reason = WSCloseCode.PROTOCOL_ERROR, f"a message is {frames} without reserved bits"
        else:
            spoken = "text" if self._kind == WSMsgType.TEXT else "binary"
            code, reason = WSCloseCode.UNSUPPORTED_DATA, f"messages are {spoken}"
        self.info.last_error = reason
        self.close(code, reason)

    # -- called by the server ---------------------------------------------------------------------------------------

    def received(self, count: int) -> None:
        """So many bytes came, of whole messages or not."""
        self._heard = True
        self._came_bytes += count

    def sweep(self, now_ns: int, config: ServerConfig) -> None:
        """Ask a silent peer whether it lives; drop one that has been silent, or at one message, for too long."""
        if self._closing or self._is_dripping(now_ns, config.ingest_idle_timeout_ns):
            return
        if self._heard or self._pauses - {Pause.PEER}:
            self._heard, self._heard_at_ns = False, now_ns
            return
        silent_ns = now_ns - self._heard_at_ns
        if silent_ns >= config.ingest_idle_timeout_ns:
            if self._takes_something():
                self._heard_at_ns = now_ns
                return
            self.abort(f"silent for {silent_ns / 1e9:.0f} s")
        elif silent_ns >= config.ingest_ping_interval_ns <= now_ns - self._pinged_at_ns:
            self._pinged_at_ns = now_ns
            self._asked = traffic_of(self.transport.underlying_transport)
            self.transport.send_ping()

    def _takes_something(self) -> bool:
        """Whether our ping waits behind messages of which some have left since."""
        before, self._asked = self._asked, traffic_of(self.transport.underlying_transport)
        return before is not None and self._asked.has_left_since(before)

    def _is_dripping(self, now_ns: int, window_ns: int) -> bool:
        """Drop a peer whose message on its way has brought too little for a whole window."""
        if self._is_anew or self._pauses or not self.part_bytes:
            self._count_from(now_ns)
            return False
        if now_ns - self._counted_at_ns < window_ns:
            return False
        brought_bytes = self._came_bytes - self._counted_bytes
        self._count_from(now_ns)
        if brought_bytes * NS_PER_S >= LEAST_BYTES_PER_S * window_ns:
            return False
        self.abort(f"a message brought {brought_bytes} bytes in {window_ns / NS_PER_S:g} s")
        return True

    def _count_from(self, now_ns: int) -> None:
        self._counted_at_ns, self._counted_bytes, self._is_anew = now_ns, self._came_bytes, False
