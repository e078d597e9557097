"""A checksum over a whole SQLite file: there while nobody has changed it, gone with the first change."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from holdfast.disk.filesystem import Filesystem
from holdfast.disk.local import LocalFilesystem
from holdfast.disk.stamp import PIECE_BYTES, check_stamp, is_stamped, stamp
from holdfast.errors import CorruptData
from holdfast.testing import CrashFilesystem

ROOT = Path("/d")
PATH = ROOT / "a.db"


def crash_disk() -> CrashFilesystem:
    disk = CrashFilesystem()
    disk.write_bytes(ROOT / "made", b"")
    return disk


def write(disk: Filesystem, path: Path, *values: bytes) -> None:
    database = disk.database(path)
    with database.transaction() as change:
        change.execute("CREATE TABLE IF NOT EXISTS t (v BLOB)")
        change.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
    database.close()


@pytest.mark.guarantee("G9")
def test_database_is_stamped_until_it_changes() -> None:
    disk = crash_disk()
    write(disk, PATH, b"one")
    assert not is_stamped(disk, PATH)
    stamp(disk, PATH)
    assert is_stamped(disk, PATH)
    disk.database(PATH).close()
    assert is_stamped(disk, PATH)
    write(disk, PATH, b"two")
    assert not is_stamped(disk, PATH)
    stamp(disk, PATH)
    assert is_stamped(disk, PATH)


@pytest.mark.guarantee("G9")
def test_stamp_of_a_real_file_of_several_pieces_finds_its_last_byte(tmp_path: Path) -> None:
    disk, path = LocalFilesystem(), tmp_path / "a.db"
    write(disk, path, b"x" * (2 * PIECE_BYTES))
    stamp(disk, path)
    assert is_stamped(disk, path)
    data = path.read_bytes()
    assert len(data) > 2 * PIECE_BYTES
    assert check_stamp(path, [data])
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CorruptData, match="when it was closed") as caught:
        is_stamped(disk, path)
    assert caught.value.file == path


def test_change_that_is_only_in_the_log_of_a_killed_process_counts(tmp_path: Path) -> None:
    disk, path = LocalFilesystem(), tmp_path / "a.db"
    write(disk, path, b"one")
    stamp(disk, path)
    database = disk.database(path)
    with database.transaction() as change:
        change.execute("INSERT INTO t VALUES (?)", (b"two",))
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in ("a.db", "a.db-wal"):
        (killed / name).write_bytes((tmp_path / name).read_bytes())
    database.close()
    assert not is_stamped(disk, killed / "a.db")
    stamp(disk, killed / "a.db")
    (killed / "a.db-wal").unlink()
    assert is_stamped(disk, killed / "a.db"), "a stamp was written beside a log"


def test_failed_transaction_leaves_the_stamp() -> None:
    disk = crash_disk()
    write(disk, PATH, b"one")
    stamp(disk, PATH)
    database = disk.database(PATH)
    with pytest.raises(sqlite3.OperationalError), database.transaction() as change:
        change.executemany("INSERT INTO nothing VALUES (?)", [(b"two",)])
    database.close()
    assert is_stamped(disk, PATH)


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("seed", range(12))
def test_power_cut_while_a_stamp_is_written_leaves_it_or_none(seed: int) -> None:
    disk = crash_disk()
    write(disk, PATH, b"one")
    stamp(disk, PATH)
    left = disk.after_power_cut(seed)
    is_stamped(left, PATH)
    database = left.database(PATH)
    assert database.query("SELECT v FROM t") == [(b"one",)]


def test_file_that_is_not_there_or_empty_has_no_stamp() -> None:
    disk = crash_disk()
    assert not is_stamped(disk, PATH)
    disk.write_bytes(PATH, b"")
    stamp(disk, PATH)
    assert disk.read_bytes(PATH) == b""
    assert not is_stamped(disk, PATH)


@pytest.mark.parametrize(("at", "reason"), [(0, "not a database"), (18, "no version of SQLite"), (19, "format 2/3")])
def test_header_of_something_else_is_refused(at: int, reason: str) -> None:
    disk = crash_disk()
    write(disk, PATH, b"one")
    data = bytearray(disk.read_bytes(PATH))
    data[18:20] = b"\2\2"
    data[at] ^= 1 if at else 0xFF
    if at == 18:
        data[at] = 6
    disk.write_bytes(PATH, bytes(data))
    with pytest.raises(CorruptData, match=reason):
        is_stamped(disk, PATH)
