"""Small segments of a channel become large ones.

Promise: no event, no number and no mark changes. The new segment holds the same rows in the same order under the same
seqs, committed_ids and frame numbers; only the cut is another. So rows are never sorted: a seq means one value for ever
(G4). What may be asked for is a cut that keeps event times together (`event_span_ns`), so that readers who look for
times have few segments to open.

Safe beside everything else: commits and seals are not touched; evictions take turns with the swap; a segment that is
handed out to a subscriber, that is only in the tier, or that the tier has not listed yet, is left as it is; readers
find events by seq and never notice. Memory: about one new segment. Disk: one new segment before the old ones go.

The order for each new segment, and what a crash leaves (docs/design/durability.md, "Compact"):

    1. reserve a number, write the file, sync, rename, sync the directory, read it back
                                        a complete file that the catalog does not know; the next start deletes it
    2. one catalog transaction: the new segment comes, the old ones go
                                        the new one counts; the old files are unknown, and the next start deletes them
    3. delete the old files             the same
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from holdfast.disk.filesystem import Mode, is_full
from holdfast.errors import DiskFull, StoreFailed
from holdfast.store.catalog import PublishedSegment, segment_file_name
from holdfast.store.channels import Channel
from holdfast.store.sealer import COMPRESSIONS
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.segments.reader import SegmentReader, verify_segment
from holdfast.store.segments.runs import RunTable
from holdfast.store.segments.writer import write_segment
from holdfast.telemetry import event

if TYPE_CHECKING:
    from holdfast.store.store import Store

TARGET_BYTES = 128 << 20
"""What Spark gives to one task, and four times what is sealed by default."""
GROUP_SEGMENTS_MAX = 4096
"""Old segments that become one; each is mapped while the new one is written."""

Slots: TypeAlias = dict[bytes, list[tuple[int, int]]]
"""By slot the frame numbers in a segment."""


@dataclass(frozen=True, slots=True)
class CompactionPolicy:
    """What is put together."""

    target_bytes: int = TARGET_BYTES
    event_span_ns: int = 0
    """How far event times in a new segment may be apart; 0 is any."""


@dataclass(frozen=True, slots=True)
class Compaction:
    """What was done, and whether there is more to do."""

    segments_before: int = 0
    segments_after: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    events: int = 0
    left: int = 0
    """Groups that could not be swapped now: handed out, evicted meanwhile, or not in the tier yet."""
    more: bool = False

    def plus(self, other: Compaction) -> Compaction:
        """Both together; `left` and `more` are those of the later one."""
        return Compaction(
            self.segments_before + other.segments_before,
            self.segments_after + other.segments_after,
            self.bytes_before + other.bytes_before,
            self.bytes_after + other.bytes_after,
            self.events + other.events,
            other.left,
            other.more,
        )


# ----------------------------------------------------------------------------------------------------------------- plan


def plan(segments: Iterable[PublishedSegment], policy: CompactionPolicy) -> Iterator[list[PublishedSegment]]:
    """Neighbours to be put together, in order: without a gap, of one schema, together no larger than the target (pure).

    A segment of half the target or more stays alone: rewriting it would cost more than it spares.
    """
    group: list[PublishedSegment] = []
    for segment in segments:
        if group and not _fits(group, segment, policy):
            if len(group) > 1:
                yield group
            group = []
        if 2 * segment.size_bytes < policy.target_bytes:
            group.append(segment)
    if len(group) > 1:
        yield group


def _fits(group: Sequence[PublishedSegment], segment: PublishedSegment, policy: CompactionPolicy) -> bool:
    last = group[-1].meta
    together = sum(item.size_bytes for item in group) + segment.size_bytes
    return (
        segment.meta.first_seq == last.last_seq + 1
        and (segment.meta.schema_hash, segment.meta.signal) == (last.schema_hash, last.signal)
        and together <= policy.target_bytes
        and len(group) < GROUP_SEGMENTS_MAX
        and (not policy.event_span_ns or _span_ns([*group, segment]) <= policy.event_span_ns)
    )


def _span_ns(segments: Sequence[PublishedSegment]) -> int:
    first, last = _event_times([segment.meta for segment in segments])
    return last - first if first is not None and last is not None else 0


def _event_times(metas: Sequence[SegmentMeta]) -> tuple[int | None, int | None]:
    firsts = [meta.first_event_time_ns for meta in metas if meta.first_event_time_ns is not None]
    lasts = [meta.last_event_time_ns for meta in metas if meta.last_event_time_ns is not None]
    return min(firsts, default=None), max(lasts, default=None)


def joined_meta(metas: Sequence[SegmentMeta], segment_seq: int) -> SegmentMeta:
    """What the new segment says of itself (pure)."""
    first_event, last_event = _event_times(metas)
    columns = {meta.event_time_column for meta in metas}
    return replace(
        metas[0],
        segment_seq=segment_seq,
        last_seq=metas[-1].last_seq,
        last_committed_id=metas[-1].last_committed_id,
        first_ingested_at_ns=min(meta.first_ingested_at_ns for meta in metas),
        last_ingested_at_ns=max(meta.last_ingested_at_ns for meta in metas),
        first_event_time_ns=first_event,
        last_event_time_ns=last_event,
        rows=sum(meta.rows for meta in metas),
        event_time_column=columns.pop() if len(columns) == 1 else None,
    )


# ------------------------------------------------------------------------------------------------------------------ do


def compact(store: Store, channel: str, policy: CompactionPolicy | None = None, *, groups_max: int = 0) -> Compaction:
    """Put small segments of a channel together; stops after `groups_max` new ones, if that is not 0."""
    return _Compactor(store, store._channels.find(channel)).run(policy or CompactionPolicy(), groups_max)


class _Compactor:
    """Works on one channel."""

    def __init__(self, store: Store, channel: Channel) -> None:
        self._store = store
        self._channel = channel
        self._ground = store._ground
        self._catalog = store._catalog

    def run(self, policy: CompactionPolicy, groups_max: int) -> Compaction:
        """See `compact`."""
        self._ground.tail.check()
        done, left, begun = Compaction(), 0, 0
        segments = list(self._catalog.segments(self._channel.id, first_seq=self._channel.first_seq))
        whole = [segment for segment in segments if segment.meta.first_seq >= self._channel.first_seq]
        for group in plan(whole, policy):
            if groups_max and begun == groups_max:
                return replace(done, left=left, more=True)
            begun += 1
            if not self._may_go(group):
                left += 1
                continue
            made = self._swapped(group)
            left += made is None
            done = done.plus(made) if made is not None else done
        return replace(done, left=left)

    def _may_go(self, group: Sequence[PublishedSegment]) -> bool:
        """Its files are here, and a tier, if there is one, has listed all of them: so what it has promised stays."""
        source = self._ground.source
        here = not any(self._catalog.is_remote(segment.meta.segment_seq) for segment in group)
        return here and (source is None or all(source.holds(segment) for segment in group))

    def _swapped(self, group: Sequence[PublishedSegment]) -> Compaction | None:
        """The new segment in place of the old ones; None if that cannot be done now."""
        try:
            written = self._write(group)
            if written is None:
                return None
            new, slots = written
            if not self._swap(group, new, slots):
                self._delete([new])
                return None
        except (OSError, sqlite3.Error) as error:
            if is_full(error):
                raise DiskFull(file=self._ground.channels_directory, reason=str(error)) from error
            failure = StoreFailed(file=self._catalog.path, reason=f"compacting failed: {type(error).__name__}: {error}")
            self._ground.tail.fail(failure)
            raise failure from error
        size_bytes = sum(segment.size_bytes for segment in group)
        smaller = size_bytes - new.size_bytes
        self._ground.tail.evicted(self._channel, events=0, size_bytes=smaller, local_bytes=smaller)
        self._delete(group)
        self._store.port.published()
        name, number = self._channel.name, new.meta.segment_seq
        event("store.segment.compact", channel=name, segment=number, replaced=len(group), bytes=new.size_bytes)
        return Compaction(len(group), 1, size_bytes, new.size_bytes, new.meta.rows)

    def _write(self, group: Sequence[PublishedSegment]) -> tuple[PublishedSegment, Slots] | None:
        """A file with all of it, proven; None if some of it went meanwhile."""
        readers: list[SegmentReader] = []
        for segment in group:
            span = (segment.meta.first_seq, segment.meta.last_seq)
            reader = self._store._reader._open(self._channel.name, segment, span)
            if reader is None:
                return None
            readers.append(reader)
        runs = RunTable.from_runs(list(chain.from_iterable(reader.runs for reader in readers)))
        meta = joined_meta([segment.meta for segment in group], self._catalog.next_segment_seq())
        path = self._ground.channels_directory / self._channel.name / segment_file_name(meta.segment_seq)
        written = write_segment(
            self._ground.filesystem,
            path,
            meta=meta,
            schema=readers[0].schema,
            batches=[batch for reader in readers for _, batch in reader.batches()],
            runs=runs,
            compression=COMPRESSIONS[self._channel.limits.compression],
        )
        file = self._ground.filesystem.open(path, Mode.READ)
        try:
            verify_segment(file, written.crc32c)
        finally:
            file.close()
        new = PublishedSegment(self._channel.id, written.meta, runs.has_guids, written.size_bytes, written.crc32c)
        return new, runs.slots()

    def _swap(self, group: Sequence[PublishedSegment], new: PublishedSegment, slots: Slots) -> bool:
        """Step 2. False if some of the old ones went, or are handed out to somebody."""
        numbers = {segment.meta.segment_seq for segment in group}
        with self._store._keeper.turn:
            if any(self._catalog.segment(number) is None or self._catalog.is_remote(number) for number in numbers):
                return False
            swapped = self._store._desk.registry.swap(
                self._channel.id, numbers, lambda: self._catalog.replace_segments(group, new, slots)
            )
            if swapped:
                self._store._keeper.forget(numbers)
            return swapped

    def _delete(self, segments: Sequence[PublishedSegment]) -> None:
        """Step 3. What cannot be deleted now is deleted by the next start."""
        folder = self._ground.channels_directory / self._channel.name
        with suppress(OSError):
            for segment in segments:
                path = folder / segment.file_name
                self._store._open_files.discard(path)
                self._ground.filesystem.unlink(path)
            self._ground.filesystem.sync_dir(folder)
