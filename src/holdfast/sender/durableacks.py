"""Which frames are in the server's object store: acceptances wait in line until every channel they reached is.

    OK  ──► (fsn, marks) at the end of the line          DURABLE_ACK ──► highest seq per channel
    the head leaves when each of its marks is covered; a head without marks leaves at once

A frame that was refused and given up takes its place in the line too, so that it is not passed over before what came
before it is safe. Pure; belongs to one connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.sender.happenings import SenderError

Marks = Sequence[tuple[str, int]]


class Settled(NamedTuple):
    """The head of the line left: frames up to `fsn` are safe, or given up."""

    fsn: int
    refusal: SenderError | None


class DurableLine:
    """The line of one connection."""

    def __init__(self) -> None:
        self._line: deque[tuple[int, Marks, SenderError | None]] = deque()
        self._durable: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._line)

    def accepted(self, fsn: int, marks: Marks) -> None:
        """The server has frames up to `fsn`; they reached these positions."""
        self._line.append((fsn, marks, None))

    def refused(self, error: SenderError) -> None:
        """The server refused a frame that is to be given up."""
        self._line.append((error.last_fsn, (), error))

    def durable(self, marks: Marks) -> None:
        """Each channel is in the object store up to this position."""
        for channel, seq in marks:
            if seq > self._durable.get(channel, 0):
                self._durable[channel] = seq

    def settle(self) -> list[Settled]:
        """What leaves the line now, in order; acceptances in a row are one."""
        settled: list[Settled] = []
        while self._line and all(seq <= self._durable.get(channel, 0) for channel, seq in self._line[0][1]):
            fsn, _, refusal = self._line.popleft()
            if settled and refusal is None and settled[-1].refusal is None:
                settled.pop()
            settled.append(Settled(fsn, refusal))
        return settled
