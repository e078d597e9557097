"""What the source needs of a store, wherever it is: channels, segments, and their bytes.

`embedded.py` looks into a directory, `remote.py` asks a server. Values here travel from the driver to executors, so
they are small and plain.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from holdfast.store.segments.reader import SegmentReader


@dataclass(frozen=True)
class ChannelFacts:
    """How far a channel reaches in published segments: `first_seq` is there, `end_seq` is not yet."""

    name: str
    first_seq: int
    end_seq: int
    server: str = ""
    """Its address, if the query reads from several."""
    next_seq: int = 0
    """The seq of the next event to come, as far as that is known; what is before it and not published is unsealed."""

    @property
    def key(self) -> str:
        """What offsets call it."""
        return channel_key(self.server, self.name)

    @property
    def unsealed(self) -> bool:
        """Whether it has events that are in no segment yet, as far as that is known."""
        return self.next_seq > self.end_seq


@dataclass(frozen=True)
class SegmentRef:
    """A published segment."""

    channel: str
    number: int
    first_seq: int
    last_seq: int
    size_bytes: int
    crc32c: int
    first_committed_id: int
    last_ingested_at_ns: int
    last_committed_id: int = 2**63 - 1
    first_ingested_at_ns: int = 0
    first_event_time_ns: int | None = None
    last_event_time_ns: int | None = None
    event_time_column: str = ""
    """The column whose times these are, where that is known."""
    server: str = ""
    object_key: str = ""
    """Its name in the object store, where that is known."""
    remote: bool = False
    """Whether it is only in the tier; a server fetches it from there."""

    @property
    def key(self) -> str:
        """What offsets call its channel."""
        return channel_key(self.server, self.channel)


def channel_key(server: str, channel: str) -> str:
    """A channel in offsets; with its server only if there are several."""
    return f"{server}/{channel}" if server else channel


class StoreAccess(Protocol):
    """Read-only access to a store. `channel` is a channel's key."""

    def channels(self) -> list[ChannelFacts]:
        """The channels that the options name and that exist, by name; a picture of now."""

    def schema(self, channel: str) -> pa.Schema:
        """The schema of a channel that exists."""

    def skipped(self, channel: str) -> list[tuple[int, int]]:
        """First and last seq of ranges that were never given to an event."""

    def segments(self, channel: str, *, from_seq: int) -> Iterator[SegmentRef]:
        """Segments with events at or behind `from_seq`, in order, fetched as they are asked for."""

    def seal(self, channel: str) -> None:
        """Ask for what is in no segment yet to be put into one soon, where that is possible."""

    def opened(self, segment: SegmentRef) -> AbstractContextManager[SegmentReader]:
        """Its reader, after its bytes were found to be those the catalog describes.

        Raises `FileNotFoundError` if it is not there any more, `CorruptData` if it is damaged.
        """
