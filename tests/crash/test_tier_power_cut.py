"""The power goes at every disk call: of a folder that is an object store, of a server that restores, of one that
uploads. The crash disk proves power loss."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from holdfast.errors import DamagedObject
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
