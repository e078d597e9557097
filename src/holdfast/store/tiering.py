"""What a store shows to a tier above it, and what it lets the tier decide.

The store knows nothing of object stores. It says which segments it published and evicted, lends their files, gives out
no number that the tier has not reserved, seals early when asked to, and asks a source for segments whose files are
missing or damaged.

Promise: `committed_end` is a border in commit order: every event below it is in a segment that the catalog had when the
call returned, and no frame lies across it. Thread-safe.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from holdfast.disk.filesystem import File
from holdfast.disk.openfiles import OpenFiles
from holdfast.model.intervals import IntervalSet
from holdfast.store.catalog import PublishedSegment
from holdfast.store.committer import Committer
from holdfast.store.copies import CopiesStatistics
from holdfast.store.ground import Ground
from holdfast.store.reading import Reader
from holdfast.store.subscribers.notes import Snapshot
from holdfast.store.subscribers.registry import Registry
from holdfast.store.units import UNKNOWN_BOUNDS, FrameBounds
from holdfast.store.wal.log import SchemaVersion

Slots = dict[str, list[tuple[int, int]]]
"""Per slot id, in hex, numbers of frames."""
Evicted = Callable[[PublishedSegment, Slots], None]
LOOKS = 3
"""How often the border is looked for while segments are being published; the next turn looks again."""
SLOTS_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class ChannelPicture:
    """A channel at one moment."""

    channel_id: int
    name: str
    next_seq: int
    first_seq: int
    published_seq: int
    """The last one that is in a segment, or was."""
    version: SchemaVersion | None


def _without(ranges: IntervalSet, others: Iterable[tuple[int, int]]) -> IntervalSet:
    """The ranges, after others were taken out of them."""
    for first, last in others:
        ranges.discard(first, last)
    return ranges


class TierPort:
    """A store, as a tier sees it."""

    def __init__(
        self, ground: Ground, reader: Reader, open_files: OpenFiles, *, committer: Committer, registry: Registry
    ) -> None:
        self._ground = ground
        self._reader = reader
        self._open_files = open_files
        self._committer = committer
        self._registry = registry
        self.filesystem = ground.filesystem
        self.directory = ground.directory
        self.store_id = ground.store_id.hex()
        self._frame_bounds: dict[int, FrameBounds] = {}
        self._on_publish: list[Callable[[], None]] = []
        self._on_evict: list[Evicted] = []
        self._evicted_id = 0  # the highest committed_id that was evicted
        self.eviction = threading.Lock()
        """Held while segments leave the catalog, until all who listen have been told."""

    # -- segments ---------------------------------------------------------------------------------------------------

    def committed_end(self) -> int:
        """Where the first frame begins that may not be in published segments as a whole."""
        for _ in range(LOOKS):
            before = self._published_id()
            waiting = self._ground.tail.first_committed_id()
            if waiting is not None:
                return waiting
            # Nothing waits, so all frames are published; the last of them ends here, unless one came in between.
            if self._published_id() == before:
                return before + 1
        return 0

    def present_end(self) -> int:
        """One past the highest committed_id that is in a segment or waits to be."""
        waiting = self._ground.tail.last_committed_id()  # first: it may be in a segment then
        return max(waiting, self._published_id()) + 1

    def _published_id(self) -> int:
        return max(self._ground.catalog.last_committed_id(), self._evicted_id)

    def segments_after(self, segment_seq: int) -> Iterator[PublishedSegment]:
        """Published segments with higher numbers, in order."""
        while (segment := self._ground.catalog.segment_after(segment_seq)) is not None:
            yield segment
            segment_seq = segment.meta.segment_seq

    def frame_bounds(self, segment_seq: int) -> FrameBounds:
        """Where frames begin of which a segment holds parts; asked once.

        Not known for a segment that was sealed before anybody listened.
        """
        return self._frame_bounds.pop(segment_seq, UNKNOWN_BOUNDS)

    def is_published(self, segment_seq: int) -> bool:
        """Whether the catalog has the segment."""
        return self._ground.catalog.segment(segment_seq) is not None

    def was_evicted(self, channel_id: int, first_seq: int, last_seq: int) -> bool:
        """Whether retention let these events go; False for those that damage took."""
        return self._is_gone(channel_id, (first_seq, last_seq), reasons=("evicted",))

    def skipped(self, channel_id: int) -> list[tuple[int, int]]:
        """First and last seq of ranges that no event was ever given."""
        return [(first, last) for first, last, reason in self._ground.catalog.gone(channel_id) if reason == "skipped"]

    def is_owed(self, channel_id: int, first_seq: int, last_seq: int) -> bool:
        """Whether any of these numbers stands for an event that retention did not let go."""
        return not self._is_gone(channel_id, (first_seq, last_seq), reasons=("evicted", "skipped"))

    def _is_gone(self, channel_id: int, span: tuple[int, int], *, reasons: tuple[str, ...]) -> bool:
        gone = self._ground.catalog.gone(channel_id)
        return IntervalSet((first, last) for first, last, reason in gone if reason in reasons).covers(*span)

    def lend(self, segment: PublishedSegment) -> AbstractContextManager[File]:
        """Its file, open for the length of a block."""
        return self._open_files.use(self._reader.segment_path(segment.meta.channel, segment))

    def slots(self, segment: PublishedSegment) -> Slots:
        """The frames in it."""
        runs = self._reader.run_table(segment, segment.meta.channel)
        return {slot_id.hex(): list(ranges) for slot_id, ranges in runs.slots().items()} if runs is not None else {}

    def frames_gone(self, known: Mapping[str, IntervalSet]) -> Slots:
        """Frames of slots of which nothing is left here, all their segments having been evicted, but for `known` ones.

        What is published, then what waits, then what is in segments: a part that moves on meanwhile is seen later.
        """
        had: dict[bytes, IntervalSet] = {}
        catalog, last = self._ground.catalog, b""
        while slot_ids := catalog.slot_ids(after=last, limit=SLOTS_AT_ONCE):
            last = slot_ids[-1]
            for slot_id in slot_ids:
                left = _without(IntervalSet(catalog.slot_ranges(slot_id)), known.get(slot_id.hex(), ()))
                if left:
                    had[slot_id] = left
        waiting = self._ground.tail.slot_frames()
        for slot_id, left in had.items():
            _without(left, ((fsn, fsn) for fsn in waiting.get(slot_id, ())))
            _without(left, catalog.slot_ranges_present(slot_id))
        return {slot_id.hex(): list(left) for slot_id, left in had.items() if left}

    def event_ids(self, segment: PublishedSegment) -> list[tuple[bytes, int]]:
        """Digest and seq of the events with ids in it."""
        return self._ground.catalog.event_ids_within(segment.channel_id, segment.meta.first_seq, segment.meta.last_seq)

    def cut_open_units(self, *, older_than_ns: int) -> None:
        """Seal all that is open, if any of it is older. All, so that no frame is cut in two."""
        self._ground.tail.cut_all_if_older(older_than_ns)

    def on_publish(self, told: Callable[[], None]) -> None:
        """Call `told`, on the sealer's thread, when segments were published; it must not wait."""
        self._on_publish.append(told)

    def on_evict(self, told: Evicted) -> None:
        """Call `told`, on the keeper's thread, with each segment that was evicted and its frames; it must not wait."""
        self._on_evict.append(told)

    def sealed(self, segment_seq: int, bounds: FrameBounds) -> None:
        """Called by the store, before the segment is in the catalog."""
        if self._on_publish:
            self._frame_bounds[segment_seq] = bounds

    def published(self) -> bool:
        """Called by the store. Whether there is a tier that wants to know."""
        for told in self._on_publish:
            told()
        return bool(self._on_publish)

    @contextmanager
    def evicting(self, segments: Sequence[PublishedSegment]) -> Iterator[None]:
        """The store lets segments leave the catalog inside of it."""
        with self.eviction:
            catalog = self._ground.catalog
            numbers = [segment.meta.segment_seq for segment in segments] if self._on_evict else []
            slots = catalog.slot_ranges_within(numbers)
            yield
            self._evicted_id = max([self._evicted_id, *(segment.meta.last_committed_id for segment in segments)])
            for segment in segments:
                held = {slot_id.hex(): ranges for slot_id, ranges in slots.get(segment.meta.segment_seq, {}).items()}
                for told in self._on_evict:
                    told(segment, held)

    def remote(self) -> list[int]:
        """Segments that have no file here; the tier must have them."""
        return self._ground.catalog.remote()

    def remote_totals(self) -> tuple[int, int]:
        """How many there are, and their bytes."""
        return self._ground.catalog.remote_totals()

    def copies(self) -> CopiesStatistics:
        """The copies of them that readers made."""
        return self._reader.copies.statistics()

    # -- numbers ----------------------------------------------------------------------------------------------------

    @property
    def next_committed_id(self) -> int:
        """The next event's."""
        return self._committer.next_committed_id

    @property
    def segment_seq_floor(self) -> int:
        """No segment has this number or a higher one."""
        return self._ground.catalog.segment_seq_floor

    @property
    def birth_seq(self) -> int:
        """The first seq of a new channel."""
        return self._ground.channels.birth_seq

    def hold_below(self, committed_id: int) -> None:
        """Give out no committed_id from this one on."""
        self._committer.committed_id_ceiling = committed_id

    # -- the rest of a manifest -------------------------------------------------------------------------------------

    def channels(self) -> list[ChannelPicture]:
        """All channels that were ever written to, retired ones too."""
        return [
            ChannelPicture(
                channel.id, channel.name, channel.next_seq, channel.first_seq, channel.published_seq, channel.version
            )
            for channel in self._ground.channels.known()
            if channel.next_seq > channel.born_seq
        ]

    def readers(self) -> Snapshot:
        """All subscribers and their marks."""
        return self._registry.snapshot()

    def note(self, **values: bytes | int) -> None:
        """Keep values of the tier in the catalog."""
        self._ground.catalog.set_meta(**values)

    def noted(self, key: str) -> bytes | None:
        """One of them."""
        return self._ground.catalog.meta(key)
