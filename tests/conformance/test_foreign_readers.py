"""A segment is a plain Arrow file: readers that know nothing of us open it as it is. And old ones stay readable."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pytest

from holdfast.disk.local import LocalFilesystem
from holdfast.store.segments.reader import SegmentReader, verify_segment
from holdfast.store.segments.runs import SYSTEM_COLUMNS, Run
from tests.unit.store.segments.samples import damaged, write

VECTORS = Path(__file__).parent / "vectors"
V1_SCHEMA_HASH = "dde873f9a70f1484916553345d504e90"
V1_CRC32C = {"segment-v1-plain": 0x1C53E9AF, "segment-v1-zstd": 0xF4E1308D}

BATCHES = [
    pa.record_batch({
        "id": pa.array([k, k + 1]),
        "price": pa.array([1.5, None]),
        "kind": pa.array([f"kind-{k}", "common"]).dictionary_encode(),
        "tags": pa.array([["a", "b"], []]),
        "place": pa.array([{"x": k, "y": None}, None], pa.struct([("x", pa.int32()), ("y", pa.string())])),
        "at": pa.array([datetime(2026, 1, 1, tzinfo=UTC)] * 2, pa.timestamp("us", "UTC")),
    })
    for k in range(0, 20, 2)
]  # fmt: skip
ROWS = pa.Table.from_batches(BATCHES).to_pylist()


@pytest.fixture(scope="module", params=[None, "lz4", "zstd"])
def segment(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("segments") / "seg.arrow"
    write(LocalFilesystem(), path, BATCHES, compression=request.param)
    return path


def test_pyarrow_reads_a_segment_as_it_is(segment: Path) -> None:
    with pa.memory_map(str(segment)) as source:
        assert pa.ipc.open_file(source).read_all().to_pylist() == ROWS


def test_polars_reads_a_segment_as_it_is(segment: Path) -> None:
    assert pl.read_ipc(segment).to_dicts() == ROWS
    assert pl.scan_ipc(segment).select("id").sum().collect().item() == sum(row["id"] for row in ROWS)


def test_duckdb_reads_a_segment_through_arrow(segment: Path) -> None:
    with pa.memory_map(str(segment)) as source, duckdb.connect() as connection:
        relation = connection.from_arrow(pa.ipc.open_file(source).read_all())
        found = relation.aggregate("kind, count(*) AS n, sum(id) AS s", "kind").order("n DESC, kind").fetchall()
    assert found[0] == ("common", 10, sum(range(1, 20, 2)))
    assert len(found) == 11


def test_a_mapped_segment_is_the_arrays_without_a_copy(tmp_path: Path) -> None:
    path = tmp_path / "seg.arrow"
    write(LocalFilesystem(), path, BATCHES)
    with pa.memory_map(str(path)) as source:
        whole = source.read_buffer()
        table = pa.ipc.open_file(source).read_all()
        low, high = whole.address, whole.address + whole.size
        chunks = [chunk for column in table.columns for chunk in column.chunks]
        buffers = [buffer for chunk in chunks for buffer in chunk.buffers() if buffer is not None and buffer.size]
        assert len(buffers) > 8
        assert all(low <= buffer.address and buffer.address + buffer.size <= high for buffer in buffers)


# ------------------------------------------------------------------------------------------------------- golden vectors

V1_RUNS = [
    Run(101, 2, 1000, 1_700_000_000_000_000_000, bytes(range(16)), 7, None, ("eu", "ünï")),
    Run(103, 2, 1010, 1_700_000_000_000_000_500, None, None, b"\xff" * 15 + b"\0"),
]
V1_ROWS = [
    {"id": 1, "name": "a", "kind": "x", "tags": ["t"]},
    {"id": 2, "name": None, "kind": "y", "tags": []},
    {"id": 3, "name": "ünï", "kind": "y", "tags": None},
    {"id": 4, "name": "", "kind": None, "tags": ["u", None]},
]


@pytest.mark.parametrize("name", ["segment-v1-plain", "segment-v1-zstd"])
def test_a_segment_of_format_1_stays_readable(name: str) -> None:
    """Written once by the first release. Never change the vector: files like it are on people's disks."""
    data = base64.b64decode((VECTORS / f"{name}.base64").read_text(encoding="ascii"))
    file = damaged(data)
    verify_segment(file, V1_CRC32C[name])
    with SegmentReader.open(file) as reader:
        meta = reader.meta
        assert (meta.store_id, meta.channel) == ("0123456789abcdef" * 2, "trades")
        assert (meta.segment_seq, meta.signal) == (7, "logs")
        assert (meta.first_seq, meta.last_seq, meta.rows) == (101, 104, 4)
        assert (meta.first_committed_id, meta.last_committed_id) == (1000, 1011)
        assert (meta.first_event_time_ns, meta.last_event_time_ns) == (-5, 2**62)
        assert meta.schema_hash == V1_SCHEMA_HASH
        assert list(reader.runs) == V1_RUNS
        assert [row for _, batch in reader.batches() for row in batch.to_pylist()] == V1_ROWS
        columns = reader.runs.system_columns(SYSTEM_COLUMNS, channel="trades", first_seq=102, rows=2)
        assert columns["_committed_id"].to_pylist() == [1001, 1010]
