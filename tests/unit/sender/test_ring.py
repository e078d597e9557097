"""The ring: numbers, reading, acknowledging, trimming, the cap and its deadline. Over files and in memory alike."""

from __future__ import annotations

import itertools
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress

import pytest

from holdfast.disk.filesystem import Bytes
from holdfast.errors import Closed, FrameTooLarge, Reentered, SlotFull, StoreFailed
from holdfast.sender.memory import Memory, MemorySegment
from holdfast.sender.recovery import survey
from holdfast.sender.ring import Ring
from holdfast.sender.substrate import Frame, Outage, RingOptions
from holdfast.testing import CrashFilesystem, ManualClock
from tests.unit.sender.rings import SLOT, SMALL, Impatient, memory_ring, open_ring, payloads, slot_files


@pytest.fixture(params=["files", "memory"])
def ring(request: pytest.FixtureRequest) -> Ring:
    clock = Impatient()
    return open_ring(CrashFilesystem(), clock=clock) if request.param == "files" else memory_ring(clock=clock)


def fill(ring: Ring) -> int:
    """Append until the ring has no room; the number of frames."""
    for count in itertools.count():
        try:
            ring.append(bytes(100))
        except SlotFull:
            return count
    raise AssertionError("a ring without end")


# --- numbers and reading --------------------------------------------------------------------------------------------


def test_frames_are_numbered_from_zero_and_read_back_in_order(ring: Ring) -> None:
    assert (ring.published_fsn, ring.acked_fsn) == (-1, -1)
    assert [ring.append(b"frame %d" % number) for number in range(20)] == list(range(20))
    assert payloads(ring) == [(number, b"frame %d" % number) for number in range(20)]
    assert payloads(ring, 13) == [(number, b"frame %d" % number) for number in range(13, 20)]


def test_parts_become_one_frame(ring: Ring) -> None:
    ring.append([b"he", bytearray(b"ll"), memoryview(b"o")])
    assert payloads(ring) == [(0, b"hello")]


def test_caller_may_reuse_its_buffer(ring: Ring) -> None:
    buffer = bytearray(b"first")
    ring.append(buffer)
    buffer[:] = b"other"
    assert payloads(ring) == [(0, b"first")]


def test_views_of_wider_items_are_counted_in_bytes(ring: Ring) -> None:
    ring.append(memoryview(struct.pack("<2q", 1, 2)).cast("q"))
    assert payloads(ring) == [(0, struct.pack("<2q", 1, 2))]


def test_number_is_stamped_into_the_frame_in_place(ring: Ring) -> None:
    def stamp(view: memoryview, fsn: int) -> None:
        struct.pack_into("<Q", view, 4, fsn)

    for _ in range(3):
        ring.append([bytearray(b"head--------"), b"body"], stamp)
    assert payloads(ring) == [(fsn, b"head" + struct.pack("<Q", fsn) + b"body") for fsn in range(3)]


def test_frame_that_no_segment_holds_is_refused_at_once(ring: Ring) -> None:
    assert ring.frame_bytes_max == SMALL.segment_bytes - 32
    ring.append(bytes(ring.frame_bytes_max))
    with pytest.raises(FrameTooLarge, match="sf_max_segment_bytes"):
        ring.append(bytes(ring.frame_bytes_max + 1))
    with pytest.raises(ValueError, match="empty"):
        ring.append(b"")
    assert ring.published_fsn == 0


def test_cursor_sees_frames_that_come_later_and_is_told(ring: Ring) -> None:
    calls: list[int] = []
    ring.on_published = lambda: calls.append(ring.published_fsn)
    with ring.cursor(0) as cursor:
        ring.append(b"a")
        assert cursor.next() == Frame(0, memoryview(b"a"))
        assert calls == []
        assert cursor.next() is None
        ring.append(b"b")
        ring.append(bytes(200))
        assert calls == [1]
        assert [frame.fsn for frame in cursor.until(9)] == [1, 2]
        assert calls == [1]


def test_cursor_starts_at_any_frame_that_is_there_and_at_no_other(ring: Ring) -> None:
    for _ in range(5):
        ring.append(bytes(100))
    for fsn in range(6):
        with ring.cursor(fsn) as cursor:
            assert cursor.fsn == fsn
    with pytest.raises(LookupError, match=r"unacknowledged are 0\.\.4"):
        ring.cursor(6)


def test_first_frame_after_a_rotation_is_not_skipped(ring: Ring) -> None:
    ring.append(bytes(ring.frame_bytes_max))
    with ring.cursor(1) as cursor:
        assert cursor.next() is None
        ring.append(bytes(ring.frame_bytes_max))
        ring.append(b"x")
        assert [frame.fsn for frame in cursor.until(2)] == [1, 2]


