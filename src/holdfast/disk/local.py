"""The real disk: `LocalFilesystem`, the only place in Holdfast that calls fsync, fdatasync or rename.

Promise: what `holdfast.disk.filesystem` says of each call, on Linux; on macOS with F_FULLFSYNC, because fsync alone
leaves the bytes in the drive's cache; on Windows as far as it goes (it has no directory sync). Files are 0600 and
directories 0700; a path whose last component is a symbolic link is refused; programs we start inherit no descriptor.
A short write is continued until all is written or the disk says why not.

Relies on the caller for what the protocol asks: parents are synced by whoever made a name, and a file whose write or
sync failed is not used again. Everything that differs between operating systems is in the first part of this file.

`SqliteDatabase` is the database of this disk and, over a connection in memory, of `holdfast.testing.CrashFilesystem`.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sqlite3
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path

import pyarrow as pa

from holdfast.disk.filesystem import Bytes, DirEntry, Mode, SqlRow, SqlValue
from holdfast.errors import Locked

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700

IOV_MAX = 1024
"""Buffers per pwritev; the kernel's own limit, and POSIX systems with less are not in use."""

CALL_BYTES_MAX = 256 << 10
"""Bytes per pwritev. For a larger call Linux takes larger pieces of memory for the page cache, up to megabytes; where
those are hard to get, on a virtual machine above all, the same bytes cost several times as much."""

JOIN_COUNT_MIN = 8
"""From here on one copy is cheaper than an iovec for each buffer."""

JOIN_BYTES_MAX = 8 << 10
"""Per buffer: above this the copy costs more than the iovecs it saves."""

BUSY_TIMEOUT_S = 5.0
"""How long a statement waits for another process that holds the database; only tools do, and briefly."""

_SYNC_FILE_RANGE_WRITE = 2

_NO_FD = 0x7FFFFFFF  # what a closed file has: above every limit, so that each call answers EBADF

_BASE_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
_OPEN_FLAGS = {
    Mode.READ: os.O_RDONLY | _BASE_FLAGS,
    Mode.WRITE: os.O_RDWR | _BASE_FLAGS,
    Mode.CREATE: os.O_RDWR | os.O_CREAT | os.O_EXCL | _BASE_FLAGS,
}

# --- what differs between operating systems -------------------------------------------------------------------------

if sys.platform == "win32":
    import msvcrt

    _SEEK = threading.Lock()  # no positional reads and writes here, so position and transfer are one step
    _LOCK_OFFSET = 0x7FFF0000  # locks are mandatory here: lock a byte nobody reads, so that the pid stays readable

    def _lock_exclusive(fd: int) -> None:
        os.lseek(fd, _LOCK_OFFSET, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)

    def _unlock(fd: int) -> None:
        os.lseek(fd, _LOCK_OFFSET, os.SEEK_SET)
        msvcrt.locking(fd, msvcrt.LK_UNLCK, 1)

    def _pread(fd: int, count: int, offset_bytes: int) -> bytes:
        with _SEEK:
            os.lseek(fd, offset_bytes, os.SEEK_SET)
            return os.read(fd, count)

    def _pwritev(fd: int, buffers: Sequence[Bytes], offset_bytes: int) -> int:
        with _SEEK:
            os.lseek(fd, offset_bytes, os.SEEK_SET)
            return os.write(fd, b"".join(buffers))

    def _sync_directory(path: Path) -> None:
        """NTFS journals names by itself and offers no call for it."""

    def _map(fd: int, size_bytes: int) -> pa.Buffer:
        return pa.py_buffer(mmap.mmap(fd, size_bytes, access=mmap.ACCESS_READ))

