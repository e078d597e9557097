"""A disk that writes down every block that reaches it, and every flush, so that each moment of it can be made again.

The disk is a file of a filesystem of its own, served through `/dev/fuse` by the process below; a loop device on that
file carries a real filesystem. What the kernel writes comes here in its order, with nothing held back in between.

    store ── ext4 ── loop device ── FUSE ──► this process: the image in memory, the log in a file

After a power cut a disk has everything up to its last flush, and any part of what came since (`Recording.state`).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import random
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType

SIZE_BYTES = 24 << 20
SECTOR_BYTES = 4096
"""What a disk writes as a whole, as disks of today do; the metadata of ext4 rests on it."""
ROOT = Path(__file__).parents[2]
FILE_NAME = "disk"
_WRITE, _FLUSH = 1, 2
_RECORD = struct.Struct("<BQI")
_MAKE = ("mkfs.ext4", "-qF", "-b", str(SECTOR_BYTES), "-E", "lazy_itable_init=0,lazy_journal_init=0")


# -- the process that is the disk --------------------------------------------------------------------------------------

_IN_HEADER, _OUT_HEADER = struct.Struct("<IIQQIIIHH"), struct.Struct("<IiQ")
_INIT_OUT = struct.Struct("<IIIIHHIIHHII24x")
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
_READ_OR_WRITE = struct.Struct("<QQIIQII")
_BIG_WRITES, _WRITE_BYTES_MAX = 1 << 5, 128 << 10
_PROTOCOL = (7, 31)
_FILE_NODE = 2  # the directory is node 1
_MS_NOSUID, _MS_NODEV = 2, 4


class _Call(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    OPEN = 14
    READ = 15
    WRITE = 16
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    RELEASEDIR = 29
    INTERRUPT = 36
    BATCH_FORGET = 42


_WITHOUT_ANSWER = {_Call.FORGET, _Call.INTERRUPT, _Call.BATCH_FORGET}


class _Served:
    """One directory with one file, in the words of the kernel's FUSE protocol."""

    def __init__(self, image: Path, log: Path) -> None:
        self._image = bytearray(image.read_bytes())
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def serve(self, device: int) -> None:
        """Answer until the filesystem is unmounted."""
        while True:
            try:
                request = os.read(device, _WRITE_BYTES_MAX + mmap.PAGESIZE)
            except OSError as error:
                if error.errno == errno.ENODEV:  # unmounted
                    return
                if error.errno in {errno.ENOENT, errno.EINTR}:  # the request was taken back
                    continue
                raise
            _, opcode, unique, node, *_ = _IN_HEADER.unpack_from(request)
            if opcode in _WITHOUT_ANSWER:
                continue
            answer = self._answer(opcode, node, memoryview(request)[_IN_HEADER.size :])
            body, code = (b"", answer) if isinstance(answer, int) else (answer, 0)
            os.write(device, _OUT_HEADER.pack(_OUT_HEADER.size + len(body), -code, unique) + body)

    def _answer(self, opcode: int, node: int, body: memoryview) -> bytes | int:
        """The answer, or an errno."""
        answer: bytes | int = errno.ENOSYS
        match opcode:
            case _Call.INIT:
                answer = _INIT_OUT.pack(*_PROTOCOL, 0, _BIG_WRITES, 12, 9, _WRITE_BYTES_MAX, 1, 0, 0, 0, 0)
            case _Call.LOOKUP if bytes(body).rstrip(b"\0") != FILE_NAME.encode():
                answer = errno.ENOENT
            case _Call.LOOKUP:
                answer = struct.pack("<QQQQII", _FILE_NODE, 0, 3600, 3600, 0, 0) + self._attributes(_FILE_NODE)
            case _Call.GETATTR | _Call.SETATTR:
                answer = struct.pack("<QII", 3600, 0, 0) + self._attributes(node)
            case _Call.OPEN | _Call.OPENDIR:
                answer = struct.pack("<QII", 0, 0, 0)
            case _Call.READ:
                _, offset, size, *_ = _READ_OR_WRITE.unpack_from(body)
                answer = bytes(self._image[offset : offset + size])
            case _Call.WRITE:
                answer = self._write(body)
            case _Call.FSYNC:
                os.write(self._log, _RECORD.pack(_FLUSH, 0, 0))
                answer = b""
            case _Call.RELEASE | _Call.FLUSH | _Call.RELEASEDIR:
                answer = b""
        return answer

    def _write(self, body: memoryview) -> bytes:
        _, offset, size, *_ = _READ_OR_WRITE.unpack_from(body)
        data = body[_READ_OR_WRITE.size : _READ_OR_WRITE.size + size]
        self._image[offset : offset + size] = data
        os.write(self._log, _RECORD.pack(_WRITE, offset, size) + data)
        return struct.pack("<II", size, 0)

    def _attributes(self, node: int) -> bytes:
        size = len(self._image) if node == _FILE_NODE else 0
        mode = stat.S_IFREG | 0o600 if node == _FILE_NODE else stat.S_IFDIR | 0o700
        return _ATTRIBUTES.pack(node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def main(directory: str, image: str, log: str) -> None:
    """Mount, say so, serve."""
    served = _Served(Path(image), Path(log))
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode={stat.S_IFDIR:o},user_id=0,group_id=0"
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"blockdisk", directory.encode(), b"fuse", _MS_NOSUID | _MS_NODEV, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), "cannot mount", directory)
    sys.stdout.write("mounted\n")
    sys.stdout.flush()
    served.serve(device)


