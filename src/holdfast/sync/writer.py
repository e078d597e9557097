"""Submissions into the log: recognise repeats, validate, commit. On one thread, which may wait for the disk.

Promises:

- Items are judged in order, each against the state that the ones before it leave, and become durable together: many
  clients share one sync.
- An id that is in the log, or earlier in the same batch, is never committed again: the same content gets the event that
  is there, other content is refused. What is the same, the dialect says.
- A batch that cannot be stored because of one submission is taken apart, so that only that one fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from holdfast.errors import HoldfastError, RetryLater, StoreFailed
from holdfast.sync.eventlog import New, as_committed
from holdfast.sync.hub import Failed, Overloaded, Settled
from holdfast.sync.validation import Validator
from holdfast.telemetry import event
from holdfast.wire.sync import DIALECTS, Code, Committed, Item, NotProcessed, Outcome, Refusal, Submit

CONFLICT = Refusal(Code.VALIDATION_FAILED, "id already committed with different payload", "event")


class Log(Protocol):
    """Where events are kept."""

    def append(self, new: Sequence[New], now_ms: int) -> list[Committed]:
        """Commit events, all or none; durable when it returns."""

    def find(self, ids: Sequence[str]) -> dict[str, Committed]:
        """The events that have these ids."""


class Written(msgspec.Struct):
    """What became of a batch."""

    results: list[Settled]
    fresh: list[Committed]
    repeats: int = 0
    failure: StoreFailed | None = None


class Writer:
    """Commits batches, one at a time."""

    def __init__(self, log: Log, validator: Validator, *, recent: Callable[[str], Committed | None]) -> None:
        self._log = log
        self._validator = validator
        self._recent = recent

    def write(self, batch: Sequence[Submit], now_ms: int) -> Written:
        """Commit what can be committed; never raises what a client caused."""
        try:
            return self._write(batch, now_ms)
        except RetryLater as error:
            return Written([(submit, Overloaded(str(error))) for submit in batch], [])
        except StoreFailed as error:
            return Written([(submit, Failed("the log stopped")) for submit in batch], [], failure=error)
        except Exception as error:
            if len(batch) > 1:
                return self._write_apart(batch, now_ms)
            if not isinstance(error, HoldfastError):
                event("sync.write.fail", level=logging.ERROR, error=type(error).__name__, reason=error)
            return Written([(batch[0], Failed(f"the event cannot be stored: {type(error).__name__}"))], [])

    def _write_apart(self, batch: Sequence[Submit], now_ms: int) -> Written:
        whole = Written([], [])
        for submit in batch:
            part = self.write([submit], now_ms)
            whole.results += part.results
            whole.fresh += part.fresh
            whole.repeats += part.repeats
            whole.failure = whole.failure or part.failure
        return whole

    def _write(self, batch: Sequence[Submit], now_ms: int) -> Written:
        plan = _Plan(self._known(batch), self._validator)
        for submit in batch:
            plan.add(submit)
        committed = self._log.append(plan.new, now_ms) if plan.new else []
        self._validator.keep(committed)
        results: list[Settled] = []
        for submit, places in zip(batch, plan.places, strict=True):
            results.append((submit, [committed[place] if isinstance(place, int) else place for place in places]))
        return Written(results, committed, plan.repeats)

    def _known(self, batch: Sequence[Submit]) -> dict[str, Committed]:
        """The events in the log that have an id of the batch."""
        known: dict[str, Committed] = {}
        rest: dict[str, None] = {}
        for submit in batch:
            for item in submit.items:
                found = self._recent(item.id)
                if found is not None:
                    known[item.id] = found
                elif item.refusal is None:
                    rest[item.id] = None
        known.update(self._log.find(list(rest)))
        return known


class _Plan:
    """What is to be committed, and where each item's answer is: in the commit (a number), or here."""

    def __init__(self, known: dict[str, Committed], validator: Validator) -> None:
        self.new: list[New] = []
        self.places: list[list[Outcome | int]] = []
        self.repeats = 0
        self._known = known
        self._coming: dict[str, int] = {}
        self._validator = validator
        validator.begin()

    def add(self, submit: Submit) -> None:
        """Judge the items of a submission, in order."""
        places: list[Outcome | int] = []
        blocked_by = ""
        for item in submit.items:
            if blocked_by:
                places.append(NotProcessed(blocked_by))
                continue
            place = self._judge(item, submit)
            places.append(place)
            if isinstance(place, Refusal) and submit.stops_at_refusal:
                blocked_by = item.id
        self.places.append(places)

    def _judge(self, item: Item, submit: Submit) -> Outcome | int:
        if item.refusal is not None:
            return item.refusal
        dialect = DIALECTS[submit.family]
        known = self._known.get(item.id)
        if known is not None:
            self.repeats += 1
            return known if dialect.same(item, known) else CONFLICT
        coming = self._coming.get(item.id)
        if coming is not None:
            self.repeats += 1
            return coming if dialect.same(item, as_committed(*self.new[coming], 0, 0)) else CONFLICT
        refusal = self._validator.judge(item)
        if refusal is not None:
            return _placed(refusal, dialect.payload_place)
        place = self._coming[item.id] = len(self.new)
        self.new.append((item, submit))
        return place


def _placed(refusal: Refusal, payload_place: str) -> Refusal:
    """A refusal of a validator, which knows the payload only, with the place in the item."""
    if refusal.field == "type":
        return msgspec.structs.replace(refusal, field=payload_place.replace("payload", "type"))
    return msgspec.structs.replace(refusal, field=f"{payload_place}.{refusal.field}".rstrip("."))
