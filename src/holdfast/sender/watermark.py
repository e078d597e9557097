"""`.ack-watermark`: how far the server has acknowledged, so that a restart does not send those frames again.

The form with two records (`dualrecord`, 8192 bytes, magic "AKW1", one value: the FSN) is written. The older form is
read and replaced:

    u32 "AKW1" | u32 0 | i64 fsn          16 bytes, no checksum

Promise: a file that is damaged, torn or of any other size is as good as none, which costs a replay and never a
frame. Recovery decides whether a value makes sense; this module only keeps it. Not thread-safe: the ring takes
turns.
"""

from __future__ import annotations

import struct
from pathlib import Path

from holdfast.disk.filesystem import File, Filesystem, Mode
from holdfast.sender import dualrecord
from holdfast.sender.dualrecord import DualRecord

NAME = ".ack-watermark"
MAGIC = b"AKW1"
OLD_BYTES = 16

_OLD = struct.Struct("<4sIq")


def read_watermark(filesystem: Filesystem, directory: Path) -> DualRecord | None:
    """What the file says, in either form; None when there is none or it says nothing."""
    if not filesystem.exists(directory / NAME):
        return None
    file = filesystem.open(directory / NAME, Mode.READ)
    try:
        size = file.size_bytes()
        if size == dualrecord.FILE_BYTES:
            return dualrecord.read(file, MAGIC, 1)
        if size == OLD_BYTES:
            magic, zero, fsn = _OLD.unpack(file.pread(OLD_BYTES, 0))
            return DualRecord(0, (fsn,)) if magic == MAGIC and zero == 0 and fsn >= 0 else None
        return None
    finally:
        file.close()


class Watermark:
    """The open file of the slot that this process owns."""

    def __init__(self, file: File, generation: int) -> None:
        self._file = file
        self._generation = generation

    @classmethod
    def open(cls, filesystem: Filesystem, directory: Path) -> Watermark:
        """The file in its present form, made or replaced if need be; an older value is kept. The caller syncs names."""
        path = directory / NAME
        known = read_watermark(filesystem, directory)
        if filesystem.exists(path):
            file = filesystem.open(path, Mode.WRITE)
            if file.size_bytes() != dualrecord.FILE_BYTES:
                file.truncate(0)
        else:
            file = filesystem.open(path, Mode.CREATE)
        file.allocate(dualrecord.FILE_BYTES)
        watermark = cls(file, known.generation if known else 0)
        if known:
            watermark.write(known.values[0])
        return watermark

    def write(self, fsn: int) -> None:
        """Remember `fsn`. Survives a kill; a power cut may bring the one before back until `sync`."""
        self._generation += 1
        dualrecord.write(self._file, MAGIC, DualRecord(self._generation, (fsn,)))

    def sync(self) -> None:
        """Make what was written survive a power cut."""
        self._file.sync_data()

    def close(self) -> None:
        """Idempotent."""
        self._file.close()
