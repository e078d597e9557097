"""The ring and its disk: refused frames are kept, errors are final, and each durability holds what it says."""

from __future__ import annotations

import errno
import threading

import pytest

from holdfast.errors import DiskFull, SlotFailed
from holdfast.sender.recovery import survey
from holdfast.sender.rejected import Rejection, read_rejected
from holdfast.sender.ring import Ring
from holdfast.sender.substrate import RingOptions
from holdfast.testing import CrashFilesystem, ManualClock
from tests.unit.sender.rings import SLOT, SMALL, Impatient, memory_ring, open_ring, open_slot, payloads

# --- dead letters ---------------------------------------------------------------------------------------------------


def test_refused_span_is_kept_as_a_slot_before_it_is_passed_over() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk)
    for number in range(6):
        ring.append(b"frame %d" % number)
    ring.acknowledge(1)
    place = ring.reject(Rejection(first_fsn=2, last_fsn=4, category="SCHEMA_MISMATCH", message="no such column"))
    assert place is not None
    assert ring.acked_fsn == 4
    (span,) = read_rejected(disk.after_power_cut(0), SLOT)
    assert span.path == place
    assert (span.rejection.category, span.rejection.message) == ("SCHEMA_MISMATCH", "no such column")


def test_kept_span_is_read_like_any_slot_and_keeps_its_identity() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk)
    for number in range(6):
        ring.append(b"frame %d" % number)
    place = ring.reject(Rejection(first_fsn=0, last_fsn=1, category="WRITE_ERROR", message="no"))
    assert place is not None
    assert survey(disk, place).unacknowledged == 2
    again = open_ring(disk, directory=place)
    assert payloads(again) == [(0, b"frame 0"), (1, b"frame 1")]
    assert again.session_of(1)[0] == ring.slot_id


def test_keeping_the_same_span_again_changes_nothing() -> None:
    """The process dies between the copy and the acknowledgement; the server refuses the frame again."""
    disk = CrashFilesystem()
    slot = open_slot(disk)
    Ring(slot, SMALL, clock=ManualClock(), threaded=False).append(b"x")
    rejection = Rejection(first_fsn=0, last_fsn=0, category="WRITE_ERROR", message="no")
    place = slot.reject(rejection, [memoryview(b"x")])
    left = disk.after_kill()
    ring = open_ring(left)
    assert ring.reject(rejection) == place
    assert len(read_rejected(left, SLOT)) == 1


def test_refused_span_in_memory_has_nowhere_to_go() -> None:
    ring = memory_ring()
    ring.append(b"x")
    assert ring.reject(Rejection(first_fsn=0, last_fsn=0, category="WRITE_ERROR", message="no")) is None
    assert ring.acked_fsn == 0


# --- failing disks --------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G10")
def test_failed_write_ends_the_ring() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk)
    ring.append(b"safe")
    disk.fail_when(lambda operation, path: errno.EIO if operation == "pwritev" and path.suffix == ".sfa" else None)
    with pytest.raises(SlotFailed, match=r"\.sfa"):
        ring.append(b"lost")
    disk.stop_failing()
    with pytest.raises(SlotFailed):
        ring.append(b"refused")
    ring.close()
    assert payloads(open_ring(disk)) == [(0, b"safe")]


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("durability", ["flush", "append"])
def test_failed_sync_is_final_and_never_repeated(durability: str) -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk, SMALL._replace(durability=durability))
    disk.fail_when(lambda operation, path: errno.EIO if operation == "sync_data" else None)

    def hand_over() -> None:
        ring.append(b"x")
        ring.sync()

    with pytest.raises(SlotFailed):
        hand_over()
    disk.stop_failing()
    syncs = len([operation for _, operation, _ in disk.log if operation == "sync_data"])
    for _ in range(2):
        with pytest.raises(SlotFailed):
            ring.sync()
        with pytest.raises(SlotFailed):
            ring.append(b"y")
    ring.close()
    assert len([operation for _, operation, _ in disk.log if operation == "sync_data"]) == syncs


@pytest.mark.guarantee("G11")
def test_full_disk_refuses_the_frame_and_takes_it_when_there_is_room() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk, clock=Impatient())
    ring.append(bytes(200))
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(DiskFull, match=r"\.sfa"):
        ring.append(bytes(200))
    disk.capacity_bytes = None
    assert ring.append(bytes(200)) == 1
    ring.close()
    assert [fsn for fsn, _ in payloads(open_ring(disk))] == [0, 1]


def test_write_that_finds_no_room_leaves_no_trace_behind_the_last_frame() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk)
    ring.append(b"one")
    disk.fail_when(lambda operation, path: errno.ENOSPC if operation == "pwritev" and path.suffix == ".sfa" else None)
    with pytest.raises(DiskFull):
        ring.append(b"two")
    disk.stop_failing()
    assert ring.append(b"three") == 1
    ring.close()
    assert payloads(open_ring(disk)) == [(0, b"one"), (1, b"three")]


