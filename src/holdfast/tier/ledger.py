"""Which segments are on their way into the tier, which may be listed, and how far each channel is durable. Pure.

    published ──► pending ──► verified ──► listed in the manifest ──► durable
                 (object being written)   (only whole frames)

**Whole frames.** A frame may touch several channels, and its parts lie in several segments. If one part were listed
without the others and the disk were lost, the frame would be known as accepted, its repeat would be taken for a
duplicate, and the other parts would be gone. So segments are listed up to a point in commit order below which every
frame is in verified segments as a whole: `committed_end` is where the first frame begins that is not in published
segments as a whole, and a segment that is not verified yet holds that point back to where its first frame begins. A
verified one that lies across the point has to wait, and what shares a frame with it waits too: it holds the point back
to where the first frame begins of which it may have only a part (`border`). Of segments that an earlier process left
behind that is not known; they are listed together.

**Evicted before it was listed.** The events of such a segment were not to be kept, so nothing is uploaded. Its frames
have to be known as accepted all the same, or their repeat would be stored again after a wipe. So it stays on its way as
any other, and the entry that passes it names its frames instead of an object (`passable`).

**Watermark.** A channel is durable up to the last event before its first segment that is still on its way. What an
earlier process evicted was seen by nobody here; whoever knows that says so (`passed`).
"""

from __future__ import annotations

from holdfast.store.catalog import PublishedSegment
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.tiering import Slots
from holdfast.store.units import FrameBounds
from holdfast.tier.manifest import SegmentNote


class Ledger:
    """Not thread-safe: the uploader's one thread uses it."""

    def __init__(self) -> None:
        self._pending: dict[int, PublishedSegment] = {}
        self._bounds: dict[int, FrameBounds] = {}
        self._verified: dict[int, SegmentNote] = {}
        self._gone: dict[int, Slots] = {}
        self._reached: dict[str, int] = {}
        self._told: dict[str, int] = {}
        self.is_tied = False
        """Whether something waits only because what shares a frame with it does; as of the last `border`."""

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

    def add(self, segment: PublishedSegment, bounds: FrameBounds) -> None:
        """A segment was published; `bounds` say where its frames begin."""
        self._pending[segment.meta.segment_seq] = segment
        self._bounds[segment.meta.segment_seq] = bounds

    def verify(self, note: SegmentNote) -> None:
        """Its object was read back and is right."""
        if note.segment_seq in self._pending and note.segment_seq not in self._gone:
            self._verified[note.segment_seq] = note

    def forget(self, segment_seq: int, slots: Slots) -> SegmentNote | None:
        """It was evicted before it was listed, and had these frames; what was stored of it, if anything."""
        self._gone[segment_seq] = slots
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

    def border(self, committed_end: int) -> int:
        """Where the first frame begins that may not be in the manifest as a whole, if all before it is listed."""
        ready = self._verified.keys() | self._gone.keys()
        start = min([committed_end, *(self._bounds[number].first for number in self._pending if number not in ready)])
        end = start
        for number in sorted(self._verified, key=self._last_id, reverse=True):
            if self._last_id(number) < end:
                break
            shared = self._bounds[number].shared
            end = end if shared is None else min(end, shared)
        self.is_tied = end < start
        return end

    def listable(self, border: int) -> list[SegmentNote]:
        """What may be listed now, by segment number."""
        return [note for _, note in sorted(self._verified.items()) if note.meta.last_committed_id < border]

    def passable(self, border: int) -> dict[int, Slots]:
        """What was evicted and may be passed now, with the frames that are to be known then."""
        return {number: slots for number, slots in self._gone.items() if self._last_id(number) < border}

    def _last_id(self, segment_seq: int) -> int:
        return self._pending[segment_seq].meta.last_committed_id

    def settle(self, note: SegmentNote) -> None:
        """It is in the manifest, now or since an earlier process."""
        self._drop(note.segment_seq, note.meta)

    def let_go(self, segment_seq: int) -> None:
        """It was evicted, and the manifest knows its frames."""
        self._drop(segment_seq, self._pending[segment_seq].meta)

    def _drop(self, segment_seq: int, meta: SegmentMeta) -> None:
        self._pending.pop(segment_seq, None)
        self._bounds.pop(segment_seq, None)
        self._verified.pop(segment_seq, None)
        self._gone.pop(segment_seq, None)
        self._reach(meta.channel, meta.last_seq)

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
