"""The tables of the catalog, and how their rows change.

The last column of every table is the CRC32C of the others, as a MessagePack array. Promise: what is read in order to be
changed is compared with it first, so that what is wrong is never written on as right (G9).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import fields

import msgspec

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import SqlRow, SqlValue, Transaction
from holdfast.model.intervals import IntervalSet
from holdfast.store.rows import Loss, Publication, PublishedSegment
from holdfast.store.subscribers.notes import ProgressNote

TABLES = """
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS channels (channel_id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, next_seq INTEGER NOT
NULL,
  schema BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS segments (segment_seq INTEGER PRIMARY KEY, channel_id INTEGER NOT NULL, first_seq INTEGER
NOT NULL,
  last_seq INTEGER NOT NULL, last_committed_id INTEGER NOT NULL, last_ingested_at_ns INTEGER NOT NULL,
  has_guids INTEGER NOT NULL, size_bytes INTEGER NOT NULL, crc32c INTEGER NOT NULL, meta BLOB NOT NULL, crc INTEGER NOT
  NULL);
CREATE UNIQUE INDEX IF NOT EXISTS segments_by_seq ON segments (channel_id, first_seq);
CREATE TABLE IF NOT EXISTS slots (slot_id BLOB PRIMARY KEY, ranges BLOB NOT NULL, crc INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS segment_slots (slot_id BLOB NOT NULL, first_fsn INTEGER NOT NULL,
  segment_seq INTEGER NOT NULL, last_fsn INTEGER NOT NULL, crc INTEGER NOT NULL,
  PRIMARY KEY (slot_id, first_fsn, segment_seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS event_ids (channel_id INTEGER NOT NULL, digest BLOB NOT NULL, seq INTEGER NOT NULL,
  crc INTEGER NOT NULL, PRIMARY KEY (channel_id, digest)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS subscribers (subscriber_id INTEGER PRIMARY KEY, note BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS progress (subscriber_id INTEGER NOT NULL, channel_id INTEGER NOT NULL, note BLOB NOT NULL,
  crc INTEGER NOT NULL, PRIMARY KEY (subscriber_id, channel_id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS floors (channel_id INTEGER PRIMARY KEY, first_seq INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS partition_floors (channel_id INTEGER NOT NULL, partition TEXT NOT NULL,
  first_seq INTEGER NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (channel_id, partition)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS doomed (segment_seq INTEGER PRIMARY KEY, channel_id INTEGER NOT NULL, crc INTEGER NOT
NULL);
CREATE TABLE IF NOT EXISTS remote (segment_seq INTEGER PRIMARY KEY, crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS gone (channel_id INTEGER NOT NULL, first_seq INTEGER NOT NULL, last_seq INTEGER NOT NULL,
  reason TEXT NOT NULL, crc INTEGER NOT NULL, PRIMARY KEY (channel_id, first_seq)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS losses (channel TEXT NOT NULL, subscriber TEXT NOT NULL, reason TEXT NOT NULL,
  segments INTEGER NOT NULL, events INTEGER NOT NULL, bytes INTEGER NOT NULL, crc INTEGER NOT NULL,
  PRIMARY KEY (channel, subscriber, reason)) WITHOUT ROWID;
"""


def row_crc(row: Iterable[SqlValue]) -> int:
    """The checksum that stands in the last column of a row."""
    return crc32c(msgspec.msgpack.encode(list(row)))


def checked(rows: list[SqlRow]) -> list[SqlRow]:
    """Rows as they are in a table, each compared with its checksum: what is wrong must not be written on as right."""
    for row in rows:
        if row_crc(row[:-1]) != row[-1]:
            raise sqlite3.DatabaseError(f"row {row[0]!r} does not match its checksum")
    return rows


def put(change: Transaction, table: str, row: Sequence[SqlValue]) -> None:
    """A row, in place of the one with its key."""
    put_many(change, table, [row])


def put_many(change: Transaction, table: str, rows: Sequence[Sequence[SqlValue]], *, new: str = "REPLACE") -> None:
    """`new` says which of two rows of one key counts: REPLACE, or IGNORE for the old one."""
    if rows:
        marks = ",".join("?" * (len(rows[0]) + 1))
        sql = f"INSERT OR {new} INTO {table} VALUES ({marks})"  # noqa: S608  names of ours
        change.executemany(sql, [(*row, row_crc(row)) for row in rows])


def put_identities(change: Transaction, item: Publication) -> None:
    """Whose frames and which event ids a segment holds."""
    number, channel_id = item.segment.meta.segment_seq, item.channel.channel_id
    for slot_id, ranges in item.slots.items():
        merge_slot(change, slot_id, ranges)
        put_many(change, "segment_slots", [(slot_id, first, number, last) for first, last in ranges])
    put_many(change, "event_ids", [(channel_id, digest, seq) for digest, seq in item.event_ids], new="IGNORE")


def add_losses(change: Transaction, losses: Iterable[Loss]) -> None:
    """Add to the totals."""
    for loss in losses:
        key = (loss.channel, loss.subscriber, loss.reason)
        rows = change.execute("SELECT * FROM losses WHERE (channel, subscriber, reason) = (?, ?, ?)", key)
        before = checked(rows)[0][3:6] if rows else (0, 0, 0)
        added = (loss.segments, loss.events, loss.bytes)
        put(change, "losses", (*key, *map(sum, zip(before, added, strict=True))))


def add_gone(change: Transaction, spans: Iterable[tuple[int, int, int]], *, reason: str) -> None:
    """Note ranges of channels as gone; neighbours with the same reason become one row."""
    merged: dict[int, IntervalSet] = {}
    for channel_id, first, last in spans:
        merged.setdefault(channel_id, IntervalSet()).add(first, last)
    for channel_id, ranges in merged.items():
        for first, last in ranges:
            beside = change.execute(
                "SELECT * FROM gone WHERE channel_id = ? AND (first_seq = ? OR first_seq = "
                "(SELECT max(first_seq) FROM gone WHERE channel_id = ? AND first_seq < ?))",
                (channel_id, last + 1, channel_id, first),
            )
            spans_beside = [row[1:3] for row in checked(beside) if row[3] == reason]
            joined = [span for span in spans_beside if span[1] + 1 == first or span[0] == last + 1]
            change.executemany(
                "DELETE FROM gone WHERE channel_id = ? AND first_seq = ?", [(channel_id, span[0]) for span in joined]
            )
            whole = (min([first, *(span[0] for span in joined)]), max([last, *(span[1] for span in joined)]))
            put(change, "gone", (channel_id, *whole, reason))


def put_progress(change: Transaction, notes: Iterable[ProgressNote]) -> None:
    """How far subscribers are."""
    for note in notes:
        put(change, "progress", (note.subscriber_id, note.channel_id, msgspec.msgpack.encode(note)))


def put_meta(change: Transaction, values: dict[str, bytes | int]) -> None:
    """Values of the meta table."""
    for key, value in values.items():
        put(change, "meta", (key, value if isinstance(value, bytes) else str(value).encode()))


def merge_slot(change: Transaction, slot_id: bytes, ranges: Iterable[tuple[int, int]]) -> None:
    """Add frame numbers to those of a slot."""
    rows = checked(change.execute("SELECT * FROM slots WHERE slot_id = ?", (slot_id,)))
    merged = IntervalSet(msgspec.msgpack.decode(rows[0][1], type=list[tuple[int, int]]) if rows else ())
    for first, last in ranges:
        merged.add(first, last)
    put(change, "slots", (slot_id, msgspec.msgpack.encode(list(merged))))


def segment_row(segment: PublishedSegment) -> tuple[SqlValue, ...]:
    """A segment as its row, without the checksum."""
    meta = segment.meta
    return (
        meta.segment_seq,
        segment.channel_id,
        meta.first_seq,
        meta.last_seq,
        meta.last_committed_id,
        meta.last_ingested_at_ns,
        int(segment.has_guids),
        segment.size_bytes,
        segment.crc32c,
        msgspec.msgpack.encode([getattr(meta, item.name) for item in fields(meta)]),
    )
