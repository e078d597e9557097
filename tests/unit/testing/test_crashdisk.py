"""`CrashFilesystem`: what a power cut, a kill, a failing and a full disk leave."""

from __future__ import annotations

import errno
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from holdfast.disk.filesystem import Mode
from holdfast.errors import Locked
from holdfast.testing import CrashFilesystem, PowerCut
from holdfast.testing.platter import NOTHING_EXTRA

ROOT = Path("/data")
SEEDS = range(200)


def disk_with(**files: bytes) -> CrashFilesystem:
    """A disk with these files, durable, and no call counted."""
    disk = CrashFilesystem()
    disk.write_bytes(ROOT / "keep", b"")
    for name, data in files.items():
        disk.write_bytes(ROOT / name, data)
    return disk


def contents(disk: CrashFilesystem, path: Path, seeds: Iterable[int] = SEEDS) -> set[bytes | None]:
    """What the file may hold after a power cut; None where it is not there."""
    left = [disk.after_power_cut(seed) for seed in seeds]
    return {after.read_bytes(path) if after.exists(path) else None for after in left}


# --- databases ------------------------------------------------------------------------------------------------------


def test_committed_transactions_survive_and_open_ones_vanish() -> None:
    disk = disk_with()
    database = disk.database(ROOT / "a.db")
    with database.transaction() as transaction:
        transaction.execute("CREATE TABLE t (a)")
        transaction.execute("INSERT INTO t VALUES (1)")
    states: list[CrashFilesystem] = []

    def die_inside_a_transaction() -> None:
        with database.transaction() as transaction:
            transaction.execute("INSERT INTO t VALUES (2)")
            states.extend([disk.after_kill(), *(disk.after_power_cut(seed) for seed in range(20))])

    with pytest.raises(PowerCut):
        die_inside_a_transaction()
    for left in states:
        found = left.database(ROOT / "a.db")
        assert found.query("SELECT a FROM t") == [(1,)]
        found.close()


def test_a_commit_cut_short_is_there_as_a_whole_or_not() -> None:
    found = set()
    for seed in range(40):
        disk = CrashFilesystem(seed=seed)
        database = disk.database(Path("/a.db"))
        with database.transaction() as transaction:
            transaction.execute("CREATE TABLE t (a)")
        disk.cut_at(disk.calls + 1)
        with pytest.raises(PowerCut), database.transaction() as transaction:
            transaction.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(1000)])
        left = disk.after_power_cut(seed).database(Path("/a.db"))
        ((rows,),) = left.query("SELECT count(*) FROM t")
        found.add(rows)
        left.close()
    assert found == {0, 1000}


def test_a_new_database_has_a_durable_name() -> None:
    disk = disk_with()
    disk.database(ROOT / "a.db").close()
    assert disk.after_power_cut(NOTHING_EXTRA).exists(ROOT / "a.db")


@pytest.mark.parametrize(
    ("code", "sqlite_code"), [(errno.EIO, sqlite3.SQLITE_IOERR), (errno.ENOSPC, sqlite3.SQLITE_FULL)]
)
def test_a_failed_commit_raises_what_sqlite_would(code: int, sqlite_code: int) -> None:
    disk = disk_with()
    database = disk.database(ROOT / "a.db")
    with database.transaction() as transaction:
        transaction.execute("CREATE TABLE t (a)")
    disk.fail_at(disk.calls + 1, code)
    with pytest.raises(sqlite3.OperationalError) as caught, database.transaction() as transaction:
        transaction.execute("INSERT INTO t VALUES (1)")
    assert caught.value.sqlite_errorcode == sqlite_code
    assert database.query("SELECT * FROM t") == []
    database.close()


# --- power and processes --------------------------------------------------------------------------------------------


def small_workload(disk: CrashFilesystem) -> None:
    disk.makedir(ROOT)
    disk.sync_dir(Path("/"))
    file = disk.open(ROOT / "a.tmp", Mode.CREATE)
    file.allocate(4096)
    file.pwritev([b"x" * 1000], 0)
    file.truncate(1000)
    file.sync_data()
    file.sync()
    disk.rename(ROOT / "a.tmp", ROOT / "a")
    disk.sync_dir(ROOT)
    disk.unlink(ROOT / "a")
    disk.makedir(ROOT / "d")
    disk.rmdir(ROOT / "d")
    database = disk.database(ROOT / "a.db")
    with database.transaction() as transaction:
        transaction.execute("CREATE TABLE t (a)")
    database.close()


def test_every_call_that_changes_state_is_counted_and_noted() -> None:
    disk = CrashFilesystem()
    small_workload(disk)
    operations = (
        "makedir sync_dir create allocate pwritev truncate sync_data sync rename sync_dir unlink makedir rmdir "
        "create sync_dir commit"
    )
    assert [operation for _, operation, _ in disk.log] == operations.split()
    assert [number for number, _, _ in disk.log] == list(range(1, disk.calls + 1))
    assert disk.log[2] == (3, "create", ROOT / "a.tmp")


