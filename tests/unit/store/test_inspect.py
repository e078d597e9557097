"""Inspect tells what is in a file, also in a damaged one, and writes nothing."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import msgspec
import pytest

from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest
from holdfast.store.inspect import inspect_path
from holdfast.store.inspect.catalogs import CatalogView
from holdfast.store.inspect.directory import StoreView
from holdfast.store.inspect.logs import FloorsContent, FrameContent, LogView, SchemaContent
from tests.unit.store.left_behind import FRAMES, SLOT, flip, logs, make_store, picture, segments


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


def inspect_log_file(path: Path) -> LogView:
    view = inspect_path(LocalFilesystem(), path)
    assert isinstance(view, LogView)
    return view


def inspect_whole(path: Path) -> StoreView:
    view = inspect_path(LocalFilesystem(), path)
    assert isinstance(view, StoreView)
    return view


def inspect_catalog_file(path: Path) -> CatalogView:
    view = inspect_path(LocalFilesystem(), path)
    assert isinstance(view, CatalogView)
    return view


# ----------------------------------------------------------------------------------------------------------------- logs


def test_log_file_opens_with_floors_and_schemas(store: Path) -> None:
    view = inspect_log_file(logs(store)[1])
    assert view.header is not None
    assert (view.header.name, view.header.number, view.header.weak) == ("wal", 2, False)
    assert [record.kind for record in view.records[:4]] == ["floors", "schema", "schema", "frame"]
    floors, schema = view.records[0].content, view.records[1].content
    assert isinstance(floors, FloorsContent)
    assert isinstance(schema, SchemaContent)
    assert set(floors.next_seqs) == {"orders", "trades"}
    assert schema.columns == {"id": "int64", "text": "string"}


def test_frames_tell_channels_seqs_rows_and_identity(store: Path) -> None:
    first = next(
        record.content
        for record in inspect_log_file(logs(store)[0]).records
        if isinstance(record.content, FrameContent)
    )
    assert first.first_committed_id == 1
    assert first.identity == {"slot_id": SLOT.hex(), "fsn": 1}
    trades, orders = first.entries
    assert (trades.channel, trades.first_seq, trades.last_seq, trades.rows) == ("trades", 1, 60, 60)
    assert (orders.channel, orders.first_seq, orders.last_seq, orders.rows) == ("orders", 1, 2, 2)


def test_guid_of_a_frame_is_shown(store: Path) -> None:
    content = inspect_log_file(logs(store)[-1]).records[-1].content
    assert isinstance(content, FrameContent)
    assert content.identity == {"guid": b"guid of one fram".hex()}


def test_records_follow_each_other_without_a_gap(store: Path) -> None:
    view = inspect_log_file(logs(store)[0])
    assert view.header is not None
    ends = [record.offset_bytes + record.size_bytes for record in view.records]
    assert [record.offset_bytes for record in view.records] == [64, *ends[:-1]]
    assert ends[-1] == view.end_offset == view.size_bytes
    assert all(record.position == view.header.start_position + record.offset_bytes for record in view.records)


def test_torn_tail_is_told_from_damage_and_shown_as_bytes(store: Path) -> None:
    path = logs(store)[-1]
    last = inspect_log_file(path).records[-1]
    os.truncate(path, last.offset_bytes + 30)
    (flaw,) = inspect_log_file(path).damage
    assert (flaw.torn, flaw.offset_bytes) == (True, last.offset_bytes)
    assert f"{last.offset_bytes:010x}" in flaw.dump


def test_damaged_log_is_described_up_to_the_damage(store: Path) -> None:
    path = logs(store)[0]
    fifth = inspect_log_file(path).records[4]
    flip(path, fifth.offset_bytes + 60)
    view = inspect_log_file(path)
    assert len(view.records) == 4
    (flaw,) = view.damage
    assert (flaw.torn, flaw.offset_bytes) == (False, fifth.offset_bytes)


def test_log_with_a_damaged_header_is_still_known_by_its_name(store: Path) -> None:
    path = logs(store)[0]
    flip(path, 0)
    view = inspect_log_file(path)
    assert view.header is None
    assert view.damage[0].offset_bytes == 0


# ----------------------------------------------------------------------------------------------------- segment, catalog


def test_segment_tells_its_events_columns_and_frames(store: Path) -> None:
    view = inspect_path(LocalFilesystem(), segments(store)[0])
    assert isinstance(view, dict)
    assert view["intact"]
    assert (view["channel"], view["first_seq"], view["rows"]) == ("trades", 1, view["last_seq"])
    assert [column["name"] for column in view["columns"]] == ["id", "text"]
    assert view["slots"] == {SLOT.hex(): [(1, view["rows"] // 60)]}


@pytest.mark.parametrize("offset", [0, 700, -1, -30])
def test_damaged_segment_is_reported_and_does_not_raise(store: Path, offset: int) -> None:
    path = segments(store)[0]
    flip(path, offset % path.stat().st_size)
    view = inspect_path(LocalFilesystem(), path)
    assert isinstance(view, dict)
    assert not view["intact"]
    assert view["damage"]["reason"]


def test_catalog_tells_meta_channels_segments_and_counts(store: Path) -> None:
    view = inspect_catalog_file(store / "catalog.db")
    assert view.meta["version"] == 1
    assert len(str(view.meta["store_id"])) == 32
    assert [channel["name"] for channel in view.channels] == ["trades"]
    assert [row["segment_seq"] for row in view.segments] == list(range(1, len(segments(store)) + 1))
    assert view.rows["segments"] == len(segments(store))
    assert view.damage == ()


def test_damaged_row_of_a_catalog_is_left_out_and_listed(store: Path) -> None:
    path = store / "catalog.db"
    flip(path, path.read_bytes().rfind(b"events") + 1)
    view = inspect_catalog_file(path)
    assert len(view.segments) == len(segments(store)) - 1
    assert "does not match its checksum" in view.damage[0].reason


def test_catalog_beside_its_own_log_is_read_with_the_log(store: Path) -> None:
    """SQLite's log holds what is committed and not yet in the database file, as a killed process leaves it."""
    path = store / "catalog.db"
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.execute("DELETE FROM segments WHERE segment_seq = 1")
    kept = {name: (store / name).read_bytes() for name in ("catalog.db", "catalog.db-wal")}
    writer.close()
    for name, data in kept.items():
        (store / name).write_bytes(data)
    before = picture(store)
    assert inspect_catalog_file(path).rows["segments"] == len(segments(store)) - 1
    assert picture(store) == before


