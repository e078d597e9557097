"""Units become segments: when, in which form, and what happens to the log. On the crash disk."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.disk.filesystem import Mode
from holdfast.errors import DiskFull, StoreFailed
from holdfast.model.frame import Guid
from holdfast.store import sealer as module
from holdfast.store.segments.reader import SegmentReader
from holdfast.testing import CrashFilesystem, ManualClock

ROOT = Path("/store")
TINY: dict[str, object] = {
    "segment.target_size": "8KiB",
    "wal.rotation_size": "64KiB",
    "wal.max_size": "1MiB",
    "memory_limit": "64KiB",
    "frame.max_size": "32KiB",
}


class Rig:
    """A store in the caller's thread, with its disk and clock."""

    def __init__(self, **settings: object) -> None:
        self.disk = CrashFilesystem()
        self.clock = ManualClock()
        self.settings = {**TINY, **{key.replace("__", "."): value for key, value in settings.items()}}
        self.store = self.open(self.disk)

    def open(self, disk: CrashFilesystem) -> Store:
        return Store.open(ROOT, self.settings, filesystem=disk, clock=self.clock, inline=True)

    def reopen(self) -> None:
        """The process dies, and another one goes on."""
        self.disk = self.disk.after_kill()
        self.store = self.open(self.disk)

    def commit(self, channel: str, *values: int, pad: int = 0) -> None:
        self.store.commit(channel, batch(*values, pad=pad))

    def segments(self, channel: str = "a") -> list[Path]:
        found = [path for path in self.disk.paths() if path.parent == ROOT / "channels" / channel]
        return sorted(found, key=lambda path: int(path.stem.removeprefix("seg-")))

    def log_files(self) -> list[str]:
        return [path.name for path in self.disk.paths() if path.parent == ROOT / "wal"]


def batch(*values: int, pad: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64()), "pad": pa.array([b"x" * pad] * len(values))})


# --- when -----------------------------------------------------------------------------------------------------------


def test_segment_is_sealed_when_it_is_large_enough() -> None:
    rig = Rig()
    rig.commit("a", 1, pad=5000)
    assert rig.segments() == []
    rig.commit("a", 2, pad=5000)
    assert len(rig.segments()) == 1


def test_segment_is_sealed_when_it_is_old_enough() -> None:
    rig = Rig(segment__max_open_duration="2s")
    rig.commit("a", 1)
    rig.clock.advance(1.9)
    rig.commit("b", 1)
    assert rig.segments() == []
    rig.clock.advance(0.1)
    rig.commit("b", 2)
    assert len(rig.segments()) == 1


def test_segment_is_sealed_in_time_though_every_process_dies_before() -> None:
    rig = Rig(segment__max_open_duration="2s")
    rig.commit("quiet", 1)
    for n in range(3):
        rig.clock.advance(0.5)
        rig.reopen()
        rig.commit("busy", n, pad=9000)
        assert rig.segments("quiet") == [], "it is not due"
    rig.clock.advance(0.5)
    rig.reopen()
    assert len(rig.segments("quiet")) == 1
    assert len(rig.log_files()) == 1, "nothing pins older ones"


def test_time_before_a_restart_counts_once() -> None:
    rig = Rig(segment__max_open_duration="2s")
    rig.commit("a", 1)
    rig.clock.advance(1.5)
    rig.reopen()
    rig.clock.advance(0.4)
    rig.commit("b", 1)
    assert rig.segments() == []
    rig.clock.advance(0.1)
    rig.commit("b", 2)
    assert len(rig.segments()) == 1


def test_clock_that_was_set_back_before_a_restart_keeps_no_segment_open_longer() -> None:
    rig = Rig(segment__max_open_duration="2s")
    rig.commit("a", 1)
    rig.clock.jump_wall(-3600)
    rig.reopen()
    rig.clock.advance(2)
    rig.commit("b", 1)
    assert len(rig.segments()) == 1


