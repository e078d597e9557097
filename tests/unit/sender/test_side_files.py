"""The small files of a slot: watermark, manifest, symbols, identity. Golden bytes, torn writes, every bit flipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.disk.filesystem import Mode
from holdfast.errors import CorruptData
from holdfast.sender import dualrecord, identity, symboldict, watermark
from holdfast.sender.dualrecord import DualRecord
from holdfast.sender.identity import SESSIONS_MAX, Identity, Session
from holdfast.sender.manifest import Manifest, Span, read_manifest
from holdfast.sender.watermark import Watermark, read_watermark
from holdfast.testing import CrashFilesystem
from tests.unit.sender import handmade

HERE = Path("/")
A, B, C = (letter * 16 for letter in (b"a", b"b", b"c"))


def disk_with(name: str, data: bytes) -> CrashFilesystem:
    disk = CrashFilesystem()
    disk.write_bytes(HERE / name, data)
    return disk


# --- watermark ------------------------------------------------------------------------------------------------------


def test_watermark_of_two_records_reads_the_newest() -> None:
    data = handmade.two_records(handmade.record(b"AKW1", 6, 60), handmade.record(b"AKW1", 7, 70))
    assert read_watermark(disk_with(watermark.NAME, data), HERE) == DualRecord(7, (70,))


def test_watermark_is_written_as_other_clients_read_it() -> None:
    disk = CrashFilesystem()
    mark = Watermark.open(disk, HERE)
    mark.write(10)
    mark.write(11)
    expected = handmade.two_records(handmade.record(b"AKW1", 2, 11), handmade.record(b"AKW1", 1, 10))
    assert disk.read_bytes(HERE / watermark.NAME) == expected


def test_watermark_of_sixteen_bytes_is_read_and_replaced() -> None:
    disk = disk_with(watermark.NAME, handmade.old_watermark(33))
    assert read_watermark(disk, HERE) == DualRecord(0, (33,))
    Watermark.open(disk, HERE).close()
    assert len(disk.read_bytes(HERE / watermark.NAME)) == 8192
    assert read_watermark(disk, HERE) == DualRecord(1, (33,))


@pytest.mark.parametrize(
    "data",
    [b"", b"AKW1", bytes(16), bytes(128), bytes(8192), handmade.watermark(5)[:-1], handmade.watermark(5) + b"\0"],
    ids=lambda data: f"{len(data)} bytes",
)
def test_watermark_of_another_size_or_of_zeros_says_nothing(data: bytes) -> None:
    assert read_watermark(disk_with(watermark.NAME, data), HERE) is None


def test_no_bit_flip_of_a_watermark_record_changes_its_value() -> None:
    data = handmade.two_records(handmade.record(b"AKW1", 6, 60), handmade.record(b"AKW1", 7, 70))
    for bit in range(8 * 64):
        flipped = bytearray(data)
        flipped[4096 + bit // 8] ^= 1 << bit % 8
        assert read_watermark(disk_with(watermark.NAME, bytes(flipped)), HERE) == DualRecord(6, (60,))


def test_torn_write_of_a_watermark_leaves_the_one_before() -> None:
    disk = CrashFilesystem()
    mark = Watermark.open(disk, HERE)
    mark.write(10)
    before = disk.read_bytes(HERE / watermark.NAME)
    mark.write(11)
    after = disk.read_bytes(HERE / watermark.NAME)
    for cut in range(65):
        torn = after[:cut] + before[cut:]
        found = read_watermark(disk_with(watermark.NAME, torn), HERE)
        assert found is not None
        assert found.values[0] == (11 if torn == after else 10)


# --- manifest -------------------------------------------------------------------------------------------------------


def test_manifest_of_another_client_is_read_and_only_grows() -> None:
    disk = disk_with("sf-manifest.bin", handmade.manifest(3, 9))
    assert read_manifest(disk, HERE) == Span(3, 9)
    opened = Manifest.open(disk, HERE)
    assert opened is not None
    opened.move(head_base=5)
    opened.move(head_base=4, active_base=12)
    assert read_manifest(disk, HERE) == Span(5, 12)


def test_manifest_that_says_nothing_is_refused() -> None:
    with pytest.raises(CorruptData, match=r"sf-manifest\.bin"):
        read_manifest(disk_with("sf-manifest.bin", bytes(8192)), HERE)
    assert read_manifest(CrashFilesystem(), HERE) is None


def test_records_in_one_file_alternate_between_its_blocks() -> None:
    disk = disk_with("two", bytes(dualrecord.FILE_BYTES))
    file = disk.open(HERE / "two", Mode.WRITE)
    for generation in range(1, 5):
        dualrecord.write(file, b"TEST", DualRecord(generation, (generation,)))
    assert disk.read_bytes(HERE / "two")[0:64] == handmade.record(b"TEST", 4, 4)
    assert disk.read_bytes(HERE / "two")[4096 : 4096 + 64] == handmade.record(b"TEST", 3, 3)


# --- symbols --------------------------------------------------------------------------------------------------------


def test_golden_symbols_of_another_client_are_read() -> None:
    assert symboldict.decode(handmade.SYMBOLS) == ["one", "two", "three"]
    assert symboldict.read_symbols(disk_with(".symbol-dict", handmade.SYMBOLS), HERE) == ["one", "two", "three"]
    assert symboldict.read_symbols(CrashFilesystem(), HERE) == []


def test_symbols_end_at_the_first_torn_chunk() -> None:
    for cut in range(len(handmade.SYMBOLS)):
        expected = ["one"] if cut >= 18 else []
        assert symboldict.decode(handmade.SYMBOLS[:cut]) == expected, f"cut at {cut}"


def test_no_bit_flip_yields_a_symbol_that_was_not_written() -> None:
    for bit in range(8 * 8, 8 * len(handmade.SYMBOLS)):
        flipped = bytearray(handmade.SYMBOLS)
        flipped[bit // 8] ^= 1 << bit % 8
        found = symboldict.decode(bytes(flipped))
        assert found == ["one", "two", "three"][: len(found)]
        assert len(found) < 3


# --- identity -------------------------------------------------------------------------------------------------------


def test_identity_survives_its_file() -> None:
    disk = CrashFilesystem()
    said = Identity(floor=7, sessions=(Session(0, A), Session(5, B)))
    identity.write_identity(disk, HERE, said)
    assert identity.read_identity(disk, HERE) == said
    assert identity.read_identity(disk.after_power_cut(0), HERE) == said


def test_identity_file_keeps_its_golden_bytes() -> None:
    data = identity.encode(Identity(floor=7, sessions=(Session(5, A),)))
    assert data.hex() == "53494431010000000700000000000000010000000500000000000000" + A.hex() + data[-4:].hex()
    assert identity.decode(data) == Identity(7, (Session(5, A),))


def test_damaged_identity_says_nothing() -> None:
    data = identity.encode(Identity(floor=7, sessions=(Session(5, A),)))
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert identity.decode(bytes(flipped)) is None
    for cut in range(len(data)):
        assert identity.decode(data[:cut]) is None


def test_frames_belong_to_the_session_that_wrote_them() -> None:
    said = Identity().begin(0, A).begin(5, B).begin(9, C)
    assert [said.of(fsn).slot_id for fsn in (0, 4, 5, 8, 9, 100)] == [A, A, B, B, C, C]  # type: ignore[union-attr]
    assert [said.end_of(session) for session in said.sessions] == [5, 9, None]


def test_session_that_left_no_frame_is_replaced() -> None:
    assert Identity().begin(5, A).begin(5, B).sessions == (Session(5, B),)


def test_frames_that_a_power_cut_took_leave_their_session() -> None:
    said = Identity().begin(0, A).begin(10, B)
    assert said.begin(8, C).sessions == (Session(0, A), Session(8, C))


def test_frames_without_a_session_are_adopted() -> None:
    assert Identity().adopt(3, 6, A).sessions == (Session(3, A),)
    assert Identity(sessions=(Session(5, B),)).adopt(3, 8, A).sessions == (Session(3, A), Session(5, B))
    assert Identity(sessions=(Session(0, B),)).adopt(3, 8, A).sessions == (Session(0, B),)
    assert Identity(sessions=(Session(0, B),)).adopt(3, 3, A).sessions == ()


def test_sessions_stay_within_their_bound() -> None:
    said = Identity(sessions=tuple(Session(fsn, A) for fsn in range(SESSIONS_MAX + 10))).limited(B)
    assert len(said.sessions) == SESSIONS_MAX
    assert said.sessions[0] == Session(0, B)
    assert said.sessions[1:] == tuple(Session(fsn, A) for fsn in range(11, SESSIONS_MAX + 10))
