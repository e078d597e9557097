"""A disk in memory that loses power, dies, fails and fills up on command: `CrashFilesystem`.

Promise: it keeps the contract of `holdfast.disk.filesystem` (one suite runs over this and the real disk), and after a
power cut it gives back some state that this contract allows, chosen by a seed (`holdfast.testing.platter` says
which). Seed 0 leaves nothing that was not promised, seed 1 leaves everything, every other seed mixes. After a kill
all that is visible is left, and what was not synced still is not: a later power cut can take it.

Every call that changes state is counted in `calls` and noted in `log` as (number, operation, path): create, pwritev,
allocate, truncate, sync_data, sync, rename, unlink, makedir, rmdir, sync_dir, commit. `cut_at`, `fail_at` and
`fail_from` name a call by that number, from 1. Reads of content (`pread`, `map`) are counted apart, in `reads`.

A failed sync lies as real ones do: what was not synced stays visible, never reaches the platter, and the next sync
succeeds. On a full disk `pwritev` writes what fits and raises; `allocate` and a commit change nothing. Once the power
is gone every call raises `PowerCut`, in every thread, except `close` and `release`, so that clean-up can end.

Thread-safe. Not modelled: damage to what was synced (see `read_bytes`, `write_bytes`), links, permissions, the side
files of SQLite.
"""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeAlias

import pyarrow as pa

from holdfast.disk.filesystem import Bytes, DirEntry, Mode
from holdfast.disk.local import SqliteDatabase
from holdfast.errors import Locked
from holdfast.testing.platter import (
    Change,
    Directory,
    Fate,
    Inode,
    NameChange,
    NameOperation,
    Node,
    after_cut,
    after_kill,
    enter,
    files,
    settle,
)

FailWhen: TypeAlias = Callable[[str, Path], "int | None"]


class PowerCut(BaseException):
    """The power is gone: the program that sees this no longer exists. Not an `Exception`, so nothing handles it."""


def _os_error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