def test_segment_is_sealed_when_the_schema_grows() -> None:
    rig = Rig()
    rig.commit("a", 1)
    rig.store.commit("a", pa.record_batch({"n": pa.array([2], pa.int64()), "pad": [b""], "new": ["x"]}))
    assert len(rig.segments()) == 1
    rig.commit("a", 3)
    rig.store.flush()
    assert len(rig.segments()) == 2, "an older batch fits the newer schema"


@pytest.mark.guarantee("G11")
def test_segments_are_sealed_when_memory_is_short() -> None:
    rig = Rig(segment__target_size="64KiB")
    for channel in range(10):
        rig.commit(f"c{channel}", 1, pad=9000)
    statistics = rig.store.statistics()
    assert statistics.sealed_segments > 0
    assert statistics.tail.open_bytes + statistics.tail.cut_bytes <= 64 * 1024


@pytest.mark.guarantee("G11")
def test_log_stays_within_its_bound_because_old_events_are_sealed() -> None:
    rig = Rig(memory_limit="8MiB", segment__target_size="4MiB", segment__max_open_duration="1h")
    rig.commit("quiet", 1)
    for n in range(120):
        rig.commit("busy", n, pad=20_000)
        assert rig.store.statistics().wal_bytes <= 1024 * 1024
    assert rig.segments("quiet"), "it pinned the oldest log file"


# --- what -----------------------------------------------------------------------------------------------------------


def test_segment_says_what_it_holds() -> None:
    rig = Rig(event_time="at", signal="logs")
    at = pa.array([5, 9, 7], pa.timestamp("ns"))
    rig.store.commit("other", batch(0))
    rig.store.commit("a", pa.record_batch({"at": at}), identity=Guid(b"g" * 16))
    rig.clock.advance(1)
    rig.store.commit("a", pa.record_batch({"at": at}))
    rig.store.flush()
    file = rig.disk.open(rig.segments()[0], Mode.READ)
    meta = SegmentReader.open(file).meta
    assert (meta.channel, meta.first_seq, meta.last_seq, meta.rows, meta.signal) == ("a", 1, 6, 6, "logs")
    assert (meta.first_committed_id, meta.last_committed_id) == (2, 7)
    assert (meta.first_event_time_ns, meta.last_event_time_ns) == (5, 9)
    assert meta.last_ingested_at_ns - meta.first_ingested_at_ns == 10**9


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_compressed_segments_read_the_same(compression: str) -> None:
    rig = Rig(segment__compression=compression)
    rig.commit("a", *range(200), pad=20)
    rig.store.flush()
    assert [n for part in rig.store.read("a") for n in part.column("n").to_pylist()] == list(range(200))


def test_segment_numbers_count_over_all_channels() -> None:
    rig = Rig()
    for channel in ("a", "b", "a", "c"):
        rig.commit(channel, 1)
        rig.store.flush()
    names = [path.name for channel in ("a", "b", "c") for path in rig.segments(channel)]
    assert sorted(names) == [f"seg-{n}.arrow" for n in range(1, 5)]


# --- the log --------------------------------------------------------------------------------------------------------


def test_log_is_trimmed_once_its_events_are_published() -> None:
    rig = Rig()
    for n in range(20):
        rig.commit("a", n, pad=20_000)
    assert len(rig.log_files()) <= 2
    assert rig.store.statistics().wal_bytes <= 2 * 64 * 1024


@pytest.mark.guarantee("G1")
def test_log_file_stays_while_one_channel_needs_it() -> None:
    rig = Rig(segment__max_open_duration="1h")
    rig.commit("quiet", 1)
    for n in range(20):
        rig.commit("busy", n, pad=20_000)
    assert "wal-0000000001.log" in rig.log_files()
    rig.store.flush()
    assert "wal-0000000001.log" not in rig.log_files()


# --- trouble --------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G11")
def test_full_disk_postpones_sealing_and_says_so() -> None:
    rig = Rig()
    rig.commit("a", 1)
    rig.disk.fail_when(lambda operation, path: errno.ENOSPC if "channels" in str(path) else None)
    with pytest.raises(DiskFull):
        rig.store.flush()
    assert "No space left" in str(rig.store.statistics().seal_postponed)
    rig.commit("a", 2)
    rig.disk.stop_failing()
    rig.store.flush()
    assert rig.store.statistics().seal_postponed is None
    assert [n for part in rig.store.read("a") for n in part.column("n").to_pylist()] == [1, 2]


