"""The events that the intact records of a damaged write-ahead log hold, and the numbers that its holes swallowed.

Promise: a piece is given only if its record is intact and its schema is certain: written in the same file, or in a
neighbouring file of the same process under the same number. Everything else is a *suspect*: seqs that were given out
and whose record cannot be read. Numbers only grow: what any floor, entry or segment ever named is never given out
again.

How seqs that are missing between two known places are told apart:

- a floor that is a multiple of 1,000,000 above its predecessor, after a file of a weak flush policy that was not
  closed: skipped by an earlier start, never given to an event;
- anything else: a suspect. What no other file holds is lost.

A channel that is not named again after a hole may have lost events in it, too. committed_ids count all events, so they
tell how many more than those of the other channels are missing (`unassigned`), but not of which of them (`silent`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
from msgspec import structs

from holdfast.disk.records import Record
from holdfast.errors import CorruptData, InvalidName, SchemaMismatch
from holdfast.model.evolution import merge_schemas
from holdfast.model.intervals import IntervalSet
from holdfast.model.names import check_channel_name
from holdfast.store.committer import UNSYNCED_EVENTS_MAX
from holdfast.store.inspect.logs import MAKES_NO_SENSE
from holdfast.store.repair.salvage import FoundLog, Hole
from holdfast.store.segments.runs import Run
from holdfast.store.units import frame_offsets, make_run
from holdfast.store.wal.codec import (
    FORM_STREAM,
    KIND_FLOORS,
    KIND_FRAME,
    KIND_SCHEMA,
    EntryPlace,
    Floors,
    FrameRecord,
    decode_floors,
    decode_frame,
    decode_schema_note,
)
from holdfast.store.wal.references import ReferredBytes

EVENTS_PER_BYTE = 8
"""An event takes a bit at least, unless all its columns are null."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive events of one channel, read from whatever still holds them."""

    channel: str
    batch: pa.RecordBatch
    runs: tuple[Run, ...]
    id_column: str = ""

    @property
    def first_seq(self) -> int:
        """Seq of the first row."""
        return self.runs[0].first_seq

    @property
    def last_seq(self) -> int:
        """Seq of the last row."""
        return self.runs[-1].first_seq + self.runs[-1].rows - 1

    def part(self, first_seq: int, last_seq: int) -> Piece:
        """The events of that range, which is inside."""
        batch = self.batch.slice(first_seq - self.first_seq, last_seq - first_seq + 1)
        return replace(self, batch=batch, runs=cut_runs(self.runs, first_seq, last_seq))


def cut_runs(runs: tuple[Run, ...] | list[Run], first_seq: int, last_seq: int) -> tuple[Run, ...]:
    """The parts of runs that are in a range."""
    cut = []
    for run in runs:
        low, high = max(run.first_seq, first_seq), min(run.first_seq + run.rows - 1, last_seq)
        if low <= high:
            committed_id = run.first_committed_id + low - run.first_seq
            cut.append(structs.replace(run, first_seq=low, rows=high - low + 1, first_committed_id=committed_id))
    return tuple(cut)


@dataclass(slots=True)
class Numbers:
    """The next number of everything, as far as anything tells."""

    committed_id: int = 1
    segment_seq: int = 1
    channel_id: int = 1

    def take(self, floors: Floors) -> None:
        """A record of floors."""
        self.committed_id = max(self.committed_id, floors.committed_id)
        self.segment_seq = max(self.segment_seq, floors.segment_seq)
        self.channel_id = max(self.channel_id, floors.channel_id)


