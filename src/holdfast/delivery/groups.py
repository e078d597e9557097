"""Who gets the next messages: members with room, by priority, in turn among equals. Pure.

Promises:

- A member is offered no more messages than its `max_inflight` and its credit leave, and about no more bytes than
  `max_inflight_bytes` and its connection leave; one message always fits a member that holds none.
- Members of the highest priority come first. Those below get what is left when the ones above have no room.
- Among equals the one that holds least comes first; of those, the one that was served longest ago. A few messages are
  spread over all of them, many go out in batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from holdfast.delivery.redelivery import Load, Policy

OFFER_ROWS_MAX = 65_536
"""Messages offered in one turn of a feed: what is read and encoded before others have theirs."""


@dataclass(slots=True)
class Member:
    """One subscription of a feed."""

    number: int
    policy: Policy
    max_inflight: int
    max_inflight_bytes: int
    batch_rows: int
    priority: int = 0
    credit: int | None = None
    """Messages that may be delivered in all; None is without limit."""
    delivered: int = 0
    """Messages delivered in all."""
    served_at: int = 0
    """The turn in which it was last offered something."""
    holds: bool = True
    """Whether messages stay with it until it answers."""
    tight_at_bytes: int | None = None
    """What it held when the next message did not fit; it is passed over until it holds less."""

    def room(self, load: Load) -> int:
        """How many more messages it may get."""
        room = self.max_inflight - load.rows if self.holds or not self.max_inflight else OFFER_ROWS_MAX
        if self.credit is not None:
            room = min(room, self.credit - self.delivered)
        return max(0, room)


@dataclass(frozen=True, slots=True)
class Offer:
    """What a member may get in this turn."""

    member: int
    rows: int
    bytes: int
    """What its connection takes now, or it may still hold; about, a message may be larger than the connection's."""
    held_bytes_left: int = 1 << 62
    """What it may still hold, exactly; only the first message of a member without any may be larger."""
    holds_some: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """A member with what it holds now, and the bytes its connection takes."""

    member: Member
    load: Load
    send_bytes: int


def offers(candidates: Iterable[Candidate], *, wanted: int) -> list[Offer]:
    """Who gets how many of `wanted` messages, in the order they are handed out."""
    left = min(wanted, OFFER_ROWS_MAX)
    out: list[Offer] = []
    able = sorted((item for item in candidates if _is_able(item)), key=lambda item: -item.member.priority)
    for _, same in groupby(able, key=lambda item: item.member.priority):
        equals = sorted(same, key=lambda item: (item.load.rows, item.member.served_at, item.member.number))
        for offer in _in_turn(equals, left):
            out.append(offer)
            left -= offer.rows
        if left <= 0:
            break
    return out


def _is_able(item: Candidate) -> bool:
    member, load = item.member, item.load
    fits = not load.rows or load.bytes < member.max_inflight_bytes
    if member.tight_at_bytes is not None and load.rows:
        fits = fits and load.bytes < member.tight_at_bytes
    return member.room(load) > 0 and item.send_bytes > 0 and fits


def _in_turn(equals: list[Candidate], wanted: int) -> Iterator[Offer]:
    """Round after round, at most a batch for each, until nobody has room."""
    room = {item.member.number: item.member.room(item.load) for item in equals}
    bytes_left = {
        item.member.number: max(1, min(item.member.max_inflight_bytes - item.load.bytes, item.send_bytes))
        for item in equals
    }
    share = -(-wanted // max(1, len(equals)))
    while wanted > 0 and any(room.values()):
        for item in equals:
            number = item.member.number
            rows = min(room[number], item.member.batch_rows, share, wanted)
            if rows > 0:
                room[number] -= rows
                wanted -= rows
                left = item.member.max_inflight_bytes - item.load.bytes if item.member.holds else 1 << 62
                yield Offer(number, rows, bytes_left[number], held_bytes_left=left, holds_some=item.load.rows > 0)