# ---------------------------------------------------------------------------------------------------------------- store


def test_store_tells_channels_with_what_only_the_log_holds(store: Path) -> None:
    view = inspect_whole(store)
    assert view.holder_pid is None
    orders, trades = view.channels
    assert (orders.name, orders.segments, orders.log_events, orders.next_seq) == ("orders", 0, 51, 52)
    assert trades.segment_events + trades.log_events == FRAMES * 60
    assert trades.next_seq == FRAMES * 60 + 1
    assert [Path(log.file).name for log in view.logs][:3] == [path.name for path in logs(store)]
    assert view.damage == ()


def test_store_without_its_catalog_is_still_described(store: Path) -> None:
    (store / "catalog.db").unlink()
    view = inspect_whole(store)
    assert view.damage[0].reason == "the catalog is missing"
    assert {channel.name for channel in view.channels} == {"orders", "trades"}


def test_every_view_is_made_of_what_json_knows(store: Path) -> None:
    for path in (store, store / "catalog.db", logs(store)[0], segments(store)[0]):
        view = inspect_path(LocalFilesystem(), path)
        assert msgspec.json.decode(msgspec.json.encode(view))["kind"]


def test_looking_changes_neither_bytes_nor_times(store: Path) -> None:
    before = picture(store)
    for path in (store, store / "catalog.db", *logs(store), *segments(store)):
        inspect_path(LocalFilesystem(), path)
    assert picture(store) == before


def test_file_that_is_not_ours_is_a_bad_request(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadRequest, match="no log, segment or catalog"):
        inspect_path(LocalFilesystem(), tmp_path / "notes.txt")
