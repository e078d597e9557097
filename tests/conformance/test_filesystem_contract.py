"""The contract of `holdfast.disk.filesystem`, over the real disk and over the one that loses power."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.disk.filesystem import DirEntry, Filesystem, Mode
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import Locked
from holdfast.testing import CrashFilesystem


@dataclass(frozen=True)
class Disk:
    """A filesystem and an empty directory on it."""

    filesystem: Filesystem
    root: Path

    def put(self, name: str, data: bytes = b"") -> Path:
        path = self.root / name
        file = self.filesystem.open(path, Mode.CREATE)
        file.pwritev([data], 0)
        file.close()
        return path

    def get(self, path: Path) -> bytes:
        file = self.filesystem.open(path, Mode.READ)
        data = file.pread(file.size_bytes() + 1, 0)
        file.close()
        return data


@pytest.fixture(params=["local", "crash"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if request.param == "local":
        return Disk(LocalFilesystem(), tmp_path)
    filesystem = CrashFilesystem()
    filesystem.makedir(Path("/data"))
    return Disk(filesystem, Path("/data"))


# --- opening --------------------------------------------------------------------------------------------------------


def test_hastened_bytes_are_what_was_written(disk: Disk) -> None:
    file = disk.filesystem.open(disk.root / "a", Mode.CREATE)
    file.pwritev([b"abc" * 5000], 0)
    file.hasten(0, 15_000)
    file.hasten(15_000, 1 << 20)  # nothing is there
    file.sync_data()
    assert file.pread(15_001, 0) == b"abc" * 5000
    file.close()
    file.hasten(0, 1)  # advice never fails


def test_create_makes_an_empty_file_that_can_be_written_and_read(disk: Disk) -> None:
    file = disk.filesystem.open(disk.root / "a", Mode.CREATE)
    assert file.path == disk.root / "a"
    assert file.size_bytes() == 0
    file.pwritev([b"abc"], 0)
    assert file.pread(3, 0) == b"abc"
    file.close()


def test_create_refuses_a_name_that_exists(disk: Disk) -> None:
    path = disk.put("a", b"old")
    with pytest.raises(FileExistsError):
        disk.filesystem.open(path, Mode.CREATE)
    assert disk.get(path) == b"old"


@pytest.mark.parametrize("mode", [Mode.READ, Mode.WRITE])
def test_opening_a_missing_file_says_it_is_missing(disk: Disk, mode: Mode) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        disk.filesystem.open(disk.root / "a", mode)
    assert caught.value.filename == str(disk.root / "a")


@pytest.mark.parametrize("mode", [Mode.READ, Mode.WRITE])
def test_opening_a_directory_as_a_file_is_refused(disk: Disk, mode: Mode) -> None:
    disk.filesystem.makedir(disk.root / "d")
    with pytest.raises(IsADirectoryError):
        disk.filesystem.open(disk.root / "d", mode)


def test_creating_in_a_missing_directory_is_refused(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.filesystem.open(disk.root / "d" / "a", Mode.CREATE)


def test_a_file_is_no_directory_to_open_files_in(disk: Disk) -> None:
    path = disk.put("a")
    with pytest.raises(NotADirectoryError):
        disk.filesystem.open(path / "b", Mode.READ)


def test_opening_for_writing_keeps_what_is_there(disk: Disk) -> None:
    path = disk.put("a", b"hello")
    file = disk.filesystem.open(path, Mode.WRITE)
    file.pwritev([b"J"], 0)
    file.close()
    assert disk.get(path) == b"Jello"


def test_a_file_opened_for_reading_refuses_to_be_changed(disk: Disk) -> None:
    file = disk.filesystem.open(disk.put("a", b"x"), Mode.READ)
    changes: list[Callable[[], None]] = [lambda: file.pwritev([b"y"], 0), lambda: file.truncate(0)]
    for change in changes:
        with pytest.raises(OSError, match=r".") as caught:
            change()
        assert caught.value.errno in (errno.EBADF, errno.EINVAL)
    assert file.pread(1, 0) == b"x"
    file.close()


def test_a_closed_file_refuses_every_use(disk: Disk) -> None:
    file = disk.filesystem.open(disk.root / "a", Mode.CREATE)
    file.close()
    file.close()
    for use in (
        file.size_bytes,
        lambda: file.pread(1, 0),
        lambda: file.pwritev([b"x"], 0),
        lambda: file.allocate(10),
        lambda: file.truncate(0),
        file.sync_data,
        file.sync,
        file.map,
    ):
        with pytest.raises(OSError, match=r".") as caught:
            use()
        assert caught.value.errno == errno.EBADF


# --- content --------------------------------------------------------------------------------------------------------


def test_reading_gives_fewer_bytes_only_at_the_end(disk: Disk) -> None:
    file = disk.filesystem.open(disk.put("a", b"0123456789"), Mode.READ)
    assert file.pread(4, 3) == b"3456"
    assert file.pread(4, 8) == b"89"
    assert file.pread(4, 10) == b""
    assert file.pread(4, 100) == b""
    assert file.pread(0, 0) == b""
    file.close()


def test_writing_takes_every_kind_of_buffer_in_order(disk: Disk) -> None:
    path = disk.put("a")
    file = disk.filesystem.open(path, Mode.WRITE)
    words = memoryview(b"-abcdefgh-")[1:9].cast("H")
    file.pwritev([b"1", bytearray(b"2"), memoryview(b"x3x")[1:2], pa.py_buffer(b"4"), b"", words], 2)
    file.close()
    assert disk.get(path) == b"\0\0" + b"1234" + b"abcdefgh"


@pytest.mark.parametrize("count", [0, 1, 7, 8, 1023, 1024, 1025, 5000])
def test_writing_any_number_of_buffers_writes_them_all(disk: Disk, count: int) -> None:
    path = disk.put("a")
    buffers = [index.to_bytes(4, "little") for index in range(count)]
    file = disk.filesystem.open(path, Mode.WRITE)
    file.pwritev(buffers, 0)
    file.close()
    assert disk.get(path) == b"".join(buffers)


def test_writing_many_large_buffers_writes_them_all(disk: Disk) -> None:
    path = disk.put("a")
    buffers = [bytes([index % 251]) * 1000 for index in range(2100)]
    file = disk.filesystem.open(path, Mode.WRITE)
    file.pwritev(buffers, 5)
    file.close()
    assert disk.get(path) == bytes(5) + b"".join(buffers)


def test_writing_nothing_past_the_end_changes_nothing(disk: Disk) -> None:
    file = disk.filesystem.open(disk.put("a", b"x"), Mode.WRITE)
    file.pwritev([], 100)
    file.pwritev([b"", b""], 100)
    assert file.size_bytes() == 1
    file.close()


def test_bytes_skipped_by_a_write_read_as_zeros(disk: Disk) -> None:
    file = disk.filesystem.open(disk.put("a", b"x"), Mode.WRITE)
    file.pwritev([b"y"], 600)
    assert file.pread(1000, 0) == b"x" + bytes(599) + b"y"
    file.close()


def test_a_change_is_seen_at_once_through_other_handles(disk: Disk) -> None:
    path = disk.put("a", b"x")
    writer, reader = disk.filesystem.open(path, Mode.WRITE), disk.filesystem.open(path, Mode.READ)
    writer.pwritev([b"yz"], 0)
    assert reader.pread(9, 0) == b"yz"
    assert reader.size_bytes() == 2
    writer.close()
    reader.close()


def test_allocating_grows_with_zeros_and_keeps_content(disk: Disk) -> None:
    file = disk.filesystem.open(disk.put("a", b"x"), Mode.WRITE)
    file.allocate(5000)
    assert file.size_bytes() == 5000
    assert file.pread(5001, 0) == b"x" + bytes(4999)
    file.close()


def test_allocating_less_than_the_size_never_shrinks(disk: Disk) -> None:
    file = disk.filesystem.open(disk.put("a", b"hello"), Mode.WRITE)
    file.allocate(3)
    file.allocate(0)
    assert file.pread(9, 0) == b"hello"
    file.close()


def test_truncating_cuts_and_growing_again_reads_zeros(disk: Disk) -> None:
    file = disk.filesystem.open(disk.put("a", b"hello"), Mode.WRITE)
    file.truncate(2)
    assert file.pread(9, 0) == b"he"
    file.truncate(4)
    assert file.pread(9, 0) == b"he\0\0"
    file.close()


def test_syncing_changes_nothing_that_readers_see(disk: Disk) -> None:
    file = disk.filesystem.open(disk.put("a", b"hello"), Mode.WRITE)
    file.sync_data()
    file.sync()
    disk.filesystem.sync_dir(disk.root)
    assert file.pread(9, 0) == b"hello"
    file.close()


def test_a_file_opened_for_reading_can_be_synced(disk: Disk) -> None:
    file = disk.filesystem.open(disk.put("a", b"hello"), Mode.READ)
    file.sync_data()
    file.sync()
    file.close()


# --- mapping --------------------------------------------------------------------------------------------------------


def test_a_map_holds_the_whole_file_and_is_read_only(disk: Disk) -> None:
    data = os.urandom(10_000)
    file = disk.filesystem.open(disk.put("a", data), Mode.READ)
    buffer = file.map()
    assert isinstance(buffer, pa.Buffer)
    assert buffer.to_pybytes() == data
    assert not buffer.is_mutable
    file.close()


def test_a_map_stays_valid_after_close_and_unlink(disk: Disk) -> None:
    path = disk.put("a", b"x" * 10_000)
    file = disk.filesystem.open(path, Mode.READ)
    part = file.map().slice(9_000)
    file.close()
    disk.filesystem.unlink(path)
    assert part.to_pybytes() == b"x" * 1_000


def test_the_map_of_an_empty_file_is_empty(disk: Disk) -> None:
    file = disk.filesystem.open(disk.put("a"), Mode.READ)
    assert file.map().size == 0
    file.close()


# --- names ----------------------------------------------------------------------------------------------------------


def test_exists_tells_files_directories_and_nothing_apart(disk: Disk) -> None:
    path = disk.put("a")
    assert disk.filesystem.exists(path)
    assert disk.filesystem.exists(disk.root)
    assert not disk.filesystem.exists(disk.root / "b")
    assert not disk.filesystem.exists(disk.root / "b" / "c")
    assert not disk.filesystem.exists(path / "c")


def test_listing_gives_sorted_names_with_sizes(disk: Disk) -> None:
    disk.put("b", b"12345")
    disk.filesystem.makedir(disk.root / "c")
    disk.put("c/inner", b"1")
    disk.put("a")
    assert disk.filesystem.listdir(disk.root) == [
        DirEntry("a", 0, is_dir=False),
        DirEntry("b", 5, is_dir=False),
        DirEntry("c", 0, is_dir=True),
    ]


def test_listing_what_is_no_directory_is_refused(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.filesystem.listdir(disk.root / "d")
    with pytest.raises(NotADirectoryError):
        disk.filesystem.listdir(disk.put("a"))


def test_making_a_directory_twice_is_no_error(disk: Disk) -> None:
    disk.filesystem.makedir(disk.root / "d")
    disk.put("d/a")
    disk.filesystem.makedir(disk.root / "d")
    assert disk.filesystem.listdir(disk.root / "d") == [DirEntry("a", 0, is_dir=False)]


def test_making_a_directory_over_a_file_is_refused(disk: Disk) -> None:
    with pytest.raises(FileExistsError):
        disk.filesystem.makedir(disk.put("a"))


def test_making_a_directory_without_its_parent_is_refused(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.filesystem.makedir(disk.root / "d" / "e")


def test_renaming_replaces_the_target_as_a_whole(disk: Disk) -> None:
    source, target = disk.put("a", b"new"), disk.put("b", b"old content")
    disk.filesystem.rename(source, target)
    assert disk.get(target) == b"new"
    assert [entry.name for entry in disk.filesystem.listdir(disk.root)] == ["b"]


def test_renaming_into_another_directory_moves_the_file(disk: Disk) -> None:
    disk.filesystem.makedir(disk.root / "d")
    disk.filesystem.rename(disk.put("a", b"x"), disk.root / "d" / "b")
    assert disk.get(disk.root / "d" / "b") == b"x"
    assert not disk.filesystem.exists(disk.root / "a")


def test_renaming_a_directory_takes_its_content_along(disk: Disk) -> None:
    disk.filesystem.makedir(disk.root / "d")
    disk.put("d/a", b"x")
    disk.filesystem.rename(disk.root / "d", disk.root / "e")
    assert disk.get(disk.root / "e" / "a") == b"x"
    assert not disk.filesystem.exists(disk.root / "d")


def test_renaming_a_file_to_itself_keeps_it(disk: Disk) -> None:
    path = disk.put("a", b"x")
    disk.filesystem.rename(path, path)
    assert disk.get(path) == b"x"


def test_renaming_between_kinds_is_refused_and_changes_nothing(disk: Disk) -> None:
    path, directory = disk.put("a", b"x"), disk.root / "d"
    disk.filesystem.makedir(directory)
    with pytest.raises(FileNotFoundError):
        disk.filesystem.rename(disk.root / "missing", path)
    with pytest.raises(IsADirectoryError):
        disk.filesystem.rename(path, directory)
    with pytest.raises(NotADirectoryError):
        disk.filesystem.rename(directory, path)
    assert disk.get(path) == b"x"


def test_renaming_a_directory_over_a_full_one_is_refused(disk: Disk) -> None:
    disk.filesystem.makedir(disk.root / "d")
    disk.filesystem.makedir(disk.root / "e")
    disk.put("e/a")
    with pytest.raises(OSError, match="not empty"):
        disk.filesystem.rename(disk.root / "d", disk.root / "e")


def test_an_open_file_survives_rename_and_unlink_of_its_name(disk: Disk) -> None:
    path = disk.put("a", b"x")
    file = disk.filesystem.open(path, Mode.WRITE)
    disk.filesystem.rename(path, disk.root / "b")
    file.pwritev([b"y"], 1)
    assert disk.get(disk.root / "b") == b"xy"
    disk.filesystem.unlink(disk.root / "b")
    file.pwritev([b"z"], 2)
    assert file.pread(9, 0) == b"xyz"
    file.close()


def test_unlinking_removes_the_name_and_only_of_files(disk: Disk) -> None:
    path = disk.put("a")
    disk.filesystem.unlink(path)
    assert not disk.filesystem.exists(path)
    with pytest.raises(FileNotFoundError):
        disk.filesystem.unlink(path)
    disk.filesystem.makedir(disk.root / "d")
    with pytest.raises((IsADirectoryError, PermissionError)):
        disk.filesystem.unlink(disk.root / "d")


def test_removing_a_directory_needs_it_to_be_empty(disk: Disk) -> None:
    disk.filesystem.makedir(disk.root / "d")
    path = disk.put("d/a")
    with pytest.raises(OSError, match="not empty"):
        disk.filesystem.rmdir(disk.root / "d")
    with pytest.raises(NotADirectoryError):
        disk.filesystem.rmdir(path)
    disk.filesystem.unlink(path)
    disk.filesystem.rmdir(disk.root / "d")
    assert not disk.filesystem.exists(disk.root / "d")
    with pytest.raises(FileNotFoundError):
        disk.filesystem.rmdir(disk.root / "d")


def test_syncing_what_is_no_directory_is_refused(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.filesystem.sync_dir(disk.root / "d")
    with pytest.raises(NotADirectoryError):
        disk.filesystem.sync_dir(disk.put("a"))


# --- locks ----------------------------------------------------------------------------------------------------------


def test_a_second_lock_is_refused_and_names_the_holder(disk: Disk) -> None:
    path = disk.root / ".lock"
    lock = disk.filesystem.lock(path)
    with pytest.raises(Locked) as caught:
        disk.filesystem.lock(path)
    assert (caught.value.file, caught.value.holder_pid) == (path, os.getpid())
    lock.release()


def test_a_released_lock_can_be_taken_again(disk: Disk) -> None:
    path = disk.root / ".lock"
    first = disk.filesystem.lock(path)
    first.release()
    second = disk.filesystem.lock(path)
    first.release()  # idempotent: it does not release the second
    with pytest.raises(Locked):
        disk.filesystem.lock(path)
    second.release()
    assert disk.filesystem.exists(path)


def test_a_lock_in_a_missing_directory_is_refused(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.filesystem.lock(disk.root / "d" / ".lock")


# --- databases ------------------------------------------------------------------------------------------------------


def test_a_committed_transaction_is_there_after_reopening(disk: Disk) -> None:
    path = disk.root / "a.db"
    database = disk.filesystem.database(path)
    with database.transaction() as transaction:
        assert transaction.execute("CREATE TABLE t (a INTEGER, b BLOB)") == []
        transaction.executemany("INSERT INTO t VALUES (?, ?)", [(1, b"x"), (2, None)])
        assert transaction.execute("SELECT count(*) FROM t WHERE a > ?", (0,)) == [(2,)]
    database.close()
    database.close()
    database = disk.filesystem.database(path)
    assert database.query("SELECT a, b FROM t ORDER BY a") == [(1, b"x"), (2, None)]
    assert database.query("SELECT b FROM t WHERE a = ?", (1,)) == [(b"x",)]
    database.close()


def test_an_exception_rolls_the_transaction_back(disk: Disk) -> None:
    database = disk.filesystem.database(disk.root / "a.db")
    with database.transaction() as transaction:
        transaction.execute("CREATE TABLE t (a INTEGER PRIMARY KEY)")

    def fail_half_way() -> None:
        with database.transaction() as transaction:
            transaction.execute("INSERT INTO t VALUES (1)")
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    with pytest.raises(sqlite3.IntegrityError), database.transaction() as transaction:
        transaction.executemany("INSERT INTO t VALUES (?)", [(1,), (1,)])
    assert database.query("SELECT * FROM t") == []
    database.close()


def test_a_failed_commit_is_rolled_back_and_raised(disk: Disk) -> None:
    database = disk.filesystem.database(disk.root / "a.db")
    with database.transaction() as transaction:
        transaction.execute("CREATE TABLE p (a INTEGER PRIMARY KEY)")
        transaction.execute("CREATE TABLE c (a INTEGER REFERENCES p(a) DEFERRABLE INITIALLY DEFERRED)")
    database.query("PRAGMA foreign_keys = ON")
    with pytest.raises(sqlite3.IntegrityError), database.transaction() as transaction:
        transaction.execute("INSERT INTO c VALUES (1)")
    assert database.query("SELECT * FROM c") == []
    with database.transaction() as transaction:
        transaction.execute("INSERT INTO p VALUES (1)")
        transaction.execute("INSERT INTO c VALUES (1)")
    assert database.query("SELECT * FROM c") == [(1,)]
    database.close()


def test_a_query_that_would_write_is_refused(disk: Disk) -> None:
    database = disk.filesystem.database(disk.root / "a.db")
    with pytest.raises(sqlite3.OperationalError):
        database.query("CREATE TABLE t (a)")
    with database.transaction() as transaction:
        transaction.execute("CREATE TABLE t (a)")
    with pytest.raises(sqlite3.OperationalError):
        database.query("INSERT INTO t VALUES (1)")
    assert database.query("SELECT * FROM t") == []
    database.close()


def test_a_transaction_inside_a_transaction_is_refused(disk: Disk) -> None:
    database = disk.filesystem.database(disk.root / "a.db")
    with database.transaction() as outer:
        outer.execute("CREATE TABLE t (a)")
        with pytest.raises(sqlite3.ProgrammingError), database.transaction():
            pass
        outer.execute("INSERT INTO t VALUES (1)")
        assert database.query("SELECT * FROM t") == [(1,)]
    assert database.query("SELECT * FROM t") == [(1,)]
    database.close()


def test_transactions_of_several_threads_take_turns(disk: Disk) -> None:
    database = disk.filesystem.database(disk.root / "a.db")
    with database.transaction() as transaction:
        transaction.execute("CREATE TABLE t (a INTEGER)")
        transaction.execute("INSERT INTO t VALUES (0)")

    def count_up() -> None:
        for _ in range(10):
            with database.transaction() as transaction:
                ((value,),) = transaction.execute("SELECT a FROM t")
                transaction.execute("UPDATE t SET a = ?", (value + 1,))

    threads = [threading.Thread(target=count_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert database.query("SELECT a FROM t") == [(40,)]
    database.close()


def test_two_handles_of_a_database_see_one_content(disk: Disk) -> None:
    first = disk.filesystem.database(disk.root / "a.db")
    second = disk.filesystem.database(disk.root / "a.db")
    with first.transaction() as transaction:
        transaction.execute("CREATE TABLE t (a)")
    first.close()
    with second.transaction() as transaction:
        transaction.execute("INSERT INTO t VALUES (1)")
    assert second.query("SELECT * FROM t") == [(1,)]
    second.close()


def test_a_closed_database_refuses_every_use(disk: Disk) -> None:
    database = disk.filesystem.database(disk.root / "a.db")
    database.close()
    with pytest.raises(sqlite3.ProgrammingError):
        database.query("SELECT 1")
    with pytest.raises(sqlite3.ProgrammingError), database.transaction():
        pass


def test_a_file_that_is_no_database_is_refused(disk: Disk) -> None:
    with pytest.raises(sqlite3.DatabaseError):
        disk.filesystem.database(disk.put("a.db", b"this is not a database at all" * 100))


def test_a_database_in_a_missing_directory_is_refused(disk: Disk) -> None:
    with pytest.raises(FileNotFoundError):
        disk.filesystem.database(disk.root / "d" / "a.db")


def test_a_database_made_again_after_unlink_is_empty(disk: Disk) -> None:
    path = disk.root / "a.db"
    database = disk.filesystem.database(path)
    with database.transaction() as transaction:
        transaction.execute("CREATE TABLE t (a)")
    database.close()
    disk.filesystem.unlink(path)
    database = disk.filesystem.database(path)
    assert database.query("SELECT name FROM sqlite_master") == []
    database.close()
