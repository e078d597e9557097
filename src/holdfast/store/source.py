"""Where a segment can be had again whose file is missing or damaged. The store knows nothing else of such a place."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from holdfast.store.catalog import PublishedSegment


class SegmentSource(Protocol):
    """Somebody who keeps copies."""

    def fetch(self, segment: PublishedSegment, target: Path) -> bool:
        """Put the file there, whole and right, in place of what is there; False if there is no copy."""
