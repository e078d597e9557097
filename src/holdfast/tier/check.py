"""Is everything in the tier that its manifest lists? For `holdfast verify --remote`.

Promise: every object is read whole and compared; nothing is written. What is wrong is told with its key, one finding
for each object.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.errors import DamagedObject
from holdfast.tier.copying import difference
from holdfast.tier.journal import Journal
from holdfast.tier.manifest import SegmentNote
from holdfast.tier.objects import Objects


@dataclass(frozen=True, slots=True)
class TierFinding:
    """An object that is missing or not what was stored."""

    key: str
    channel: str
    first_seq: int
    last_seq: int
    reason: str


@dataclass(frozen=True, slots=True)
class TierReport:
    """What was checked, and what is wrong."""

    url: str
    store_id: str
    epoch: int
    entries: int
    segments: int
    events: int
    checked_bytes: int
    findings: tuple[TierFinding, ...]

    @property
    def intact(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings


def check_tier(objects: Objects, *, workers: int, on_object: Callable[[str], None] = lambda _key: None) -> TierReport:
    """Read the manifest and every object it lists. A damaged manifest raises `DamagedObject`."""
    state = Journal(objects, nonce="").load()

    def check(note: SegmentNote) -> TierFinding | None:
        on_object(note.key)
        try:
            reason = difference(objects, note.key, size_bytes=note.size_bytes, expected_crc32c=note.crc32c)
        except DamagedObject as error:
            reason = error.reason
        if reason is None:
            return None
        return TierFinding(note.key, note.meta.channel, note.meta.first_seq, note.meta.last_seq, reason)

    notes = list(state.segments.values())
    with ThreadPoolExecutor(workers, "holdfast-check") as pool:
        findings = [found for found in pool.map(check, notes) if found is not None]
    return TierReport(
        objects.url,
        state.store_id,
        state.epoch,
        state.number,
        len(notes),
        sum(note.meta.rows for note in notes),
        sum(note.size_bytes for note in notes),
        tuple(findings),
    )
