"""A catalog is proven as a whole; SQLite's errors are told apart by who is to blame."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from holdfast.disk.stamp import is_stamped
from holdfast.errors import CorruptData, StoreFailed
from holdfast.store import catalogcheck
from holdfast.store.catalog import Catalog
from holdfast.store.catalogcheck import expected_tables, is_damage, translated
from holdfast.testing import CrashFilesystem

ROOT = Path("/store")
PATH = ROOT / "catalog.db"


def disk_with(*statements: str) -> CrashFilesystem:
    """A catalog that was changed by somebody else."""
    disk = CrashFilesystem()
    disk.write_bytes(ROOT / "made", b"")
    catalog = Catalog(disk, ROOT)
    catalog.set_meta(version=1)
    catalog.close()
    database = disk.database(PATH)
    with database.transaction() as change:
        for statement in statements:
            change.execute(statement)
    database.close()
    return disk


@pytest.mark.parametrize(
    ("code", "damage"),
    [
        (sqlite3.SQLITE_CORRUPT, True),
        (sqlite3.SQLITE_CORRUPT_INDEX, True),
        (sqlite3.SQLITE_NOTADB, True),
        (sqlite3.SQLITE_ERROR, True),
        (sqlite3.SQLITE_CONSTRAINT_UNIQUE, True),
        (sqlite3.SQLITE_READONLY, True),
        (sqlite3.SQLITE_READONLY_DIRECTORY, False),
        (sqlite3.SQLITE_BUSY, False),
        (sqlite3.SQLITE_FULL, False),
        (sqlite3.SQLITE_IOERR_FSYNC, False),
        (sqlite3.SQLITE_CANTOPEN, False),
        (sqlite3.SQLITE_NOMEM, False),
    ],
)
def test_error_of_sqlite_is_damage_unless_the_machine_is_to_blame(code: int, damage: bool) -> None:
    error = sqlite3.OperationalError("what it says")
    error.sqlite_errorcode = code
    assert is_damage(error) is damage
    with pytest.raises(CorruptData if damage else sqlite3.OperationalError, match="what it says"), translated(PATH):
        raise error


def test_error_without_a_code_is_damage_if_it_is_about_the_file() -> None:
    assert is_damage(sqlite3.DatabaseError("a row does not match its checksum"))
    assert not is_damage(sqlite3.OperationalError("this filesystem allows no write-ahead log"))
    assert not is_damage(sqlite3.ProgrammingError("Cannot operate on a closed database."))


def test_keys_of_all_tables_are_known() -> None:
    assert expected_tables()["segment_slots"].key == [0, 1, 2]
    assert all(table.key for table in expected_tables().values())


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("DROP INDEX segments_by_seq", "table segments has other indexes"),
        ("ALTER TABLE slots RENAME COLUMN ranges TO changed", "table slots has columns slot_id BLOB, changed BLOB"),
        ("ALTER TABLE slots RENAME TO slotz", "table slots is missing, and nobody made table slotz"),
    ],
)
def test_catalog_with_other_tables_is_refused(statement: str, reason: str) -> None:
    with pytest.raises(CorruptData, match=reason) as caught:
        Catalog(disk_with(statement), ROOT)
    assert caught.value.file == PATH


def test_table_of_a_later_release_is_left_alone_and_one_of_an_earlier_is_made() -> None:
    Catalog(disk_with("CREATE TABLE later (n INTEGER)"), ROOT).close()
    catalog = Catalog(disk_with("DROP TABLE losses"), ROOT)
    assert catalog.losses() == []


@pytest.mark.guarantee("G9")
def test_rows_are_compared_page_by_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogcheck, "ROWS_PER_PAGE", 3)
    disk = disk_with()
    catalog = Catalog(disk, ROOT)
    catalog.set_meta(**{f"key{n}": n for n in range(10)})
    catalog.close()
    Catalog(disk, ROOT).close()
    database = disk.database(PATH)
    with database.transaction() as change:
        change.execute("UPDATE meta SET value = 'x' WHERE key = 'key9'")
    database.close()
    with pytest.raises(CorruptData, match="row 'key9' of table meta does not match its checksum"):
        Catalog(disk, ROOT)


def test_catalog_that_was_closed_in_order_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = disk_with()
    catalog = Catalog(disk, ROOT)
    catalog.set_meta(birth_seq=7)
    catalog.close(in_order=True)
    monkeypatch.setattr(catalogcheck, "expected_tables", None)
    again = Catalog(disk, ROOT)
    assert again.meta("birth_seq") == b"7"


def test_error_of_the_disk_at_the_stamp_is_told() -> None:
    disk = disk_with()
    catalog = Catalog(disk, ROOT)
    catalog.set_meta(birth_seq=7)
    disk.fail_when(lambda operation, path: errno.EIO if operation == "pwritev" and path == PATH else None)
    with pytest.raises(StoreFailed, match="Input/output error"):
        catalog.close(in_order=True)
    catalog.close(in_order=True)
    disk.stop_failing()
    assert Catalog(disk, ROOT).meta("birth_seq") == b"7"


def test_full_disk_leaves_the_catalog_without_a_stamp() -> None:
    disk = disk_with()
    catalog = Catalog(disk, ROOT)
    catalog.set_meta(birth_seq=7)
    disk.fail_when(lambda operation, path: errno.ENOSPC if operation == "pwritev" else None)
    catalog.close(in_order=True)
    disk.stop_failing()
    assert not is_stamped(disk, PATH)
