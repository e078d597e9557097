"""Everything that is left of a store, as values: what repair decides from.

Promise: nothing is written, and the same directory gives the same survey. One log file and one segment are in memory at
a time. What cannot be read is described, not raised; only what a later version wrote is refused (`UnsupportedFormat`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from holdfast.disk.appendlog import log_path
from holdfast.disk.filesystem import Filesystem
from holdfast.errors import CorruptData, UnsupportedFormat
from holdfast.model.names import DEAD_SUFFIX
from holdfast.store.catalog import CATALOG_NAME, VERSION, Loss
from holdfast.store.ground import ACK_DIR, CHANNELS_DIR, WAL_DIR
from holdfast.store.inspect.catalogs import CatalogContents, load_catalog
from holdfast.store.inspect.copies import read_log_copy
from holdfast.store.inspect.directory import StoreFiles, catalog_of, list_store, segment_path
from holdfast.store.repair.chain import Problem, log_problems
from holdfast.store.repair.frames import Lexicon, LogWalk
from holdfast.store.repair.oldrows import OldRows, old_rows
from holdfast.store.repair.readers import gather_readers
from holdfast.store.repair.salvage import FoundLog, find_log, log_number
from holdfast.store.repair.segments import FoundSegment, find_segment, remote_segment, segment_pieces
from holdfast.store.subscribers.acklog import ACK_NAME
from holdfast.store.subscribers.notes import Snapshot
from holdfast.store.wal.log import WAL_NAME
from holdfast.store.wal.references import ReferredBytes, Settlement

NEW_CATALOG_NAME = CATALOG_NAME + ".new"
"""A rebuilt catalog until it takes its place. If there is no other, a repair was interrupted just then."""

NEWEST_MISSING = "is missing: the log ends before what is published"

UNFINISHED_KEY = "repair"
"""In the catalog's meta table."""

DEAD_ID_COLUMN = "dead_id"
"""The id of a dead letter (`subscribers/desk.py`)."""

Span = tuple[str, int, int]
"""(channel, first seq, last seq)"""


@dataclass(frozen=True, slots=True)
class Unfinished:
    """Where the write-ahead log goes on after a repair, as its catalog says until there is such a file."""

    position: int
    number: int
    committed_id: int

    def encode(self) -> bytes:
        """The value in the catalog."""
        return f"{self.position}:{self.number}:{self.committed_id}".encode()

    @classmethod
    def read(cls, contents: CatalogContents, logs: Sequence[Path]) -> Unfinished | None:
        """None once the file was begun, or if a start went on without it."""
        parts = contents.meta.get(UNFINISHED_KEY, b"").decode(errors="replace").split(":")
        if len(parts) != 3 or not all(part.isdigit() for part in parts):
            return None
        noted = cls(*map(int, parts))
        begun = any(log_number(path) >= noted.number for path in logs)
        return None if begun or contents.number("wal_cursor") != noted.position else noted


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found."""

    files: StoreFiles
    contents: CatalogContents
    distrusted: bool
    """The catalog is damaged, missing, or shall not be believed as a whole."""
    interrupted: bool
    """An earlier repair was interrupted while its catalog took the place of the old one."""
    store_id: bytes
    gone: dict[int, list[tuple[int, int, str]]]
    doomed: dict[int, int]
    floors: dict[int, int]
    partition_floors: tuple[tuple[int, str, int], ...]
    losses: tuple[Loss, ...]
    readers: Snapshot
    wal: tuple[FoundLog, ...]
    wal_problems: tuple[Problem, ...]
    ack: tuple[FoundLog, ...]
    ack_problems: tuple[Problem, ...]
    lexicon: Lexicon
    walk: LogWalk
    log_spans: tuple[Span, ...]
    """What the log holds, in its order."""
    published: dict[int, int]
    """Channel id to the next seq after everything published, evicted or not."""
    segments: tuple[FoundSegment, ...]
    """Files and rows, without the evicted ones that the next start deletes."""
    parts: dict[Path, tuple[Span, ...]]
    """What can still be read of each segment that is damaged."""
    signals: dict[str, str]
    """What each channel carries, as its newest segment says."""
    unfinished: Unfinished | None
    """A repair whose catalog is in place and whose logs are not begun yet."""

    @property
    def directory(self) -> Path:
        """Where the store is."""
        return self.files.directory

    def id_column(self, channel: str) -> str:
        """The column with the events' own ids, where anything tells; "" where there is none."""
        return DEAD_ID_COLUMN if channel.endswith(DEAD_SUFFIX) else self.lexicon.id_columns.get(channel, "")

    @property
    def catalog_path(self) -> Path:
        """The catalog that was read."""
        return self.directory / (NEW_CATALOG_NAME if self.interrupted else CATALOG_NAME)


