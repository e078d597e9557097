"""The consumer's API for asyncio: the same consumer, and no call ever blocks the event loop.

    async with AsyncConsumer.from_conf("ws::addr=127.0.0.1:9000;", channel="trades", durable="billing") as consumer:
        async for message in consumer:
            await bill(message.data)
            message.ack()

Messages are taken on the loop; whatever waits for the server runs on a thread. `message.ack()` waits for nothing, so it
may be called as it is; `await consumer.settle(message.nack)` is for answers that wait. Promises and errors are those
of `Consumer`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import pyarrow as pa

from holdfast.consumer.consumer import Consumer, ConsumerStatistics
from holdfast.consumer.messages import Delivery, Message
from holdfast.errors import Closed

_Result = TypeVar("_Result")


class AsyncConsumer:
    """A `Consumer` for asyncio: no call blocks the loop. Made by `from_conf` or `from_env`; usable from one event loop.

    >>> async def main():
    ...     where = "ws::addr=127.0.0.1:9000;"
    ...     async with AsyncConsumer.from_conf(where, channel="orders", durable="audit") as consumer:
    ...         async for message in consumer:
    ...             message.ack()
    ...             return message.data
    >>> asyncio.run(main())
    {'id': 1}
    """

    def __init__(self, make: Callable[[], Consumer]) -> None:
        self._make = make
        self._consumer: Consumer | None = None
        self._is_closed = False
        self._current: Iterator[Message] = iter(())
        self._handed: Delivery | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-async")

    @classmethod
    def from_conf(cls, conf: str, **keys: Any) -> AsyncConsumer:
        """From a connect string; takes what `Consumer.from_conf` takes. Opens with `async with` or `open`."""
        return cls(partial(Consumer.from_conf, conf, **keys))

    @classmethod
    def from_env(cls, **keys: Any) -> AsyncConsumer:
        """From the connect string in `HOLDFAST_CONF`."""
        return cls(partial(Consumer.from_env, **keys))

    async def open(self) -> AsyncConsumer:
        """Connect and open the subscription."""
        if self._is_closed:
            raise Closed(what="the consumer")
        if self._consumer is None:
            self._consumer = await self._run(self._make)
        return self

    @property
    def _open(self) -> Consumer:
        if self._is_closed:
            raise Closed(what="the consumer")
        if self._consumer is None:
            raise Closed(what="an AsyncConsumer that was not opened (use `async with`, or await open())")
        return self._consumer

    async def _run(self, call: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    # --- getting messages --------------------------------------------------------------------------------------------

    async def next(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none came within that many seconds, or the consumer was closed."""
        message = next(self._current, None)
        if message is None:
            delivery = await self._take(timeout)
            if delivery is None:
                return None
            self._current = delivery.messages()
            message = next(self._current)
        return message

    async def __aiter__(self) -> AsyncIterator[Message]:
        while (message := await self.next()) is not None:
            yield message

    async def fetch(self, count: int, timeout: float | None = None) -> list[Message]:
        """Up to `count` messages: what is there, or what comes first within that many seconds."""
        found: list[Message] = []
        message = await self.next(timeout)
        while message is not None:
            found.append(message)
            message = await self.next(0.0) if len(found) < count else None
        return found

    async def deliveries(self, timeout: float | None = None) -> AsyncIterator[Delivery]:
        """Messages as they were delivered, a batch at a time."""
        while (delivery := await self._take(timeout)) is not None:
            yield delivery

    async def batches(self, timeout: float | None = None) -> AsyncIterator[pa.RecordBatch]:
        """Record batches; `ack` confirms the one that was given last."""
        async for delivery in self.deliveries(timeout):
            self._handed = delivery
            yield delivery.batch

    def ack(self) -> None:
        """Done with the batch that `batches` gave last; waits for nothing."""
        if self._handed is not None:
            self._handed.ack()

    async def _take(self, timeout: float | None) -> Delivery | None:
        try:
            async with asyncio.timeout(timeout):
                while True:
                    consumer, loop = self._open, asyncio.get_running_loop()
                    changed = asyncio.Event()
                    delivery = consumer.poll(partial(_wake, loop, changed))
                    if delivery is not None or consumer.is_ended:
                        return delivery
                    await changed.wait()
        except TimeoutError:
            return None

    # --- the rest ----------------------------------------------------------------------------------------------------

    async def settle(self, answer: Callable[..., None], *args: Any) -> None:
        """Give an answer that waits: `await consumer.settle(message.nack, 5.0)`."""
        await self._run(partial(answer, *args))

    async def configure(self, **changes: Any) -> None:
        """As `Consumer.configure`."""
        await self._run(partial(self._open.configure, **changes))

    async def unsubscribe(self) -> None:
        """As `Consumer.unsubscribe`."""
        await self._run(self._open.unsubscribe)

    def statistics(self) -> ConsumerStatistics:
        """The consumer now."""
        return self._open.statistics()

    async def close(self) -> None:
        """As `Consumer.close`. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            if self._consumer is not None:
                await self._run(self._consumer.close)
        finally:
            self._thread.shutdown(wait=False)

    async def __aenter__(self) -> AsyncConsumer:
        return await self.open()

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        await self.close()


def _wake(loop: asyncio.AbstractEventLoop, changed: asyncio.Event) -> None:
    """From another thread."""
    loop.call_soon_threadsafe(changed.set)
