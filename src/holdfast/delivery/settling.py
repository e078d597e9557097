"""Outcomes on their way to the store: collected on the event loop, written by one thread, a round at a time.

Promise: while a round is being synced, the next one collects; so the number of syncs follows the disk, not the number
of answers. Whoever asked is told when the round with its answer is durable. A full disk costs time, not outcomes: the
round is written again until it is there.

What was handed out is written too, so that a crash does not forget it: with the next round, and no later than
`HANDED_WITHIN_S` after. What is answered sooner than that is not written as handed out at all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
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

HANDED_WITHIN_S = 0.1
"""How long a delivery may be known to memory only. A crash within this time, and the sync after it, forgets the
delivery: so long its messages may come again unmarked. Shorter costs syncs: ten a second, whatever the consumers."""

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
    returned: IntervalSet = field(default_factory=IntervalSet)
    handed: IntervalSet = field(default_factory=IntervalSet)
    """Handed out since, and still held. Written last: whatever else the round says of them was before."""
    told: list[Told] = field(default_factory=list)

    def ended(self, spans: Iterable[Span]) -> None:
        """Nobody holds these any more."""
        if self.handed:
            for first, last in spans:
                self.handed.discard(first, last)


class Settler:
    """Everything but `_write` happens on the event loop."""

    def __init__(
        self, port: Ledger, *, on_failure: Callable[[HoldfastError], None], thread: Executor | None = None
    ) -> None:
        self._port = port
        self._loop = asyncio.get_running_loop()
        self._thread = thread or ThreadPoolExecutor(1, "holdfast-settler")
        self._rounds: dict[int, _Round] = {}
        self._writing: dict[int, _Round] = {}
        self._on_failure = on_failure
        self._closed = False
        self._urgent = False  # whether the next round has more to say than what was handed out
        self._lazily: asyncio.TimerHandle | None = None

    def close(self) -> None:
        """Nothing more comes; what was said is written. Nobody is told any more."""
        self._closed = True
        if self._lazily is not None:
            self._lazily.cancel()
        self._thread.submit(self._write, list(self._rounds.values()))
        self._thread.shutdown(wait=True)

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
        here, done = self._round(place), list(spans)
        here.ended(done)
        for first, last in done:
            here.acked.add(first, last)
        self._begin(here, told)

    def fail(self, place: Place, spans: list[Span], *, reason: str, told: Told | None = None) -> None:
        """Deliveries ended without an ack."""
        here = self._round(place)
        here.ended(spans)
        if spans:
            here.failed.append((spans, reason))
        self._begin(here, told)

    def hand(self, place: Place, spans: Iterable[Span]) -> None:
        """Messages are on their way to a consumer; written within `HANDED_WITHIN_S`."""
        here = self._round(place)
        for first, last in spans:
            here.handed.add(first, last)
        if self._lazily is None and not self._closed:
            self._lazily = self._loop.call_later(HANDED_WITHIN_S, self._write_handed)

    def give_back(self, place: Place, spans: list[Span]) -> None:
        """Messages that were handed out came back untried."""
        here = self._round(place)
        here.ended(spans)
        for first, last in spans:
            here.returned.add(first, last)
        self._begin(here, None)

    def _write_handed(self) -> None:
        self._lazily = None
        self._urgent = True
        self._kick()

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
        self._urgent = True
        self._kick()

    def _kick(self) -> None:
        if self._writing or not self._rounds or not self._urgent or self._closed:
            return
        self._writing, self._rounds = self._rounds, {}
        self._urgent = False
        work = self._thread.submit(self._write, list(self._writing.values()))
        work.add_done_callback(lambda done: self._loop.call_soon_threadsafe(self._written, done))

    def _write(self, rounds: list[_Round]) -> list[HoldfastError | None]:
        """On the thread: hand everything to the log, then wait for the sync it shares."""
        asked = []
        for here in rounds:
            futures = [self._port.settle(here.place, Outcome.ACK, list(here.acked))] if here.acked else []
            for spans, reason in here.failed:
                futures.append(self._port.settle(here.place, Outcome.NACK, spans, reason=reason))
            for outcome, ranges in ((Outcome.RETURNED, here.returned), (Outcome.HANDED, here.handed)):
                if ranges:
                    futures.append(self._port.settle(here.place, outcome, list(ranges)))
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
            here.ended(newer.acked)
            here.ended(newer.returned)
            for failed, _ in newer.failed:
                here.ended(failed)
            for first, last in newer.returned:
                here.returned.add(first, last)
            for first, last in newer.handed:
                here.handed.add(first, last)
        self._rounds[id(here.place)] = here
        self._urgent = True


def _first_error(futures: Iterable[Future[list[OutcomeRecord]]]) -> HoldfastError | None:
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, HoldfastError):
            raise error
    return next((error for error in errors if isinstance(error, HoldfastError)), None)
