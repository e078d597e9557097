"""Power loss at every disk call while small segments become large ones (guarantees G1, G4, G7).

The crash disk drops, tears and reorders whatever was not synced. After every cut each accepted event is there once,
with the same number and value; marks are where they were; the catalog and the disk agree; and it can be done again.
"""

from __future__ import annotations

from functools import cache

import pytest

from holdfast.store.compaction import CompactionPolicy, compact
from holdfast.store.verify import verify_store
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from tests.unit.store.subscribers.small_store import STORE, Bench

SEGMENTS, EVENTS = 6, 10


def rows(bench: Bench) -> list[tuple[int, int]]:
    """(seq, value) of all events."""
    parts = list(bench.store.read("trades", system=("_seq",)))
    return [
        pair
        for part in parts
        for pair in zip(part.column("_seq").to_pylist(), part.column("n").to_pylist(), strict=True)
    ]


def expected(count: int) -> list[tuple[int, int]]:
    return [(seq, (seq - 1) % EVENTS) for seq in range(1, count + 1)]


@cache
def filled() -> tuple[CrashFilesystem, ManualClock]:
    bench = Bench()
    bench.store.subscriber("s", ["trades"])
    bench.publish(segments=SEGMENTS, events=EVENTS)
    bench.store.subscriber("s", ["trades"]).ack("trades", 5, 15)
    bench.store.close()
    return bench.disk, bench.clock


def resume(disk: CrashFilesystem) -> Bench:
    bench = Bench.__new__(Bench)
    clock = filled()[1]
    bench.disk, bench.settings = disk, {}
    bench.clock = ManualClock(wall_ns=clock.wall_ns(), monotonic_ns=clock.monotonic_ns())
    bench.open()
    return bench


def work(disk: CrashFilesystem) -> Bench:
    """Two new segments out of six, then more events, then all of them into one."""
    bench = resume(disk)
    size = next(iter(bench.store._catalog.all_segments())).size_bytes
    compact(bench.store, "trades", CompactionPolicy(target_bytes=7 * size // 2))
    bench.publish(events=EVENTS)
    compact(bench.store, "trades")
    bench.store.close()
    return bench


def check(bench: Bench) -> None:
    found = rows(bench)
    assert found == expected(len(found))
    assert len(found) in (SEGMENTS * EVENTS, (SEGMENTS + 1) * EVENTS)
    (subscriber,) = bench.store.subscribers()
    assert [lag.gaps for lag in subscriber.channels] == [((1, 4),)]
    bench.segments()  # compares the catalog with the disk


@cache
def calls() -> int:
    return work(filled()[0].after_kill()).disk.calls


def cut_everywhere(seeds: tuple[int, ...], *, step: int = 1) -> None:
    for call in range(1, calls() + 1, step):
        disk = filled()[0].after_kill()
        disk.cut_at(call)
        with pytest.raises(PowerCut):
            work(disk)
        for seed in seeds:
            left = disk.after_power_cut(seed + call if seed else 0)
            report = verify_store(left, STORE)
            assert report.intact, f"call {call}, seed {seed}: {report.findings}"
            bench = resume(left)
            check(bench)
            compact(bench.store, "trades")
            check(bench)


@pytest.mark.guarantee("G4")
@pytest.mark.guarantee("G7")
def test_power_cut_while_compacting_changes_no_event_and_no_mark() -> None:
    """Power loss at every third call, with two ways of what is left."""
    cut_everywhere((0, 1), step=3)


@pytest.mark.long
@pytest.mark.guarantee("G4")
def test_power_cut_while_compacting_changes_nothing_in_many_states() -> None:
    """Power loss at every call, with many ways of what is left."""
    cut_everywhere((0, *range(1, 12)))


def test_process_death_at_every_call_changes_no_event() -> None:
    """Process death: what was written stays, synced or not."""
    for call in range(1, calls() + 1, 5):
        disk = filled()[0].after_kill()
        disk.cut_at(call)
        with pytest.raises(PowerCut):
            work(disk)
        check(resume(disk.after_kill()))
