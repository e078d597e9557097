"""The events that one frame brought to a channel, and the segments that they will become.

A *unit* holds the bytes that were written to the log, or to the file of its segment (`segments/growing.py`), not the
caller's buffers: a caller that reuses its memory changes nothing here. Units belong to the tail, and are changed under
its lock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import pyarrow as pa

from holdfast.model.frame import Guid, Identity, SlotFrame
from holdfast.store.channels import Channel
from holdfast.store.segments.growing import GrowingSegment
from holdfast.store.segments.runs import Run
from holdfast.store.wal.codec import EntryPlace, Payload
from holdfast.store.wal.log import SchemaVersion


def make_run(
    first_seq: int,
    rows: int,
    *,
    committed_id: int,
    ingested_at_ns: int,
    identity: Identity,
    partitions: tuple[str, ...],
    frame_offset: int = 0,
) -> Run:
    """The run of a frame's events in one channel, with the frame's identity spelt out.

    `frame_offset` is how many events the frame brought to the channel before these.
    """
    slot_id, fsn = (identity.slot_id, identity.fsn) if isinstance(identity, SlotFrame) else (None, None)
    guid = identity.value if isinstance(identity, Guid) else None
    return Run(first_seq, rows, committed_id, ingested_at_ns, slot_id, fsn, guid, partitions, frame_offset)


class FrameBounds(NamedTuple):
    """Where frames begin of which a segment holds parts, in commit order."""

    first: int
    """The first of them; 0 if that is not known."""
    shared: int | None
    """The first one that may have parts elsewhere; None if there is none."""


UNKNOWN_BOUNDS = FrameBounds(0, 0)


def frame_offsets(entries: Iterable[EntryPlace]) -> list[int]:
    """For each entry of a frame, how many events the frame brought to the entry's channel before."""
    brought: dict[int, int] = {}
    offsets = []
    for entry in entries:
        offset = brought.get(entry.channel_id, 0)
        offsets.append(offset)
        brought[entry.channel_id] = offset + entry.payload.rows
    return offsets


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """The events of one channel that came with one frame."""

    run: Run
    payload: Payload
    version: SchemaVersion
    wal_file: int
    ids: tuple[bytes, ...] = ()
    """Digests of the events' own ids, in channels that use them."""
    frame_committed_id: int = 0
    """Where the frame begins, of which these may be a part; 0 if they are all of it."""
    growing: GrowingSegment | None = None
    """The file of the segment to be, if it is filled by now and the payload is read from there."""
    filed: bool = False
    """Whether the payload is in a file, and needs no memory."""

    def batch(self) -> pa.RecordBatch:
        """The events, without a copy."""
        return self.payload.decode(self.version.schema)


class Unit:
    """Consecutive events of one channel under one schema: a segment to be."""

    __slots__ = (
        "bytes", "channel", "chunks", "filed_bytes", "growing", "opened_at_ns", "pinned", "version", "wal_file",
    )  # fmt: skip

    def __init__(self, channel: Channel, first: Chunk, opened_at_ns: int) -> None:
        self.channel = channel
        self.version = first.version
        self.wal_file = first.wal_file  # the oldest log file that this unit still needs
        self.opened_at_ns = opened_at_ns
        self.chunks: list[Chunk] = []
        self.bytes = 0
        self.filed_bytes = 0
        """Of them, those that need no memory: they are read from a file."""
        self.growing: GrowingSegment | None = None
        self.pinned = False
        """The committer writes into its file; it is cut afterwards."""

    def goes_on_with(self, chunk: Chunk) -> bool:
        """Whether a chunk belongs into the unit."""
        if chunk.growing is not None and self.growing not in (None, chunk.growing):
            return False
        return self.version is chunk.version and self.end_seq == chunk.run.first_seq

    @property
    def rows(self) -> int:
        """How many events."""
        return self.end_seq - self.first_seq

    @property
    def frame_committed_id(self) -> int:
        """Where the first frame begins of which the unit holds a part."""
        return self.chunks[0].frame_committed_id or self.chunks[0].run.first_committed_id

    def frame_bounds(self) -> FrameBounds:
        """Where its frames begin."""
        shared = next((chunk.frame_committed_id for chunk in self.chunks if chunk.frame_committed_id), None)
        return FrameBounds(self.frame_committed_id, shared)

    @property
    def first_seq(self) -> int:
        """The first event's seq."""
        return self.chunks[0].run.first_seq

    @property
    def end_seq(self) -> int:
        """One past the last event's seq."""
        return self.chunks[-1].run.first_seq + self.chunks[-1].run.rows


@dataclass(frozen=True, slots=True)
class SpentFile:
    """A file that was filled by commits and became no segment; the log needs it until `last_seq` is published."""

    channel: Channel
    path: Path
    last_seq: int
