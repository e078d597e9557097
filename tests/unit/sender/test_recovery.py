"""Opening a slot after anything: torn ends, gaps, foreign files, damaged names, failing disks."""

from __future__ import annotations

import errno

import pytest

from holdfast.errors import CorruptData, SlotFailed, UnsupportedFormat
from holdfast.sender.recovery import frames_of, survey
from holdfast.testing import CrashFilesystem
from tests.unit.sender import handmade
from tests.unit.sender.rings import SLOT, disk_with, open_ring, open_slot, payloads, slot_files

FIRST, SECOND, THIRD = (f"sf-{number:016x}.sfa" for number in range(3))


def recovered(disk: CrashFilesystem) -> list[tuple[int, bytes]]:
    """What a ring would send, and the slot as it was found."""
    ring = open_ring(disk)
    found = payloads(ring)
    ring.close()
    return found


def test_segments_of_another_client_are_recovered_in_order() -> None:
    disk = disk_with({SECOND: handmade.segment(12, [b"c", b"d"]), FIRST: handmade.segment(10, [b"a", b"b"])})
    assert recovered(disk) == [(10, b"a"), (11, b"b"), (12, b"c"), (13, b"d")]


def test_order_of_segments_is_that_of_their_numbers_not_their_names() -> None:
    disk = disk_with({FIRST: handmade.segment(12, [b"c"]), "sf-initial.sfa": handmade.segment(10, [b"a", b"b"])})
    assert recovered(disk) == [(10, b"a"), (11, b"b"), (12, b"c")]


def test_new_frames_follow_the_recovered_ones() -> None:
    disk = disk_with({FIRST: handmade.segment(10, [b"a"], size_bytes=256)})
    ring = open_ring(disk)
    assert ring.append(b"b") == 11
    assert payloads(ring) == [(10, b"a"), (11, b"b")]


@pytest.mark.guarantee("G9")
def test_torn_end_is_cut_and_stays_cut() -> None:
    torn = handmade.segment(0, [b"one"]) + handmade.frame(b"lost in part")[:-1]
    disk = disk_with({FIRST: torn.ljust(256, b"\0")})
    slot = open_slot(disk)
    assert slot.recovery.torn is not None
    assert slot.recovery.torn.end == 35
    assert slot_files(disk)[FIRST] == handmade.segment(0, [b"one"], size_bytes=256)
    assert slot_files(disk.after_power_cut(0))[FIRST] == handmade.segment(0, [b"one"], size_bytes=256)


@pytest.mark.guarantee("G9")
def test_old_frame_never_appears_behind_a_new_one() -> None:
    """The damaged frame is replaced by one of the same length; what stood behind it must not come back."""
    data = bytearray(handmade.segment(0, [b"one", b"two", b"old"], size_bytes=256))
    data[24 + 11 + 8] ^= 1
    disk = disk_with({FIRST: bytes(data)})
    ring = open_ring(disk)
    ring.append(b"new")
    again = disk.after_kill()
    assert [payload for _, payload in recovered(again)] == [b"one", b"new"]


def test_intact_frames_behind_damage_are_kept_in_a_file() -> None:
    data = bytearray(handmade.segment(0, [b"one", b"two", b"three"], size_bytes=256))
    data[24 + 11 + 8] ^= 1
    disk = disk_with({FIRST: bytes(data)})
    open_slot(disk)
    assert slot_files(disk)[f"{FIRST}.cut"] == bytes(data[35:]).rstrip(b"\0")


@pytest.mark.parametrize(("second_base", "word"), [(13, "does not follow"), (11, "overlaps")])
def test_gap_or_overlap_is_refused_and_nothing_is_changed(second_base: int, word: str) -> None:
    files = {
        FIRST: handmade.segment(10, [b"a", b"b"], size_bytes=128),
        SECOND: handmade.segment(second_base, [b"c"]) + b"torn",
        THIRD: b"no segment",
        ".ack-watermark": handmade.watermark(10),
    }
    disk = disk_with(files)
    with pytest.raises(CorruptData, match=f"non-contiguous.*{word}") as caught:
        open_slot(disk)
    assert caught.value.file == SLOT / SECOND
    assert slot_files(disk) == files
    assert not disk.exists(SLOT / ".slot-id")


