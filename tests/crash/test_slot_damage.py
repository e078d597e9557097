"""Damage to the files of a slot: every byte torn, every byte flipped. What is delivered is right, or nothing is."""

from __future__ import annotations

import pytest

from holdfast.errors import DamagedData
from holdfast.testing import CrashFilesystem
from tests.crash.slot_workload import SLOT, Ledger, fresh_disk, payload_of


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
def test_no_flipped_bit_in_any_file_delivers_a_wrong_frame() -> None:
    """Frames may be replayed, cut or refused; none has another content or number than was handed over."""
    files, ledger = left_behind()
    allowed = set(right(ledger))
    assert len(segments(files)) >= 3
    outcomes = set()
    for name, data in files.items():
        used = [*range(70), *range(4090, 4170)] if name == ".ack-watermark" else range(len(data))
        for byte in used:
            flipped = bytearray(data)
            flipped[byte] ^= 1 << byte % 8
            found = delivered({**files, name: bytes(flipped)})
            assert found is None or set(found) <= allowed, f"{name}, byte {byte}"
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
