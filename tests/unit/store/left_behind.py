"""A small store as a killed process leaves it, as real files: several segments, several log files, an open tail.

Made on the crash disk and copied out, so that no lock, thread or connection of this process is left behind.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pyarrow as pa

from holdfast import Store
from holdfast.model.frame import Entry, Guid, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.testing import CrashFilesystem, ManualClock

SLOT = b"slot of producer"
CONFIG: dict[str, object] = {
    "segment.target_size": "16KiB",
    "segment.max_open_duration": "1h",
    "wal.rotation_size": "64KiB",
    "wal.max_size": "1MiB",
    "frame.max_size": "32KiB",
    "memory_limit": "1MiB",
}
ROOT = Path("/data/store")
FRAMES = 25


def make_store(directory: Path, *, closed: bool = False) -> Path:
    """Copy the store to `directory`. `trades` has segments; `orders` is open since the first of several log files."""
    for place, data in _files(closed).items():
        path = directory / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return directory


@cache
def _files(closed: bool) -> dict[str, bytes]:
    disk = CrashFilesystem()
    store = Store.open(ROOT, CONFIG, filesystem=disk, clock=ManualClock(), inline=True)
    for fsn in range(1, FRAMES + 1):
        rows = pa.record_batch({"id": range(fsn * 100, fsn * 100 + 60), "text": [f"trade {fsn} " * 8] * 60})
        few = pa.record_batch({"id": [fsn, -fsn]})
        store.commit_frame([Entry("trades", rows), Entry("orders", few)], identity=SlotFrame(SLOT, Fsn(fsn)))
    store.commit("orders", pa.record_batch({"id": [0]}), identity=Guid(b"guid of one frame"[:16]))
    if closed:
        store.close()
    left = disk.after_kill()
    found = {str(path.relative_to(ROOT)): left.read_bytes(path) for path in left.paths()}
    return found | {"lock": b""}  # the crash disk does not empty it; no process has the copy open


def flip(path: Path, offset_bytes: int, *, bit: int = 0) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset_bytes] ^= 1 << bit
    path.write_bytes(data)


def logs(directory: Path) -> list[Path]:
    """The files of the write-ahead log, oldest first."""
    return sorted((directory / "wal").glob("*.log"))


def segments(directory: Path) -> list[Path]:
    """The segments of `trades`, oldest first."""
    found = (directory / "channels" / "trades").glob("*.arrow")
    return sorted(found, key=lambda path: int(path.stem.removeprefix("seg-")))


def picture(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Everything about every file that a writer would change."""
    paths = [directory, *sorted(directory.rglob("*"))]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}
