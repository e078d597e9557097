"""SQLite's log as SQLite writes it: damage is refused, whatever a power cut leaves is not."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.disk.sqlitelog import check_log
from holdfast.errors import CorruptData

PAGE_BYTES = 512
FRAME_BYTES = 24 + PAGE_BYTES
LOG = Path("some.db-wal")


def connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def log_of(path: Path) -> bytes:
    return path.with_name(path.name + "-wal").read_bytes()


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A database that was killed: five transactions in its log, the last one of several frames."""
    path = tmp_path / "running" / "some.db"
    path.parent.mkdir()
    left = tmp_path / "left"
    with closing(connect(path)) as connection:
        connection.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, text BLOB)")
        for n in range(3):
            connection.execute("INSERT INTO t VALUES (?, ?)", (n, b"x"))
        connection.execute("INSERT INTO t VALUES (9, zeroblob(3000))")
        shutil.copytree(path.parent, left)
    return left / path.name


def frames(log: bytes) -> int:
    return (len(log) - 32) // FRAME_BYTES


def start_of_last(log: bytes) -> int:
    """The first frame behind the last transaction but one."""
    ends = [at for at in range(frames(log)) if log[32 + at * FRAME_BYTES :][4:8] != bytes(4)]
    assert ends[-1] == frames(log) - 1
    assert len(ends) == 5
    return ends[-2] + 1


def without(log: bytes, lost: Iterable[int]) -> bytes:
    changed = bytearray(log)
    for at in lost:
        changed[32 + at * FRAME_BYTES : 32 + (at + 1) * FRAME_BYTES] = bytes(FRAME_BYTES)
    return bytes(changed)


def is_refused(log: bytes) -> bool:
    try:
        check_log(LOG, log)
    except CorruptData as error:
        return error.file == LOG
    return False


@pytest.mark.guarantee("G9")
def test_each_changed_byte_but_of_the_last_transaction_is_refused(written: Path) -> None:
    log = log_of(written)
    border = 32 + start_of_last(log) * FRAME_BYTES
    assert not is_refused(log)
    for at in range(len(log)):
        mask = 0xFF if at % 3 == 0 else 1 << at % 8
        refused = is_refused(log[:at] + bytes([log[at] ^ mask]) + log[at + 1 :])
        assert refused or at >= border, f"byte {at} passed"


def test_log_without_any_parts_of_its_last_transaction_passes(written: Path) -> None:
    log = log_of(written)
    last = range(start_of_last(log), frames(log))
    assert len(last) > 4
    for chosen in range(1 << len(last)):
        assert not is_refused(without(log, [at for bit, at in enumerate(last) if chosen >> bit & 1]))


def test_log_cut_anywhere_passes_as_it_may_have_been_shorter(written: Path) -> None:
    log = log_of(written)
    for size in [*range(700), *range(700, len(log), 7)]:
        assert not is_refused(log[:size])


def test_rest_of_a_torn_transaction_behind_later_ones_passes(written: Path) -> None:
    """SQLite goes on where the tear was, and does not remove what stands behind."""
    log = log_of(written)
    written.with_name("some.db-wal").write_bytes(without(log, [start_of_last(log)]))
    with closing(connect(written)) as connection:
        for n in (20, 21):
            connection.execute("INSERT INTO t VALUES (?, ?)", (n, b"y"))
            assert connection.execute("SELECT count(*) FROM t WHERE n = 9").fetchone() == (0,)
            assert len(log_of(written)) == len(log)
            assert not is_refused(log_of(written))


def test_frames_of_an_earlier_use_of_the_log_pass(written: Path) -> None:
    with closing(connect(written)) as connection:
        before = len(log_of(written))
        connection.execute("PRAGMA wal_checkpoint(RESTART)")
        for n in (30, 31):
            connection.execute("INSERT INTO t VALUES (?, ?)", (n, b"z"))
            assert len(log_of(written)) == before
            assert not is_refused(log_of(written))


def test_log_of_some_bytes_that_nobody_finished_passes() -> None:
    for size in (0, 1, 31, 32, 33, 500):
        check_log(LOG, bytes(size))
