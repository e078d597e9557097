"""A TCP proxy between a sender and a server that cuts connections, or lets them go silent, when told to."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from types import TracebackType

PATIENCE_S = 30.0


class Proxy:
    """Forwards both ways until `silence` or `cut`; both leave later connections alone."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._ready = threading.Event()
        self._writers: list[asyncio.StreamWriter] = []
        self._silent: set[asyncio.StreamWriter] = set()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="test-proxy")
        self.port = 0
        self.connections = 0

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        self._abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:  # nobody is there now
            writer.transport.abort()
            return
        self._writers += (writer, inner_writer)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await asyncio.gather(self._forward(reader, inner_writer), self._forward(inner_reader, writer))

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                if writer not in self._silent:
                    writer.write(data)
        finally:  # also after a reset: the other side would wait for ever
            if writer not in self._silent:
                writer.close()

    def _abort(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.transport.abort()

    def lead_to(self, port: int) -> None:
        """Where connections go from now on: a server that comes back may have another port."""
        self._target = port

    def cut(self) -> None:
        """Reset every connection."""
        self._loop.call_soon_threadsafe(self._abort)

    def silence(self) -> None:
        """Deliver nothing any more on the connections there are, and tell neither side; so it is when this returns."""
        done = threading.Event()

        def silence() -> None:
            self._silent.update(self._writers)
            done.set()

        self._loop.call_soon_threadsafe(silence)
        assert done.wait(PATIENCE_S)

    def __enter__(self) -> Proxy:
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
