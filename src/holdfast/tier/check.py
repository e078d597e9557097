"""Is everything in the tier that its manifest lists? For `holdfast verify --remote`.

Promise: every object is read whole and compared; nothing is written. What is wrong is told with its key, one finding
for each object; and so is a segment that a data directory has only there, if the manifest does not list it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.errors import DamagedObject
from holdfast.store.catalog import PublishedSegment
from holdfast.tier.copying import difference
from holdfast.tier.journal import Journal
from holdfast.tier.manifest import ManifestState, SegmentNote
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


def check_tier(
    objects: Objects,
    *,
    workers: int,
    needed: Sequence[PublishedSegment] = (),
    on_object: Callable[[str], None] = lambda _key: None,
) -> TierReport:
    """Read the manifest and every object it lists. A damaged manifest raises `DamagedObject`.

    `needed` are segments that must be there.
    """
    journal = Journal(objects, nonce="")
    state = journal.load()

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
    if findings:  # a server that lives may have let segments go while they were read
        journal.refresh(state)
        listed = {note.key for note in state.segments.values()}
        findings = [found for found in findings if found.key in listed]
    findings += [_unlisted(segment) for segment in needed if not _lists(state, segment)]
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


def _lists(state: ManifestState, segment: PublishedSegment) -> bool:
    note = state.segments.get(segment.meta.segment_seq)
    return note is not None and (note.size_bytes, note.crc32c) == (segment.size_bytes, segment.crc32c)


def _unlisted(segment: PublishedSegment) -> TierFinding:
    meta = segment.meta
    reason = "is only in the tier, by the catalog, and the manifest does not list it"
    return TierFinding(f"segment {meta.segment_seq}", meta.channel, meta.first_seq, meta.last_seq, reason)
