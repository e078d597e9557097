"""Where a subscriber may start, and what it means that it is put at another place. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from holdfast.errors import BadRequest
from holdfast.model.intervals import IntervalSet
from holdfast.store.subscribers.progress import Progress


@dataclass(frozen=True, slots=True)
class Move:
    """One channel: where the subscriber was and is, and which events that concerns."""

    channel: str
    mark_before: int
    mark: int
    again: int
    """Events that are owed now and were not: they were confirmed, or before its start."""
    skipped: int
    """Events that were owed and are not any more."""
    owed: int
    """Events that are owed now."""

    @classmethod
    def between(cls, channel: str, before: Progress, after: Progress, last_seq: int) -> Move:
        """What differs, of the events up to `last_seq`."""
        was, now = before.owed(1, last_seq), after.owed(1, last_seq)
        owed_before = IntervalSet(was)
        both = sum(owed_before.count(first, last) for first, last in now)
        total_before, total = (sum(last - first + 1 for first, last in spans) for spans in (was, now))
        return cls(channel, before.mark, after.mark, again=total - both, skipped=total_before - both, owed=total)


def check_start(start: object) -> None:
    """Refuse what is no start position before anything is registered."""
    if isinstance(start, str):
        ok = start in ("first", "last", "new")
    elif isinstance(start, datetime):
        ok = start.tzinfo is not None
    else:
        ok = isinstance(start, int) and not isinstance(start, bool) and start >= 0
    if not ok:
        raise BadRequest(f"start={start!r} is no position: 'first', 'new', 'last', a seq or an aware datetime")