def test_power_can_be_cut_at_every_call() -> None:
    whole = CrashFilesystem()
    small_workload(whole)
    for n in range(1, whole.calls + 1):
        disk = CrashFilesystem(seed=n)
        disk.cut_at(n)
        with pytest.raises(PowerCut, match=f"at call {n}: {whole.log[n - 1][1]} "):
            small_workload(disk)
        assert disk.calls == n


def test_a_program_cannot_swallow_a_power_cut_by_accident() -> None:
    assert not issubclass(PowerCut, Exception)


def test_after_the_cut_every_call_of_every_thread_raises() -> None:
    disk = disk_with(a=b"x")
    file = disk.open(ROOT / "a", Mode.WRITE)
    lock = disk.lock(ROOT / ".lock")
    database = disk.database(ROOT / "a.db")
    disk.cut_at(disk.calls + 1)
    with pytest.raises(PowerCut):
        file.sync()
    uses: list[Callable[[], object]] = [
        file.size_bytes,
        lambda: file.pread(1, 0),
        file.map,
        lambda: file.pwritev([b"y"], 0),
        file.sync_data,
        lambda: disk.open(ROOT / "a", Mode.READ),
        lambda: disk.exists(ROOT / "a"),
        lambda: disk.listdir(ROOT),
        lambda: disk.makedir(ROOT / "d"),
        lambda: disk.rename(ROOT / "a", ROOT / "b"),
        lambda: disk.unlink(ROOT / "a"),
        lambda: disk.rmdir(ROOT),
        lambda: disk.sync_dir(ROOT),
        lambda: disk.lock(ROOT / ".lock"),
        lambda: disk.database(ROOT / "a.db"),
        lambda: database.query("SELECT 1"),
        lambda: database.transaction().__enter__(),
    ]
    raised: list[bool] = []

    def try_all() -> None:
        for use in uses:
            try:
                use()
            except PowerCut:
                raised.append(True)

    thread = threading.Thread(target=try_all)
    thread.start()
    thread.join()
    assert len(raised) == len(uses)
    file.close()
    lock.release()
    database.close()


def test_the_call_of_the_cut_happens_not_at_all_or_partly() -> None:
    seen = set()
    for seed in range(100):
        disk = CrashFilesystem(seed=seed)
        file = disk.open(Path("/a"), Mode.CREATE)
        disk.cut_at(2)
        with pytest.raises(PowerCut):
            file.pwritev([b"abcd"], 0)
        seen.add(disk.after_kill().read_bytes(Path("/a")))
    assert seen == {b"", b"a", b"ab", b"abc", b"abcd"}


def test_a_kill_keeps_what_was_written_but_syncs_nothing() -> None:
    disk = disk_with(a=b"old")
    disk.open(ROOT / "a", Mode.WRITE).pwritev([b"new"], 0)
    disk.open(ROOT / "b", Mode.CREATE)
    next_process = disk.after_kill()
    assert next_process.read_bytes(ROOT / "a") == b"new"
    assert next_process.exists(ROOT / "b")
    left = next_process.after_power_cut(NOTHING_EXTRA)
    assert left.read_bytes(ROOT / "a") == b"old"
    assert not left.exists(ROOT / "b")


def test_the_next_process_can_sync_what_the_last_one_wrote() -> None:
    disk = disk_with(a=b"old")
    disk.open(ROOT / "a", Mode.WRITE).pwritev([b"new"], 0)
    disk.rename(ROOT / "a", ROOT / "b")
    next_process = disk.after_kill()
    next_process.open(ROOT / "b", Mode.READ).sync()
    next_process.sync_dir(ROOT)
    assert contents(next_process, ROOT / "b") == {b"new"}


def test_states_made_from_one_disk_do_not_share_changes() -> None:
    disk = disk_with(a=b"old")
    first, second, third = disk.after_kill(), disk.after_kill(), disk.after_power_cut(0)
    first.open(ROOT / "a", Mode.WRITE).pwritev([b"1st"], 0)
    second.unlink(ROOT / "a")
    assert first.read_bytes(ROOT / "a") == b"1st"
    assert third.read_bytes(ROOT / "a") == b"old"
    assert disk.after_power_cut(1).read_bytes(ROOT / "a") == b"old"


@pytest.mark.parametrize("how", ["kill", "cut"])
def test_locks_are_released_when_their_process_ends(how: str) -> None:
    disk = disk_with()
    disk.lock(ROOT / ".lock")
    with pytest.raises(Locked):
        disk.lock(ROOT / ".lock")
    left = disk.after_kill() if how == "kill" else disk.after_power_cut(3)
    left.lock(ROOT / ".lock")


# --- failures -------------------------------------------------------------------------------------------------------


def test_a_failed_call_raises_and_has_no_effect() -> None:
    disk = disk_with(a=b"old")
    file = disk.open(ROOT / "a", Mode.WRITE)
    disk.fail_at(1, errno.EIO)
    with pytest.raises(OSError, match=str(ROOT / "a")) as caught:
        file.pwritev([b"new"], 0)
    assert caught.value.errno == errno.EIO
    assert disk.read_bytes(ROOT / "a") == b"old"
    file.pwritev([b"new"], 0)
    assert disk.read_bytes(ROOT / "a") == b"new"
    assert disk.calls == 2


