"""Damage to the two manifests: of a tier, in its bucket, and of a Parquet table, in its folder.

An entry is refused, or it says what it said: JSON has many ways to write the same. A table whose last entry is damaged
is refused by the name of that entry; it is not taken for the table of before.
"""

from __future__ import annotations

from collections.abc import Iterator
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


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("number", [1, 2])
def test_missing_entry_of_a_table_manifest_is_refused_with_its_name(number: int, tmp_path: Path) -> None:
    table_of(tmp_path, 3)
    path = tmp_path / MANIFEST / f"{number:012d}.json"
    path.unlink()
    with pytest.raises(CorruptData, match=r"is not there, and _manifest/\d+\.json is") as caught:
        read_manifest(tmp_path)
    assert caught.value.file.name == path.name
    with pytest.raises(CorruptData):
        ManifestTable(FolderObjects(LocalFilesystem(), tmp_path)).last_batch("q")
    assert not path.exists()


@pytest.mark.guarantee("G9")
def test_entry_of_a_table_manifest_under_another_name_is_refused(tmp_path: Path) -> None:
    table_of(tmp_path, 3)
    second, third = (tmp_path / MANIFEST / f"{number:012d}.json" for number in (2, 3))
    second.write_bytes(third.read_bytes())
    with pytest.raises(CorruptData, match="entry 3 under another name") as caught:
        read_manifest(tmp_path)
    assert caught.value.file.name == second.name


def test_entry_that_a_list_does_not_show_yet_is_read_by_its_name(tmp_path: Path) -> None:
    """A folder is not listed at one moment: entry 2 came while it was, and entry 3 after it."""

    class Late(FolderObjects):
        def names(self, folder: str, *, after: str = "") -> Iterator[str]:
            return (name for name in super().names(folder, after=after) if not name.endswith("02.json"))

    table_of(tmp_path, 3)
    assert ManifestTable(Late(LocalFilesystem(), tmp_path)).last_batch("q") == 2


def test_other_files_beside_a_manifest_are_no_entries(tmp_path: Path) -> None:
    table_of(tmp_path, 3)
    for name in ("000000000009.json.orig", "notes.txt"):
        (tmp_path / MANIFEST / name).write_bytes(b"")
    assert read_manifest(tmp_path).number == 3
