"""Do the numbers in the write-ahead log fit each other and the catalog? A part of `verify`; it reads no file.

Follows seqs and committed_ids through the records as recovery does, and says where they do not go on.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from holdfast.disk.appendlog import KIND_CLOSE, LogFile
from holdfast.disk.records import Record
from holdfast.model.intervals import IntervalSet
from holdfast.store.committer import UNSYNCED_EVENTS_MAX
from holdfast.store.inspect.logs import MAKES_NO_SENSE
from holdfast.store.wal.codec import (
    KIND_FLOORS,
    KIND_FRAME,
    KIND_SCHEMA,
    EntryPlace,
    decode_floors,
    decode_frame,
    decode_schema_note,
)


class LogReplay:
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
        # What the log only refers to was compared with its checksum, as long as it is needed.
        if entry.payload.reference is None and entry.payload.decode(self._schemas[entry.schema_id]).num_rows != rows:
            yield f"channel {name!r} has a batch of another number of rows than {rows}", False
        published = self._published.get(channel_id, 0)
        if last_seq > published:
            self._fresh.setdefault(name, IntervalSet()).add(entry.first_seq, last_seq)
            self.events += rows
        if entry.first_seq <= published < last_seq:
            yield f"events {entry.first_seq}..{last_seq} of channel {name!r} are published only in part", True
