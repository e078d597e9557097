"""Who sends frames of slots: connected or away, since when, how often it was away, what it sent again.

    arrives ──► connected ──► gone without a goodbye ──► away ──► arrives: an outage is over
                    └──────── closed by itself ──► forgotten

Promise: a sender that was cut off stays on the list until it comes back, for an hour at most. The list is bounded;
those that are away longest are forgotten first. It begins anew with the process. Used on the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.clock import NS_PER_S, Clock

SENDERS_MAX = 1000
FORGET_S = 3600
"""How long one that does not come back is shown."""


@dataclass(slots=True)
class SenderInfo:
    """One slot. `since_ns` is when it connected, or went away."""

    slot_id: str
    peer: str
    principal: str
    connected: bool
    since_ns: int
    outages: int = 0
    outage_s: float = 0.0
    """How long the last one took."""
    replayed: int = 0
    """Frames that it sent again and that were recognised."""


class Senders:
    """All senders that were heard of lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[str, SenderInfo] = {}
        self._connections: dict[str, int] = {}

    def arrive(self, slot_id: str, *, peer: str, principal: str) -> None:
        """A connection sends frames of a slot."""
        now_ns = self._clock.wall_ns()
        self._forget(now_ns)
        self._connections[slot_id] = self._connections.get(slot_id, 0) + 1
        known = self._found.pop(slot_id, None)
        found = known or SenderInfo(slot_id, peer, principal, connected=True, since_ns=now_ns)
        if not found.connected:
            found.outages += 1
            found.outage_s = max(0, now_ns - found.since_ns) / NS_PER_S
            found.connected, found.since_ns = True, now_ns
        found.peer, found.principal = peer, principal
        self._found[slot_id] = found

    def replay(self, slot_id: str, frames: int) -> None:
        """Frames of it were known already."""
        if slot_id in self._found:
            self._found[slot_id].replayed += frames

    def leave(self, slot_id: str, *, goodbye: bool) -> None:
        """A connection of it has ended; `goodbye` if the sender closed it."""
        self._connections[slot_id] = self._connections.get(slot_id, 1) - 1
        if self._connections[slot_id] > 0:  # it has connected again already
            return
        del self._connections[slot_id]
        found = self._found.get(slot_id)
        if goodbye:
            self._found.pop(slot_id, None)
        elif found is not None:
            found.connected, found.since_ns = False, self._clock.wall_ns()

    def current(self) -> tuple[SenderInfo, ...]:
        """Copies: those that are away first, longest first; then the others."""
        self._forget(self._clock.wall_ns())
        found = sorted(self._found.values(), key=lambda item: (item.connected, item.since_ns))
        return tuple(replace(item) for item in found)

    def _forget(self, now_ns: int) -> None:
        away = [item for item in self._found.values() if not item.connected]
        away.sort(key=lambda item: item.since_ns)
        too_many = len(self._found) - SENDERS_MAX
        for number, item in enumerate(away):
            if number < too_many or item.since_ns < now_ns - FORGET_S * NS_PER_S:
                del self._found[item.slot_id]
