"""`LocalFilesystem`: what only the real disk has: modes, links, processes, short writes, descriptors."""

from __future__ import annotations

import errno
import gc
import os
import random
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from holdfast.disk.filesystem import Bytes, Mode
from holdfast.disk.local import CALL_BYTES_MAX, IOV_MAX, LocalFilesystem, give_back_pages, write_fully
from holdfast.errors import Locked

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="modes, links and limits of POSIX")

HOLD_LOCK = """
import sys
from pathlib import Path
from holdfast.disk.local import LocalFilesystem
lock = LocalFilesystem().lock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""

WRITE_PAST_LIMIT = """
import resource, signal, sys
from pathlib import Path
from holdfast.disk.filesystem import Mode
from holdfast.disk.local import LocalFilesystem
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
file = LocalFilesystem().open(Path(sys.argv[1]), Mode.CREATE)
try:
    file.pwritev([b"a" * 600, b"b" * 600], 0)
except OSError as error:
    print(error.errno, file.size_bytes())
"""


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def open_descriptors() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


def descriptors_of(path: Path) -> list[int]:
    found = []
    for entry in Path("/dev/fd").iterdir():
        descriptor = int(entry.name)
        with suppress(OSError):  # the descriptor with which /dev/fd was read
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                found.append(descriptor)
    return found


# --- modes and links ------------------------------------------------------------------------------------------------


def test_files_and_directories_are_for_their_owner_only(tmp_path: Path) -> None:
    filesystem = LocalFilesystem()
    before = os.umask(0)
    try:
        filesystem.makedir(tmp_path / "d")
        filesystem.open(tmp_path / "d" / "file", Mode.CREATE).close()
        filesystem.lock(tmp_path / "d" / "lock").release()
        database = filesystem.database(tmp_path / "d" / "a.db")
        with database.transaction() as transaction:
            transaction.execute("CREATE TABLE t (a)")
        modes = {path.name: mode_of(path) for path in (tmp_path / "d").iterdir()}
        database.close()
    finally:
        os.umask(before)
    assert mode_of(tmp_path / "d") == 0o700
    assert modes == dict.fromkeys(["file", "lock", "a.db", "a.db-wal", "a.db-shm"], 0o600)


def test_symbolic_links_are_refused_wherever_a_file_is_opened(tmp_path: Path) -> None:
    filesystem = LocalFilesystem()
    (tmp_path / "target").write_bytes(b"secret")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    for use in (
        lambda: filesystem.open(link, Mode.READ),
        lambda: filesystem.open(link, Mode.WRITE),
        lambda: filesystem.lock(link),
        lambda: filesystem.database(link),
    ):
        with pytest.raises(OSError, match=r".") as caught:
            use()
        assert caught.value.errno == errno.ELOOP
    with pytest.raises(FileExistsError):
        filesystem.open(link, Mode.CREATE)
    assert (tmp_path / "target").read_bytes() == b"secret"


def test_a_link_to_a_directory_is_no_directory(tmp_path: Path) -> None:
    filesystem = LocalFilesystem()
    (tmp_path / "d").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "d")
    with pytest.raises(FileExistsError):
        filesystem.makedir(link)
    with pytest.raises(OSError, match=r"."):
        filesystem.sync_dir(link)
    assert [entry.is_dir for entry in filesystem.listdir(tmp_path)] == [True, False]


def test_a_dangling_link_exists_as_a_name(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert LocalFilesystem().exists(tmp_path / "link")


def test_descriptors_are_not_inherited_by_programs(tmp_path: Path) -> None:
    file = LocalFilesystem().open(tmp_path / "a", Mode.CREATE)
    lock = LocalFilesystem().lock(tmp_path / "lock")
    for path in (tmp_path / "a", tmp_path / "lock"):
        (descriptor,) = descriptors_of(path)
        assert not os.get_inheritable(descriptor)
    file.close()
    lock.release()


# --- writing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_short_writes_are_continued_until_all_is_written(tmp_path: Path, step: int) -> None:
    def stingy(fd: int, buffers: Sequence[Bytes], offset_bytes: int) -> int:
        return os.pwrite(fd, b"".join(buffers)[:step], offset_bytes)

    path = tmp_path / "a"
    with path.open("wb") as file:
        write_fully(file.fileno(), [b"ab", b"", memoryview(b"cdefgh").cast("H"), bytearray(b"i")], 3, write=stingy)
    assert path.read_bytes() == b"\0\0\0abcdefghi"


def test_a_disk_that_takes_nothing_is_an_error(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file, pytest.raises(OSError, match="took no bytes"):
        write_fully(file.fileno(), [b"a"], 0, write=lambda fd, buffers, offset_bytes: 0)


def test_a_write_that_ends_short_raises_the_reason(tmp_path: Path) -> None:
    child = python(WRITE_PAST_LIMIT, str(tmp_path / "a"))
    output, _ = child.communicate(timeout=60)
    assert output.split() == [str(errno.EFBIG), "1000"]


def test_no_call_gets_more_buffers_than_the_kernel_takes(tmp_path: Path) -> None:
    calls: list[int] = []

    def counting(fd: int, buffers: Sequence[Bytes], offset_bytes: int) -> int:
        calls.append(len(buffers))
        return os.pwritev(fd, buffers, offset_bytes)

    path = tmp_path / "a"
    buffers = [b"%d;" % index for index in range(2 * IOV_MAX + 1)]
    with path.open("wb") as file:
        write_fully(file.fileno(), buffers, 0, write=counting)
    assert calls == [IOV_MAX, IOV_MAX, 1]
    assert path.read_bytes() == b"".join(buffers)


def test_no_call_gets_more_bytes_than_the_page_cache_likes(tmp_path: Path) -> None:
    calls: list[int] = []

    def counting(fd: int, buffers: Sequence[Bytes], offset_bytes: int) -> int:
        calls.append(sum(memoryview(buffer).nbytes for buffer in buffers))
        return os.pwritev(fd, buffers, offset_bytes)

    path = tmp_path / "a"
    data = random.Random(1).randbytes(3 * CALL_BYTES_MAX)
    buffers = [data[:100], data[100 : 2 * CALL_BYTES_MAX + 1], b"", memoryview(data)[2 * CALL_BYTES_MAX + 1 :]]
    with path.open("wb") as file:
        write_fully(file.fileno(), buffers, 0, write=counting)
    assert calls == [CALL_BYTES_MAX] * 3
    assert path.read_bytes() == data


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="no posix_fallocate")
def test_allocating_reserves_blocks_and_not_only_a_size(tmp_path: Path) -> None:
    file = LocalFilesystem().open(tmp_path / "a", Mode.CREATE)
    file.allocate(1 << 20)
    assert (tmp_path / "a").stat().st_blocks * 512 >= 1 << 20
    file.close()


# --- maps -----------------------------------------------------------------------------------------------------------


def test_maps_hold_no_descriptor_and_are_released(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    before = open_descriptors()
    buffers = []
    for _ in range(20):
        file = LocalFilesystem().open(tmp_path / "a", Mode.READ)
        buffers.append(file.map())
        file.close()
    assert open_descriptors() == before
    assert all(buffer.to_pybytes() == b"x" * 5000 for buffer in buffers)
    if sys.platform == "linux":
        assert Path("/proc/self/maps").read_text().count(str(tmp_path / "a")) == 20
        buffers.clear()
        gc.collect()
        assert str(tmp_path / "a") not in Path("/proc/self/maps").read_text()


# --- locks ----------------------------------------------------------------------------------------------------------


def test_a_lock_of_another_process_names_its_pid(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    path.write_text("999999999 left over from a killed process, and longer than a pid")
    child = python(HOLD_LOCK, str(path))
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        with pytest.raises(Locked) as caught:
            LocalFilesystem().lock(path)
        assert caught.value.holder_pid == child.pid
        assert str(child.pid) in str(caught.value)
    finally:
        child.kill()
        child.communicate(timeout=60)
    lock = LocalFilesystem().lock(path)  # a killed holder holds nothing
    assert path.read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_refused_lock_leaks_no_descriptor(tmp_path: Path) -> None:
    lock = LocalFilesystem().lock(tmp_path / ".lock")
    before = open_descriptors()
    with pytest.raises(Locked):
        LocalFilesystem().lock(tmp_path / ".lock")
    assert open_descriptors() == before
    lock.release()


# --- databases ------------------------------------------------------------------------------------------------------


def test_a_database_uses_a_write_ahead_log_synced_at_every_commit(tmp_path: Path) -> None:
    database = LocalFilesystem().database(tmp_path / "a.db")
    assert database.query("PRAGMA journal_mode") == [("wal",)]
    assert database.query("PRAGMA synchronous") == [(2,)]
    database.close()


def test_side_files_of_a_deleted_database_are_not_replayed(tmp_path: Path) -> None:
    filesystem = LocalFilesystem()
    path = tmp_path / "a.db"
    database = filesystem.database(path)
    with database.transaction() as transaction:
        transaction.execute("CREATE TABLE t (a)")
    stale = (tmp_path / "a.db-wal").read_bytes()
    database.close()
    filesystem.unlink(path)
    (tmp_path / "a.db-wal").write_bytes(stale)
    database = filesystem.database(path)
    assert database.query("SELECT name FROM sqlite_master") == []
    database.close()


def test_a_database_that_cannot_be_opened_leaks_no_descriptor(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"no database" * 1000)
    before = open_descriptors()
    with pytest.raises(sqlite3.DatabaseError):
        LocalFilesystem().database(tmp_path / "a.db")
    assert open_descriptors() == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives pages back")
def test_pages_that_are_given_back_are_empty_and_their_neighbours_are_not() -> None:
    memory = bytearray(b"x" * (1 << 20))
    with memoryview(memory) as whole, whole[1000:-1000] as unused:
        give_back_pages(unused)
        give_back_pages(unused[:10])  # no whole page: nothing happens
        give_back_pages(unused[:0])
    assert memory[:1000] == memory[-1000:] == b"x" * 1000
    assert memory.count(0) >= (1 << 20) - 4 * (64 << 10)  # pages have 64 KiB at most


def test_damage_whose_names_are_no_text_is_an_error_of_the_database(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE segments (number INTEGER)")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET name = CAST(X'7365E4' AS TEXT), sql = 'CREATE'")
        connection.commit()
    with pytest.raises(sqlite3.DatabaseError, match="damaged"):
        LocalFilesystem().database(path)
