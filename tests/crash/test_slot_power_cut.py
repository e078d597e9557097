"""A sender's slot and the power: cut at every disk call, with whatever the disk may leave; and process death likewise.

Power loss with `sf_durability` flush and append: nothing promised is lost, nothing else appears, and no pair of slot id
and FSN ever means two contents. With `memory` only a kill is survived; after a power cut the slot is then either
right or refused.
"""

from __future__ import annotations

import pytest

from holdfast.errors import CorruptData
from holdfast.testing import CrashFilesystem, PowerCut
from tests.crash.slot_workload import SLOT, Ledger, fresh_disk, payload_of, run

FIRST = fresh_disk().calls + 1


def calls_of_workload(durability: str) -> int:
    disk = fresh_disk()
    run(disk, Ledger(durability))
    return disk.calls


def cut_at(call: int, durability: str) -> tuple[CrashFilesystem, Ledger]:
    disk, ledger = fresh_disk(), Ledger(durability)
    disk.cut_at(call)
    with pytest.raises(PowerCut):
        run(disk, ledger)
    return disk, ledger


def go_on(disk: CrashFilesystem, ledger: Ledger) -> None:
    """Check, hand over more, lose the process, check again."""
    ring = ledger.check(disk)
    for number in range(1000, 1004):
        ledger.append(ring, payload_of(number))
    if ledger.durability == "flush":
        ledger.sync(ring)
    ledger.check(disk.after_kill()).close()


def test_workload_rotates_trims_and_leaves_an_empty_slot() -> None:
    disk, ledger = fresh_disk(), Ledger("flush")
    run(disk, ledger)
    done = [(operation, path.suffix) for _, operation, path in disk.log]
    assert done.count(("allocate", ".sfa")) > 10
    assert done.count(("unlink", ".sfa")) > 10
    left = {path.name for path in disk.paths() if path.parent == SLOT}
    assert left == {".lock", ".lock.pid", ".slot-id"}


@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("durability", ["flush", "append"])
@pytest.mark.parametrize("seeds", [(0, 1), (2, 3, 4)], ids=["extremes", "mixtures"])
def test_power_cut_at_every_disk_call_loses_nothing_synced(durability: str, seeds: tuple[int, ...]) -> None:
    """Power loss. Every call; the disk keeps nothing extra, everything, or a mixture."""
    for call in range(FIRST, calls_of_workload(durability) + 1):
        disk, ledger = cut_at(call, durability)
        seed = seeds[call % len(seeds)] + (call if len(seeds) > 2 else 0)
        go_on(disk.after_power_cut(seed), ledger)


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("durability", ["flush", "append"])
def test_second_power_cut_during_recovery_loses_nothing_synced(durability: str) -> None:
    """Power loss, twice: the slot is opened after the first, and the power goes again at each call of that."""
    for call in range(7, calls_of_workload(durability) + 1, 23):
        disk, ledger = cut_at(call, durability)
        again = 0
        while True:
            again += 1
            left = disk.after_power_cut(call)
            left.cut_at(again)
            try:
                ledger.open(left)
            except PowerCut:
                ledger.check(left.after_power_cut((0, 1, again)[again % 3]))
            else:
                break
        assert again > 3


@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("durability", ["memory", "flush", "append"])
def test_process_death_at_every_disk_call_loses_no_frame_that_was_handed_over(durability: str) -> None:
    """Process death: what was written is still visible, so with every mode all frames are there."""
    for call in range(FIRST, calls_of_workload(durability) + 1, 2):
        disk, ledger = cut_at(call, durability)
        go_on(disk.after_kill(), ledger)


@pytest.mark.guarantee("G9")
def test_power_cut_with_memory_durability_leaves_a_right_slot_or_a_refused_one() -> None:
    """Power loss where none is survived: frames may be gone, but none is wrong and no identity is used twice."""
    refused = 0
    calls = calls_of_workload("memory")
    for call in range(FIRST, calls + 1):
        disk, ledger = cut_at(call, "memory")
        ledger.kept.clear()
        ledger.rejected.clear()
        left = disk.after_power_cut(call)
        try:
            ring = ledger.check(left)
        except CorruptData:
            refused += 1
        else:
            ledger.append(ring, payload_of(call))
    assert refused < calls // 4


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.guarantee("G2")
@pytest.mark.parametrize("durability", ["flush", "append"])
def test_power_cut_at_every_disk_call_loses_nothing_synced_in_many_states(durability: str) -> None:
    """Power loss. Every call, each with many ways of what is left."""
    for call in range(FIRST, calls_of_workload(durability) + 1):
        for seed in range(12):
            disk, ledger = cut_at(call, durability)
            go_on(disk.after_power_cut(seed), ledger)
