"""Where the rows of a receiver go: a store, an exporter without one, or several of these.

Promise: the future of `accept` is answered once the rows are safe there: committed, or taken by the destination. A
refusal that may pass is `RetryLater`; nothing of those rows is promised then.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from itertools import count
from typing import Protocol

import pyarrow as pa

from holdfast.errors import Backpressure
from holdfast.model.frame import Entry, Guid, Identity
from holdfast.store.store import Store

RETRY_S = 0.005
"""How often rows that found the store full are tried again."""


class Sink(Protocol):
    """Takes rows of a channel."""

    def accept(self, channel: str, rows: pa.RecordBatch, identity: Identity) -> Future[bool]:
        """Hand rows over. The answer says whether they were known already. Raises `RetryLater` at a bound."""

    @property
    def rows_bytes_max(self) -> int:
        """How many bytes of rows one call may bring."""


class StoreSink:
    """The store of a persistence node. At a bound it waits up to `wait_s`: room is being made."""

    def __init__(self, store: Store, *, wait_s: float, stopping: threading.Event) -> None:
        self._store = store
        self._tries = max(1, int(wait_s / RETRY_S))
        self._stopping = stopping
        self.throttled = 0

    @property
    def rows_bytes_max(self) -> int:
        """Half a frame: what is written is a little larger than its columns."""
        return self._store.config.frame_bytes_max // 2

    def accept(self, channel: str, rows: pa.RecordBatch, identity: Identity) -> Future[bool]:
        """Commit; answered after the sync."""
        answer: Future[bool] = Future()

        def committed(future: Future[object]) -> None:
            error = future.exception()
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(bool(getattr(future.result(), "duplicate", False)))

        self._submit(channel, rows, identity).add_done_callback(committed)
        return answer

    def _submit(self, channel: str, rows: pa.RecordBatch, identity: Identity) -> Future[object]:
        for left in range(self._tries - 1, -1, -1):
            try:
                return self._store.commit_frame_async([Entry(channel, rows)], identity=identity, wait=False)  # type: ignore[return-value]
            except Backpressure:
                if not left or self._stopping.wait(RETRY_S):
                    self.throttled += 1
                    raise
        raise AssertionError("the last try returns or raises")


class OneOf:
    """Each batch goes to one of several sinks: in turn, or by chance."""

    def __init__(self, sinks: Sequence[Sink], *, chance: random.Random | None = None) -> None:
        self._sinks = sinks
        self._chance = chance
        self._turn = count()

    @property
    def rows_bytes_max(self) -> int:
        """The least of all."""
        return min(sink.rows_bytes_max for sink in self._sinks)

    def accept(self, channel: str, rows: pa.RecordBatch, identity: Identity) -> Future[bool]:
        """Hand rows to the next one. What has an identity always goes the same way, so that a repeat is recognised."""
        if isinstance(identity, Guid):
            at = identity.value[0] % len(self._sinks)
        elif self._chance is not None:
            at = self._chance.randrange(len(self._sinks))
        else:
            at = next(self._turn) % len(self._sinks)
        return self._sinks[at].accept(channel, rows, identity)


class AllOf:
    """Each batch goes to every sink; it is safe when all have it."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks

    @property
    def rows_bytes_max(self) -> int:
        """The least of all."""
        return min(sink.rows_bytes_max for sink in self._sinks)

    def accept(self, channel: str, rows: pa.RecordBatch, identity: Identity) -> Future[bool]:
        """Hand rows to all of them."""
        return joined([sink.accept(channel, rows, identity) for sink in self._sinks])


def joined(futures: Sequence[Future[bool]]) -> Future[bool]:
    """Answered when all are: True if all said so, or the first error."""
    if len(futures) == 1:
        return futures[0]
    answer: Future[bool] = Future()
    lock = threading.Lock()
    left = len(futures)

    def one_done(_future: Future[bool]) -> None:
        nonlocal left
        with lock:
            left -= 1
            last = not left
        if last:
            error = next((error for future in futures if (error := future.exception())), None)
            if error is not None:
                answer.set_exception(error)
            else:
                answer.set_result(all(future.result() for future in futures))

    for future in futures:
        future.add_done_callback(one_done)
    return answer
