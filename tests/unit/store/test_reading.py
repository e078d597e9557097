"""Reading by seq, by time and by committed_id, over segments and what is not sealed yet. On the crash disk."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.clock import NS_PER_S
from holdfast.errors import BadRequest, CorruptData
from holdfast.model.frame import Entry, Guid, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.testing import CrashFilesystem, ManualClock
from holdfast.testing.clock import START_WALL_NS

SLOT = b"sixteen bytes ok"
TINY: dict[str, object] = {
    "segment.target_size": "4KiB",
    "wal.rotation_size": "64KiB",
    "wal.max_size": "1MiB",
    "memory_limit": "64KiB",
    "frame.max_size": "32KiB",
}
START = datetime.fromtimestamp(START_WALL_NS // NS_PER_S, UTC)


class Rig:
    """Events 1..9 of channel a: 1..3 and 4..6 in two segments, 7..9 in memory; each three came a second apart."""

    def __init__(self, **settings: object) -> None:
        self.disk, self.clock = CrashFilesystem(), ManualClock()
        self.store = Store.open("/store", {**TINY, **settings}, filesystem=self.disk, clock=self.clock, inline=True)
        for first in (1, 4, 7):
            identity = SlotFrame(SLOT, Fsn(first))
            values = pa.array([first, first + 1, first + 2], pa.int64())
            words = pa.array([f"w{n}" for n in range(first, first + 3)])
            entries = [
                Entry("a", pa.record_batch({"n": values, "word": words})),
                Entry("b", pa.record_batch({"m": [first]})),
            ]
            self.store.commit_frame(entries, identity=identity)
            if first < 7:
                self.store.flush()
            self.clock.advance(1)

    def read(self, **options: object) -> list[int]:
        return [n for part in self.store.read("a", **options) for n in part.column("n").to_pylist()]  # type: ignore[arg-type]


@pytest.fixture
def rig() -> Rig:
    return Rig()


# --- positions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        ("first", None, range(1, 10)),
        (1, 9, range(1, 10)),
        (0, None, range(1, 10)),
        (2, 5, range(2, 6)),
        (3, 4, range(3, 5)),
        (6, 7, range(6, 8)),
        (7, None, range(7, 10)),
        (9, 100, range(9, 10)),
        (10, None, range(0)),
        (5, 4, range(0)),
        ("first", 0, range(0)),
        ("last", None, range(9, 10)),
        ("first", "last", range(1, 10)),
        ("first", "first", range(1, 2)),
    ],
)
def test_range_of_seqs_is_read_with_both_ends(rig: Rig, start: object, end: object, expected: range) -> None:
    assert rig.read(start=start, end=end) == list(expected)


@pytest.mark.parametrize(
    ("start_s", "end_s", "expected"),
    [(0, 3, range(1, 10)), (0.5, 3, range(4, 10)), (1, 2, range(4, 7)), (2, 9, range(7, 10)), (3, 9, range(0))],
)
def test_range_of_times_is_read_without_its_end(rig: Rig, start_s: float, end_s: float, expected: range) -> None:
    found = rig.read(start=START + timedelta(seconds=start_s), end=START + timedelta(seconds=end_s))
    assert found == list(expected)


def test_time_zone_of_a_moment_does_not_matter(rig: Rig) -> None:
    there = (START + timedelta(seconds=1)).astimezone(timezone(timedelta(hours=-7)))
    assert rig.read(start=there) == list(range(4, 10))


@pytest.mark.parametrize("position", ["middle", -1, 1.5, True, b"x"])
def test_anything_else_is_no_position(rig: Rig, position: object) -> None:
    with pytest.raises(BadRequest, match="is no position"):
        rig.read(start=position)
    with pytest.raises(BadRequest, match="is no position"):
        rig.read(end=position)


def test_time_without_a_zone_is_refused(rig: Rig) -> None:
    with pytest.raises(BadRequest, match="no time zone"):
        rig.read(start=START.replace(tzinfo=None))


def test_last_of_an_empty_channel_is_nothing() -> None:
    store = Store.open("/store", TINY, filesystem=CrashFilesystem(), clock=ManualClock(), inline=True)
    store.commit("a", pa.record_batch({"n": pa.array([], pa.int64())}))
    assert [list(store.read("a", start=start)) for start in ("first", "last")] == [[], []]


# --- columns --------------------------------------------------------------------------------------------------------


def test_only_the_columns_asked_for_are_read(rig: Rig) -> None:
    parts = list(rig.store.read("a", columns=["word"]))
    assert {tuple(part.schema.names) for part in parts} == {("word",)}
    assert [word for part in parts for word in part.column("word").to_pylist()] == [f"w{n}" for n in range(1, 10)]
    assert next(rig.store.read("a", columns=["word", "n"])).schema.names == ["word", "n"]


def test_column_that_does_not_exist_is_refused_when_asked_for(rig: Rig) -> None:
    with pytest.raises(BadRequest, match="has no column 'x'; it has n, word"):
        rig.store.read("a", columns=["n", "x"])


def test_system_columns_say_where_an_event_came_from(rig: Rig) -> None:
    system = ["_seq", "_committed_id", "_ingested_at", "_channel", "_slot_id", "_fsn"]
    rows = [row for part in rig.store.read("a", columns=["n"], system=system) for row in part.to_pylist()]
    assert [row["_seq"] for row in rows] == list(range(1, 10))
    assert [row["_committed_id"] for row in rows] == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    assert [row["_fsn"] for row in rows] == [1, 1, 1, 4, 4, 4, 7, 7, 7]
    assert {row["_channel"] for row in rows} == {"a"}
    assert {row["_slot_id"] for row in rows} == {SLOT}
    assert [(row["_ingested_at"] - START).total_seconds() for row in rows] == [0] * 3 + [1] * 3 + [2] * 3


def test_place_in_a_frame_is_the_same_from_memory_segments_and_after_a_crash() -> None:
    """Two entries of one channel in a frame, with schemas that cannot share a segment."""
    rig = Rig()
    first, second = pa.record_batch({"n": [1, 2, 3]}), pa.record_batch({"n": [4, 5], "late": ["x", "y"]})
    other = pa.record_batch({"n": [0]})
    for fsn in (11, 12):
        entries = [Entry("c", first), Entry("d", other), Entry("c", second)]
        rig.store.commit_frame(entries, identity=SlotFrame(SLOT, Fsn(fsn)))

    def places() -> list[tuple[int, int]]:
        rows = [row for part in rig.store.read("c", system=["_fsn", "_frame_index"]) for row in part.to_pylist()]
        return [(row["_fsn"], row["_frame_index"]) for row in rows]

    expected = [(fsn, place) for fsn in (11, 12) for place in range(5)]
    assert places() == expected
    (late,) = rig.store.read("c", start=5, end=5, system=["_frame_index"])
    assert late.column("_frame_index").to_pylist() == [4]
    disk = rig.disk.after_power_cut(1)
    rig.store = Store.open("/store", TINY, filesystem=disk, clock=rig.clock, inline=True)
    assert places() == expected
    rig.store.flush()
    assert places() == expected


def test_unknown_system_column_is_refused_when_asked_for(rig: Rig) -> None:
    with pytest.raises(BadRequest, match="'_rowid' is no system column"):
        rig.store.read("a", system=["_rowid"])


def test_events_without_a_slot_have_none_in_the_system_columns() -> None:
    rig = Rig()
    rig.store.commit("c", pa.record_batch({"n": [1]}), identity=Guid(b"g" * 16))
    (part,) = rig.store.read("c", system=["_slot_id", "_fsn"])
    assert part.to_pylist() == [{"n": 1, "_slot_id": None, "_fsn": None}]


def test_column_that_came_later_is_null_before_it(rig: Rig) -> None:
    rig.store.commit("a", pa.record_batch({"n": [10], "word": ["w"], "late": [True]}))
    rows = [row["late"] for part in rig.store.read("a", columns=["late"]) for row in part.to_pylist()]
    assert rows == [None] * 9 + [True]


def test_each_batch_keeps_its_own_schema_in_mode_any() -> None:
    store = Store.open(
        "/store", {**TINY, "schema": "any"}, filesystem=CrashFilesystem(), clock=ManualClock(), inline=True
    )
    store.commit("a", pa.record_batch({"x": [1]}))
    store.commit("a", pa.record_batch({"y": ["two"]}))
    for _ in range(2):
        assert [row for part in store.read("a") for row in part.to_pylist()] == [{"x": 1}, {"y": "two"}]
        store.flush()


# --- pictures -------------------------------------------------------------------------------------------------------


def test_read_is_a_picture_of_the_moment_of_the_call(rig: Rig) -> None:
    found = rig.store.read("a")
    committed = rig.store.read_committed(channels=["a"])
    rig.store.commit("a", pa.record_batch({"n": [10], "word": ["w"]}))
    rig.store.flush()
    assert [n for part in found for n in part.column("n").to_pylist()] == list(range(1, 10))
    assert [n for _, part in committed for n in part.column("n").to_pylist()] == list(range(1, 10))


def test_batches_stay_good_after_the_store_is_closed(rig: Rig) -> None:
    parts = list(rig.store.read("a"))
    rig.store.close()
    assert [n for part in parts for n in part.column("n").to_pylist()] == list(range(1, 10))


# --- committed_id ---------------------------------------------------------------------------------------------------


def test_all_channels_are_read_in_commit_order(rig: Rig) -> None:
    found = [(channel, part.column(0).to_pylist()) for channel, part in rig.store.read_committed()]
    assert found == [
        ("a", [1, 2, 3]),
        ("b", [1]),
        ("a", [4, 5, 6]),
        ("b", [4]),
        ("a", [7, 8, 9]),
        ("b", [7]),
    ]


def test_range_of_committed_ids_cuts_frames_where_it_must(rig: Rig) -> None:
    found = [(channel, part.column(0).to_pylist()) for channel, part in rig.store.read_committed(start=3, end=6)]
    assert found == [("a", [3]), ("b", [1]), ("a", [4, 5])]
    assert [channel for channel, _ in rig.store.read_committed(start=5, channels=["b"])] == ["b", "b"]
    assert list(rig.store.read_committed(start=13)) == []


# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G9")
def test_damaged_segment_is_never_delivered_and_named(rig: Rig) -> None:
    rig.store.close()
    path = min(item for item in rig.disk.paths() if item.suffix == ".arrow" and item.parent.name == "a")
    data = bytearray(rig.disk.read_bytes(path))
    data[len(data) // 2] ^= 1
    rig.disk.write_bytes(path, bytes(data))
    store = Store.open("/store", TINY, filesystem=rig.disk, clock=rig.clock, inline=True)
    with pytest.raises(CorruptData) as caught:
        list(store.read("a"))
    assert caught.value.file == Path(path)
    assert [n for part in store.read("a", start=4) for n in part.column("n").to_pylist()] == list(range(4, 10))
    assert len(list(store.read("b"))) == 3
