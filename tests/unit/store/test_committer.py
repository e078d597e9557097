"""Group commit with real threads on a real disk: many callers, one sync, and every one in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.disk.filesystem import Mode
from holdfast.disk.local import LocalFile, LocalFilesystem
from holdfast.errors import Backpressure, Closed
from holdfast.model.frame import Durability, Entry, EventIds, Receipt, SlotFrame
from holdfast.model.positions import Fsn

T = TypeVar("T")
THREADS = 8
FRAMES = 150
SETTINGS: dict[str, object] = {
    "segment.target_size": "64KiB",
    "wal.rotation_size": "256KiB",
    "wal.max_size": "4MiB",
    "memory_limit": "1MiB",
    "frame.max_size": "64KiB",
}


class WatchedFile(LocalFile):
    """A file whose data syncs can be watched and held up."""

    __slots__ = ("_watch",)

    def __init__(self, fd: int, path: Path, watch: Watch) -> None:
        super().__init__(fd, path)
        self._watch = watch

    def sync_data(self) -> None:
        self._watch.gate.wait(30)
        super().sync_data()
        self._watch.synced.set()


class Watch(LocalFilesystem):
    """The machine's disk. `synced` is set by every data sync; none passes while `gate` is clear."""

    def __init__(self) -> None:
        self.synced = threading.Event()
        self.gate = threading.Event()
        self.gate.set()

    def open(self, path: Path, mode: Mode) -> LocalFile:
        file = super().open(path, mode)
        return WatchedFile(file._fd, path, self) if mode is Mode.CREATE else file


def in_threads(count: int, work: Callable[[int], T]) -> list[T]:
    """Run `work(0..count-1)`, all at once; the first error is raised."""
    barrier = threading.Barrier(count)

    def begin(number: int) -> T:
        barrier.wait(30)
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return [future.result(60) for future in [pool.submit(begin, number) for number in range(count)]]


def batch(values: Sequence[int], *, pad: int = 0) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64()), "pad": pa.array([b"x" * pad] * len(values))})


def rows(store: Store, channel: str) -> list[dict[str, object]]:
    found = store.read(channel, columns=["n"], system=["_seq", "_committed_id"])
    return [row for part in found for row in part.to_pylist()]


@pytest.mark.guarantee("G4")
def test_many_threads_get_contiguous_numbers_each_in_its_order(tmp_path: Path) -> None:
    with Store.open(tmp_path, SETTINGS) as store:

        def produce(thread: int) -> list[Receipt]:
            return [store.commit("a", batch([thread * 10_000 + n])) for n in range(FRAMES)]

        receipts = in_threads(THREADS, produce)
        found = rows(store, "a")
        statistics = store.statistics()
    assert [row["_seq"] for row in found] == list(range(1, THREADS * FRAMES + 1))
    by_seq = {row["_seq"]: row["n"] for row in found}
    for thread, mine in enumerate(receipts):
        assert [by_seq[receipt.first_seq] for receipt in mine] == [thread * 10_000 + n for n in range(FRAMES)]
        assert [receipt.first_seq for receipt in mine] == sorted(receipt.first_seq for receipt in mine)
    assert statistics.frames == THREADS * FRAMES
    assert statistics.syncs < statistics.frames, "every frame had a sync of its own"


def test_one_sync_serves_all_who_came_while_the_disk_was_busy(tmp_path: Path) -> None:
    disk = Watch()
    with Store.open(tmp_path, SETTINGS, filesystem=disk) as store:
        store.commit("a", batch([0]))
        disk.gate.clear()
        held = store.commit_async("a", batch([1]))
        waiting = [store.commit_async("a", batch([n])) for n in range(2, 202)]
        before = store.statistics().syncs
        disk.gate.set()
        receipts = [future.result(30).entries[0] for future in (held, *waiting)]
        assert store.statistics().syncs - before <= 2
    assert [receipt.first_seq for receipt in receipts] == list(range(2, 203))


