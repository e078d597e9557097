"""A WebSocket server on a real socket whose every answer is the test's decision."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from picows import (
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
    ws_create_server,
)

from holdfast.errors import Category
from holdfast.wire import replies

PATIENCE_S = 30.0


class Peer(WSListener):
    """One connection of a sender, seen from the server."""

    def __init__(self, owner: Loopback, headers: Mapping[str, str], number: int) -> None:
        self.headers = headers
        self.number = number
        """Which connection this is, from 0."""
        self.messages: list[bytes] = []
        self.pings = 0
        self._owner = owner
        self._transport: WSTransport

    @property
    def count(self) -> int:
        """Messages so far."""
        return len(self.messages)

    # what a script does

    def ok(self, wire_seq: int | None = None, **marks: int) -> None:
        """Accept up to this message; by default the last one."""
        seq = self.count - 1 if wire_seq is None else wire_seq
        self.raw(replies.encode_ok(seq, list(marks.items())))

    def durable(self, **marks: int) -> None:
        self.raw(replies.encode_durable_ack(list(marks.items())))

    def refuse(self, category: Category, wire_seq: int | None = None, text: str = "refused by the test") -> None:
        self.raw(replies.encode_refusal(category, self.count - 1 if wire_seq is None else wire_seq, text))

    def raw(self, message: bytes) -> None:
        self._transport.send(WSMsgType.BINARY, message)

    def text(self, message: str) -> None:
        self._transport.send(WSMsgType.TEXT, message.encode())

    def fragments(self, *pieces: bytes) -> None:
        kinds = [WSMsgType.BINARY] + [WSMsgType.CONTINUATION] * (len(pieces) - 1)
        for kind, piece in zip(kinds, pieces, strict=True):
            self._transport.send(kind, piece, fin=piece is pieces[-1])

    def close(self, code: int, reason: str = "by the test") -> None:
        message = code.to_bytes(2, "big") + reason.encode()
        self._transport.send(WSMsgType.CLOSE, message)
        self._transport.disconnect()

    def drop(self) -> None:
        self._transport.disconnect(graceful=False)

    # called by picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        self._owner.joined(self)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        if frame.msg_type == WSMsgType.BINARY:
            self.messages.append(frame.get_payload_as_bytes())
            self._owner.script(self)
        elif frame.msg_type == WSMsgType.PING:
            self.pings += 1
            transport.send_pong(frame.get_payload_as_bytes())
            if self._owner.on_ping is not None:
                self._owner.on_ping(self)
        elif frame.msg_type == WSMsgType.CLOSE:
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
        self._owner.tell()


Script = Callable[[Peer], None]
Answer = tuple[int, Sequence[tuple[str, str]]]


class Loopback:
    """Listens until the block ends. `script` is called for every message, on the server's thread."""

    def __init__(
        self,
        script: Script,
        *,
        on_join: Script | None = None,
        on_ping: Script | None = None,
        upgrade: Callable[[Mapping[str, str], int], Answer] | None = None,
    ) -> None:
        self.script = script
        self.on_join = on_join
        self.on_ping = on_ping
        self.port = 0
        self.peers: list[Peer] = []
        self.requests = 0
        self._upgrade = upgrade or (lambda _headers, _number: (101, ()))
        self._changed = threading.Condition()
        self._stop: asyncio.Event
        self._loop: asyncio.AbstractEventLoop
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="test-loopback")

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await ws_create_server(self._accept, "127.0.0.1", 0, max_frame_size=1 << 26, enable_auto_pong=False)
        with self._changed:
            self.port = server.sockets[0].getsockname()[1]
            self._changed.notify_all()
        await self._stop.wait()
        server.close()
        for peer in self.peers:
            peer.drop()

    def _accept(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        self.requests += 1
        status, headers = self._upgrade(request.headers, self.requests - 1)
        self.tell()
        if status != 101:
            return WSUpgradeResponseWithListener(
                WSUpgradeResponse.create_error_response(status, b"no", list(headers)), None
            )
        peer = Peer(self, request.headers, len(self.peers))
        self.peers.append(peer)
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_101_response(list(headers)), peer)

    def joined(self, peer: Peer) -> None:
        if self.on_join is not None:
            self.on_join(peer)
        self.tell()

    def tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something the server saw makes it true."""
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE_S), "it never happened"

    def do(self, action: Callable[[], None]) -> None:
        """Run something on the server's thread."""
        self._loop.call_soon_threadsafe(action)

    def __enter__(self) -> Loopback:
        self._thread.start()
        self.until(lambda: self.port != 0)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)


def accept_all(peer: Peer) -> None:
    """Answer every message with OK."""
    peer.ok()
