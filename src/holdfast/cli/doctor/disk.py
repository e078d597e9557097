"""The data directory: room, kind of file system, whether a sync really syncs, and how fast.

Whether a disk keeps what it calls synced can only be seen after a power cut. What can be seen here: a file system that
is memory, and a sync that is faster than any disk. Both are told.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

from holdfast.cli.display import size
from holdfast.cli.doctor.finding import Finding
from holdfast.clock import NS_PER_S, Clock
from holdfast.disk.filesystem import Filesystem, Mode, is_full

SYNCS = 200
SYNC_BYTES = 4096
STREAM_BYTES = 64 << 20
STREAM_PIECE = 4 << 20
TOO_FAST_US = 15
"""No device keeps bytes over a power cut this quickly; memory and caches that lie do."""
SLOW_MS = 20
FREE_BYTES_MIN = 1 << 30
_VOLATILE = {"tmpfs", "ramfs"}
_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p"}


def check_disk(directory: Path, *, filesystem: Filesystem, clock: Clock) -> Iterator[Finding]:
    """All that concerns the data directory; makes and removes one file in it."""
    home = next(path for path in (directory, *directory.parents) if path.exists())
    if not os.access(home, os.W_OK | os.X_OK):
        yield Finding("data directory", "bad", f"{home} cannot be written", "choose another with --data, or chown it")
        return
    yield Finding("data directory", "good", str(directory) if home == directory else f"{directory} can be made")
    yield _room(home)
    yield _kind(home)
    path = home / f".holdfast-doctor-{os.getpid()}"
    try:
        yield from _speed(path, filesystem, clock)
    except OSError as error:
        if not is_full(error):
            raise
        yield Finding("writing", "bad", f"no room for a file of {size(STREAM_BYTES)}", "free some, or grow the volume")
    finally:
        if filesystem.exists(path):
            filesystem.unlink(path)


def _room(home: Path) -> Finding:
    usage = shutil.disk_usage(home)
    found = f"{size(usage.free)} of {size(usage.total)} are free"
    if usage.free < FREE_BYTES_MIN:
        return Finding("room", "bad", found, "free some: producers are refused when it is full")
    return Finding("room", "good", found)


def _kind(home: Path) -> Finding:
    kind = filesystem_kind(home)
    if kind in _VOLATILE:
        return Finding("file system", "bad", kind, "this is memory: nothing in it survives a restart of the machine")
    if kind in _NETWORK:
        return Finding("file system", "note", kind, "locks and syncs depend on the server; a local disk is safer")
    return Finding("file system", "good", kind or "unknown")


def filesystem_kind(path: Path, mounts: Path = Path("/proc/mounts")) -> str:
    """The kind of the file system that holds the path; empty where the system does not say."""
    if not mounts.exists():
        return ""
    target = str(path.resolve())
    best = ("", "")
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        _, point, kind, *_ = [*line.split(), "", "", ""]
        point = point.replace("\\040", " ")
        if (target == point or target.startswith(point.rstrip("/") + "/")) and len(point) >= len(best[0]):
            best = (point, kind)
    return best[1]


def _speed(path: Path, filesystem: Filesystem, clock: Clock) -> Iterator[Finding]:
    file = filesystem.open(path, Mode.CREATE)
    try:
        file.allocate(max(STREAM_BYTES, SYNCS * SYNC_BYTES))
        file.sync()
        block, times_us = os.urandom(SYNC_BYTES), []
        for turn in range(SYNCS):
            started_ns = clock.monotonic_ns()
            file.pwritev([block], turn * SYNC_BYTES)
            file.sync()
            times_us.append((clock.monotonic_ns() - started_ns) / 1000)
        yield judge_syncs(times_us)
        piece, started_ns = os.urandom(STREAM_PIECE), clock.monotonic_ns()
        for offset in range(0, STREAM_BYTES, STREAM_PIECE):
            file.pwritev([piece], offset)
        file.sync()
        rate = STREAM_BYTES / max(1, clock.monotonic_ns() - started_ns) * NS_PER_S
        yield Finding("writing", "good", f"{size(round(rate))}/s with one sync at the end")
    finally:
        file.close()


def judge_syncs(times_us: list[float]) -> Finding:
    """What the times of small synced writes say."""
    middle, worst = median(times_us), quantiles(times_us, n=100)[98]
    found = f"{middle / 1000:,.2f} ms in the middle, {worst / 1000:,.2f} ms at worst (99 of 100)"
    if middle < TOO_FAST_US:
        advice = "no disk is that fast: a power cut will take what was accepted; use a disk with a safe write cache"
        return Finding("sync", "bad", found, advice)
    if middle > SLOW_MS * 1000:
        return Finding("sync", "note", found, "producers wait that long for each answer; an SSD takes under 1 ms")
    return Finding("sync", "good", found)