def test_nobody_is_answered_or_read_before_the_sync(tmp_path: Path) -> None:
    disk = Watch()
    with Store.open(tmp_path, SETTINGS, filesystem=disk) as store:
        store.commit("a", batch([0]))
        disk.gate.clear()
        future = store.commit_async("a", batch([1]))
        assert not future.done()
        assert [row["n"] for row in rows(store, "a")] == [0]
        disk.gate.set()
        future.result(30)
        assert [row["n"] for row in rows(store, "a")] == [0, 1]


@pytest.mark.guarantee("G3")
def test_one_frame_sent_by_many_threads_at_once_is_stored_once(tmp_path: Path) -> None:
    with Store.open(tmp_path, SETTINGS) as store:
        for fsn in range(40):

            def send(_thread: int, fsn: int = fsn) -> Receipt:
                return store.commit("a", batch([fsn]), identity=SlotFrame(b"s" * 16, Fsn(fsn)))

            answers = in_threads(4, send)
            assert len({(answer.first_seq, answer.first_committed_id) for answer in answers}) == 1
            assert sum(not answer.duplicate for answer in answers) == 1
        assert [row["n"] for row in rows(store, "a")] == list(range(40))


@pytest.mark.guarantee("G3")
def test_event_ids_sent_by_many_threads_while_sealing_are_stored_once(tmp_path: Path) -> None:
    """Ids move from memory to the catalog all the time; none is ever in neither."""
    with Store.open(tmp_path, {**SETTINGS, "segment.target_size": "4KiB"}) as store:

        def produce(thread: int) -> None:
            for n in range(0, 300, 3):
                store.commit("a", batch([n, n + 1, n + 2], pad=200), identity=EventIds("n"))

        in_threads(4, produce)
        assert sorted(int(str(row["n"])) for row in rows(store, "a")) == list(range(300))
        assert store.statistics().sealed_segments > 2  # how many depends on how much was committed together


@pytest.mark.guarantee("G4")
def test_reader_beside_sealing_sees_no_gap_and_no_repeat(tmp_path: Path) -> None:
    done = threading.Event()
    with Store.open(tmp_path, {**SETTINGS, "segment.target_size": "4KiB"}) as store:
        store.commit("a", batch([0]))

        def work(number: int) -> int:
            if number == 0:
                for n in range(1, 600):
                    store.commit("a", batch([n], pad=200))
                done.set()
                return 0
            pictures = 0
            while not done.is_set():
                values = [row["n"] for row in rows(store, "a")]
                assert values == list(range(len(values)))
                pictures += 1
            return pictures

        pictures = in_threads(2, work)
        assert store.statistics().sealed_segments > 2  # the reader may leave the sealer little time
        assert [row["n"] for row in rows(store, "a")] == list(range(600))
    assert pictures[1] > 0


