"""Room for the bodies of requests: what is in memory of them, of all callers together.

Promise: the bytes that came in and are not stored or refused yet are never more than the bound and one piece of each
connection that uvicorn has read ahead. Whoever would go beyond it is refused (`Backpressure`), and gives back what it
held at once, so that others finish. Everything happens on the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

from holdfast.errors import Backpressure

BOUND = "the room for request bodies (ingest.total_inflight)"


class BodyRoom:
    """The room of one server. `bytes_max` is the bound of now."""

    def __init__(self, bytes_max: Callable[[], int]) -> None:
        self._bytes_max = bytes_max
        self.held_bytes = 0

    def hold(self) -> Held:
        """A share for one request, empty at first."""
        return Held(self)

    def change(self, count: int) -> None:
        """Count bytes that come, or go; `Backpressure` if there is no room for more."""
        bytes_max = self._bytes_max()
        if count > 0 and self.held_bytes + count > bytes_max:
            raise Backpressure(bound=BOUND, used_bytes=self.held_bytes, cap_bytes=bytes_max, waited_s=0)
        self.held_bytes += count


class Held:
    """What one request holds; given back when its block ends."""

    def __init__(self, room: BodyRoom) -> None:
        self._room = room
        self._bytes = 0

    def add(self, count: int) -> None:
        """More of the body came."""
        self._room.change(count)
        self._bytes += count

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._room.change(-self._bytes)
        self._bytes = 0
