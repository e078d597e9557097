"""Large frames go straight into the file of their segment, once; everybody reads the same events as without."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.disk.filesystem import Mode
from holdfast.disk.local import LocalFile, LocalFilesystem
from holdfast.errors import Backpressure, DiskFull, StoreFailed
from holdfast.model.frame import Entry, PlainFrame
from holdfast.store import direct
from holdfast.store.lane import Lane
from holdfast.store.segments import growing as growing_module
from holdfast.store.segments.growing import GrowingSegment
from holdfast.store.segments.reader import SegmentReader
from holdfast.store.segments.writer import PrefixDiffers
from holdfast.store.verify import verify_store
from holdfast.testing import CrashFilesystem, ManualClock

LARGE = 4096
SETTINGS: dict[str, object] = {
    "segment.direct_size": "4KiB",
    "segment.target_size": "256KiB",
    "wal.rotation_size": "256KiB",
    "wal.max_size": "1MiB",
    "memory_limit": "256KiB",
    "frame.max_size": "64KiB",
}


def batch(first: int, *, body: int = 2 * LARGE) -> pa.RecordBatch:
    """Ten events; their bodies have so many bytes together."""
    numbers = range(first, first + 10)
    return pa.record_batch(
        {
            "n": pa.array(numbers, pa.int64()),
            "body": pa.array([b"%04d" % n * (body // 40) for n in numbers], pa.binary()),
        }
    )


def small(first: int) -> pa.RecordBatch:
    """Ten events that go through the log."""
    return batch(first, body=40)


@pytest.fixture
def disk() -> CrashFilesystem:
    return CrashFilesystem()


def open_on(disk: CrashFilesystem, settings: dict[str, object] | None = None) -> Store:
    return Store.open("/s", {**SETTINGS, **(settings or {})}, filesystem=disk, clock=ManualClock(), inline=True)


def numbers(store: Store, channel: str = "a") -> list[int]:
    return [n for part in store.read(channel) for n in part.column("n").to_pylist()]


def growing(disk: CrashFilesystem) -> list[Path]:
    return [path for path in disk.paths() if path.suffix == ".growing"]


def only_segment(disk: CrashFilesystem) -> Path:
    (path,) = [path for path in disk.paths() if path.suffix == ".arrow"]
    return path


# --- where the bytes go ---------------------------------------------------------------------------------------------


def test_large_frame_is_in_its_segment_and_not_in_the_log(disk: CrashFilesystem) -> None:
    store = open_on(disk)
    size = len(batch(1).serialize())
    before = store.statistics().wal_bytes
    store.commit("a", batch(1))
    assert store.statistics().wal_bytes - before < 1024 < size
    (path,) = growing(disk)
    assert batch(1).serialize().to_pybytes() in disk.read_bytes(path)
    assert numbers(store) == list(range(1, 11))


def test_sealing_adds_a_footer_and_writes_no_event_again(disk: CrashFilesystem) -> None:
    store = open_on(disk)
    for first in range(1, 101, 10):
        store.commit("a", batch(first))
    (path,) = growing(disk)
    filled = disk.read_bytes(path).rstrip(b"\0")
    store.flush()
    segment = disk.read_bytes(only_segment(disk))
    assert segment.startswith(filled)
    assert len(segment) - len(filled) < 8192 < len(filled)
    assert not growing(disk)
    assert pa.ipc.open_file(pa.py_buffer(segment)).read_all().column("n").to_pylist() == list(range(1, 101))


def test_large_frames_of_a_train_go_into_the_segment_too(disk: CrashFilesystem) -> None:
    store = open_on(disk)
    store.commit("a", batch(1))
    more = [batch(11), small(21), batch(31)]
    frames = [PlainFrame("a", part.schema, part.serialize().to_pybytes(), part.num_rows, None) for part in more]
    train = store.commit_train(frames, lane=Lane())
    assert train is not None
    assert train.done()
    (path,) = growing(disk)
    assert all(part.serialize().to_pybytes() in disk.read_bytes(path) for part in more)
    assert numbers(store) == numbers(open_on(disk.after_power_cut(0))) == list(range(1, 41))


def test_small_frames_between_large_ones_keep_their_place(disk: CrashFilesystem) -> None:
    store = open_on(disk)
    for place, first in enumerate(range(1, 201, 10)):
        store.commit("a", batch(first) if place % 3 == 1 else small(first))
        assert numbers(store) == list(range(1, first + 10))
    store.flush()
    assert store.statistics().sealed_segments == 1
    assert numbers(store) == list(range(1, 201))


def test_filled_segment_proves_itself_like_any_other(disk: CrashFilesystem) -> None:
    store = open_on(disk)
    for first in range(1, 61, 10):
        store.commit("a", batch(first) if first % 20 == 1 else small(first))
    store.flush()
    reader = SegmentReader.open(disk.open(only_segment(disk), Mode.READ))
    assert (reader.meta.first_seq, reader.meta.last_seq) == (1, 60)
    assert sum(part.num_rows for _, part in reader.batches()) == 60


def test_segments_are_cut_where_they_would_be_without(disk: CrashFilesystem) -> None:
    cuts = []
    for size in ("4KiB", "1GiB"):
        other = CrashFilesystem()
        store = open_on(other, {"segment.direct_size": size, "segment.target_size": "24KiB"})
        for first in range(1, 301, 10):
            store.commit("a", batch(first) if first % 20 == 1 else small(first))
        store.flush()
        cuts.append([item.meta.first_seq for item in store.listing.segments("a", from_seq=1, limit=100)])
    assert cuts[0] == cuts[1]


# --- what goes through the log all the same ---------------------------------------------------------------------------


def foreign(first: int) -> pa.Buffer:
    """The message of a batch as another Arrow library may write it: with more padding."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch(first).schema, options=pa.ipc.IpcWriteOptions()) as writer:
        writer.write_batch(batch(first))
    message = batch(first).serialize().to_pybytes()
    head = 8 + int.from_bytes(message[4:8], "little")
    return pa.py_buffer(
        message[:4] + (head - 8 + 56).to_bytes(4, "little") + message[8:head] + bytes(56) + message[head:]
    )


