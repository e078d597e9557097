"""The newest committed events in memory, so that most repeats, and clients that were away briefly, cost no read.

Promise: `since` gives all that was announced after a position, or None when some of it is not here any more. The bound
counts bytes; the newest event is always kept. `find` may be called from any thread, the rest from one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile

from holdfast.wire.sync import Committed


class Recent:
    """A window over the end of the log."""

    def __init__(self, last_committed_id: int, *, bytes_max: int) -> None:
        self.last_committed_id = last_committed_id
        self._floor = last_committed_id
        self._bytes_max = bytes_max
        self._bytes = 0
        self._events: deque[Committed] = deque()
        self._by_id: dict[str, Committed] = {}

    def add(self, event: Committed) -> None:
        """The next event of the log."""
        assert event.committed_id > self.last_committed_id
        self.last_committed_id = event.committed_id
        self._events.append(event)
        self._by_id[event.id] = event
        self._bytes += event.size_bytes
        while self._bytes > self._bytes_max and len(self._events) > 1:
            oldest = self._events.popleft()
            self._floor = oldest.committed_id
            self._bytes -= oldest.size_bytes
            self._by_id.pop(oldest.id, None)

    def since(self, committed_id: int) -> Sequence[Committed] | None:
        """Events after a position, oldest first."""
        if committed_id < self._floor:
            return None
        found = list(takewhile(lambda event: event.committed_id > committed_id, reversed(self._events)))
        found.reverse()
        return found

    def last_of(self, scopes: frozenset[str]) -> int:
        """The newest event of the scopes; 0 if none is here."""
        found = (event.committed_id for event in reversed(self._events) if not scopes.isdisjoint(event.scopes))
        return next(found, 0)

    def find(self, event_id: str) -> Committed | None:
        """The event of an id."""
        return self._by_id.get(event_id)

    @property
    def size_bytes(self) -> int:
        """About what is kept."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._events)
