"""A sender's life on a disk that may lose power, and the ledger of what its slot has promised.

Two openings of one slot with tiny segments: frames of many sizes, syncs, acknowledgements, trims, a refused span, a
close in between. `Ledger.check` opens what is left and compares.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from holdfast.disk.filesystem import Filesystem
from holdfast.sender.recovery import NOTHING, survey
from holdfast.sender.rejected import Rejection, read_rejected
from holdfast.sender.ring import Ring
from holdfast.sender.slot import Slot
from holdfast.sender.substrate import RingOptions
from holdfast.testing import CrashFilesystem, ManualClock

SLOT = Path("/sf/app")
OPTIONS = RingOptions(segment_bytes=300, cap_bytes=3000, append_deadline_ms=1000)


class Ledger:
    """What was handed over, and what was promised of it."""

    def __init__(self, durability: str) -> None:
        self.durability = durability
        self.frames: dict[tuple[bytes, int], bytes] = {}
        self.kept: dict[int, tuple[bytes, bytes]] = {}
        """FSN to id and payload of frames that must be there unless acknowledged."""
        self.acked = NOTHING
        self.rejected: list[int] = []
        self._ids = itertools.count(1)

    def new_id(self, size: int) -> bytes:
        return next(self._ids).to_bytes(size, "big")

    def open(self, disk: Filesystem, *, threaded: bool = False) -> Ring:
        slot = Slot.open(
            SLOT,
            filesystem=disk,
            clock=ManualClock(),
            durable=self.durability != "memory",
            new_id=self.new_id,
        )
        return Ring(slot, OPTIONS._replace(durability=self.durability), clock=ManualClock(), threaded=threaded)

    def append(self, ring: Ring, payload: bytes) -> None:
        """Hand over a frame; in the modes where that is the promise, it must be there from now on."""
        pair = (ring.slot_id, ring.published_fsn + 1)
        assert self.frames.setdefault(pair, payload) == payload, "one pair of id and FSN means two contents"
        assert ring.append(payload) == pair[1]
        if self.durability in ("append", "memory"):
            self.kept[pair[1]] = (pair[0], payload)

    def sync(self, ring: Ring) -> None:
        ring.sync()
        for (slot_id, fsn), payload in self.frames.items():
            if slot_id == ring.slot_id:
                self.kept[fsn] = (slot_id, payload)

    def acknowledge(self, ring: Ring, fsn: int) -> None:
        self.acked = fsn
        ring.acknowledge(fsn)

    def check(self, disk: CrashFilesystem) -> Ring:
        """Open what is left: nothing promised is missing, and nothing else is there than what was handed over."""
        ring = self.open(disk)
        missing = survey(disk, SLOT).missing
        assert not missing or self.durability == "memory"
        assert ring.acked_fsn - len(missing) <= self.acked, "more is taken for acknowledged than a server said"
        with ring.cursor(ring.acked_fsn + 1) as cursor:
            found = {frame.fsn: bytes(frame.payload) for frame in cursor.until(ring.published_fsn)}
        assert sorted(found) == list(range(ring.acked_fsn + 1, ring.published_fsn + 1))
        for fsn, payload in found.items():
            assert self.frames[ring.session_of(fsn)[0], fsn] == payload
        for fsn, (slot_id, payload) in self.kept.items():
            if fsn > self.acked:
                assert found.get(fsn) == payload, f"FSN {fsn} is lost"
                assert ring.session_of(fsn)[0] == slot_id
        spans = read_rejected(disk, SLOT)
        assert [span.rejection.first_fsn for span in spans][: len(self.rejected)] == self.rejected
        return ring


def payload_of(number: int) -> bytes:
    chance = random.Random(number)
    return b"%d " % number + chance.randbytes(chance.choice((3, 40, 200)))


def live(disk: CrashFilesystem, ledger: Ledger) -> Iterator[None]:
    """The workload, in steps; the power may go at any call within them."""
    numbers = itertools.count()
    for session in range(2):
        ring = ledger.open(disk)
        for turn in range(6):
            for _ in range(3):
                ledger.append(ring, payload_of(next(numbers)))
                yield
            if turn % 2 and ledger.durability == "flush":
                ledger.sync(ring)
            if turn == 3:
                first = ring.acked_fsn + 1
                ring.reject(Rejection(first_fsn=first, last_fsn=first, category="SCHEMA_MISMATCH", message="no"))
                ledger.acked = first
                ledger.rejected.append(first)
            elif turn > 1:
                ledger.acknowledge(ring, ring.published_fsn - 4)
            while ring.step():
                yield
        if session:
            ledger.acknowledge(ring, ring.published_fsn)
        ring.close()
        yield


def fresh_disk() -> CrashFilesystem:
    disk = CrashFilesystem()
    disk.makedir(SLOT.parent)
    disk.sync_dir(Path("/"))
    return disk


def run(disk: CrashFilesystem, ledger: Ledger, *, after: Callable[[], None] = lambda: None) -> None:
    for _ in live(disk, ledger):
        after()