def test_segment_already_written_is_not_written_again_when_the_catalog_was_full() -> None:
    rig = Rig()
    rig.commit("a", 1)
    rig.disk.fail_when(lambda operation, path: errno.ENOSPC if operation == "commit" and rig.segments() else None)
    with pytest.raises(DiskFull):
        rig.store.flush()
    before = rig.segments()
    rig.disk.stop_failing()
    rig.store.flush()
    assert rig.segments() == before
    assert rig.store.statistics().segments == 1


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("operation", ["create", "pwritev", "sync", "rename", "sync_dir", "commit"])
def test_error_while_sealing_ends_the_store(operation: str) -> None:
    rig = Rig()
    rig.commit("a", 1)
    rig.disk.fail_when(lambda found, path: errno.EIO if found == operation and "wal" not in str(path) else None)
    with pytest.raises(StoreFailed, match="sealing failed"):
        rig.store.flush()
    with pytest.raises(StoreFailed):
        rig.commit("a", 2)


@pytest.mark.guarantee("G10")
def test_mistake_of_our_own_while_sealing_ends_the_store_and_not_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sealer that dies of a bug would fill memory, and nobody would know why."""

    def broken(*_arguments: object, **_options: object) -> None:
        raise RuntimeError("a bug")

    rig = Rig()
    rig.commit("a", 1)
    monkeypatch.setattr(module, "write_segment", broken)
    with pytest.raises(StoreFailed, match="RuntimeError: a bug"):
        rig.store.flush()
    monkeypatch.undo()
    again = rig.open(rig.disk.after_kill())
    assert [n for part in again.read("a") for n in part.column("n").to_pylist()] == [1]


@pytest.mark.guarantee("G10")
def test_failure_while_closing_is_raised_by_close() -> None:
    rig = Rig()
    rig.commit("a", 1)
    rig.disk.fail_when(lambda operation, path: errno.EIO if operation == "rename" else None)
    with pytest.raises(StoreFailed, match="sealing failed"):
        rig.store.close()
    rig.disk.stop_failing()
    again = rig.open(rig.disk)  # the directory is free again
    assert [n for part in again.read("a") for n in part.column("n").to_pylist()] == [1]


def test_memory_of_a_segment_that_nobody_follows_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    forgotten: list[str] = []
    monkeypatch.setattr(rig.disk, "forget", lambda path: forgotten.append(f"{path.parent.name}/{path.name}"))
    rig.store.subscriber("reader", ["read"])
    rig.commit("read", 1)
    rig.commit("unread", 2)
    rig.store.flush()
    (unread,) = [path for path in rig.disk.paths() if path.parent.name == "unread" and path.suffix == ".arrow"]
    assert forgotten == [f"unread/{unread.name}"]


def test_hint_that_fails_costs_the_store_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise FileNotFoundError(errno.ENOENT, "removed in the meantime", str(path))

    rig = Rig()
    monkeypatch.setattr(rig.disk, "forget", refuse)
    rig.commit("a", 1)
    rig.store.flush()
    assert rig.store.failure is None


def test_memory_of_a_segment_that_a_tier_will_read_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    forgotten: list[Path] = []
    monkeypatch.setattr(rig.disk, "forget", forgotten.append)
    rig.store.port.on_publish(lambda: None)
    rig.commit("a", 1)
    rig.store.flush()
    assert forgotten == []


def test_full_disk_is_told_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.commit("a", 1)
    rig.disk.fail_when(lambda operation, path: errno.ENOSPC if path.suffix == ".tmp" else None)
    for _ in range(3):
        with pytest.raises(DiskFull):
            rig.store.flush()
    rig.disk.stop_failing()
    rig.store.flush()
    told = [
        (record.levelname, record.message.split()[0]) for record in caplog.records if "store.seal" in record.message
    ]
    assert told == [("WARNING", "store.seal.postpone"), ("WARNING", "store.seal.resume")]
