"""Small files that are read and replaced as a whole: marks, identities, reasons.

Promise: whoever reads sees the old content or the new one, never a mixture and never nothing, also after a kill between
two calls; and after a power cut too, once `replace_whole` has returned and was asked to sync. One writer at a time: the
caller holds the lock of the directory. A leftover `<name>.tmp` means nothing, and the next replacement removes it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from holdfast.disk.filesystem import Filesystem, Mode

SUFFIX = ".tmp"


def read_whole(filesystem: Filesystem, path: Path) -> bytes | None:
    """All bytes; None without the file."""
    try:
        file = filesystem.open(path, Mode.READ)
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size_bytes(), 0)
    finally:
        file.close()


def replace_whole(filesystem: Filesystem, path: Path, data: bytes, *, synced: bool = True) -> None:
    """Make the file, or give it this content."""
    part = path.with_name(f"{path.name}{SUFFIX}")
    with suppress(FileNotFoundError):
        filesystem.unlink(part)
    file = filesystem.open(part, Mode.CREATE)
    try:
        file.pwritev([data], 0)
        if synced:
            file.sync()
    finally:
        file.close()
    filesystem.rename(part, path)
    if synced:
        filesystem.sync_dir(path.parent)
