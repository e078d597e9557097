"""Segments that are only in the tier, for readers: whole copies in a bounded folder, or a few proven batches.

    <data>/cache/seg-<segment_seq>-<crc32c>.arrow

Promises:

- A copy is compared with the catalog's checksum before it gets its name, and one that an earlier process left, before
  it is first read by this one. The folder may be deleted at any time; nothing in it is the only copy.
- The copies take at most as much as the tier's settings say, but one always fits; the one that was not read for the
  longest time goes first. Who is reading a copy that goes has it to the end.
- However many ask for a segment, it is fetched once; if that fails, all of them are told.
- Who wants a small part of a large segment gets that part only. Who comes a second time gets the whole.

A tier that is away is an error of the reader (`TierUnavailable`), after the tier's patience; nothing here is on the way
of a commit.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.disk.filesystem import File, Filesystem, is_full
from holdfast.disk.openfiles import OpenFiles
from holdfast.errors import CorruptData, DiskFull, OnlyInTier
from holdfast.store.catalog import Catalog, PublishedSegment
from holdfast.store.segments.partial import open_part
from holdfast.store.segments.reader import SegmentReader
from holdfast.store.source import SegmentSource
from holdfast.telemetry import event

PART_OF_BYTES_MIN = 1 << 20
"""Smaller segments are fetched whole: the request costs more than the bytes."""
PARTS_REMEMBERED_MAX = 4096
"""Segments of which somebody had a part; who comes again gets the whole."""
OPENINGS_MAX = 5
"""A copy may go between the moment it was fetched and the moment it is opened; not again and again."""
_NAME = re.compile(r"seg-(\d+)-([0-9a-f]{8})\.arrow")


@dataclass(frozen=True, slots=True)
class CopiesStatistics:
    """What the folder holds and how it did since the store was opened."""

    copies: int
    bytes: int
    limit_bytes: int
    hits: int
    fetches: int
    fetched_bytes: int
    parts: int
    evictions: int


class Copies:
    """Thread-safe."""

    def __init__(
        self,
        filesystem: Filesystem,
        folder: Path,
        *,
        catalog: Catalog,
        source: SegmentSource | None,
        open_files: OpenFiles,
    ) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._source = source
        self._open_files = open_files
        self._lock = threading.Lock()
        self._sizes: OrderedDict[int, tuple[Path, int]] = OrderedDict()  # least recently read first
        self._unproven: set[int] = set()  # left by an earlier process, and not read yet
        self._bytes = 0
        self._coming_bytes = 0
        self._room = threading.Condition(self._lock)
        self._fetching: dict[int, Future[Path]] = {}
        self._parts: OrderedDict[int, None] = OrderedDict()
        self._hits = self._fetches = self._fetched_bytes = self._parts_read = self._evictions = 0
        if source is not None and filesystem.exists(folder):
            self._adopt(catalog, source.cache_bytes)

    def _adopt(self, catalog: Catalog, limit_bytes: int) -> None:
        """What an earlier process left stays if it is still of use."""
        for entry in self._filesystem.listdir(self._folder):
            path, match = self._folder / entry.name, _NAME.fullmatch(entry.name)
            number = int(match[1]) if match else 0
            segment = catalog.segment(number) if match and catalog.is_remote(number) else None
            if segment is not None and path == self._path(segment) and entry.size_bytes == segment.size_bytes:
                self._sizes[number] = (path, entry.size_bytes)
                self._bytes += entry.size_bytes
                self._unproven.add(number)
            elif not entry.is_dir:
                self._filesystem.unlink(path)
        self._trim(limit_bytes)

    # -- reading ----------------------------------------------------------------------------------------------------

    def open(self, segment: PublishedSegment, span: tuple[int, int] | None) -> SegmentReader:
        """A reader for the seqs of `span`, both included; for runs only if it is None.

        `CorruptData` if the copy is damaged; the next call fetches another.
        """
        if self._is_part_enough(segment, span):
            try:
                return self._open_part(segment, span)
            except CorruptData as damage:  # on its way, most likely: the whole is compared and asked for again
                event("store.copy.part.damage", segment=segment.meta.segment_seq, reason=damage)
        number = segment.meta.segment_seq
        with self.lend(segment) as file:
            try:
                reader = SegmentReader.open(file, expected_crc32c=segment.crc32c, verified=number not in self._unproven)
            except CorruptData:
                self.forget(number)
                raise
        self._unproven.discard(number)
        return reader

    @contextmanager
    def lend(self, segment: PublishedSegment) -> Iterator[File]:
        """A copy of the whole segment, open for the length of a block. Who did not `open` it has no proof of it."""
        with ExitStack() as held:
            yield self._opened(segment, held)

    def _opened(self, segment: PublishedSegment, held: ExitStack) -> File:
        for _ in range(OPENINGS_MAX - 1):
            try:
                return held.enter_context(self._open_files.use(self.path(segment)))
            except FileNotFoundError:  # it went since, or somebody emptied the folder
                self.forget(segment.meta.segment_seq)
        return held.enter_context(self._open_files.use(self.path(segment)))

    def path(self, segment: PublishedSegment) -> Path:
        """Where a copy of the whole segment is; fetched if there is none."""
        number = segment.meta.segment_seq
        with self._lock:
            known = self._sizes.get(number)
            if known is not None:
                self._sizes.move_to_end(number)
                self._hits += 1
                return known[0]
            future = self._fetching.get(number)
            mine = future is None
            if future is None:
                future = self._fetching[number] = Future()
        if mine:
            try:
                future.set_result(self._fetch(segment))
            except BaseException as error:
                future.set_exception(error)
                raise
            finally:
                with self._lock:
                    del self._fetching[number]
        return future.result()

    def forget(self, segment_seq: int) -> None:
        """Throw a copy away."""
        with self._lock:
            known = self._sizes.pop(segment_seq, None)
            self._unproven.discard(segment_seq)
            self._bytes -= known[1] if known is not None else 0
        if known is not None:
            self._discard(known[0])

    def statistics(self) -> CopiesStatistics:
        """A picture."""
        with self._lock:
            return CopiesStatistics(
                len(self._sizes),
                self._bytes,
                self._source.cache_bytes if self._source is not None else 0,
                self._hits,
                self._fetches,
                self._fetched_bytes,
                self._parts_read,
                self._evictions,
            )

    # -- fetching ---------------------------------------------------------------------------------------------------

    def _is_part_enough(self, segment: PublishedSegment, span: tuple[int, int] | None) -> bool:
        number, meta = segment.meta.segment_seq, segment.meta
        with self._lock:
            if number in self._sizes or segment.size_bytes < PART_OF_BYTES_MIN:
                return False
            if span is None:
                return True
            wanted = min(span[1], meta.last_seq) - max(span[0], meta.first_seq) + 1
            if 2 * wanted > meta.rows or number in self._parts:
                return False
            self._parts[number] = None
            if len(self._parts) > PARTS_REMEMBERED_MAX:
                self._parts.popitem(last=False)
            return True

    def _open_part(self, segment: PublishedSegment, span: tuple[int, int] | None) -> SegmentReader:
        source = self._source_of(segment)
        with self._lock:
            self._parts_read += 1
        return open_part(
            self._path(segment),
            segment.size_bytes,
            segment.crc32c,
            span=span,
            fetch=lambda start, end: source.part(segment, start, end),
        )

    def _fetch(self, segment: PublishedSegment) -> Path:
        """Room first, so that the bound holds while it comes; those that do not fit beside each other come in turn."""
        source, path, size_bytes = self._source_of(segment), self._path(segment), segment.size_bytes
        with self._room:
            self._room.wait_for(lambda: self._coming_bytes + size_bytes <= max(size_bytes, source.cache_bytes))
            self._coming_bytes += size_bytes
        has_come = False
        try:
            self._trim(source.cache_bytes)
            self._copy(segment, source, path)
            has_come = True
        finally:
            with self._room:
                self._coming_bytes -= size_bytes
                if has_come:
                    self._sizes[segment.meta.segment_seq] = (path, size_bytes)
                    self._bytes += size_bytes
                    self._fetches += 1
                    self._fetched_bytes += size_bytes
                self._room.notify_all()
        return path

    def _copy(self, segment: PublishedSegment, source: SegmentSource, path: Path) -> None:
        try:
            self._filesystem.makedir(self._folder)
            source.copy(segment, path)
        except OSError as error:
            if not is_full(error):
                raise
            self._trim(0)
            raise DiskFull(file=path, reason=error.strerror or str(error)) from error

    def _trim(self, limit_bytes: int) -> None:
        while True:
            with self._lock:
                if self._bytes <= max(0, limit_bytes - self._coming_bytes) or not self._sizes:
                    return
                number, (path, size_bytes) = self._sizes.popitem(last=False)
                self._unproven.discard(number)
                self._bytes -= size_bytes
                self._evictions += 1
            self._discard(path)

    def _discard(self, path: Path) -> None:
        self._open_files.discard(path)
        if self._filesystem.exists(path):
            self._filesystem.unlink(path)

    def _path(self, segment: PublishedSegment) -> Path:
        return self._folder / f"seg-{segment.meta.segment_seq}-{segment.crc32c:08x}.arrow"

    def _source_of(self, segment: PublishedSegment) -> SegmentSource:
        if self._source is None:
            raise OnlyInTier(channel=segment.meta.channel, segment_seq=segment.meta.segment_seq)
        return self._source
