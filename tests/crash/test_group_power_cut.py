"""Power loss inside group commits: many frames, one write, one sync. Each frame is there as a whole or not at all.

The groups are made by hand, so that each has the same frames in every run: frames are queued while nobody works, and
then the work of the threads is done in one turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import pytest

from holdfast import Store
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from tests.crash.ledger import Ledger
from tests.crash.workload import FIRST_SESSION, SECOND_SESSION, Frame, Note, open_store, slot_frame

GROUPS: tuple[tuple[Frame, ...], ...] = (
    FIRST_SESSION[:6],
    (*FIRST_SESSION[6:9], FIRST_SESSION[0], FIRST_SESSION[6]),  # with repeats of an earlier and of this group
    (*FIRST_SESSION[9:], *SECOND_SESSION[:3]),
    SECOND_SESSION[3:7],
    SECOND_SESSION[7:],
)


ROOMY = {"memory_limit": "1MiB"}
"""A group waits in memory as a whole."""


def send_group(store: Store, frames: Sequence[Frame], note: Note) -> None:
    """Queue the frames, then commit them together."""
    store._inline = False
    futures = []
    for frame in frames:
        note(frame, None)
        futures.append(store.commit_frame_async(frame.entries(), identity=frame.identity, wait=False))
    store._inline = True
    store._run_inline()
    for frame, future in zip(frames, futures, strict=True):
        note(frame, future.result(0))


def run_groups(disk: CrashFilesystem, clock: ManualClock, ledger: Ledger) -> None:
    store = open_store(disk, clock, ROOMY)
    for frames in GROUPS:
        send_group(store, frames, ledger.note)
        ledger.check(store)
    store.close()


def cut_at(call: int) -> tuple[CrashFilesystem, ManualClock, Ledger]:
    disk, clock, ledger = CrashFilesystem(), ManualClock(), Ledger()
    disk.cut_at(call)
    with suppress(PowerCut):
        run_groups(disk, clock, ledger)
    return disk, clock, ledger


def calls_of_groups() -> list[tuple[int, str]]:
    disk = CrashFilesystem()
    run_groups(disk, ManualClock(), Ledger())
    return [(call, operation) for call, operation, _ in disk.log]


def test_group_of_frames_has_one_write_and_one_sync() -> None:
    disk = CrashFilesystem()
    store = open_store(disk, ManualClock(), {**ROOMY, "segment.target_size": "64KiB", "segment.direct_size": "1GiB"})
    before = disk.calls
    send_group(store, GROUPS[0], lambda *_: None)
    assert [operation for _, operation, _ in disk.log[before:]] == ["pwritev", "sync_data"]
    statistics = store.statistics()
    assert (statistics.frames, statistics.groups, statistics.syncs) == (6, 1, 1)


def test_group_with_large_frames_has_one_write_and_one_sync_for_each_file() -> None:
    disk = CrashFilesystem()
    store = open_store(disk, ManualClock(), {**ROOMY, "segment.target_size": "64KiB"})
    send_group(store, (slot_frame("u1", 1, delta=(3001, 3002, 3003)),), lambda *_: None)
    before = disk.calls
    more = [slot_frame(f"u{n}", n, delta=(3000 + 10 * n, 3001 + 10 * n, 3002 + 10 * n), alpha=(n,)) for n in (2, 3, 4)]
    send_group(store, more, lambda *_: None)
    done = [(operation, path.parent.name) for _, operation, path in disk.log[before:]]
    assert done == [("pwritev", "delta"), ("pwritev", "wal"), ("sync_data", "delta"), ("sync_data", "wal")]


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("seeds", [6, pytest.param(40, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_power_cut_inside_a_group_keeps_frames_whole_and_answers_true(seeds: int) -> None:
    """Power loss at every write and sync of a log, each with many ways of what is left of the group."""
    for call, operation in calls_of_groups():
        if operation not in ("pwritev", "sync_data"):
            continue
        disk, clock, ledger = cut_at(call)
        for seed in range(seeds):
            history = ledger.copy()
            store = open_store(disk.after_power_cut(seed * 1000 + call if seed > 1 else seed), clock, ROOMY)
            history.check(store)
            if seed == 2:
                history.replay(store, list(dict.fromkeys(history.asked)))
                history.check(store)