else:
    import fcntl

    def _lock_exclusive(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(fd: int) -> None:
        fcntl.flock(fd, fcntl.LOCK_UN)

    _pread = os.pread

    def _pwritev(fd: int, buffers: Sequence[Bytes], offset_bytes: int) -> int:
        if len(buffers) == 1:
            return os.pwrite(fd, buffers[0], offset_bytes)
        return os.pwritev(fd, buffers, offset_bytes)

    def _sync_directory(path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _BASE_FLAGS)
        try:
            _sync(fd)
        finally:
            os.close(fd)

    _libc = ctypes.CDLL(None, use_errno=True)
    _write_range = getattr(_libc, "sync_file_range", None) if sys.platform == "linux" else None
    if _write_range is not None:
        _write_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    _libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    _MAP_FAILED = ctypes.c_void_p(-1).value

    class _Mapping:
        """Mapped memory without a descriptor behind it.

        `mmap.mmap` keeps a descriptor for each mapping (up to Python 3.12), so a reader that holds the batches of a
        thousand segments would run out of them; `pyarrow.memory_map` reads the whole file ahead.
        """

        def __init__(self, fd: int, size_bytes: int) -> None:
            address = _libc.mmap(None, size_bytes, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
            if address == _MAP_FAILED:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            self.address = address
            weakref.finalize(self, _libc.munmap, address, size_bytes).atexit = False

    def _map(fd: int, size_bytes: int) -> pa.Buffer:
        mapping = _Mapping(fd, size_bytes)
        return pa.foreign_buffer(mapping.address, size_bytes, base=mapping)


if sys.platform == "darwin":

    def _sync(fd: int) -> None:
        os.fsync(fd)
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):  # not a drive: fsync is all there is
                raise

    _sync_data = _sync
elif sys.platform == "win32":
    _sync = _sync_data = os.fsync
else:
    _sync = os.fsync
    _sync_data = os.fdatasync


def give_back_memory() -> None:
    """Return memory that was freed to the system, where the allocator keeps it (glibc); elsewhere nothing."""
    if sys.platform == "linux" and hasattr(_libc, "malloc_trim"):  # musl has none
        _libc.malloc_trim(0)


def give_back_pages(unused: memoryview) -> None:
    """Return the whole pages of a piece of memory to the system; what stood there is gone. Elsewhere than on Linux it
    does nothing."""
    if sys.platform == "linux" and unused:
        address = ctypes.addressof(ctypes.c_char.from_buffer(unused))
        start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (address + len(unused)) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def _start_writing(fd: int, offset_bytes: int, count: int) -> None:
    """The disk begins with a piece of a file; nobody waits, and a later sync tells of errors. Linux only."""
    if sys.platform == "linux" and _write_range is not None:
        _write_range(fd, offset_bytes, count, _SYNC_FILE_RANGE_WRITE)


def _reserve(fd: int, size_bytes: int) -> None:
    """Grow to `size_bytes` with blocks behind it, or, where no call does that, without."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, size_bytes)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                raise
    if os.fstat(fd).st_size < size_bytes:
        os.ftruncate(fd, size_bytes)


# --- files ----------------------------------------------------------------------------------------------------------


def write_fully(
    fd: int,
    buffers: Sequence[Bytes],
    offset_bytes: int,
    *,
    write: Callable[[int, Sequence[Bytes], int], int] = _pwritev,
) -> None:
    """Write all of `buffers` with as many calls of `write` as it takes."""
    for portion in _portions(buffers):
        rest = portion
        while rest:
            written = write(fd, rest, offset_bytes)
            if written <= 0:
                raise OSError(errno.EIO, "the disk took no bytes and gave no reason")
            offset_bytes += written
            rest = _after(rest, written)


def _portions(buffers: Sequence[Bytes]) -> Iterator[list[Bytes]]:
    """`buffers` in lists that one call takes well, without empty ones."""
    portion: list[Bytes] = []
    room = CALL_BYTES_MAX
    for buffer in buffers:
        size = memoryview(buffer).nbytes
        if 0 < size <= room and len(portion) < IOV_MAX:  # nearly always
            portion.append(buffer)
            room -= size
            continue
        view = memoryview(buffer).cast("B")
        while view.nbytes:
            if not room or len(portion) == IOV_MAX:
                yield portion
                portion, room = [], CALL_BYTES_MAX
            taken = view[:room]
            portion.append(taken)
            view, room = view[taken.nbytes :], room - taken.nbytes
    if portion:
        yield portion


def _after(buffers: Sequence[Bytes], written: int) -> list[Bytes]:
    """What is left of `buffers` without their first `written` bytes and without empty ones."""
    rest: list[Bytes] = []
    for buffer in buffers:
        view = memoryview(buffer)
        if view.nbytes <= written:
            written -= view.nbytes
        elif written:
            rest.append(view.cast("B")[written:])
            written = 0
        else:
            rest.append(buffer)
    return rest


class LocalFile:
    """A file of the operating system."""

    __slots__ = ("_fd", "_path")

    def __init__(self, fd: int, path: Path) -> None:
        self._fd = fd
        self._path = path

    @property
    def path(self) -> Path:
        return self._path

    def size_bytes(self) -> int:
        return os.fstat(self._fd).st_size

    def pread(self, count: int, offset_bytes: int) -> bytes:
        data = _pread(self._fd, count, offset_bytes)
        while len(data) < count:
            more = _pread(self._fd, count - len(data), offset_bytes + len(data))
            if not more:
                break
            data += more
        return data

    def pwritev(self, buffers: Sequence[Bytes], offset_bytes: int) -> None:
        if len(buffers) >= JOIN_COUNT_MIN and sum(map(len, buffers)) < JOIN_BYTES_MAX * len(buffers):
            buffers = (b"".join(buffers),)
        write_fully(self._fd, buffers, offset_bytes)

    def hasten(self, offset_bytes: int, count: int) -> None:
        _start_writing(self._fd, offset_bytes, count)

    def allocate(self, size_bytes: int) -> None:
        if size_bytes > 0:
            _reserve(self._fd, size_bytes)

    def truncate(self, size_bytes: int) -> None:
        os.ftruncate(self._fd, size_bytes)

    def sync_data(self) -> None:
        _sync_data(self._fd)

    def sync(self) -> None:
        _sync(self._fd)

    def map(self) -> pa.Buffer:
        """The whole file. Whoever truncates a mapped file ends the process that reads it; segments never change."""
        size_bytes = self.size_bytes()
        return _map(self._fd, size_bytes) if size_bytes else pa.py_buffer(b"")

    def close(self) -> None:
        fd, self._fd = self._fd, _NO_FD  # first forgotten, then closed: a moment later it may be another file's number
        if fd != _NO_FD:
            os.close(fd)


class LocalLock:
    """A locked file with the holder's pid in it."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        """Idempotent. The file stays: unlinking it would let two processes hold two files of one name."""
        fd, self._fd = self._fd, _NO_FD
        if fd != _NO_FD:
            try:
                with suppress(OSError):  # the pid is for people, and a disk that fails must not keep the lock
                    os.ftruncate(fd, 0)
                _unlock(fd)
            finally:
                os.close(fd)


def _holder_pid(fd: int) -> int | None:
    text = _pread(fd, 32, 0).strip()
    return int(text) if text.isdigit() else None


# --- databases ------------------------------------------------------------------------------------------------------


class SqliteTransaction:
    """Statements inside one transaction."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Sequence[SqlValue] = ()) -> list[SqlRow]:
        return self._connection.execute(sql, values).fetchall()

    def executemany(self, sql: str, rows: Sequence[Sequence[SqlValue]]) -> None:
        self._connection.executemany(sql, rows)


@contextmanager
def legible_errors() -> Iterator[None]:
    """SQLite quotes damaged names in its errors; Python fails to tell those that are no text.

    Where such bytes are a value, it calls that an `OperationalError`, as if the machine were to blame.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        if not str(error).startswith("Could not decode to UTF-8"):
            raise
        raise sqlite3.DatabaseError(str(error)) from error
    except UnicodeDecodeError as error:
        raise sqlite3.DatabaseError(f"damaged, and so are the names in it: {error.object!r:.200}") from error


class SqliteDatabase:
    """One connection that threads share by turns. Writes outside a transaction are refused; one takes the stamp off."""

    def __init__(self, connection: sqlite3.Connection, lock: threading.RLock | None = None) -> None:
        """`connection` has isolation_level None and check_same_thread False."""
        self._connection = connection
        self._lock = lock or threading.RLock()
        connection.execute("PRAGMA query_only = ON")

    def query(self, sql: str, values: Sequence[SqlValue] = ()) -> list[SqlRow]:
        with self._lock, legible_errors():
            self._check()
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[SqliteTransaction]:
        with self._lock, legible_errors():
            self._check()
            if self._connection.in_transaction:
                raise sqlite3.ProgrammingError("this thread is already inside a transaction of this database")
            self._connection.execute("PRAGMA query_only = OFF")
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                if self._connection.execute("PRAGMA user_version").fetchone() != (0,):
                    self._connection.execute("PRAGMA user_version = 0")  # the stamp of a closed file: see stamp.py
                yield SqliteTransaction(self._connection)
                self._commit()
            finally:
                self._end()

    def _check(self) -> None:
        """Raise if no statement may run; for a database whose disk can lose power."""

    def _commit(self) -> None:
        self._connection.execute("COMMIT")

    def _end(self) -> None:
        """Undo whatever was not committed; SQLite may have done so already."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")
        self._connection.execute("PRAGMA query_only = ON")

    def close(self) -> None:
        with self._lock:
            self._connection.close()


@legible_errors()
def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        if sys.platform == "darwin":
            connection.execute("PRAGMA fullfsync = ON")
            connection.execute("PRAGMA checkpoint_fullfsync = ON")
        connection.execute("PRAGMA synchronous = FULL")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":  # without it synchronous=FULL may lose the last commit in a power cut
            raise sqlite3.OperationalError(f"{path}: this filesystem allows no write-ahead log, only {mode!r}")
    except BaseException:
        connection.close()
        raise
    return connection


# --- the disk -------------------------------------------------------------------------------------------------------


class LocalFilesystem:
    """The machine's disk."""

    def open(self, path: Path, mode: Mode) -> LocalFile:
        fd = os.open(path, _OPEN_FLAGS[mode], FILE_MODE)
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            os.close(fd)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return LocalFile(fd, path)

    def exists(self, path: Path) -> bool:
        """Only "no such file" is a no: a disk that cannot answer raises."""
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def listdir(self, path: Path) -> list[DirEntry]:
        entries = []
        with os.scandir(path) as found:
            for entry in found:
                try:
                    is_dir = entry.is_dir(follow_symlinks=False)
                    size_bytes = 0 if is_dir else entry.stat(follow_symlinks=False).st_size
                except FileNotFoundError:  # removed while we looked
                    continue
                entries.append(DirEntry(entry.name, size_bytes, is_dir))
        entries.sort(key=itemgetter(0))  # by name
        return entries

    def makedir(self, path: Path) -> None:
        try:
            os.mkdir(path, DIRECTORY_MODE)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def forget(self, path: Path) -> None:
        if sys.platform == "linux":
            fd = os.open(path, _OPEN_FLAGS[Mode.READ])
            try:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)

    def rmdir(self, path: Path) -> None:
        os.rmdir(path)

    def sync_dir(self, path: Path) -> None:
        _sync_directory(path)

    def lock(self, path: Path) -> LocalLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | _BASE_FLAGS, FILE_MODE)
        try:
            try:
                _lock_exclusive(fd)
            except (BlockingIOError, PermissionError) as error:
                raise Locked(file=path, holder_pid=_holder_pid(fd)) from error
            os.ftruncate(fd, 0)
            write_fully(fd, [b"%d\n" % os.getpid()], 0)
        except BaseException:
            os.close(fd)
            raise
        return LocalLock(fd)

    def database(self, path: Path) -> SqliteDatabase:
        try:
            fd = os.open(path, _OPEN_FLAGS[Mode.CREATE], FILE_MODE)
        except FileExistsError:
            os.close(os.open(path, _OPEN_FLAGS[Mode.WRITE]))  # refuses a symbolic link
        else:
            os.close(fd)
            _sync_directory(path.parent)
        return SqliteDatabase(_connect(path))