@pytest.mark.guarantee("G4")
def test_reader_by_committed_id_sees_frames_whole(tmp_path: Path) -> None:
    """A frame over three channels is in every picture with all its parts, so committed_ids have no holes."""
    done = threading.Event()
    with Store.open(tmp_path, {**SETTINGS, "segment.target_size": "4KiB"}) as store:

        def work(number: int) -> None:
            if number == 0:
                for n in range(300):
                    store.commit_frame([Entry(channel, batch([n], pad=100)) for channel in ("a", "b", "c")])
                done.set()
                return
            while not done.is_set():
                found = [(n, channel) for channel, part in store.read_committed() for n in part.column("n").to_pylist()]
                assert found == [(n // 3, "abc"[n % 3]) for n in range(len(found))]
                assert len(found) % 3 == 0

        in_threads(2, work)


@pytest.mark.guarantee("G11")
def test_memory_stays_within_its_bound_under_load(tmp_path: Path) -> None:
    done = threading.Event()
    settings = {**SETTINGS, "segment.target_size": "16KiB", "memory_limit": "128KiB", "frame.max_size": "32KiB"}
    with Store.open(tmp_path, settings) as store:

        def work(number: int) -> int:
            if number:
                for n in range(40):
                    store.commit(f"c{number}", batch([n], pad=20_000))
                return 0
            highest = 0
            while not done.wait(0.001):
                tail = store.statistics().tail
                highest = max(highest, tail.queued_bytes + tail.open_bytes + tail.cut_bytes)
                if store.statistics().events >= 5 * 40:
                    done.set()
            return highest

        highest = in_threads(6, work)[0]
        assert store.statistics().events == 200
        assert store.statistics().tail.throttled > 0
    assert 0 < highest <= 128 * 1024


@pytest.mark.guarantee("G11")
def test_caller_at_the_bound_waits_and_then_is_told_which_bound(tmp_path: Path) -> None:
    disk = Watch()
    settings = {**SETTINGS, "memory_limit": "64KiB", "frame.max_size": "32KiB", "commit_timeout": "50ms"}
    with Store.open(tmp_path, settings, filesystem=disk) as store:
        store.commit("a", batch([0]))
        disk.gate.clear()
        futures = [store.commit_async("a", batch([n], pad=20_000)) for n in range(1, 4)]
        with pytest.raises(Backpressure) as caught:
            store.commit("a", batch([4], pad=20_000))
        with pytest.raises(Backpressure, match=r"after waiting 0\.0 s"):
            store.commit_frame_async([Entry("a", batch([5], pad=20_000))], wait=False)
        disk.gate.set()
        for future in futures:
            future.result(30)
        assert [row["n"] for row in rows(store, "a")] == [0, 1, 2, 3]
        assert store.commit("a", batch([6])).first_seq == 5
    assert caught.value.bound == "memory_limit"
    assert caught.value.waited_s >= 0.05
    assert caught.value.used_bytes <= caught.value.cap_bytes == 64 * 1024


def test_close_answers_everything_that_is_in_flight(tmp_path: Path) -> None:
    disk = Watch()
    store = Store.open(tmp_path, SETTINGS, filesystem=disk)
    store.commit("a", batch([0]))
    disk.gate.clear()
    futures = [store.commit_async("a", batch([n])) for n in range(1, 50)]
    closing = threading.Thread(target=store.close)
    closing.start()
    disk.gate.set()
    closing.join(30)
    assert not closing.is_alive()
    assert [future.result(0).entries[0].first_seq for future in futures] == list(range(2, 51))
    with Store.open(tmp_path, SETTINGS) as again:
        assert again.recovery.recovered_events == 0
        assert [row["n"] for row in rows(again, "a")] == list(range(50))


def test_commit_beside_close_is_stored_or_refused(tmp_path: Path) -> None:
    """Threads commit while another closes: whoever got a receipt is stored, everybody else is told `Closed`."""
    for round_number in range(5):
        directory = tmp_path / str(round_number)
        store = Store.open(directory, SETTINGS)
        store.commit("a", batch([-1]))

        def work(thread: int, store: Store = store) -> list[int]:
            accepted: list[int] = []
            if thread == 0:
                store.close()
                return accepted
            for n in range(200):
                try:
                    store.commit("a", batch([thread * 1000 + n]))
                except Closed:
                    return accepted
                accepted.append(thread * 1000 + n)
            return accepted

        accepted = {n for mine in in_threads(4, work) for n in mine}
        with Store.open(directory, SETTINGS) as again:
            assert {int(str(row["n"])) for row in rows(again, "a")} == accepted | {-1}


def test_timer_of_a_weak_policy_syncs_without_another_commit(tmp_path: Path) -> None:
    disk = Watch()
    with Store.open(
        tmp_path, {**SETTINGS, "wal.flush": "interval", "wal.flush_interval": "20ms"}, filesystem=disk
    ) as store:
        store.commit("a", batch([0]))  # creates the channel, so it is synced at once
        disk.synced.clear()
        assert store.commit("a", batch([1])).durability is Durability.WRITTEN
        assert disk.synced.wait(10), "the timer never came"


def test_sealing_under_a_weak_policy_waits_for_the_sync(tmp_path: Path) -> None:
    """With threads: flush returns although nothing else asks for a sync."""
    with Store.open(tmp_path, {**SETTINGS, "wal.flush": "interval", "wal.flush_interval": "1h"}) as store:
        store.commit("a", batch([0]))
        store.commit("a", batch([1]))
        before = store.statistics().syncs
        store.flush()
        assert store.statistics().syncs == before + 1
        assert store.statistics().segment_events == 2