@pytest.mark.guarantee("G11")
def test_full_disk_keeps_a_refused_span_unacknowledged() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk)
    ring.append(b"x")
    rejection = Rejection(first_fsn=0, last_fsn=0, category="WRITE_ERROR", message="no")
    disk.capacity_bytes = disk.used_bytes
    with pytest.raises(DiskFull):
        ring.reject(rejection)
    assert ring.acked_fsn == -1
    disk.capacity_bytes = None
    assert ring.reject(rejection) is not None
    assert ring.acked_fsn == 0


def test_slot_on_a_full_disk_is_free_for_the_next_attempt() -> None:
    disk = CrashFilesystem()
    disk.makedir(SLOT.parent)
    disk.fail_when(lambda operation, path: errno.ENOSPC if operation == "allocate" and path.suffix == ".sfa" else None)
    with pytest.raises(DiskFull):
        open_ring(disk)
    disk.stop_failing()
    assert open_ring(disk).append(b"x") == 0


# --- durability -----------------------------------------------------------------------------------------------------


def test_append_mode_syncs_every_frame_before_it_returns() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk, SMALL._replace(durability="append"))
    for number in range(10):
        ring.append(b"%d" % number * 40)
    assert ring.synced_fsn == 9
    assert len(payloads(open_ring(disk.after_power_cut(0)))) == 10


def test_flush_mode_syncs_what_sync_asks_for() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk, SMALL._replace(durability="flush"))
    ring.append(b"a")
    ring.append(b"b")
    ring.sync(1)
    ring.append(b"c")
    assert ring.synced_fsn == 1
    assert payloads(open_ring(disk.after_power_cut(0))) == [(0, b"a"), (1, b"b")]


def test_periodic_mode_syncs_when_its_time_has_come() -> None:
    disk, clock = CrashFilesystem(), ManualClock()
    ring = open_ring(disk, SMALL._replace(durability="periodic", sync_interval_ms=5000), clock=clock)
    while ring.step():
        pass
    ring.append(b"a")
    assert not ring.step()
    clock.advance(5.0)
    assert ring.step()
    assert ring.synced_fsn == 0
    assert payloads(open_ring(disk.after_power_cut(0))) == [(0, b"a")]


def test_memory_mode_survives_a_kill_without_any_sync_of_data() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk)
    before = disk.calls
    for number in range(4):
        ring.append(b"%d" % number)
    assert [operation for number, operation, _ in disk.log if number > before] == ["pwritev"] * 4
    assert len(payloads(open_ring(disk.after_kill()))) == 4


def test_many_threads_share_syncs() -> None:
    disk = CrashFilesystem()
    options = RingOptions(segment_bytes=1 << 16, cap_bytes=1 << 20, durability="append")
    ring = open_ring(disk, options, threaded=True)
    threads = [threading.Thread(target=lambda: [ring.append(b"x" * 50) for _ in range(25)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (ring.published_fsn, ring.synced_fsn) == (199, 199)
    assert ring.statistics().syncs <= 200
    ring.close()
    assert len(payloads(open_ring(disk.after_power_cut(0)))) == 200


def test_producer_that_waits_gets_its_segment_before_old_ones_are_deleted() -> None:
    """Deleting waits for the disk several times; the producer should not."""
    disk = CrashFilesystem()
    ring = open_ring(disk, RingOptions(segment_bytes=256, cap_bytes=4096))
    while ring.statistics().segments < 4:
        ring.append(bytes(100))
        ring.step()
    ring.append(bytes(100))
    ring.acknowledge(ring.published_fsn)
    ring._spare = None
    ring._starved += 1
    before = len(disk.log)
    assert ring.step()
    done = [operation for _, operation, _ in disk.log[before:]]
    assert "allocate" in done
    assert "unlink" not in done
    assert ring.step()
    assert "unlink" in [operation for _, operation, _ in disk.log[before:]]


def test_frames_larger_than_the_window_are_read_with_one_call_each() -> None:
    disk = CrashFilesystem()
    large = 300 << 10
    ring = open_ring(disk, RingOptions(segment_bytes=16 << 20, cap_bytes=64 << 20))
    for number in range(10):
        ring.append(bytes([number]) * large)
    before = disk.reads
    with ring.cursor(0) as cursor:
        found = [(frame.fsn, len(frame.payload), frame.payload[0]) for frame in cursor.until(9)]
    assert found == [(number, large, number) for number in range(10)]
    assert disk.reads - before == 11  # the first one shows how large they are
