"""`OpenFiles`: reuse, the soft limit, discarding, closing."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.disk.openfiles import OpenFiles, OpenFilesStatistics
from holdfast.errors import Closed
from holdfast.testing import CrashFilesystem

ROOT = Path("/data")


@pytest.fixture
def filesystem() -> CrashFilesystem:
    filesystem = CrashFilesystem()
    for name in "abcdef":
        filesystem.write_bytes(ROOT / name, name.encode())
    return filesystem


def test_a_file_used_again_is_not_opened_again(filesystem: CrashFilesystem) -> None:
    files = OpenFiles(filesystem, limit=2)
    with files.use(ROOT / "a") as first:
        assert first.pread(9, 0) == b"a"
    with files.use(ROOT / "a") as second:
        assert second is first
    assert files.statistics() == OpenFilesStatistics(open=1, limit=2, hits=1, misses=1, evictions=0)


def test_beyond_the_limit_the_least_recently_used_is_closed(filesystem: CrashFilesystem) -> None:
    files = OpenFiles(filesystem, limit=2)
    opened = {}
    for name in "abac":
        with files.use(ROOT / name) as file:
            opened[name] = file
    with pytest.raises(OSError, match="Bad file descriptor"):
        opened["b"].size_bytes()
    assert opened["a"].size_bytes() == 1
    assert files.statistics() == OpenFilesStatistics(open=2, limit=2, hits=1, misses=3, evictions=1)


def test_files_in_use_are_never_closed_by_the_limit(filesystem: CrashFilesystem) -> None:
    files = OpenFiles(filesystem, limit=2)
    with ExitStack() as stack:
        held = [stack.enter_context(files.use(ROOT / name)) for name in "abcd"]
        assert [file.pread(9, 0) for file in held] == [b"a", b"b", b"c", b"d"]
        assert files.statistics().open == 4
    assert files.statistics().open == 2


def test_a_discarded_file_is_opened_anew(filesystem: CrashFilesystem) -> None:
    files = OpenFiles(filesystem, limit=2)
    with files.use(ROOT / "a") as old:
        pass
    filesystem.unlink(ROOT / "a")
    filesystem.write_bytes(ROOT / "a", b"new")
    files.discard(ROOT / "a")
    files.discard(ROOT / "never opened")
    with pytest.raises(OSError, match="Bad file descriptor"):
        old.size_bytes()
    with files.use(ROOT / "a") as file:
        assert file.pread(9, 0) == b"new"


def test_a_file_discarded_in_use_is_closed_by_its_last_user(filesystem: CrashFilesystem) -> None:
    files = OpenFiles(filesystem, limit=2)
    with files.use(ROOT / "a") as file:
        with files.use(ROOT / "a"):
            files.discard(ROOT / "a")
        assert file.pread(9, 0) == b"a"
        assert files.statistics().open == 1
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.size_bytes()
    assert files.statistics().open == 0


def test_closing_closes_idle_files_now_and_others_later(filesystem: CrashFilesystem) -> None:
    files = OpenFiles(filesystem, limit=2)
    with files.use(ROOT / "a"):
        pass
    with files.use(ROOT / "b") as file:
        files.close()
        files.close()
        assert files.statistics().open == 1
        assert file.pread(9, 0) == b"b"
    assert files.statistics().open == 0
    with pytest.raises(Closed), files.use(ROOT / "a"):
        pass


def test_a_file_that_cannot_be_opened_leaves_no_trace(filesystem: CrashFilesystem) -> None:
    files = OpenFiles(filesystem, limit=1)
    with pytest.raises(FileNotFoundError), files.use(ROOT / "missing"):
        pass
    assert files.statistics().open == 0


def test_an_exception_in_the_block_gives_the_file_back(filesystem: CrashFilesystem) -> None:
    files = OpenFiles(filesystem, limit=1)
    with pytest.raises(KeyError), files.use(ROOT / "a"):
        raise KeyError
    with files.use(ROOT / "b"):
        assert files.statistics().open == 1


def test_many_threads_share_few_files_safely(filesystem: CrashFilesystem) -> None:
    files = OpenFiles(filesystem, limit=2)
    wrong: list[bytes] = []

    def read(names: str) -> None:
        for name in names * 200:
            with files.use(ROOT / name) as file:
                data = file.pread(9, 0)
            if data != name.encode():
                wrong.append(data)

    threads = [threading.Thread(target=read, args=(names,)) for names in ("abc", "cde", "fab", "edf")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statistics = files.statistics()
    assert wrong == []
    assert statistics.hits + statistics.misses == 4 * 3 * 200
    assert statistics.open == 2
