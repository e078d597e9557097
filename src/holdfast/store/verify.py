"""Is every byte of a store what was written?

Promise: every file is read in full, and nothing is written, created, locked or repaired. Each finding names a file and
a byte. *damage* is what a start would refuse, or a reader would be refused; a *note* is what a crash leaves and a start
cleans up, and what is not ours.

What is checked, in this order:

    1. catalog    rows against their checksums; pages, order and indexes by SQLite
    2. segments   each one is there, has its size and its checksum, and says of itself what the catalog says; those of a
                  channel follow each other in seq and committed_id. One that is only in the tier is counted and noted:
                  `verify --remote` reads it
    3. logs       each record; each file follows the one before it; frames continue what is published, without a hole
    4. orphans    segments that the catalog does not know: harmless if the log holds their events
    5. the rest   unfinished and unknown files

A store that a living process has open may be verified. Its files change while they are read, so what concerns the end
of the log, and what catalog and log say of each other, is then a note. Not for that process itself: see `inspect`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import groupby, pairwise, zip_longest
from pathlib import Path
from typing import Literal

import pyarrow as pa

from holdfast.disk.appendlog import HEADER_BYTES, KIND_CLOSE, FileHeader, LogFile, log_path
from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.disk.records import Record
from holdfast.errors import CorruptData, UnsupportedFormat
from holdfast.model.intervals import IntervalSet
from holdfast.store.catalog import CATALOG_NAME, PublishedSegment, segment_file_name
from holdfast.store.committer import UNSYNCED_EVENTS_MAX
from holdfast.store.ground import LOCK_NAME
from holdfast.store.inspect.catalogs import CatalogContents
from holdfast.store.inspect.copies import Damage, read_log_copy, read_start
from holdfast.store.inspect.directory import StoreFiles, catalog_of, list_store, lock_holder, segment_path
from holdfast.store.inspect.logs import MAKES_NO_SENSE, flaw_of
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.segments.reader import SegmentReader
from holdfast.store.subscribers.acklog import ACK_NAME
from holdfast.store.wal.codec import (
    KIND_FLOORS,
    KIND_FRAME,
    KIND_SCHEMA,
    EntryPlace,
    decode_floors,
    decode_frame,
    decode_schema_note,
)
from holdfast.store.wal.log import WAL_NAME


@dataclass(frozen=True, slots=True)
class Finding:
    """One place worth a look."""

    severity: Literal["damage", "note"]
    file: str
    offset_bytes: int
    reason: str
    dump: str = ""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What was looked at, and what was found."""

    directory: str
    intact: bool
    holder_pid: int | None
    files: int
    records: int
    segments: int
    events: int
    checked_bytes: int
    findings: tuple[Finding, ...]
    remote_segments: int = 0
    """Segments that are only in the tier, which were not read."""
    remote_bytes: int = 0


def verify_store(
    filesystem: Filesystem,
    directory: Path,
    *,
    live: bool | None = None,
    on_file: Callable[[Path], None] = lambda _path: None,
) -> VerifyReport:
    """Check a whole store. `live` None asks the lock file whether a process has it open; `on_file` hears of each file.

    Raises `BadRequest` if there is no store, and `PermissionError` if a file may not be read.
    """
    files = list_store(filesystem, directory)
    holder_pid = lock_holder(filesystem, directory) if live is None else None
    check = _Check(filesystem, files, live=live or holder_pid is not None, on_file=on_file)
    if holder_pid is not None:
        reason = f"process {holder_pid} has the store open; what it is writing now cannot be judged"
        check.note(directory / LOCK_NAME, 0, reason)
    contents = check.catalog()
    check.segments(contents)
    check.logs(contents)
    check.orphans(contents)
    check.leftovers()
    return VerifyReport(
        directory=str(directory),
        intact=not any(finding.severity == "damage" for finding in check.findings),
        holder_pid=holder_pid,
        files=check.files_read,
        records=check.records_read,
        segments=check.segments_read,
        events=check.events,
        checked_bytes=check.checked_bytes,
        findings=tuple(check.findings),
        remote_segments=check.remote_segments,
        remote_bytes=check.remote_bytes,
    )


