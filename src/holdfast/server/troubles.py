"""The last refusals, for people: when, whom, what about, and the words of the answer.

Promise: the newest `TROUBLES_MAX` are kept, in memory; counters and the log have the rest. Written on the event loop.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from holdfast.clock import Clock

TROUBLES_MAX = 200
MESSAGE_CHARS_MAX = 500


@dataclass(frozen=True, slots=True)
class Trouble:
    """One refusal."""

    id: int
    """Counts from 1."""
    at_ns: int
    category: str
    """Of a frame, as producers are told; `HANDSHAKE` with its status for a connection that was not let in."""
    message: str
    peer: str
    principal: str = ""
    connection: int | None = None
    channel: str = ""


class Troubles:
    """A bounded list."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: deque[Trouble] = deque(maxlen=TROUBLES_MAX)
        self._count = 0

    def note(
        self,
        category: str,
        message: str,
        *,
        peer: str,
        principal: str = "",
        connection: int | None = None,
        channel: str = "",
    ) -> None:
        """Something was refused."""
        self._count += 1
        text = message[:MESSAGE_CHARS_MAX]
        self._found.append(
            Trouble(self._count, self._clock.wall_ns(), category, text, peer, principal, connection, channel)
        )

    def current(self) -> tuple[Trouble, ...]:
        """The newest first."""
        return tuple(reversed(self._found))
