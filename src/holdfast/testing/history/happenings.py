"""What can happen in a run. Each is a frozen value; a history is a list of them.

An event is known by an id that no other event has, whatever its form. A `source` is what keeps an order: a slot, or a
producer that waits for each answer. Seqs are of a channel, both ends of a range included.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import msgspec

Id: TypeAlias = int | str


class Row(NamedTuple):
    """An event where it was found."""

    channel: str
    seq: int
    id: Id
    committed_id: int = 0
    """0: nobody looked."""


class Happening(msgspec.Struct, frozen=True, gc=False):
    """What all happenings have in common."""


class Sent(Happening, frozen=True):
    """A producer hands events over, in this order. Sending again is another `Sent` of the same ids."""

    source: str
    channel: str
    ids: tuple[Id, ...]
    frame: str = ""
    """Events of one frame, over all channels, are there together or not at all."""


class Kept(Happening, frozen=True):
    """A producer was promised that these outlive it: they must be stored in the end."""

    ids: tuple[Id, ...]


class Accepted(Happening, frozen=True):
    """A store or server said that it has these."""

    channel: str
    ids: tuple[Id, ...]
    first_seq: int = 0
    """Where, if it was said; 0 if not."""
    first_committed_id: int = 0
    weak: bool = False
    """A power cut may take them: the answer said so."""
    sent_at: int | None = None
    """How many lines the history had when the server said so. None: just now."""


class Refused(Happening, frozen=True):
    """A producer was told that these will never be stored."""

    ids: tuple[Id, ...]


class Stored(Happening, frozen=True):
    """All that a store holds, channel after channel in the order of seqs."""

    rows: tuple[Row, ...]
    is_final: bool = False
    """Producers had all the time they needed: what they keep is expected to be here."""


class Delivered(Happening, frozen=True):
    """A reader got an event."""

    reader: str
    channel: str
    seq: int
    id: Id
    again: bool = False
    """The server said that it was delivered before."""
    session: int = 0
    """First deliveries of one session come in order."""
    sent_at: int | None = None
    """How many lines the history had when the server sent it. None: just now."""


class Joined(Happening, frozen=True):
    """A reader begins at this seq; what is before it is not owed."""

    reader: str
    channel: str
    first_seq: int


class Acked(Happening, frozen=True):
    """A reader said that it is done with these; whether anybody heard it is open."""

    reader: str
    channel: str
    first: int
    last: int


class Settled(Happening, frozen=True):
    """A reader was told that its confirmation of these is durable."""

    reader: str
    channel: str
    first: int
    last: int
    sent_at: int | None = None
    """How many lines the history had when the server said so. None: just now."""


class Mark(Happening, frozen=True):
    """A reader's high-water mark was seen."""

    reader: str
    channel: str
    seq: int
    sent_at: int | None = None
    """How many lines the history had when the server said so. None: just now."""


class Durable(Happening, frozen=True):
    """A producer was told that the channel is in the bucket up to this seq."""

    channel: str
    seq: int


class Bucket(Happening, frozen=True):
    """All that the bucket holds and lists."""

    rows: tuple[Row, ...]


class Evicted(Happening, frozen=True):
    """Retention took these away and said so."""

    channel: str
    first: int
    last: int
    confirmed: bool = False
    """Because every reader of the channel has confirmed them."""


class Crash(Happening, frozen=True):
    """A part died, and what it had not made durable may be gone."""

    what: str
    how: str = "killed"


class Restart(Happening, frozen=True):
    """A part runs again."""

    what: str


class Wiped(Happening, frozen=True):
    """The disk of a store is gone: what is not in the bucket may be, too, and comes to other places when it is sent
    again."""

    what: str
