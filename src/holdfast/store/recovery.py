"""Opening a store after any kind of end: what is checked, in which order, and what is mended.

    0. consent     `truncate_bad_tail` cuts log files that end too early, before anything else (`repair/truncate.py`)
    1. catalog     the index opens, its rows match their checksums; a store without a catalog but with data is refused
    2. segments    every published segment is there and has its size, or is noted as being in the tier only; a file that
                   is found with such a note is a local copy again; unfinished files (.tmp) are removed
    3. log         read from the catalog's position on, with the bytes it refers to (`wal/references.py`); the torn tail
                   of the last file is cut and reported, an unclean last file is replaced by a copy on disk; anything
                   else refuses with file, byte and a dump
    4. orphans     segment files the catalog does not know are removed if the log holds their events; otherwise refused.
                   So are files that were being filled, unless the log refers to them for events that are not published
    5. numbers     next seq, committed_id and channel id are above everything ever given out; after an unclean stop of a
                   weak flush policy as many numbers are skipped as answers may have been given without a sync
    6. dedup       slots and GUIDs from the log; GUIDs of the window also from segments

Each step logs one line. The result is a value; `Store` starts its threads from it.
"""

from __future__ import annotations

import logging
import os
import re
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace

from holdfast.clock import Clock
from holdfast.config import StoreConfig
from holdfast.disk.appendlog import KIND_CLOSE, LogFile, LogSpec, Mended, read_headers, recover_log
from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.disk.records import Record
from holdfast.errors import CorruptData
from holdfast.model.frame import Durability, FrameReceipt, Guid, Receipt, SlotFrame
from holdfast.model.positions import CommittedId, Seq
from holdfast.store.catalog import CATALOG_NAME, Catalog, segment_file_name
from holdfast.store.channels import Channel, ChannelTable
from holdfast.store.committer import UNSYNCED_EVENTS_MAX
from holdfast.store.event_ids import digests_of
from holdfast.store.ground import CHANNELS_DIR, WAL_DIR
from holdfast.store.limits import LimitsTree
from holdfast.store.repair.truncate import Truncation, discard_leftover, renew_consent, truncate_ended_logs
from holdfast.store.segments.growing import GROWING_SUFFIX, growing_name
from holdfast.store.segments.reader import SegmentReader
from holdfast.store.source import SegmentSource
from holdfast.store.units import Chunk, SpentFile, frame_offsets, make_run
from holdfast.store.wal.codec import (
    KIND_FLOORS,
    KIND_FRAME,
    KIND_SCHEMA,
    EntryPlace,
    FrameRecord,
    decode_floors,
    decode_frame,
    decode_schema_note,
)
from holdfast.store.wal.log import WAL_NAME, SchemaVersion
from holdfast.store.wal.references import ReferredBytes, Settlement
from holdfast.telemetry import event

