"""Reading events back: across segments and the part that is only in the log, without a gap or a repeat at the border.

A read takes a picture first: the chunks in memory and the seq where they begin. Everything below that seq is in
published segments, because a unit leaves memory only after its segment is in the catalog. So the border is one number,
and what is published while the read runs changes nothing.

A segment's bytes are checked against the catalog's CRC32C the first time this process opens it, before Arrow sees them
(G9), unless `verify_crc` is off; then only the structure of each batch is. Batches from segments point into the mapped
file; nothing is copied unless an older schema must be widened.

A segment that is only in the tier is read from there (`copies.py`), as far as it is wanted. That may wait for a
network, so whoever must not wait asks `is_here` first.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pyarrow as pa

from holdfast.clock import wall_ns_of
from holdfast.disk.filesystem import File
from holdfast.disk.openfiles import OpenFiles
from holdfast.errors import BadRequest, CorruptData, DamagedObject
from holdfast.model.evolution import conform
from holdfast.model.schema import SchemaMode
from holdfast.store.catalog import PublishedSegment
from holdfast.store.channels import Channel
from holdfast.store.copies import OPENINGS_MAX, Copies
from holdfast.store.ground import CACHE_DIR, Ground
from holdfast.store.segments.reader import SegmentReader
from holdfast.store.segments.runs import SYSTEM_COLUMNS, RunTable
from holdfast.store.units import Chunk
from holdfast.store.wal.codec import decode_pieces

Position = int | str | datetime
VERIFIED_MAX = 100_000
"""Segments remembered as checked by this process; older ones are checked again."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive events of one channel, with what the store knows of them."""

    first_seq: int
    batch: pa.RecordBatch
    runs: RunTable