def test_a_failed_sync_lies_and_its_repetition_too() -> None:
    disk = disk_with(a=b"")
    file = disk.open(ROOT / "a", Mode.WRITE)
    file.pwritev([b"lost"], 0)
    disk.fail_at(2, errno.EIO)
    with pytest.raises(OSError, match=r"."):
        file.sync_data()
    assert file.pread(9, 0) == b"lost"
    file.sync_data()
    file.pwritev([b"kept"], 4)
    file.sync_data()
    assert disk.after_kill().read_bytes(ROOT / "a") == b"lostkept"
    assert contents(disk, ROOT / "a") == {bytes(4) + b"kept"}


def test_a_failed_directory_sync_lies_and_its_repetition_too() -> None:
    disk = disk_with()
    disk.open(ROOT / "a", Mode.CREATE)
    disk.fail_at(2, errno.EIO)
    with pytest.raises(OSError, match=r"."):
        disk.sync_dir(ROOT)
    disk.sync_dir(ROOT)
    assert disk.exists(ROOT / "a")
    assert contents(disk, ROOT / "a") == {None}


def test_failures_can_last_and_can_be_mended() -> None:
    disk = disk_with()
    disk.fail_from(2, errno.EROFS)
    disk.makedir(ROOT / "a")
    for _ in range(3):
        with pytest.raises(OSError, match="Read-only"):
            disk.makedir(ROOT / "b")
    disk.stop_failing()
    disk.makedir(ROOT / "b")


def test_failures_can_be_chosen_by_operation_and_path() -> None:
    disk = disk_with(a=b"x", b=b"x")
    disk.fail_when(lambda operation, path: errno.EIO if (operation, path.name) == ("unlink", "a") else None)
    disk.unlink(ROOT / "b")
    with pytest.raises(OSError, match="Input/output"):
        disk.unlink(ROOT / "a")
    disk.rename(ROOT / "a", ROOT / "b")


def test_reads_are_counted_apart_and_can_fail() -> None:
    disk = disk_with(a=b"x")
    file = disk.open(ROOT / "a", Mode.READ)
    disk.fail_read_at(2, errno.EIO)
    disk.fail_read_at(3, errno.EIO)
    assert file.pread(1, 0) == b"x"
    with pytest.raises(OSError, match="Input/output"):
        file.pread(1, 0)
    with pytest.raises(OSError, match="Input/output"):
        file.map()
    assert file.map().to_pybytes() == b"x"
    assert (disk.reads, disk.calls) == (4, 0)


# --- capacity -------------------------------------------------------------------------------------------------------


def test_a_full_disk_writes_what_fits_and_raises() -> None:
    disk = CrashFilesystem(capacity_bytes=10)
    file = disk.open(Path("/a"), Mode.CREATE)
    file.pwritev([b"12345678"], 0)
    with pytest.raises(OSError, match="No space") as caught:
        file.pwritev([b"90AB"], 8)
    assert caught.value.errno == errno.ENOSPC
    assert disk.read_bytes(Path("/a")) == b"1234567890"
    assert disk.used_bytes == 10
    file.pwritev([b"xxxx"], 0)  # no new room needed


def test_a_full_disk_allocates_nothing_at_all() -> None:
    disk = CrashFilesystem(capacity_bytes=10)
    file = disk.open(Path("/a"), Mode.CREATE)
    with pytest.raises(OSError, match="No space"):
        file.allocate(11)
    assert file.size_bytes() == 0
    file.allocate(10)


def test_room_returns_when_files_shrink_or_vanish() -> None:
    disk = CrashFilesystem(capacity_bytes=10)
    file = disk.open(Path("/a"), Mode.CREATE)
    file.allocate(10)
    file.truncate(4)
    assert disk.used_bytes == 4
    disk.open(Path("/b"), Mode.CREATE).allocate(6)
    disk.rename(Path("/a"), Path("/b"))
    assert disk.used_bytes == 4
    disk.unlink(Path("/b"))
    assert disk.used_bytes == 0
    file.pwritev([b"nameless"], 0)
    assert disk.used_bytes == 0


def test_capacity_can_change_while_the_disk_is_used() -> None:
    disk = CrashFilesystem()
    file = disk.open(Path("/a"), Mode.CREATE)
    file.allocate(100)
    disk.capacity_bytes = 50
    with pytest.raises(OSError, match="No space"):
        file.pwritev([b"x"], 100)
    assert file.size_bytes() == 100
    disk.capacity_bytes = 101
    file.pwritev([b"x"], 100)
    assert disk.after_kill().used_bytes == 101


def test_a_commit_on_a_full_disk_is_refused_as_sqlite_does() -> None:
    disk = CrashFilesystem()
    database = disk.database(Path("/a.db"))
    with database.transaction() as transaction:
        transaction.execute("CREATE TABLE t (a)")
    disk.capacity_bytes = disk.used_bytes + 4096
    with pytest.raises(sqlite3.OperationalError, match="full"), database.transaction() as transaction:
        transaction.execute("INSERT INTO t VALUES (?)", (bytes(20_000),))
    assert database.query("SELECT * FROM t") == []
    database.close()
