"""Damage to the files of a slot: every byte torn, every byte flipped. What is delivered is right, or nothing is."""

from __future__ import annotations

import pytest

from holdfast.errors import DamagedData
from holdfast.testing import CrashFilesystem
from tests.crash.slot_workload import SLOT, Ledger, fresh_disk, payload_of
from tests.crash.sweeps import every, flipped_bit


def left_behind() -> tuple[dict[str, bytes], Ledger]:
    """The files of a slot with three segments, of which some frames are acknowledged, after a kill."""
    disk, ledger = fresh_disk(), Ledger("memory")
    ring = ledger.open(disk)
    for number in range(12):
        ledger.append(ring, payload_of(number)[:60].ljust(60, b"."))
    ledger.acknowledge(ring, 1)
    names = [path for path in disk.paths() if path.parent == SLOT]
    return {path.name: disk.read_bytes(path) for path in names}, ledger


def disk_with(files: dict[str, bytes]) -> CrashFilesystem:
    disk = fresh_disk()
    for name, data in files.items():
        disk.write_bytes(SLOT / name, data)
    return disk


def delivered(files: dict[str, bytes]) -> list[tuple[int, bytes]] | None:
    """What a sender would send, or None when the slot is refused."""
    disk = disk_with(files)
    try:
        ring = Ledger("memory").open(disk)
    except DamagedData:
        return None
    with ring.cursor(ring.acked_fsn + 1) as cursor:
        found = [(frame.fsn, bytes(frame.payload)) for frame in cursor.until(ring.published_fsn)]
    ring.append(b"the slot goes on")
    return found


def right(ledger: Ledger) -> list[tuple[int, bytes]]:
    return [(fsn, payload) for fsn, (_, payload) in ledger.kept.items()]


def segments(files: dict[str, bytes]) -> list[str]:
    return sorted(name for name in files if name.endswith(".sfa"))


@pytest.mark.guarantee("G9")
def test_last_segment_torn_at_any_byte_delivers_all_frames_before_the_tear() -> None:
    files, ledger = left_behind()
    last = segments(files)[-1]
    before = len([fsn for fsn, _ in right(ledger)]) - frames_in(files[last])
    for cut in range(24, len(files[last].rstrip(b"\0"))):
        for torn in (files[last][:cut], files[last][:cut].ljust(300, b"\0")):
            found = delivered({**files, last: torn})
            assert found is not None
            assert found == right(ledger)[2 : 2 + len(found)]
            assert len(found) + 2 >= before


def frames_in(data: bytes) -> int:
    found, at = 0, 24
    while at + 8 <= len(data) and data[at : at + 8] != bytes(8):
        found += 1
        at += 8 + int.from_bytes(data[at + 4 : at + 8], "little")
    return found


@pytest.mark.guarantee("G9")
@every(3)
def test_earlier_segment_torn_at_any_byte_is_noticed(step: int) -> None:
    """What is missing from the middle is refused, or not delivered; never is another frame delivered in its place."""
    files, ledger = left_behind()
    for name in segments(files)[:-1]:
        used = len(files[name].rstrip(b"\0"))
        for cut in range(0, used, step):
            for torn in (files[name][:cut], files[name][:cut].ljust(len(files[name]), b"\0")):
                found = delivered({**files, name: torn})
                assert found is None or set(found) < set(right(ledger)), f"{name} cut at {cut}"


@pytest.mark.guarantee("G9")
@every(3)
def test_side_file_torn_at_any_byte_costs_no_frame_its_content(step: int) -> None:
    """Who owns the slot, what is acknowledged: frames may be replayed or refused, none is changed or skipped."""
    files, ledger = left_behind()
    sides = [name for name in files if not name.endswith(".sfa")]
    assert ".ack-watermark" in sides
    for name in sides:
        for cut in range(0, len(files[name]) + 1, step if len(files[name]) < 500 else 31 * step):
            found = delivered({**files, name: files[name][:cut]})
            assert found is None or is_end_of(found, right(ledger)), f"{name} cut at {cut}: {found}"


def is_end_of(found: list[tuple[int, bytes]], frames: list[tuple[int, bytes]]) -> bool:
    """Everything from some frame on, with nothing missing that was not acknowledged: the first two are."""
    return found == frames[len(frames) - len(found) :] and len(found) >= len(frames) - 2


@pytest.mark.guarantee("G9")
@every(5)
def test_no_flipped_bit_in_any_file_delivers_a_wrong_frame(step: int) -> None:
    """Frames may be replayed, cut or refused; none has another content or number than was handed over."""
    files, ledger = left_behind()
    allowed = set(right(ledger))
    assert len(segments(files)) >= 3
    outcomes = set()
    for name, data in files.items():
        used = [*range(70), *range(4090, 4170)] if name == ".ack-watermark" and step > 1 else range(len(data))
        bits = [byte * 8 + bit for byte in used for bit in range(8)]
        for bit in bits[::step]:
            found = delivered({**files, name: flipped_bit(data, bit)})
            assert found is None or set(found) <= allowed, f"{name}, bit {bit}"
            outcomes.add(None if found is None else len(found))
    assert {None, 10} <= outcomes


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("missing", [0, 1])
def test_missing_segment_is_noticed(missing: int) -> None:
    """A hole in the middle is refused; a missing head cannot be sent, and is reported."""
    files, ledger = left_behind()
    name = segments(files)[missing]
    del files[name]
    found = delivered(files)
    assert found is None if missing else found is not None and set(found) < set(right(ledger))
