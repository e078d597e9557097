"""Bugs that other systems had, by name, shown not to be here.

Process death and power loss are simulated on the crash disk; each test says which.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.errors import DiskFull, StoreFailed
from holdfast.model.frame import Entry, EventIds, Guid, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.testing import CrashFilesystem, ManualClock
from tests.crash.ledger import Ledger
from tests.crash.workload import FIRST_SESSION, STORE, open_store, send

SLOT = b"sixteen bytes ok"


def numbers(store: Store, channel: str = "a") -> list[int]:
    return [n for batch in store.read(channel) for n in batch.column("n").to_pylist()]


def batch(*values: int, pad: int = 0) -> pa.RecordBatch:
    return pa.record_batch(
        {"n": pa.array(values, pa.int64()), "pad": pa.array([b"%d" % value * pad for value in values], pa.binary())}
    )


def segments(disk: CrashFilesystem) -> list[Path]:
    return [path for path in disk.paths() if path.suffix == ".arrow"]


@pytest.mark.guarantee("G1")
def test_write_ahead_log_is_replayed_and_not_only_written() -> None:
    """Quiver #1951. Process death, then power loss: nothing was sealed, everything comes from the log."""
    disk, clock, ledger = CrashFilesystem(), ManualClock(), Ledger()
    store = open_store(disk, clock, {"segment.target_size": "64KiB"})
    for frame in FIRST_SESSION[:6]:
        send(store, frame, ledger.note)
    assert segments(disk) == []
    for left in (disk.after_kill(), disk.after_power_cut(0)):
        again = open_store(left, clock)
        assert again.recovery.recovered_frames == 6
        ledger.copy().check(again)


@pytest.mark.guarantee("G4")
def test_no_number_is_reused_after_all_segments_were_removed() -> None:
    """Quiver #4024. Retention deletes every segment, the log is trimmed, the process dies or the power goes."""
    disk, clock = CrashFilesystem(), ManualClock()
    settings = {"max_age": "1s"}
    store = open_store(disk, clock, settings)
    receipt = store.commit("a", batch(1, 2, 3), identity=SlotFrame(SLOT, Fsn(1)))
    store.flush()
    segment = segments(disk)[0]
    clock.advance(3600)
    store.commit("b", batch(9))  # any call lets retention work
    assert segment not in disk.paths()
    store.close()
    for left in (disk.after_kill(), disk.after_power_cut(0), disk.after_power_cut(1)):
        again = open_store(left, clock, settings)
        assert numbers(again) == []
        fresh = again.commit("a", batch(4))
        assert (fresh.first_seq, fresh.first_committed_id) == (4, receipt.first_committed_id + 4)
        again.flush()
        assert segment.name not in [path.name for path in segments(left)], "a segment number was used twice"
        repeat = again.commit("a", batch(1, 2, 3), identity=SlotFrame(SLOT, Fsn(1)))
        assert repeat.duplicate
        assert numbers(again) == [4]


@pytest.mark.guarantee("G4")
def test_no_number_is_reused_after_everything_was_sealed_and_trimmed() -> None:
    """Quiver #1855. The log is empty but for its floors; numbers go on where they were."""
    disk, clock = CrashFilesystem(), ManualClock()
    store = open_store(disk, clock)
    last = store.commit("a", batch(1, 2))
    for _ in range(5):
        store.close()
        store = open_store(disk, clock)
        assert store.recovery.recovered_events == 0
    fresh = store.commit("a", batch(3))
    assert (fresh.first_seq, fresh.first_committed_id) == (3, last.first_committed_id + 2)


@pytest.mark.guarantee("G1")
def test_dictionary_that_changes_from_frame_to_frame_loses_no_segment() -> None:
    """Quiver #2557. Every frame brings other words; the segment unifies them."""
    disk, clock = CrashFilesystem(), ManualClock()
    store = open_store(disk, clock)
    sent = [[f"word {n % 5} of {frame}" for n in range(10)] for frame in range(20)]
    for words in sent:
        store.commit("a", pa.record_batch({"word": pa.array(words).dictionary_encode()}))
    expected = [word for words in sent for word in words]
    for left in (disk.after_kill(), disk.after_power_cut(0)):
        again = open_store(left, clock)
        for _ in range(2):
            assert [word for part in again.read("a") for word in part.column("word").to_pylist()] == expected
            again.flush()
        assert again.statistics().segment_events == len(expected)


