"""A real producer process is killed with SIGKILL at random moments, again and again on one slot.

These tests prove process death on a real file system, not power loss: every frame whose hand-over returned is in the
slot, under its number and id, unless it was acknowledged; and no pair of id and number ever means two frames.
"""

from __future__ import annotations

import random
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.clock import SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.sender.ring import Ring
from holdfast.sender.slot import Slot
from tests.crash.slot_process import OPTIONS
from tests.e2e.nursery import Nursery
from tests.faults import killing

DURABILITIES = ("memory", "periodic", "flush", "append")
pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="SIGKILL as on Linux"), killing.QUICK]


@dataclass
class History:
    """What the processes reported, over all kills of one slot."""

    directory: Path
    handed_over: dict[int, tuple[str, str]] = field(default_factory=dict)
    meanings: dict[tuple[str, int], str] = field(default_factory=dict)
    acked: int = -1
    recovered: int = 0

    def note(self, line: str) -> None:
        first, _, rest = line.partition(" ")
        if first == "ack":
            self.acked = max(self.acked, int(rest))
            return
        slot_id, _, payload = rest.partition(" ")
        fsn = int(first)
        self.handed_over[fsn] = (slot_id, payload)
        assert self.meanings.setdefault((slot_id, fsn), payload) == payload, "one id and FSN mean two frames"

    def check(self) -> None:
        """Open the slot in this process and compare."""
        slot = Slot.open(self.directory, filesystem=LocalFilesystem(), clock=SystemClock(), writing=False)
        assert slot.recovery.damaged == ()
        ring = Ring(slot, OPTIONS, clock=SystemClock())
        assert ring.acked_fsn <= self.acked
        with ring.cursor(ring.acked_fsn + 1) as cursor:
            for frame in cursor.until(ring.published_fsn):
                slot_id = ring.session_of(frame.fsn)[0].hex()
                payload = str(frame.payload, "utf-8")
                assert self.meanings.setdefault((slot_id, frame.fsn), payload) == payload
                if frame.fsn in self.handed_over:
                    assert self.handed_over[frame.fsn] == (slot_id, payload)
        assert ring.published_fsn >= max(self.handed_over), "a frame that was handed over is gone"
        self.recovered += ring.published_fsn - ring.acked_fsn
        ring.close()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as started:
        yield started


def run_until(nursery: Nursery, history: History, durability: str, run: int, lines: int) -> None:
    """Run the producer until it reported so often, then kill it."""
    child = nursery.start("tests.crash.slot_process:main", str(history.directory), durability, str(run))
    with child.output:
        for _ in range(lines):
            history.note(child.output.readline().rstrip("\n"))
        assert child.kill() == -signal.SIGKILL
        for line in child.output:
            if line.endswith("\n"):
                history.note(line.rstrip("\n"))


@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G3")
@pytest.mark.parametrize(
    ("durability", "kills"),
    [
        ("memory", 12),
        ("flush", 4),
        ("append", 4),
        *[pytest.param(mode, 300, marks=[pytest.mark.long, pytest.mark.timeout(1200)]) for mode in DURABILITIES],
    ],
)
def test_kill_at_a_random_moment_loses_no_frame_that_was_handed_over(
    nursery: Nursery, tmp_path: Path, durability: str, kills: int
) -> None:
    """Process death. The moment is after a random number of reports, while all threads are busy."""
    history, chance = History(tmp_path / "app"), random.Random(kills)
    for run in range(kills):
        run_until(nursery, history, durability, run, chance.randint(1, 600 if durability == "memory" else 60))
        history.check()
    assert history.recovered > 0