def survey_store(
    filesystem: Filesystem, directory: Path, *, distrust: bool = False, prove_segments: bool = True
) -> Survey:
    """Look at a whole store. `distrust` believes only single rows of the catalog; the caller holds the lock.

    Without `prove_segments` a published segment of the right size is taken for intact.
    """
    files = list_store(filesystem, directory)
    contents, interrupted = _catalog(filesystem, files)
    version = contents.number("version") or VERSION
    if version > VERSION:
        raise UnsupportedFormat(file=contents.path, found=version, supported=VERSION)
    distrust = distrust or bool(contents.damage) or contents.store_id is None
    store_id = contents.store_id or _store_id(filesystem, files)
    path = directory / (NEW_CATALOG_NAME if interrupted else CATALOG_NAME)
    with old_rows(filesystem, path, contents) as rows:
        doomed = {} if distrust else rows.doomed  # a start deletes what they name
        segments = tuple(_segments(filesystem, files, contents, store_id=store_id, doomed=doomed, prove=prove_segments))
        logs = _Logs(filesystem, files, store_id)
        logs.read_wal(segments, contents, complete=not distrust)
        logs.read_acks(rows, complete=not distrust)
        return Survey(
            files=files,
            contents=contents,
            distrusted=distrust,
            interrupted=interrupted,
            store_id=store_id,
            gone=rows.gone,
            doomed=doomed,
            floors=rows.floors,
            partition_floors=tuple(rows.partition_floors),
            losses=tuple(rows.losses),
            readers=logs.readers,
            wal=logs.wal,
            wal_problems=logs.problems(WAL_NAME, None if distrust else contents.number("wal_cursor")),
            ack=logs.ack,
            ack_problems=logs.problems(ACK_NAME, None if distrust else contents.number("ack_cursor")),
            lexicon=logs.lexicon,
            walk=logs.walk,
            log_spans=tuple(logs.spans),
            published=logs.published,
            segments=segments,
            parts={found.path: tuple(_spans(filesystem, found)) for found in segments if not found.intact},
            signals=_signals(segments),
            unfinished=Unfinished.read(contents, files.logs),
        )


def _catalog(filesystem: Filesystem, files: StoreFiles) -> tuple[CatalogContents, bool]:
    """The catalog, and whether it is the new one of an interrupted repair."""
    new = files.directory / NEW_CATALOG_NAME
    if not files.has_catalog and filesystem.exists(new):
        contents = load_catalog(filesystem, new)
        if contents.store_id is not None and not contents.damage:
            return contents, True
    return catalog_of(filesystem, files), False


def _store_id(filesystem: Filesystem, files: StoreFiles) -> bytes:
    """Whose store this is, when the catalog does not say: what most log files say, else most segments."""
    votes: Counter[bytes] = Counter()
    for name, paths in ((WAL_NAME, files.logs), (ACK_NAME, files.ack_logs)):
        for found in found_logs(filesystem, paths, name=name, store_id=None):
            if found.header is not None and not found.header_damage:
                votes[found.header.store_id] += 1
    for path in files.segments if not votes else ():
        meta = find_segment(filesystem, path, row=None, store_id=None).meta
        if meta is not None:
            votes[bytes.fromhex(meta.store_id)] += 1
    return votes.most_common(1)[0][0] if votes else bytes(16)


# ------------------------------------------------------------------------------------------------------------- segments


def _segments(
    filesystem: Filesystem,
    files: StoreFiles,
    contents: CatalogContents,
    *,
    store_id: bytes,
    doomed: dict[int, int],
    prove: bool,
) -> Iterator[FoundSegment]:
    rows = {segment_path(files.directory, contents, row): row for row in contents.segments}
    for path in sorted({*rows, *files.segments}):
        row = rows.get(path)
        if row is not None and row.meta.segment_seq in contents.remote and not filesystem.exists(path):
            yield remote_segment(path, row, contents.segment_slots.get(row.meta.segment_seq, {}))
        elif row is not None or int(path.stem.removeprefix("seg-")) not in doomed:
            yield find_segment(filesystem, path, row=row, store_id=store_id, proven=not prove)


def _signals(segments: Sequence[FoundSegment]) -> dict[str, str]:
    metas = [found.meta for found in segments if found.meta is not None]
    return {meta.channel: meta.signal for meta in sorted(metas, key=lambda meta: meta.last_seq)}


def _spans(filesystem: Filesystem, found: FoundSegment) -> Iterator[Span]:
    for piece in segment_pieces(filesystem, found):
        yield piece.channel, piece.first_seq, piece.last_seq


# ----------------------------------------------------------------------------------------------------------------- logs


def found_logs(
    filesystem: Filesystem, paths: Sequence[Path], *, name: str, store_id: bytes | None
) -> Iterator[FoundLog]:
    """The files of a log, oldest first, one in memory at a time."""
    for path in paths:
        yield find_log(filesystem, path, name=name, store_id=store_id, last=path == paths[-1])


