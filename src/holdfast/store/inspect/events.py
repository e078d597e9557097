"""The events of a store that is only looked at: what is in segments, and what is in the log only.

Promise: nothing in the directory is written, created, removed or locked, whatever state it is in. The log and the
catalog are copied and the copies are read; segments are mapped from where they are, and compared with their checksums.
So a store with a damaged place can be read beside it, and nothing that `repair` may need is lost. A store that another
process has open may be read too: the answer is then a recent picture.

    1. log        copied first: what leaves it meanwhile is in the catalog by then, and what is in both counts once
    2. catalog    copied, and the copy opened
    3. tail       the events of the log that are not published, with the bytes it refers to; a torn end of the last
                  file is left out, any other flaw is `CorruptData`, unless somebody is writing there
    4. reader     the one of the store, on these

A picture may be out of date when its segments are read: what was evicted or put together since is missing then. Who
reads all at once takes another picture (`reading.py`).
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.config import StoreConfig
from holdfast.disk import records
from holdfast.disk.appendlog import LogFile
from holdfast.disk.local import LocalFilesystem
from holdfast.disk.openfiles import OpenFiles
from holdfast.errors import BadRequest, CorruptData, Locked, UnsupportedFormat
from holdfast.store.catalog import CATALOG_NAME, Catalog, segment_file_name
from holdfast.store.channels import Channel, ChannelTable
from holdfast.store.ground import CHANNELS_DIR, LOCK_NAME, Ground
from holdfast.store.inspect.catalogs import catalog_images
from holdfast.store.inspect.copies import read_log_copy
from holdfast.store.inspect.directory import list_store, lock_holder
from holdfast.store.inspect.logs import MAKES_NO_SENSE
from holdfast.store.limits import LimitsTree
from holdfast.store.reading import Position, Reader
from holdfast.store.retention.timekeeping import TrustedTime
from holdfast.store.tail import Tail
from holdfast.store.units import Chunk, frame_offsets, make_run
from holdfast.store.wal.codec import (
    KIND_FLOORS,
    KIND_FRAME,
    KIND_SCHEMA,
    FrameRecord,
    decode_floors,
    decode_frame,
    decode_schema_note,
)
from holdfast.store.wal.log import SchemaVersion
from holdfast.store.wal.references import ReferredBytes, Settlement

OPEN_FILES_MAX = 64
"""Segments that are open at once; they stay mapped for as long as their batches are held."""


class StoreEvents:
    """The channels of a picture, and their events. Used by one thread."""

    def __init__(self, channels: ChannelTable, reader: Reader) -> None:
        self._channels = channels
        self._reader = reader

    def channels(self) -> list[str]:
        """Names of all channels, sorted."""
        return sorted(channel.name for channel in self._channels if not channel.is_closed_off)

    def schema(self, channel: str) -> pa.Schema:
        """The channel's schema of the picture."""
        version = self._channels.find(channel).version
        return version.schema if version is not None else pa.schema([])

    def read(
        self,
        channel: str,
        *,
        start: Position = "first",
        end: Position | None = None,
        columns: Sequence[str] | None = None,
        system: Sequence[str] = (),
    ) -> Iterator[pa.RecordBatch]:
        """As `Store.read`."""
        return self._reader.read(self._channels.find(channel), start=start, end=end, columns=columns, system=system)


def is_open(directory: Path) -> bool:
    """Whether a process has the store open."""
    return lock_holder(LocalFilesystem(), directory) is not None


