"""The limit of the sockets: a picows server that answers every message with OK and does nothing else.

python -m bench.bare_sockets prints the port and runs until its standard input ends. Like the server, it sends at most
one OK per turn of its loop.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, WSUpgradeRequest, ws_create_server

from holdfast.wire import replies

FRAME_BYTES_MAX = 32 << 20


class Sink(WSListener):
    """Counts, answers, forgets."""

    def __init__(self) -> None:
        self._count = 0
        self._answering = False
        self._loop = asyncio.get_running_loop()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Take a message as the server does: with a copy."""
        if frame.msg_type == WSMsgType.BINARY:
            frame.get_payload_as_bytes()
            self._count += 1
            if not self._answering:
                self._answering = True
                self._loop.call_soon(self._answer, transport)

    def _answer(self, transport: WSTransport) -> None:
        self._answering = False
        transport.send(WSMsgType.BINARY, replies.encode_ok(self._count - 1, [("events", self._count)]))


def listener(_request: WSUpgradeRequest) -> Sink:
    """One per connection."""
    return Sink()


async def serve() -> None:
    """Until standard input ends."""
    server = await ws_create_server(listener, "127.0.0.1", 0, max_frame_size=FRAME_BYTES_MAX)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve())