# -- the test's side ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """A block write, or a flush if it has no data."""

    offset: int
    data: bytes
    end: int
    """Where it ends in the log: what was said when the log was no longer is said before a cut here."""


@dataclass(frozen=True)
class Recording:
    """Everything that reached a disk."""

    image: bytes
    """As it was before."""
    records: tuple[Record, ...]

    def states(self, *, every: int, chance: random.Random) -> Iterator[tuple[int, bytes, str]]:
        """Where the log was, what is on the disk, and in which way; two for each block write that is looked at.

        Whole: everything up to this write. Torn: everything up to the last flush, and any part of what came since, of
        the last write any sectors.
        """
        flushed, now, number = bytearray(self.image), bytearray(self.image), 0
        since: list[Record] = []
        for record in self.records:
            if not record.data:
                flushed[:] = now
                since = []
                continue
            now[record.offset : record.offset + len(record.data)] = record.data
            since.append(record)
            number += 1
            if number % every == 0:
                yield record.end, bytes(now), f"write {number}, whole"
                yield record.end, self._torn(flushed, since, chance), f"write {number}, torn"

    def _torn(self, flushed: bytearray, since: list[Record], chance: random.Random) -> bytes:
        image = bytearray(flushed)
        for record in since[:-1]:
            if chance.random() < 0.5:
                image[record.offset : record.offset + len(record.data)] = record.data
        last = since[-1]
        for at in range(0, len(last.data), SECTOR_BYTES):
            if chance.random() < 0.5:
                sector = last.data[at : at + SECTOR_BYTES]
                image[last.offset + at : last.offset + at + len(sector)] = sector
        return bytes(image)


class BlockDisk:
    """A recorded disk with ext4, mounted until the block ends."""

    def __init__(self, directory: Path) -> None:
        self.mount_point = directory / "recorded"
        self._fuse = directory / "fuse"
        self._image = directory / "before.img"
        self._log = directory / "blocks.log"
        self._stack = ExitStack()
        for made in (self.mount_point, self._fuse):
            made.mkdir()
        make_filesystem(self._image)

    def position(self) -> int:
        """How long the log is by now."""
        return self._log.stat().st_size

    def recording(self) -> Recording:
        """Everything up to now."""
        log, records, at = self._log.read_bytes(), [], 0
        while at < len(log):
            _, offset, size = _RECORD.unpack_from(log, at)
            at += _RECORD.size
            records.append(Record(offset, log[at : at + size], at + size))
            at += size
        return Recording(self._image.read_bytes(), tuple(records))

    def __enter__(self) -> BlockDisk:
        command = [sys.executable, "-m", "tests.faults.blockdisk", self._fuse, self._image, self._log]
        served = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._stack.callback(served.wait)
        assert served.stdout is not None
        self._stack.enter_context(served.stdout)
        assert served.stdout.readline() == "mounted\n"
        self._stack.callback(_run, "umount", "--lazy", self._fuse)
        _run("mount", "-o", "loop", self._fuse / FILE_NAME, self.mount_point)
        self._stack.callback(_run, "umount", "--lazy", self.mount_point)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._stack.close()


class StateOfADisk:
    """A disk as it was found after a cut, mounted until the block ends; the journal is replayed."""

    def __init__(self, directory: Path, image: bytes) -> None:
        self.mount_point = directory / "state"
        self._image = directory / "state.img"
        self.mount_point.mkdir(exist_ok=True)
        self._image.unlink(missing_ok=True)  # a new one: nothing of the state before is in a cache
        self._image.write_bytes(image)

    def __enter__(self) -> Path:
        _run("mount", "-o", "loop,barrier=0", self._image, self.mount_point)  # nobody cuts this one
        return self.mount_point

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        _run("umount", "--lazy", self.mount_point)  # what a failed test left open must not keep the mount point


def make_filesystem(image: Path) -> None:
    """An empty ext4, all of it written, so that nothing is written later on its own account."""
    with image.open("wb") as file:
        file.truncate(SIZE_BYTES)
    _run(*_MAKE, image)


def _run(*command: object) -> None:
    subprocess.run(list(map(str, command)), check=True, capture_output=True)


__all__ = ["BlockDisk", "Record", "Recording", "StateOfADisk"]

if __name__ == "__main__":
    main(*sys.argv[1:])
