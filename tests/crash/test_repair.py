"""Power loss at every disk call of a repair: what is left can be repaired again, and nothing intact is lost by it.

One cut is one call of the disk at which the power goes; one state is one of the ways in which the disk may look
afterwards (`CrashFilesystem.after_power_cut`). Whatever the state, a second repair ends where an undisturbed one would
have ended: the same events are there, the same are lost, and no number is used twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import pytest

from holdfast.errors import CorruptData
from holdfast.store.repair import apply_repair, plan_repair
from holdfast.store.verify import verify_store
from holdfast.store.wal.codec import KIND_FRAME
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from tests.unit.store.damaged_store import (
    ROOT,
    check_numbers,
    closed,
    damaged,
    flip,
    lost_from,
    marks,
    open_store,
    paths,
    read_all,
    records,
    repair,
    stored,
    without_catalog,
)

Damage = Callable[[], CrashFilesystem]


def damaged_frame() -> CrashFilesystem:
    """A record in the middle of the log: the log is harvested and begun anew, the catalog amended."""
    frames = [(path, offset) for path, offset, kind, _ in records() if kind == KIND_FRAME]
    path, offset = frames[-12]
    return damaged(lambda disk: flip(disk, path, offset + 60))


def damaged_end() -> CrashFilesystem:
    """The last record of the log: numbers are skipped."""
    path, offset, _, _ = records()[-1]
    return damaged(lambda disk: flip(disk, path, offset + 60))


def damaged_segments() -> CrashFilesystem:
    """One segment that the log still holds, one that nothing holds any more."""
    disk = closed()
    for path in (paths(disk, "channels/trades")[-1], paths(disk, "channels/orders")[-1]):
        flip(disk, path, 100)
    return disk


def damaged_acks() -> CrashFilesystem:
    """The acknowledgement log."""
    return damaged(lambda disk: flip(disk, paths(disk, "ack")[0], 150))


def lost_catalog() -> CrashFilesystem:
    """No catalog, and a damaged record in the log."""
    disk = damaged_frame()
    without_catalog(disk)
    return disk


def damaged_catalog() -> CrashFilesystem:
    """A catalog of which most rows are still good."""
    disk = damaged()
    rows = [found.start() for found in re.finditer(b"trades", disk.read_bytes(ROOT / "catalog.db"))]
    flip(disk, ROOT / "catalog.db", rows[-1])
    flip(disk, ROOT / "catalog.db", rows[len(rows) // 2])
    return disk


DAMAGES: dict[str, Damage] = {
    damage.__name__: damage
    for damage in (damaged_frame, damaged_end, damaged_segments, damaged_acks, lost_catalog, damaged_catalog)
}


@cache
def undisturbed(name: str) -> tuple[frozenset[tuple[str, int]], int]:
    """What is lost after a repair that nothing interrupts, and how many calls of the disk it makes."""
    disk = DAMAGES[name]()
    plan = plan_repair(disk, ROOT)
    assert plan.needed
    before = disk.calls
    apply_repair(disk, plan, clock=ManualClock())
    calls = disk.calls - before
    return frozenset(lost_from(open_store(disk))), calls


def cut_at(name: str, call: int) -> CrashFilesystem:
    """The dead disk of a repair whose power went at that call."""
    disk = DAMAGES[name]()
    plan = plan_repair(disk, ROOT)
    disk.cut_at(disk.calls + call)
    with pytest.raises(PowerCut):
        apply_repair(disk, plan, clock=ManualClock())
    return disk


def repair_and_check(name: str, disk: CrashFilesystem) -> None:
    """Repair what is left, and compare with an undisturbed repair."""
    expected, _ = undisturbed(name)
    if plan_repair(disk, ROOT).needed:
        repair(disk)
    report = verify_store(disk, ROOT, live=False)
    assert report.intact, [finding for finding in report.findings if finding.severity == "damage"]
    store = open_store(disk)
    assert lost_from(store) == expected
    for channel, events in read_all(store).items():
        assert events == {seq: stored()[channel][seq] for seq in events}
    check_numbers(store)
    store.close()
    assert not plan_repair(disk, ROOT).needed


def open_and_check(disk: CrashFilesystem) -> None:
    """Somebody opens the store instead: it refuses, or it delivers nothing that is wrong."""
    try:
        store = open_store(disk)
        found = read_all(store)
    except CorruptData:
        return
    for channel, events in found.items():
        assert events == {seq: stored()[channel][seq] for seq in events}


def try_cuts(name: str, calls: range, seeds: Callable[[int], tuple[int, ...]]) -> None:
    for call in calls:
        disk = cut_at(name, call)
        for seed in seeds(call):
            repair_and_check(name, disk.after_power_cut(seed))
        left = disk.after_power_cut(call)
        open_and_check(left)
        repair_and_check(name, left.after_kill())


@pytest.mark.guarantee("G9")
@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("name", DAMAGES)
def test_power_cut_during_a_repair_loses_nothing_intact(name: str) -> None:
    """Power loss, at calls spread over the whole repair."""
    _, calls = undisturbed(name)
    try_cuts(name, range(1, calls + 1, max(1, calls // 12)), lambda call: (call % 3,))


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.guarantee("G9")
@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("name", DAMAGES)
def test_power_cut_at_every_disk_call_of_a_repair_loses_nothing_intact(name: str) -> None:
    """Power loss, at every call, with nothing extra left, with everything, and with three mixtures."""
    _, calls = undisturbed(name)
    try_cuts(name, range(1, calls + 1), lambda call: (0, 1, 2 + call, 1002 + call, 2002 + call))


@pytest.mark.guarantee("G7")
def test_power_cut_during_a_repair_moves_no_mark_back() -> None:
    """Power loss while the acknowledgement log and the catalog are begun anew."""
    started = damaged()
    open_store(started)
    left = started.after_kill()
    expected = marks(open_store(left.after_kill()))
    total = repairs_of(left.after_kill(), cut=None)
    for call in range(1, total, max(1, total // 10)):
        disk = left.after_kill()
        repairs_of(disk, cut=call)
        after = disk.after_power_cut(call)
        if plan_repair(after, ROOT).needed:
            repair(after)
        assert marks(open_store(after)) == expected


def repairs_of(disk: CrashFilesystem, *, cut: int | None) -> int:
    """Rebuild the catalog of a sound store, with a cut; returns how many calls that makes without one."""
    plan = plan_repair(disk, ROOT, rebuild_catalog=True)
    before = disk.calls
    if cut is not None:
        disk.cut_at(before + cut)
        with pytest.raises(PowerCut):
            apply_repair(disk, plan, clock=ManualClock())
        return 0
    apply_repair(disk, plan, clock=ManualClock())
    return disk.calls - before


@pytest.mark.guarantee("G9")
def test_every_file_that_a_repair_deletes_is_in_quarantine_first() -> None:
    """Process death just before each deletion: the bytes are in quarantine already."""
    for damage in DAMAGES.values():
        disk = damage()
        before = {path: disk.read_bytes(path) for path in disk.paths()}
        start = disk.calls
        repair(disk)
        deleted = [(call - start, path) for call, operation, path in disk.log if operation == "unlink"]
        for call, path in [(call, path) for call, path in deleted if path in before]:
            dying = damage()
            plan = plan_repair(dying, ROOT)
            dying.cut_at(dying.calls + call)
            with pytest.raises(PowerCut):
                apply_repair(dying, plan, clock=ManualClock())
            left = dying.after_power_cut(0)
            kept = {left.read_bytes(path) for path in left.paths() if "quarantine" in path.parts}
            assert before[path] in kept, f"{path} was about to be deleted without a copy"


def test_scene_loses_something_in_every_case_but_two() -> None:
    lost = {name: undisturbed(name)[0] for name in DAMAGES}
    assert [name for name, events in lost.items() if not events] == ["damaged_acks", "damaged_catalog"]
