"""What the simulation has found, each as the shortest way there, so that it stays mended."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from holdfast.consumer.core import ConsumerCore
from holdfast.consumer.options import Options
from holdfast.sender.ring import Ring
from holdfast.sender.slot import Slot
from holdfast.sender.substrate import RingOptions
from holdfast.testing import CrashFilesystem, ManualClock
from holdfast.testing.objects import Fault, FaultyObjects, MemoryObjects
from holdfast.wire import consume
from tests.unit.tier.rig import Rig, lease_of

SLOT = Path("/sf/app")


def open_ring(disk: CrashFilesystem) -> Ring:
    slot = Slot.open(SLOT, filesystem=disk, clock=ManualClock(), durable=True)
    return Ring(slot, RingOptions(durability="flush"), clock=ManualClock(), threaded=False)


@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G10")
def test_frames_behind_a_failed_sync_of_an_earlier_process_survive_a_power_cut() -> None:
    """The failed sync leaves pages that look written; what the next process syncs behind them must not depend on it."""
    disk = CrashFilesystem()
    disk.makedir(SLOT.parent)
    disk.sync_dir(Path("/"))
    ring = open_ring(disk)
    ring.append(b"never synced")
    disk.fail_when(failing_sync_of_segments)
    with pytest.raises(Exception, match="Input/output error"):
        ring.sync()
    disk = disk.after_kill()
    ring = open_ring(disk)
    ring.append(b"synced")
    ring.sync()
    ring = open_ring(disk.after_power_cut(0))
    with ring.cursor(0) as cursor:
        assert [bytes(frame.payload) for frame in cursor.until(ring.published_fsn)] == [b"never synced", b"synced"]


def failing_sync_of_segments(operation: str, path: Path) -> int | None:
    return errno.EIO if operation == "sync_data" and path.suffix == ".sfa" else None


@pytest.mark.guarantee("G5")
def test_events_that_come_and_go_between_two_turns_of_the_tier_hold_no_producer_back(tmp_path: Path) -> None:
    """A segment that was confirmed and evicted before the uploader saw it will never be uploaded."""
    rig = Rig(tmp_path / "data", MemoryObjects())
    reader = rig.store.subscriber("reader", ["a"], start="first")
    rig.send(1, "a")
    rig.upload()
    assert rig.durable == {"a": 1}
    lease_of(reader).ack()
    rig.send(2, "a")
    rig.store.flush()
    lease_of(reader).ack()
    rig.tick()
    assert rig.files("a") == []
    rig.tier.turn()
    assert rig.durable == {"a": 2}
    rig.close()
    again = Rig(tmp_path / "data", rig.tier._objects, clock=rig.clock)
    again.tier.turn()
    assert again.durable == {"a": 2}
    again.close()


@pytest.mark.guarantee("G5")
def test_entry_that_reads_back_garbled_on_its_way_fences_nobody_out(tmp_path: Path) -> None:
    """Created, the answer lost, taken when repeated, garbled when read back: it is still ours."""
    plan: list[Fault | None] = []
    objects = FaultyObjects(MemoryObjects(), lambda _number: plan.pop(0) if plan else None)
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "a")
    rig.store.flush()
    asked = len(objects.requests)
    rig.tier.turn()
    create = next(n for n, request in enumerate(objects.requests[asked:]) if request.startswith("create manifest"))
    rig.send(2, "a")
    rig.store.flush()
    plan += [*[None] * create, Fault.AFTER, None, Fault.GARBLED]
    rig.tier.turn()
    assert not plan
    assert rig.durable == {"a": 2}
    rig.close()


@pytest.mark.parametrize(("durable", "group", "replaces"), [("d", "", True), ("d", "g", False), ("", "", False)])
def test_only_a_lone_durable_takes_its_place_over_when_it_comes_back(durable: str, group: str, replaces: bool) -> None:
    """The server refuses `replace` to all others for good: a member of a group would never come back."""
    core = ConsumerCore(Options(channel="a", durable=durable, group=group), client="test")
    core.opened()
    core.received(consume.encode(consume.Subscribed(request=1, sub=1, next_seq=1)))
    assert core.state == "open"
    core.lost("the connection was cut")
    again = consume.decode_request(core.opened()[1].message)  # type: ignore[union-attr]
    assert isinstance(again, consume.Subscribe)
    assert again.replace is replaces
