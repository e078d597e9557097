"""The power goes at every disk call: of a folder that is an object store, of a server that restores, of one that
uploads. The crash disk proves power loss."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from holdfast.errors import DamagedObject
from holdfast.store.verify import verify_store
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from holdfast.testing.objects import MemoryObjects
from holdfast.tier.folder import FolderObjects
from tests.unit.tier.rig import Rig, values_of

BUCKET = Path("/mnt/bucket")
DATA = Path("/disk/data")


def new_disk(folder: str) -> CrashFilesystem:
    disk = CrashFilesystem()
    disk.makedir(Path(folder))
    disk.sync_dir(Path("/"))
    return disk


@pytest.mark.guarantee("G5")
def test_an_object_in_a_folder_is_whole_or_absent_after_any_power_cut() -> None:
    for call in count(1):
        disk = new_disk("/mnt")
        created: list[str] = []
        disk.cut_at(disk.calls + call)
        try:
            objects = FolderObjects(disk, BUCKET)
            for name in ("a/1", "a/2", "b/1"):
                objects.create(name, name.encode() * 1000)
                created.append(name)
        except PowerCut:
            pass
        else:
            assert call > 10
            return
        for seed in range(3):
            left = FolderObjects(disk.after_power_cut(seed), BUCKET)
            for name in ("a/1", "a/2", "b/1"):
                try:
                    assert left.read(name) == name.encode() * 1000
                except DamagedObject:
                    assert name not in created
            assert left.create("a/new", b"x")


@pytest.mark.guarantee("G5")
def test_a_restore_goes_on_after_a_power_cut_at_any_call() -> None:
    objects, clock = MemoryObjects(), ManualClock()
    first = Rig(DATA, objects, clock=clock, filesystem=new_disk("/disk"))
    for fsn in (1, 2):
        first.send(fsn, "a", "b")
        first.upload()
    first.close()
    before = dict(objects.objects)
    for call in count(1, 3):
        disk = new_disk("/disk")
        disk.cut_at(disk.calls + call)
        objects.objects = dict(before)
        try:
            Rig(DATA, objects, clock=clock, filesystem=disk).close()
        except PowerCut:
            left = disk.after_power_cut(call)
            left.makedir(Path("/disk"))
            again = Rig(DATA, objects, clock=clock, filesystem=left)
            assert values_of(again.store, "a") == values_of(again.store, "b") == [1, 2]
            again.close()
        else:
            assert call > 20
            return


@pytest.mark.guarantee("G5")
def test_a_server_that_loses_power_while_it_uploads_goes_on_with_its_tier() -> None:
    for call in count(1, 4):
        objects, clock, disk = MemoryObjects(), ManualClock(), new_disk("/disk")
        accepted: list[int] = []
        told: dict[str, int] = {}
        disk.cut_at(disk.calls + call)
        try:
            rig = Rig(DATA, objects, clock=clock, filesystem=disk)
            rig.tier.on_durable(told.update)
            for fsn in (1, 2, 3):
                rig.send(fsn, "a", "b")
                accepted.append(fsn)
                rig.upload()
            rig.close()
        except PowerCut:
            left = disk.after_power_cut(call)
            left.makedir(Path("/disk"))
            again = Rig(DATA, objects, clock=clock, filesystem=left)
            again.upload()
            found = values_of(again.store, "a") if "a" in again.store.channels() else []
            assert found[: len(accepted)] == accepted
            assert len(found) <= len(accepted) + 1
            assert all(again.durable.get(channel, 0) >= seq for channel, seq in told.items())
            again.close()
        else:
            assert call > 40
            return


ONE_COPY = {"retention": {"local": "5KiB"}}


LONG = [pytest.mark.long, pytest.mark.timeout(1800)]
EVERY_CALL = [False, pytest.param(True, marks=LONG)]
"""The quick run takes only calls while retention works."""


class Releasing:
    """Frames are sent and uploaded, old local copies go, and everything is read."""

    def __init__(self) -> None:
        self.objects, self.clock, self.disk = MemoryObjects(), ManualClock(), new_disk("/disk")
        self.accepted: list[int] = []
        self.released = 0
        self.retaining: list[int] = []
        """Disk calls, counted from the start, that were made while retention worked."""
        self._began = self.disk.calls

    def run(self) -> None:
        rig = Rig(DATA, self.objects, clock=self.clock, filesystem=self.disk, store=ONE_COPY)
        for fsn in (1, 2, 3):
            rig.send(fsn, "a")
            self.accepted.append(fsn)
            rig.upload()
            before = self.disk.calls
            rig.tick()
            self.retaining += range(before - self._began, self.disk.calls - self._began + 1)
            self.released = len(rig.remote("a"))
            assert values_of(rig.store, "a") == self.accepted
        rig.close()

    def check(self, seed: int) -> None:
        """After the cut every segment is here or in the bucket, and the catalog knows which."""
        left = self.disk.after_power_cut(seed)
        left.makedir(Path("/disk"))
        objects = MemoryObjects.of(self.objects)
        again = Rig(DATA, objects, clock=self.clock, filesystem=left, store=ONE_COPY)
        assert again.tier.statistics().healed == 0  # nothing was missing that the catalog counts on
        known = "a" in again.store.channels()
        assert len(again.remote("a") if known else []) <= self.released + 1
        found = values_of(again.store, "a") if known else []
        assert found[: len(self.accepted)] == self.accepted
        assert len(found) <= len(self.accepted) + 1
        again.upload()
        again.tick()
        assert (values_of(again.store, "a") if found else []) == found
        again.close()
        assert verify_store(left, DATA, live=False).intact


@pytest.mark.guarantee("G5")
@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("everywhere", EVERY_CALL)
def test_a_power_cut_while_local_copies_go_loses_no_segment(everywhere: bool) -> None:
    """Copies go and come for readers; wherever the power goes, each segment is here or in the bucket."""
    whole = Releasing()
    whole.run()
    assert whole.released == 2
    calls = range(1, whole.disk.calls) if everywhere else [call for call in whole.retaining if call > 0]
    assert len(calls) > 5
    for call in calls:
        attempt = Releasing()
        attempt.disk.cut_at(attempt.disk.calls + call)
        try:
            attempt.run()
        except PowerCut:
            attempt.check(call)


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("step", [13, pytest.param(1, marks=LONG)])
def test_a_power_cut_while_the_bucket_is_trimmed_leaves_a_tier_that_restores(step: int) -> None:
    """Catalog, then entry, then object: a restore after any cut finds all that the manifest lists."""
    settings = {"retention": {"local": "5KiB", "remote": {"max_size": "9KiB"}}}
    for call in count(1, step):
        objects, clock, disk = MemoryObjects(), ManualClock(), new_disk("/disk")
        disk.cut_at(disk.calls + call)
        accepted: list[int] = []
        try:
            rig = Rig(DATA, objects, clock=clock, filesystem=disk, store=settings)
            for fsn in (1, 2, 3, 4):
                rig.send(fsn, "a")
                accepted.append(fsn)
                rig.upload()
                rig.tick(11.0)
                rig.tier.turn()
            rig.close()
        except PowerCut:
            left = disk.after_power_cut(call)
            left.makedir(Path("/disk"))
            wiped = Rig(DATA, MemoryObjects.of(objects), clock=clock, filesystem=new_disk("/disk"), store=settings)
            whole = values_of(wiped.store, "a") if "a" in wiped.store.channels() else []
            assert whole == list(range(whole[0], whole[-1] + 1)) if whole else True
            wiped.close()
            again = Rig(DATA, objects, clock=clock, filesystem=left, store=settings)
            again.upload()
            again.tick(11.0)
            again.tier.turn()
            found = values_of(again.store, "a") if "a" in again.store.channels() else []
            assert len(found) <= 2
            assert found == [value for value in [*accepted, len(accepted) + 1] if value in found]
            assert not accepted or accepted[-1] in found
            assert len(again.tier.state.segments) == len(found)
            again.close()
        else:
            assert [*rig.tier.state.segments.values()][-1].meta.last_seq == 4
            assert call > 80
            return
