"""One sync connection: text messages in and out, when to read, what to do with a peer that does not.

Promises:

- Overload is backpressure: while too much of this client, or of all, waits for a commit, nothing is read from it; a
  client above its rate is read more slowly.
- What a peer has not taken is bounded: at `sync.send_buffer` its session stops sending, and catches up when it reads
  again. A peer that takes nothing for `sync.stall_timeout` is cut off.
- When the server stops, what was handed in is answered first.
"""

from __future__ import annotations

from picows import WSCloseCode, WSMsgType

from holdfast.config.sync import SyncConfig
from holdfast.errors import Unauthenticated
from holdfast.server.access import Principal
from holdfast.server.access.bucket import Bucket
from holdfast.server.connection import Connection, Pause, send_message
from holdfast.server.server import Server
from holdfast.sync.desk import PATH, SyncDesk, sync_route
from holdfast.wire.sync import Phase, Read

REASON_BYTES_MAX = 120
"""What fits into the frame that closes a WebSocket."""


class SyncHandler:
    """Everything happens on the event loop."""

    def __init__(self, desk: SyncDesk, connection: Connection) -> None:
        self.connection = connection
        self._desk = desk
        self._bucket = Bucket(desk.state.clock, desk.config.messages_per_second)
        self._slowed = False
        self._blocked_bytes = 0
        self._blocked_at_ns = 0
        self._finishing = False
        self._gone = False
        self.session = desk.attach(self)

    # -- called by the connection -----------------------------------------------------------------------------------

    def message(self, data: bytes) -> None:
        """A text came."""
        info = self.connection.info
        info.frames += 1
        info.bytes += len(data)
        wait_s = max(self._bucket.take(1), self.connection.principal.take(1, len(data)))
        self._desk.hub.message(self.session, data, self._desk.now_ms())
        if wait_s > 0 and not self._slowed:
            self._slowed = True
            self.connection.pause(Pause.QUOTA)
            self._desk.loop.call_later(wait_s, self._speed_up)
        if self.session.is_full or self._desk.hub.is_full:
            self.connection.pause(Pause.INFLIGHT)
            self._desk.await_ease(self)
        self._desk.pump()

    def _speed_up(self) -> None:
        self._slowed = False
        if not self._gone:
            self.connection.resume(Pause.QUOTA)

    def finish(self) -> None:
        """Answer what came, then close."""
        self._finishing = True
        self.connection.pause(Pause.DRAIN)
        if not self.eased():
            self._desk.await_ease(self)

    def closed(self) -> None:
        """The socket is gone; what was handed in is committed all the same."""
        self._gone = True
        self._desk.detach(self.session)

    # -- called by the hub ------------------------------------------------------------------------------------------

    def send(self, text: bytes) -> None:
        """Queue a message for the peer."""
        if self._gone or self.connection.is_closing:
            return
        transport = self.connection.transport
        send_message(transport, WSMsgType.TEXT, text)
        waiting_bytes = transport.underlying_transport.get_write_buffer_size()
        if waiting_bytes > self._desk.config.send_buffer_bytes and not self._blocked_at_ns:
            self._blocked_bytes, self._blocked_at_ns = waiting_bytes, self._desk.state.clock.monotonic_ns()
            self._desk.hub.blocked(self.session)
            self._desk.watch(self)

    def close(self, reason: str) -> None:
        """End the connection after what was sent."""
        if not self._gone:
            self.connection.info.last_error = reason
            text = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
            self.connection.close(WSCloseCode.OK, text)

    def read(self, read: Read) -> None:
        """Look into the log."""
        self._desk.read(self.session, read)

    # -- called by the desk -----------------------------------------------------------------------------------------

    def eased(self) -> bool:
        """Something that was waited for has come; whether nothing more is."""
        if self._gone:
            return True
        if self._finishing:
            return self._finish_if_idle()
        if self.session.is_full or self._desk.hub.is_full:
            return False
        self.connection.resume(Pause.INFLIGHT)
        return True

    def _finish_if_idle(self) -> bool:
        if self.session.phase is Phase.ACTIVE and not self.session.is_idle:
            return False
        self._desk.hub.fail(self.session, "the server stops", self._desk.now_ms())
        self.connection.close(WSCloseCode.GOING_AWAY, "the server stops")
        return True

    def look(self) -> bool:
        """Whether the peer reads again, or is cut off."""
        if self._gone or self.connection.is_closing:
            return True
        waiting_bytes = self.connection.transport.underlying_transport.get_write_buffer_size()
        now_ns = self._desk.state.clock.monotonic_ns()
        if waiting_bytes <= self._desk.config.send_buffer_bytes // 4:
            self._blocked_at_ns = 0
            self._desk.hub.unblocked(self.session)
            return not self._blocked_at_ns
        if waiting_bytes < self._blocked_bytes:
            self._blocked_bytes, self._blocked_at_ns = waiting_bytes, now_ns
        elif now_ns - self._blocked_at_ns >= self._desk.config.stall_timeout_ns:
            self.connection.abort(f"took none of {waiting_bytes} bytes for too long")
            return True
        return False

    # -- called by the session's access -----------------------------------------------------------------------------

    def note_failure(self, reason: str) -> None:
        """The client was turned away."""
        self._desk.state.gatekeeper.note_failure(reason, peer=self.connection.info.peer)

    def sign_in(self, token: str) -> Principal:
        """Whom a token of the server names: from now on the connection is theirs. Without one, whoever opened it."""
        gatekeeper, connection = self._desk.state.gatekeeper, self.connection
        if connection.principal.credential.kind != "unknown":
            return connection.principal
        if not token:
            error = Unauthenticated(reason="connect has no token")
            self.note_failure(str(error))
            raise error
        principal = gatekeeper.authenticate({"authorization": f"Bearer {token}"}, peer=connection.info.peer)
        principal.admit_connection(connection.info.peer)
        connection.principal.release_connection()
        connection.principal = principal
        connection.info.principal = principal.name
        return principal


def attach(server: Server, config: SyncConfig) -> SyncDesk:
    """Let a server that is not listening yet speak sync."""
    desk = SyncDesk(server.state, config, on_failure=server.fail)
    server.door.routes[PATH] = sync_route(desk, SyncHandler)
    server.door.late_paths.add(PATH)
    server.state.gatekeeper.reserved |= {config.channel, config.snapshots_channel}
    return desk
