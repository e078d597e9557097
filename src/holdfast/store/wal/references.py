"""Bytes that the log only refers to: finding them, and telling a torn frame from a damaged one.

A reference (`codec.py`) names a file, a place in it and a checksum. The file is `seg-<n>.growing`, or, after a crash
between naming a segment and publishing it, the segment that says in its footer that it was filled under that number. It
is needed as long as the event is not published; later it may have been evicted or joined with others, and nobody looks.

The rule for a needed reference whose bytes are not what it says, in the last file of a log that was not closed:

1. the file has no such name: damage. A name is on disk before anything refers to it;
2. the log was synced past the record, as later records say: the frame was accepted, so it is damage;
3. the file ends before the bytes do, or a 512-byte sector of them is zero: it was never written, so nobody was
   answered. A torn tail: the log is cut before the record;
4. otherwise the bytes were written completely and changed afterwards: damage.

Anywhere else it is damage. Rule 3 has the limit of the log's own rule: damage to the last group, if its bytes hold a
sector of zeros, looks like a tear.

A record that may not have been accepted, but whose bytes are there, is taken over with its bytes *in* the log: the
process before may have died after a failed sync, and what is in the page cache need not be on disk.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from holdfast.disk.appendlog import LogFile
from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.disk.records import Record, dump, has_zero_sector, record_bytes
from holdfast.errors import CorruptData
from holdfast.store.segments.footer import read_footer
from holdfast.store.segments.growing import growing_name
from holdfast.store.segments.writer import FILLED_KEY
from holdfast.store.wal.codec import (
    FORM_MESSAGE,
    KIND_FLOORS,
    KIND_FRAME,
    KIND_SCHEMA,
    EntryPlace,
    Payload,
    Reference,
    decode_floors,
    decode_frame,
    decode_schema_note,
    encode_again,
    refers,
)


class ReferredBytes:
    """The files that a log refers to, mapped once each."""

    def __init__(self, filesystem: Filesystem, channels_directory: Path) -> None:
        self._filesystem = filesystem
        self._directory = channels_directory
        self._maps: dict[tuple[str, int], tuple[Path, pa.Buffer] | None] = {}
        self._complete: dict[Path, dict[int, Path]] = {}

    def path(self, channel: str, reference: Reference) -> Path:
        """The file, under the name it has; under the first one if it is missing."""
        found = self._map(channel, reference.segment_seq)
        return found[0] if found else self._directory / channel / growing_name(reference.segment_seq)

    def payload(self, channel: str, payload: Payload, *, verify: bool = True) -> Payload:
        """The same with its Arrow bytes, without a copy; `CorruptData` if they are not there."""
        reference = payload.reference
        if reference is None:
            return payload
        reason = self.flaw(channel, reference, verify=verify)
        if reason:
            raise self.damage(channel, reference, reason)
        found = self._map(channel, reference.segment_seq)
        assert found is not None
        return Payload(found[1].slice(reference.offset_bytes, reference.size_bytes), FORM_MESSAGE, payload.rows)

    def flaw(self, channel: str, reference: Reference, *, verify: bool = True) -> str:
        """What is wrong with the bytes; "" if nothing is."""
        found = self._map(channel, reference.segment_seq)
        if found is None:
            return "the log refers to this file, and it is missing"
        if found[1].size < reference.end_bytes:
            return f"the log refers to bytes up to {reference.end_bytes}, the file has {found[1].size}"
        if not verify:
            return ""
        computed = crc32c(found[1].slice(reference.offset_bytes, reference.size_bytes))
        return (
            "" if computed == reference.crc32c else f"checksum is {computed:08x}, the log says {reference.crc32c:08x}"
        )

    def is_torn(self, channel: str, reference: Reference) -> bool:
        """Whether flawed bytes were never written as a whole (rule 3)."""
        found = self._map(channel, reference.segment_seq)
        if found is None:
            return False
        end = min(found[1].size, reference.end_bytes)
        return end < reference.end_bytes or has_zero_sector(memoryview(found[1]), reference.offset_bytes, end)

    def damage(self, channel: str, reference: Reference, reason: str) -> CorruptData:
        """The refusal."""
        found = self._map(channel, reference.segment_seq)
        return CorruptData(
            file=self.path(channel, reference),
            offset_bytes=reference.offset_bytes,
            reason=reason,
            dump=dump(found[1], offset=reference.offset_bytes) if found else "",
        )

    def _map(self, channel: str, segment_seq: int) -> tuple[Path, pa.Buffer] | None:
        key = (channel, segment_seq)
        if key not in self._maps:
            self._maps[key] = self._open(self._directory / channel, segment_seq)
        return self._maps[key]

    def _open(self, directory: Path, segment_seq: int) -> tuple[Path, pa.Buffer] | None:
        path: Path | None = directory / growing_name(segment_seq)
        if path is not None and not self._filesystem.exists(path):
            path = self._filled(directory).get(segment_seq)
        if path is None:
            return None
        file = self._filesystem.open(path, Mode.READ)
        try:
            return path, file.map() if file.size_bytes() else pa.py_buffer(b"")
        finally:
            file.close()

    def _filled(self, directory: Path) -> dict[int, Path]:
        """Number to path of the complete segments of a channel that were filled by commits; looked for once."""
        if directory not in self._complete:
            found: dict[int, Path] = {}
            entries = self._filesystem.listdir(directory) if self._filesystem.exists(directory) else []
            for path in [directory / entry.name for entry in entries if entry.name.endswith(".arrow")]:
                file = self._filesystem.open(path, Mode.READ)
                try:
                    found[int(read_footer(file).value(FILLED_KEY))] = path
                except ValueError:  # damaged, or not one of them
                    continue
                finally:
                    file.close()
            self._complete[directory] = found
        return self._complete[directory]


class Settlement:
    """Takes over the files of a log, oldest first, as far as they refer to others."""

    def __init__(
        self, referred: ReferredBytes, *, is_needed: Callable[[int, int], bool], newest: int, verify: bool = True
    ) -> None:
        """`is_needed` tells of a channel id and a last seq whether the events are not published; `newest` is the number
        of the last file."""
        self._referred = referred
        self._is_needed = is_needed
        self._newest = newest
        self._verify = verify
        self._names: dict[int, str] = {}

    def settle(self, found: LogFile) -> LogFile:
        """The file as it shall be taken over; `CorruptData` if accepted bytes are missing or changed."""
        may_be_torn = found.header.number == self._newest and not found.closed
        doubtful_from = found.synced_position if may_be_torn else found.end_position
        taken: list[Record] = []
        for record in found.records:
            doubtful = record.position >= doubtful_from
            try:
                reason = self._judge(record, doubtful=doubtful)
                if reason:
                    return replace(found, records=tuple(taken)).cut_at(record, reason)
                taken.append(self._with_bytes(record) if doubtful else record)
            except (KeyError, ValueError, struct.error) as error:
                raise CorruptData(
                    file=found.path,
                    offset_bytes=record.position - found.header.start_position,
                    reason=f"the record is intact but makes no sense: {error!r}",
                ) from error
        return replace(found, records=tuple(taken))

    def _learn(self, record: Record) -> None:
        if record.kind == KIND_FLOORS:
            self._names.update({channel_id: name for channel_id, name, _ in decode_floors(record.payload).channels})
        elif record.kind == KIND_SCHEMA:
            note = decode_schema_note(record.payload)
            self._names[note.channel_id] = note.channel

    def _judge(self, record: Record, *, doubtful: bool) -> str:
        """Why the record is a torn tail; "" if it is none."""
        self._learn(record)
        for entry in self._needed(record):
            reference = entry.payload.reference
            assert reference is not None
            channel = self._names[entry.channel_id]
            # Without checksums nothing but this one tells whether a group was written as a whole.
            reason = self._referred.flaw(channel, reference, verify=self._verify or doubtful)
            if reason and doubtful and self._referred.is_torn(channel, reference):
                return f"{self._referred.path(channel, reference).name}: {reason}"
            if reason:
                raise self._referred.damage(channel, reference, reason)
        return ""

    def _needed(self, record: Record) -> list[EntryPlace]:
        if record.kind != KIND_FRAME or not refers(record.payload):
            return []
        return [
            entry
            for entry in decode_frame(record.payload).entries
            if entry.payload.reference is not None
            and self._is_needed(entry.channel_id, entry.first_seq + entry.payload.rows - 1)
        ]

    def _with_bytes(self, record: Record) -> Record:
        needed = {(entry.channel_id, entry.first_seq) for entry in self._needed(record)}
        if not needed:
            return record

        def found(entry: EntryPlace) -> Payload:
            if (entry.channel_id, entry.first_seq) not in needed:
                return entry.payload
            return self._referred.payload(self._names[entry.channel_id], entry.payload)

        new = encode_again(record.payload, found)
        payload = pa.py_buffer(b"".join(new.buffers))
        return Record(new.kind, payload, record.position, record.synced, record_bytes(payload.size))
