"""What the rows of the catalog say, as values; and a row as its segment.

Their checksums and their tables are in `tables.py`, what is asked of them is in `catalog.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from holdfast.disk.filesystem import SqlRow
from holdfast.store.segments.metadata import SegmentMeta


@dataclass(frozen=True, slots=True)
class PublishedSegment:
    """A segment as the catalog knows it."""

    channel_id: int
    meta: SegmentMeta
    has_guids: bool
    size_bytes: int
    crc32c: int
    remote: bool = field(default=False, compare=False)
    """Whether its bytes are only in the tier, as of when it was asked for."""

    @property
    def file_name(self) -> str:
        """Its name in the channel's directory."""
        return segment_file_name(self.meta.segment_seq)


@dataclass(frozen=True, slots=True)
class CatalogChannel:
    """A channel as the catalog knows it."""

    channel_id: int
    name: str
    next_seq: int
    schema: bytes


@dataclass(frozen=True, slots=True)
class Publication:
    """What one published segment adds to the catalog."""

    segment: PublishedSegment
    channel: CatalogChannel
    slots: dict[bytes, list[tuple[int, int]]]
    event_ids: list[tuple[bytes, int]]


@dataclass(frozen=True, slots=True)
class Loss:
    """Events that went although they were owed to somebody, or to whoever would have come.

    The empty subscriber stands for the channel: it counts each event once, however many were owed it.
    """

    channel: str
    subscriber: str
    reason: str
    segments: int
    events: int
    bytes: int


def segment_file_name(segment_seq: int) -> str:
    """`seg-<segment_seq>.arrow`."""
    return f"seg-{segment_seq}.arrow"


def segment_of_row(row: SqlRow) -> PublishedSegment:
    """A row of the table `segments`."""
    return PublishedSegment(row[1], SegmentMeta(*msgspec.msgpack.decode(row[9])), bool(row[6]), row[7], row[8])
