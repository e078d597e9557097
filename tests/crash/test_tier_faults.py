"""Every request to the object store fails once, in every way: nothing is told as durable that is not.

A run with a fault at each request in turn: two lives of a server with a wipe between, frames across channels, local
copies that go, readers of remote segments, a sweep, an eviction. Whenever something is told, the bucket itself is
looked into.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

import pytest

from holdfast.disk.checksum import crc32c
from holdfast.model.intervals import IntervalSet
from holdfast.testing import CrashFilesystem, ManualClock
from holdfast.testing.objects import Fault, FaultyObjects, MemoryObjects
from holdfast.tier.journal import Journal
from holdfast.tier.objects import Objects
from tests.faults import figures
from tests.unit.tier.rig import Rig, values_of

AREA = "tier"
CLAIM = "no failed request to the object store makes a false durable acknowledgement"
FRAMES = 2
LITTLE_ROOM = {"retention": {"local": "5KiB"}}
"""One segment fits."""


class Workload:
    """Sends, uploads, evicts, wipes, restores; looks into the bucket whenever something is told as durable."""

    def __init__(self, inner: Objects, objects: Objects) -> None:
        """`objects` is the way to `inner` that has faults."""
        self.inner = inner
        self.objects = objects
        self.clock = ManualClock()
        self.checks = 0
        self.kept: dict[str, set[int]] = {"a": set(), "b": set()}
        """Seqs that must be there: accepted, and not lost with a disk before they were told as durable."""
        self.told: dict[str, int] = {}

    def run(self) -> None:
        rig = self._life()
        for fsn in range(1, FRAMES + 1):
            self._send(rig, fsn)
            rig.upload()
            rig.tick()
        assert rig.remote("a")
        assert rig.remote("b")
        assert values_of(rig.store, "a") == values_of(rig.store, "b") == list(range(1, FRAMES + 1))
        self._send(rig, FRAMES + 1)  # accepted, never durable
        rig.close()
        self.kept = {channel: {seq for seq in seqs if seq <= self.told[channel]} for channel, seqs in self.kept.items()}
        again = self._life()
        assert values_of(again.store, "a") == values_of(again.store, "b") == list(range(1, FRAMES + 1))
        for fsn in range(1, FRAMES + 3):
            self._send(again, fsn)  # the producer repeats all it has
        again.upload()
        again.tick()
        assert again.remote("a")
        assert values_of(again.store, "a") == values_of(again.store, "b") == list(range(1, FRAMES + 3))
        again.store.remove_channel("b")
        again.tier.turn()
        assert again.durable.keys() == {"a", "b"}
        again.close()

    def _send(self, rig: Rig, fsn: int) -> None:
        for entry in rig.send(fsn, "a", "b").entries:
            self.kept[entry.channel].add(entry.last_seq)

    def _life(self) -> Rig:
        """A server with a new disk."""
        filesystem = CrashFilesystem()
        filesystem.makedir(Path("/disk"))
        rig = Rig(
            Path("/disk/data"), self.objects, clock=self.clock, filesystem=filesystem, store=LITTLE_ROOM, sweep="3s"
        )
        rig.tier.on_durable(self._told)
        return rig

    def _told(self, news: dict[str, int]) -> None:
        """At this moment the disk burns: is what was told in the bucket, whole and right?"""
        self.checks += 1
        state = Journal(self.inner, nonce="check").load()
        for channel, seq in news.items():
            notes = [note for note in state.segments.values() if note.meta.channel == channel]
            for note in notes:
                assert crc32c(self.inner.read(note.key)) == note.crc32c
            held = IntervalSet((note.meta.first_seq, note.meta.last_seq) for note in notes)
            assert all(item in held for item in self.kept[channel] if item <= seq), (channel, seq)
            self.told[channel] = seq


def count_requests() -> int:
    inner = MemoryObjects()
    objects = FaultyObjects(inner)
    workload = Workload(inner, objects)
    workload.run()
    assert workload.checks >= FRAMES
    return len(objects.requests)


def fail_once(number: int, fault: Fault) -> int:
    """How often the bucket was looked into, since something was told."""
    inner = MemoryObjects()
    objects = FaultyObjects(inner, {number: fault})
    workload = Workload(inner, objects)
    try:
        workload.run()
    except Exception as error:
        error.add_note(f"{fault} at request {number}: {objects.requests[number]}")
        raise
    return workload.checks


@pytest.mark.guarantee("G5")
def test_no_failed_request_makes_a_false_durable_ack() -> None:
    """Every third request fails once; the ways take turns."""
    numbers = range(0, count_requests(), 3)
    looks = sum(fail_once(number, fault) for number, fault in zip(numbers, cycle(Fault), strict=False))
    figures.note(AREA, CLAIM, failed_requests=len(numbers), ways=len(Fault), looks_into_the_bucket=looks)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("fault", Fault)
def test_no_fault_at_any_request_makes_a_false_durable_ack(fault: Fault) -> None:
    requests = count_requests()
    looks = sum(fail_once(number, fault) for number in range(requests))
    claim = f"{CLAIM} ({fault.name.lower().replace('_', ' ')})"
    figures.note(AREA, claim, profile="long", failed_requests=requests, looks_into_the_bucket=looks)
