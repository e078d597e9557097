"""The public face of a store: opening, committing, refusing, closing. In the caller's thread, on the crash disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.config import StoreConfig
from holdfast.disk.filesystem import Mode
from holdfast.disk.local import LocalFile, LocalFilesystem
from holdfast.errors import (
    Backpressure,
    Closed,
    InvalidBatch,
    InvalidConfig,
    InvalidName,
    Locked,
    SchemaMismatch,
    StoreFailed,
    UnknownChannel,
)
from holdfast.model.frame import Durability, Entry, EventIds, Guid, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.testing import CrashFilesystem, ManualClock

SLOT = b"sixteen bytes ok"
TINY: dict[str, object] = {
    "segment.target_size": "4KiB",
    "wal.rotation_size": "64KiB",
    "wal.max_size": "1MiB",
    "memory_limit": "64KiB",
    "frame.max_size": "32KiB",
}


def open_store(disk: CrashFilesystem | None = None, **settings: object) -> Store:
    merged = {**TINY, **{key.replace("__", "."): value for key, value in settings.items()}}
    return Store.open("/store", merged, filesystem=disk or CrashFilesystem(), clock=ManualClock(), inline=True)


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def numbers(store: Store, channel: str = "a") -> list[int]:
    return [n for part in store.read(channel) for n in part.column("n").to_pylist()]


# --- opening --------------------------------------------------------------------------------------------------------


def test_new_store_is_empty_and_says_it_was_created() -> None:
    store = open_store()
    assert store.recovery.created
    assert store.channels() == []
    assert store.statistics().next_committed_id == 1
    assert store.statistics().failed is None


def test_directories_on_the_way_are_made(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a" / "b") as store:
        assert store.path == tmp_path / "a" / "b"
    assert {"channels", "wal", "catalog.db"} <= {item.name for item in (tmp_path / "a" / "b").iterdir()}


def test_second_store_in_one_directory_is_told_who_has_it(tmp_path: Path) -> None:
    with Store.open(tmp_path), pytest.raises(Locked, match="process") as caught:
        Store.open(tmp_path)
    assert caught.value.holder_pid is not None
    Store.open(tmp_path).close()


def test_bad_settings_are_refused_before_anything_is_touched() -> None:
    disk = CrashFilesystem()
    with pytest.raises(InvalidConfig, match=r"wal\.max_sise"):
        open_store(disk, wal__max_sise="1MiB")
    assert disk.calls == 0


def test_settings_may_be_a_value_made_by_the_program(tmp_path: Path) -> None:
    with Store.open(tmp_path, StoreConfig(wal_flush="interval"), filesystem=LocalFilesystem()) as store:
        assert store.statistics().durability is Durability.WRITTEN


# --- committing -----------------------------------------------------------------------------------------------------


def test_receipt_names_the_positions_of_the_events() -> None:
    store = open_store()
    first = store.commit("a", batch(1, 2, 3))
    other = store.commit("b", batch(4))
    second = store.commit("a", batch(5))
    assert (first.channel, first.first_seq, first.last_seq, first.first_committed_id) == ("a", 1, 3, 1)
    assert (other.channel, other.first_seq, other.first_committed_id) == ("b", 1, 4)
    assert (second.first_seq, second.first_committed_id) == (4, 5)
    assert first.durability is Durability.SYNCED
    assert not first.duplicate


def test_future_of_an_asynchronous_commit_cannot_be_cancelled() -> None:
    future = open_store().commit_async("a", batch(1))
    assert not future.cancel()
    assert future.result().entries[0].first_seq == 1


def test_frame_with_two_entries_for_one_channel_keeps_their_order() -> None:
    store = open_store()
    identity = SlotFrame(SLOT, Fsn(1))
    receipt = store.commit_frame(
        [Entry("a", batch(1, 2)), Entry("b", batch(9)), Entry("a", batch(3))], identity=identity
    )
    assert [(item.channel, item.first_seq, item.last_seq) for item in receipt.entries] == [
        ("a", 1, 2),
        ("b", 1, 1),
        ("a", 3, 3),
    ]
    assert numbers(store) == [1, 2, 3]
    store.flush()
    assert store.commit_frame([Entry("a", batch(7))], identity=identity).entries == tuple(
        item for item in store.commit_frame([Entry("b", batch(8))], identity=identity).entries
    )


def test_callers_memory_may_change_after_the_commit() -> None:
    """The store keeps the bytes it wrote, not the caller's buffers."""
    memory = bytearray((1).to_bytes(8, "little") + (2).to_bytes(8, "little"))
    array = pa.Array.from_buffers(pa.int64(), 2, [None, pa.py_buffer(memory)])
    store = open_store()
    store.commit("a", pa.record_batch({"n": array}))
    memory[:] = bytes(16)
    assert numbers(store) == [1, 2]