class _Check:
    """One pass over a store, part by part."""

    def __init__(
        self, filesystem: Filesystem, files: StoreFiles, *, live: bool, on_file: Callable[[Path], None]
    ) -> None:
        self._filesystem = filesystem
        self._files = files
        self._directory = files.directory
        self._live = live
        self._on_file = on_file
        self._settled = not live
        self._replay = _Replay({})
        self.findings: list[Finding] = []
        self.files_read = self.records_read = self.segments_read = self.events = self.checked_bytes = 0
        self.remote_segments = self.remote_bytes = 0

    # -- findings ---------------------------------------------------------------------------------------------------

    def damage(self, path: Path, offset_bytes: int, reason: str, *, dump: str = "") -> None:
        """This place is not what was written."""
        self.findings.append(Finding("damage", str(path), offset_bytes, reason, dump))

    def note(self, path: Path, offset_bytes: int, reason: str, *, dump: str = "") -> None:
        """This is worth knowing and harms nothing."""
        self.findings.append(Finding("note", str(path), offset_bytes, reason, dump))

    def disagreement(self, path: Path, offset_bytes: int, reason: str) -> None:
        """Two files contradict each other: damage, unless they changed meanwhile or one is known to be damaged."""
        (self.damage if self._settled else self.note)(path, offset_bytes, reason)

    @contextmanager
    def _reading(self, path: Path) -> Iterator[None]:
        """What goes wrong with one file does not stop the others from being checked."""
        self._on_file(path)
        try:
            yield
            self.files_read += 1
        except FileNotFoundError:
            if self._live:
                self.note(path, 0, "was removed while the store was being verified")
            else:
                self.damage(path, 0, "is missing")
        except PermissionError:
            raise
        except (CorruptData, UnsupportedFormat) as error:
            found = Damage.of(error)
            self.damage(path, found.offset_bytes, found.reason, dump=found.dump)
        except OSError as error:
            self.damage(path, 0, f"cannot be read: {error.strerror or error}")

    # -- 1. catalog -------------------------------------------------------------------------------------------------

    def catalog(self) -> CatalogContents:
        """The rows that can be trusted."""
        contents = CatalogContents(self._directory / CATALOG_NAME)
        with self._reading(contents.path):
            contents = catalog_of(self._filesystem, self._files)
        for found in contents.damage:
            self.damage(Path(found.file), found.offset_bytes, found.reason)
        self.checked_bytes += contents.size_bytes
        if contents.store_id is None and not contents.damage and (self._files.logs or self._files.segments):
            self.damage(contents.path, 0, "names no store, but there are segments or log files")
        self._settled = not self._live and not any(finding.severity == "damage" for finding in self.findings)
        self._check_numbers(contents)
        return contents

    def _check_numbers(self, contents: CatalogContents) -> None:
        newest = max((segment.meta.segment_seq for segment in contents.segments), default=0)
        if newest and newest >= (contents.number("segment_seq_reserved") or 0):
            self.disagreement(contents.path, 0, f"segment {newest} has a number that was never reserved")
        remembered = {slot_id: IntervalSet(ranges) for slot_id, ranges in contents.slots.items()}
        for segment_seq, slots in contents.segment_slots.items():
            for slot_id, ranges in slots.items():
                for first, last in ranges:
                    if slot_id not in remembered or remembered[slot_id].end_of_run(first) < last:
                        reason = f"frames {first}..{last} of slot {slot_id.hex()} are in segment {segment_seq}"
                        self.disagreement(contents.path, 0, f"{reason}, but not remembered for the slot")

    # -- 2. segments ------------------------------------------------------------------------------------------------

    def segments(self, contents: CatalogContents) -> None:
        """Each published segment, then those of a channel among each other."""
        ordered = sorted(contents.segments, key=lambda segment: (segment.channel_id, segment.meta.first_seq))
        for _, group in groupby(ordered, key=lambda segment: segment.channel_id):
            segments = list(group)
            for segment in segments:
                if not self._is_remote(contents, segment):
                    self._segment(contents, segment)
            self._sequence(contents, segments)
        if self.remote_segments:
            reason = (
                f"{self.remote_segments} segments ({self.remote_bytes} bytes) are only in the tier; verify --remote"
            )
            self.note(contents.path, 0, f"{reason} reads them")

    def _is_remote(self, contents: CatalogContents, segment: PublishedSegment) -> bool:
        """Count a segment that has no file here, since the tier has it; one that has a file is read as any other."""
        if segment.meta.segment_seq not in contents.remote:
            return False
        if self._filesystem.exists(segment_path(self._directory, contents, segment)):
            return False
        self.remote_segments += 1
        self.remote_bytes += segment.size_bytes
        return True

    def _sequence(self, contents: CatalogContents, segments: list[PublishedSegment]) -> None:
        """The segments of one channel among each other. Eviction and repair leave holes, and say so in the catalog."""
        missing = 0
        gone = contents.gone.get(segments[0].channel_id, IntervalSet())
        for before, after in pairwise(segments):
            holes = gone.missing(before.meta.last_seq + 1, after.meta.first_seq - 1)
            missing += sum(last - first + 1 for first, last in holes)
            self._neighbours(contents, before, after)
        newest = segments[-1]
        channel = contents.channels.get(newest.channel_id)
        if channel is None:
            self.disagreement(contents.path, 0, f"segment {newest.meta.segment_seq} is of a channel that is not listed")
            return
        if channel.next_seq <= newest.meta.last_seq:
            reason = f"channel {channel.name!r} goes on at seq {channel.next_seq}, its newest segment ends at"
            self.disagreement(contents.path, 0, f"{reason} {newest.meta.last_seq}")
        if missing % UNSYNCED_EVENTS_MAX:
            reason = f"{missing} events between the segments of channel {channel.name!r} are in none; nothing says why"
            self.note(contents.path, 0, reason)

    def _segment(self, contents: CatalogContents, segment: PublishedSegment) -> None:
        path = segment_path(self._directory, contents, segment)
        with self._reading(path):
            file = self._filesystem.open(path, Mode.READ)
            try:
                size_bytes = file.size_bytes()
                if size_bytes != segment.size_bytes:
                    reason = f"has {size_bytes} bytes, the catalog says {segment.size_bytes}"
                    raise CorruptData(file=path, offset_bytes=min(size_bytes, segment.size_bytes), reason=reason)
                reader = SegmentReader.open(file, expected_crc32c=segment.crc32c)
            finally:
                file.close()
            self._compare(path, contents, segment, reader=reader)
            self.segments_read += 1
            self.events += reader.meta.rows
            self.checked_bytes += size_bytes

    def _compare(
        self, path: Path, contents: CatalogContents, segment: PublishedSegment, *, reader: SegmentReader
    ) -> None:
        for item in fields(segment.meta):
            says, expected = getattr(reader.meta, item.name), getattr(segment.meta, item.name)
            if says != expected:
                self.damage(path, 0, f"says {item.name} is {says!r}, the catalog says {expected!r}")
        known = {
            slot: sorted(ranges) for slot, ranges in contents.segment_slots.get(reader.meta.segment_seq, {}).items()
        }
        brought = {slot: sorted(ranges) for slot, ranges in reader.runs.slots().items()}
        if known != brought or segment.has_guids != reader.runs.has_guids:
            reason = f"the frames of segment {reader.meta.segment_seq} are not those that the segment names"
            self.disagreement(contents.path, 0, reason)

    def _neighbours(self, contents: CatalogContents, before: PublishedSegment, after: PublishedSegment) -> None:
        path = segment_path(self._directory, contents, after)
        for what, end, start in (
            ("seq", before.meta.last_seq, after.meta.first_seq),
            ("committed_id", before.meta.last_committed_id, after.meta.first_committed_id),
        ):
            if start <= end:
                self.damage(path, 0, f"begins at {what} {start}, but {before.file_name} goes up to {end}")

    # -- 3. logs ----------------------------------------------------------------------------------------------------

    def logs(self, contents: CatalogContents) -> None:
        """Each file of each log, then the write-ahead log against the catalog."""
        replay = self._replay = _Replay(_published(contents), birth_seq=contents.number("birth_seq") or 1)
        last = self._log(contents, WAL_NAME, self._files.logs, replay=replay)
        self._weak = last is not None and last.header.weak and not last.closed
        if last is not None:
            for reason in replay.behind():
                self.disagreement(last.path, last.end_offset, reason)
        self.events += replay.events
        self._log(contents, ACK_NAME, self._files.ack_logs, replay=None)

    def _log(
        self, contents: CatalogContents, name: str, paths: tuple[Path, ...], *, replay: _Replay | None
    ) -> LogFile | None:
        """All files of one log; returns the last one that is needed."""
        cursor = contents.number(f"{name}_cursor")
        headers = [(path, self._header(path)) for path in paths]
        if not self._check_start(name, headers, cursor) and replay is not None:
            replay.lose_track()
        before: LogFile | None = None
        for (path, _), following in zip_longest(headers, headers[1:]):
            after = following[1] if following is not None else None
            needed = after is None or cursor is None or after.start_position > cursor
            found = self._log_file(path, name=name, last=following is None, needed=needed, store_id=contents.store_id)
            if needed:
                joined = self._follows(path, before, found)
                if replay is not None:
                    self._replay_file(path, found, replay=replay, joined=joined)
                before = found
        return before

    def _header(self, path: Path) -> FileHeader | None:
        """A header that cannot be read is reported when its file is."""
        try:
            return FileHeader.decode(path, read_start(self._filesystem, path, HEADER_BYTES))
        except (OSError, CorruptData, UnsupportedFormat):
            return None

    def _check_start(self, name: str, headers: list[tuple[Path, FileHeader | None]], cursor: int | None) -> bool:
        """Whether the oldest file that is needed is there."""
        if cursor is None:
            return True
        if not headers:
            reason = f"log {name!r} is needed from position {cursor} on, and there is no file of it"
            self.disagreement(self._directory / name, 0, reason)
            return False
        path, first = headers[0]
        if first is not None and first.start_position > cursor:
            reason = f"is missing: the log is needed from position {cursor} on, and begins at {first.start_position}"
            self.disagreement(log_path(path.parent, name, first.number - 1), 0, reason)
            return False
        return True

    def _log_file(self, path: Path, *, name: str, last: bool, needed: bool, store_id: bytes | None) -> LogFile | None:
        found: LogFile | None = None
        with self._reading(path):
            found = read_log_copy(self._filesystem, path, last=last)
            _check_owner(found, name, store_id)
        if found is None:
            return None
        self.records_read += len(found.records)
        self.checked_bytes += found.buffer.size
        for flaw in flaw_of(found):
            self._flaw(path, flaw, needed=needed, last=last)
        return found

    def _flaw(self, path: Path, flaw: Damage, *, needed: bool, last: bool) -> None:
        if flaw.torn:
            meaning = "torn tail, cut off by the next start: "
        elif not needed:
            meaning = "damaged, but no longer needed: "
        else:
            meaning = "is being written: " if last and self._live else ""
        (self.note if meaning else self.damage)(path, flaw.offset_bytes, meaning + flaw.reason, dump=flaw.dump)

    def _follows(self, path: Path, before: LogFile | None, found: LogFile | None) -> bool:
        """Whether two neighbours that were read without a flaw join without a hole."""
        if before is None or found is None or before.flaw is not None:
            return True
        start, end = found.header.start_position, before.end_position
        if found.header.number != before.header.number + 1:
            gone = log_path(path.parent, found.header.name, before.header.number + 1)
            reason = f"is missing: {before.path.name} ends at position {end}, {path.name} begins at {start}"
            self.damage(gone, 0, reason)
            return False
        if start != end:
            reason = f"begins at position {start}, the file before it ends at {end}: a file is missing or cut"
            self.damage(path, 0, reason)
            return False
        return True

    def _replay_file(self, path: Path, found: LogFile | None, *, replay: _Replay, joined: bool) -> None:
        if found is None or not joined:
            replay.lose_track()
        if found is not None:
            for offset_bytes, reason, against_catalog in replay.file(found):
                (self.disagreement if against_catalog else self.damage)(path, offset_bytes, reason)

    # -- 4. orphans, 5. the rest ------------------------------------------------------------------------------------

    def orphans(self, contents: CatalogContents) -> None:
        """Segments that are complete but not published."""
        published = {segment_path(self._directory, contents, segment) for segment in contents.segments}
        for path in self._files.segments:
            if path in published:
                continue
            if int(path.stem.removeprefix("seg-")) in contents.doomed:
                self.note(path, 0, "was evicted; the next start removes it")
                continue
            with self._reading(path):
                self._orphan(path, contents)

    def _orphan(self, path: Path, contents: CatalogContents) -> None:
        file = self._filesystem.open(path, Mode.READ)
        try:
            self.checked_bytes += file.size_bytes()
            meta = SegmentReader.open(file).meta
        finally:
            file.close()
        events = f"events {meta.first_seq}..{meta.last_seq}"
        if self._replay.unpublished(path.parent.name).end_of_run(meta.first_seq) >= meta.last_seq:
            self.note(path, 0, f"is not published; the log holds its {events}, and the next start removes it")
        elif path.name == segment_file_name(meta.segment_seq) and _held(contents, meta):
            self.note(path, 0, f"holds {events}, which other segments hold too; the next start removes it")
        elif self._weak:
            self.note(path, 0, f"holds {events} that were accepted without a sync; the next start removes it")
        else:
            self.disagreement(path, 0, f"holds {events} that neither catalog nor log know")

    def leftovers(self) -> None:
        """What a crash left, and what others put here."""
        for path in self._files.unfinished:
            self.note(path, 0, "is being written" if self._live else "was never finished; the next start removes it")
        for path in self._files.set_aside:
            self.note(path, 0, "was set aside by an earlier start or repair")
        for path in self._files.archived:
            self.note(path, 0, "was evicted and archived; the archive script takes it from here")
        for path in self._files.unknown:
            self.note(path, 0, "is not a file of a store; holdfast leaves it alone")


