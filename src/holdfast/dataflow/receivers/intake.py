"""From requests to rows in a sink, on a thread of its own, so that the event loop never waits for a disk.

    loop:    submit ──► bounds ──► queue                                      answer ◄── call_soon_threadsafe
    thread:                         └──► inflate ──► JSON? ──► check or decode ──► group ──► sink ──┘ once per group

Requests that wait together become one batch, and one answer from the sink wakes the loop once for all of them. A
request with an idempotency key is a frame of its own, so that its repeat is recognised.

Promise: a request is answered as accepted only after the sink has it. Beyond `response_stream_channel_size` requests
or `max_inflight_size` bytes the answer is to come again later; the same when the sink is full. An envelope without
records is accepted and not kept.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

import msgspec
import pyarrow as pa

from holdfast.clock import NS_PER_S
from holdfast.dataflow.receivers.guards import ANYBODY, Sending
from holdfast.dataflow.receivers.inflating import inflate
from holdfast.dataflow.receivers.settings import ReceiverSettings
from holdfast.dataflow.sinks import Sink, joined
from holdfast.errors import BadRequest, Closed, LimitReached, RetryLater, StoreFailed, WireError
from holdfast.model.frame import Guid
from holdfast.telemetry import event
from holdfast.wire.otlp.answers import Answer, Refusal
from holdfast.wire.otlp.check import NO_IDS, check
from holdfast.wire.otlp.decode import decode_rows
from holdfast.wire.otlp.encode import encode
from holdfast.wire.otlp.jsontext import to_protobuf
from holdfast.wire.otlp.raw import RawRequest, raw_rows, requests_array
from holdfast.wire.otlp.signals import Signal

GROUP_BYTES = 4 << 20
"""Requests that are stored together: enough to make small ones cheap, few enough to answer soon."""
GROUP_REQUESTS = 512
REQUEST_ROWS = 8192
"""Records of a request that is made of rows; what collectors send at most."""
KEY_CHARS_MAX = 256

_T = TypeVar("_T")


class Opened(Protocol):
    """Rows of a batch, and how many records were left out of it."""

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows."""

    @property
    def refused(self) -> int:
        """The rest."""


class Submission(msgspec.Struct, gc=False):
    """A request as it came."""

    signal: Signal
    body: bytes
    protocol: str
    encoding: str
    key: str
    sending: Sending
    answer: asyncio.Future[Answer]
    opened: Callable[[], Opened] | None = None
    """What makes rows of a body that is no OTLP request."""


class _Ready(msgspec.Struct, frozen=True, gc=False):
    """A request that can be kept."""

    submission: Submission
    request: bytes
    records: int
    refused: int


@dataclass(slots=True)
class IntakeStatistics:
    """What a receiver has done. Written by the thread that says so; read by anyone."""

    requests: dict[str, int] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    refused_records: dict[str, int] = field(default_factory=dict)
    refusals: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
    duplicates: int = 0
    throttled: int = 0
    groups: int = 0