class Reader:
    """Reads one store. Thread-safe; every call to `read` is a picture of its own."""

    def __init__(self, ground: Ground, open_files: OpenFiles) -> None:
        self._directory = ground.channels_directory
        self._open_files = open_files
        self._catalog = ground.catalog
        self._tail = ground.tail
        self._verify = ground.config.verify_crc
        self._verified: OrderedDict[int, None] = OrderedDict()
        self._damaged: dict[int, CorruptData] = {}
        self._lock = threading.Lock()
        self._healing = threading.Lock()
        self._source = ground.source
        self.copies = Copies(
            ground.filesystem,
            ground.directory / CACHE_DIR,
            catalog=ground.catalog,
            source=ground.source,
            open_files=open_files,
        )

    def read(
        self,
        channel: Channel,
        *,
        start: Position,
        end: Position | None,
        columns: Sequence[str] | None,
        system: Sequence[str],
    ) -> Iterator[pa.RecordBatch]:
        """Batches of `start..end`, in the channel's schema of now. The picture is taken by this call."""
        _check_system(system)
        border, chunks = self._tail.snapshot(channel)
        schema = self._schema(channel, columns)  # after the picture: it holds whatever is in there
        first = max(self._resolve(channel, start, chunks, what="start"), channel.first_seq)
        last = chunks_end(chunks, border) if end is None else self._resolve_end(channel, end, chunks)
        pieces = self._pieces(channel, first, last, border=border, chunks=chunks, columns=_stored(columns))
        return _batches(pieces, channel.name, schema, system)

    def read_committed(
        self, channels: Sequence[Channel], *, first: int, last: int
    ) -> Iterator[tuple[str, pa.RecordBatch]]:
        """Events of all channels in commit order, a frame's part at a time. One picture of all: frames are whole."""
        pictures = self._tail.snapshots(channels)
        streams = [
            self._by_committed_id(channel, picture, first, last)
            for channel, picture in zip(channels, pictures, strict=True)
        ]
        return ((name, batch) for _, name, batch in heapq.merge(*streams, key=lambda item: item[0]))

    def run_table(self, segment: PublishedSegment, channel: str) -> RunTable | None:
        """Who wrote what in a segment; None if it was evicted since the catalog was asked."""
        reader = self._open(channel, segment, None)
        return reader.runs if reader is not None else None

    def check(self, segment: PublishedSegment) -> bool:
        """Compare a whole segment with its checksum, the first time in this process; False if it was evicted."""
        return self._open(segment.meta.channel, segment, (segment.meta.first_seq, segment.meta.last_seq)) is not None

    @contextmanager
    def lend(self, segment: PublishedSegment) -> Iterator[File]:
        """The file of a segment, or a copy of it, open for the length of a block also when it is evicted meanwhile.

        `FileNotFoundError` if it was evicted before.
        """
        with ExitStack() as held:
            yield self._lent(segment, held)

    def _lent(self, segment: PublishedSegment, held: ExitStack) -> File:
        try:
            if self.is_here(segment):
                return held.enter_context(self._open_files.use(self.segment_path(segment.meta.channel, segment)))
        except FileNotFoundError:
            if self.is_here(segment):
                raise
        return held.enter_context(self.copies.lend(segment))

    def is_here(self, segment: PublishedSegment) -> bool:
        """Whether a segment can be read without asking the tier for it."""
        return not self._catalog.is_remote(segment.meta.segment_seq)

    def readable_path(self, segment: PublishedSegment) -> Path:
        """Where a program that maps files finds a segment: its file, or a copy that is fetched now."""
        if self.is_here(segment):
            return self.segment_path(segment.meta.channel, segment)
        return self.copies.path(segment)

    def segment_batches(
        self, segment: PublishedSegment, channel: str, *, first_seq: int, last_seq: int
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Seq of the first row, and batch, of `first_seq..last_seq` of one segment; nothing if it was evicted."""
        reader = self._open(channel, segment, (first_seq, last_seq))
        if reader is not None:
            yield from reader.batches(first_seq=first_seq, last_seq=last_seq)

    # -- pieces -----------------------------------------------------------------------------------------------------

    def _pieces(
        self,
        channel: Channel,
        first: int,
        last: int,
        *,
        border: int,
        chunks: list[Chunk],
        columns: Callable[[pa.Schema], list[str] | None],
    ) -> Iterator[Piece]:
        position, end = first, min(last, border - 1)  # a segment may reach over the border: compaction put it there
        while (segment := self._first_holding(channel, position, end)) is not None:
            self._tail.check()
            reader = self._open(channel.name, segment, (position, end))
            if reader is None:
                continue  # evicted, or put together with others: the catalog has another answer now
            for seq, batch in reader.batches(first_seq=position, last_seq=end, columns=columns(reader.schema)):
                if not self._verify:
                    _check_structure(batch, self.segment_path(channel.name, segment))
                yield Piece(seq, batch, reader.runs)
            position = segment.meta.last_seq + 1
        for group in _groups(chunks):
            yield from self._tail_pieces(group, first, last, columns)

    def _first_holding(self, channel: Channel, first: int, last: int) -> PublishedSegment | None:
        """The first segment that holds any of these seqs. One at a time, since the cut may change meanwhile."""
        return self._catalog.segment_within(channel.id, (first, last), newest_first=False) if first <= last else None

    def _tail_pieces(
        self, group: list[Chunk], first: int, last: int, columns: Callable[[pa.Schema], list[str] | None]
    ) -> Iterator[Piece]:
        wanted = [
            chunk for chunk in group if chunk.run.first_seq <= last and chunk.run.first_seq + chunk.run.rows > first
        ]
        if not wanted:
            return
        runs = RunTable.from_runs([chunk.run for chunk in wanted])
        names = columns(wanted[0].version.schema)
        seq = wanted[0].run.first_seq
        for _, make in decode_pieces((chunk.payload for chunk in wanted), wanted[0].version.schema):
            batch = make()
            low, high = max(first, seq), min(last, seq + batch.num_rows - 1)
            if low <= high:
                part = batch.slice(low - seq, high - low + 1)
                yield Piece(low, part if names is None else part.select(names), runs)
            seq += batch.num_rows

    def _by_committed_id(
        self, channel: Channel, picture: tuple[int, list[Chunk]], first: int, last: int
    ) -> Iterator[tuple[int, str, pa.RecordBatch]]:
        border, chunks = picture
        schema = self._schema(channel, None)
        end = chunks_end(chunks, border)
        start = max(self._first_seq_committed(channel, first, chunks), channel.first_seq)
        for piece in self._pieces(channel, start, end, border=border, chunks=chunks, columns=lambda _schema: None):
            batch = piece.batch if schema is None else conform(piece.batch, schema, channel=channel.name)
            for run in piece.runs.overlapping(piece.first_seq, piece.first_seq + batch.num_rows - 1):
                shift = run.first_committed_id - run.first_seq
                low = max(first, piece.first_seq + shift, run.first_committed_id)
                high = min(last, piece.first_seq + batch.num_rows - 1 + shift, run.first_committed_id + run.rows - 1)
                if low <= high:
                    yield low, channel.name, batch.slice(low - shift - piece.first_seq, high - low + 1)

    def _first_seq_committed(self, channel: Channel, committed_id: int, chunks: list[Chunk]) -> int:
        seq = self._catalog.first_seq_reaching(channel.id, "last_committed_id", committed_id)
        return seq if seq is not None else (chunks[0].run.first_seq if chunks else 1)

    def _open(self, channel: str, segment: PublishedSegment, span: tuple[int, int] | None) -> SegmentReader | None:
        """The segment, checked and mapped, so that it stays readable; None if it was evicted meanwhile.

        `span` says which seqs are wanted, None that only runs are: of one that is in the tier no more is fetched.
        """
        for _ in range(OPENINGS_MAX):
            try:
                return self._open_once(channel, segment, span)
            except (FileNotFoundError, CorruptData, DamagedObject) as error:
                if self._catalog.segment(segment.meta.segment_seq) is None:
                    return None
                if isinstance(error, DamagedObject):
                    raise
                if self.is_here(segment) and not self.heal(segment):
                    raise
        return self._open_once(channel, segment, span)

    def _open_once(self, channel: str, segment: PublishedSegment, span: tuple[int, int] | None) -> SegmentReader:
        if self.is_here(segment):
            with self._open_files.use(self.segment_path(channel, segment)) as file:
                return self._reader(file, segment)
        return self.copies.open(segment, span)

    def heal(self, segment: PublishedSegment) -> bool:
        """Have a good copy put in place of a file that is missing or damaged; False if there is nowhere to get one."""
        if self._source is None:
            return False
        path = self.segment_path(segment.meta.channel, segment)
        with self._healing:
            if not self._source.fetch(segment, path):
                return False
            self._open_files.discard(path)
        self.judge(segment.meta.segment_seq, None)
        return True

    def _reader(self, file: File, segment: PublishedSegment) -> SegmentReader:
        number = segment.meta.segment_seq
        with self._lock:
            if number in self._damaged:
                raise self._damaged[number]
            verified = number in self._verified or not self._verify
        reader = SegmentReader.open(file, expected_crc32c=segment.crc32c, verified=verified)
        with self._lock:
            self._verified[number] = None
            if len(self._verified) > VERIFIED_MAX:
                self._verified.popitem(last=False)
        return reader

    def segment_path(self, channel: str, segment: PublishedSegment) -> Path:
        """Where a segment's file is."""
        return self._directory / channel / segment.file_name

    def judge(self, segment_seq: int, damage: CorruptData | None) -> None:
        """Somebody read a segment again: from now on readers are refused, or refused no longer."""
        with self._lock:
            self._verified.pop(segment_seq, None)
            self._damaged.pop(segment_seq, None)
            if damage is not None and self._verify:
                self._damaged[segment_seq] = damage

    # -- positions --------------------------------------------------------------------------------------------------

    def _schema(self, channel: Channel, columns: Sequence[str] | None) -> pa.Schema | None:
        """The schema every batch is brought to; None when each keeps its own."""
        if channel.version is None or channel.limits.schema_mode is SchemaMode.ANY:
            return None
        schema = channel.version.schema
        if columns is None:
            return schema
        unknown = [name for name in columns if name not in schema.names]
        if unknown:
            raise BadRequest(f"channel {channel.name!r} has no column {unknown[0]!r}; it has {', '.join(schema.names)}")
        return pa.schema([schema.field(name) for name in columns])

    def resolve(self, channel: Channel, position: Position) -> int:
        """A position as a seq, as of now."""
        _, chunks = self._tail.snapshot(channel)
        return self._resolve(channel, position, chunks, what="start")

    def _resolve(self, channel: Channel, position: Position, chunks: list[Chunk], *, what: str) -> int:
        if isinstance(position, datetime):
            return self._seq_at(channel, _as_ns(position), chunks)
        if position == "first":
            return 1
        if position == "last":
            return max(1, chunks_end(chunks, channel.published_seq + 1))
        if isinstance(position, int) and not isinstance(position, bool) and position >= 0:
            return max(1, position)
        raise BadRequest(f"{what}={position!r} is no position: a seq, an aware datetime, 'first' or 'last'")

    def _resolve_end(self, channel: Channel, end: Position, chunks: list[Chunk]) -> int:
        resolved = self._resolve(channel, end, chunks, what="end")
        if isinstance(end, datetime):
            return resolved - 1
        return 0 if end == 0 else resolved

    def _seq_at(self, channel: Channel, time_ns: int, chunks: list[Chunk]) -> int:
        """The first event that came in at or after a time."""
        while (seq := self._catalog.first_seq_reaching(channel.id, "last_ingested_at_ns", time_ns)) is not None:
            segment = next(self._catalog.segments(channel.id, first_seq=seq, last_seq=seq), None)
            runs = self.run_table(segment, channel.name) if segment is not None else None
            if runs is not None:
                return runs.first_seq_ingested_at(time_ns)
        found = next((chunk.run.first_seq for chunk in chunks if chunk.run.ingested_at_ns >= time_ns), None)
        return found if found is not None else chunks_end(chunks, channel.published_seq + 1) + 1


def _batches(
    pieces: Iterator[Piece], channel: str, schema: pa.Schema | None, system: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    for piece in pieces:
        batch = piece.batch if schema is None else conform(piece.batch, schema, channel=channel)
        yield with_system_columns(batch, piece, channel, system) if system else batch


def chunks_end(chunks: list[Chunk], border: int) -> int:
    """The last seq of a picture."""
    return chunks[-1].run.first_seq + chunks[-1].run.rows - 1 if chunks else border - 1


def _check_structure(batch: pa.RecordBatch, path: Path) -> None:
    """What is asked of bytes whose checksum nobody compared."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise CorruptData(file=path, offset_bytes=0, reason=f"a batch makes no sense: {error}") from error


def _groups(chunks: list[Chunk]) -> Iterator[list[Chunk]]:
    """Chunks in runs of one schema, without a jump in seq."""
    group: list[Chunk] = []
    for chunk in chunks:
        if group and (
            group[-1].version is not chunk.version
            or group[-1].run.first_seq + group[-1].run.rows != chunk.run.first_seq
        ):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


def _stored(columns: Sequence[str] | None) -> Callable[[pa.Schema], list[str] | None]:
    """Which of the wanted columns a segment has; the others are filled with nulls."""
    if columns is None:
        return lambda _stored_schema: None
    return lambda stored_schema: [name for name in columns if name in stored_schema.names]


def _check_system(system: Sequence[str]) -> None:
    unknown = [name for name in system if name not in SYSTEM_COLUMNS]
    if unknown:
        raise BadRequest(f"{unknown[0]!r} is no system column; there are {', '.join(SYSTEM_COLUMNS)}")


def _as_ns(moment: datetime) -> int:
    if moment.tzinfo is None:
        raise BadRequest(f"time {moment.isoformat()} has no time zone; pass an aware datetime")
    return wall_ns_of(moment)


def with_system_columns(batch: pa.RecordBatch, piece: Piece, channel: str, names: Sequence[str]) -> pa.RecordBatch:
    """The batch with the store's own columns appended."""
    extra = piece.runs.system_columns(names, channel=channel, first_seq=piece.first_seq, rows=batch.num_rows)
    fields = [*batch.schema, *(pa.field(name, array.type) for name, array in extra.items())]
    return pa.RecordBatch.from_arrays([*batch.columns, *extra.values()], schema=pa.schema(fields))
