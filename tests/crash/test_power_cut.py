"""Power loss at every disk call of a workload, on the crash disk: what was accepted is there, once, and stays.

These tests prove power loss: the crash disk drops, tears and reorders whatever was not synced. One cut is one call of
the disk at which the power goes, before it takes effect or in the middle of it; one state is one of the ways in which
the disk may look afterwards (`CrashFilesystem.after_power_cut`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from tests.crash.ledger import Ledger
from tests.crash.workload import AFTERWARDS, STORE, open_store, run, send

MANY_SEEDS = range(12)


@cache
def calls_of_workload() -> int:
    """How many calls of the disk the undisturbed workload makes."""
    disk = CrashFilesystem()
    for _ in run(disk, ManualClock(), Ledger().note):
        pass
    return disk.calls


def cut_at(call: int) -> tuple[CrashFilesystem, ManualClock, Ledger]:
    """The dead disk and the history of a workload whose power went at that call."""
    disk, clock, ledger = CrashFilesystem(), ManualClock(), Ledger()
    disk.cut_at(call)
    with pytest.raises(PowerCut):
        for _ in run(disk, clock, ledger.note):
            pass
    ledger.note_segments(disk)
    return disk, clock, ledger


def recover_and_check(disk: CrashFilesystem, clock: ManualClock, ledger: Ledger) -> None:
    """Open what is left, and compare it with the history."""
    store = open_store(disk, clock)
    ledger.check(store)
    store.close()
    ledger.note_segments(disk)


def recover_and_go_on(disk: CrashFilesystem, clock: ManualClock, ledger: Ledger) -> None:
    """Open, compare, send everything again, send more, close, open and compare again."""
    store = open_store(disk, clock)
    ledger.check(store)
    ledger.replay(store, list(dict.fromkeys(ledger.asked)))
    for frame in AFTERWARDS:
        send(store, frame, ledger.note)
    ledger.check(store)
    store.close()
    ledger.note_segments(disk)
    disk.log.clear()
    recover_and_check(disk, clock, ledger)


def states(disk: CrashFilesystem, ledger: Ledger, seeds: range) -> Iterator[tuple[CrashFilesystem, Ledger]]:
    """What may be left, each with a history of its own."""
    for seed in seeds:
        yield disk.after_power_cut(seed), ledger.copy()


def test_workload_rotates_seals_trims_and_recovers() -> None:
    disk, ledger = CrashFilesystem(), Ledger()
    for store in run(disk, ManualClock(), ledger.note):
        ledger.check(store)
    done = [(operation, path.parent.name) for _, operation, path in disk.log]
    assert done.count(("allocate", "wal")) > 3, "three sessions have a log file each: nothing was rotated"
    assert ("unlink", "wal") in done
    assert {("rename", channel) for channel in ("alpha", "beta", "gamma", "delta")} <= set(done)
    filled = {(operation, path.parent.name) for _, operation, path in disk.log if path.suffix == ".growing"}
    assert {("pwritev", "delta"), ("sync_data", "delta"), ("sync", "delta"), ("pwritev", "alpha")} <= filled


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("part", range(4))
def test_power_cut_at_every_disk_call_loses_nothing_accepted(part: int) -> None:
    """Power loss. Every call; the disk keeps nothing extra (seed 0) or a mixture; replay at every fourth."""
    for call in range(1 + part, calls_of_workload() + 1, 4):
        disk, clock, ledger = cut_at(call)
        left = disk.after_power_cut(0 if (call // 4) % 2 else call)
        (recover_and_go_on if part == 0 else recover_and_check)(left, clock, ledger)


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G4")
def test_second_power_cut_during_recovery_loses_nothing_accepted() -> None:
    """Power loss, twice: after the first cut the store is opened, and the power goes again at each call of that."""
    for call in range(5, calls_of_workload() + 1, 97):
        disk, clock, ledger = cut_at(call)
        for again in range(1, calls_to_recover(disk, clock, seed=call) + 1):
            left = disk.after_power_cut(call)
            left.cut_at(again)
            with pytest.raises(PowerCut):
                open_store(left, clock)
            recover_and_check(left.after_power_cut(again), clock, ledger.copy())


def calls_to_recover(disk: CrashFilesystem, clock: ManualClock, *, seed: int) -> int:
    """How many calls opening what is left makes."""
    left = disk.after_power_cut(seed)
    open_store(left, clock)
    return left.calls


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
def test_process_death_at_every_disk_call_loses_nothing_accepted() -> None:
    """Process death, then power loss: what the next process took over from the page cache is safe by then."""
    for call in range(1, calls_of_workload() + 1, 11):
        disk, clock, ledger = cut_at(call)
        left = disk.after_kill()
        open_store(left, clock)
        recover_and_check(left.after_power_cut(0), clock, ledger)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("part", range(8))
def test_power_cut_at_every_disk_call_loses_nothing_accepted_in_many_states(part: int) -> None:
    """Power loss. Every call, each with many ways of what is left, and replay after each."""
    for call in range(1 + part, calls_of_workload() + 1, 8):
        disk, clock, ledger = cut_at(call)
        for left, history in states(disk, ledger, MANY_SEEDS):
            recover_and_go_on(left, clock, history)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("part", range(8))
def test_second_power_cut_at_every_call_of_every_recovery_loses_nothing(part: int) -> None:
    """Power loss, twice: every call of the workload, then every call of the recovery."""
    for call in range(1 + part, calls_of_workload() + 1, 8):
        disk, clock, ledger = cut_at(call)
        for again in range(1, calls_to_recover(disk, clock, seed=call) + 1):
            left = disk.after_power_cut(call)
            left.cut_at(again)
            with pytest.raises(PowerCut):
                open_store(left, clock)
            recover_and_check(left.after_power_cut((0, 1, again)[again % 3]), clock, ledger.copy())


@pytest.mark.guarantee("G11")
def test_power_cut_leaves_no_log_file_behind_for_ever() -> None:
    """Power loss between publishing segments and deleting log files: the next start deletes what is not needed."""
    disk = CrashFilesystem()
    for _ in run(disk, ManualClock(), Ledger().note):
        pass
    deletions = [call for call, operation, path in disk.log if operation == "unlink" and path.parent.name == "wal"]
    for call in deletions:
        left, clock, ledger = cut_at(call)
        after = left.after_power_cut(0)
        recover_and_check(after, clock, ledger)
        open_store(after, clock)
        logs = [path.name for path in after.paths() if path.parent == STORE / "wal"]
        assert len(logs) == 1, f"cut at call {call}: {logs}"
