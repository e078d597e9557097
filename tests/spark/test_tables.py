"""Tables without Spark: each batch once and as a whole, also when the power is cut at any disk call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, CorruptData, SchemaMismatch, UnsupportedFormat
from holdfast.spark.tables import manifest, read_manifest
from holdfast.spark.tables.commits import Commit, Table, commit, folder_of
from holdfast.spark.tables.files import write_files
from holdfast.spark.tables.manifest import Entry, ManifestTable, decode, encode
from holdfast.spark.tables.opening import check_types, open_table, table_schema
from holdfast.testing import CrashFilesystem, PowerCut
from holdfast.tier.folder import FolderObjects
from holdfast.tier.objects import Objects
from tests.spark.stores import numbers

KINDS = ("parquet", "delta", "iceberg")


def change(objects: Objects, batch: int, rows: pa.RecordBatch, *, identity: str = "query") -> Commit:
    folder = folder_of(identity, batch)
    files = write_files(objects, folder, rows.schema, [rows], file_bytes_max=1 << 20)
    return Commit(identity, batch, rows.schema, tuple(files))


def add(kind: str, folder: Path, batch: int, rows: pa.RecordBatch, *, identity: str = "query") -> bool:
    opened = open_table(kind, str(folder))
    return commit(opened.table, opened.objects, change(opened.objects, batch, rows, identity=identity))


def content(kind: str, folder: Path) -> pa.Table:
    if kind == "delta":
        return DeltaTable(str(folder)).to_pyarrow_table()
    if kind == "iceberg":
        newest = max((folder / "metadata").glob("v*.metadata.json"), key=lambda path: int(path.name[1:].split(".")[0]))
        return StaticTable.from_metadata(str(newest)).scan().to_arrow()
    found = read_manifest(folder)
    return ds.dataset(found.files, schema=found.schema, format="parquet").to_table()


def files_of(folder: Path) -> list[Path]:
    return sorted((folder / "data").rglob("*.parquet"))


# -- every kind -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_that_comes_again_changes_nothing_and_leaves_no_files(kind: str, tmp_path: Path) -> None:
    assert add(kind, tmp_path / "t", 0, numbers(1, 5))
    assert add(kind, tmp_path / "t", 1, numbers(6, 5))
    for batch in (1, 0):
        assert not add(kind, tmp_path / "t", batch, numbers(100, 7))
    assert sorted(content(kind, tmp_path / "t")["n"].to_pylist()) == list(range(1, 11))
    assert len(files_of(tmp_path / "t")) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_writers_with_other_identities_count_for_themselves(kind: str, tmp_path: Path) -> None:
    for first, identity in ((1, "one"), (6, "two/ü ")):
        assert add(kind, tmp_path / "t", 0, numbers(first, 5), identity=identity)
        assert not add(kind, tmp_path / "t", 0, numbers(first, 5), identity=identity)
    assert sorted(content(kind, tmp_path / "t")["n"].to_pylist()) == list(range(1, 11))


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_column_is_null_in_earlier_rows(kind: str, tmp_path: Path) -> None:
    add(kind, tmp_path / "t", 0, numbers(1, 1))
    add(kind, tmp_path / "t", 1, pa.record_batch({"n": [2], "word": ["w"]}))
    add(kind, tmp_path / "t", 2, numbers(3, 1))
    rows = content(kind, tmp_path / "t").sort_by("n").to_pylist()
    assert rows == [{"n": 1, "word": None}, {"n": 2, "word": "w"}, {"n": 3, "word": None}]


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_of_another_kind_is_refused(kind: str, tmp_path: Path) -> None:
    add(kind, tmp_path / "t", 0, numbers(1, 1))
    with pytest.raises(SchemaMismatch):
        add(kind, tmp_path / "t", 1, pa.record_batch({"n": ["text"]}))
    assert content(kind, tmp_path / "t")["n"].to_pylist() == [1]


@pytest.mark.parametrize("kind", KINDS)
def test_files_of_an_attempt_that_was_killed_are_removed_by_the_next(kind: str, tmp_path: Path) -> None:
    opened = open_table(kind, str(tmp_path / "t"))
    change(opened.objects, 0, numbers(1, 5))  # its files, and then no commit
    assert add(kind, tmp_path / "t", 0, numbers(1, 5))
    assert content(kind, tmp_path / "t").num_rows == 5
    assert len(files_of(tmp_path / "t")) == 1


class Interrupted(Exception):
    """Process death between two steps."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [False, True])
def test_death_around_the_commit_leaves_the_old_or_the_new_table(kind: str, after: bool, tmp_path: Path) -> None:
    add(kind, tmp_path / "t", 0, numbers(1, 5))
    opened = open_table(kind, str(tmp_path / "t"))

    class Dying:
        def last_batch(self, identity: str) -> int | None:
            return opened.table.last_batch(identity)

        def append(self, change: Commit) -> bool:
            if after:
                opened.table.append(change)
            raise Interrupted

    with pytest.raises(Interrupted):
        commit(Dying(), opened.objects, change(opened.objects, 1, numbers(6, 5)))
    assert content(kind, tmp_path / "t").num_rows == (10 if after else 5)
    assert add(kind, tmp_path / "t", 1, numbers(6, 5)) is not after
    assert sorted(content(kind, tmp_path / "t")["n"].to_pylist()) == list(range(1, 11))


@pytest.mark.parametrize(("kind", "found"), [("delta", pa.duration("us")), ("iceberg", pa.duration("us"))])
def test_a_type_that_a_table_cannot_hold_is_named_before_anything_is_written(kind: str, found: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch, match="wait"):
        check_types(kind, "/lake", pa.schema([("n", pa.int64()), ("wait", found)]))
    check_types("parquet", "/lake", pa.schema([("wait", found)]))


