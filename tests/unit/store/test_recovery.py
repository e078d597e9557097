"""Opening a store: what is checked, what is mended, what is refused, and what is said about it."""

from __future__ import annotations

import errno
import logging
import re
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.disk.filesystem import DirEntry
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import CorruptData, Locked, StoreFailed, UnsupportedFormat
from holdfast.model.frame import SlotFrame
from holdfast.model.positions import Fsn
from holdfast.testing import CrashFilesystem, ManualClock

ROOT = Path("/store")
TINY: dict[str, object] = {
    "segment.target_size": "4KiB",
    "wal.rotation_size": "64KiB",
    "wal.max_size": "1MiB",
    "memory_limit": "64KiB",
    "frame.max_size": "32KiB",
}
CLOCK = ManualClock()


def open_store(disk: CrashFilesystem) -> Store:
    return Store.open(ROOT, TINY, filesystem=disk, clock=CLOCK, inline=True)


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def numbers(store: Store, channel: str = "a") -> list[int]:
    return [n for part in store.read(channel) for n in part.column("n").to_pylist()]


def left_behind(*, flushed: bool = True) -> CrashFilesystem:
    """A disk with one published segment (events 1 and 2) and event 3 in the log, after process death."""
    disk = CrashFilesystem()
    store = open_store(disk)
    store.commit("a", batch(1, 2), identity=SlotFrame(b"s" * 16, Fsn(1)))
    if flushed:
        store.flush()
    store.commit("a", batch(3), identity=SlotFrame(b"s" * 16, Fsn(2)))
    return disk.after_kill()


def segment(disk: CrashFilesystem) -> Path:
    (found,) = [path for path in disk.paths() if path.suffix == ".arrow"]
    return found


# --- what is reported -----------------------------------------------------------------------------------------------


def test_report_counts_what_was_found() -> None:
    report = open_store(left_behind()).recovery
    assert (report.created, report.segments, report.wal_files) == (False, 1, 1)
    assert (report.recovered_frames, report.recovered_events) == (2, 1)
    assert (report.cut, report.removed, report.skipped_numbers) == (None, (), 0)


def test_every_step_logs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    disk = left_behind()
    with caplog.at_level(logging.INFO, logger="holdfast"):
        open_store(disk)
    names = [message.split()[0] for message in caplog.messages if message.startswith("store.recovery.")]
    steps = [name.rsplit(".", 1)[1] for name in names]
    assert steps[:3] == ["catalog", "segments", "wal"]
    assert "done" in steps
    assert len(steps) == len(set(steps))


def test_refusal_frees_the_directory_for_the_next_try() -> None:
    disk = left_behind()
    path = segment(disk)
    good = disk.read_bytes(path)
    disk.write_bytes(path, good[:-1])
    with pytest.raises(CorruptData):
        open_store(disk)
    disk.write_bytes(path, good)
    assert numbers(open_store(disk)) == [1, 2, 3]
    with pytest.raises(Locked):
        open_store(disk)


# --- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G9")
def test_missing_catalog_is_refused_when_there_is_data() -> None:
    disk = left_behind()
    disk.unlink(ROOT / "catalog.db")
    with pytest.raises(CorruptData, match="the catalog is missing") as caught:
        open_store(disk)
    assert caught.value.file == ROOT / "catalog.db"
    assert not disk.exists(ROOT / "catalog.db"), "nothing was made in its place"


@pytest.mark.guarantee("G9")
def test_empty_catalog_is_refused_when_there_is_data() -> None:
    disk = left_behind()
    disk.write_bytes(ROOT / "catalog.db", b"")
    with pytest.raises(CorruptData, match="the catalog is empty"):
        open_store(disk)


@pytest.mark.guarantee("G9")
def test_catalog_that_is_no_database_is_refused() -> None:
    disk = left_behind()
    disk.write_bytes(ROOT / "catalog.db", b"not a database at all" * 300)
    with pytest.raises(CorruptData) as caught:
        open_store(disk)
    assert caught.value.file == ROOT / "catalog.db"


@pytest.mark.guarantee("G9")
def test_missing_segment_is_refused_by_name() -> None:
    disk = left_behind()
    path = segment(disk)
    disk.unlink(path)
    with pytest.raises(CorruptData, match="a published segment is missing") as caught:
        open_store(disk)
    assert caught.value.file == path


@pytest.mark.guarantee("G9")
def test_missing_channel_directory_is_refused() -> None:
    disk = left_behind()
    path = segment(disk)
    disk.unlink(path)
    disk.rmdir(path.parent)
    with pytest.raises(CorruptData, match="missing"):
        open_store(disk)


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("extra", [-1, 1])
def test_segment_of_another_size_is_refused(extra: int) -> None:
    disk = left_behind()
    path = segment(disk)
    data = disk.read_bytes(path)
    disk.write_bytes(path, data[:extra] if extra < 0 else data + b"\0")
    with pytest.raises(CorruptData, match=f"the catalog says {len(data)}"):
        open_store(disk)


@pytest.mark.guarantee("G9")
def test_missing_log_is_refused() -> None:
    disk = left_behind()
    disk.unlink(ROOT / "wal" / "wal-0000000001.log")
    with pytest.raises(CorruptData, match="needed from position"):
        open_store(disk)


