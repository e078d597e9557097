"""Slots and rings for tests, on a disk in memory unless another one is given."""

from __future__ import annotations

import itertools
from pathlib import Path

from holdfast.clock import Clock
from holdfast.disk.filesystem import Filesystem
from holdfast.sender.memory import Memory
from holdfast.sender.ring import Ring
from holdfast.sender.slot import Slot
from holdfast.sender.substrate import LinkState, RingOptions, connected
from holdfast.testing import CrashFilesystem, ManualClock

SLOT = Path("/sf/app")
SMALL = RingOptions(segment_bytes=256, cap_bytes=1024, append_deadline_ms=1000)
_ids = itertools.count(1)


class Impatient(ManualClock):
    """A clock on which every look costs half a second, so that deadlines pass by themselves."""

    def monotonic_ns(self) -> int:
        self.advance(0.5)
        return super().monotonic_ns()


def disk_with(files: dict[str, bytes]) -> CrashFilesystem:
    """A disk whose slot holds these files."""
    disk = CrashFilesystem()
    disk.makedir(SLOT.parent)
    disk.sync_dir(SLOT.parent.parent)
    for name, data in files.items():
        disk.write_bytes(SLOT / name, data)
    return disk


def slot_files(disk: CrashFilesystem) -> dict[str, bytes]:
    """Name to content of every file of the slot, without lock and identity."""
    names = [path for path in disk.paths() if path.parent == SLOT]
    return {path.name: disk.read_bytes(path) for path in names if path.name not in (".lock", ".lock.pid", ".slot-id")}


def open_slot(disk: Filesystem, *, durable: bool = False, writing: bool = True, directory: Path = SLOT) -> Slot:
    """The slot, with ids that count."""
    return Slot.open(
        directory,
        filesystem=disk,
        clock=ManualClock(),
        durable=durable,
        writing=writing,
        new_id=lambda size: next(_ids).to_bytes(size, "big"),
    )


def open_ring(
    disk: Filesystem,
    options: RingOptions = SMALL,
    *,
    clock: Clock | None = None,
    link_state: LinkState = connected,
    threaded: bool = False,
    directory: Path = SLOT,
) -> Ring:
    """A ring over the slot, without a thread of its own unless asked for."""
    slot = open_slot(disk, durable=options.durability != "memory", directory=directory)
    return Ring(slot, options, clock=clock or ManualClock(), link_state=link_state, threaded=threaded)


def memory_ring(options: RingOptions = SMALL, *, clock: Clock | None = None) -> Ring:
    """A ring in memory."""
    return Ring(Memory(), options, clock=clock or ManualClock())


def payloads(ring: Ring, first_fsn: int | None = None) -> list[tuple[int, bytes]]:
    """FSN and payload of every frame from `first_fsn` (default: the first unacknowledged one) on."""
    start = ring.acked_fsn + 1 if first_fsn is None else first_fsn
    with ring.cursor(start) as cursor:
        return [(frame.fsn, bytes(frame.payload)) for frame in cursor.until(ring.published_fsn)]