@pytest.mark.parametrize(
    "settings",
    [{"segment.compression": "zstd"}, {"wal.flush": "interval"}, {"segment.direct_size": "1MiB"}],
    ids=["compressed", "weak", "not large"],
)
def test_frame_whose_bytes_are_not_those_of_the_segment_goes_through_the_log(
    disk: CrashFilesystem, settings: dict[str, object]
) -> None:
    store = open_on(disk, settings)
    store.commit("a", batch(1))
    assert not growing(disk)
    store.close()
    assert numbers(open_on(disk, settings)) == list(range(1, 11))


def test_frame_with_dictionaries_goes_through_the_log(disk: CrashFilesystem) -> None:
    store = open_on(disk)
    table = batch(1).append_column("word", pa.array(["a", "b"] * 5).dictionary_encode())
    store.commit("a", table)
    assert not growing(disk)


def test_message_with_other_padding_goes_through_the_log(disk: CrashFilesystem) -> None:
    store = open_on(disk)
    message = foreign(1)
    received = pa.ipc.read_record_batch(message, batch(1).schema)
    store.commit_frame([Entry("a", received, message=message)])
    assert not growing(disk)
    assert numbers(store) == list(range(1, 11))


def test_large_frame_behind_a_long_row_of_small_ones_goes_through_the_log(
    disk: CrashFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "BACKLOG_BYTES_MAX", 2000)
    store = open_on(disk)
    for first in range(1, 101, 10):
        store.commit("a", small(first))
    store.commit("a", batch(101))
    assert not growing(disk)
    assert numbers(store) == list(range(1, 111))


def test_no_more_than_so_many_files_are_filled_at_a_time(
    disk: CrashFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "FILES_MAX", 3)
    store = open_on(disk)
    for number in range(5):
        store.commit(f"c{number}", batch(1))
    assert len(growing(disk)) == 3
    store.flush()
    store.commit("c4", batch(11))
    assert len(growing(disk)) == 1
    assert numbers(store, "c4") == list(range(1, 21))


# --- when the disk does not take it -----------------------------------------------------------------------------------


def test_no_room_for_a_file_sends_the_frame_through_the_log(disk: CrashFilesystem) -> None:
    store = open_on(disk)
    store.commit("a", small(1))
    disk.fail_when(lambda operation, path: errno.ENOSPC if path.suffix == ".growing" else None)
    store.commit("a", batch(11))
    disk.stop_failing()
    assert not growing(disk)
    assert numbers(store) == list(range(1, 21))


