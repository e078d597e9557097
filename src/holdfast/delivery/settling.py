"""Outcomes on their way to the store: collected on the event loop, written by one thread, a round at a time.

Promise: while a round is being synced, the next one collects; so the number of syncs follows the disk, not the number
of answers. Whoever asked is told when the round with its answer is durable. A full disk costs time, not outcomes: the
round is written again until it is there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.errors import HoldfastError, LimitReached, RetryLater
from holdfast.model.intervals import IntervalSet
from holdfast.store.subscribers.acklog import OutcomeRecord
from holdfast.store.subscribers.handing import Place
from holdfast.store.subscribers.progress import Outcome
from holdfast.telemetry import event

RETRY_S = 1.0
"""When a round that found the disk full is written again."""

Span = tuple[int, int]
Told = Callable[[HoldfastError | None], None]


class Ledger(Protocol):
    """Where outcomes are kept; the store's port is one."""

    def settle(
        self, place: Place, outcome: Outcome, spans: Sequence[Span], *, reason: str = ""
    ) -> Future[list[OutcomeRecord]]:
        """Write an outcome; the future is done when it is durable."""


@dataclass(slots=True)
class _Round:
    """What one place has to tell."""

    place: Place
    acked: IntervalSet = field(default_factory=IntervalSet)
    failed: list[tuple[list[Span], str]] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)


class Settler:
    """Everything but `_write` happens on the event loop."""

    def __init__(self, port: Ledger, *, on_failure: Callable[[HoldfastError], None]) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-settler")
        self._rounds: dict[int, _Round] = {}
        self._writing: dict[int, _Round] = {}
        self._on_failure = on_failure
        self._closed = False

    def close(self) -> None:
        """Nothing more comes; what is being written is finished."""
        self._closed = True
        self._thread.shutdown(wait=True, cancel_futures=True)

    @property
    def is_busy(self) -> bool:
        """Whether anything is not durable yet."""
        return bool(self._rounds or self._writing)

    def is_pending(self, place: Place) -> bool:
        """Whether outcomes of a place are not durable yet."""
        return id(place) in self._rounds or id(place) in self._writing

    def ranges_pending(self, place: Place) -> int:
        """How many ranges wait to be written."""
        found = self._rounds.get(id(place))
        return len(found.acked) if found is not None else 0

    def ack(self, place: Place, spans: Iterable[Span], told: Told | None = None) -> None:
        """Messages are done."""
        here = self._round(place)
        for first, last in spans:
            here.acked.add(first, last)
        self._begin(here, told)

    def fail(self, place: Place, spans: list[Span], *, reason: str, told: Told | None = None) -> None:
        """Deliveries ended without an ack."""
        here = self._round(place)
        if spans:
            here.failed.append((spans, reason))
        self._begin(here, told)

    def after(self, place: Place, told: Told) -> None:
        """Tell when everything said so far is durable."""
        if self.is_pending(place):
            self._begin(self._round(place), told)
        else:
            told(None)

    def _round(self, place: Place) -> _Round:
        return self._rounds.setdefault(id(place), _Round(place))

    def _begin(self, here: _Round, told: Told | None) -> None:
        if told is not None:
            here.told.append(told)
        self._kick()

    def _kick(self) -> None:
        if self._writing or not self._rounds or self._closed:
            return
        self._writing, self._rounds = self._rounds, {}
        work = self._thread.submit(self._write, list(self._writing.values()))
        work.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._written, done))

    def _write(self, rounds: list[_Round]) -> list[HoldfastError | None]:
        """On the thread: hand everything to the log, then wait for the sync it shares."""
        asked = []
        for here in rounds:
            futures = [self._port.settle(here.place, Outcome.ACK, list(here.acked))] if here.acked else []
            for spans, reason in here.failed:
                futures.append(self._port.settle(here.place, Outcome.NACK, spans, reason=reason))
            asked.append(futures)
        return [_first_error(futures) for futures in asked]

    def _written(self, done: Future[list[HoldfastError | None]]) -> None:
        written, self._writing = list(self._writing.values()), {}
        unforeseen, again = done.exception(), False
        errors = [HoldfastError(str(unforeseen))] * len(written) if unforeseen is not None else done.result()
        for here, error in zip(written, errors, strict=True):
            if isinstance(error, RetryLater | LimitReached):
                self._merge(here)
                again = True
                continue
            if error is not None:
                event("delivery.settle.fail", subscriber=here.place.state.note.name, reason=error)
                if not here.place.removed:
                    self._on_failure(error)
            for told in here.told:
                told(error)
        if again and not self._closed:
            self._loop.call_later(RETRY_S, self._kick)
        else:
            self._kick()

    def _merge(self, here: _Round) -> None:
        """Write it once more, together with what came meanwhile."""
        newer = self._rounds.get(id(here.place))
        if newer is not None:
            for first, last in newer.acked:
                here.acked.add(first, last)
            here.failed += newer.failed
            here.told += newer.told
        self._rounds[id(here.place)] = here


def _first_error(futures: Iterable[Future[list[OutcomeRecord]]]) -> HoldfastError | None:
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, HoldfastError):
            raise error
    return next((error for error in errors if isinstance(error, HoldfastError)), None)