def test_what_was_read_stays_valid_after_its_segment_is_gone(ring: Ring) -> None:
    ring.append(b"kept" * 40)
    with ring.cursor(0) as cursor:
        frame = cursor.next()
    for _ in range(2):
        ring.append(bytes(150))
    ring.acknowledge(2)
    ring.step()
    ring.close()
    assert frame is not None
    assert bytes(frame.payload) == b"kept" * 40


# --- acknowledging and trimming -------------------------------------------------------------------------------------


def test_acknowledgement_never_moves_back_or_beyond(ring: Ring) -> None:
    for _ in range(3):
        ring.append(b"x")
    assert ring.acknowledge(1)
    assert not ring.acknowledge(0)
    assert ring.acked_fsn == 1
    assert ring.acknowledge(999)
    assert ring.acked_fsn == 2
    assert not ring.acknowledge(999)


def test_acknowledged_segments_make_room(ring: Ring) -> None:
    filled = fill(ring)
    assert ring.statistics().used_bytes <= SMALL.cap_bytes
    ring.acknowledge(filled - 1)
    assert fill(ring) >= filled - 2
    assert ring.statistics().used_bytes <= SMALL.cap_bytes


def test_segment_is_kept_until_its_last_frame_is_acknowledged() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk)
    for _ in range(4):
        ring.append(bytes(100))
    ring.acknowledge(0)
    assert not ring.step() or ring.statistics().trimmed_segments == 0
    ring.acknowledge(1)
    while ring.step():
        pass
    assert ring.statistics().trimmed_segments == 1
    assert payloads(ring) == [(2, bytes(100)), (3, bytes(100))]


def test_segment_under_a_cursor_is_not_deleted() -> None:
    ring = open_ring(CrashFilesystem())
    for _ in range(4):
        ring.append(bytes(100))
    cursor = ring.cursor(0)
    ring.acknowledge(3)
    while ring.step():
        pass
    assert ring.statistics().trimmed_segments == 0
    assert [frame.fsn for frame in cursor.until(3)] == [0, 1, 2, 3]
    cursor.close()
    while ring.step():
        pass
    assert ring.statistics().trimmed_segments == 1


def test_trim_syncs_watermark_and_names_before_it_deletes() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk)
    for _ in range(4):
        ring.append(bytes(100))
    before = disk.calls
    ring.acknowledge(1)
    while ring.statistics().trimmed_segments == 0:
        ring.step()
    done = [(operation, path.name) for number, operation, path in disk.log if number > before]
    trim = done[done.index(("sync_data", ".ack-watermark")) :]
    assert trim[:4] == [
        ("sync_data", ".ack-watermark"),
        ("sync_dir", "app"),
        ("unlink", "sf-0000000000000000.sfa"),
        ("sync_dir", "app"),
    ]
    assert done[0] == ("pwritev", ".ack-watermark")


def test_large_recovered_segment_does_not_block_a_ring_with_a_small_cap() -> None:
    disk = CrashFilesystem()
    large = open_ring(disk, RingOptions(segment_bytes=4096, cap_bytes=8192))
    large.append(bytes(4000))
    large.close()
    ring = open_ring(disk)
    assert ring.append(bytes(200)) == 1
    assert payloads(ring)[1] == (1, bytes(200))


# --- the cap --------------------------------------------------------------------------------------------------------


def test_full_ring_blames_the_server_while_it_is_connected() -> None:
    ring = open_ring(CrashFilesystem(), clock=Impatient())
    fill(ring)
    with pytest.raises(SlotFull, match="server is slower than the producer") as caught:
        ring.append(bytes(100))
    assert not caught.value.is_outage
    assert (caught.value.cap_bytes, caught.value.used_bytes) == (1024, 1024)
    assert caught.value.waited_s >= 1.0
    assert ring.statistics().stalls >= 2


def test_full_ring_blames_the_outage_while_it_is_reconnecting() -> None:
    ring = open_ring(
        CrashFilesystem(),
        clock=Impatient(),
        link_state=lambda: Outage(since_wall_ns=1_700_000_000 * 10**9, attempts=7, last_error="refused"),
    )
    fill(ring)
    told = r"reconnecting since 2023-11-14T22:13:20\+00:00, attempt 7, .*refused"
    with pytest.raises(SlotFull, match=told) as caught:
        ring.append(bytes(100))
    assert caught.value.is_outage


def test_full_ring_takes_a_smaller_frame_that_still_fits() -> None:
    ring = open_ring(CrashFilesystem(), clock=Impatient())
    last = fill(ring) - 1
    assert ring.append(b"small") == last + 1


def test_refused_frame_uses_no_number(ring: Ring) -> None:
    count = fill(ring)
    ring.acknowledge(count - 1)
    assert ring.append(bytes(100)) == count


@pytest.mark.parametrize("threaded", [False, True])
def test_waiting_producer_goes_on_when_room_comes(threaded: bool) -> None:
    ring = open_ring(CrashFilesystem(), threaded=threaded)
    stalled = threading.Event()
    done: list[int] = []

    def produce() -> None:
        for number in range(100):
            done.append(ring.append(bytes(100)))
            if number == 5:
                stalled.set()

    producer = threading.Thread(target=produce)
    producer.start()
    assert stalled.wait(10)
    while producer.is_alive():
        ring.acknowledge(ring.published_fsn)
        producer.join(0.001)
    ring.acknowledge(ring.published_fsn)
    assert done == list(range(100))
    assert ring.close()