def _published(contents: CatalogContents) -> dict[int, int]:
    """Channel id to the last seq that a segment holds, or held."""
    last_seqs = {channel.channel_id: channel.next_seq - 1 for channel in contents.channels.values()}
    for segment in contents.segments:
        last_seqs[segment.channel_id] = max(last_seqs.get(segment.channel_id, 0), segment.meta.last_seq)
    for channel_id, gone in contents.gone.items():  # a channel of which nothing is left, not even its schema
        last_seqs.setdefault(channel_id, gone.end_of_run(1))
    return last_seqs


def _held(contents: CatalogContents, meta: SegmentMeta) -> bool:
    """Whether published segments hold the events of another one: a crash while segments were put together."""
    spans = ((item.meta.channel, item.meta.first_seq, item.meta.last_seq) for item in contents.segments)
    held = IntervalSet((first, last) for channel, first, last in spans if channel == meta.channel)
    return held.covers(meta.first_seq, meta.last_seq)


def _check_owner(found: LogFile, name: str, store_id: bytes | None) -> None:
    header = found.header
    if store_id is not None and header.store_id != store_id:
        reason = f"belongs to store {header.store_id.hex()}, this is store {store_id.hex()}"
        raise CorruptData(file=found.path, offset_bytes=0, reason=reason)
    if found.path.name != log_path(found.path.parent, name, header.number).name or header.name != name:
        reason = f"is file {header.number} of log {header.name!r} under another name"
        raise CorruptData(file=found.path, offset_bytes=0, reason=reason)


