"""Damaged segment files: every flipped bit, every cut, every lost sector is found before Arrow sees a byte.

This is damage to bytes at rest. What a power cut leaves is tested with the writer.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from holdfast.disk.filesystem import File, Mode
from holdfast.errors import CorruptData
from holdfast.store.segments.reader import SegmentReader, verify_segment
from tests.unit.store.segments.samples import disk, write

BATCHES = [
    pa.record_batch({
        "id": pa.array([1, 2, 3]),
        "name": pa.array(["a", None, "c"]),
        "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
        "tags": pa.array([["t"], [], None]),
    })
]  # fmt: skip


class Victim:
    """A small segment whose bytes are replaced again and again."""

    def __init__(self) -> None:
        self.filesystem, self.path = disk()
        self.result = write(self.filesystem, self.path, BATCHES)
        self.data = self.filesystem.read_bytes(self.path)

    def damaged(self, data: bytes) -> File:
        self.filesystem.write_bytes(self.path, data)
        return self.filesystem.open(self.path, Mode.READ)

    def escapes(self, variants: Iterator[tuple[str, bytes]]) -> list[str]:
        """The variants that a reader would take for good by the file's own checksum, without help of the catalog."""
        return [name for name, data in variants if not self._is_found(data)]

    def _is_found(self, data: bytes) -> bool:
        try:
            SegmentReader.open(self.damaged(data))
        except CorruptData as error:
            return error.file == self.path and 0 <= error.offset_bytes <= len(data)
        return False


def flipped(data: bytes) -> Iterator[tuple[str, bytes]]:
    for at in range(len(data)):
        for bit in range(8):
            yield f"byte {at} bit {bit}", data[:at] + bytes([data[at] ^ (1 << bit)]) + data[at + 1 :]


@pytest.mark.guarantee("G9")
def test_every_flipped_bit_of_a_segment_is_found() -> None:
    victim = Victim()
    assert victim.escapes(flipped(victim.data)) == []


@pytest.mark.guarantee("G9")
def test_every_cut_of_a_segment_is_found() -> None:
    victim = Victim()
    assert victim.escapes((f"{n} bytes", victim.data[:n]) for n in range(len(victim.data))) == []


@pytest.mark.guarantee("G9")
def test_every_lost_or_repeated_piece_of_a_segment_is_found() -> None:
    victim = Victim()
    data = victim.data

    def pieces() -> Iterator[tuple[str, bytes]]:
        for size in (1, 8, 64, 512):
            for at in range(0, len(data) - size, size):
                piece = data[at : at + size]
                if piece != bytes(size):
                    yield f"{size} bytes zeroed at {at}", data[:at] + bytes(size) + data[at + size :]
                yield f"{size} bytes missing at {at}", data[:at] + data[at + size :]
                yield f"{size} bytes twice at {at}", data[:at] + piece + data[at:]
        for extra in (b"\0", b"\0" * 512, data):
            yield f"{len(extra)} bytes more", data + extra

    assert victim.escapes(pieces()) == []


@pytest.mark.guarantee("G9")
def test_an_undamaged_segment_passes_and_reads_right() -> None:
    victim = Victim()
    file = victim.damaged(victim.data)
    verify_segment(file, victim.result.crc32c)
    with SegmentReader.open(file) as reader:
        assert [batch.to_pylist() for _, batch in reader.batches()] == [BATCHES[0].to_pylist()]


@pytest.mark.guarantee("G9")
def test_an_unreadable_sector_is_an_error_and_not_a_crash() -> None:
    victim = Victim()
    for n in range(1, 4):
        file = victim.damaged(victim.data)
        before = victim.filesystem.reads
        victim.filesystem.fail_read_at(before + n, 5)
        with pytest.raises(OSError, match="Input/output error"):
            verify_segment(file)
        victim.filesystem.stop_failing()