@dataclass(slots=True)
class Lexicon:
    """What the logs call things: channels by number, schemas, columns with event ids."""

    names: dict[int, str] = field(default_factory=dict)
    schemas: dict[str, pa.Schema] = field(default_factory=dict)
    """Per channel the newest schema the logs name, joined with the older ones where they join."""
    id_columns: dict[str, str] = field(default_factory=dict)
    notes: dict[int, dict[int, pa.Schema]] = field(default_factory=dict)
    """Per log file: schema number to schema."""

    def learn(self, found: FoundLog) -> None:
        """Take what one file says; files come oldest first."""
        notes = self.notes.setdefault(found.number, {})
        columns: dict[int, str] = {}
        for record in found.records:
            try:
                if record.kind == KIND_FLOORS:
                    for number, name, _ in decode_floors(record.payload).channels:
                        self.name(number, name)
                elif record.kind == KIND_SCHEMA:
                    note = decode_schema_note(record.payload)
                    self.name(note.channel_id, note.channel)
                    notes[note.schema_id] = pa.ipc.read_schema(pa.py_buffer(note.schema))
                    self.learn_schema(note.channel, notes[note.schema_id])
                elif record.kind == KIND_FRAME:
                    entries = decode_frame(record.payload).entries
                    columns.update({e.channel_id: e.options.id_column for e in entries if e.options.id_column})
            except (*MAKES_NO_SENSE, InvalidName):  # told when the record's events are looked for
                continue
        self.id_columns.update({self.names[key]: column for key, column in columns.items() if key in self.names})

    def name(self, channel_id: int, name: str) -> None:
        """A channel's name; it becomes the name of a directory."""
        check_channel_name(name)
        self.names[channel_id] = name

    def learn_schema(self, channel: str, schema: pa.Schema) -> None:
        """A schema of a channel; the newest comes last."""
        try:
            self.schemas[channel] = merge_schemas(channel, self.schemas.get(channel, schema), schema)
        except SchemaMismatch:  # schema mode `any`
            self.schemas[channel] = schema

    def neighbour(self, number: int, schema_id: int, *, rotated: set[int]) -> pa.Schema | None:
        """The schema of that number in the file before or after, if the same process wrote both."""
        if number - 1 in rotated and schema_id in self.notes.get(number - 1, {}):
            return self.notes[number - 1][schema_id]
        return self.notes.get(number + 1, {}).get(schema_id) if number in rotated else None


