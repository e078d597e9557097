"""Which segments are on their way into the tier, which may be listed, and how far each channel is durable. Pure.

    published ──► pending ──► verified ──► listed in the manifest ──► durable
                 (object being written)   (only whole frames)

**Whole frames.** A frame may touch several channels, and its parts lie in several segments. If one part were listed
without the others and the disk were lost, the frame would be known as accepted, its repeat would be taken for a
duplicate, and the other parts would be gone. So segments are listed up to a point in commit order below which every
frame is in verified segments as a whole: `committed_end` is where the first frame begins that is not in published
segments as a whole, and a segment that is not verified yet holds that point back to where its first frame begins. Of
segments that an earlier process left behind that is not known; they are listed together.

**Watermark.** A channel is durable up to the last event before its first segment that is not listed. A segment that was
evicted before it was listed holds nothing back: its events were not to be kept. It may have come and gone between two
looks, so that nobody saw it; then whoever knows that its events were evicted says so (`passed`).
"""

from __future__ import annotations

from holdfast.store.catalog import PublishedSegment
from holdfast.tier.manifest import SegmentNote


class Ledger:
    """Not thread-safe: the uploader's one thread uses it."""

    def __init__(self) -> None:
        self._pending: dict[int, PublishedSegment] = {}
        self._frame_starts: dict[int, int] = {}
        self._verified: dict[int, SegmentNote] = {}
        self._reached: dict[str, int] = {}
        self._told: dict[str, int] = {}

    @property
    def pending(self) -> int:
        """Segments that are not listed yet."""
        return len(self._pending)

    @property
    def pending_bytes(self) -> int:
        """Their size."""
        return sum(segment.size_bytes for segment in self._pending.values())

    @property
    def oldest_ingested_at_ns(self) -> int | None:
        """When the oldest event came in that is in a segment and not durable."""
        return min((segment.meta.first_ingested_at_ns for segment in self._pending.values()), default=None)

    def is_pending(self, segment_seq: int) -> bool:
        """Whether a segment is on its way."""
        return segment_seq in self._pending

    def add(self, segment: PublishedSegment, *, frame_start: int) -> None:
        """A segment was published; its first frame begins at `frame_start`, 0 if that is not known."""
        self._pending[segment.meta.segment_seq] = segment
        self._frame_starts[segment.meta.segment_seq] = frame_start

    def verify(self, note: SegmentNote) -> None:
        """Its object was read back and is right."""
        if note.segment_seq in self._pending:
            self._verified[note.segment_seq] = note

    def forget(self, segment_seq: int) -> SegmentNote | None:
        """It was evicted before it was listed; what was stored of it, if anything."""
        segment = self._pending.pop(segment_seq, None)
        self._frame_starts.pop(segment_seq, None)
        if segment is not None:
            self._reach(segment.meta.channel, segment.meta.last_seq)
        return self._verified.pop(segment_seq, None)

    def waiting(self) -> set[str]:
        """Channels with segments that are on their way."""
        return {segment.meta.channel for segment in self._pending.values()}

    def reached(self, channel: str) -> int:
        """How far a channel is listed or evicted, apart from what is on its way."""
        return self._reached.get(channel, 0)

    def passed(self, channel: str, seq: int) -> None:
        """All behind what is listed, up to here, was evicted; no segment of the channel is on its way."""
        self._reach(channel, seq)

    def listable(self, committed_end: int) -> list[SegmentNote]:
        """What may be listed now, by segment number."""
        waiting = (self._frame_starts[number] for number in self._pending if number not in self._verified)
        end = min([committed_end, *waiting])
        return [note for _, note in sorted(self._verified.items()) if note.meta.last_committed_id < end]

    def settle(self, note: SegmentNote) -> None:
        """It is in the manifest, now or since an earlier process."""
        self._pending.pop(note.segment_seq, None)
        self._frame_starts.pop(note.segment_seq, None)
        self._verified.pop(note.segment_seq, None)
        self._reach(note.meta.channel, note.meta.last_seq)

    def _reach(self, channel: str, seq: int) -> None:
        self._reached[channel] = max(seq, self._reached.get(channel, 0))

    def news(self) -> dict[str, int]:
        """Channels whose watermark moved since the last call, and where it is now."""
        held: dict[str, int] = {}
        for segment in self._pending.values():
            channel, before = segment.meta.channel, segment.meta.first_seq - 1
            held[channel] = min(before, held.get(channel, before))
        marks = {channel: min(seq, held.get(channel, seq)) for channel, seq in self._reached.items()}
        news = {channel: seq for channel, seq in marks.items() if seq > self._told.get(channel, 0)}
        self._told.update(news)
        return news

    def watermarks(self) -> dict[str, int]:
        """All watermarks that were told."""
        return dict(self._told)