@pytest.mark.guarantee("G9")
def test_segment_that_neither_catalog_nor_log_knows_is_refused() -> None:
    """A file from elsewhere, or a catalog from an old backup: deleting it might lose events."""
    later = CrashFilesystem()
    other = open_store(later)
    other.commit("a", batch(*range(10)))
    other.flush()
    disk = left_behind()
    stray = segment(disk).with_name("seg-77.arrow")
    disk.write_bytes(stray, later.read_bytes(segment(later)))
    with pytest.raises(CorruptData, match=r"holds events 1\.\.10 that neither catalog nor log know") as caught:
        open_store(disk)
    assert caught.value.file == stray
    assert stray in disk.paths()


@pytest.mark.guarantee("G9")
def test_catalog_from_an_old_backup_is_refused() -> None:
    disk = CrashFilesystem()
    store = open_store(disk)
    store.commit("a", batch(1))
    store.flush()
    old = disk.read_bytes(ROOT / "catalog.db")
    store.commit("a", batch(2))
    store.close()
    open_store(disk).close()  # the log of the first process is trimmed here
    left = disk.after_kill()
    left.write_bytes(ROOT / "catalog.db", old)
    with pytest.raises(CorruptData, match="needed from position"):
        open_store(left)


def test_store_of_a_newer_format_is_refused_by_its_version() -> None:
    disk = left_behind()
    database = disk.database(ROOT / "catalog.db")
    with database.transaction() as change:
        change.execute("UPDATE meta SET value = '9' WHERE key = 'version'")
    database.close()
    with pytest.raises((UnsupportedFormat, CorruptData)):
        open_store(disk)


# --- what is mended -------------------------------------------------------------------------------------------------


def test_unfinished_files_are_removed_and_told() -> None:
    disk = left_behind()
    half = segment(disk).with_name("seg-99.arrow.tmp")
    disk.write_bytes(half, b"half")
    disk.write_bytes(ROOT / "wal" / "wal-0000000007.tmp", b"half")
    store = open_store(disk)
    assert store.recovery.removed == (half,)
    assert [path for path in disk.paths() if path.suffix == ".tmp"] == []


def test_segment_whose_events_are_in_the_log_is_removed_and_told() -> None:
    """Process death between naming and publishing a segment."""
    disk = CrashFilesystem()
    store = open_store(disk)
    store.commit("a", batch(1, 2))
    disk.fail_when(lambda operation, path: errno.EIO if operation == "commit" and is_named(disk) else None)
    with pytest.raises(StoreFailed):
        store.flush()
    left = disk.after_kill()
    orphan = segment(left)
    again = open_store(left)
    assert again.recovery.removed == (orphan,)
    assert numbers(again) == [1, 2]
    again.flush()
    assert segment(left) != orphan, "its number is not used again"


def is_named(disk: CrashFilesystem) -> bool:
    """Whether a segment has its name already."""
    return any(path.suffix == ".arrow" for path in disk.paths())


def test_torn_tail_is_cut_and_told() -> None:
    disk = left_behind()
    path = ROOT / "wal" / "wal-0000000001.log"
    data = disk.read_bytes(path)
    end = len(data.rstrip(b"\0"))
    disk.write_bytes(path, data[:end] + b"half a record" + data[end + 13 :])
    store = open_store(disk)
    assert store.recovery.cut is not None
    assert (store.recovery.cut.path, store.recovery.cut.cut_at_bytes) == (path, end)
    assert re.search("record|header", store.recovery.cut.reason)
    assert numbers(store) == [1, 2, 3]


def test_foreign_files_are_left_alone() -> None:
    disk = left_behind()
    for name in ("channels/a/notes.txt", "channels/README", "wal/readme", "other"):
        disk.write_bytes(ROOT / name, b"mine")
    open_store(disk).close()
    assert disk.read_bytes(ROOT / "channels/a/notes.txt") == b"mine"
    assert disk.read_bytes(ROOT / "wal/readme") == b"mine"


# --- what is known again --------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G3")
def test_frames_of_the_log_and_of_segments_are_known_again() -> None:
    store = open_store(left_behind())
    for fsn, seqs in ((1, (1, 2)), (2, (3, 3))):
        receipt = store.commit("a", batch(9), identity=SlotFrame(b"s" * 16, Fsn(fsn)))
        assert (receipt.duplicate, receipt.first_seq, receipt.last_seq) == (True, *seqs)


@pytest.mark.guarantee("G4")
def test_schema_of_a_channel_is_known_again() -> None:
    disk = CrashFilesystem()
    store = open_store(disk)
    store.commit("a", pa.record_batch({"n": pa.array([1], pa.int32())}))
    store.commit("a", pa.record_batch({"n": pa.array([2], pa.int64()), "x": ["y"]}))
    for left in (disk.after_kill(), disk.after_power_cut(0)):
        again = open_store(left)
        assert again.schema("a") == pa.schema([("n", pa.int64()), ("x", pa.string())])
        again.commit("a", pa.record_batch({"n": pa.array([3], pa.int32())}))
        assert numbers(again) == [1, 2, 3]


# --- what a start costs ---------------------------------------------------------------------------------------------


class ListedFilesystem(LocalFilesystem):
    """Knows which directories were listed."""

    def __init__(self) -> None:
        self.listed: list[Path] = []

    def listdir(self, path: Path) -> list[DirEntry]:
        self.listed.append(path)
        return super().listdir(path)


def test_start_lists_the_directory_of_a_channel_once(tmp_path: Path) -> None:
    with Store.open(tmp_path, TINY) as store:
        store.commit("a", batch(1))
        store.flush()
    disk = ListedFilesystem()
    with Store.open(tmp_path, TINY, filesystem=disk) as store:
        assert numbers(store) == [1]
        assert disk.listed.count(tmp_path / "channels" / "a") == 1
