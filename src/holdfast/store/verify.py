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

from holdfast.disk.appendlog import HEADER_BYTES, FileHeader, LogFile, log_path
from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.errors import CorruptData, UnsupportedFormat
from holdfast.model.intervals import IntervalSet
from holdfast.store.catalog import CATALOG_NAME, PublishedSegment, segment_file_name
from holdfast.store.committer import UNSYNCED_EVENTS_MAX
from holdfast.store.ground import CHANNELS_DIR, LOCK_NAME
from holdfast.store.inspect.catalogs import CatalogContents
from holdfast.store.inspect.copies import Damage, read_log_copy, read_start
from holdfast.store.inspect.directory import StoreFiles, catalog_of, list_store, lock_holder, segment_path
from holdfast.store.inspect.logs import flaw_of
from holdfast.store.logreplay import LogReplay
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.segments.reader import SegmentReader
from holdfast.store.subscribers.acklog import ACK_NAME
from holdfast.store.wal.log import WAL_NAME
from holdfast.store.wal.references import ReferredBytes, Settlement


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
        self._replay = LogReplay({})
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
        published = _published(contents)
        replay = self._replay = LogReplay(published, birth_seq=contents.number("birth_seq") or 1)
        self._settlement = Settlement(
            ReferredBytes(self._filesystem, self._directory / CHANNELS_DIR),
            is_needed=lambda channel_id, last_seq: last_seq > published.get(channel_id, 0),
            newest=max([int(path.stem.rpartition("-")[2]) for path in self._files.logs], default=0),
        )
        last = self._log(contents, WAL_NAME, self._files.logs, replay=replay)
        self._weak = last is not None and last.header.weak and not last.closed
        if last is not None:
            for reason in replay.behind():
                self.disagreement(last.path, last.end_offset, reason)
        self.events += replay.events
        self._log(contents, ACK_NAME, self._files.ack_logs, replay=None)

    def _log(
        self, contents: CatalogContents, name: str, paths: tuple[Path, ...], *, replay: LogReplay | None
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

    def _replay_file(self, path: Path, found: LogFile | None, *, replay: LogReplay, joined: bool) -> None:
        if found is None or not joined:
            replay.lose_track()
        if found is not None:
            for offset_bytes, reason, against_catalog in replay.file(self._with_references(found)):
                (self.disagreement if against_catalog else self.damage)(path, offset_bytes, reason)

    def _with_references(self, found: LogFile) -> LogFile:
        """The file without what a start would cut, because its bytes never came to be where it refers to."""
        try:
            settled = self._settlement.settle(found)
        except CorruptData as error:
            if error.file != found.path:  # a record that makes no sense is told with the others
                (self.note if self._live else self.damage)(
                    error.file, error.offset_bytes, error.reason, dump=error.dump
                )
            return found
        if settled.end_offset != found.end_offset:
            for flaw in flaw_of(settled):
                self._flaw(found.path, flaw, needed=True, last=True)
        return settled

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
        for path in self._files.growing:
            later = "was being filled; the next start takes over what the log refers to"
            self.note(path, 0, "is being filled" if self._live else later)
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