class _Replay:
    """Follows the numbers through the records of the log, as recovery does, and says where they do not fit."""

    def __init__(self, published: dict[int, int], *, birth_seq: int = 1) -> None:
        """`birth_seq` is where channels begin that the catalog does not know."""
        self._published = published
        self._birth_seq = birth_seq
        self._names: dict[int, str] = {}
        self._schemas: dict[int, pa.Schema] = {}
        self._next_seqs: dict[int, int] = {}
        self._next_committed_id: int | None = None
        self._fresh: dict[str, IntervalSet] = {}
        self._begun = False
        self._complete = True
        self._jumps = False
        self.events = 0

    def unpublished(self, channel: str) -> IntervalSet:
        """The seqs of a channel that only the log holds."""
        return self._fresh.get(channel, IntervalSet())

    def lose_track(self) -> None:
        """Something before this place cannot be read: the next file's floors are taken as they are."""
        self._next_seqs.clear()
        self._next_committed_id = None
        self._begun, self._complete = True, False

    def file(self, found: LogFile) -> Iterator[tuple[int, str, bool]]:
        """(offset, reason, whether it is a matter between log and catalog) of everything that does not fit."""
        self._schemas = {}
        for index, record in enumerate(found.records):
            offset_bytes = record.position - found.header.start_position
            if (index == 0) != (record.kind == KIND_FLOORS):
                yield offset_bytes, "a log file has one record of floors, and it is the first", False
            try:
                for reason, against_catalog in self._record(record):
                    yield offset_bytes, reason, against_catalog
            except MAKES_NO_SENSE as error:
                yield offset_bytes, f"the record is intact but makes no sense: {error!r}", False
        self._begun = True
        self._jumps = found.header.weak
        if found.header.weak:
            self._complete = False
        if found.flaw is not None and not found.flaw.torn:
            self.lose_track()

    def behind(self) -> Iterator[str]:
        """Channels whose log ends before their segments do: the newest file is gone. A weak log may lose its end."""
        for channel_id, last_seq in self._published.items() if self._complete else ():
            next_seq = self._next_seqs.get(channel_id)
            if next_seq is not None and next_seq <= last_seq:
                name = self._names.get(channel_id, f"#{channel_id}")
                yield (
                    f"the log ends before seq {next_seq} of channel {name!r}, whose segments go up to {last_seq}: "
                    "a newer log file is missing"
                )

    def _record(self, record: Record) -> Iterator[tuple[str, bool]]:
        if record.kind == KIND_FLOORS:
            yield from self._floors(record)
        elif record.kind == KIND_SCHEMA:
            note = decode_schema_note(record.payload)
            self._names[note.channel_id] = note.channel
            self._schemas[note.schema_id] = pa.ipc.read_schema(pa.py_buffer(note.schema))
        elif record.kind == KIND_FRAME:
            yield from self._frame(record)
        elif record.kind != KIND_CLOSE:
            yield f"a record of kind {record.kind} is unknown", False

    def _floors(self, record: Record) -> Iterator[tuple[str, bool]]:
        floors = decode_floors(record.payload)
        for channel_id, name, next_seq in floors.channels:
            self._names[channel_id] = name
            if not self._continues(self._next_seqs.get(channel_id), next_seq):
                expected = self._next_seqs[channel_id]
                yield f"channel {name!r} goes on at seq {next_seq}, the file before goes up to {expected - 1}", False
            missing = next_seq - 1 - self._published.get(channel_id, self._birth_seq - 1)
            if not self._begun and missing > 0 and missing % UNSYNCED_EVENTS_MAX:
                yield f"channel {name!r}: no segment and no log holds the {missing} events before seq {next_seq}", True
            self._next_seqs[channel_id] = next_seq
        if not self._continues(self._next_committed_id, floors.committed_id):
            yield f"committed_ids go on at {floors.committed_id}, expected {self._next_committed_id}", False
        self._next_committed_id = floors.committed_id

    def _continues(self, expected: int | None, found: int) -> bool:
        """Whether a file's floor fits the file before it; numbers are skipped after a weak log stopped uncleanly."""
        return expected is None or found == expected or (self._jumps and found > expected)

    def _frame(self, record: Record) -> Iterator[tuple[str, bool]]:
        frame = decode_frame(record.payload)
        committed_id = frame.first_committed_id
        if self._next_committed_id not in {None, committed_id}:
            yield f"the frame has committed_id {committed_id}, expected {self._next_committed_id}", False
        for entry in frame.entries:
            yield from self._entry(entry)
            committed_id += entry.payload.rows
        self._next_committed_id = committed_id

    def _entry(self, entry: EntryPlace) -> Iterator[tuple[str, bool]]:
        channel_id, rows = entry.channel_id, entry.payload.rows
        name = self._names[channel_id]
        last_seq = entry.first_seq + rows - 1
        expected = self._next_seqs.get(channel_id, self._birth_seq if self._complete else entry.first_seq)
        if entry.first_seq != expected:
            yield f"channel {name!r} goes on at seq {entry.first_seq}, expected {expected}", False
        self._next_seqs[channel_id] = last_seq + 1
        batch = entry.payload.decode(self._schemas[entry.schema_id])
        if batch.num_rows != rows:
            yield f"channel {name!r} has {batch.num_rows} rows in a batch of {rows}", False
        published = self._published.get(channel_id, 0)
        if last_seq > published:
            self._fresh.setdefault(name, IntervalSet()).add(entry.first_seq, last_seq)
            self.events += rows
        if entry.first_seq <= published < last_seq:
            yield f"events {entry.first_seq}..{last_seq} of channel {name!r} are published only in part", True
