"""Where the bytes of a segment can be had besides its file: a tier. The store knows nothing else of such a place.

Promise of whoever implements it: calls may wait for a network, for a bounded time, and then raise: `TierUnavailable`
or `TierRefused` when the place cannot be reached, `DamagedObject` when what is there is not the segment. `holds` and
`held_bytes` do not wait. Thread-safe.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from holdfast.store.catalog import PublishedSegment


class SegmentSource(Protocol):
    """Somebody who keeps copies."""

    @property
    def cache_bytes(self) -> int:
        """How much of the disk copies for readers may take."""

    @property
    def held_bytes(self) -> int:
        """The size of all segments it keeps."""

    def holds(self, segment: PublishedSegment) -> bool:
        """Whether it keeps the segment for good: proven, and listed so that a restore finds it."""

    def fetch(self, segment: PublishedSegment, target: Path) -> bool:
        """Put the file there, whole and right, in place of what is there; False if there is no copy. Synced."""

    def copy(self, segment: PublishedSegment, target: Path) -> None:
        """The same for a reader's copy: compared, but not synced."""

    def part(self, segment: PublishedSegment, start: int, end: int) -> bytes:
        """Bytes `start` to `end` of the segment, the last not included. They are not compared with anything."""