class Intake:
    """Shared by the doors of one receiver. `submit` is called on the loop."""

    def __init__(self, name: str, settings: ReceiverSettings, sink: Sink) -> None:
        self.name = name
        self.statistics = IntakeStatistics()
        self._settings = settings
        self._channels = {Signal(signal): channel for signal, channel in settings.channels_by_signal().items()}
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Submission | None] = SimpleQueue()
        self._waiting = 0
        self._waiting_bytes = 0
        self._roomy = asyncio.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=f"holdfast-{name}", daemon=True)
        self._thread.start()

    # -- on the loop ------------------------------------------------------------------------------------------------

    def submit(
        self,
        signal: Signal,
        body: bytes,
        *,
        protocol: str,
        encoding: str = "",
        key: str = "",
        sending: Sending = ANYBODY,
    ) -> asyncio.Future[Answer]:
        """Hand a request over; the answer comes when it is decided, and settles the claim of `sending`."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        objection = self._objection(body, key)
        if objection is not None:
            _count(self.statistics.refusals, objection.refusal)
            sending.claim.refuse()
            future.set_result(objection)
            return future
        self._waiting += 1
        self._waiting_bytes += len(body)
        self._queue.put(Submission(signal, body, protocol, encoding, key, sending, future))
        return future

    def submit_batch(
        self, signal: Signal, body: bytes, opened: Callable[[], Opened], *, protocol: str, key: str = ""
    ) -> asyncio.Future[Answer]:
        """Hand over a batch of a stream, whose order is kept. The caller has waited for `room`."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting += 1
        self._waiting_bytes += len(body)
        self._queue.put(Submission(signal, body, protocol, "", key, ANYBODY, future, opened))
        return future

    async def room(self) -> None:
        """Wait until something may be submitted. A stream that is not read is how its sender is slowed down."""
        while self._is_full(0):
            self._roomy.clear()
            await self._roomy.wait()

    def _is_full(self, more_bytes: int) -> bool:
        settings = self._settings
        return self._waiting >= settings.requests_max or (
            self._waiting > 0 and self._waiting_bytes + more_bytes > settings.inflight_bytes_max
        )

    def _objection(self, body: bytes, key: str) -> Answer | None:
        settings = self._settings
        if self._closed:
            return self.later("the receiver stops")
        if self._is_full(len(body)):
            self.statistics.throttled += 1
            return self.later(f"{self._waiting} requests wait for their commit", Refusal.BUSY)
        if len(body) > settings.request_bytes_max:
            return self.too_large()
        if len(key) > KEY_CHARS_MAX:
            return Answer(Refusal.BAD, f"the idempotency key has more than {KEY_CHARS_MAX} characters")
        return None

    def later(self, message: str, refusal: Refusal = Refusal.LATER) -> Answer:
        """A refusal with a hint when to come again."""
        return Answer(refusal, message, retry_after_s=self._settings.retry_after_ns / NS_PER_S)

    def too_large(self) -> Answer:
        """A refusal that no retry mends."""
        return Answer(Refusal.TOO_LARGE, f"a request may have {self._settings.request_bytes_max} bytes, inflated")

    async def close(self) -> None:
        """Accept nothing more; returns when all that came is answered."""
        self._closed = True
        self._queue.put(None)
        await self._loop.run_in_executor(None, self._thread.join)
        await asyncio.sleep(0)

    def _settle(self, answers: Sequence[tuple[Submission, Answer]]) -> None:
        for submission, answer in answers:
            self._waiting -= 1
            self._waiting_bytes -= len(submission.body)
            if not submission.answer.done():  # a client that went away
                submission.answer.set_result(answer)
        self._roomy.set()

    # -- on the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pending: list[Future[bool]] = []
        while (first := self._queue.get()) is not None:
            group, size_bytes = [first], len(first.body)
            last = False
            while len(group) < GROUP_REQUESTS and size_bytes < GROUP_BYTES:
                try:
                    found = self._queue.get_nowait()
                except Empty:
                    break
                if found is None:
                    last = True
                    break
                group.append(found)
                size_bytes += len(found.body)
            pending = [future for future in pending if not future.done()] + self._take(group)
            if last:
                break
        for future in pending:
            future.exception()  # waits; what it says was answered already

    def _take(self, group: Sequence[Submission]) -> list[Future[bool]]:
        """Bring a group to the sink; returns what is not answered yet."""
        self.statistics.groups += 1
        together: dict[Signal, list[_Ready]] = {}
        futures: list[Future[bool]] = []
        size_bytes = 0
        for submission in group:
            if submission.opened is not None:
                futures += self._store_batch(submission, submission.opened)
                continue
            ready = self._guarded([submission], partial(self._prepare, submission))
            if ready is None:
                continue
            if submission.key:
                futures += self._store(submission.signal, [ready])
                continue
            together.setdefault(submission.signal, []).append(ready)
            size_bytes += len(ready.request)
            if size_bytes >= GROUP_BYTES:  # small bodies may have inflated to large ones
                futures += self._store_all(together)
                size_bytes = 0
        return futures + self._store_all(together)

    def _store_all(self, together: dict[Signal, list[_Ready]]) -> list[Future[bool]]:
        found = [future for signal, items in together.items() for future in self._store(signal, items)]
        together.clear()
        return found

    def _prepare(self, submission: Submission) -> _Ready | None:
        """A request that is inflated and sound; None if there is nothing to keep."""
        body = inflate(submission.body, submission.encoding, bytes_max=self._settings.request_bytes_max)
        if submission.protocol == "http/json":
            body = to_protobuf(submission.signal, body)
        checked = check(submission.signal, body) if body else None
        if checked is None or not checked.records:
            submission.sending.claim.refuse()
            self._accepted([(submission, 0, checked.refused if checked else 0)], duplicate=False)
            return None
        return _Ready(submission, checked.request, checked.records, checked.refused)

    def _store(self, signal: Signal, items: list[_Ready]) -> list[Future[bool]]:
        if self._settings.payload == "raw":
            raw = [RawRequest(item.request, item.submission.protocol, item.records) for item in items]
            return self._hand_over(items, signal, raw_rows(signal, raw))
        requests = requests_array([item.request for item in items])
        rows = self._guarded([item.submission for item in items], partial(decode_rows, signal, requests))
        if rows is None:
            return []
        return self._hand_over(items, signal, rows)

    def _store_batch(self, submission: Submission, opened: Callable[[], Opened]) -> list[Future[bool]]:
        """Bring a batch of a stream to the sink: its rows, or requests made of them."""
        found = self._guarded([submission], opened)
        if found is None:
            return []
        rows = found.rows
        if not rows.num_rows:
            self._accepted([(submission, 0, found.refused)], duplicate=False)
            return []
        ready = _Ready(submission, b"", rows.num_rows, found.refused)
        if self._settings.payload == "raw":
            rows = self._guarded([submission], partial(_as_requests, submission, rows))
            if rows is None:
                return []
        return self._hand_over([ready], submission.signal, rows)

    def _hand_over(self, items: list[_Ready], signal: Signal, rows: pa.RecordBatch) -> list[Future[bool]]:
        submissions = [item.submission for item in items]
        first = submissions[0]
        channel = self._channels[signal]

        def send() -> Future[bool]:
            parts = _parts(rows, self._sink.rows_bytes_max)
            if len(parts) > 1:  # one may be stored although another is refused
                _accept_claims(submissions)
            return joined(
                [
                    self._sink.accept(channel, part, _identity(first, number) if first.key else None)
                    for number, part in enumerate(parts)
                ]
            )

        future = self._guarded(submissions, send)
        if future is None:
            return []
        future.add_done_callback(lambda done: self._decided(items, done))
        return [future]

    def _decided(self, items: list[_Ready], future: Future[bool]) -> None:
        """The sink has answered; on its thread."""
        if self._guarded([item.submission for item in items], future.result) is None:
            return
        self._accepted(_counts_of(items), duplicate=future.result())

    def _guarded(self, submissions: Sequence[Submission], work: Callable[[], _T | None]) -> _T | None:
        """The result of the work; None after its refusal was answered."""
        try:
            return work()
        except Exception as error:
            self.statistics.throttled += len(submissions) if isinstance(error, RetryLater) else 0
            for submission in submissions:
                submission.sending.claim.settle(error)
            self._refused(submissions, self._answer_to(error))
            return None

    def _answer_to(self, error: Exception) -> Answer:
        if isinstance(error, LimitReached):
            return Answer(Refusal.TOO_LARGE, str(error))
        if isinstance(error, RetryLater):
            return self.later(str(error))
        if isinstance(error, WireError | BadRequest):
            return Answer(Refusal.BAD, str(error))
        if isinstance(error, Closed):
            return self.later("the receiver stops")
        if isinstance(error, StoreFailed):  # the process ends over it; a client that may not come again would drop data
            return self.later("the store failed")
        event("dataflow.receiver.fail", level=logging.ERROR, node=self.name, reason=repr(error))
        return Answer(Refusal.FAILED, "an error of the server")

    def _refused(self, submissions: Sequence[Submission], answer: Answer) -> None:
        for _ in submissions:
            _count(self.statistics.refusals, answer.refusal)
        self._loop.call_soon_threadsafe(self._settle, [(submission, answer) for submission in submissions])

    def _accepted(self, counts: Sequence[tuple[Submission, int, int]], *, duplicate: bool) -> None:
        _accept_claims([submission for submission, _, _ in counts])
        figures = self.statistics
        figures.duplicates += len(counts) if duplicate else 0
        for submission, records, refused in counts:
            signal = submission.signal.value
            figures.requests[signal] = figures.requests.get(signal, 0) + 1
            figures.records[signal] = figures.records.get(signal, 0) + records
            figures.refused_records[signal] = figures.refused_records.get(signal, 0) + refused
            figures.bytes += len(submission.body)
        answers = [
            (submission, Answer(None, NO_IDS if refused else "", refused, duplicate=duplicate))
            for submission, _, refused in counts
        ]
        self._loop.call_soon_threadsafe(self._settle, answers)


