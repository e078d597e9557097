"""Damage to the two manifests: of a tier, in its bucket, and of a Parquet table, in its folder.

An entry is refused, or it says what it said: JSON has many ways to write the same. A table whose last entry is damaged
is refused by the name of that entry; it is not taken for the table of before.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.disk.local import LocalFilesystem
from holdfast.errors import CorruptData
from holdfast.spark.tables import read_manifest
from holdfast.spark.tables.commits import Commit, DataFile
from holdfast.spark.tables.manifest import ManifestTable, TableFiles
from holdfast.tier.folder import FolderObjects
from holdfast.tier.manifest import Torn, decode, encode
from tests.crash.sweeps import every, flipped_bit
from tests.unit.tier.test_manifest import ENTRY

MANIFEST = "_manifest"


def table_of(folder: Path, commits: int) -> None:
    """A table with that many commits, of one file each. Nobody reads the files here."""
    table = ManifestTable(FolderObjects(LocalFilesystem(), folder))
    schema = pa.schema([("n", pa.int64())])
    for batch in range(commits):
        file = DataFile(f"data/q/{batch}/part.parquet", rows=batch + 1, size_bytes=100)
        assert table.last_batch("q") == (batch - 1 if batch else None)
        assert table.append(Commit("q", batch, schema, (file,)))


def is_as_before(folder: Path, before: TableFiles, damaged: Path) -> bool:
    """Whether the table says what it said; False if it is refused by the name of the damaged file."""
    try:
        found = read_manifest(folder)
    except CorruptData as error:
        refused = error.file.name
    else:
        assert found == before
        return True
    assert refused == damaged.name
    return False


@pytest.mark.guarantee("G9")
@every(29)
def test_flipped_bit_of_a_table_manifest_is_refused_with_the_name_of_the_entry(step: int, tmp_path: Path) -> None:
    table_of(tmp_path, 3)
    before = read_manifest(tmp_path)
    assert (before.number, before.rows) == (3, 6)
    for path in sorted((tmp_path / MANIFEST).glob("*.json")):
        data = path.read_bytes()
        for bit in range(0, len(data) * 8, step):
            path.write_bytes(flipped_bit(data, bit))
            assert not is_as_before(tmp_path, before, path), f"{path.name}, bit {bit}"
        path.write_bytes(data)


@pytest.mark.guarantee("G9")
@every(3)
def test_entry_of_a_table_manifest_that_ends_early_is_refused_with_its_name(step: int, tmp_path: Path) -> None:
    table_of(tmp_path, 3)
    before = read_manifest(tmp_path)
    for path in sorted((tmp_path / MANIFEST).glob("*.json")):
        data = path.read_bytes()
        for size in range(0, len(data), step):
            for torn in (data[:size], data[:size].ljust(len(data), b"\0")):
                path.write_bytes(torn)
                assert not is_as_before(tmp_path, before, path), f"{path.name} cut at {size}"
        path.write_bytes(data)


@pytest.mark.guarantee("G9")
@every(997)
def test_damaged_checkpoint_of_a_table_is_refused_with_its_name(step: int, tmp_path: Path) -> None:
    """It stands for all entries before it; they are not read any more."""
    table_of(tmp_path, 101)
    before = read_manifest(tmp_path)
    (path,) = (tmp_path / MANIFEST / "checkpoint").iterdir()
    data = path.read_bytes()
    assert len(before.files) == 101
    for bit in range(0, len(data) * 8, step):
        path.write_bytes(flipped_bit(data, bit))
        assert not is_as_before(tmp_path, before, path), f"bit {bit}"
    for size in range(0, len(data), step):
        path.write_bytes(data[:size])
        assert not is_as_before(tmp_path, before, path), f"cut at {size}"


@pytest.mark.xfail(
    reason="bytes that are no UTF-8 raise UnicodeDecodeError, which callers do not take for a torn entry"
)
@pytest.mark.guarantee("G9")
@every(7)
def test_flipped_bit_of_an_entry_of_a_tier_makes_it_none_or_changes_nothing(step: int) -> None:
    data = encode(ENTRY)
    others = []
    for bit in range(0, len(data) * 8, step):
        try:
            found = decode(flipped_bit(data, bit))
        except Torn:
            continue
        except ValueError as error:
            others.append((bit, str(error)))
        else:
            assert found == ENTRY, f"bit {bit}"
    assert others == []


@pytest.mark.guarantee("G9")
@every(3)
def test_entry_of_a_tier_that_ends_early_is_none(step: int) -> None:
    data = encode(ENTRY)
    for size in range(0, len(data), step):
        for torn in (data[:size], data[:size].ljust(len(data), b"\0")):
            with pytest.raises(Torn):
                decode(torn)


@pytest.mark.xfail(reason="the table is read up to the hole, as if it ended there")
@pytest.mark.guarantee("G9")
def test_missing_entry_in_the_middle_of_a_table_manifest_is_refused(tmp_path: Path) -> None:
    table_of(tmp_path, 3)
    (tmp_path / MANIFEST / "000000000002.json").unlink()
    with pytest.raises(CorruptData):
        read_manifest(tmp_path)