def test_times_are_kept_as_every_table_has_them() -> None:
    schema = pa.schema([("at", pa.timestamp("us", "Europe/Berlin")), ("of_day", pa.time64("ns"))])
    assert table_schema(schema).types == [pa.timestamp("us", "UTC"), pa.time64("us")]
    check_types("iceberg", "/lake", table_schema(schema))


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_task_with_many_rows_writes_several_files(tmp_path: Path) -> None:
    objects = FolderObjects(LocalFilesystem(), tmp_path / "t")
    batches = [numbers(at, 200_000) for at in range(0, 10_000_000, 200_000)]
    files = write_files(objects, "data/q/0", batches[0].schema, batches, file_bytes_max=1 << 20)
    assert len(files) > 1
    assert sum(file.rows for file in files) == 10_000_000
    assert all((tmp_path / "t" / file.key).stat().st_size == file.size_bytes for file in files)


def test_a_task_without_rows_writes_no_file(tmp_path: Path) -> None:
    objects = FolderObjects(LocalFilesystem(), tmp_path / "t")
    assert write_files(objects, "data/q/0", numbers(1, 1).schema, [numbers(1, 0)], file_bytes_max=1) == []


# -- the manifest -----------------------------------------------------------------------------------------------------


def test_readers_without_spark_see_what_is_committed_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    add("parquet", folder, 0, numbers(1, 5))
    opened = open_table("parquet", str(folder))
    change(opened.objects, 1, numbers(6, 5))  # killed before its commit
    (folder / "data" / "torn.parquet").write_bytes(b"PAR1")
    files = read_manifest(folder).files
    assert pl.read_parquet(files)["n"].to_list() == [1, 2, 3, 4, 5]
    assert duckdb.read_parquet(files).fetchall() == [(n,) for n in range(1, 6)]
    assert ds.dataset(files).to_table()["n"].to_pylist() == [1, 2, 3, 4, 5]


def test_checkpoints_say_the_same_as_all_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "CHECKPOINT_EVERY", 10)
    commits = 43
    opened = open_table("parquet", str(tmp_path / "t"))
    for batch in range(commits):
        assert commit(opened.table, opened.objects, change(opened.objects, batch, numbers(batch, 1)))
    found = read_manifest(tmp_path / "t")
    assert (found.number, found.rows, len(set(found.files))) == (commits, commits, commits)
    for path in sorted((tmp_path / "t" / "_manifest").glob("*.json"))[:40]:
        path.unlink()
    assert read_manifest(tmp_path / "t") == found
    assert len(list((tmp_path / "t" / "_manifest" / "checkpoint").iterdir())) == 2


def test_of_two_writers_at_once_none_is_lost(tmp_path: Path) -> None:
    objects = FolderObjects(LocalFilesystem(), tmp_path / "t")
    one, two = ManifestTable(objects), ManifestTable(objects)
    assert one.last_batch("one") is None
    assert two.last_batch("two") is None
    assert commit(one, objects, change(objects, 0, numbers(1, 5), identity="one"))
    late = change(objects, 0, numbers(6, 5), identity="two")
    assert not two.append(late)
    assert commit(two, objects, late)
    assert read_manifest(tmp_path / "t").rows == 10


def test_a_folder_without_a_manifest_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="_manifest"):
        read_manifest(tmp_path)


def test_a_damaged_entry_is_named_not_passed_over(tmp_path: Path) -> None:
    add("parquet", tmp_path / "t", 0, numbers(1, 5))
    (path,) = (tmp_path / "t" / "_manifest").glob("*.json")
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(CorruptData, match=path.name):
            read_manifest(tmp_path / "t")


def test_an_entry_of_a_later_format_is_refused() -> None:
    with pytest.raises(UnsupportedFormat):
        decode(encode(Entry(format=2, number=1, add=())), place="here")


def committed_rows(filesystem: CrashFilesystem, folder: Path) -> set[int]:
    """What a reader finds; every file that is listed must be there as a whole."""
    objects = FolderObjects(filesystem, folder)
    table = ManifestTable(objects)
    table.last_batch("")
    found: set[int] = set()
    for listed in table._sums.files:
        data = filesystem.read_bytes(folder / listed.path)
        assert len(data) == listed.bytes
        values = pq.read_table(pa.BufferReader(data))["n"].to_pylist()
        assert not found.intersection(values)
        found.update(values)
    return found


def workload(filesystem: CrashFilesystem, folder: Path, done: Callable[[int], None]) -> None:
    objects = FolderObjects(filesystem, folder)
    table: Table = ManifestTable(objects)
    for batch in range(3):
        commit(table, objects, change(objects, batch, numbers(1 + batch * 5, 5)))
        done(batch)


def empty_disk() -> CrashFilesystem:
    disk = CrashFilesystem()
    disk.makedir(Path("/lake"))
    disk.sync_dir(Path("/"))
    return disk


@pytest.mark.guarantee("G8")
def test_power_loss_at_any_disk_call_leaves_whole_batches() -> None:
    folder = Path("/lake/t")
    calm = empty_disk()
    before = calm.calls
    workload(calm, folder, lambda _batch: None)
    for call in range(before + 1, calm.calls + 1):
        disk = empty_disk()
        disk.cut_at(call)
        told: list[int] = []
        with pytest.raises(PowerCut):
            workload(disk, folder, told.append)
        for seed in range(3):
            after = disk.after_power_cut(seed)
            found = committed_rows(after, folder)
            batches = len(found) // 5
            assert found == set(range(1, 1 + batches * 5))
            assert batches >= len(told), "a batch that was told as committed is there"
            workload(after, folder, lambda _batch: None)
            assert committed_rows(after, folder) == set(range(1, 16))
