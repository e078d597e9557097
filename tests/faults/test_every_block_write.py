"""The power goes at every block write of a real filesystem under a store: what was accepted is there, once, and stays.

Power loss, as far down as software sees it: what ext4 sent to its disk is recorded, with its flushes, and the disk is
made again as it was after each write, whole or torn. ext4 replays its journal, the store recovers, and the checker
of histories compares it with what was answered by then.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast.disk import local
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import HoldfastError
from holdfast.model.frame import FrameReceipt
from holdfast.testing import ManualClock
from tests.crash.ledger import Ledger
from tests.crash.workload import AFTERWARDS, Frame, open_store, run, send
from tests.faults import figures
from tests.faults.blockdisk import BlockDisk, Recording, StateOfADisk
from tests.faults.needs import need

AREA = "blocks"
EVERY = {"quick": 20, "long": 1}
PROFILES = pytest.mark.parametrize(
    "profile", ["quick", pytest.param("long", marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
GO_ON_EVERY = 8


@dataclass
class Watched:
    """Calls and answers, each with how long the log of the disk was."""

    disk: BlockDisk
    said: list[tuple[int, Frame, FrameReceipt | None]] = field(default_factory=list)

    def note(self, frame: Frame, receipt: FrameReceipt | None) -> None:
        self.said.append((self.disk.position(), frame, receipt))

    def ledger(self, position: int) -> Ledger:
        """What was said before the log of the disk went past this length."""
        ledger = Ledger()
        for at, frame, receipt in self.said:
            if at <= position:
                ledger.note(frame, receipt)
        return ledger


def recorded(directory: Path) -> tuple[Recording, Watched]:
    """The workload on a disk that writes everything down."""
    with BlockDisk(directory) as disk:
        watched = Watched(disk)
        for _ in run(LocalFilesystem(), ManualClock(), watched.note, directory=disk.mount_point / "store"):
            pass
        return disk.recording(), watched


def recover_and_check(directory: Path, ledger: Ledger, *, go_on: bool) -> None:
    """Open what is left and compare; send everything again and more, and compare after another start."""
    clock = ManualClock()
    clock.advance(120)  # as long as the workload took, so that no identity is forgotten
    with open_store(LocalFilesystem(), clock, directory=directory) as store:
        ledger.check(store)
        if not go_on:
            return
        ledger.replay(store, list(dict.fromkeys(ledger.asked)))
        for frame in AFTERWARDS:
            send(store, frame, ledger.note)
    with open_store(LocalFilesystem(), clock, directory=directory) as store:
        ledger.check(store)


def recover_every_state(directory: Path, recording: Recording, watched: Watched, *, every: int) -> int:
    """Each of them mounted, recovered and compared; how many there were."""
    states = answered = 0
    for position, image, how in recording.states(every=every, chance=random.Random(20261116)):
        ledger = watched.ledger(position)
        answered = len(ledger.answers)
        with StateOfADisk(directory, image) as mounted:
            try:
                recover_and_check(mounted / "store", ledger, go_on=states % GO_ON_EVERY == 0)
            except (AssertionError, HoldfastError) as error:
                error.add_note(how)
                raise
        states += 1
    assert answered > len({frame for _, frame, _ in watched.said}) // 2, "the recording ends before the workload"
    return states


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G4")
@PROFILES
def test_power_cut_at_every_block_write_loses_nothing_accepted(tmp_path: Path, profile: str) -> None:
    need(AREA, "Linux", "root", "loop devices", "FUSE", "mkfs.ext4")
    recording, watched = recorded(tmp_path)
    states = recover_every_state(tmp_path, recording, watched, every=EVERY[profile])
    figures.note(
        AREA,
        "power cut at every block write of ext4 under a store: nothing accepted is lost, nothing is doubled",
        profile=profile,
        block_writes=sum(bool(record.data) for record in recording.records),
        flushes=sum(not record.data for record in recording.records),
        states=states,
    )


def test_states_of_a_disk_show_a_store_that_does_not_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording itself is tested: a store whose syncs do nothing has lost something in one of the states."""
    need(AREA, "Linux", "root", "loop devices", "FUSE", "mkfs.ext4")
    with monkeypatch.context() as patch:
        patch.setattr(local, "_sync_data", lambda _fd: None)
        recording, watched = recorded(tmp_path)
    with pytest.raises(AssertionError, match="lost"):
        recover_every_state(tmp_path, recording, watched, every=3)