@contextmanager
def store_events(directory: Path) -> Iterator[StoreEvents]:
    """Take a picture; `BadRequest` if there is no store. Batches stay readable after the block.

    `Locked` for the process that has the store open: it has `Store.read`, and must not open the catalog twice.
    """
    filesystem = LocalFilesystem()
    if not directory.is_dir():
        raise BadRequest(f"{directory} is not a store: there is no such directory; give that of a store")
    files = list_store(filesystem, directory)
    holder_pid = lock_holder(filesystem, directory)
    if holder_pid == os.getpid():
        raise Locked(file=directory / LOCK_NAME, holder_pid=holder_pid)
    found = _log_files(files.logs, live=holder_pid is not None)
    config, clock = StoreConfig(), SystemClock()
    with tempfile.TemporaryDirectory(prefix="holdfast-catalog-") as folder:
        catalog = _copied_catalog(filesystem, directory / CATALOG_NAME, Path(folder))
        try:
            birth_seq = int(catalog.meta("birth_seq") or 1)
            channels = ChannelTable(LimitsTree(config), channels_max=0, birth_seq=birth_seq)
            _take_catalog(catalog, channels, directory)
            replay = _Replay(channels, ReferredBytes(filesystem, directory / CHANNELS_DIR))
            replay.files(found, from_position=catalog.cursor("wal") or 0)
            tail = Tail(config, clock)
            tail.restore(replay.chunks, wal_bytes=0, now_ns=clock.wall_ns())
            time = TrustedTime(clock, last_known_ns=0)
            store_id = catalog.meta("store_id") or b""
            ground = Ground(filesystem, directory, config, clock, time, store_id, catalog, channels, tail)
            open_files = OpenFiles(filesystem, OPEN_FILES_MAX)
            try:
                yield StoreEvents(channels, Reader(ground, open_files))
            finally:
                open_files.close()
        except sqlite3.DatabaseError as error:
            raise CorruptData(file=directory / CATALOG_NAME, offset_bytes=0, reason=str(error)) from error
        finally:
            catalog.close()


# -- catalog --------------------------------------------------------------------------------------------------------


def _copied_catalog(filesystem: LocalFilesystem, path: Path, folder: Path) -> Catalog:
    try:
        images = catalog_images(filesystem, path)
    except FileNotFoundError:
        raise CorruptData(file=path, offset_bytes=0, reason="the catalog is missing") from None
    for name, image in images.items():
        (folder / name).write_bytes(image)
    try:
        return Catalog(filesystem, folder)
    except UnsupportedFormat as error:
        raise UnsupportedFormat(file=path, found=error.found, supported=error.supported) from error
    except (CorruptData, sqlite3.DatabaseError) as error:
        reason = error.reason if isinstance(error, CorruptData) else str(error)
        raise CorruptData(file=path, offset_bytes=0, reason=reason) from error


def _take_catalog(catalog: Catalog, channels: ChannelTable, directory: Path) -> None:
    """Channels as a start takes them. Segments that may be in the tier only are local if their files are there."""
    last_seqs, floors = catalog.last_seqs(), catalog.floors()
    for row in catalog.channels():
        channel = channels.restore(row.name, row.channel_id)
        channel.first_seq = floors.get(row.channel_id, 1)
        channel.published_seq = max(last_seqs.get(row.channel_id, 0), row.next_seq - 1)
        channel.next_seq = channel.published_seq + 1
        channels.adopt_schema(channel, pa.ipc.read_schema(pa.py_buffer(row.schema)))
    remote = set(catalog.remote())
    here = [
        segment_seq
        for channel_id, segment_seq, size_bytes in (catalog.segment_sizes() if remote else ())
        if segment_seq in remote and _size_of(directory, channels.by_id(channel_id), segment_seq) == size_bytes
    ]
    catalog.regain(here)


def _size_of(directory: Path, channel: Channel, segment_seq: int) -> int:
    try:
        return (directory / CHANNELS_DIR / channel.name / segment_file_name(segment_seq)).stat().st_size
    except FileNotFoundError:
        return -1


# -- log ------------------------------------------------------------------------------------------------------------


