"""The metadata index: numbers, publications, and rows that are found when they are damaged."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.errors import CorruptData, UnsupportedFormat
from holdfast.store.catalog import (
    SEGMENT_SEQ_BLOCK,
    Catalog,
    CatalogChannel,
    Loss,
    Publication,
    PublishedSegment,
    segment_file_name,
)
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.tables import TABLES
from holdfast.testing import CrashFilesystem

ROOT = Path("/store")


def disk() -> CrashFilesystem:
    made = CrashFilesystem()
    made.write_bytes(ROOT / "made", b"")
    return made


def publication(number: int, first_seq: int, last_seq: int, *, channel_id: int = 1, guids: bool = False) -> Publication:
    meta = SegmentMeta(
        store_id="00" * 16,
        channel=f"c{channel_id}",
        segment_seq=number,
        first_seq=first_seq,
        last_seq=last_seq,
        first_committed_id=first_seq * 10,
        last_committed_id=last_seq * 10,
        first_ingested_at_ns=first_seq * 1000,
        last_ingested_at_ns=last_seq * 1000,
        first_event_time_ns=None,
        last_event_time_ns=None,
        schema_hash="hash",
        rows=last_seq - first_seq + 1,
    )
    segment = PublishedSegment(channel_id, meta, guids, 100 + number, number)
    channel = CatalogChannel(channel_id, f"c{channel_id}", last_seq + 1, b"schema")
    return Publication(segment, channel, {b"s" * 16: [(first_seq, last_seq)]}, [(b"id %013d" % first_seq, first_seq)])


def filled(filesystem: CrashFilesystem) -> Catalog:
    catalog = Catalog(filesystem, ROOT)
    catalog.publish([publication(1, 1, 10), publication(2, 11, 20, guids=True)], wal_cursor=500)
    catalog.publish([publication(3, 1, 5, channel_id=2)], wal_cursor=700)
    return catalog


LOSS = Loss("c2", "", "size", segments=1, events=5, bytes=103)


def with_an_eviction(filesystem: CrashFilesystem) -> Catalog:
    """Every table that a store fills without subscribers has a row."""
    catalog = filled(filesystem)
    catalog.evict([publication(3, 1, 5, channel_id=2).segment], [LOSS])
    return catalog


# --- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G4")
def test_segment_numbers_are_reserved_on_disk_before_they_are_used() -> None:
    """Power loss: whatever was used, the next process begins above it."""
    filesystem = disk()
    catalog = Catalog(filesystem, ROOT)
    used = [catalog.next_segment_seq() for _ in range(SEGMENT_SEQ_BLOCK + 3)]
    assert used == list(range(1, SEGMENT_SEQ_BLOCK + 4))
    for left in (filesystem.after_power_cut(0), filesystem.after_kill()):
        assert Catalog(left, ROOT).next_segment_seq() > max(used)


def test_floor_of_segment_numbers_is_above_every_used_one() -> None:
    catalog = Catalog(disk(), ROOT)
    number = catalog.next_segment_seq()
    assert catalog.segment_seq_floor > number


def test_number_that_could_not_be_reserved_is_not_used() -> None:
    filesystem = disk()
    catalog = Catalog(filesystem, ROOT)
    filesystem.fail_at(filesystem.calls + 1, errno.ENOSPC)
    with pytest.raises(sqlite3.OperationalError, match="full"):
        catalog.next_segment_seq()
    assert catalog.next_segment_seq() == 1


# --- publishing -----------------------------------------------------------------------------------------------------


def test_publication_is_found_by_channel_and_seq() -> None:
    catalog = filled(disk())
    assert [item.meta.segment_seq for item in catalog.segments(1)] == [1, 2]
    assert [item.meta.segment_seq for item in catalog.segments(1, first_seq=10, last_seq=11)] == [1, 2]
    assert [item.meta.segment_seq for item in catalog.segments(1, first_seq=11)] == [2]
    assert [item.meta.segment_seq for item in catalog.segments(1, first_seq=21)] == []
    assert [item.meta.segment_seq for item in catalog.all_segments()] == [1, 2, 3]


def test_published_segment_comes_back_as_it_was() -> None:
    catalog = filled(disk())
    assert next(catalog.segments(2)) == publication(3, 1, 5, channel_id=2).segment
    assert publication(3, 1, 5).segment.file_name == segment_file_name(3) == "seg-3.arrow"


def test_channels_keep_their_next_seq() -> None:
    catalog = filled(disk())
    assert catalog.channels() == [CatalogChannel(1, "c1", 21, b"schema"), CatalogChannel(2, "c2", 6, b"schema")]
    assert catalog.last_seqs() == {1: 20, 2: 5}
    assert catalog.last_committed_id() == 200
    assert catalog.totals()[:2] == (3, 25)
    assert sorted(catalog.segment_sizes()) == [(1, 1, 101), (1, 2, 102), (2, 3, 103)]


def test_frames_of_a_slot_are_found_in_their_segments() -> None:
    catalog = filled(disk())
    assert catalog.slot_ranges(b"s" * 16) == [(1, 20)]
    assert catalog.slot_ranges(b"t" * 16) == []
    assert [item.meta.segment_seq for item in catalog.segments_of_frame(b"s" * 16, 3)] == [1, 3]
    assert [item.meta.segment_seq for item in catalog.segments_of_frame(b"s" * 16, 15)] == [2]


def test_event_ids_are_found_page_by_page() -> None:
    catalog = filled(disk())
    many = [b"unknown %08d" % number for number in range(1200)]
    assert catalog.event_seqs(1, [*many, b"id %013d" % 11, b"id %013d" % 1]) == {
        b"id %013d" % 11: 11,
        b"id %013d" % 1: 1,
    }
    assert catalog.event_seqs(2, [b"id %013d" % 11]) == {}


def test_guid_segments_are_those_of_the_window() -> None:
    catalog = filled(disk())
    assert [item.meta.segment_seq for item in catalog.guid_segments(since_ns=20_000)] == [2]
    assert catalog.guid_segments(since_ns=20_001) == []


def test_first_segment_that_reaches_a_position_is_found() -> None:
    catalog = filled(disk())
    assert catalog.first_seq_reaching(1, "last_committed_id", 101) == 11
    assert catalog.first_seq_reaching(1, "last_ingested_at_ns", 1) == 1
    assert catalog.first_seq_reaching(1, "last_committed_id", 201) is None


@pytest.mark.guarantee("G1")
def test_publication_is_there_as_a_whole_or_not_at_all() -> None:
    """Power loss at the commit of a transaction of two segments."""
    seen = set()
    for seed in range(20):
        filesystem = CrashFilesystem(seed=seed)
        filesystem.write_bytes(ROOT / "made", b"")
        catalog = Catalog(filesystem, ROOT)
        filesystem.cut_at(filesystem.calls + 1)
        with pytest.raises(BaseException, match="power was cut"):
            catalog.publish([publication(1, 1, 10), publication(2, 11, 20)], wal_cursor=500)
        left = Catalog(filesystem.after_power_cut(seed), ROOT)
        seen.add((left.totals()[0], left.cursor("wal"), len(left.slot_ranges(b"s" * 16))))
    assert seen == {(0, None, 0), (2, 500, 1)}


def test_publication_that_failed_changes_nothing() -> None:
    filesystem = disk()
    catalog = filled(filesystem)
    filesystem.fail_at(filesystem.calls + 1, errno.ENOSPC)
    with pytest.raises(sqlite3.OperationalError):
        catalog.publish([publication(4, 21, 30)], wal_cursor=900)
    assert (catalog.totals()[0], catalog.cursor("wal")) == (3, 700)
    catalog.publish([publication(4, 21, 30)], wal_cursor=900)
    assert (catalog.totals()[0], catalog.cursor("wal")) == (4, 900)


def test_thousand_segments_are_read_page_by_page() -> None:
    catalog = Catalog(disk(), ROOT)
    catalog.publish([publication(n, n, n) for n in range(1, 1001)], wal_cursor=1)
    assert [item.meta.first_seq for item in catalog.segments(1)] == list(range(1, 1001))
    assert [item.meta.first_seq for item in catalog.segments(1, first_seq=700, last_seq=703)] == [700, 701, 702, 703]


# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(
    ("change", "read"),
    [
        ("UPDATE segments SET last_seq = 9 WHERE segment_seq = 1", lambda catalog: list(catalog.segments(1))),
        ("UPDATE segments SET crc32c = 0 WHERE segment_seq = 2", lambda catalog: list(catalog.all_segments())),
        ("UPDATE channels SET next_seq = 3", lambda catalog: catalog.channels()),
        ("UPDATE slots SET ranges = x'90'", lambda catalog: catalog.slot_ranges(b"s" * 16)),
        ("UPDATE meta SET value = '1' WHERE key = 'wal_cursor'", lambda catalog: catalog.cursor("wal")),
        ("UPDATE segment_slots SET last_fsn = 99", lambda catalog: catalog.segments_of_frame(b"s" * 16, 3)),
        ("UPDATE event_ids SET seq = 7", lambda catalog: catalog.event_seqs(1, [b"id %013d" % 1])),
        ("UPDATE doomed SET channel_id = 1", lambda catalog: catalog.doomed()),
        ("UPDATE losses SET events = events + 1", lambda catalog: catalog.losses()),
        ("UPDATE gone SET last_seq = 6", lambda catalog: catalog.gone(2)),
        ("UPDATE slots SET ranges = x'90'", lambda catalog: catalog.publish([publication(4, 21, 30)], wal_cursor=9)),
        ("UPDATE losses SET events = 0", lambda catalog: catalog.checkpoint([], [LOSS], ack_cursor=9)),
        (
            "UPDATE gone SET reason = 'damage'",
            lambda catalog: catalog.evict([publication(5, 6, 9, channel_id=2).segment]),
        ),
    ],
    ids=[
        *(
            "segments",
            "checksums",
            "channels",
            "slots",
            "meta",
            "segment_slots",
            "event_ids",
            "doomed",
            "losses",
            "gone",
        ),
        *("slots that grow", "losses that grow", "gone that grows"),
    ],
)
def test_changed_row_does_not_match_its_checksum(change: str, read: object) -> None:
    filesystem = disk()
    with_an_eviction(filesystem).close()
    database = filesystem.database(ROOT / "catalog.db")
    with database.transaction() as transaction:
        transaction.execute(change)
    database.close()
    assert callable(read)
    with pytest.raises(CorruptData, match="checksum") as caught:
        read(Catalog(filesystem, ROOT))
    assert caught.value.file == ROOT / "catalog.db"


@pytest.mark.guarantee("G9")
def test_every_table_ends_with_a_checksum() -> None:
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(TABLES)
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        last = {name: database.execute(f"SELECT * FROM {name}").description[-1][0] for name in tables}
    assert len(last) == 14
    assert set(last.values()) == {"crc"}


def test_losses_of_one_kind_are_added_up() -> None:
    catalog = with_an_eviction(disk())
    other = replace(LOSS, reason="age")
    catalog.checkpoint([], [LOSS, other], ack_cursor=9)
    assert catalog.losses() == [other, replace(LOSS, segments=2, events=10, bytes=206)]


def test_catalog_of_a_newer_version_is_refused() -> None:
    filesystem = disk()
    catalog = Catalog(filesystem, ROOT)
    catalog.set_meta(version=99)
    catalog.close()
    with pytest.raises(UnsupportedFormat) as caught:
        Catalog(filesystem, ROOT)
    assert caught.value.found == 99


def test_segment_values_can_be_compared() -> None:
    one = publication(1, 1, 10).segment
    assert one == publication(1, 1, 10).segment
    assert one != replace(one, size_bytes=1)