@pytest.mark.guarantee("G1")
def test_log_cursor_never_passes_a_seal_that_failed() -> None:
    """Quiver, suspect a. One unit cannot be sealed for lack of space, later ones can: the log keeps the first."""
    disk, clock, ledger = CrashFilesystem(), ManualClock(), Ledger()
    store = open_store(disk, clock)
    disk.fail_when(lambda operation, path: errno.ENOSPC if operation == "create" and "alpha" in str(path) else None)
    for frame in FIRST_SESSION:
        send(store, frame, ledger.note)
    with pytest.raises(DiskFull):
        store.flush()
    assert not [path for path in segments(disk) if path.parent.name == "alpha"]
    for left in (disk.after_kill(), disk.after_power_cut(0), disk.after_power_cut(1)):
        ledger.copy().check(open_store(left, clock))
    again = open_store(disk.after_kill(), clock)
    again.flush()
    ledger.check(again)


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G10")
def test_log_keeps_what_a_seal_that_failed_for_good_should_have_held() -> None:
    """Quiver, suspect a, with an input/output error: the store ends, the next process has everything."""
    disk, clock, ledger = CrashFilesystem(), ManualClock(), Ledger()
    store = open_store(disk, clock)
    for frame in FIRST_SESSION[:5]:
        send(store, frame, ledger.note)
    disk.fail_when(lambda operation, path: errno.EIO if operation == "rename" and "gamma" in str(path) else None)
    with pytest.raises(StoreFailed, match="sealing failed"):
        store.flush()
    ledger.check(open_store(disk.after_power_cut(0), clock))


def test_batch_without_events_is_neither_stored_nor_remembered() -> None:
    """Quiver #3891. Nothing to deliver, nothing to retry, and the same identity may bring events later."""
    disk, clock = CrashFilesystem(), ManualClock()
    store = open_store(disk, clock)
    store.commit("b", batch(7))
    before = [entry for entry in disk.log if entry[1] in ("pwritev", "sync_data")]
    identity = Guid(b"g" * 16)
    receipt = store.commit("a", batch(), identity=identity)
    assert (receipt.first_seq, receipt.last_seq, receipt.first_committed_id, receipt.duplicate) == (0, 0, 0, False)
    assert [entry for entry in disk.log if entry[1] in ("pwritev", "sync_data")] == before
    store.flush()
    assert [path.parent.name for path in segments(disk)] == ["b"]
    assert not store.commit("a", batch(1), identity=identity).duplicate
    assert numbers(open_store(disk.after_kill(), clock)) == [1]


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("nothing_new", ["no rows", "known ids", "no rows in one entry"])
def test_frame_that_stores_nothing_leaves_the_next_one_readable(nothing_new: str) -> None:
    """A schema announced by a frame that was not written must be announced again. Process death and power loss."""
    disk, clock = CrashFilesystem(), ManualClock()
    store = open_store(disk, clock)
    store.commit("a", batch(1), identity=EventIds("n"))
    store.close()
    store = open_store(disk, clock)
    if nothing_new == "no rows":
        store.commit("a", batch())
    elif nothing_new == "known ids":
        assert store.commit("a", batch(1), identity=EventIds("n")).duplicate
    else:
        store.commit_frame([Entry("b", batch(5)), Entry("a", batch())])
    store.commit("a", batch(2), identity=EventIds("n"))
    for left in (disk.after_kill(), disk.after_power_cut(0)):
        assert numbers(open_store(left, clock)) == [1, 2]


@pytest.mark.guarantee("G1")
def test_partly_trimmed_log_is_read_where_it_begins() -> None:
    """Quiver, suspect b. Positions come from the headers, not from counting the files that are left."""
    disk, clock = CrashFilesystem(), ManualClock()
    store = open_store(disk, clock)
    value = 0
    while len({path for _, operation, path in disk.log if operation == "unlink" and path.parent.name == "wal"}) < 2:
        value += 1
        store.commit("a", batch(value, pad=1500))
    for round_number in range(3):
        left = disk.after_kill() if round_number % 2 else disk.after_power_cut(0)
        assert not [path for path in left.paths() if path == STORE / "wal" / "wal-0000000001.log"]
        assert numbers(open_store(left, clock)) == list(range(1, value + 1))


def test_small_frames_fill_a_segment_and_are_not_sealed_one_by_one() -> None:
    """Quiver, suspect c: a timer that flushes whatever there is. Here only size and age cut a segment."""
    disk, clock = CrashFilesystem(), ManualClock()
    store = open_store(disk, clock, {"segment.target_size": "64KiB", "memory_limit": "1MiB"})
    for value in range(100):
        store.commit("a", batch(value))
        clock.advance(0.01)
    assert segments(disk) == []
    clock.advance(5)
    store.commit("b", batch(1))
    assert [path.parent.name for path in segments(disk)] == ["a"]
