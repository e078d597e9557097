"""The stream of pictures: `GET /api/v1/live`, server-sent events, one a second.

Promise: one picture per second is taken for all who watch, and none while nobody does. A watcher that does not read is
left behind, never waited for: it gets the latest picture when it reads again. Rights are looked at with each picture,
and a credential that ends cuts the stream, as it does any request (server/admin/caller.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from holdfast.console.picture import Picture, company_of, shown, take
from holdfast.errors import HoldfastError
from holdfast.server.access import Principal
from holdfast.server.admin.caller import identify, on_thread
from holdfast.server.admin.envelope import Refused
from holdfast.server.admin.metrics import figures_of
from holdfast.server.state import ServerState
from holdfast.store.listing import ChannelSummary

PERIOD_S = 1.0
WATCHERS_MAX = 50
"""People who look at one server at the same time; each costs some kilobytes a second."""


class Gallery:
    """The latest picture, and who waits for the next one. Everything happens on the event loop."""

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._watchers = 0
        self._latest: Picture | None = None
        self._number = 0
        self._changed = asyncio.Condition()
        self._task: asyncio.Task[None] | None = None

    async def watch(self) -> AsyncIterator[Picture]:
        """Pictures from now on; a slow watcher misses some."""
        if self._watchers >= WATCHERS_MAX:
            raise Refused(503, "too_many", f"{WATCHERS_MAX} people are watching already", retry_after_s=5)
        self._watchers += 1
        try:
            seen = 0
            if self._task is None or self._task.done():
                self._task = asyncio.get_running_loop().create_task(self._run())
            while not self._state.draining:
                if self._number == seen:
                    await self._next()
                elif self._latest is not None:
                    seen = self._number
                    yield self._latest
        finally:
            self._watchers -= 1

    async def _next(self) -> None:
        """Until there is another picture; not for ever, since the server may be about to end."""
        async with self._changed:
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD_S):
                    await self._changed.wait()

    async def _run(self) -> None:
        """Take pictures for as long as somebody watches."""
        while self._watchers and not self._state.draining:
            with suppress(HoldfastError):  # a store that failed gives no more; the server is about to end
                self._latest = await self._take()
            self._number += 1
            async with self._changed:
                self._changed.notify_all()
            await asyncio.sleep(PERIOD_S)

    async def _take(self) -> Picture:
        state = self._state
        figures, company = figures_of(state), company_of(state)
        return await on_thread(take, state.store, figures, company, at_ns=state.clock.wall_ns())


async def live(request: Request) -> Response:
    """`GET /api/v1/live`."""
    gallery: Gallery = request.app.state.gallery
    caller = await identify(request)
    pictures = gallery.watch()
    first = await anext(pictures)
    return StreamingResponse(_events(caller, first, pictures), media_type="text/event-stream")


async def _events(caller: Principal, first: Picture, others: AsyncIterator[Picture]) -> AsyncIterator[bytes]:
    known: dict[str, ChannelSummary] = {}
    yield _event(shown(first, caller, known))
    async for picture in others:
        yield _event(shown(picture, caller, known))


def _event(value: object) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