def test_waiting_producer_is_told_of_a_terminal_error() -> None:
    ring = open_ring(CrashFilesystem(), clock=Impatient())
    fill(ring)
    ring.halt(StoreFailed(file=SLOT, reason="the server said no"))
    ring.halt(StoreFailed(file=SLOT, reason="a later error"))
    with pytest.raises(StoreFailed, match="the server said no"):
        ring.append(bytes(100))
    with pytest.raises(StoreFailed, match="the server said no"):
        ring.wait_acked(0, 1.0)
    assert not ring.close()


# --- waiting --------------------------------------------------------------------------------------------------------


def test_waiting_ends_with_the_frame_or_with_the_time(ring: Ring) -> None:
    assert not ring.wait_published(0, 0.5)
    ring.append(b"x")
    assert ring.wait_published(0, 0.5)
    assert not ring.wait_acked(0, 0.5)
    ring.acknowledge(0)
    assert ring.wait_acked(0, 0.0)


def test_waiting_thread_is_woken_by_the_acknowledgement(ring: Ring) -> None:
    ring.append(b"x")
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(ring.wait_acked(0)))
    waiter.start()
    ring.acknowledge(0)
    waiter.join(10)
    assert answers == [True]


# --- interrupts ---------------------------------------------------------------------------------------------------


class InterruptedSegment(MemorySegment):
    """The user presses Ctrl-C at the end of every second append, when the frame is there already."""

    def append(self, parts: Sequence[Bytes], payload_bytes: int) -> None:
        super().append(parts, payload_bytes)
        if self.count % 2:
            raise KeyboardInterrupt


class InterruptedMemory(Memory):
    """Memory made of such segments."""

    def create(self, base: int, size_bytes: int) -> MemorySegment:
        return InterruptedSegment(base, size_bytes)


def test_interrupt_between_write_and_return_leaves_numbers_right() -> None:
    ring = Ring(InterruptedMemory(), SMALL, clock=ManualClock())
    for number in range(10):
        with suppress(KeyboardInterrupt):
            assert ring.append(b"frame %d" % number + bytes(30)) == number
    with suppress(KeyboardInterrupt):
        ring.append(b"last")
    assert [(fsn, payload[:7]) for fsn, payload in payloads(ring)][:10] == [(n, b"frame %d" % n) for n in range(10)]


def test_interrupt_before_the_write_leaves_no_frame(ring: Ring) -> None:
    def interrupted(view: memoryview, fsn: int) -> None:
        raise KeyboardInterrupt

    ring.append(b"first")
    with pytest.raises(KeyboardInterrupt):
        ring.append(bytearray(b"never"), interrupted)
    assert ring.append(b"second") == 1
    assert payloads(ring) == [(0, b"first"), (1, b"second")]


def test_handler_that_interrupts_a_hand_over_may_not_hand_over(ring: Ring) -> None:
    refused: list[Exception] = []

    def handler(view: memoryview, fsn: int) -> None:
        try:
            ring.append(b"from the handler")
        except Reentered as error:
            refused.append(error)

    assert ring.append(bytearray(b"interrupted"), handler) == 0
    assert len(refused) == 1
    assert ring.append(b"after") == 1
    assert payloads(ring) == [(0, b"interrupted"), (1, b"after")]


# --- closing --------------------------------------------------------------------------------------------------------


def test_clean_close_of_an_acknowledged_slot_leaves_no_data() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk)
    for _ in range(5):
        ring.append(bytes(100))
    ring.acknowledge(4)
    assert ring.close()
    assert slot_files(disk) == {}
    assert disk.read_bytes(SLOT / ".lock") == b""


def test_numbers_go_on_after_a_clean_close() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk)
    ring.append(b"x")
    ring.acknowledge(0)
    ring.close()
    assert open_ring(disk.after_kill()).append(b"y") == 1


def test_unacknowledged_frames_stay_when_the_ring_is_closed() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk)
    for number in range(10):
        ring.append(b"%d" % number * 30)
    ring.acknowledge(4)
    assert not ring.close()
    assert all(found.count for found in (*survey(disk, SLOT).segments, *survey(disk, SLOT).spares))
    again = open_ring(disk)
    assert payloads(again) == [(number, b"%d" % number * 30) for number in range(5, 10)]


def test_closed_ring_refuses_everything_and_closes_once(ring: Ring) -> None:
    ring.append(b"x")
    assert not ring.close()
    assert not ring.close()
    with pytest.raises(Closed):
        ring.append(b"y")
    with pytest.raises(Closed):
        ring.acknowledge(0)
    with pytest.raises(Closed):
        ring.cursor(0)
