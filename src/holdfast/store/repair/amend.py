"""One transaction that brings a catalog to what a repair decided.

Promise: after `amend` returned all of it is there, otherwise nothing. On an empty catalog it writes a whole one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field

import msgspec

from holdfast.disk.filesystem import Database, SqlRow, Transaction
from holdfast.store.catalog import (
    CatalogChannel,
    Loss,
    Publication,
    _add_losses,
    _merge_slot,
    _put,
    _put_meta,
    _put_progress,
    _segment_row,
)
from holdfast.store.subscribers.notes import Snapshot


@dataclass(frozen=True, slots=True)
class Amendment:
    """What changes. Where nothing is said, what is there stays."""

    meta: dict[str, bytes | int]
    removed: Sequence[int] = ()
    """Numbers of segments that leave."""
    publications: Sequence[Publication] = ()
    channels: Sequence[CatalogChannel] = ()
    gone: dict[int, list[tuple[int, int, str]]] = field(default_factory=dict)
    """Per channel everything that is gone; takes the place of what was said before."""
    lost: Sequence[tuple[int, int, int]] = ()
    """(channel id, first seq, last seq): event ids that may come again."""
    losses: Sequence[Loss] = ()
    readers: Snapshot | None = None
    slots: dict[bytes, list[tuple[int, int]]] = field(default_factory=dict)
    floors: dict[int, int] = field(default_factory=dict)
    partition_floors: Sequence[tuple[int, str, int]] = ()
    doomed: dict[int, int] = field(default_factory=dict)


def amend(database: Database, amendment: Amendment, *, event_ids: Iterable[list[SqlRow]] = ()) -> None:
    """Carry it out."""
    with database.transaction() as change:
        _segments(change, amendment)
        for channel_id, ranges in amendment.gone.items():
            change.execute("DELETE FROM gone WHERE channel_id = ?", (channel_id,))
            for item in ranges:
                _put(change, "gone", (channel_id, *item))
        for page in event_ids:
            change.executemany("INSERT OR IGNORE INTO event_ids VALUES (?, ?, ?)", page)
        change.executemany("DELETE FROM event_ids WHERE channel_id = ? AND seq BETWEEN ? AND ?", amendment.lost)
        for slot_id, ranges_of_slot in amendment.slots.items():
            _merge_slot(change, slot_id, ranges_of_slot)
        for channel_id, first_seq in amendment.floors.items():
            _put(change, "floors", (channel_id, first_seq))
        for row in amendment.partition_floors:
            _put(change, "partition_floors", row)
        change.executemany("INSERT OR REPLACE INTO doomed VALUES (?, ?)", list(amendment.doomed.items()))
        _add_losses(change, amendment.losses)
        if amendment.readers is not None:
            _readers(change, amendment.readers)
        _put_meta(change, amendment.meta)


def _segments(change: Transaction, amendment: Amendment) -> None:
    numbers = [(number,) for number in amendment.removed]
    change.executemany("DELETE FROM segments WHERE segment_seq = ?", numbers)
    change.executemany("DELETE FROM segment_slots WHERE segment_seq = ?", numbers)
    for item in amendment.publications:
        number = item.segment.meta.segment_seq
        _put(change, "segments", _segment_row(item.segment))
        for slot_id, ranges in item.slots.items():
            _merge_slot(change, slot_id, ranges)
            change.executemany(
                "INSERT OR REPLACE INTO segment_slots (slot_id, first_fsn, last_fsn, segment_seq) VALUES (?, ?, ?, ?)",
                [(slot_id, first, last, number) for first, last in ranges],
            )
        change.executemany(
            "INSERT OR IGNORE INTO event_ids VALUES (?, ?, ?)",
            [(item.channel.channel_id, digest, seq) for digest, seq in item.event_ids],
        )
    for channel in amendment.channels:
        _put(change, "channels", astuple(channel))


def _readers(change: Transaction, readers: Snapshot) -> None:
    for note in readers.subscribers:
        _put(change, "subscribers", (note.subscriber_id, msgspec.msgpack.encode(note)))
    _put_progress(change, readers.progress)
    _put_meta(change, {"next_subscriber_id": readers.next_subscriber_id})