class _Logs:
    """Both logs, read through."""

    def __init__(self, filesystem: Filesystem, files: StoreFiles, store_id: bytes) -> None:
        self._filesystem = filesystem
        self._files = files
        self._store_id = store_id
        self.lexicon = Lexicon()
        self._referred = ReferredBytes(filesystem, files.directory / CHANNELS_DIR)
        self.walk = LogWalk(self.lexicon, self._referred, published={}, complete=False)
        self.wal: tuple[FoundLog, ...] = ()
        self.ack: tuple[FoundLog, ...] = ()
        self.readers = Snapshot(1, (), ())
        self.published: dict[int, int] = {}
        self.spans: list[Span] = []

    def read_acks(self, rows: OldRows, *, complete: bool) -> None:
        """Who reads, and how far. The files are small: a checkpoint every few seconds lets them go."""
        found = list(found_logs(self._filesystem, self._files.ack_logs, name=ACK_NAME, store_id=self._store_id))
        self.readers = gather_readers(found, rows.readers, complete=complete, names=self.lexicon.names)
        self.ack = tuple(item.without_records() for item in found)

    def read_wal(self, segments: Sequence[FoundSegment], contents: CatalogContents, *, complete: bool) -> None:
        """Names and schemas first, then events."""
        for schema_of in sorted(segments, key=lambda found: found.meta.last_seq if found.meta else 0):
            if schema_of.schema is not None and schema_of.meta is not None:
                self.lexicon.learn_schema(schema_of.meta.channel, schema_of.schema)
        for published in contents.segments:
            self.lexicon.name(published.channel_id, published.meta.channel)
        for row in contents.channels.values():
            self.lexicon.name(row.channel_id, row.name)
            self.lexicon.learn_schema(row.name, pa.ipc.read_schema(pa.py_buffer(row.schema)))
        for found in self._wal_files():
            self.lexicon.learn(found)
        self.published = _published_seqs(contents, segments, self.lexicon, complete=complete)
        birth_seq = contents.number("birth_seq") or 1
        self.walk = LogWalk(
            self.lexicon, self._referred, published=self.published, complete=complete, birth_seq=birth_seq
        )
        light = []
        for found in self._wal_files():
            self.spans += [(piece.channel, piece.first_seq, piece.last_seq) for piece in self.walk.file(found)]
            light.append(found.without_records())
        self.wal = tuple(light)

    def _wal_files(self) -> Iterator[FoundLog]:
        return found_logs(self._filesystem, self._files.logs, name=WAL_NAME, store_id=self._store_id)

    def problems(self, name: str, cursor: int | None) -> tuple[Problem, ...]:
        """What keeps a start from reading that log."""
        files, folder = (self.wal, WAL_DIR) if name == WAL_NAME else (self.ack, ACK_DIR)
        problems = log_problems(files, self._files.directory / folder, name=name, cursor=cursor)
        if name == WAL_NAME:
            problems += self._behind()
            problems += self._references()
        return tuple(problems)

    def _references(self) -> Iterator[Problem]:
        """Bytes that the log refers to and that are not there, or changed."""
        published = self.published
        settlement = Settlement(
            self._referred,
            is_needed=lambda channel_id, last_seq: last_seq >= published.get(channel_id, 1),
            newest=max([found.number for found in self.wal], default=0),
        )
        for path in self._files.logs:
            try:
                settlement.settle(read_log_copy(self._filesystem, path, last=path == self._files.logs[-1]))
            except (CorruptData, UnsupportedFormat) as error:
                if isinstance(error, CorruptData) and error.file != path:
                    yield Problem(error.file, error.offset_bytes, error.reason, dump=error.dump)

    def _behind(self) -> Iterator[Problem]:
        """The log ends before the segments do: its newest file is gone. A weak log may lose its end."""
        if not self.wal or any(found.weak for found in self.wal) or self.wal[-1].ends_in_hole:
            return
        last = self.wal[-1]
        for channel_id, next_seq in self.walk.told.items():
            if channel_id not in self.walk.silent and next_seq < self.published.get(channel_id, 1):
                yield Problem(log_path(last.path.parent, WAL_NAME, last.number + 1), 0, NEWEST_MISSING)
                return


def _published_seqs(
    contents: CatalogContents, segments: Sequence[FoundSegment], lexicon: Lexicon, *, complete: bool
) -> dict[int, int]:
    """Channel id to the next seq after everything published; without a catalog, after everything in a segment."""
    published = {row.channel_id: row.next_seq for row in contents.channels.values()}
    numbers = {name: number for number, name in lexicon.names.items()}
    for found in segments:
        meta = found.row.meta if found.row is not None else found.meta
        channel_id = found.row.channel_id if found.row is not None else numbers.get(meta.channel if meta else "")
        if meta is not None and channel_id is not None and (found.row is not None or not complete):
            published[channel_id] = max(published.get(channel_id, 1), meta.last_seq + 1)
    return published
