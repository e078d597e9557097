"""Events of some partitions of a channel in commit order: only segments, and of those only rows, that belong to them.

A frame's entry names its partitions, and the run table of a segment keeps them, so which rows belong to a partition is
known without reading rows. Names of partitions are remembered per segment, so that a segment without a wanted one is
not opened twice.

Promises: a read is a picture, without a gap or a repeat at the border of segments and memory, as in `reading.py`.
Events that retention took are left out. Thread-safe; calls read files, so a loop hands them to a thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.model.evolution import conform
from holdfast.store.catalog import PublishedSegment
from holdfast.store.channels import Channel
from holdfast.store.event_ids import digests_of
from holdfast.store.ground import Ground
from holdfast.store.reading import Reader
from holdfast.store.segments.runs import RunTable
from holdfast.store.units import Chunk

NAMES_REMEMBERED_MAX = 1_000_000
"""Names of partitions kept over all segments; some hundred bytes each at worst."""
TABLES_REMEMBERED_MAX = 32
"""Run tables kept: those of the segments that several readers page through at a time."""

Rows = tuple[npt.NDArray[np.int64], pa.RecordBatch]
"""committed_ids, and the events they belong to."""


class PartitionReader:
    """Reads one store by partition."""

    def __init__(self, ground: Ground, reader: Reader) -> None:
        self._ground = ground
        self._reader = reader
        self._lock = threading.Lock()
        self._names: OrderedDict[int, frozenset[str]] = OrderedDict()
        self._names_kept = 0
        self._tables: OrderedDict[int, RunTable] = OrderedDict()

    def read(self, channel: str, partitions: frozenset[str], *, first: int, last: int, rows_max: int) -> Iterator[Rows]:
        """At most `rows_max` events of the partitions with committed_ids `first..last`, both included."""
        found = self._ground.channels.get(channel)
        if found is None:
            return
        border, chunks = self._ground.tail.snapshot(found)
        start = self._ground.catalog.first_seq_reaching(found.id, "last_committed_id", first)
        left = rows_max
        if start is not None:
            below = min(last, chunks[0].run.first_committed_id - 1) if chunks else last
            span = (max(start, found.first_seq), border - 1)
            for rows in self._of_segments(found, span, partitions, first=first, last=below, rows_max=left):
                left -= len(rows[0])
                yield rows
        for chunk in self._chunks(chunks, partitions, first, last):
            if left <= 0:
                return
            rows = _of_chunk(found, chunk, first=first, last=last, rows_max=left)
            left -= len(rows[0])
            yield rows

    def last_committed_id(self, channel: str, partitions: frozenset[str]) -> int:
        """Of the newest event of the partitions; 0 if there is none."""
        found = self._ground.channels.get(channel)
        if found is None:
            return 0
        border, chunks = self._ground.tail.snapshot(found)
        for chunk in reversed(chunks):
            if not partitions.isdisjoint(chunk.run.partitions):
                return chunk.run.first_committed_id + chunk.run.rows - 1
        for segment in reversed(list(self._ground.catalog.segments(found.id, last_seq=border - 1))):
            table = self._table(segment, partitions)
            if table is not None:
                _, rows, ids = table.of_partitions(partitions, 0, segment.meta.last_committed_id)
                return int(ids[-1] + rows[-1]) - 1
        return 0

    def event_seqs(self, channel: str, ids: pa.RecordBatch, column: str) -> list[int | None]:
        """Where the events with these ids are, one answer per row of `ids`; None for an id that is not stored."""
        found = self._ground.channels.get(channel)
        if found is None:
            return [None] * ids.num_rows
        digests = digests_of(ids, column, channel=channel)
        # Memory first: what the sealer took out of there is in the catalog by then.
        waiting = [found.unpublished_ids.get(digest) for digest in digests]
        published = self._ground.catalog.event_seqs(found.id, digests)
        return [seq if seq is not None else published.get(digest) for seq, digest in zip(waiting, digests, strict=True)]

    def first_needed(self, channel: str, partitions: frozenset[str]) -> int:
        """Events of the partitions from this seq on are kept: below it, one of them has advanced."""
        found = self._ground.channels.get(channel)
        if found is None:
            return 1
        floors = self._ground.catalog.partition_floors_of(found.id, sorted(partitions))
        return max(floors.values(), default=1)

    # -- segments ---------------------------------------------------------------------------------------------------

    def _of_segments(
        self,
        channel: Channel,
        span: tuple[int, int],
        partitions: frozenset[str],
        *,
        first: int,
        last: int,
        rows_max: int,
    ) -> Iterator[Rows]:
        """One segment at a time, by seq, since compaction may put several together meanwhile."""
        catalog, (position, end) = self._ground.catalog, span
        while position <= end and rows_max > 0:
            segment = catalog.segment_within(channel.id, (position, end), newest_first=False)
            if segment is None or segment.meta.first_committed_id > last:
                return
            taken = 0
            for rows in self._of_segment(channel, segment, partitions, first=first, last=last, rows_max=rows_max):
                taken += len(rows[0])
                first = int(rows[0][-1]) + 1
                yield rows
            rows_max -= taken
            if taken or catalog.segment(segment.meta.segment_seq) is not None:  # otherwise the catalog has another now
                position = segment.meta.last_seq + 1

    def _of_segment(
        self,
        channel: Channel,
        segment: PublishedSegment,
        partitions: frozenset[str],
        *,
        first: int,
        last: int,
        rows_max: int,
    ) -> Iterator[Rows]:
        table = self._table(segment, partitions)
        if table is None:
            return
        seqs, ids = _expand(table.of_partitions(partitions, first, last), first, last, rows_max)
        if not len(seqs):
            return
        at = 0
        for batch_seq, batch in self._reader.segment_batches(
            segment, channel.name, first_seq=int(seqs[0]), last_seq=int(seqs[-1])
        ):
            end = int(np.searchsorted(seqs, batch_seq + batch.num_rows))
            if end > at:
                picked = batch.take(pa.array(seqs[at:end] - batch_seq))
                yield ids[at:end], _fitted(channel, picked)
            at = end

    def _table(self, segment: PublishedSegment, partitions: frozenset[str]) -> RunTable | None:
        """The run table of a segment; None if it has none of the partitions, or was evicted."""
        number = segment.meta.segment_seq
        with self._lock:
            names, table = self._names.get(number), self._tables.get(number)
        if names is not None and names.isdisjoint(partitions):
            return None
        if table is None:
            table = self._reader.run_table(segment, segment.meta.channel)
            if table is None:
                return None
            names = table.partitions()
            self._remember(number, names, table)
        return None if names is None or names.isdisjoint(partitions) else table

    def _remember(self, number: int, names: frozenset[str], table: RunTable) -> None:
        with self._lock:
            if number not in self._names:
                self._names[number] = names
                self._names_kept += len(names) + 1
            self._tables[number] = table
            while len(self._tables) > TABLES_REMEMBERED_MAX:
                self._tables.popitem(last=False)
            while self._names_kept > NAMES_REMEMBERED_MAX and len(self._names) > 1:
                self._names_kept -= len(self._names.popitem(last=False)[1]) + 1

    # -- memory -----------------------------------------------------------------------------------------------------

    def _chunks(self, chunks: Sequence[Chunk], partitions: frozenset[str], first: int, last: int) -> Iterator[Chunk]:
        for chunk in chunks:
            run = chunk.run
            if run.first_committed_id > last:
                return
            if run.first_committed_id + run.rows > first and not partitions.isdisjoint(run.partitions):
                yield chunk


def _of_chunk(channel: Channel, chunk: Chunk, *, first: int, last: int, rows_max: int) -> Rows:
    run = chunk.run
    low = max(first, run.first_committed_id)
    rows = min(last, run.first_committed_id + run.rows - 1, low + rows_max - 1) - low + 1
    batch = chunk.batch().slice(low - run.first_committed_id, rows)
    return np.arange(low, low + rows, dtype=np.int64), _fitted(channel, batch)


def _fitted(channel: Channel, batch: pa.RecordBatch) -> pa.RecordBatch:
    version = channel.version
    return batch if version is None else conform(batch, version.schema, channel=channel.name)


def _expand(
    runs: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]],
    first: int,
    last: int,
    rows_max: int,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """seq and committed_id of each row of the runs within `first..last`, at most `rows_max`."""
    first_seqs, rows, first_ids = runs
    enough = int(np.searchsorted(np.cumsum(rows), rows_max + max(0, first - int(first_ids[0])))) + 1 if len(rows) else 0
    first_seqs, rows, first_ids = first_seqs[:enough], rows[:enough], first_ids[:enough]
    total = int(rows.sum())
    offsets = np.arange(total, dtype=np.int64) - np.repeat(np.cumsum(rows) - rows, rows)
    ids = np.repeat(first_ids, rows) + offsets
    seqs = np.repeat(first_seqs, rows) + offsets
    within = (ids >= first) & (ids <= last)
    return seqs[within][:rows_max], ids[within][:rows_max]
