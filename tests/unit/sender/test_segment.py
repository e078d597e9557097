"""SF01 files: golden bytes, torn ends, and no byte that can change a frame unnoticed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.disk.filesystem import Bytes, File, Mode
from holdfast.errors import CorruptData
from holdfast.sender.segment import MARK_EVERY, FileSegment, Header, Scan, decode_header, scan
from holdfast.testing import CrashFilesystem
from tests.unit.sender import handmade

PATH = Path("/segment.sfa")


def scanned(data: bytes) -> Scan | str:
    disk = CrashFilesystem()
    disk.write_bytes(PATH, data)
    return scan(disk.open(PATH, Mode.READ))


def frames(data: bytes) -> list[bytes]:
    disk = CrashFilesystem()
    disk.write_bytes(PATH, data)
    file = disk.open(PATH, Mode.WRITE)
    found = scan(file)
    if isinstance(found, str) or not found.count:
        return []
    segment = FileSegment.recovered(disk, found)
    read: list[bytes] = []
    position = segment.seek(segment.base)
    while position < segment.end:
        batch, position = segment.read(position, segment.end)
        read += map(bytes, batch)
    return read


def test_golden_file_of_another_client_is_read() -> None:
    found = scanned(handmade.TWO_FRAMES)
    assert isinstance(found, Scan)
    assert (found.header.base, found.count, found.end, found.flaw) == (42, 2, 50, "")
    assert found.header.created_micros == 0x011F71FB04CB
    assert frames(handmade.TWO_FRAMES) == [b"one", b"two-two"]


def test_golden_file_of_another_client_is_written_byte_for_byte() -> None:
    disk = CrashFilesystem()
    file = disk.open(PATH, Mode.CREATE)
    file.allocate(64)
    segment = FileSegment(disk, file, Header(0, 0x011F71FB04CB), 64)
    segment.rebase(42)
    segment.append([b"one"], 3)
    segment.append([b"two", b"-two"], 7)
    assert disk.read_bytes(PATH) == handmade.TWO_FRAMES


def test_golden_torn_file_keeps_its_first_frame() -> None:
    torn = bytearray(handmade.TWO_FRAMES)
    torn[45] ^= 0xFF
    found = scanned(bytes(torn))
    assert isinstance(found, Scan)
    assert (found.count, found.end, found.size_bytes - found.end) == (1, 35, 29)
    assert "checksum" in found.flaw


@pytest.mark.guarantee("G9")
def test_no_bit_flip_yields_a_frame_that_was_not_written() -> None:
    written = [b"alpha", b"beta" * 20, b"gamma"]
    data = handmade.segment(7, written, size_bytes=256)
    for bit in range(8 * 24, 8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        found = frames(bytes(flipped))
        assert found == written[: len(found)], f"bit {bit}"


@pytest.mark.guarantee("G9")
def test_file_cut_at_any_byte_yields_the_frames_before_the_cut() -> None:
    written = [b"alpha", b"beta" * 20, b"gamma"]
    data = handmade.segment(7, written)
    ends = [24 + sum(8 + len(payload) for payload in written[:count]) for count in range(4)]
    for cut in range(24, len(data)):
        whole = sum(end <= cut for end in ends) - 1
        assert frames(data[:cut]) == written[:whole]
        assert frames(data[:cut].ljust(256, b"\0")) == written[:whole]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "0 bytes"),
        (handmade.header(0)[:23], "23 bytes"),
        (b"SF02" + handmade.header(0)[4:], "magic"),
        (handmade.header(2**63), "base"),
        (handmade.header(0, flags=2), "flags 2"),
    ],
    ids=["empty", "short", "magic", "base", "flags"],
)
def test_header_that_is_none_says_why(data: bytes, reason: str) -> None:
    found = decode_header(data)
    assert isinstance(found, str)
    assert reason in found


def test_zeros_are_never_a_frame() -> None:
    found = scanned(handmade.segment(0, [], size_bytes=128))
    assert isinstance(found, Scan)
    assert (found.count, found.flaw) == (0, "")


def test_bytes_far_behind_the_last_frame_are_noticed() -> None:
    data = bytearray(handmade.segment(0, [b"one"], size_bytes=4096))
    data[3000] = 1
    found = scanned(bytes(data))
    assert isinstance(found, Scan)
    assert (found.count, found.flaw) == (1, "zeros where a frame would start")


def test_intact_frames_behind_a_damaged_one_are_counted() -> None:
    data = bytearray(handmade.segment(0, [b"one", b"two", b"three", b"four"], size_bytes=128))
    data[24 + 11 + 9] ^= 1
    found = scanned(bytes(data))
    assert isinstance(found, Scan)
    assert (found.count, found.intact_after) == (1, 2)


def test_every_frame_of_a_long_segment_is_found_by_its_number() -> None:
    written = [b"%d" % number for number in range(3 * MARK_EVERY + 5)]
    disk = CrashFilesystem()
    disk.write_bytes(PATH, handmade.segment(1000, written, size_bytes=20_000))
    file = disk.open(PATH, Mode.WRITE)
    found = scan(file)
    assert isinstance(found, Scan)
    recovered = FileSegment.recovered(disk, found)
    appended = FileSegment(disk, disk.open(PATH, Mode.WRITE), Header(1000, 0), 20_000)
    for payload in written:
        appended.append([payload], len(payload))
    for segment in (recovered, appended):
        for place in (0, 1, MARK_EVERY - 1, MARK_EVERY, 2 * MARK_EVERY + 7, len(written) - 1):
            batch, _ = segment.read(segment.seek(1000 + place), segment.end)
            assert bytes(batch[0]) == written[place]


def test_frame_larger_than_the_reading_window_is_read_whole() -> None:
    large = bytes(range(256)) * 4096
    assert frames(handmade.segment(0, [b"small", large, b"after"])) == [b"small", large, b"after"]


class InterruptedFile:
    """A file whose writer is interrupted by Ctrl-C when the bytes are written already."""

    def __init__(self, file: File) -> None:
        self._file = file
        self.interrupts = False

    def pwritev(self, buffers: Sequence[Bytes], offset_bytes: int) -> None:
        self._file.pwritev(buffers, offset_bytes)
        if self.interrupts:
            raise KeyboardInterrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("then", ["append", "seal"])
def test_frame_whose_append_was_interrupted_never_appears(then: str) -> None:
    disk = CrashFilesystem()
    disk.write_bytes(PATH, handmade.segment(0, [], size_bytes=128))
    file = InterruptedFile(disk.open(PATH, Mode.WRITE))
    segment = FileSegment(disk, file, Header(0, 0), 128)
    segment.append([b"one"], 3)
    file.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        segment.append([b"never"], 5)
    file.interrupts = False
    if then == "append":
        segment.append([b"two"], 3)
    else:
        segment.seal()
    found = frames(disk.read_bytes(PATH))
    assert found == ([b"one", b"two"] if then == "append" else [b"one"])


@pytest.mark.guarantee("G9")
def test_frame_that_rots_after_it_was_written_is_not_delivered() -> None:
    disk = CrashFilesystem()
    disk.write_bytes(PATH, handmade.segment(0, [b"one", b"two"], size_bytes=128))
    file = disk.open(PATH, Mode.WRITE)
    found = scan(file)
    assert isinstance(found, Scan)
    segment = FileSegment.recovered(disk, found)
    file.pwritev([b"X"], 24 + 8)
    with pytest.raises(CorruptData, match="byte 24"):
        segment.read(24, segment.end)
