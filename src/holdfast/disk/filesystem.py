"""The seam between Holdfast and a disk: what we call, and what each call promises after a power cut.

Every byte Holdfast keeps goes through `Filesystem`, so that a test can stand in for the disk and cut the power at any
call (`holdfast.testing.CrashFilesystem`). `holdfast.disk.local.LocalFilesystem` is the real one. Both pass one
contract suite.

Promises, and what is *not* promised:

- `File.pwritev` puts bytes where readers of this process see them. After a power cut they may be there, be absent, or
  be there in part, in any order, sector by sector, until `sync_data` or `sync` has returned.
- `File.sync_data` makes the bytes, and the size they need, survive. It says nothing about the name of the file.
- A new name (`open(CREATE)`, `rename`, `makedir`) or a removed one (`unlink`, `rmdir`) survives once `sync_dir` of its
  parent has returned; before that either state may come back, each name for itself.
- `rename` is atomic: the target is the old file or the new one, never a mixture. What the new one *contains* is what
  was synced before.
- After any call has raised `OSError` for a write or a sync, what the file holds is unknown. **A failed sync is never
  repeated**: the kernel may have dropped the pages and would answer success. The caller stops using that file.
- `Database` is SQLite: a transaction that returned survives as a whole; one that did not is there as a whole or not at
  all.

All errors are `OSError` (or `sqlite3.Error` from a database), untranslated. `lock` raises `errors.Locked`.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import pyarrow as pa

Bytes: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"
SqlValue: TypeAlias = "int | float | str | bytes | None"
SqlRow: TypeAlias = tuple[Any, ...]


def is_full(error: OSError | sqlite3.Error) -> bool:
    """Whether the disk has no room, so that the same may work later."""
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "disk is full" in str(error)


class Mode(Enum):
    """How a file is opened."""

    READ = "read"
    WRITE = "write"  # must exist
    CREATE = "create"  # must not exist


class DirEntry(NamedTuple):
    """One name in a directory; `size_bytes` is 0 for a directory."""

    name: str
    size_bytes: int
    is_dir: bool


class File(Protocol):
    """An open file. Not thread-safe for writing: one writer per file."""

    @property
    def path(self) -> Path: ...

    def size_bytes(self) -> int: ...

    def pread(self, count: int, offset_bytes: int) -> bytes:
        """Up to `count` bytes; fewer only at the end of the file."""

    def pwritev(self, buffers: Sequence[Bytes], offset_bytes: int) -> None:
        """Write all buffers, one after the other, or raise."""

    def hasten(self, offset_bytes: int, count: int) -> None:
        """Advice: these bytes were written and will be synced soon, so the disk may begin. Never fails; says nothing
        about durability: a sync does, and still tells of whatever goes wrong now."""

    def allocate(self, size_bytes: int) -> None:
        """Grow the file to `size_bytes`, reserve its blocks; the new part reads as zeros. Never shrinks."""

    def truncate(self, size_bytes: int) -> None: ...

    def sync_data(self) -> None: ...

    def sync(self) -> None: ...

    def map(self) -> pa.Buffer:
        """The whole file, read-only, without copying. Stays valid after `close` and `unlink`."""

    def close(self) -> None:
        """Idempotent. Promises nothing about durability."""


class Lock(Protocol):
    """An exclusive lock held by this process until released or killed."""

    def release(self) -> None: ...


class Transaction(Protocol):
    """Statements inside one transaction."""

    def execute(self, sql: str, values: Sequence[SqlValue] = ()) -> list[SqlRow]: ...

    def executemany(self, sql: str, rows: Sequence[Sequence[SqlValue]]) -> None: ...


class Database(Protocol):
    """A SQLite database. Thread-safe; statements of different threads take turns."""

    def query(self, sql: str, values: Sequence[SqlValue] = ()) -> list[SqlRow]:
        """Rows of a read-only statement."""

    def transaction(self) -> AbstractContextManager[Transaction]:
        """Leaving the block commits durably; an exception rolls back. It ends a stamp (`holdfast.disk.stamp`)."""

    def close(self) -> None: ...


class Filesystem(Protocol):
    """A disk."""

    def open(self, path: Path, mode: Mode) -> File: ...

    def exists(self, path: Path) -> bool: ...

    def listdir(self, path: Path) -> list[DirEntry]:
        """The entries of a directory, sorted by name."""

    def makedir(self, path: Path) -> None:
        """Create one directory; no error when it exists. The caller syncs the parent."""

    def rename(self, source: Path, target: Path) -> None:
        """Atomically replace `target`. The caller syncs the directory."""

    def unlink(self, path: Path) -> None: ...

    def forget(self, path: Path) -> None:
        """A hint: nobody reads this file soon, and memory need not hold what of it is on disk and in use by nobody."""

    def rmdir(self, path: Path) -> None: ...

    def sync_dir(self, path: Path) -> None: ...

    def lock(self, path: Path) -> Lock:
        """Take the lock file or raise `errors.Locked` naming the holder's pid."""

    def database(self, path: Path) -> Database:
        """Open or create; the file's name is durable when this returns."""