@pytest.mark.parametrize(("mark", "refused"), [(11, False), (20, False), (10, True), (30, True)])
def test_gap_below_the_watermark_is_what_a_trim_left(mark: int, refused: bool) -> None:
    files = {
        FIRST: handmade.segment(10, [b"a", b"b"], size_bytes=128),
        SECOND: handmade.segment(20, [b"c", b"d"], size_bytes=128),
        ".ack-watermark": handmade.watermark(mark),
    }
    disk = disk_with(files)
    if refused:
        with pytest.raises(CorruptData, match="non-contiguous"):
            open_slot(disk)
        assert slot_files(disk) == files
    else:
        assert [fsn for fsn, _ in recovered(disk)] == list(range(max(20, mark + 1), 22))


def test_file_whose_making_was_interrupted_is_deleted() -> None:
    unfinished = {FIRST: b"", SECOND: bytes(128), THIRD: b"SF".ljust(128, b"\0")}
    disk = disk_with(unfinished)
    open_slot(disk)
    assert set(slot_files(disk)) == {".ack-watermark"}


def test_refused_slot_can_be_opened_again_by_the_next() -> None:
    disk = disk_with({FIRST: handmade.segment(0, [b"a"]), SECOND: handmade.segment(5, [b"b"])})
    for _ in range(2):
        with pytest.raises(CorruptData):
            open_slot(disk)


def test_file_that_is_no_segment_is_set_aside_and_the_rest_goes_on() -> None:
    disk = disk_with({FIRST: b"what is this", SECOND: handmade.segment(4, [b"d"], size_bytes=64)})
    slot = open_slot(disk)
    assert slot_files(disk)[f"{FIRST}.corrupt"] == b"what is this"
    assert [damage.path.name for damage in slot.recovery.damaged] == [FIRST]
    assert slot.next_fsn == 5


def test_segment_of_a_newer_version_is_refused_not_set_aside() -> None:
    newer = bytearray(handmade.segment(0, [b"a"]))
    newer[4] = 2
    disk = disk_with({FIRST: bytes(newer)})
    with pytest.raises(UnsupportedFormat, match="version 2"):
        open_slot(disk)
    assert slot_files(disk) == {FIRST: bytes(newer)}


def test_spare_is_deleted_and_torn_empty_segment_is_set_aside() -> None:
    files = {
        FIRST: handmade.segment(0, [b"a"], size_bytes=64),
        SECOND: handmade.segment(1, [], size_bytes=64),
        THIRD: (handmade.header(1) + handmade.frame(b"part")[:-2]).ljust(64, b"\0"),
    }
    disk = disk_with(files)
    open_slot(disk)
    left = slot_files(disk)
    left.pop(".ack-watermark")
    assert left == {FIRST: files[FIRST], f"{THIRD}.corrupt": files[THIRD]}


def test_new_segments_never_take_a_name_that_was_used() -> None:
    disk = disk_with({f"{THIRD}.corrupt": b"evidence", FIRST: handmade.segment(0, [b"a"], size_bytes=64)})
    ring = open_ring(disk)
    ring.append(bytes(200))
    assert sorted(name for name in slot_files(disk) if name.endswith(".sfa")) == [FIRST, "sf-0000000000000003.sfa"]


# --- watermark ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("watermark", "first"),
    [
        (handmade.watermark(11), 12),
        (handmade.old_watermark(11), 12),
        (handmade.watermark(3), 10),
        (handmade.watermark(13), 14),
        (handmade.watermark(14), 10),
        (bytes(8192), 10),
        (bytes(100), 10),
        (b"", 10),
    ],
    ids=["inside", "16 bytes", "below", "all", "beyond", "zeros", "wrong size", "empty"],
)
def test_replay_starts_behind_the_watermark_if_it_makes_sense(watermark: bytes, first: int) -> None:
    files = {FIRST: handmade.segment(10, [b"a", b"b", b"c", b"d"], size_bytes=256), ".ack-watermark": watermark}
    assert [fsn for fsn, _ in recovered(disk_with(files))] == list(range(first, 14))


def test_watermark_beyond_the_last_frame_is_reported() -> None:
    disk = disk_with({FIRST: handmade.segment(10, [b"a"]), ".ack-watermark": handmade.watermark(99)})
    assert "99" in open_slot(disk).recovery.watermark_ignored


def test_watermark_of_a_slot_without_segments_only_raises_its_next_number() -> None:
    disk = disk_with({".ack-watermark": handmade.watermark(99)})
    ring = open_ring(disk)
    assert (ring.acked_fsn, ring.published_fsn) == (99, 99)
    assert ring.append(b"x") == 100


def test_frames_that_are_gone_and_were_never_acknowledged_are_reported() -> None:
    disk = CrashFilesystem()
    disk.makedir(SLOT.parent)
    ring = open_ring(disk)
    for _ in range(6):
        ring.append(bytes(100))
    ring.acknowledge(0)
    left = disk.after_kill()
    left.unlink(SLOT / FIRST)
    assert survey(left, SLOT).missing == range(1, 2)
    assert [fsn for fsn, _ in recovered(left)] == [2, 3, 4, 5]


