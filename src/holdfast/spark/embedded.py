"""Access to the store in a directory, which another process may have open.

Promise: nothing in the directory is written and no lock is taken. Whenever the catalog has changed it is copied, the
copy is read and thrown away, because SQLite writes side files even for a reader. Segment files are mapped from where
they are. Looking costs as much as the catalog is large; for a store of very many segments a server answers faster.
"""

from __future__ import annotations

import sqlite3
import tempfile
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from holdfast.disk.filesystem import Mode
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, CorruptData, OnlyInTier, UnknownChannel, UnsupportedFormat
from holdfast.spark.access import ChannelFacts, SegmentRef
from holdfast.spark.options import SourceOptions
from holdfast.store.catalog import CATALOG_NAME, Catalog, PublishedSegment, segment_file_name
from holdfast.store.ground import CHANNELS_DIR
from holdfast.store.inspect.catalogs import catalog_images
from holdfast.store.segments.reader import SegmentReader

_Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class _Kept:
    """A channel as the catalog keeps it."""

    facts: ChannelFacts
    schema: bytes
    skipped: list[tuple[int, int]]
    segments: list[SegmentRef]
    closed_off: bool
    """It was removed, and not written to since."""


class EmbeddedAccess:
    """Reads one directory. Used by one thread."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._directory = Path(options.path).absolute()
        self._filesystem = LocalFilesystem()
        self._stamp: _Stamp | None = None
        self._kept: dict[str, _Kept] = {}

    def channels(self) -> list[ChannelFacts]:
        """By name."""
        return [kept.facts for _, kept in sorted(self._current().items()) if not kept.closed_off]

    def schema(self, channel: str) -> pa.Schema:
        """As of the last segment."""
        return pa.ipc.read_schema(pa.py_buffer(self._channel(channel).schema))

    def skipped(self, channel: str) -> list[tuple[int, int]]:
        """Never given to an event."""
        return self._channel(channel).skipped

    def segments(self, channel: str, *, from_seq: int) -> Iterator[SegmentRef]:
        """In order."""
        segments = self._channel(channel).segments
        return iter(segments[bisect_left(segments, from_seq, key=lambda segment: segment.last_seq) :])

    def seal(self, channel: str) -> None:
        """Only the owner of the store can."""

    @contextmanager
    def opened(self, segment: SegmentRef) -> Iterator[SegmentReader]:
        """From its file."""
        with open_file(self._directory, segment) as reader:
            yield reader

    def _channel(self, name: str) -> _Kept:
        kept = self._current().get(name)
        if kept is None:
            raise UnknownChannel(channel=name)
        return kept

    def _current(self) -> dict[str, _Kept]:
        """What the catalog says now."""
        path = self._directory / CATALOG_NAME
        stamp = _stamp(path)
        if stamp != self._stamp:
            with tempfile.TemporaryDirectory(prefix="holdfast-catalog-") as folder:
                self._kept = self._copied(path, Path(folder))
            self._stamp = stamp
        return self._kept

    def _copied(self, path: Path, folder: Path) -> dict[str, _Kept]:
        try:
            images = catalog_images(self._filesystem, path)
        except FileNotFoundError:
            raise BadRequest(f"{path.parent} is not a store: it has no {CATALOG_NAME}; correct path") from None
        for name, image in images.items():
            (folder / name).write_bytes(image)
        try:
            with closing(Catalog(self._filesystem, folder)) as catalog:
                return self._taken(catalog)
        except UnsupportedFormat as error:
            raise UnsupportedFormat(file=path, found=error.found, supported=error.supported) from error
        except (CorruptData, sqlite3.DatabaseError) as error:
            raise CorruptData(file=path, offset_bytes=0, reason=str(error)) from error

    def _taken(self, catalog: Catalog) -> dict[str, _Kept]:
        last_seqs, floors = catalog.last_seqs(), catalog.floors()
        found = {}
        for row in catalog.channels():
            if not self._options.matches(row.name):
                continue
            end_seq = max(last_seqs.get(row.channel_id, 0) + 1, row.next_seq)
            floor = floors.get(row.channel_id, 1)
            facts = ChannelFacts(row.name, max(catalog.first_seq(row.channel_id) or end_seq, floor), end_seq)
            parts = catalog.gone(row.channel_id)
            found[row.name] = _Kept(
                facts=facts,
                schema=row.schema,
                skipped=[(first, last) for first, last, reason in parts if reason == "skipped"],
                segments=[_ref(row.name, segment) for segment in catalog.segments(row.channel_id)],
                closed_off=floor == end_seq > 1,
            )
        return found


@contextmanager
def open_file(directory: Path, segment: SegmentRef) -> Iterator[SegmentReader]:
    """A segment of the store in `directory`, proven by its checksum."""
    path = directory / CHANNELS_DIR / segment.channel / segment_file_name(segment.number)
    try:
        file = LocalFilesystem().open(path, Mode.READ)
    except FileNotFoundError:
        if segment.remote:
            raise OnlyInTier(channel=segment.channel, segment_seq=segment.number) from None
        raise
    try:
        with SegmentReader.open(file, expected_crc32c=segment.crc32c) as reader:
            yield reader
    finally:
        file.close()


def _stamp(path: Path) -> _Stamp:
    """Changes whenever the database or its log does."""
    found = []
    for name in (path.name, f"{path.name}-wal"):
        with suppress(FileNotFoundError):
            facts = path.with_name(name).stat()
            found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
    return tuple(found)


def _ref(channel: str, segment: PublishedSegment) -> SegmentRef:
    meta = segment.meta
    return SegmentRef(
        channel=channel,
        number=meta.segment_seq,
        first_seq=meta.first_seq,
        last_seq=meta.last_seq,
        size_bytes=segment.size_bytes,
        crc32c=segment.crc32c,
        first_committed_id=meta.first_committed_id,
        last_ingested_at_ns=meta.last_ingested_at_ns,
        last_committed_id=meta.last_committed_id,
        first_ingested_at_ns=meta.first_ingested_at_ns,
        first_event_time_ns=meta.first_event_time_ns,
        last_event_time_ns=meta.last_event_time_ns,
        event_time_column=meta.event_time_column or "",
        remote=segment.remote,
    )