def _accept_claims(submissions: Sequence[Submission]) -> None:
    for submission in submissions:
        submission.sending.claim.accept()


def _counts_of(items: Sequence[_Ready]) -> list[tuple[Submission, int, int]]:
    return [(item.submission, item.records, item.refused) for item in items]


def _as_requests(submission: Submission, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows as OTLP requests, so that a channel has one kind of rows whoever writes it."""
    parts = [rows.slice(start, REQUEST_ROWS) for start in range(0, rows.num_rows, REQUEST_ROWS)]
    signal = submission.signal
    return raw_rows(signal, [RawRequest(encode(signal, part), submission.protocol, part.num_rows) for part in parts])


def _identity(submission: Submission, number: int) -> Guid:
    text = f"{submission.signal.value}/{number}/{submission.key}"
    return submission.sending.guid(blake2b(text.encode(), digest_size=16).digest())


def _parts(rows: pa.RecordBatch, bytes_max: int) -> list[pa.RecordBatch]:
    """Rows in slices that fit; decoded rows repeat their resource and may be much larger than the request."""
    if rows.nbytes <= bytes_max:
        return [rows]
    step = max(1, rows.num_rows * bytes_max // rows.nbytes)
    return [rows.slice(start, step) for start in range(0, rows.num_rows, step)]


def _count(table: dict[str, int], refusal: Refusal | None) -> None:
    name = refusal.name.lower() if refusal is not None else ""
    table[name] = table.get(name, 0) + 1
