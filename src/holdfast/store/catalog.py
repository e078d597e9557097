"""The metadata index of a store: `catalog.db`, SQLite.

Touched when a segment is published and at start, never for a commit. Everything in it can be rebuilt from segments and
logs, except what was already deleted from both: floors and remembered slots stay here.

| table | holds |
|---|---|
| meta | store id, format version, the reserved end of segment numbers, the log position still needed |
| channels | id, name, next seq, schema |
| segments | one row per published segment, with size and CRC32C of the file |
| slots | per producer slot the ranges of frame numbers that were accepted |
| segment_slots | which segment holds which frame numbers of a slot |
| event_ids | id digest to seq, for channels whose events carry ids |
| subscribers | who is registered, and for which channels |
| floors | channels whose first events were discarded by a limit: the first that is left |
| partition_floors | per channel and partition the first event that the partition still needs |
| doomed | files of evicted segments that may still be there |
| remote | segments whose file may be missing here, since the tier has them |
| gone | seqs that no segment holds any more, and why: `evicted`, `damage`, `skipped` or `unknown` (`store/repair`) |
| losses | events, bytes and segments that went unconfirmed, per channel, subscriber and reason, over all time |
| progress | per subscriber and channel: the start and the confirmed ranges, as of the last checkpoint |

Promise: what `publish` was given is there as a whole after it returned, or not at all. Each row carries a CRC32C of its
values, and the file as a whole is proven when it is opened (`catalogcheck.py`): a damaged one is refused, and not
believed (G9).
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.disk.filesystem import Database, Filesystem, SqlRow, SqlValue, Transaction, is_full
from holdfast.disk.sqlitelog import check_log_beside
from holdfast.disk.stamp import is_stamped, stamp
from holdfast.errors import StoreFailed, UnsupportedFormat
from holdfast.store.catalogcheck import check_pages, check_tables, expected_tables, table_names, translated
from holdfast.store.rows import (
    CatalogChannel,
    Loss,
    Publication,
    PublishedSegment,
    segment_file_name,
    segment_of_row,
)
from holdfast.store.subscribers.notes import ProgressNote, Snapshot, SubscriberNote
from holdfast.store.tables import (
    TABLES,
    add_gone,
    add_losses,
    checked,
    put,
    put_identities,
    put_many,
    put_meta,
    put_progress,
    segment_row,
)
from holdfast.telemetry import event

__all__ = [
    "CATALOG_NAME",
    "SEGMENT_SEQ_BLOCK",
    "VERSION",
    "Catalog",
    "CatalogChannel",
    "Loss",
    "Publication",
    "PublishedSegment",
    "segment_file_name",
    "segment_of_row",
]

CATALOG_NAME = "catalog.db"
VERSION = 1
SEGMENT_SEQ_BLOCK = 256
"""Segment numbers are reserved in blocks before use; a restart skips the rest of a block, so no number comes twice."""


class Catalog:
    """The index. Thread-safe."""

    def __init__(self, filesystem: Filesystem, directory: Path) -> None:
        self.path = directory / CATALOG_NAME
        self._filesystem = filesystem
        self._changed = self._closed = False
        check_log_beside(filesystem, self.path)
        stamped = is_stamped(filesystem, self.path)
        with translated(self.path):
            self._database: Database = filesystem.database(self.path)
        try:
            self._prove(stamped=stamped)
            self._numbering = threading.Lock()
            self._reserved = self._next = int(self.meta("segment_seq_reserved") or b"1")
            self._remember_remote()
        except BaseException:
            self._database.close()
            raise

    def _prove(self, *, stamped: bool) -> None:
        """Nothing is believed that was not looked at; then tables that an earlier release did not have are made."""
        with translated(self.path):
            if not stamped:
                check_pages(self._database)
            present = table_names(self._database.query)
            version = int(self.meta("version") or VERSION) if "meta" in present else VERSION
            if version > VERSION:
                raise UnsupportedFormat(file=self.path, found=version, supported=VERSION)
            if not stamped:
                check_tables(self._database)
            if expected_tables().keys() <= present:
                return
            with self._change() as change:
                for statement in TABLES.split(";\n"):
                    if statement.strip():
                        change.execute(statement)

    def _remember_remote(self) -> None:
        noted = {row[0] for row in self._query("SELECT * FROM remote")}
        self._remote = {number: size for _, number, size in self.segment_sizes() if number in noted} if noted else {}
        self._remote_bytes = sum(self._remote.values())

    # -- meta -------------------------------------------------------------------------------------------------------

    def meta(self, key: str) -> bytes | None:
        """A value of the meta table."""
        rows = self._query("SELECT key, value, crc FROM meta WHERE key = ?", (key,))
        return bytes(rows[0][1]) if rows else None

    def set_meta(self, **values: bytes | int) -> None:
        """Change values of the meta table together."""
        with self._change() as change:
            put_meta(change, values)

    def next_segment_seq(self) -> int:
        """A number no segment ever had; its block is reserved on disk first."""
        with self._numbering:
            if self._next >= self._reserved:
                self.set_meta(segment_seq_reserved=self._next + SEGMENT_SEQ_BLOCK)
                self._reserved = self._next + SEGMENT_SEQ_BLOCK
            self._next += 1
            return self._next - 1

    @property
    def segment_seq_floor(self) -> int:
        """No segment has this number or a higher one."""
        return self._reserved

    # -- publishing -------------------------------------------------------------------------------------------------

    def publish(
        self, publications: Sequence[Publication], *, wal_cursor: int, skipped: Sequence[tuple[int, int, int]] = ()
    ) -> None:
        """Make segments known, say what the log no longer needs to keep, and which numbers of a channel no event will
        ever have, as (channel id, first seq, last seq): in one transaction."""
        with self._change() as change:
            for item in publications:
                put(change, "segments", segment_row(item.segment))
                put(change, "channels", astuple(item.channel))
                put_identities(change, item)
            add_gone(change, skipped, reason="skipped")
            put_meta(change, {"wal_cursor": wal_cursor})

    # -- reading ----------------------------------------------------------------------------------------------------

    def channels(self) -> list[CatalogChannel]:
        """All channels that have, or had, a segment."""
        rows = self._query("SELECT channel_id, name, next_seq, schema, crc FROM channels ORDER BY channel_id")
        return [CatalogChannel(*row[:-1]) for row in rows]

    def segments(self, channel_id: int, *, first_seq: int = 1, last_seq: int = 2**62) -> Iterator[PublishedSegment]:
        """Segments of a channel that hold any of `first_seq..last_seq`, in order; fetched a page at a time."""
        after = -1
        while True:
            page = self._query(
                f"SELECT {_SEGMENT_COLUMNS} FROM segments WHERE {_HOLDS} AND first_seq > ?4 "
                "ORDER BY first_seq LIMIT 256",
                (channel_id, first_seq, last_seq, after),
            )
            yield from map(self._segment, page)
            if len(page) < 256:
                return
            after = page[-1][2]

    def first_seq_reaching(
        self, channel_id: int, column: Literal["last_committed_id", "last_ingested_at_ns"], value: int
    ) -> int | None:
        """First seq of the first segment of a channel whose `column` is at least `value`."""
        rows = self._sums(
            f"SELECT min(first_seq) FROM segments WHERE channel_id = ? AND {column} >= ?", (channel_id, value)
        )
        found: int | None = rows[0][0]
        return found

    def all_segments(self) -> Iterator[PublishedSegment]:
        """Every segment, by number; fetched a page at a time."""
        after = -1
        while True:
            page = self._query(
                f"SELECT {_SEGMENT_COLUMNS} FROM segments WHERE segment_seq > ? ORDER BY segment_seq LIMIT 256",
                (after,),
            )
            yield from map(self._segment, page)
            if len(page) < 256:
                return
            after = page[-1][0]

    def segment_sizes(self) -> Iterator[tuple[int, int, int]]:
        """(channel id, segment number, size in bytes) of every segment: what recovery compares with the disk."""
        return iter(self._sums("SELECT channel_id, segment_seq, size_bytes FROM segments"))

    def last_seqs(self) -> dict[int, int]:
        """Per channel the last seq in a segment."""
        return dict(self._sums("SELECT channel_id, max(last_seq) FROM segments GROUP BY channel_id"))

    def last_committed_id(self) -> int:
        """The highest committed_id in a segment."""
        return int(self._sums("SELECT coalesce(max(last_committed_id), 0) FROM segments")[0][0])

    def guid_segments(self, *, since_ns: int) -> list[PublishedSegment]:
        """Segments that hold frames with a GUID and were written to at or after a time."""
        rows = self._query(
            f"SELECT {_SEGMENT_COLUMNS} FROM segments WHERE has_guids = 1 AND last_ingested_at_ns >= ? "
            "ORDER BY segment_seq",
            (since_ns,),
        )
        return [self._segment(row) for row in rows]

    def slot_ranges(self, slot_id: bytes) -> list[tuple[int, int]]:
        """Frame numbers of a slot that are in segments, or were."""
        rows = self._query("SELECT slot_id, ranges, crc FROM slots WHERE slot_id = ?", (slot_id,))
        return msgspec.msgpack.decode(rows[0][1], type=list[tuple[int, int]]) if rows else []

    def slot_ids(self, *, after: bytes, limit: int) -> list[bytes]:
        """Slots above `after`, by id."""
        sql = "SELECT slot_id FROM slots WHERE slot_id > ? ORDER BY slot_id LIMIT ?"
        return [bytes(row[0]) for row in self._sums(sql, (after, limit))]

    def slot_ranges_within(self, numbers: Sequence[int]) -> dict[int, dict[bytes, list[tuple[int, int]]]]:
        """Per segment and slot the frame numbers in it."""
        found: dict[int, dict[bytes, list[tuple[int, int]]]] = {}
        for at in range(0, len(numbers), 500):
            some = numbers[at : at + 500]
            marks = ",".join("?" * len(some))
            for row in self._query(f"SELECT * FROM segment_slots WHERE segment_seq IN ({marks})", some):
                slot_id, first, number, last = row[:4]
                found.setdefault(number, {}).setdefault(bytes(slot_id), []).append((first, last))
        return found

    def slot_ranges_present(self, slot_id: bytes) -> list[tuple[int, int]]:
        """Frame numbers of a slot that are in segments now."""
        rows = self._query("SELECT * FROM segment_slots WHERE slot_id = ?", (slot_id,))
        return [(row[1], row[3]) for row in rows]

    def segments_of_frame(self, slot_id: bytes, fsn: int) -> list[PublishedSegment]:
        """The segments that may hold that frame."""
        rows = self._query(
            "SELECT * FROM segment_slots WHERE slot_id = ? AND first_fsn <= ? AND last_fsn >= ?", (slot_id, fsn, fsn)
        )
        found = [self.segment(number) for number in sorted({row[2] for row in rows})]
        return [segment for segment in found if segment is not None]

    def event_seqs(self, channel_id: int, digests: Sequence[bytes]) -> dict[bytes, int]:
        """Which of these event ids are in segments, and where."""
        found: dict[bytes, int] = {}
        for at in range(0, len(digests), 500):
            page = digests[at : at + 500]
            marks = ",".join("?" * len(page))
            rows = self._query(
                f"SELECT * FROM event_ids WHERE channel_id = ? AND digest IN ({marks})", (channel_id, *page)
            )
            found.update((row[1], row[2]) for row in rows)
        return found

    def event_ids_within(self, channel_id: int, first_seq: int, last_seq: int) -> list[tuple[bytes, int]]:
        """Digest and seq of the events of a range that have ids."""
        sql = "SELECT * FROM event_ids WHERE channel_id = ? AND seq BETWEEN ? AND ? ORDER BY seq"
        return [(row[1], row[2]) for row in self._query(sql, (channel_id, first_seq, last_seq))]

    def segment(self, segment_seq: int) -> PublishedSegment | None:
        """A segment by its number."""
        rows = self._query(f"SELECT {_SEGMENT_COLUMNS} FROM segments WHERE segment_seq = ?", (segment_seq,))
        return self._segment(rows[0]) if rows else None

    def segment_after(self, segment_seq: int) -> PublishedSegment | None:
        """The segment with the next higher number."""
        sql = f"SELECT {_SEGMENT_COLUMNS} FROM segments WHERE segment_seq > ? ORDER BY segment_seq LIMIT 1"
        rows = self._query(sql, (segment_seq,))
        return self._segment(rows[0]) if rows else None

    def segment_spans(self, channel_id: int, *, first_seq: int, last_seq: int) -> list[tuple[int, int, int]]:
        """(first seq, last seq, bytes) of the segments of a channel that hold any of the range, ascending."""
        return self._sums(
            f"SELECT first_seq, last_seq, size_bytes FROM segments WHERE {_HOLDS} ORDER BY first_seq",
            (channel_id, first_seq, last_seq),
        )

    def first_seq(self, channel_id: int) -> int | None:
        """The lowest seq of a channel that is in a segment."""
        found: int | None = self._sums("SELECT min(first_seq) FROM segments WHERE channel_id = ?", (channel_id,))[0][0]
        return found

    def bytes_from(self, channel_id: int, first_seq: int) -> int:
        """Bytes of the segments of a channel that begin at `first_seq` or later."""
        sql = "SELECT coalesce(sum(size_bytes), 0) FROM segments WHERE channel_id = ? AND first_seq >= ?"
        return int(self._sums(sql, (channel_id, first_seq))[0][0])

    def segment_within(self, channel_id: int, span: tuple[int, int], *, newest_first: bool) -> PublishedSegment | None:
        """The first, or the last, segment of a channel that holds any of the span."""
        order = "DESC" if newest_first else "ASC"
        rows = self._query(
            f"SELECT {_SEGMENT_COLUMNS} FROM segments WHERE {_HOLDS} ORDER BY first_seq {order} LIMIT 1",
            (channel_id, *span),
        )
        return self._segment(rows[0]) if rows else None

    # -- eviction ---------------------------------------------------------------------------------------------------

    def segments_older_than(self, channel_id: int, time_ns: int, *, by_event_time: bool) -> list[PublishedSegment]:
        """Segments of a channel whose last event is older, by ingestion or by event time, oldest first."""
        found = self._query(
            f"SELECT {_SEGMENT_COLUMNS} FROM segments WHERE channel_id = ? AND (? OR last_ingested_at_ns < ?) "
            "ORDER BY first_seq",
            (channel_id, int(by_event_time), time_ns),
        )
        segments = [self._segment(row) for row in found]
        if not by_event_time:
            return segments
        return [item for item in segments if (item.meta.last_event_time_ns or item.meta.last_ingested_at_ns) < time_ns]

    def oldest_time(self, channel_id: int, *, by_event_time: bool) -> int | None:
        """The time that `segments_older_than` compares, of the segment where it is earliest."""
        if not by_event_time:
            sql = "SELECT min(last_ingested_at_ns) FROM segments WHERE channel_id = ?"
            found: int | None = self._sums(sql, (channel_id,))[0][0]
            return found
        metas = [segment.meta for segment in self.segments(channel_id)]
        return min((meta.last_event_time_ns or meta.last_ingested_at_ns for meta in metas), default=None)

    def evict(self, segments: Sequence[PublishedSegment], losses: Iterable[Loss] = ()) -> None:
        """Forget segments; their files are noted as doomed until they are gone. `losses` are those no log tells of."""
        numbers = [(segment.meta.segment_seq,) for segment in segments]
        spans = [(segment.channel_id, segment.meta.first_seq, segment.meta.last_seq) for segment in segments]
        doomed = [(segment.meta.segment_seq, segment.channel_id) for segment in segments]
        with self._change() as change:
            change.executemany("DELETE FROM segments WHERE segment_seq = ?", numbers)
            change.executemany("DELETE FROM segment_slots WHERE segment_seq = ?", numbers)
            change.executemany("DELETE FROM remote WHERE segment_seq = ?", numbers)
            change.executemany("DELETE FROM event_ids WHERE channel_id = ? AND seq BETWEEN ? AND ?", spans)
            put_many(change, "doomed", doomed)
            add_gone(change, spans, reason="evicted")
            add_losses(change, losses)
        self._forget_remote(number for (number,) in numbers)

    def replace_segments(
        self,
        old: Sequence[PublishedSegment],
        new: PublishedSegment,
        slots: Mapping[bytes, Sequence[tuple[int, int]]],
    ) -> None:
        """One segment in place of several with the same events; `slots` has the frame numbers in it.

        The old files are noted nowhere: one whose events are published under another number goes at the next start.
        """
        numbers = [(segment.meta.segment_seq,) for segment in old]
        number = new.meta.segment_seq
        with self._change() as change:
            change.executemany("DELETE FROM segments WHERE segment_seq = ?", numbers)
            change.executemany("DELETE FROM segment_slots WHERE segment_seq = ?", numbers)
            put(change, "segments", segment_row(new))
            rows = [(slot, first, number, last) for slot, ranges in slots.items() for first, last in ranges]
            put_many(change, "segment_slots", rows)

    # -- the tier ---------------------------------------------------------------------------------------------------

    def is_remote(self, segment_seq: int) -> bool:
        """Whether the file of a segment may be missing, since the tier has its bytes."""
        return segment_seq in self._remote

    def remote(self) -> list[int]:
        """The numbers of all such segments, ascending."""
        return sorted(tuple(self._remote))

    def remote_totals(self) -> tuple[int, int]:
        """How many there are, and their bytes."""
        return len(self._remote), self._remote_bytes

    def local_segments(self) -> Iterator[PublishedSegment]:
        """Segments with a file here, by number; fetched one at a time."""
        after = -1
        while (segment := self.local_segment_after(after)) is not None:
            yield segment
            after = segment.meta.segment_seq

    def local_segment_after(self, segment_seq: int) -> PublishedSegment | None:
        """The segment with the next higher number that has a file here."""
        sql = (
            f"SELECT {_SEGMENT_COLUMNS} FROM segments WHERE segment_seq > ? "
            "AND segment_seq NOT IN (SELECT segment_seq FROM remote) ORDER BY segment_seq LIMIT 1"
        )
        rows = self._query(sql, (segment_seq,))
        return self._segment(rows[0]) if rows else None

    def release(self, segments: Sequence[PublishedSegment]) -> None:
        """The files of these segments may go: the tier has them."""
        with self._change() as change:
            put_many(change, "remote", [(segment.meta.segment_seq,) for segment in segments])
        self._forget_remote([segment.meta.segment_seq for segment in segments])
        self._remote.update((segment.meta.segment_seq, segment.size_bytes) for segment in segments)
        self._remote_bytes += sum(segment.size_bytes for segment in segments)

    def regain(self, numbers: Sequence[int]) -> None:
        """The files of these segments are there."""
        with self._change() as change:
            change.executemany("DELETE FROM remote WHERE segment_seq = ?", [(number,) for number in numbers])
        self._forget_remote(numbers)

    def _forget_remote(self, numbers: Iterable[int]) -> None:
        self._remote_bytes -= sum(self._remote.pop(number, 0) for number in numbers)

    def gone(self, channel_id: int) -> list[tuple[int, int, str]]:
        """(first seq, last seq, reason) of what no segment of a channel holds any more, ascending."""
        rows = self._query("SELECT * FROM gone WHERE channel_id = ? ORDER BY first_seq", (channel_id,))
        return [row[1:4] for row in rows]

    def doomed(self) -> dict[int, int]:
        """Numbers of evicted segments whose files may still be there, and their channels' numbers."""
        return {row[0]: row[1] for row in self._query("SELECT * FROM doomed")}

    def forget_doomed(self, numbers: Iterable[int]) -> None:
        """Those files are gone."""
        with self._change() as change:
            change.executemany("DELETE FROM doomed WHERE segment_seq = ?", [(number,) for number in numbers])

    def losses(self) -> list[Loss]:
        """All losses since the store was created, up to the last checkpoint of the acknowledgement log."""
        return [Loss(*row[:-1]) for row in self._query("SELECT * FROM losses ORDER BY channel, subscriber, reason")]

    def set_floor(self, channel_id: int, first_seq: int, losses: Iterable[Loss] = ()) -> None:
        """Events of a channel below `first_seq` are gone for ever. `losses` are those no log tells of."""
        with self._change() as change:
            put(change, "floors", (channel_id, first_seq))
            add_losses(change, losses)

    def floors(self) -> dict[int, int]:
        """Per channel the first event that is left, where a limit discarded some."""
        return {row[0]: row[1] for row in self._query("SELECT channel_id, first_seq, crc FROM floors")}

    def set_partition_floor(self, channel_id: int, partition: str, first_seq: int) -> None:
        """The partition needs no event of the channel below `first_seq`."""
        with self._change() as change:
            put(change, "partition_floors", (channel_id, partition, first_seq))

    def partition_floors(self) -> list[tuple[int, str, int]]:
        """(channel id, partition, first seq it needs), where a partition has advanced."""
        rows = self._query("SELECT channel_id, partition, first_seq, crc FROM partition_floors")
        return [(row[0], row[1], row[2]) for row in rows]

    def partition_floors_of(self, channel_id: int, partitions: Sequence[str]) -> dict[str, int]:
        """The first seq that these partitions of a channel need, of those that have advanced."""
        found: dict[str, int] = {}
        for at in range(0, len(partitions), 500):
            page = partitions[at : at + 500]
            marks = ",".join("?" * len(page))
            rows = self._query(
                "SELECT channel_id, partition, first_seq, crc FROM partition_floors "
                f"WHERE channel_id = ? AND partition IN ({marks})",
                (channel_id, *page),
            )
            found.update((row[1], row[2]) for row in rows)
        return found

    def stored(self) -> dict[int, tuple[int, int, int]]:
        """Per channel: bytes, events, and time of the last event, in segments."""
        rows = self._sums(
            "SELECT channel_id, sum(size_bytes), sum(last_seq - first_seq + 1), max(last_ingested_at_ns) "
            "FROM segments GROUP BY channel_id"
        )
        return {row[0]: (row[1], row[2], row[3]) for row in rows}

    # -- subscribers ------------------------------------------------------------------------------------------------

    def subscribers(self) -> Snapshot:
        """All subscribers as of the last checkpoint."""
        notes = self._query("SELECT subscriber_id, note, crc FROM subscribers ORDER BY subscriber_id")
        progress = self._query("SELECT subscriber_id, channel_id, note, crc FROM progress")
        return Snapshot(
            int(self.meta("next_subscriber_id") or 1),
            tuple(msgspec.msgpack.decode(row[1], type=SubscriberNote) for row in notes),
            tuple(msgspec.msgpack.decode(row[2], type=ProgressNote) for row in progress),
        )

    def put_subscriber(self, note: SubscriberNote, *, joined: Iterable[ProgressNote], left: Iterable[int] = ()) -> None:
        """Register or change a subscriber: where it starts in channels it joins, and channels it has left."""
        with self._change() as change:
            put(change, "subscribers", (note.subscriber_id, msgspec.msgpack.encode(note)))
            put_progress(change, joined)
            gone = [(note.subscriber_id, channel_id) for channel_id in left]
            change.executemany("DELETE FROM progress WHERE subscriber_id = ? AND channel_id = ?", gone)
            following = max(int(self.meta("next_subscriber_id") or 1), note.subscriber_id + 1)
            put_meta(change, {"next_subscriber_id": following})
        self._follow_up()

    def remove_subscriber(self, subscriber_id: int, losses: Iterable[Loss]) -> None:
        """Forget a subscriber and how far it was; `losses` are those of its own that no checkpoint has counted."""
        with self._change() as change:
            change.execute("DELETE FROM subscribers WHERE subscriber_id = ?", (subscriber_id,))
            change.execute("DELETE FROM progress WHERE subscriber_id = ?", (subscriber_id,))
            add_losses(change, losses)
        self._follow_up()

    def _follow_up(self) -> None:
        """A transaction that changes nothing, behind one that nothing but the catalog knows of.

        Damage to the last transaction in SQLite's log looks like a tear (`holdfast.disk.sqlitelog`), and would take it
        back without a word. What nobody else can tell must not be the last one.
        """
        try:
            self.set_meta(next_subscriber_id=int(self.meta("next_subscriber_id") or 1))
        except sqlite3.Error as error:
            if not is_full(error):
                raise

    def checkpoint(self, progress: Iterable[ProgressNote], losses: Iterable[Loss], *, ack_cursor: int) -> None:
        """Keep how far subscribers are and what was lost, and from where on the acknowledgement log is still needed.

        One transaction, so that each record of the log is counted once: in here, or by replaying it.
        """
        with self._change() as change:
            put_progress(change, progress)
            add_losses(change, losses)
            put_meta(change, {"ack_cursor": ack_cursor})

    def cursor(self, log: Literal["wal", "ack"]) -> int | None:
        """The position from which on a log is still needed; None while there is no such log yet."""
        value = self.meta(f"{log}_cursor")
        return None if value is None else int(value)

    def totals(self) -> tuple[int, int, int]:
        """(segments, events, bytes) published."""
        row = self._sums(
            "SELECT count(*), coalesce(sum(last_seq - first_seq + 1), 0), coalesce(sum(size_bytes), 0) FROM segments"
        )[0]
        return int(row[0]), int(row[1]), int(row[2])

    def close(self, *, in_order: bool = False) -> None:
        """Let go of the database. Idempotent. `in_order` stamps it, if it has changed, for a quick start."""
        if self._closed:
            return
        self._closed = True
        self._database.close()
        if not in_order or not self._changed:
            return
        try:
            stamp(self._filesystem, self.path)
        except OSError as error:
            if not is_full(error):
                raise StoreFailed(file=self.path, reason=str(error)) from error
            event("store.close.postpone", log=self.path.name, reason=error)

    def _segment(self, row: SqlRow) -> PublishedSegment:
        found = segment_of_row(row)
        return replace(found, remote=True) if found.meta.segment_seq in self._remote else found

    def _query(self, sql: str, values: Sequence[SqlValue] = ()) -> list[SqlRow]:
        """Rows whose last column is the CRC of the others."""
        with translated(self.path):
            return checked(self._database.query(sql, values))

    def _sums(self, sql: str, values: Sequence[SqlValue] = ()) -> list[SqlRow]:
        """What has no checksum of its own: parts and sums of rows that were proven when the catalog was opened."""
        with translated(self.path):
            return self._database.query(sql, values)

    @contextmanager
    def _change(self) -> Iterator[Transaction]:
        with translated(self.path), self._database.transaction() as change:
            self._changed = True
            yield change


_SEGMENT_COLUMNS = (
    "segment_seq, channel_id, first_seq, last_seq, last_committed_id, last_ingested_at_ns, has_guids, size_bytes, "
    "crc32c, meta, crc"
)


_HOLDS = (
    "channel_id = ?1 AND last_seq >= ?2 AND first_seq <= ?3 AND first_seq >= "
    "coalesce((SELECT max(first_seq) FROM segments WHERE channel_id = ?1 AND first_seq <= ?2), 0)"
)
"""Holds any of the range ?2..?3. The last condition follows from the others, as segments do not overlap; with it the
index is entered where the range begins, not where the channel does."""