def test_group_that_is_written_in_pieces_is_hastened_and_read_back_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real disk; the bytes of a piece are in the file when the disk is asked to begin with them."""
    asked: list[tuple[int, int]] = []
    begin = LocalFile.hasten

    def hasten(self: LocalFile, offset_bytes: int, count: int) -> None:
        asked.append((offset_bytes, count))
        assert self.pread(count, offset_bytes).strip(b"\0")
        begin(self, offset_bytes, count)

    monkeypatch.setattr(growing_module, "HASTEN_BYTES", LARGE)
    monkeypatch.setattr(LocalFile, "hasten", hasten)
    with Store.open(tmp_path, SETTINGS) as store:
        store.commit_frame([Entry("a", batch(first)) for first in (1, 11, 21)])
        store.flush()
        assert numbers(store) == list(range(1, 31))
    assert len(asked) == 2
    assert asked[0][0] + asked[0][1] == asked[1][0]
    assert verify_store(LocalFilesystem(), tmp_path).intact


@pytest.mark.parametrize("already", [0, 2], ids=["new file", "file in use"])
def test_no_room_for_the_bytes_refuses_the_frame_and_leaves_nothing_of_it(disk: CrashFilesystem, already: int) -> None:
    store = open_on(disk)
    for number in range(already):
        store.commit("a", batch(1 + 10 * number))
    expected = list(range(1, 1 + 10 * already))
    disk.fail_when(
        lambda operation, path: errno.ENOSPC if (operation, path.suffix) == ("pwritev", ".growing") else None
    )
    with pytest.raises(DiskFull):
        store.commit("a", batch(901))
    disk.stop_failing()
    assert numbers(store) == expected if already else "a" not in store.channels() or numbers(store) == []
    assert store.commit("a", batch(1 + 10 * already)).first_seq == 1 + 10 * already
    expected = list(range(1, 11 + 10 * already))
    assert numbers(store) == expected
    left = disk.after_power_cut(0)
    store = open_on(left)
    assert numbers(store) == expected
    store.close()
    assert not growing(left)


@pytest.mark.parametrize("operation", ["sync_data", "pwritev"])
def test_failed_file_of_a_large_frame_ends_the_store_and_its_log(disk: CrashFilesystem, operation: str) -> None:
    store = open_on(disk)
    store.commit("a", batch(1))
    code = errno.EIO
    disk.fail_when(lambda done, path: code if (done, path.suffix) == (operation, ".growing") else None)
    with pytest.raises(StoreFailed):
        store.commit("a", batch(11))
    disk.stop_failing()
    with pytest.raises(StoreFailed):
        store.commit("a", small(21))
    for left in (disk.after_power_cut(0), disk.after_kill()):
        assert numbers(open_on(left))[:10] == list(range(1, 11))


def test_segment_that_cannot_be_finished_for_lack_of_room_is_written_anew(disk: CrashFilesystem) -> None:
    store = open_on(disk)
    store.commit("a", batch(1))
    disk.fail_when(lambda operation, path: errno.ENOSPC if (operation, path.suffix) == ("sync", ".growing") else None)
    with pytest.raises(DiskFull):
        store.flush()
    disk.stop_failing()
    assert numbers(store) == list(range(1, 11))
    store.flush()
    assert not growing(disk)
    assert only_segment(disk).parent.name == "a"
    assert numbers(store) == list(range(1, 11))


def test_file_that_differs_from_what_arrow_writes_gets_no_footer(
    disk: CrashFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish(self: GrowingSegment, *_: object, **__: object) -> None:
        self.abandon()
        raise PrefixDiffers("of no matter where")

    store = open_on(disk)
    store.commit("a", batch(1))
    monkeypatch.setattr(GrowingSegment, "finish", finish)
    store.flush()
    assert not growing(disk)
    assert only_segment(disk).parent.name == "a"
    assert numbers(store) == list(range(1, 11))


def test_segments_are_published_in_the_order_of_their_numbers(disk: CrashFilesystem) -> None:
    """Who lists segments goes on behind the highest number; a file that is filled for long must not come below it."""
    store = open_on(disk)
    published: list[int] = []
    store._sealer.on_seal = lambda segment_seq, _: published.append(segment_seq)
    for number in range(8):
        store.commit("slow", batch(1 + 10 * number))
        store.commit(f"fast{number}", small(1))
        store.seal(f"fast{number}")
        store._run_inline()
    store.flush()
    assert len(published) == 9
    assert published == sorted(published)


def test_segment_that_was_named_and_not_published_is_found_by_its_footer(disk: CrashFilesystem) -> None:
    store = open_on(disk)
    store.commit("a", batch(1))
    disk.fail_when(lambda operation, path: errno.EIO if path.name == "catalog.db" else None)
    with pytest.raises(StoreFailed):
        store.flush()
    disk.stop_failing()
    assert only_segment(disk).parent.name == "a"
    for left in (disk.after_kill(), disk.after_power_cut(0)):
        again = open_on(left)
        assert numbers(again) == list(range(1, 11))
        again.close()
        assert numbers(open_on(left)) == list(range(1, 11))
        assert len([path for path in left.paths() if path.suffix in (".arrow", ".growing")]) == 1


# --- bounds and threads -----------------------------------------------------------------------------------------------


def commit_without_end(store: Store) -> None:
    for number in range(400):
        store.commit(f"c{number % 8}", batch(1))


def test_bytes_in_files_need_no_memory_and_count_with_the_log(tmp_path: Path) -> None:
    settings = {**SETTINGS, "segment.max_open_duration": "1h", "segment.target_size": "256KiB", "commit_timeout": "0s"}
    disk = CrashFilesystem()
    store = Store.open("/s", settings, filesystem=disk, clock=ManualClock(), inline=True)
    disk.fail_when(lambda operation, path: errno.ENOSPC if path.suffix == ".arrow" else None)  # nothing is sealed
    with pytest.raises(Backpressure, match=r"wal\.max_size"):
        commit_without_end(store)
    stored = store.statistics().tail
    assert stored.open_bytes + stored.cut_bytes > 2 * store.config.memory_limit_bytes


def test_flush_waits_for_a_unit_that_is_being_written(tmp_path: Path) -> None:
    """A unit is not sealed between the write of a large frame and its acceptance, and not forgotten after it."""
    with Store.open(tmp_path, SETTINGS) as store:
        done = threading.Event()

        def flush_all_the_time() -> None:
            while not done.is_set():
                store.flush()

        flushing = threading.Thread(target=flush_all_the_time)
        flushing.start()
        try:
            for first in range(1, 1001, 10):
                store.commit("a", batch(first) if first % 30 else small(first))
        finally:
            done.set()
            flushing.join()
        store.flush()
        assert store.statistics().tail.open_units == 0
        assert numbers(store) == list(range(1, 1001))
    assert not list(tmp_path.rglob("*.growing"))


def test_many_callers_with_large_and_small_frames_get_what_they_were_told(tmp_path: Path) -> None:
    told: dict[int, int] = {}

    def produce(store: Store, worker: int) -> None:
        for first in range(worker * 1000, worker * 1000 + 200, 10):
            receipt = store.commit("a", batch(first) if first % 20 else small(first))
            told[first] = receipt.first_seq

    with Store.open(tmp_path, SETTINGS) as store:
        workers = [threading.Thread(target=produce, args=(store, number)) for number in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        found = numbers(store)
    with Store.open(tmp_path, SETTINGS) as store:
        assert numbers(store) == found
    for first, seq in told.items():
        assert found[seq - 1 : seq + 9] == list(range(first, first + 10))


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux which pages of a file are in memory")
def test_file_of_large_frames_leaves_memory_once_it_is_sealed_and_nobody_follows(tmp_path: Path) -> None:
    if os.statvfs(tmp_path).f_fsid == 0:
        pytest.skip("this temporary directory is memory")
    held: dict[str, int] = {}
    with Store.open(tmp_path / "s", SETTINGS, inline=True) as store:
        store.subscriber("reader", ["read"])
        for channel in ("read", "unread"):
            for first in range(0, 100, 10):
                store.commit(channel, batch(first))
        store.flush()
        for path in sorted(tmp_path.rglob("*.arrow")):
            held[path.parent.name] = pages_in_memory(path)
    assert held["read"] > 0
    assert held["unread"] == 0


def pages_in_memory(path: Path) -> int:
    """How many pages of a file the kernel holds."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED) as mapping:
        address = ctypes.addressof(anchor := ctypes.c_char.from_buffer(mapping))
        pages = -(-len(mapping) // mmap.PAGESIZE)
        states = (ctypes.c_ubyte * pages)()
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(mapping)), states) == 0
        del anchor
    return sum(state & 1 for state in states)
