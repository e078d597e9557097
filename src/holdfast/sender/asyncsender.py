"""The producer's API for asyncio: the same sender, and no call ever blocks the event loop.

    async with AsyncSender.from_conf("ws::addr=127.0.0.1:9000;") as sender:
        await sender.send("trades", {"symbol": "ABC", "price": 12.5})
        fsn = await sender.flush()
        await sender.await_acked(fsn, timeout=5.0)

Rows are taken at once, on the loop: that costs microseconds. Whatever may wait or take long runs on one thread of its
own, in the order of the calls: publishing, which waits for room; converting tables and long lists; opening and closing.
Waiting for acknowledgements needs no thread. Promises and errors are those of `Sender`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from holdfast.errors import Closed, FrameRefused, HoldfastError
from holdfast.sender.sender import Sender
from holdfast.sender.statistics import SenderStatistics

INLINE_ROWS_MAX = 64
"""Rows of one call that are taken on the loop; more are converted on the thread."""

_Result = TypeVar("_Result")


class AsyncSender:
    """A `Sender` for asyncio: no call blocks the loop. Made by `from_conf` or `from_env`; usable from one event loop.

    >>> async def main():
    ...     async with AsyncSender.from_conf("ws::addr=127.0.0.1:9000;") as sender:
    ...         await sender.send("orders", {"id": 1})
    ...         return await sender.await_acked(await sender.flush(), timeout=30)
    >>> asyncio.run(main())
    True
    """

    def __init__(self, make: Callable[[], Sender]) -> None:
        self._make = make
        self._sender: Sender | None = None
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-async")

    @classmethod
    def from_conf(cls, conf: str, **options: Any) -> AsyncSender:
        """From a connect string; takes what `Sender.from_conf` takes. Opens with `async with` or `open`."""
        return cls(partial(Sender.from_conf, conf, **options))

    @classmethod
    def from_env(cls, **options: Any) -> AsyncSender:
        """From the connect string in `HOLDFAST_CONF`."""
        return cls(partial(Sender.from_env, **options))

    @classmethod
    def from_keywords(cls, **keys: Any) -> AsyncSender:
        """From keyword arguments, as `Sender` takes them."""
        return cls(partial(Sender, **keys))

    async def open(self) -> AsyncSender:
        """Open the slot, and connect as `initial_connect_retry` says."""
        if self._is_closed:
            raise Closed(what="the sender")
        if self._sender is None:
            self._sender = await self._run(self._make)
        return self

    @property
    def _open(self) -> Sender:
        if self._is_closed:
            raise Closed(what="the sender")
        if self._sender is None:
            raise Closed(what="an AsyncSender that was not opened (use `async with`, or await open())")
        return self._sender

    async def _run(self, call: Callable[[], _Result]) -> _Result:
        """Run on the thread; the call is not undone when the waiting is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    # --- handing over ----------------------------------------------------------------------------------------------

    async def send(
        self, channel: str, data: Any, *, partitions: Sequence[str] = (), at: datetime | int | None = None
    ) -> None:
        """Take events, as `Sender.send`."""
        sender = self._open
        if sender.is_due:
            await self._run(sender.flush)
        offer = partial(sender.offer, channel, data, partitions=partitions, at=at)
        is_short = isinstance(data, Mapping) or (isinstance(data, list | tuple) and len(data) < INLINE_ROWS_MAX)
        is_due = offer() if is_short else await self._run(offer)
        if is_due:
            await self._run(sender.flush_taken)

    async def flush(self) -> int:
        """Publish everything that is pending; the FSN of the last frame."""
        return await self._run(self._open.flush)

    def take_pending(self, channel: str) -> list[Any]:
        """Remove and return what was sent to a channel and is in no frame yet."""
        return self._open.take_pending(channel)

    # --- waiting ---------------------------------------------------------------------------------------------------

    async def await_acked(self, fsn: int, timeout: float | None = None) -> bool:
        """Whether the server accepted the frame and all before it within that many seconds; see `Sender`."""
        ended = asyncio.wrap_future(self._open.when_acked(fsn))
        try:
            async with asyncio.timeout(timeout):
                await ended
        except TimeoutError:
            return False
        return True

    async def drain(self, timeout: float | None = None) -> bool:
        """Publish what is pending, and wait until the server has answered for everything."""
        fsn = await self.flush()
        try:
            return fsn < 0 or await self.await_acked(fsn, timeout)
        except FrameRefused:  # that is an answer too
            return True

    @property
    def published_fsn(self) -> int:
        """The last frame; -1 before the first."""
        return self._open.published_fsn

    @property
    def acked_fsn(self) -> int:
        """The server has answered for every frame up to this one."""
        return self._open.acked_fsn

    @property
    def pending_rows(self) -> int:
        """Rows that are in no frame yet."""
        return self._open.pending_rows

    def statistics(self) -> SenderStatistics:
        """The sender now."""
        return self._open.statistics()

    # --- closing ---------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """As `Sender.close`. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._sender is not None:
                await self._run(self._sender.close)
        finally:
            self._thread.shutdown(wait=False)

    async def __aenter__(self) -> AsyncSender:
        return await self.open()

    async def __aexit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except HoldfastError:
            if error is None:
                raise
