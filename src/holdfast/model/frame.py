"""What a producer hands to a store, and what it gets back.

A frame is accepted or refused as a whole. Its identity, if it has one, makes a repeat harmless: the second time the
answer is the first receipt with `duplicate=True`, and nothing is stored. Values that are made once per frame are
`msgspec.Struct`s: ten times cheaper to make than a frozen dataclass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

import msgspec
import pyarrow as pa

from holdfast.model.positions import FSN_MAX, CommittedId, Fsn, Seq


class SlotFrame(msgspec.Struct, frozen=True, gc=False):
    """The frame's number in its producer's slot; recognised for ever."""

    slot_id: bytes
    fsn: Fsn

    def __post_init__(self) -> None:
        if len(self.slot_id) != 16:
            raise ValueError(f"slot_id has {len(self.slot_id)} bytes, expected 16")
        if not 0 <= self.fsn <= FSN_MAX:
            raise ValueError(f"fsn {self.fsn} is out of range 0..2^63-1")


class Guid(msgspec.Struct, frozen=True, gc=False):
    """A message id made by the client; recognised within `dedup.window`."""

    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != 16:
            raise ValueError(f"guid has {len(self.value)} bytes, expected 16")


@dataclass(frozen=True, slots=True)
class EventIds:
    """The column that holds each event's own id; recognised while the event is retained.

    Known ids are left out of the frame, the others are stored.
    """

    column: str


LARGE_ENTRIES_MAX = 16_384
"""Entries of a frame that may be larger than others: one for each channel that a store has by default, and some for
what is cut. Each costs microseconds and a hundred bytes. A record of the log counts to 65,535."""
MakeGuid: TypeAlias = Callable[[bytes], Guid]
"""From an id that a client made to the GUID that the store knows it by."""
Identity: TypeAlias = SlotFrame | Guid | EventIds | None


class Entry(msgspec.Struct, frozen=True, gc=False):
    """The part of a frame that goes to one channel."""

    channel: str
    batch: pa.RecordBatch
    partitions: tuple[str, ...] = ()
    message: pa.Buffer | None = None
    """The Arrow message the batch was read from, if it can be stored as it is: not compressed, without dictionaries,
    aligned, and no larger in memory than it is."""


class PlainFrame(msgspec.Struct, frozen=True, gc=False):
    """A frame of one batch for one channel, still as the Arrow message it came in; its values are not checked yet."""

    channel: str
    schema: pa.Schema
    message: bytes
    """One record batch message, not compressed and without dictionaries."""
    rows: int
    identity: Identity


class Durability(Enum):
    """What an answer promised."""

    SYNCED = "synced"  # survives a power cut
    WRITTEN = "written"  # survives a kill; a power cut may lose it


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Where the events of one entry are. All positions are 0 when nothing is stored under them any more, or ever
    was."""

    channel: str
    first_seq: Seq
    last_seq: Seq
    first_committed_id: CommittedId
    duplicate: bool
    durability: Durability
    duplicate_events: int = 0


class FrameReceipt(msgspec.Struct, frozen=True, gc=False):
    """One receipt per entry, in the order of the entries."""

    entries: tuple[Receipt, ...]
    duplicate: bool
    durability: Durability
