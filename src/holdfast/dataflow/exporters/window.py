"""Sending the messages of a parcel, several at a time, and what becomes of the parcel.

Promise: messages are begun in order. After the first that must be sent again, no other of the parcel is begun. Each
span of events is done, rejected or sent again by itself; one that is in several messages is sent again if any of them
must be, and rejected if any was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol

from holdfast.dataflow.exporters.links import Fate, Outcome
from holdfast.dataflow.exporters.parcels import Span, Verdict


class Pending(Protocol):
    """A message under way."""

    def result(self) -> Outcome:
        """What became of it; waits."""


Sending = Callable[[], Pending]
"""Begins to send a message."""


def send_all(messages: Iterable[tuple[Span, Sending]], *, max_in_flight: int) -> Verdict:
    """Send everything that can be sent now."""
    rejected: dict[Span, str] = {}
    again: dict[Span, None] = {}
    failure = Outcome(Fate.DONE)
    refused = 0
    under_way: deque[tuple[Span, Pending]] = deque()

    def settle() -> None:
        nonlocal failure, refused
        span, pending = under_way.popleft()
        outcome = pending.result()
        refused += outcome.refused_records
        if outcome.fate is Fate.NEVER:
            rejected.setdefault(span, outcome.reason)
        elif outcome.fate is Fate.AGAIN:
            again[span] = None
            failure = outcome if failure.fate is Fate.DONE else failure

    for span, send in messages:
        if len(under_way) >= max_in_flight:
            settle()
        if again:
            again[span] = None  # not begun
            continue
        under_way.append((span, send()))
    while under_way:
        settle()
    never = [(span, reason) for span, reason in rejected.items() if span not in again]
    return Verdict(never, list(again), failure.reason, failure.after_s, refused)