class LogWalk:
    """Follows the numbers of all channels through the files of a log, oldest first."""

    def __init__(
        self,
        lexicon: Lexicon,
        referred: ReferredBytes,
        *,
        published: dict[int, int],
        complete: bool,
        birth_seq: int = 1,
    ) -> None:
        """`published`: channel id to next seq, as the catalog says. `complete`: it knows every channel that has one.

        `birth_seq` is where the others begin; `referred` finds what is not in the log itself.
        """
        self._referred = referred
        self._published = dict(published)
        self._birth_seq = birth_seq
        self._lexicon = lexicon
        self._expected = dict(published)
        self._complete = complete
        self._rotated: set[int] = set()
        self._schemas: dict[int, pa.Schema] = {}
        self._before: FoundLog | None = None
        self.numbers = Numbers()
        self._next_committed_id: int | None = None
        self._unread_bytes = 0
        self._heard: set[int] = set()
        self._missing_ids = self._missing_seqs = 0
        self._begun = False
        self.told: dict[int, int] = {}
        """Channel id to the next seq, by what the log alone says."""
        self.suspects: dict[int, IntervalSet] = {}
        self.skipped: dict[int, IntervalSet] = {}

    @property
    def next_seqs(self) -> dict[int, int]:
        """Channel id to the lowest seq that nothing ever named."""
        return self._expected

    @property
    def unassigned(self) -> int:
        """How many events are missing in the log besides those of channels that are named again."""
        return max(0, self._missing_ids - self._missing_seqs)

    @property
    def silent(self) -> set[int]:
        """Channels that nothing names after the last place where events are missing."""
        return set(self._expected) - self._heard

    def file(self, found: FoundLog) -> Iterator[Piece]:
        """The events of one file."""
        if found.rotated:
            self._rotated.add(found.number)
        self._schemas = {}
        if self._next_committed_id is None:
            early = [hole for hole in found.holes if not found.records or _is_before(hole, found)]
            self._unread_bytes += sum(hole.end_bytes - hole.offset_bytes for hole in early)
        for record in found.records:
            try:
                yield from self._record(found, record)
            except MAKES_NO_SENSE:
                continue  # the seqs of the next record, or the floors of the next file, tell what is missing
        self._before = found

    def _record(self, found: FoundLog, record: Record) -> Iterator[Piece]:
        if record.kind == KIND_FLOORS:
            self._floors(decode_floors(record.payload))
        elif record.kind == KIND_SCHEMA:
            note = decode_schema_note(record.payload)
            self._schemas[note.schema_id] = pa.ipc.read_schema(pa.py_buffer(note.schema))
        elif record.kind == KIND_FRAME:
            yield from self._frame(found, decode_frame(record.payload))

    def _floors(self, floors: Floors) -> None:
        self.numbers.take(floors)
        before = self._before
        may_skip = before is None or (before.weak and not before.closed)
        expected_id = self._next_committed_id
        skips = may_skip and expected_id is not None and (floors.committed_id - expected_id) % UNSYNCED_EVENTS_MAX == 0
        if expected_id is not None and not skips:
            self._count(floors.committed_id)
        self._next_committed_id = floors.committed_id
        for channel_id, _, next_seq in floors.channels:
            expected = self._expected.get(channel_id, self._birth_seq if self._complete else next_seq)
            if may_skip and (next_seq - expected) % UNSYNCED_EVENTS_MAX == 0:
                _add(self.skipped, channel_id, expected, next_seq - 1)
                self.told[channel_id] = next_seq
            else:
                _add(self.suspects, channel_id, expected, next_seq - 1)
            self._hear(channel_id, next_seq, next_seq)
        self._begun = True

    def _hear(self, channel_id: int, first_seq: int, next_seq: int) -> None:
        """A record names a channel: events from `first_seq` on, so that it goes on at `next_seq`."""
        told = self.told.get(channel_id, self._birth_seq if self._begun else first_seq)
        self._missing_seqs += max(0, first_seq - told)
        self.told[channel_id] = next_seq
        self._heard.add(channel_id)
        self._expected[channel_id] = max(self._expected.get(channel_id, self._birth_seq), next_seq)
        self.numbers.channel_id = max(self.numbers.channel_id, channel_id + 1)

    def _count(self, committed_id: int) -> None:
        """Events are missing if committed_ids are; behind a hole at the very beginning, as many as fit into it."""
        first = self._next_committed_id or max(1, committed_id - EVENTS_PER_BYTE * self._unread_bytes)
        if first < committed_id:
            self._missing_ids += committed_id - first
            self._heard.clear()

    def _frame(self, found: FoundLog, frame: FrameRecord) -> Iterator[Piece]:
        committed_id = frame.first_committed_id
        self._count(committed_id)
        for entry, offset in zip(frame.entries, frame_offsets(frame.entries), strict=True):
            end_seq = entry.first_seq + entry.payload.rows
            expected = self._expected.get(entry.channel_id, self._birth_seq if self._complete else entry.first_seq)
            _add(self.suspects, entry.channel_id, expected, entry.first_seq - 1)
            self._hear(entry.channel_id, entry.first_seq, end_seq)
            piece = self._piece(found, frame, entry, (committed_id, offset))
            if piece is None and entry.payload.reference and end_seq <= self._published.get(entry.channel_id, 1):
                pass  # its file has become a segment, or has gone
            elif piece is None:
                _add(self.suspects, entry.channel_id, entry.first_seq, end_seq - 1)
            else:
                yield piece
            committed_id += entry.payload.rows
        self._next_committed_id = committed_id
        self.numbers.committed_id = max(self.numbers.committed_id, committed_id)

    def _piece(self, found: FoundLog, frame: FrameRecord, entry: EntryPlace, at: tuple[int, int]) -> Piece | None:
        """`at` is its first committed_id, and what the frame has brought to the channel before."""
        committed_id, offset = at
        channel = self._lexicon.names.get(entry.channel_id)
        batch = self._batch(found, entry)
        if channel is None or batch is None or batch.num_rows != entry.payload.rows:
            return None
        run = make_run(
            entry.first_seq,
            entry.payload.rows,
            committed_id=committed_id,
            ingested_at_ns=frame.ingested_at_ns,
            identity=frame.identity,
            partitions=entry.options.partitions,
            frame_offset=offset,
        )
        return Piece(channel, batch, (run,), entry.options.id_column)

    def _batch(self, found: FoundLog, entry: EntryPlace) -> pa.RecordBatch | None:
        schema = self._schemas.get(entry.schema_id)
        if schema is None and entry.payload.form != FORM_STREAM:
            schema = self._lexicon.neighbour(found.number, entry.schema_id, rotated=self._rotated)
            if schema is None:
                return None
        try:
            batch = self._referred.payload(self._lexicon.names[entry.channel_id], entry.payload).decode(schema)
            batch.validate(full=True)
        except (*MAKES_NO_SENSE, StopIteration, CorruptData):
            return None
        return batch


def _is_before(hole: Hole, found: FoundLog) -> bool:
    """Whether a hole stands before every record of its file."""
    return found.header is not None and hole.offset_bytes < found.records[0].position - found.header.start_position


def _add(ranges: dict[int, IntervalSet], channel_id: int, first_seq: int, last_seq: int) -> None:
    if first_seq <= last_seq:
        ranges.setdefault(channel_id, IntervalSet()).add(first_seq, last_seq)