UNVERIFIED = "verify_crc is off: damaged bytes in logs and segments are delivered as events, and copied as sound ones"
_SEGMENT_NAME = re.compile(r"seg-(\d+)\.arrow")


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening found and did."""

    created: bool
    segments: int
    wal_files: int
    wal_records: int
    recovered_frames: int
    recovered_events: int
    cut: Mended | None
    removed: tuple[Path, ...]
    skipped_numbers: int
    acks_cut: Mended | None = None
    """The torn tail of the acknowledgement log, if it had one."""
    acks_damage: CorruptData | None = None
    """Why the acknowledgement log was set aside, if it was."""
    truncated: Truncation | None = None
    """What `truncate_bad_tail` cut."""
    verified: bool = True
    """False with `verify_crc: no`: what was read is not known to be what was written."""


@dataclass(slots=True)
class Recovered:
    """Everything a store starts from."""

    store_id: bytes
    catalog: Catalog
    channels: ChannelTable
    chunks: list[tuple[Channel, Chunk]] = field(default_factory=list)
    frames: list[tuple[SlotFrame | Guid, FrameReceipt, int]] = field(default_factory=list)
    """(identity, receipt, ingested at) of frames in the log, oldest first."""
    next_committed_id: int = 1
    wal_number: int = 1
    wal_position: int = 0
    wal_files: dict[int, int] = field(default_factory=dict)
    """Start positions of the older log files that are still there."""
    spent: dict[Path, SpentFile] = field(default_factory=dict)
    """Files the log refers to, of events that are not published yet, by the name under which each was found."""
    growing: list[Path] = field(default_factory=list)
    """Files that were being filled when the last process ended."""
    verify: bool = True
    source: SegmentSource | None = None
    report: RecoveryReport = RecoveryReport(False, 0, 0, 0, 0, 0, None, (), 0)


def recover(
    filesystem: Filesystem,
    directory: Path,
    config: StoreConfig,
    *,
    clock: Clock,
    truncate_bad_tail: bool = False,
    source: SegmentSource | None = None,
) -> Recovered:
    """Bring a directory to a state a store can start from. The caller holds the lock."""
    renew_consent(filesystem, directory, given=truncate_bad_tail)
    discard_leftover(filesystem, directory)
    truncated = truncate_ended_logs(filesystem, directory, clock=clock) if truncate_bad_tail else None
    if not config.verify_crc:
        event("store.recovery.unverified", level=logging.WARNING, gives_up=UNVERIFIED)
    state, created = _open_catalog(filesystem, directory, config)
    _settle_remote(filesystem, directory, state, source)
    if source is not None:
        state.source = source
        _heal_segments(filesystem, directory, state, source)
    orphans, removed = _check_segments(filesystem, directory, state, workers=config.parallel_recovery)
    referred = ReferredBytes(filesystem, directory / CHANNELS_DIR)
    replay = _Replay(state, referred)
    cut, unclean = _read_wal(filesystem, directory, state, replay)
    removed += _settle_growing(filesystem, state)
    removed += _resolve_orphans(filesystem, [path for path in orphans if filesystem.exists(path)], state)
    skipped = _skip_numbers(state) if unclean else 0
    state.report = RecoveryReport(
        created=created,
        segments=state.catalog.totals()[0],
        wal_files=len(state.wal_files),
        wal_records=replay.records,
        recovered_frames=replay.frames,
        recovered_events=sum(chunk.run.rows for _, chunk in state.chunks),
        cut=cut,
        removed=tuple(removed),
        skipped_numbers=skipped,
        truncated=truncated,
        verified=state.verify,
    )
    event(
        "store.recovery.done",
        created=created,
        segments=state.report.segments,
        frames=replay.frames,
        events=state.report.recovered_events,
        at_ns=clock.wall_ns(),
    )
    return state


# -- 1. catalog -----------------------------------------------------------------------------------------------------


def _open_catalog(filesystem: Filesystem, directory: Path, config: StoreConfig) -> tuple[Recovered, bool]:
    path = directory / CATALOG_NAME
    has_data = any(_has_files(filesystem, directory / name) for name in (WAL_DIR, CHANNELS_DIR))
    if has_data and not filesystem.exists(path):
        raise CorruptData(
            file=path, offset_bytes=0, reason="the catalog is missing, but there are segments or log files"
        )
    catalog = Catalog(filesystem, directory)
    store_id = catalog.meta("store_id")
    if store_id is None and has_data:
        raise CorruptData(file=path, offset_bytes=0, reason="the catalog is empty, but there are segments or log files")
    created = store_id is None
    if store_id is None:
        store_id = os.urandom(16)
        catalog.set_meta(store_id=store_id, version=1)
    for name in (WAL_DIR, CHANNELS_DIR):
        filesystem.makedir(directory / name)
    filesystem.sync_dir(directory)
    channels = ChannelTable(
        LimitsTree(config), channels_max=config.max_channels, birth_seq=int(catalog.meta("birth_seq") or 1)
    )
    state = Recovered(store_id, catalog, channels, verify=config.verify_crc)
    last_seqs = catalog.last_seqs()
    for row in catalog.channels():
        channel = channels.restore(row.name, row.channel_id)
        channel.born_seq = 1  # whoever joins it is owed all that is there
        channel.published_seq = max(last_seqs.get(row.channel_id, 0), row.next_seq - 1)
        channel.next_seq = channel.published_seq + 1
        channels.adopt_schema(channel, pa.ipc.read_schema(pa.py_buffer(row.schema)))
    _restore_amounts(state)
    state.next_committed_id = max(catalog.last_committed_id() + 1, int(catalog.meta("committed_id_floor") or 1))
    event("store.recovery.catalog", store_id=store_id.hex(), channels=len(channels), created=created)
    return state, created


def _restore_amounts(state: Recovered) -> None:
    floors, stored = state.catalog.floors(), state.catalog.stored()
    for channel in state.channels:
        channel.first_seq = floors.get(channel.id, 1)
        channel.segment_bytes, channel.segment_events, channel.active_at_ns = stored.get(channel.id, (0, 0, 0))


def _has_files(filesystem: Filesystem, directory: Path) -> bool:
    return filesystem.exists(directory) and any(
        not entry.name.endswith(".tmp") for entry in filesystem.listdir(directory)
    )


# -- 2. segments ----------------------------------------------------------------------------------------------------


def _check_segments(
    filesystem: Filesystem, directory: Path, state: Recovered, *, workers: int
) -> tuple[list[Path], list[Path]]:
    """Compare the catalog with the disk; returns segment files the catalog does not know, and what was removed.

    So many channels at a time; of several that are damaged the first by name is told.
    """
    expected = _expected_files(state)
    orphans: list[Path] = []
    removed: list[Path] = []
    doomed = state.catalog.doomed()
    folder = directory / CHANNELS_DIR
    jobs = [(folder / entry.name, expected.pop(entry.name, {})) for entry in filesystem.listdir(folder) if entry.is_dir]
    with ThreadPoolExecutor(workers, "holdfast-recovery") as pool:
        check = (pool.map if workers > 1 else map)(
            lambda job: _check_channel(filesystem, job[0], job[1], removed), jobs
        )
        for unknown in check:
            state.growing += [path for path in unknown if path.suffix == GROWING_SUFFIX]
            orphans += [path for path in unknown if (number := _number(path)) and number not in doomed]
    for channel, sizes in expected.items():
        if sizes:
            raise _missing(folder / channel / next(iter(sizes)))
    event("store.recovery.segments", orphans=len(orphans), removed=len(removed))
    return orphans, removed


def _expected_files(state: Recovered) -> dict[str, dict[str, int]]:
    """Per channel the names of the files that must be there, and their sizes."""
    expected: dict[int, dict[str, int]] = {int(channel.id): {} for channel in state.channels}
    remote = set(state.catalog.remote())
    for channel_id, segment_seq, size in state.catalog.segment_sizes():
        if segment_seq not in remote:
            expected[channel_id][segment_file_name(segment_seq)] = size
    return {state.channels.by_id(channel_id).name: sizes for channel_id, sizes in expected.items()}


def _settle_remote(filesystem: Filesystem, directory: Path, state: Recovered, source: SegmentSource | None) -> None:
    """Segments that may be in the tier only: those whose files are there after all are local copies again."""
    if not state.catalog.remote():
        return
    found = _file_sizes(filesystem, directory)
    here: list[int] = []
    for channel_id, segment_seq, size in state.catalog.segment_sizes():
        path = directory / CHANNELS_DIR / state.channels.by_id(channel_id).name / f"seg-{segment_seq}.arrow"
        if not state.catalog.is_remote(segment_seq) or path not in found:
            continue
        if found[path] == size:
            here.append(segment_seq)
        else:
            filesystem.unlink(path)
            filesystem.sync_dir(path.parent)
    state.catalog.regain(here)
    left = len(state.catalog.remote())
    level = logging.WARNING if source is None and left else logging.INFO
    event("store.recovery.remote", level=level, segments=left, regained=len(here), readable=source is not None)


def _heal_segments(filesystem: Filesystem, directory: Path, state: Recovered, source: SegmentSource) -> None:
    """What is missing, or has another size, is fetched where it is to be had."""
    folder = directory / CHANNELS_DIR
    sizes = _file_sizes(filesystem, directory)
    for channel_id, segment_seq, size in state.catalog.segment_sizes():
        path = folder / state.channels.by_id(channel_id).name / f"seg-{segment_seq}.arrow"
        if sizes.get(path) == size or state.catalog.is_remote(segment_seq):
            continue
        segment = state.catalog.segment(segment_seq)
        if segment is not None:
            filesystem.makedir(path.parent)
            filesystem.sync_dir(folder)
            source.fetch(segment, path)


def _file_sizes(filesystem: Filesystem, directory: Path) -> dict[Path, int]:
    """The files in the directories of channels."""
    folder = directory / CHANNELS_DIR
    sizes: dict[Path, int] = {}
    for entry in filesystem.listdir(folder):
        if entry.is_dir:
            files = filesystem.listdir(folder / entry.name)
            sizes |= {folder / entry.name / file.name: file.size_bytes for file in files}
    return sizes


def _number(path: Path) -> int:
    match = _SEGMENT_NAME.fullmatch(path.name)
    return int(match[1]) if match else 0


def _check_channel(filesystem: Filesystem, folder: Path, sizes: dict[str, int], removed: list[Path]) -> list[Path]:
    """Compare one directory with the sizes its files must have; returns the files that nobody expects.

    A store may have a hundred thousand segments: no path is made of a name that is as it should be.
    """
    unknown = []
    for name, found_bytes, _is_dir in filesystem.listdir(folder):
        size = sizes.pop(name, None)
        if size == found_bytes:
            continue
        path = folder / name
        if size is not None:
            raise CorruptData(
                file=path,
                offset_bytes=min(found_bytes, size),
                reason=f"has {found_bytes} bytes, the catalog says {size}",
            )
        if name.endswith(".tmp"):
            filesystem.unlink(path)
            removed.append(path)
        else:
            unknown.append(path)
    if sizes:
        raise _missing(folder / next(iter(sizes)))
    return unknown


def _missing(path: Path) -> CorruptData:
    return CorruptData(file=path, offset_bytes=0, reason="a published segment is missing")


# -- 3. log ---------------------------------------------------------------------------------------------------------


def _read_wal(filesystem: Filesystem, directory: Path, state: Recovered, replay: _Replay) -> tuple[Mended | None, bool]:
    """Replay the log. Returns what was cut, and whether numbers must be skipped."""
    folder, spec = directory / WAL_DIR, LogSpec(WAL_NAME, rotation_bytes=0)
    for header in read_headers(filesystem, folder, spec=spec, store_id=state.store_id, verify=state.verify):
        state.wal_files[header.number] = header.start_position  # also those no longer needed, to be trimmed
    cut: Mended | None = None
    unclean = False
    cursor = state.catalog.cursor("wal")
    settle = replay.settlement(newest=max(state.wal_files, default=0)).settle
    for last, mended in recover_log(
        filesystem, folder, spec=spec, store_id=state.store_id, from_position=cursor, verify=state.verify, settle=settle
    ):
        replay.file(last)
        state.wal_number, state.wal_position = last.header.number + 1, last.end_position
        # A weak file that was not closed leaves doubt, until floors that were written after it put an end to it.
        unclean &= not (last.records and last.records[0].kind == KIND_FLOORS)
        unclean |= last.header.weak and not last.closed
        cut = mended if mended is not None and mended.cut_bytes else None
    event(
        "store.recovery.wal",
        files=len(state.wal_files),
        records=replay.records,
        frames=replay.frames,
        cut_bytes=cut.cut_bytes if cut else 0,
    )
    return cut, unclean


class _Replay:
    """Turns records into unpublished events, in order."""

    def __init__(self, state: Recovered, referred: ReferredBytes) -> None:
        self._state = state
        self._referred = referred
        self._versions: dict[int, SchemaVersion] = {}
        self.records = 0
        self.frames = 0

    def settlement(self, *, newest: int) -> Settlement:
        """How the files of the log are taken over; before the first of them."""
        published = {int(channel.id): channel.published_seq for channel in self._state.channels}
        return Settlement(
            self._referred,
            is_needed=lambda channel_id, last_seq: last_seq > published.get(channel_id, 0),
            newest=newest,
            verify=self._state.verify,
        )

    def file(self, found: LogFile) -> None:
        """Replay one file."""
        self._versions = {}
        handlers: dict[int, Callable[[Record], None]] = {
            KIND_FLOORS: self._floors,
            KIND_SCHEMA: self._schema,
            KIND_FRAME: lambda record: self._frame(record, found.header.number),
            KIND_CLOSE: lambda _record: None,
        }
        for record in found.records:
            self.records += 1
            try:
                handlers[record.kind](record)
            except (KeyError, ValueError, struct.error, pa.ArrowException) as error:
                raise CorruptData(
                    file=found.path,
                    offset_bytes=record.position - found.header.start_position,
                    reason=f"the record is intact but makes no sense: {error!r}",
                ) from error

    def _floors(self, record: Record) -> None:
        floors = decode_floors(record.payload)
        state = self._state
        state.next_committed_id = max(state.next_committed_id, floors.committed_id)
        for channel_id, name, next_seq in floors.channels:
            channel = state.channels.restore(name, channel_id)
            channel.next_seq = max(channel.next_seq, next_seq)
        state.channels.next_id = max(state.channels.next_id, floors.channel_id)

    def _schema(self, record: Record) -> None:
        note = decode_schema_note(record.payload)
        channels = self._state.channels
        channel = channels.restore(note.channel, note.channel_id)
        schema = pa.ipc.read_schema(pa.py_buffer(note.schema))
        version = channels.adopt_schema(channel, schema)
        exact = version.schema.equals(schema)
        self._versions[note.schema_id] = version if exact else channels.new_version(channel, schema)

    def _frame(self, record: Record, wal_file: int) -> None:
        frame = decode_frame(record.payload)
        state = self._state
        committed_id = frame.first_committed_id
        for entry, offset in zip(frame.entries, frame_offsets(frame.entries), strict=True):
            self._entry(entry, frame, (committed_id, offset), wal_file=wal_file)
            committed_id += entry.payload.rows
        state.next_committed_id = max(state.next_committed_id, committed_id)
        if frame.identity is not None:
            state.frames.append((frame.identity, self._receipt(frame), frame.ingested_at_ns))
        self.frames += 1

    def _receipt(self, frame: FrameRecord) -> FrameReceipt:
        receipts = []
        committed_id = frame.first_committed_id
        for entry in frame.entries:
            name = self._state.channels.by_id(entry.channel_id).name
            first, last = Seq(entry.first_seq), Seq(entry.first_seq + entry.payload.rows - 1)
            position = CommittedId(committed_id)
            receipts.append(Receipt(name, first, last, position, duplicate=False, durability=Durability.SYNCED))
            committed_id += entry.payload.rows
        return FrameReceipt(tuple(receipts), duplicate=False, durability=Durability.SYNCED)

    def _entry(self, entry: EntryPlace, frame: FrameRecord, at: tuple[int, int], *, wal_file: int) -> None:
        """`at` is its first committed_id, and what the frame has brought to the channel before."""
        committed_id, offset = at
        channel = self._state.channels.by_id(entry.channel_id)
        end_seq = entry.first_seq + entry.payload.rows
        if end_seq - 1 <= channel.published_seq:
            return
        if entry.first_seq != channel.next_seq:
            raise ValueError(f"channel {channel.name!r} goes on at seq {entry.first_seq}, expected {channel.next_seq}")
        version = self._versions[entry.schema_id]
        run = make_run(
            entry.first_seq,
            entry.payload.rows,
            committed_id=committed_id,
            ingested_at_ns=frame.ingested_at_ns,
            identity=frame.identity,
            partitions=entry.options.partitions,
            frame_offset=offset,
        )
        shared_id = frame.first_committed_id if len(frame.entries) > 1 else 0
        chunk = Chunk(run, entry.payload, version, wal_file, (), shared_id)
        reference = entry.payload.reference
        if reference is not None:
            payload = self._referred.payload(channel.name, entry.payload, verify=False)  # it was, when it was settled
            chunk = replace(chunk, payload=payload, filed=True)
            path = self._referred.path(channel.name, reference)
            home = path.with_name(growing_name(reference.segment_seq))
            self._state.spent[path] = SpentFile(channel, home, end_seq - 1)
        if not self._state.verify:
            chunk.batch().validate(full=True)
        if entry.options.id_column:
            chunk = replace(chunk, ids=digests_of(chunk.batch(), entry.options.id_column))
            channel.unpublished_ids.update(zip(chunk.ids, range(entry.first_seq, end_seq), strict=True))
        channel.next_seq = end_seq
        self._state.chunks.append((channel, chunk))


# -- 4. orphans -----------------------------------------------------------------------------------------------------


def _settle_growing(filesystem: Filesystem, state: Recovered) -> list[Path]:
    """Remove files that were being filled and are not needed; those needed have the name of such a file afterwards.

    One that was complete, and not yet published, goes back: its events are sealed again under another number.
    """
    for path, file in state.spent.items():
        if path != file.path:
            filesystem.rename(path, file.path)
            filesystem.sync_dir(path.parent)
    needed = {file.path for file in state.spent.values()}
    removed = [path for path in state.growing if path not in needed]
    for path in removed:
        filesystem.unlink(path)
    return removed


def _resolve_orphans(filesystem: Filesystem, orphans: list[Path], state: Recovered) -> list[Path]:
    """A crash between rename and publish leaves a complete file; the log has its events, so the file goes.

    So does one whose events were published later under another number, because the sync of its directory had failed.
    Under a weak flush policy too: the log is synced before a segment is written.
    """
    covered: dict[str, tuple[int, int]] = {}
    for channel, chunk in state.chunks:
        first, _ = covered.get(channel.name, (chunk.run.first_seq, 0))
        covered[channel.name] = (first, chunk.run.first_seq + chunk.run.rows - 1)
    for path in orphans:
        file = filesystem.open(path, Mode.READ)
        try:
            meta = SegmentReader.open(file, verified=not state.verify).meta
        finally:
            file.close()
        known = state.channels.get(path.parent.name)
        needed_from = max(meta.first_seq, known.published_seq + 1 if known else 1)
        first, last = covered.get(path.parent.name, (0, -1))
        if needed_from <= meta.last_seq and not first <= needed_from <= meta.last_seq <= last:
            raise CorruptData(
                file=path,
                offset_bytes=0,
                reason=f"holds events {meta.first_seq}..{meta.last_seq} that neither catalog nor log know",
            )
    for path in orphans:
        filesystem.unlink(path)
        filesystem.sync_dir(path.parent)
    if orphans:
        event("store.recovery.orphans", removed=len(orphans))
    return orphans


# -- 5. numbers -----------------------------------------------------------------------------------------------------


def _skip_numbers(state: Recovered) -> int:
    """Answers may have been given for events that a power cut lost: their numbers are never given out again."""
    for channel in state.channels:
        channel.next_seq += UNSYNCED_EVENTS_MAX
    state.next_committed_id += UNSYNCED_EVENTS_MAX
    event("store.recovery.skip", numbers=UNSYNCED_EVENTS_MAX)
    return UNSYNCED_EVENTS_MAX
