"""Reading a segment: exact ranges, projections, nothing copied or touched without need, and damage told by place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import File, Mode
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import Closed, CorruptData, UnsupportedFormat
from holdfast.store.segments.footer import read_footer
from holdfast.store.segments.reader import SegmentReader, inspect_segment, verify_segment
from holdfast.store.segments.writer import SegmentFile
from tests.unit.store.segments.samples import FIRST_SEQ, SLOT, damaged, disk, runs_of, write, written

LARGE = [
    pa.record_batch({"id": np.arange(40_000) + 40_000 * k, "name": [f"name {k}-{i}" for i in range(40_000)]})
    for k in range(3)
]
SMALL = [pa.record_batch({"id": [1, 2], "name": ["a", None]})]


@pytest.fixture(scope="module", params=[None, "lz4"])
def large(request: pytest.FixtureRequest) -> SegmentReader:
    return SegmentReader.open(written(LARGE, compression=request.param))


def bytes_of(file: File) -> bytes:
    return file.pread(file.size_bytes(), 0)


def test_a_reader_gives_metadata_schema_and_runs_back() -> None:
    with SegmentReader.open(written(SMALL)) as reader:
        assert (reader.meta.channel, reader.meta.first_seq, reader.meta.last_seq) == ("trades", 101, 102)
        assert reader.schema.equals(SMALL[0].schema)
        assert reader.runs == runs_of(SMALL)
        assert reader.runs is reader.runs


@pytest.mark.parametrize(
    ("first", "last"),
    [
        (None, None),
        (101, 120_100),
        (1, 10**9),
        (101, 101),
        (120_100, None),
        (None, 101),
        (40_100, 40_101),
        (40_101, 80_100),
        (40_000, 100_000),
        (150, 149),
        (120_101, None),
        (None, 100),
    ],
)
def test_a_range_gives_exactly_its_events(large: SegmentReader, first: int | None, last: int | None) -> None:
    low = max(first or FIRST_SEQ, FIRST_SEQ)
    high = min(last if last is not None else 120_100, 120_100)
    seqs: list[int] = []
    for seq, batch in large.batches(first, last):
        ids = batch.column("id").to_pylist()
        assert ids == list(range(seq - FIRST_SEQ, seq - FIRST_SEQ + batch.num_rows))
        seqs += range(seq, seq + batch.num_rows)
    assert seqs == list(range(low, high + 1))


def test_columns_come_in_the_order_asked_for(large: SegmentReader) -> None:
    for columns in (["name"], ["name", "id"], ["id", "later", "name"]):
        batches = [batch for _, batch in large.batches(90_000, 90_010, columns=columns)]
        assert [batch.schema.names for batch in batches] == [[name for name in columns if name != "later"]]
        assert batches[0].column("name")[0].as_py() == "name 2-9899"


def test_rows_are_counted_even_without_columns(large: SegmentReader) -> None:
    for columns in ([], ["later"]):
        parts = [(batch.num_columns, batch.num_rows) for _, batch in large.batches(40_050, 40_150, columns=columns)]
        assert parts == [(0, 51), (0, 50)]


def test_batches_lie_inside_the_mapped_file(tmp_path: Path) -> None:
    file, _ = local_file(tmp_path, LARGE)
    mapped = file.map()
    low, high = mapped.address, mapped.address + mapped.size
    reader = SegmentReader(file.path, mapped, read_footer(file))
    for columns in (None, ["name"]):
        for _, batch in reader.batches(40_500, columns=columns):
            buffers = [b for column in batch.columns for b in column.buffers() if b is not None and b.size]
            assert buffers
            assert all(low <= b.address and b.address + b.size <= high for b in buffers)


def local_file(tmp_path: Path, batches: list[pa.RecordBatch]) -> tuple[File, SegmentFile]:
    filesystem = LocalFilesystem()
    result = write(filesystem, tmp_path / "seg.arrow", batches)
    return filesystem.open(tmp_path / "seg.arrow", Mode.READ), result


def test_batches_outlive_reader_file_and_name(tmp_path: Path) -> None:
    file, _ = local_file(tmp_path, LARGE)
    with SegmentReader.open(file) as reader:
        kept = [batch for _, batch in reader.batches(columns=["id"])]
    file.close()
    file.path.unlink()
    assert sum(batch.num_rows for batch in kept) == 120_000
    assert kept[2].column("id")[39_999].as_py() == 119_999


def test_a_closed_reader_says_so() -> None:
    reader = SegmentReader.open(written(SMALL))
    reader.close()
    reader.close()
    with pytest.raises(Closed):
        list(reader.batches())
    with pytest.raises(Closed):
        _ = reader.runs


# --------------------------------------------------------------------------------------------------------------- damage


@pytest.mark.guarantee("G9")
def test_damage_in_a_batch_is_told_by_its_place() -> None:
    data = bytearray(bytes_of(written(LARGE)))
    reader = SegmentReader.open(damaged(bytes(data)))
    place = len(data) // 2  # in the second of three batches
    data[place] ^= 1
    with pytest.raises(CorruptData) as caught:
        SegmentReader.open(damaged(bytes(data)))
    error = caught.value
    assert 0 < error.offset_bytes <= place < error.offset_bytes + len(data) // 2
    assert f"bytes {error.offset_bytes} to " in error.reason
    assert reader.batch_rows == [40_000] * 3


@pytest.mark.guarantee("G9")
def test_damage_in_the_footer_is_told_by_its_place() -> None:
    data = bytearray(bytes_of(written(SMALL)))
    at = data.index(b"trades")
    data[at] ^= 1
    with pytest.raises(CorruptData) as caught:
        verify_segment(damaged(bytes(data)))
    footer_start = len(data) - 10 - int.from_bytes(data[-10:-6], "little")
    assert caught.value.offset_bytes == footer_start


@pytest.mark.guarantee("G9")
def test_another_undamaged_segment_is_not_the_one_in_the_catalog() -> None:
    filesystem, path = disk()
    result = write(filesystem, path, SMALL)
    other = write(filesystem, path.with_name("other.arrow"), LARGE)
    verify_segment(filesystem.open(path, Mode.READ), result.crc32c)
    for action in (verify_segment, lambda file, crc: SegmentReader.open(file, expected_crc32c=crc)):
        with pytest.raises(CorruptData, match="another one"):
            action(filesystem.open(path, Mode.READ), other.crc32c)


def test_a_file_checked_before_is_not_read_again() -> None:
    filesystem, path = disk()
    write(filesystem, path, LARGE)
    file = filesystem.open(path, Mode.READ)
    before = filesystem.reads
    SegmentReader.open(file, verified=True)
    reads_verified = filesystem.reads - before
    SegmentReader.open(file)
    assert reads_verified < filesystem.reads - before - reads_verified


def test_an_arrow_file_of_someone_else_is_refused() -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, SMALL[0].schema) as writer:
        writer.write_batch(SMALL[0])
    with pytest.raises(CorruptData, match=r"no entry holdfast\.crc32c"):
        verify_segment(damaged(sink.getvalue().to_pybytes()))


def test_a_segment_of_a_later_format_is_named_as_such() -> None:
    data = bytes_of(written(SMALL))
    own = inspect_segment(damaged(data))["own_crc32c"].encode()
    blank = data.replace(own, b"00000000")
    at = blank.index(b"holdfast.format") - 8  # the value stands before its key
    assert blank[at : at + 1] == b"1"
    later = blank[:at] + b"2" + blank[at + 1 :]
    signed = later.replace(b"00000000", b"%08x" % crc32c(later), 1)
    assert crc32c(later) != 0
    for action in (verify_segment, SegmentReader.open, inspect_segment):
        with pytest.raises(UnsupportedFormat, match="format version 2"):
            action(damaged(signed))


# ----------------------------------------------------------------------------------------------------------- inspecting


def test_inspecting_tells_everything_a_segment_says() -> None:
    file = written(SMALL)
    report = inspect_segment(file)
    assert report["intact"] is True
    assert (report["channel"], report["rows"], report["first_seq"], report["batch_rows"]) == ("trades", 2, 101, [2])
    assert report["columns"][1] == {"name": "name", "type": "string", "nullable": True}
    assert report["slots"] == {SLOT.hex(): [(0, 0)]}
    assert report["size_bytes"] == file.size_bytes()


def test_inspecting_tells_damage_instead_of_raising() -> None:
    data = bytearray(bytes_of(written(SMALL)))
    data[200] ^= 0x40
    report = inspect_segment(damaged(bytes(data)))
    assert report["intact"] is False
    assert set(report["damage"]) == {"offset_bytes", "reason"}