# --- slots of other clients -----------------------------------------------------------------------------------------


def foreign_files() -> dict[str, bytes]:
    """What another client leaves when it is killed: flags, manifest, symbols, watermark, a spare."""
    return {
        ".ack-watermark": handmade.watermark(3),
        ".symbol-dict": handmade.SYMBOLS,
        "sf-manifest.bin": handmade.manifest(2, 5),
        FIRST: handmade.segment(2, [b"QWP1 a", b"QWP1 b", b"QWP1 c"], flags=1, size_bytes=256),
        SECOND: handmade.segment(5, [b"QWP1 d"], flags=1, size_bytes=256),
        THIRD: handmade.segment(0, [], flags=1, size_bytes=256),
    }


def test_slot_of_another_client_is_recovered_with_its_symbols() -> None:
    disk = disk_with(foreign_files())
    slot = open_slot(disk)
    assert slot.symbols() == ["one", "two", "three"]
    assert recovered(disk.after_kill()) == [(4, b"QWP1 c"), (5, b"QWP1 d")]


def test_slot_of_another_client_is_emptied_when_drained() -> None:
    disk = disk_with(foreign_files())
    ring = open_ring(disk)
    ring.acknowledge(5)
    assert ring.close()
    assert slot_files(disk) == {}


def test_manifest_stays_true_while_a_foreign_slot_is_used() -> None:
    disk = disk_with(foreign_files())
    ring = open_ring(disk)
    ring.append(bytes(200))
    ring.append(bytes(200))
    ring.acknowledge(5)
    ring.close()
    found = survey(disk, SLOT)
    assert found.span is not None
    assert (found.span.head_base, found.span.active_base) == (5, 7)
    assert [segment.header.flags for segment in found.segments] == [1, 1]


def test_segment_that_asks_for_a_missing_manifest_is_refused() -> None:
    files = foreign_files()
    del files["sf-manifest.bin"]
    disk = disk_with(files)
    with pytest.raises(CorruptData, match=r"sf-manifest\.bin"):
        open_slot(disk)
    assert slot_files(disk) == files


@pytest.mark.parametrize("missing", [FIRST, SECOND])
def test_segment_that_the_manifest_names_and_is_gone_is_refused(missing: str) -> None:
    files = foreign_files()
    del files[missing]
    if missing == SECOND:
        files["sf-manifest.bin"] = handmade.manifest(2, 6)
    disk = disk_with(files)
    with pytest.raises(CorruptData, match=r"sf-manifest\.bin"):
        open_slot(disk)


# --- reading without owning -----------------------------------------------------------------------------------------


def test_survey_shows_a_slot_that_somebody_else_owns() -> None:
    disk = CrashFilesystem()
    ring = open_ring(disk)
    for number in range(20):
        ring.append(b"payload %d" % number)
    ring.acknowledge(4)
    before = slot_files(disk)
    found = survey(disk, SLOT)
    assert (found.frames, found.unacknowledged, found.acked_fsn) == (20, 15, 4)
    assert [fsn for fsn, _ in frames_of(disk, found, start_fsn=5)] == list(range(5, 20))
    assert slot_files(disk) == before


# --- failing disks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_error_of_the_disk_while_reading_ends_recovery_and_changes_nothing(code: int) -> None:
    files = {FIRST: handmade.segment(0, [b"a", b"b"]), SECOND: b"no segment"}
    reads = 0
    while True:
        disk = disk_with(files)
        reads += 1
        disk.fail_read_at(reads, code)
        try:
            open_slot(disk)
        except SlotFailed:
            assert slot_files(disk)[FIRST] == files[FIRST]
            disk.stop_failing()
            assert recovered(disk) == [(0, b"a"), (1, b"b")]
        else:
            break
    assert reads > 4


@pytest.mark.guarantee("G10")
def test_error_of_the_disk_at_any_call_of_recovery_loses_no_frame() -> None:
    files = {FIRST: handmade.segment(0, [b"a", b"b"]) + b"torn", SECOND: b"no segment", ".ack-watermark": bytes(16)}
    call = 0
    while True:
        disk = disk_with(files)
        call += 1
        disk.fail_at(disk.calls + call, errno.EIO)
        try:
            open_slot(disk)
        except SlotFailed:
            disk.stop_failing()
            assert recovered(disk) == [(0, b"a"), (1, b"b")]
        else:
            break
    assert call > 10