def test_partitions_of_a_frame_are_bounded() -> None:
    store = open_store()
    store.commit("a", batch(1), partitions=["p"] * 64)
    with pytest.raises(InvalidBatch, match="partitions"):
        store.commit("a", batch(2), partitions=["p"] * 65)
    with pytest.raises(InvalidBatch, match="partitions"):
        store.commit("a", batch(2), partitions=["p" * 257])
    assert numbers(store) == [1]


@pytest.mark.parametrize("count", [0, 1025])
def test_frame_without_or_with_too_many_entries_is_refused(count: int) -> None:
    with pytest.raises(InvalidBatch, match=f"this one has {count}"):
        open_store().commit_frame([Entry("a", batch(1))] * count)


@pytest.mark.guarantee("G11")
def test_frame_larger_than_its_bound_is_refused_and_nothing_is_stored() -> None:
    store = open_store()
    with pytest.raises(InvalidBatch, match="32"):
        store.commit("a", batch(*range(5000)))
    halves = [Entry("a", batch(*range(2500))), Entry("b", batch(*range(2500)))]
    with pytest.raises(InvalidBatch, match=r"frame\.max_size"):
        store.commit_frame(halves)
    assert store.statistics().events == 0


def test_schema_mismatch_names_channel_column_and_types() -> None:
    store = open_store()
    store.commit("a", batch(1))
    with pytest.raises(SchemaMismatch) as caught:
        store.commit("a", pa.record_batch({"n": ["text"]}))
    error = caught.value
    assert (error.channel, error.column, error.expected, error.found) == ("a", "n", "int64", "string")
    assert numbers(store) == [1]


def test_channel_whose_name_differs_only_by_case_is_refused() -> None:
    store = open_store()
    store.commit("Orders", batch(1))
    with pytest.raises(InvalidName, match="differs only by case"):
        store.commit("orders", batch(1))


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "con"])
def test_channel_name_that_leaves_the_directory_is_refused(name: str) -> None:
    disk = CrashFilesystem()
    store = open_store(disk)
    before = disk.calls
    with pytest.raises(InvalidName):
        store.commit(name, batch(1))
    assert disk.calls == before


@pytest.mark.guarantee("G3")
def test_repeat_of_a_frame_gets_the_first_receipt() -> None:
    store = open_store()
    for identity in (SlotFrame(SLOT, Fsn(7)), Guid(b"g" * 16)):
        first = store.commit("a", batch(1, 2), identity=identity)
        again = store.commit("a", batch(1, 2), identity=identity)
        assert again.duplicate
        assert (again.first_seq, again.last_seq, again.first_committed_id) == (
            first.first_seq,
            first.last_seq,
            first.first_committed_id,
        )
    assert numbers(store) == [1, 2, 1, 2]


@pytest.mark.guarantee("G3")
def test_events_with_known_ids_are_left_out_of_a_frame() -> None:
    store = open_store()
    store.commit("a", batch(1, 2), identity=EventIds("n"))
    receipt = store.commit("a", batch(2, 3, 3, 1), identity=EventIds("n"))
    assert (receipt.first_seq, receipt.last_seq, receipt.duplicate, receipt.duplicate_events) == (3, 3, False, 2)
    assert numbers(store) == [1, 2, 3]
    known = store.commit("a", batch(3, 1), identity=EventIds("n"))
    assert (known.duplicate, known.first_seq, known.last_seq) == (True, 1, 3)


@pytest.mark.parametrize(
    ("rows", "reason"),
    [({"n": [1]}, "no id column"), ({"id": ["a", None]}, "1 nulls"), ({"id": [1.5]}, "float")],
)
def test_id_column_must_hold_ids(rows: dict[str, list[object]], reason: str) -> None:
    with pytest.raises(InvalidBatch, match=reason):
        open_store().commit(
            "a", pa.record_batch({name: pa.array(values) for name, values in rows.items()}), identity=EventIds("id")
        )