def _log_files(paths: Sequence[Path], *, live: bool) -> list[LogFile]:
    found = []
    for path in paths:
        with suppress(FileNotFoundError):  # trimmed while we looked: the catalog has it by now
            found.append(read_log_copy(LocalFilesystem(), path, last=path == paths[-1]))
    for file, following in [*pairwise(found), *((last, None) for last in found[-1:])]:
        flaw = file.flaw
        if flaw is not None and not flaw.torn and not (live and following is None):
            dump = records.dump(file.buffer, offset=flaw.offset_bytes)
            raise CorruptData(file=file.path, offset_bytes=flaw.offset_bytes, reason=flaw.reason, dump=dump)
        if following is not None and following.header.start_position != file.end_position:
            reason = (
                f"begins at position {following.header.start_position}, the file before ends at {file.end_position}"
            )
            raise CorruptData(file=following.path, offset_bytes=0, reason=reason)
    return found


class _Replay:
    """Turns records into the events that are not published, in order."""

    def __init__(self, channels: ChannelTable, referred: ReferredBytes) -> None:
        self._channels = channels
        self._referred = referred
        self._versions: dict[int, SchemaVersion] = {}
        self.chunks: list[tuple[Channel, Chunk]] = []

    def files(self, found: Sequence[LogFile], *, from_position: int) -> None:
        """Replay those that reach over a position."""
        published = {int(channel.id): channel.published_seq for channel in self._channels}
        newest = max((file.header.number for file in found), default=0)
        settlement = Settlement(
            self._referred, is_needed=lambda number, last_seq: last_seq > published.get(number, 0), newest=newest
        )
        for file in found:
            if file.end_position > from_position or file.header.number == newest:
                self._file(settlement.settle(file))

    def _file(self, found: LogFile) -> None:
        self._versions = {}
        for record in found.records:
            try:
                if record.kind == KIND_FLOORS:
                    for channel_id, name, next_seq in decode_floors(record.payload).channels:
                        channel = self._channels.restore(name, channel_id)
                        channel.next_seq = max(channel.next_seq, next_seq)
                elif record.kind == KIND_SCHEMA:
                    self._schema(record.payload)
                elif record.kind == KIND_FRAME:
                    self._frame(decode_frame(record.payload), found.header.number)
            except MAKES_NO_SENSE as error:
                reason = f"the record is intact but makes no sense: {error!r}"
                offset_bytes = record.position - found.header.start_position
                raise CorruptData(file=found.path, offset_bytes=offset_bytes, reason=reason) from error

    def _schema(self, payload: pa.Buffer) -> None:
        note = decode_schema_note(payload)
        channel = self._channels.restore(note.channel, note.channel_id)
        schema = pa.ipc.read_schema(pa.py_buffer(note.schema))
        version = self._channels.adopt_schema(channel, schema)
        exact = version.schema.equals(schema)
        self._versions[note.schema_id] = version if exact else self._channels.new_version(channel, schema)

    def _frame(self, frame: FrameRecord, wal_file: int) -> None:
        committed_id = frame.first_committed_id
        for entry, offset in zip(frame.entries, frame_offsets(frame.entries), strict=True):
            channel, rows = self._channels.by_id(entry.channel_id), entry.payload.rows
            if entry.first_seq + rows - 1 > channel.published_seq:
                if entry.first_seq != channel.next_seq:
                    expected = f"expected {channel.next_seq}"
                    raise ValueError(f"channel {channel.name!r} goes on at seq {entry.first_seq}, {expected}")
                run = make_run(
                    entry.first_seq,
                    rows,
                    committed_id=committed_id,
                    ingested_at_ns=frame.ingested_at_ns,
                    identity=frame.identity,
                    partitions=entry.options.partitions,
                    frame_offset=offset,
                )
                payload = self._referred.payload(channel.name, entry.payload, verify=False)  # it was, when settled
                self.chunks.append((channel, Chunk(run, payload, self._versions[entry.schema_id], wal_file)))
                channel.next_seq = entry.first_seq + rows
            committed_id += rows
