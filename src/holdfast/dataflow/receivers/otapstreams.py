"""Streams of OTAP: batches in, one status for each out, in the order of their commits.

    loop:    room? ──► read ──► queue ───────────────────────────────────────► status ──► write
    intake:                       └──► Arrow streams ──► rows ──► sink: commit ──┘

A batch builds on those before it, so every batch that was read goes through the Arrow streams of its stream, whatever
becomes of it. While the intake is full nothing more is read, which slows the sender down.

| the status of a batch | when |
|---|---|
| OK | committed; the message counts spans that were left out |
| INVALID_ARGUMENT | the batch cannot be read, or is too large; sending it again is no use |
| UNAVAILABLE | the store is full or has failed, the receiver stops, or a batch before it broke the stream |
| INTERNAL | a bug; the log has it |

A stream whose state is lost, and one of a receiver that stops, ends after all its statuses, with UNAVAILABLE: what was
not answered comes again on another stream. What is no batch at all, and an id that is already under way, end it with
INVALID_ARGUMENT, since there is no id to answer under.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import grpc  # type: ignore[import-untyped]
import grpc.aio  # type: ignore[import-untyped]

from holdfast.dataflow.receivers.grpcdoor import Services, refuse
from holdfast.dataflow.receivers.guards import Guard
from holdfast.dataflow.receivers.intake import Intake
from holdfast.dataflow.receivers.settings import OtapSettings
from holdfast.errors import WireError
from holdfast.wire.otap.decode import Decoded, decode
from holdfast.wire.otap.limits import Limits
from holdfast.wire.otap.messages import Batch, Status, method, read_batch, service, write_status
from holdfast.wire.otap.reading import StreamReader
from holdfast.wire.otlp.answers import Answer, Refusal
from holdfast.wire.otlp.signals import Signal

PROTOCOL = "otap"


class OtapStreams:
    """The streams of one receiver. Made and used on one event loop."""

    def __init__(self, settings: OtapSettings, intake: Intake, guard: Guard) -> None:
        self._intake = intake
        self._guard = guard
        self._streams_max = settings.streams_max
        self._limits = Limits(settings.request_bytes_max)
        self._open: set[_Stream] = set()
        self._stopping = False

    def services(self) -> Services:
        """What an OTAP server offers."""
        return {
            service(signal): {method(signal): grpc.stream_stream_rpc_method_handler(self._serve(signal))}
            for signal in Signal
        }

    def stop(self) -> None:
        """End every stream after its last status."""
        self._stopping = True
        for stream in self._open:
            stream.end(self._intake.later("the receiver stops"))

    def _serve(self, signal: Signal) -> Callable[[Any, Any], Awaitable[None]]:
        async def serve(_requests: Any, context: Any) -> None:
            judged = await self._guard(dict(context.invocation_metadata() or ()), signal)
            answer = judged if isinstance(judged, Answer) else self._objection()
            if answer is None:
                stream = _Stream(signal, context, self._intake, self._limits)
                self._open.add(stream)
                try:
                    answer = await stream.run()
                finally:
                    self._open.discard(stream)
            if answer is not None:
                await refuse(context, answer)

        return serve

    def _objection(self) -> Answer | None:
        if self._stopping:
            return self._intake.later("the receiver stops")
        if len(self._open) >= self._streams_max:
            return self._intake.later(f"max_streams is {self._streams_max}", Refusal.BUSY)
        return None


class _Stream:
    """One stream."""

    def __init__(self, signal: Signal, context: Any, intake: Intake, limits: Limits) -> None:
        self._signal = signal
        self._context = context
        self._intake = intake
        self._limits = limits
        self._reader = StreamReader(signal, limits)
        self._under_way: set[int] = set()
        self._statuses: asyncio.Queue[Status | None] = asyncio.Queue()
        self._ended: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()

    async def run(self) -> Answer | None:
        """Serve until the end; the answer says why, None if the sender had nothing more."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._write())
            reading = tasks.create_task(self._read())
            answer = await self._ended
            reading.cancel()
            if not self._under_way:
                self._statuses.put_nowait(None)
        return answer

    def end(self, answer: Answer | None) -> None:
        """Read nothing more."""
        if not self._ended.done():
            self._ended.set_result(answer)

    async def _read(self) -> None:
        while not self._ended.done():
            await self._intake.room()
            data = await self._context.read()
            if data is grpc.aio.EOF:
                return self.end(None)
            try:
                batch = read_batch(data)
            except WireError as error:
                return self.end(Answer(Refusal.BAD, str(error)))
            if batch.batch_id in self._under_way:
                return self.end(Answer(Refusal.BAD, f"batch id {batch.batch_id} is already under way"))
            self._under_way.add(batch.batch_id)
            opened = partial(self._opened, batch)
            future = self._intake.submit_batch(self._signal, data, opened, protocol=PROTOCOL, key=batch.key)
            future.add_done_callback(partial(self._answered, batch.batch_id))
        return None

    async def _write(self) -> None:
        while (status := await self._statuses.get()) is not None:
            await self._context.write(write_status(status))

    def _opened(self, batch: Batch) -> Decoded:
        """The rows of a batch; on the thread of the intake."""
        return decode(self._signal, self._reader.read(batch), self._limits)

    def _answered(self, batch_id: int, future: asyncio.Future[Answer]) -> None:
        self._under_way.discard(batch_id)
        if not future.cancelled():
            answer = future.result()
            self._statuses.put_nowait(Status(batch_id, _code(answer), answer.message))
        if self._reader.broken:
            self.end(self._intake.later(f"the stream cannot be read any further: {self._reader.broken}"))
        if self._ended.done() and not self._under_way:
            self._statuses.put_nowait(None)


def _code(answer: Answer) -> int:
    """The status of a batch. RESOURCE_EXHAUSTED would tell senders to come again, which does not make it smaller."""
    if answer.refusal is None:
        return 0
    return (Refusal.BAD if answer.refusal is Refusal.TOO_LARGE else answer.refusal).grpc_code