@pytest.mark.guarantee("G11")
def test_full_memory_is_told_at_once_to_those_who_do_not_wait() -> None:
    disk = CrashFilesystem()
    store = open_store(disk, wal__rotation_size="256KiB")
    disk.capacity_bytes = disk.used_bytes  # the log has its room already, but nothing can be sealed
    with pytest.raises(Backpressure, match="memory_limit") as caught:
        fill(store)
    assert caught.value.used_bytes <= caught.value.cap_bytes == 64 * 1024
    assert "No space left" in store.blame(caught.value).cause, "the disk is to blame, not the bound"
    disk.capacity_bytes = None
    store.flush()
    assert store.commit("a", batch(1)).first_seq > 1000


def fill(store: Store) -> None:
    """Commit until something stops it."""
    for n in range(1000):
        store.commit("a", batch(*range(n, n + 1000)))


# --- reading and ending ---------------------------------------------------------------------------------------------


def test_reading_an_unknown_channel_is_refused() -> None:
    with pytest.raises(UnknownChannel, match="'a'"):
        open_store().read("a")


def test_schema_of_a_channel_grows_with_its_batches() -> None:
    store = open_store()
    store.commit("a", pa.record_batch({"n": pa.array([1], pa.int32())}))
    assert store.schema("a") == pa.schema([("n", pa.int32())])
    store.commit("a", pa.record_batch({"n": pa.array([2], pa.int64()), "x": ["y"]}))
    assert store.schema("a") == pa.schema([("n", pa.int64()), ("x", pa.string())])
    assert [row for part in store.read("a") for row in part.to_pylist()] == [{"n": 1, "x": None}, {"n": 2, "x": "y"}]


def test_flush_publishes_everything_committed_so_far() -> None:
    store = open_store()
    store.commit("a", batch(1))
    store.commit("b", batch(2))
    assert store.statistics().segments == 0
    store.flush()
    statistics = store.statistics()
    assert (statistics.segments, statistics.segment_events, statistics.tail.open_units) == (2, 2, 0)
    store.flush()
    assert store.statistics().segments == 2


def test_closed_store_refuses_every_call() -> None:
    store = open_store()
    store.commit("a", batch(1))
    store.close()
    store.close()
    for call in (
        lambda: store.commit("a", batch(2)),
        lambda: store.read("a"),
        lambda: list(store.read_committed()),
        store.flush,
    ):
        with pytest.raises(Closed):
            call()


def test_close_publishes_everything_and_frees_the_directory() -> None:
    disk = CrashFilesystem()
    with open_store(disk) as store:
        store.commit("a", batch(1, 2))
    again = open_store(disk)
    assert again.recovery.recovered_events == 0
    assert again.statistics().segment_events == 2
    assert numbers(again) == [1, 2]


def test_statistics_count_what_was_done() -> None:
    store = open_store()
    store.commit("a", batch(1, 2), identity=Guid(b"g" * 16))
    store.commit("a", batch(1, 2), identity=Guid(b"g" * 16))
    store.commit("b", batch(3))
    statistics = store.statistics()
    assert (statistics.channels, statistics.events, statistics.guids) == (2, 3, 1)
    assert statistics.next_committed_id == 4
    assert statistics.syncs == statistics.groups == 2
    assert 0 < statistics.wal_bytes < 8192
    assert statistics.tail.open_units == 2


class FailingFile(LocalFile):
    """A file of a disk that breaks when it is told to."""

    broken = False

    def sync_data(self) -> None:
        if FailingFile.broken:
            raise OSError(errno.EIO, "the disk is broken")
        super().sync_data()


class FailingFilesystem(LocalFilesystem):
    """Its disk."""

    def open(self, path: Path, mode: Mode) -> LocalFile:
        fd = os.open(path, os.O_RDWR | (os.O_CREAT | os.O_EXCL if mode is Mode.CREATE else 0), 0o600)
        return FailingFile(fd, path)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no /proc: descriptors cannot be counted")
def test_closing_a_failed_store_leaves_no_descriptor_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.open(tmp_path / "data", filesystem=FailingFilesystem())
    monkeypatch.setattr(FailingFile, "broken", True)
    with pytest.raises(StoreFailed):
        store.commit("trades", pa.record_batch({"n": [1]}))
    assert descriptors_within(tmp_path)
    store.close()
    assert not descriptors_within(tmp_path)


def descriptors_within(directory: Path) -> list[Path]:
    """The files below `directory` that this process has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [target for link in links if (target := link.readlink()).is_relative_to(directory)]
