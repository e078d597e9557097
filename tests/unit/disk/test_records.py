"""One checksummed record, and the rule that tells a torn tail from damage."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from holdfast.disk import records
from holdfast.disk.checksum import crc32c
from holdfast.disk.records import ALIGN_BYTES, END_MARK, HEADER_BYTES, RECORD_BYTES_MAX, SECTOR_BYTES, Flaw, Record

FILE_ID = 0xABCDEF0123456789
START = 1000
"""Log position of the file's first byte."""


def encoded(payload: bytes, *, position: int, synced: int = 0, kind: int = 2) -> bytes:
    before, after = records.encode(
        kind, len(payload), crc32c(payload), file_id=FILE_ID, position=position, synced=synced
    )
    return before + payload + after


def noise(count: int, seed: int = 1) -> bytes:
    """Bytes without a zero sector."""
    return random.Random(seed).randbytes(count)


def log(*payloads: bytes, synced: tuple[int, ...] | None = None) -> bytes:
    """Records one after the other; `synced` as offsets from the start of the data."""
    data = b""
    for number, payload in enumerate(payloads):
        known = START + (synced[number] if synced else 0)
        data += encoded(payload, position=START + len(data), synced=known)
    return data


def read(data: bytes) -> tuple[list[bytes], Flaw | None]:
    """The payloads up to the first flaw, and the flaw."""
    buffer = pa.py_buffer(data)
    found: list[bytes] = []
    offset, reason = 0, ""
    for item in records.scan(buffer, file_id=FILE_ID, start_position=START, offset=0):
        if isinstance(item, str):
            reason = item
        else:
            found.append(item.payload.to_pybytes())
            offset += item.size_bytes
    flaw = None
    if reason:
        flaw = records.classify(buffer, file_id=FILE_ID, start_position=START, offset=offset, reason=reason)
    return found, flaw


def verdict(data: bytes) -> str:
    flaw = read(data)[1]
    return "end" if flaw is None else "torn" if flaw.torn else "damage"


def damaged(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]


# --- one record -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 11, 12, 13, 100, 511, 512, 70_000])
def test_record_of_any_size_comes_back_aligned(size: int) -> None:
    payload = noise(size)
    data = encoded(payload, position=START)
    assert len(data) == records.record_bytes(size)
    assert len(data) % ALIGN_BYTES == 0
    assert data.endswith(END_MARK)
    assert read(data) == ([payload], None)


def test_many_records_come_back_in_order() -> None:
    payloads = [noise(size, seed=size) for size in range(60)]
    assert read(log(*payloads)) == (payloads, None)


def test_zero_bytes_are_never_a_record() -> None:
    for size in (HEADER_BYTES - 1, HEADER_BYTES, 48, 4096):
        buffer = pa.py_buffer(bytes(size))
        assert isinstance(records.decode(buffer, memoryview(buffer), 0, file_id=0, position=0), str)


def test_length_beyond_the_bound_is_no_record() -> None:
    before, _ = records.encode(2, RECORD_BYTES_MAX + 1, 0, file_id=FILE_ID, position=START, synced=0)
    buffer = pa.py_buffer(before + bytes(64))
    assert records.decode(buffer, memoryview(buffer), 0, file_id=FILE_ID, position=START) == "no record header"


def test_record_of_another_file_is_no_record_here() -> None:
    buffer = pa.py_buffer(encoded(b"x", position=START))
    assert isinstance(records.decode(buffer, memoryview(buffer), 0, file_id=FILE_ID + 1, position=START), str)


def test_record_of_another_position_is_no_record_here() -> None:
    buffer = pa.py_buffer(encoded(b"x", position=START))
    found = records.decode(buffer, memoryview(buffer), 0, file_id=FILE_ID, position=START + 8)
    assert isinstance(found, str)
    assert str(START + 8) in found


