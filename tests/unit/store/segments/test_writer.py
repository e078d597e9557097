"""Writing a segment: the steps on the disk, what is left after each failure, and what the file says."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pytest

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Mode
from holdfast.model.schema import schema_hash
from holdfast.store.segments.combine import SegmentSizes
from holdfast.store.segments.reader import SegmentReader, verify_segment
from holdfast.store.segments.runs import Run, RunTable
from holdfast.store.segments.writer import WRITE_BYTES, SegmentSink, write_segment
from holdfast.testing import CrashFilesystem, PowerCut
from tests.unit.store.segments.samples import disk, meta_of, runs_of, write

BATCHES = [pa.record_batch({"id": [i, i + 1], "name": [f"n{i}", None]}) for i in range(0, 10, 2)]
LARGE = [pa.record_batch({"x": [bytes([k]) * WRITE_BYTES]}) for k in range(3)]  # written while Arrow hands them over
WORKLOADS = [pytest.param(BATCHES, id="small"), pytest.param(LARGE, id="large")]


def rows_of(batches: list[pa.RecordBatch]) -> list[object]:
    return [row for batch in batches for row in batch.to_pylist()]


def rows_in(filesystem: CrashFilesystem, path: Path) -> list[object]:
    with SegmentReader.open(filesystem.open(path, Mode.READ)) as reader:
        return [row for _, batch in reader.batches() for row in batch.to_pylist()]


def test_a_segment_is_a_plain_arrow_file() -> None:
    filesystem, path = disk()
    write(filesystem, path, BATCHES)
    assert pa.ipc.open_file(filesystem.read_bytes(path)).read_all().to_pylist() == rows_of(BATCHES)


def test_the_answer_names_the_size_and_checksum_of_the_file() -> None:
    filesystem, path = disk()
    result = write(filesystem, path, BATCHES)
    data = filesystem.read_bytes(path)
    assert (result.size_bytes, result.crc32c) == (len(data), crc32c(data))
    assert result.schema.equals(BATCHES[0].schema)


def test_the_same_input_gives_the_same_bytes() -> None:
    files = []
    for _ in range(2):
        filesystem, path = disk()
        write(filesystem, path, BATCHES)
        files.append(filesystem.read_bytes(path))
    assert files[0] == files[1]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_segment_is_smaller_and_holds_the_same(compression: Literal["lz4", "zstd"]) -> None:
    batches = [pa.record_batch({"x": ["same text"] * 10_000})]
    filesystem, path = disk()
    plain = write(filesystem, path, batches)
    other = path.with_name("other.arrow")
    packed = write(filesystem, other, batches, compression=compression)
    assert packed.size_bytes < plain.size_bytes / 2
    assert rows_in(filesystem, other) == batches[0].to_pylist()


def test_metadata_of_the_user_stays_in_the_schema_and_ours_in_the_footer() -> None:
    schema = pa.schema([pa.field("x", pa.int64(), metadata={"unit": "m"})], metadata={"owner": "me"})
    filesystem, path = disk()
    write(filesystem, path, [pa.RecordBatch.from_arrays([pa.array([1])], schema=schema)])
    reader = pa.ipc.open_file(filesystem.read_bytes(path))
    assert reader.schema.equals(schema, check_metadata=True)
    assert reader.metadata[b"holdfast.channel"] == b"trades"
    assert all(key.startswith(b"holdfast.") for key in reader.metadata)


def test_a_segment_is_published_by_the_five_steps_in_order() -> None:
    filesystem, path = disk()
    start = filesystem.calls
    write(filesystem, path, BATCHES)
    steps = [(operation, Path(name).name) for number, operation, name in filesystem.log if number > start]
    tmp = path.name + ".tmp"
    assert steps == [
        ("create", tmp),
        ("pwritev", tmp),
        ("sync", tmp),
        ("rename", path.name),
        ("sync_dir", path.parent.name),
    ]


def test_a_left_over_temporary_file_is_replaced() -> None:
    filesystem, path = disk()
    filesystem.write_bytes(path.with_name(path.name + ".tmp"), b"torn" * 1000)
    write(filesystem, path, BATCHES)
    assert rows_in(filesystem, path) == rows_of(BATCHES)
    assert filesystem.paths() == [path]


def test_a_segment_is_never_written_over_another() -> None:
    filesystem, path = disk()
    filesystem.write_bytes(path, b"precious")
    with pytest.raises(FileExistsError):
        write(filesystem, path, BATCHES)
    assert filesystem.read_bytes(path) == b"precious"


@pytest.mark.parametrize("batches", WORKLOADS)
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failure_at_any_call_leaves_no_torn_file_and_is_raised_as_it_was(
    code: int, batches: list[pa.RecordBatch]
) -> None:
    calls = _calls_of_a_write(batches)
    for n in range(1, calls + 1):
        filesystem, path = disk()
        filesystem.fail_at(filesystem.calls + n, code)
        with pytest.raises(OSError, match=r".") as caught:
            write(filesystem, path, batches)
        assert caught.value.errno == code
        left = filesystem.paths()
        assert left in ([], [path])
        if left:
            assert n == calls, "only the sync of the directory fails after the rename"
            assert rows_in(filesystem, path) == rows_of(batches)


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("batches", WORKLOADS)
def test_power_loss_at_any_call_leaves_the_whole_segment_or_none(batches: list[pa.RecordBatch]) -> None:
    calls = _calls_of_a_write(batches)
    for n in range(1, calls + 2):
        for seed in range(8):
            filesystem, path = disk()
            filesystem.cut_at(filesystem.calls + n)
            try:
                write(filesystem, path, batches)
                published = True
            except PowerCut:
                published = False
            left = filesystem.after_power_cut(seed)
            assert published == (n == calls + 1)
            if left.exists(path):
                assert rows_in(left, path) == rows_of(batches)
            assert left.exists(path) or not published


def _calls_of_a_write(batches: list[pa.RecordBatch]) -> int:
    filesystem, path = disk()
    start = filesystem.calls
    write(filesystem, path, batches)
    return filesystem.calls - start


def test_a_segment_that_contradicts_itself_is_not_written() -> None:
    filesystem, path = disk()
    schema, runs = BATCHES[0].schema, runs_of(BATCHES)
    meta = meta_of(schema, runs)
    fewer, later = RunTable.from_runs([Run(101, 9, 1, 1)]), RunTable.from_runs([Run(102, 10, 1, 1)])
    for wrong_meta, wrong_runs, batches in (
        (meta, fewer, BATCHES),
        (meta, later, BATCHES),
        (replace(meta, rows=9), runs, BATCHES),
        (replace(meta, first_seq=102, last_seq=111), runs, BATCHES),
        (meta, runs, BATCHES[1:]),
        (meta, runs, []),
    ):
        with pytest.raises(ValueError, match="contradicts itself"):
            write_segment(filesystem, path, meta=wrong_meta, schema=schema, batches=batches, runs=wrong_runs)
    assert filesystem.paths() == []


def test_dictionary_replacement_losing_a_segment() -> None:
    """A file holds one dictionary per column; others lost all that was sealed when batches brought different ones."""

    def batch(values: list[str | None], indices: list[int]) -> pa.RecordBatch:
        array = pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), pa.array(values))
        lists = pa.ListArray.from_arrays(pa.array([0, len(indices)], pa.int32()), array)
        return pa.record_batch([array[:1], lists], ["d", "l"])

    batches = [
        batch(["a", "b"], [0, 1]),
        batch(["b", "a"], [0, 1]),  # replaced
        batch(["b", "a", "c"], [2, 0]),  # extended
        batch([None, "z"], [0, 1]),  # with a null in it
        batch([f"v{i}" for i in range(120)], list(range(120))),  # together too many for the index
        batch([f"w{i}" for i in range(120)], list(range(120))),
    ]
    expected = [row for one in batches for row in one.to_pylist()]
    filesystem, path = disk()
    result = write(filesystem, path, batches)
    assert rows_in(filesystem, path) == expected
    assert result.schema.field("d").type == pa.dictionary(pa.int32(), pa.string())
    assert result.meta.schema_hash == schema_hash(result.schema) != schema_hash(batches[0].schema)


def test_large_pieces_are_written_as_they_are_and_small_ones_together() -> None:
    filesystem, path = disk()
    file = filesystem.open(path, Mode.CREATE)
    sink = SegmentSink(file)
    start = filesystem.calls
    sink.write(b"head")
    for _ in range(100):
        sink.write(b"s" * 1000)
    assert filesystem.calls == start
    sink.write(pa.py_buffer(b"L" * WRITE_BYTES))
    assert filesystem.calls == start + 1
    assert filesystem.read_bytes(path) == b"head" + b"s" * 100_000 + b"L" * WRITE_BYTES
    assert sink.crc32c == crc32c(filesystem.read_bytes(path))
    assert sink.tell() == sink.size_bytes == 4 + 100_000 + WRITE_BYTES


def test_the_file_is_synced_on_the_way_when_asked() -> None:
    filesystem, path = disk()
    batches = [pa.record_batch({"x": [b"y" * WRITE_BYTES]}) for _ in range(6)]
    runs = runs_of(batches)
    schema = batches[0].schema
    write_segment(
        filesystem,
        path,
        meta=meta_of(schema, runs),
        schema=schema,
        batches=batches,
        runs=runs,
        sizes=SegmentSizes(sync_every_bytes=2 * WRITE_BYTES),
    )
    assert [operation for _, operation, _ in filesystem.log].count("sync_data") == 3
    verify_segment(filesystem.open(path, Mode.READ))
