"""One transaction that brings a catalog to what a repair decided.

Promise: after `amend` returned all of it is there, otherwise nothing. On an empty catalog it writes a whole one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, field

import msgspec

from holdfast.disk.filesystem import Database, SqlRow, Transaction
from holdfast.store.catalog import CatalogChannel, Loss, Publication
from holdfast.store.subscribers.notes import Snapshot
from holdfast.store.tables import (
    add_losses,
    merge_slot,
    put,
    put_identities,
    put_many,
    put_meta,
    put_progress,
    segment_row,
)


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
    remote: Sequence[int] = ()
    """Numbers of segments that are only in the tier."""


def amend(database: Database, amendment: Amendment, *, event_ids: Iterable[list[SqlRow]] = ()) -> None:
    """Carry it out."""
    with database.transaction() as change:
        _segments(change, amendment)
        for channel_id, ranges in amendment.gone.items():
            change.execute("DELETE FROM gone WHERE channel_id = ?", (channel_id,))
            for item in ranges:
                put(change, "gone", (channel_id, *item))
        for page in event_ids:
            put_many(change, "event_ids", [row[:-1] for row in page], new="IGNORE")
        change.executemany("DELETE FROM event_ids WHERE channel_id = ? AND seq BETWEEN ? AND ?", amendment.lost)
        for slot_id, ranges_of_slot in amendment.slots.items():
            merge_slot(change, slot_id, ranges_of_slot)
        for channel_id, first_seq in amendment.floors.items():
            put(change, "floors", (channel_id, first_seq))
        for row in amendment.partition_floors:
            put(change, "partition_floors", row)
        put_many(change, "doomed", list(amendment.doomed.items()))
        put_many(change, "remote", [(number,) for number in amendment.remote])
        add_losses(change, amendment.losses)
        if amendment.readers is not None:
            _readers(change, amendment.readers)
        put_meta(change, amendment.meta)


def _segments(change: Transaction, amendment: Amendment) -> None:
    numbers = [(number,) for number in amendment.removed]
    change.executemany("DELETE FROM segments WHERE segment_seq = ?", numbers)
    change.executemany("DELETE FROM segment_slots WHERE segment_seq = ?", numbers)
    change.executemany("DELETE FROM remote WHERE segment_seq = ?", numbers)
    for item in amendment.publications:
        put(change, "segments", segment_row(item.segment))
        put_identities(change, item)
    for channel in amendment.channels:
        put(change, "channels", astuple(channel))


def _readers(change: Transaction, readers: Snapshot) -> None:
    for note in readers.subscribers:
        put(change, "subscribers", (note.subscriber_id, msgspec.msgpack.encode(note)))
    put_progress(change, readers.progress)
    put_meta(change, {"next_subscriber_id": readers.next_subscriber_id})
