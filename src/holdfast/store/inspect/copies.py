"""Files as copies in memory, and damage as a value.

Promise: files are read with `pread` and never mapped. A live log is shortened when it is rotated: touching a mapped
page behind its new end would end this process, and so would a bad sector, which here is an `OSError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pyarrow as pa

from holdfast.disk.appendlog import LogFile, read_log_file
from holdfast.disk.filesystem import File, Filesystem, Mode
from holdfast.errors import CorruptData, UnsupportedFormat

READ_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class Damage:
    """A place that is not what was written. `torn` is the harmless kind: the end of a log after a crash."""

    file: str
    offset_bytes: int
    reason: str
    dump: str = ""
    torn: bool = False

    @classmethod
    def of(cls, error: CorruptData | UnsupportedFormat) -> Damage:
        """An error about a file as a value."""
        if isinstance(error, CorruptData):
            return cls(str(error.file), error.offset_bytes, error.reason, error.dump)
        return cls(str(error.file), 0, f"has format version {error.found}, this release reads up to {error.supported}")


def read_whole(filesystem: Filesystem, path: Path) -> bytes:
    """All bytes of a file."""
    file = filesystem.open(path, Mode.READ)
    try:
        return _content(file)
    finally:
        file.close()


def read_start(filesystem: Filesystem, path: Path, count: int) -> bytes:
    """The first bytes of a file."""
    file = filesystem.open(path, Mode.READ)
    try:
        return file.pread(count, 0)
    finally:
        file.close()


def read_log_copy(filesystem: Filesystem, path: Path, *, last: bool) -> LogFile:
    """Like `appendlog.read_log_file`, from a copy."""
    return read_log_file(cast("Filesystem", _CopyingDisk(filesystem)), path, last=last)


class _CopyingDisk:
    """Opens files that are copied where others are mapped."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem

    def open(self, path: Path, mode: Mode) -> _CopiedFile:
        return _CopiedFile(self._filesystem.open(path, mode))


class _CopiedFile:
    """A file whose map is a copy."""

    def __init__(self, file: File) -> None:
        self._file = file

    def map(self) -> pa.Buffer:
        return pa.py_buffer(_content(self._file))

    def close(self) -> None:
        self._file.close()


def _content(file: File) -> bytes:
    """Everything up to the end that the file has when it is reached."""
    data = bytearray()
    while True:
        piece = file.pread(READ_BYTES, len(data))
        data += piece
        if len(piece) < READ_BYTES:
            return bytes(data)