def _sqlite_error(code: int) -> sqlite3.OperationalError:
    """What SQLite makes of an errno."""
    full = code in (errno.ENOSPC, errno.EDQUOT)
    error = sqlite3.OperationalError("database or disk is full" if full else "disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_FULL if full else sqlite3.SQLITE_IOERR
    error.sqlite_errorname = "SQLITE_FULL" if full else "SQLITE_IOERR"
    return error


# --- handles --------------------------------------------------------------------------------------------------------


class CrashFile:
    """An open file of a `CrashFilesystem`."""

    __slots__ = ("_disk", "_inode", "_open", "_path", "_writable")

    def __init__(self, disk: CrashFilesystem, inode: Inode, path: Path, *, writable: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._path = path
        self._writable = writable
        self._open = True

    @property
    def path(self) -> Path:
        return self._path

    def size_bytes(self) -> int:
        with self._disk._lock:
            self._check(writing=False)
            return len(self._inode.visible)

    def pread(self, count: int, offset_bytes: int) -> bytes:
        with self._disk._lock:
            self._check(writing=False)
            self._disk._count_read(self._path)
            if count < 0 or offset_bytes < 0:
                raise _os_error(errno.EINVAL, self._path)
            return bytes(self._inode.visible[offset_bytes : offset_bytes + count])

    def map(self) -> pa.Buffer:
        with self._disk._lock:
            self._check(writing=False)
            self._disk._count_read(self._path)
            return pa.py_buffer(bytes(self._inode.visible))

    def pwritev(self, buffers: Sequence[Bytes], offset_bytes: int) -> None:
        data = b"".join(buffers)
        disk, inode = self._disk, self._inode
        with disk._lock:
            self._check(writing=True)
            cut = disk._count("pwritev", self._path)
            if cut:
                data = data[: disk._chance.randrange(len(data) + 1)]
            full = disk._lacks_room(inode, offset_bytes + len(data))
            if full:  # as on a real disk, what fits is written
                data = data[: max(0, len(inode.visible) + disk._free_bytes() - offset_bytes)]
            if data:
                disk._change(inode, (offset_bytes, data))
            if cut:
                disk._raise_cut()
            if full:
                raise _os_error(errno.ENOSPC, self._path)

    def hasten(self, offset_bytes: int, count: int) -> None:
        """What is not synced may survive anyway."""

    def allocate(self, size_bytes: int) -> None:
        self._resize("allocate", (size_bytes, b""))

    def truncate(self, size_bytes: int) -> None:
        self._resize("truncate", (size_bytes, None))

    def sync_data(self) -> None:
        self._sync("sync_data")

    def sync(self) -> None:
        self._sync("sync")

    def close(self) -> None:
        """Works without power too, so that the clean-up of a program that lost it can end."""
        self._open = False

    def _resize(self, operation: str, change: Change) -> None:
        with self._disk._lock:
            self._check(writing=True)
            cut = self._disk._count(operation, self._path)
            if self._disk._lacks_room(self._inode, change[0]):
                raise _os_error(errno.ENOSPC, self._path)
            self._disk._change(self._inode, change)
            if cut:
                self._disk._raise_cut()

    def _sync(self, operation: str) -> None:
        with self._disk._lock:
            self._check(writing=False)
            try:
                cut = self._disk._count(operation, self._path)
            except OSError:
                self._inode.pending.clear()  # the lie: taken for clean, never written
                raise
            if cut:
                self._disk._raise_cut()  # what reached the platter by then is for the seed to say
            self._inode.sync()

    def _check(self, *, writing: bool) -> None:
        self._disk._check_power()
        if not self._open or (writing and not self._writable):
            raise _os_error(errno.EBADF, self._path)


class CrashLock:
    """A lock of a `CrashFilesystem`."""

    def __init__(self, disk: CrashFilesystem, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._held = True

    def release(self) -> None:
        with self._disk._lock:
            if self._held:
                self._held = False
                self._disk._holders.pop(self._path, None)


class _Connection:
    """The one connection to a database, shared by all who opened it."""

    def __init__(self, image: bytes) -> None:
        self.lock = threading.RLock()
        self.handles = 0
        self.sqlite = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        try:
            if image:
                self.sqlite.deserialize(image)
            self.sqlite.execute("PRAGMA schema_version").fetchall()  # a damaged file is refused here, as on a real disk
        except BaseException:
            self.sqlite.close()
            raise


class CrashDatabase(SqliteDatabase):
    """Real SQL in memory; each commit is one call of the disk."""

    def __init__(self, disk: CrashFilesystem, inode: Inode, path: Path, connection: _Connection) -> None:
        super().__init__(connection.sqlite, connection.lock)
        self._disk = disk
        self._inode = inode
        self._path = path
        self._open = True
        connection.handles += 1

    def _check(self) -> None:
        self._disk._check_power()
        if not self._open:
            raise sqlite3.ProgrammingError("Cannot operate on a closed database.")

    def _commit(self) -> None:
        disk, inode = self._disk, self._inode
        with disk._lock:
            cut = disk._count("commit", self._path)
            if disk.capacity_bytes is not None and disk._lacks_room(inode, self._size_bytes()):
                raise _sqlite_error(errno.ENOSPC)
            super()._commit()
            disk._replace(inode, self._connection.serialize(), durable=not cut)
            if cut:
                disk._raise_cut()

    def _size_bytes(self) -> int:
        sql = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
        return int(self._connection.execute(sql).fetchone()[0])

    def close(self) -> None:
        """Works without power too."""
        with self._lock, self._disk._lock:
            if self._open:
                self._open = False
                self._disk._disconnect(self._inode)


# --- the disk -------------------------------------------------------------------------------------------------------


class CrashFilesystem:
    """A disk in memory. Starts empty, with only a root directory."""

    def __init__(self, *, seed: int = 0, capacity_bytes: int | None = None) -> None:
        """`seed` decides how far the call at which power goes gets; `capacity_bytes` may be changed at any time."""
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self.calls = 0
        self.reads = 0
        self.log: list[tuple[int, str, Path]] = []
        self._seed = seed
        self._chance = random.Random(seed)
        self._lock = threading.RLock()
        self._root = Directory()
        self._journal: list[NameOperation] = []
        self._holders: dict[Path, int] = {}
        self._connections: dict[Inode, _Connection] = {}
        self._cut_at: int | None = None
        self._cut: str | None = None
        self._fail_at: dict[int, int] = {}
        self._fail_from: list[tuple[int, int]] = []
        self._fail_when: list[FailWhen] = []
        self._read_failures: dict[int, int] = {}

    # what goes wrong, and when

    def cut_at(self, n: int) -> None:
        """Power goes at the `n`-th call, before it takes effect or while it does."""
        self._cut_at = n

    def fail_at(self, n: int, code: int) -> None:
        """The `n`-th call has no effect and raises `OSError(code)`; a commit, what SQLite makes of it; a sync lies."""
        self._fail_at[n] = code

    def fail_from(self, n: int, code: int) -> None:
        """The `n`-th call and all later ones fail."""
        self._fail_from.append((n, code))

    def fail_when(self, predicate: FailWhen) -> None:
        """Every call for which `predicate(operation, path)` gives an errno fails with it."""
        self._fail_when.append(predicate)

    def fail_read_at(self, n: int, code: int) -> None:
        """The `n`-th `pread` or `map` fails."""
        self._read_failures[n] = code

    def stop_failing(self) -> None:
        """Forget every `fail_*`: the disk is mended."""
        self._fail_at.clear()
        self._fail_from.clear()
        self._fail_when.clear()
        self._read_failures.clear()

    def after_power_cut(self, seed: int) -> CrashFilesystem:
        """A disk with one state that may be left now. This one is dead from here on; other seeds may still be asked."""
        with self._lock:
            self._switch_off("by after_power_cut")
            left = CrashFilesystem(seed=seed, capacity_bytes=self.capacity_bytes)
            left._root = after_cut(self._root, self._journal, Fate(seed))
            return left._measured()

    def after_kill(self) -> CrashFilesystem:
        """The same disk for the next process: all that was written is visible, what was not synced still is not."""
        with self._lock:
            self._switch_off("by after_kill")
            left = CrashFilesystem(seed=self._seed, capacity_bytes=self.capacity_bytes)
            left._root, left._journal = after_kill(self._root, self._journal)
            return left._measured()

    # what tests look at and prepare; neither counted nor stopped by a power cut

    def paths(self) -> list[Path]:
        """Every file there is now."""
        with self._lock:
            return [path for path, _ in files(self._root, Path("/"))]

    def read_bytes(self, path: Path) -> bytes:
        """What a reader of the file sees now."""
        with self._lock:
            return bytes(self._file(path).visible)

    def write_bytes(self, path: Path, data: bytes) -> None:
        """Make this the content of the file, durable; the directories on the way are made and synced."""
        with self._lock:
            directory = self._root
            *parents, name = self._parts(path)
            for parent in parents:
                child = directory.current.setdefault(parent, Directory())
                assert isinstance(child, Directory), f"{parent} in {path} is a file"
                self._journal = settle(self._journal, directory)
                directory.durable[parent] = child
                directory = child
            inode = directory.current.setdefault(name, Inode())
            assert isinstance(inode, Inode), f"{path} is a directory"
            self._journal = settle(self._journal, directory)
            directory.durable[name] = inode
            self._replace(inode, bytes(data), durable=True)

    # the protocol

    def open(self, path: Path, mode: Mode) -> CrashFile:
        with self._lock:
            self._check_power()
            if mode is Mode.CREATE:
                directory, name = self._parent(path)
                if name in directory.current:
                    raise _os_error(errno.EEXIST, path)
                inode = Inode()
                self._rename("create", path, (directory, name, inode))
            else:
                inode = self._file(path)
            return CrashFile(self, inode, path, writable=mode is not Mode.READ)

    def exists(self, path: Path) -> bool:
        with self._lock:
            self._check_power()
            try:
                self._node(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def listdir(self, path: Path) -> list[DirEntry]:
        with self._lock:
            self._check_power()
            return [
                DirEntry(name, 0 if isinstance(node, Directory) else len(node.visible), isinstance(node, Directory))
                for name, node in sorted(self._directory(path).current.items())
            ]

    def makedir(self, path: Path) -> None:
        with self._lock:
            self._check_power()
            directory, name = self._parent(path)
            if name not in directory.current:
                self._rename("makedir", path, (directory, name, Directory()))
            elif not isinstance(directory.current[name], Directory):
                raise _os_error(errno.EEXIST, path)

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._check_power()
            moved = self._node(source)
            from_directory, from_name = self._parent(source)
            to_directory, to_name = self._parent(target)
            replaced = to_directory.current.get(to_name)
            if isinstance(replaced, Directory) and not isinstance(moved, Directory):
                raise _os_error(errno.EISDIR, target)
            if isinstance(replaced, Inode) and isinstance(moved, Directory):
                raise _os_error(errno.ENOTDIR, target)
            if isinstance(replaced, Directory) and replaced.current and replaced is not moved:
                raise _os_error(errno.ENOTEMPTY, target)
            if replaced is not moved:
                self._rename("rename", target, (from_directory, from_name, None), (to_directory, to_name, moved))

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._check_power()
            self._file(path)
            self._rename("unlink", path, (*self._parent(path), None))

    def forget(self, path: Path) -> None:
        """What is in memory here is the disk."""

    def rmdir(self, path: Path) -> None:
        with self._lock:
            self._check_power()
            if self._directory(path).current:
                raise _os_error(errno.ENOTEMPTY, path)
            self._rename("rmdir", path, (*self._parent(path), None))

    def sync_dir(self, path: Path) -> None:
        with self._lock:
            self._check_power()
            directory = self._directory(path)
            try:
                cut = self._count("sync_dir", path)
            except OSError:  # the lie again: these names are taken for written
                self._journal = [op for op in self._journal if all(at is not directory for at, _, _ in op)]
                raise
            if cut:
                self._raise_cut()
            self._journal = settle(self._journal, directory)

    def lock(self, path: Path) -> CrashLock:
        with self._lock:
            self._check_power()
            directory, name = self._parent(path)
            if path in self._holders:
                raise Locked(file=path, holder_pid=self._holders[path])
            if name not in directory.current:
                self._enter((directory, name, Inode()))
            inode = self._file(path)
            self._change(inode, (0, None))
            self._change(inode, (0, b"%d\n" % os.getpid()))
            self._holders[path] = os.getpid()
            return CrashLock(self, path)

    def database(self, path: Path) -> CrashDatabase:
        with self._lock:
            self._check_power()
            directory, name = self._parent(path)
            if name not in directory.current:
                self._rename("create", path, (directory, name, Inode()))
                self.sync_dir(path.parent)
            inode = self._file(path)
            if inode not in self._connections:
                self._connections[inode] = _Connection(bytes(inode.visible))
            return CrashDatabase(self, inode, path, self._connections[inode])

    # power, counting, failing

    def _check_power(self) -> None:
        if self._cut is not None:
            self._raise_cut()

    def _raise_cut(self) -> NoReturn:
        raise PowerCut(self._cut)

    def _count(self, operation: str, path: Path) -> bool:
        """Count a call that changes state; True when power goes while it takes effect."""
        self._check_power()
        self.calls += 1
        self.log.append((self.calls, operation, path))
        if self.calls == self._cut_at:
            self._cut = f"power was cut at call {self.calls}: {operation} {path}"
            self._chance.seed(self._seed * 1_000_003 + self.calls)  # another moment for each call, whatever the seed
            if self._chance.random() < 0.5:
                self._raise_cut()
            return True
        code = self._failure(operation, path)
        if code is not None:
            raise _sqlite_error(code) if operation == "commit" else _os_error(code, path)
        return False

    def _failure(self, operation: str, path: Path) -> int | None:
        """The errno with which this call fails, if it does."""
        if self.calls in self._fail_at:
            return self._fail_at[self.calls]
        for n, code in self._fail_from:
            if self.calls >= n:
                return code
        for predicate in self._fail_when:
            found = predicate(operation, path)
            if found is not None:
                return found
        return None

    def _count_read(self, path: Path) -> None:
        self.reads += 1
        if self.reads in self._read_failures:
            raise _os_error(self._read_failures[self.reads], path)

    def _switch_off(self, by: str) -> None:
        self._cut = self._cut or f"power was cut {by}"
        for connection in self._connections.values():
            if connection.lock.acquire(blocking=False):
                with suppress(sqlite3.ProgrammingError):  # closed before, when another state of this disk was asked
                    if not connection.sqlite.in_transaction:  # who is inside one learns of the cut when it commits
                        connection.sqlite.close()
                connection.lock.release()

    def _measured(self) -> CrashFilesystem:
        self.used_bytes = sum(len(inode.visible) for _, inode in files(self._root, Path("/")))
        return self

    # content

    def _change(self, inode: Inode, change: Change) -> None:
        before_bytes = len(inode.visible)
        inode.change(change)
        self._account(inode, before_bytes)

    def _replace(self, inode: Inode, image: bytes, *, durable: bool) -> None:
        before_bytes = len(inode.visible)
        inode.replace(image, durable=durable)
        self._account(inode, before_bytes)

    def _account(self, inode: Inode, before_bytes: int) -> None:
        if inode.linked:
            self.used_bytes += len(inode.visible) - before_bytes

    def _lacks_room(self, inode: Inode, size_bytes: int) -> bool:
        return self.capacity_bytes is not None and size_bytes - len(inode.visible) > self._free_bytes()

    def _free_bytes(self) -> int:
        return max(0, (self.capacity_bytes or 0) - self.used_bytes)

    def _disconnect(self, inode: Inode) -> None:
        connection = self._connections[inode]
        connection.handles -= 1
        if connection.handles == 0:
            connection.sqlite.close()
            del self._connections[inode]

    # names

    def _rename(self, operation: str, path: Path, *changes: NameChange) -> None:
        """Any operation on names, counted."""
        cut = self._count(operation, path)
        self._enter(*changes)
        if cut:
            self._raise_cut()

    def _enter(self, *changes: NameChange) -> None:
        for directory, name, node in changes:
            gone = directory.current.get(name)
            if isinstance(gone, Inode) and not (node is None and len(changes) > 1):  # not the source of a rename
                self.used_bytes -= len(gone.visible)
                gone.linked = False
            enter(directory.current, name, node)
        self._journal.append(changes)

    @staticmethod
    def _parts(path: Path) -> tuple[str, ...]:
        parts = path.parts[1:] if path.anchor else path.parts
        assert ".." not in parts, f"{path} is not a plain path"
        return parts

    def _parent(self, path: Path) -> tuple[Directory, str]:
        parts = self._parts(path)
        if not parts:
            raise _os_error(errno.EBUSY, path)
        return self._descend(parts[:-1], path), parts[-1]

    def _descend(self, parts: Sequence[str], path: Path) -> Directory:
        directory = self._root
        for part in parts:
            node = directory.current.get(part)
            if not isinstance(node, Directory):
                raise _os_error(errno.ENOENT if node is None else errno.ENOTDIR, path)
            directory = node
        return directory

    def _directory(self, path: Path) -> Directory:
        return self._descend(self._parts(path), path)

    def _node(self, path: Path) -> Node:
        if not self._parts(path):
            return self._root
        directory, name = self._parent(path)
        if name not in directory.current:
            raise _os_error(errno.ENOENT, path)
        return directory.current[name]

    def _file(self, path: Path) -> Inode:
        node = self._node(path)
        if isinstance(node, Directory):
            raise _os_error(errno.EISDIR, path)
        return node
