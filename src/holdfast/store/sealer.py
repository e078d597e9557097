"""Sealing: cut units become segments, segments become known, and the log is trimmed.

Runs beside commits on its own thread. The order for each unit, and what a crash leaves (docs/design/durability.md,
"Seal"):

    1. reserve a segment number         a number that is never used again
    2. write the file under a .tmp name, sync, rename, sync the directory
                                        a complete file the catalog does not know; recovery removes it, the log has its
                                        events
    3. publish in the catalog, with the log position that is still needed
                                        the segment counts; recovery skips its events in the log
    4. readers switch from memory to the segment
    5. delete log files below that position
                                        what is left over is deleted at the next start

Trimming is safe by construction: only events of published, synced segments are below the position of
step 3, and the position is on disk before a file is deleted. A seal that failed does not move it.

A full disk postpones sealing: units stay in memory and in the log, and commits go on until a bound. Any other I/O error
stops the store (G10).
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from holdfast.disk.filesystem import is_full
from holdfast.disk.local import give_back_memory
from holdfast.errors import DiskFull, StoreFailed
from holdfast.model.schema import schema_hash
from holdfast.store.catalog import CatalogChannel, Publication, PublishedSegment, segment_file_name
from holdfast.store.ground import Ground
from holdfast.store.segments.combine import LazyBatches
from holdfast.store.segments.metadata import SegmentMeta, event_time_range, time_column
from holdfast.store.segments.runs import RunTable
from holdfast.store.segments.writer import PrefixDiffers, SegmentFile, write_segment
from holdfast.store.units import FrameBounds, SpentFile, Unit
from holdfast.store.wal.codec import decode_pieces
from holdfast.store.wal.log import Wal
from holdfast.telemetry import event

UNITS_PER_TRANSACTION = 64
RETRY_S = 0.5
"""How long sealing waits after the disk was full: soon enough for a person who frees space."""

COMPRESSIONS: dict[str, Literal["lz4", "zstd"] | None] = {"none": None, "lz4": "lz4", "zstd": "zstd"}


class Sealer:
    """Turns units into published segments."""

    def __init__(
        self,
        ground: Ground,
        wal: Wal,
        *,
        settle: Callable[[], None],
        on_publish: Callable[[PublishedSegment], bool],
        spent: Iterable[SpentFile] = (),
    ) -> None:
        """`settle` returns when all that is in the tail is synced in the log; `on_publish` says whether a segment will
        be read soon; `spent`: files of an earlier process."""
        self._settle = settle
        self._filesystem = ground.filesystem
        self._directory = ground.channels_directory
        self._config = ground.config
        self._store_id = ground.store_id
        self._catalog = ground.catalog
        self._tail = ground.tail
        self._wal = wal
        self._on_publish = on_publish
        self._written: dict[Unit, Publication] = {}
        self._ground = ground
        self._spent = {file.path: file for file in spent}
        self._cold: list[Path] = []
        self._stop = threading.Event()
        self.postponed: DiskFull | None = None
        self.segments = 0
        self.on_seal: Callable[[int, FrameBounds], None] = lambda _segment_seq, _bounds: None

    def run(self) -> None:
        """Seal until stopped and nothing is left, or until the store fails."""
        given_back_at = self.segments
        while self._tail.failure is None:
            if not self._stop.is_set():
                self._tail.wait_for_work()
            self._tail.cut_expired()
            busy = self.step()
            if self.segments != given_back_at and self._tail.is_nearly_empty():
                give_back_memory()  # the allocator keeps what it may need again; after a burst that is a lot
                given_back_at = self.segments
            if self.postponed is not None and self._stop.wait(RETRY_S):
                return
            if self._stop.is_set() and not busy:
                return

    def stop(self) -> None:
        """`run` returns once everything cut is sealed, or at once if the disk is full."""
        self._stop.set()
        with self._tail.lock:
            self._tail.work.notify_all()

    def step(self) -> bool:
        """Seal what is cut, one transaction's worth; False when there was nothing, or no room on disk."""
        sealed = self._step()
        self._forget_cold()  # what was sealed is mapped no more
        return sealed

    def _step(self) -> bool:
        units = self._tail.take(UNITS_PER_TRANSACTION)
        if not units:
            return False
        try:
            self._settle()
            for unit in units:
                if unit not in self._written:
                    self._written[unit] = self._write(unit)
            self._publish(units)
        except (OSError, sqlite3.Error) as error:
            return self._failed(error)
        except Exception as error:  # whatever it is, a sealer that stopped in silence would fill memory
            failure = error if isinstance(error, StoreFailed) else self._failure(error)
            self._tail.fail(failure)
            return False
        if self.postponed is not None:
            event("store.seal.resume", level=logging.WARNING, directory=self._directory)
        self.postponed = None
        return True

    def _write(self, unit: Unit) -> Publication:
        channel, chunks = unit.channel, unit.chunks
        batches = LazyBatches(decode_pieces((chunk.payload for chunk in chunks), unit.version.schema))
        first_event, last_event = event_time_range(batches, channel.limits.event_time_column)
        first, last = chunks[0].run, chunks[-1].run
        ingested = [chunk.run.ingested_at_ns for chunk in chunks]
        runs = RunTable.from_runs([chunk.run for chunk in chunks])
        meta = SegmentMeta(
            store_id=self._store_id.hex(),
            channel=channel.name,
            segment_seq=0,
            first_seq=first.first_seq,
            last_seq=unit.end_seq - 1,
            first_committed_id=first.first_committed_id,
            last_committed_id=last.first_committed_id + last.rows - 1,
            first_ingested_at_ns=min(ingested),
            last_ingested_at_ns=max(ingested),
            first_event_time_ns=first_event,
            last_event_time_ns=last_event,
            signal=channel.limits.signal,
            schema_hash=schema_hash(unit.version.schema),
            rows=unit.end_seq - unit.first_seq,
            event_time_column=time_column(unit.version.schema, channel.limits.event_time_column),
        )
        file = self._finish(unit, meta, runs) or self._write_anew(unit, meta, runs, batches)
        event_ids = [(digest, chunk.run.first_seq + n) for chunk in chunks for n, digest in enumerate(chunk.ids)]
        current = channel.version or unit.version
        return Publication(
            PublishedSegment(channel.id, file.meta, runs.has_guids, file.size_bytes, file.crc32c),
            CatalogChannel(channel.id, channel.name, unit.end_seq, current.schema.serialize().to_pybytes()),
            runs.slots(),
            event_ids,
        )

    def _write_anew(self, unit: Unit, meta: SegmentMeta, runs: RunTable, batches: LazyBatches) -> SegmentFile:
        """Everything, into a file of its own."""
        meta = replace(meta, segment_seq=self._catalog.next_segment_seq())
        return write_segment(
            self._filesystem,
            self._path_of(meta),
            meta=meta,
            schema=unit.version.schema,
            batches=batches,
            runs=runs,
            compression=COMPRESSIONS[unit.channel.limits.compression],
        )

    def _path_of(self, meta: SegmentMeta) -> Path:
        return self._ground.channel_directory(meta.channel) / segment_file_name(meta.segment_seq)

    def _finish(self, unit: Unit, meta: SegmentMeta, runs: RunTable) -> SegmentFile | None:
        """What is missing in a file that was filled by commits; None if there is none, or it cannot be finished."""
        growing = unit.growing
        if growing is None:
            return None
        rest = [chunk for chunk in unit.chunks if chunk.run.first_seq >= growing.end_seq]
        is_whole = (
            growing.first_seq == unit.first_seq and growing.end_seq + sum(c.run.rows for c in rest) == unit.end_seq
        )
        self._spent[growing.path] = SpentFile(unit.channel, growing.path, growing.end_seq - 1)
        if growing.broken or not is_whole or unit.channel.limits.compression != "none":
            growing.abandon()
            return None
        meta = replace(meta, segment_seq=self._catalog.next_segment_seq())
        path = growing.path.with_name(segment_file_name(meta.segment_seq))
        pieces = decode_pieces((chunk.payload for chunk in rest), unit.version.schema)
        try:
            file = growing.finish(path, meta=meta, runs=runs, rest=pieces)
        except PrefixDiffers as error:
            event("store.seal.rewrite", level=logging.WARNING, channel=meta.channel, reason=error)
            return None
        del self._spent[growing.path]
        return file

    def _remove_spent(self) -> None:
        """Files to which the log refers, of events that are all in published segments; a start would remove them."""
        for file in [file for file in self._spent.values() if file.last_seq <= file.channel.published_seq]:
            if self._filesystem.exists(file.path):
                self._filesystem.unlink(file.path)
            del self._spent[file.path]

    def _publish(self, units: list[Unit]) -> None:
        log = self._wal.log
        oldest = self._tail.oldest_file(active=log.number, without=units)
        publications = [self._written[unit] for unit in units]
        for unit, publication in zip(units, publications, strict=True):
            self.on_seal(publication.segment.meta.segment_seq, unit.frame_bounds())
        self._catalog.publish(publications, wal_cursor=log.file_start(oldest), skipped=_skipped_before(units))
        self._tail.published(units, [publication.segment.size_bytes for publication in publications])
        for unit, publication in zip(units, publications, strict=True):
            del self._written[unit]
            for digest, _ in publication.event_ids:
                unit.channel.unpublished_ids.pop(digest, None)
            self.segments += 1
            if not self._on_publish(publication.segment):
                self._cold.append(self._path_of(publication.segment.meta))
        self._tail.announced()
        self._remove_spent()
        log.trim(keep_from_number=oldest)
        self._tail.note_wal_bytes(log.size_bytes())

    def _forget_cold(self) -> None:
        """Give back the memory of segments that nobody follows, instead of filling it with what is not read."""
        cold, self._cold = self._cold, []
        for path in cold:
            with suppress(OSError):  # removed in the meantime; it is only a hint
                self._filesystem.forget(path)

    def _failed(self, error: OSError | sqlite3.Error) -> bool:
        """Later if the disk is full, never again otherwise."""
        if is_full(error):
            if self.postponed is None:  # said once; `seal_postponed` tells that it lasts
                event("store.seal.postpone", level=logging.WARNING, directory=self._directory, reason=error)
            self.postponed = DiskFull(file=self._directory, reason=str(error))
            return False
        self._tail.fail(self._failure(error))
        return False

    def _failure(self, error: Exception) -> StoreFailed:
        return StoreFailed(file=self._directory, reason=f"sealing failed: {type(error).__name__}: {error}")


def _skipped_before(units: Sequence[Unit]) -> list[tuple[int, int, int]]:
    """(channel, first seq, last seq) of numbers before these units that no event was ever given.

    Those before a channel's birth, and those a start passed over after a weak log had stopped uncleanly. What a limit
    let go before it was published lies below the channel's first event, and is no such number.
    """
    reached: dict[int, int] = {}
    skipped: list[tuple[int, int, int]] = []
    for unit in units:
        channel = unit.channel
        is_new = channel.published_seq < channel.born_seq
        known = 0 if is_new else max(channel.published_seq, channel.first_seq - 1)
        before = reached.get(channel.id, known)
        if unit.first_seq > before + 1:
            skipped.append((channel.id, before + 1, unit.first_seq - 1))
        reached[channel.id] = unit.end_seq - 1
    return skipped