def test_every_flipped_bit_of_a_record_is_found() -> None:
    data = encoded(b"some payload", position=START)
    for at in range(len(data)):
        for bit in range(8):
            wrong = pa.py_buffer(data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :])
            assert not isinstance(
                records.decode(wrong, memoryview(wrong), 0, file_id=FILE_ID, position=START), Record
            ), f"byte {at} bit {bit}"


# --- torn or damaged ------------------------------------------------------------------------------------------------


def test_zeros_behind_the_records_are_the_end() -> None:
    assert verdict(log(b"a", b"b") + bytes(5000)) == "end"


def test_damage_before_a_record_that_was_written_after_the_sync_is_damage() -> None:
    """Rule 2."""
    size = len(log(noise(100)))
    data = log(noise(100), noise(100), noise(100), synced=(0, size, 2 * size))
    assert verdict(damaged(data, size + 60)) == "damage"


def test_lost_sector_inside_an_unsynced_group_is_a_torn_tail() -> None:
    """Rule 3: the sector was never written, so the group was never answered."""
    group = log(noise(100), noise(2000, 2), noise(100, 3))
    start = SECTOR_BYTES * 2
    assert verdict(group[:start] + bytes(SECTOR_BYTES) + group[start + SECTOR_BYTES :]) == "torn"


def test_flipped_bit_inside_the_last_group_is_damage() -> None:
    """Rule 3: all its sectors were written, so this is not a tear, whatever follows."""
    group = log(noise(100), noise(2000, 2), noise(100, 3))
    for at in (60, 300, 1500):
        assert verdict(damaged(group, at)) == "damage"


def test_flipped_bit_in_the_last_record_is_damage() -> None:
    """Rule 4, at every byte: header, payload, padding and end mark."""
    first = log(noise(10))
    data = log(noise(10), noise(30, 2))
    for at in range(len(first), len(data)):
        assert verdict(damaged(data, at) + bytes(700)) == "damage", f"byte {at}"


def test_every_cut_of_the_last_record_is_a_tear() -> None:
    """Rule 4: a prefix, followed by the zeros that were there before, or by nothing."""
    first = log(noise(10))
    data = log(noise(10), noise(1300, 2))
    for size in range(len(first) + 1, len(data)):
        for torn in (data[:size], data[:size] + bytes(2000)):
            found, flaw = read(torn)
            assert found == [noise(10)]
            assert flaw is None or flaw.torn, f"{size} bytes"


def test_last_record_with_a_lost_sector_is_a_tear() -> None:
    first = log(noise(10))
    data = log(noise(10), noise(3000, 2))
    for start in range(0, len(data), SECTOR_BYTES):
        low, high = max(start, len(first)), min(start + SECTOR_BYTES, len(data))
        if low < high:
            assert verdict(data[:low] + bytes(high - low) + data[high:]) == "torn"


def test_garbage_without_an_end_mark_is_a_tear() -> None:
    for count in range(1, 600):
        assert verdict(log(b"a") + noise(count - 1, count) + b"\x01") == "torn"


def test_flaw_names_the_place_and_the_reason() -> None:
    data = log(noise(64), noise(64, 2))
    found, flaw = read(damaged(data, len(data) - 30))
    assert len(found) == 1
    assert flaw is not None
    assert flaw.offset_bytes == len(data) // 2
    assert "checksum is" in flaw.reason


# --- for people -----------------------------------------------------------------------------------------------------


def test_dump_shows_offset_bytes_and_text() -> None:
    lines = records.dump(b"\0" * 16 + b"HELLO" + bytes(11) + b"\xff" * 8, offset=16).splitlines()
    assert lines == [
        "  0000000010  48 45 4c 4c 4f 00 00 00 00 00 00 00 00 00 00 00  HELLO...........",
        "  0000000020  ff ff ff ff ff ff ff ff                          ........",
    ]


def test_dump_is_short_whatever_the_file() -> None:
    assert len(records.dump(bytes(100_000), offset=0).splitlines()) == 4
