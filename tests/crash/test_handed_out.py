"""Power loss at every disk call of a workload that hands events out, takes answers, and gets events back.

These tests prove power loss: the crash disk drops, tears and reorders whatever was not synced. What is compared after
every cut, for each event that is still owed:

- if its handing out was durable and no answer to it was asked for, it is known to have been handed out, and that
  delivery counts as a failed attempt once, however often the store is cut and opened again;
- what was given back, durably, does not count;
- nothing counts more often than it was handed out, and nothing is known as handed out that never was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import pytest

from holdfast.store.subscribers.handing import Place
from holdfast.store.subscribers.progress import Outcome
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from tests.unit.store.subscribers.small_store import Bench, batch

TINY: dict[str, object] = {"ack.checkpoint_records": 3, "ack.rotation_size": "4KiB"}
EVENTS = 8
LEVELS = 3


@dataclass
class Said:
    """What was asked and what is sure, in order."""

    asked: list[tuple[Outcome, int]] = field(default_factory=list)
    durable: int = 0
    """How many of them were answered."""

    def counts(self, said: list[tuple[Outcome, int]], *, crashed: bool) -> tuple[Counter[int], set[int], set[int]]:
        """Failed attempts, what was handed out, and what is settled."""
        fails: Counter[int] = Counter()
        handed: set[int] = set()
        flying: set[int] = set()
        settled: set[int] = set()
        for outcome, seq in said:
            flying.discard(seq)
            if outcome is Outcome.HANDED:
                flying.add(seq)
                handed.add(seq)
            elif outcome is Outcome.NACK:
                fails[seq] += 1
            elif outcome is Outcome.ACK:
                settled.add(seq)
        if crashed:
            fails.update(flying - settled)
        return fails, handed, settled


def join(bench: Bench) -> Place:
    return bench.store.handing.join("d", "trades", start="first", others=0)


def workload(bench: Bench, said: Said) -> Iterator[None]:
    """Every event is handed out some times; some are nacked, some given back, some acked, some left in flight."""
    bench.store.commit("trades", batch(EVENTS))
    place = join(bench)
    for level in range(LEVELS):
        for seq in range(1, EVENTS + 1):
            then = (Outcome.NACK, Outcome.RETURNED, Outcome.ACK, None)[(seq + level) % 4]
            if any(item == (Outcome.ACK, seq) for item in said.asked):
                continue
            for outcome in (Outcome.HANDED, then):
                if outcome is None:
                    continue
                said.asked.append((outcome, seq))
                bench.store.handing.settle(place, outcome, [(seq, seq)]).result()
                said.durable = len(said.asked)
                yield
    bench.store.close()


@cache
def calls_of_workload() -> int:
    bench, said = Bench(**TINY), Said()
    for _ in workload(bench, said):
        pass
    return bench.disk.calls


def cut_at(call: int) -> tuple[CrashFilesystem, ManualClock, Said]:
    bench, said = Bench.__new__(Bench), Said()
    bench.disk, bench.clock, bench.settings = CrashFilesystem(), ManualClock(), dict(TINY)
    bench.disk.cut_at(call)
    try:
        bench.open()
        for _ in workload(bench, said):
            pass
    except PowerCut:
        return bench.disk, bench.clock, said
    raise AssertionError(f"the workload ended before call {call}")


def check(disk: CrashFilesystem, clock: ManualClock, said: Said) -> None:
    """Open what is left, twice, and compare it with what was said: with the last one, which nobody answered, or not."""
    bench = Bench.__new__(Bench)
    bench.disk, bench.clock, bench.settings = disk, clock, dict(TINY)
    for _ in range(2):
        bench.open()
        if bench.store.handing.last_seq("trades") < EVENTS:
            assert said.durable == 0
            return
        place = join(bench)
        owed = bench.store.handing.owed(place, 1, EVENTS)
        fails = {seq: count for first, last, count in owed for seq in range(first, last + 1)}
        handed = {seq for first, last in bench.store.handing.handed(place, 1, EVENTS) for seq in range(first, last + 1)}
        possible = [said.counts(said.asked[:end], crashed=True) for end in {said.durable, len(said.asked)}]
        assert any(
            fails == {seq: wanted[seq] for seq in range(1, EVENTS + 1) if seq not in settled}
            and handed == known - settled
            for wanted, known, settled in possible
        ), (fails, handed, possible)
        bench.disk = bench.disk.after_power_cut(1)


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 6))])
def test_what_was_handed_out_is_counted_once_after_a_power_cut_at_any_call(part: int) -> None:
    """Power loss."""
    for call in range(1 + part, calls_of_workload(), 6):
        disk, clock, said = cut_at(call)
        check(disk.after_power_cut(call), clock, said)


def test_a_store_that_was_closed_with_events_in_flight_counts_them_as_tried() -> None:
    """Whoever hands out says what came back; a store that was not told takes it for a crash of the one who had it."""
    bench, said = Bench(**TINY), Said()
    for _ in workload(bench, said):
        pass
    bench.open()
    fails, _, settled = said.counts(said.asked, crashed=True)
    owed = bench.store.handing.owed(join(bench), 1, EVENTS)
    found = {seq: count for first, last, count in owed for seq in range(first, last + 1)}
    assert found == {seq: fails[seq] for seq in range(1, EVENTS + 1) if seq not in settled}
