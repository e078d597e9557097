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
from holdfast.tier.manifest import entry_key
from holdfast.wire import consume
from tests.unit.tier.rig import Rig, lease_of, values_of

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


SHORT_SLICES = {"channels": {"a": {"file_slice_max_msgs": 2}, "b": {"file_slice_max_msgs": 3}}}


@pytest.mark.guarantee("G5")
@pytest.mark.guarantee("G1")
def test_segments_that_share_frames_are_listed_together_though_each_was_read_back(tmp_path: Path) -> None:
    """Frame 3 lies across the end of the second segment, so that one waits. The first one has parts of frames 1 and 2:
    listed alone, it made a restored server take their repeats for duplicates, and the parts in `b` were lost."""
    rig = Rig(tmp_path / "data", MemoryObjects(), store=SHORT_SLICES)
    for fsn in (1, 2, 3):
        rig.send(fsn, "a", "b")
    assert (len(rig.files("a")), len(rig.files("b"))) == (1, 1)
    rig.tier.turn()
    assert rig.durable == {}
    again = Rig(tmp_path / "other", rig.tier._objects, store=SHORT_SLICES)
    for fsn in (1, 2, 3):
        again.send(fsn, "a", "b")
    assert values_of(again.store, "a") == values_of(again.store, "b") == [1, 2, 3]
    again.close()
    rig.store.close()


@pytest.mark.guarantee("G5")
def test_segments_that_always_share_frames_are_listed_after_a_while(tmp_path: Path) -> None:
    """Nobody waits for them, and their ends never meet: then everything is sealed at one moment."""
    slices = {"channels": {"a": {"file_slice_max_msgs": 2}, "b": {"file_slice_max_msgs": 4}}}
    rig = Rig(tmp_path / "data", MemoryObjects(), store=slices)
    rig.send(1, "a")
    fsn = 1
    while not rig.durable.get("b"):
        fsn += 1
        assert fsn < 40
        rig.send(fsn, "a", "b")
        rig.clock.advance(1)
        rig.tier.turn()
    assert rig.durable["a"] == rig.durable["b"] + 1
    rig.close()


@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("restarted", [False, True])
def test_frame_evicted_before_it_was_listed_is_known_after_a_wipe(tmp_path: Path, restarted: bool) -> None:
    """Its producer was told that it is durable, and may still send it again: its own disk forgot that."""
    rig = Rig(tmp_path / "data", MemoryObjects())
    reader = rig.store.subscriber("reader", ["a"], start="first")
    rig.send(1, "a")
    rig.store.flush()
    lease_of(reader).ack()
    rig.tick()
    assert rig.files("a") == []
    if restarted:  # the process that evicted it never came to say so
        rig.close()
        rig = Rig(tmp_path / "data", rig.tier._objects, clock=rig.clock)
    rig.tier.turn()
    assert rig.durable == {"a": 1}
    wiped = Rig(tmp_path / "other", rig.tier._objects, clock=rig.clock)
    assert wiped.send(1, "a").duplicate
    assert not wiped.send(2, "a").duplicate
    assert values_of(wiped.store, "a") == [2]
    wiped.close()
    rig.store.close()


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("restarted", [False, True])
def test_frame_of_which_a_part_was_evicted_is_told_with_its_other_part(tmp_path: Path, restarted: bool) -> None:
    """If the manifest knew it by the part that is gone, a wipe would lose the part that is not."""
    settings = {"channels": {"b": {"file_slice_max_msgs": 1}}}
    disk, objects, clock = CrashFilesystem(), MemoryObjects(), ManualClock()
    rig = Rig(Path("/data"), objects, clock=clock, filesystem=disk, store=settings)
    reader = rig.store.subscriber("reader", ["b"], start="first")
    rig.send(1, "a", "b")
    lease_of(reader).ack()
    clock.advance(2.0)
    rig.store.keeper.tick_if_due()
    assert (rig.files("a"), rig.files("b")) == ([], [])
    if restarted:
        rig = Rig(Path("/data"), objects, clock=clock, filesystem=disk.after_kill(), store=settings)
    rig.tier.turn()
    assert rig.durable == {}
    wiped = Rig(Path("/data"), MemoryObjects.of(objects), clock=clock, filesystem=CrashFilesystem())
    assert not wiped.send(1, "a", "b").duplicate
    assert values_of(wiped.store, "a") == [1]
    wiped.close()
    rig.upload()
    assert rig.durable == {"a": 1, "b": 1}
    rig.close()


def uploaded_through(tmp_path: Path, *faults: Fault | None) -> tuple[Rig, FaultyObjects]:
    """Two events are durable, though these faults met the requests from the second manifest entry's creation on."""
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
    plan += [*[None] * create, *faults]
    rig.tier.turn()
    assert not plan
    assert rig.durable == {"a": 2}
    return rig, objects


@pytest.mark.guarantee("G5")
def test_entry_that_reads_back_garbled_on_its_way_fences_nobody_out(tmp_path: Path) -> None:
    """Created, the answer lost, taken when repeated, garbled when read back: it is still ours."""
    rig, _ = uploaded_through(tmp_path, Fault.AFTER, None, Fault.GARBLED)
    rig.close()


@pytest.mark.guarantee("G5")
def test_channel_that_is_new_after_a_restore_holds_no_producer_back_once_it_is_empty(tmp_path: Path) -> None:
    """It begins far above 1: the numbers before its first event were skipped, and are owed to nobody."""
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "a")
    rig.upload()
    rig.close()
    rig = Rig(tmp_path / "restored", objects, clock=rig.clock)
    assert rig.restored is not None
    reader = rig.store.subscriber("reader", ["b"], start="first")
    rig.send(2, "b")
    rig.store.flush()
    lease_of(reader).ack()
    rig.tick()
    assert rig.files("b") == []
    last = rig.store.handing.last_seq("b")
    assert rig.store.listing.skipped("b") == [(1, last - 1)]
    rig.store.close()  # before the uploader has seen it
    rig = Rig(tmp_path / "restored", objects, clock=rig.clock)
    rig.tier.turn()
    assert rig.durable["b"] == last
    rig.close()


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER, Fault.PARTIAL, Fault.GARBLED])
def test_entry_that_was_stored_garbled_is_passed_over_by_the_next(tmp_path: Path, fault: Fault) -> None:
    """The read that would have told fails too: nobody can remove the object any more, and its number stays taken."""
    rig, objects = uploaded_through(tmp_path, Fault.GARBLED, fault)
    rig.send(3, "a")
    rig.upload()
    rig.close()
    rig = Rig(tmp_path / "restored", objects, clock=rig.clock)
    assert values_of(rig.store, "a") == [1, 2, 3]
    rig.close()


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("directory", ["data", "restored"])
def test_entry_that_was_stored_garbled_keeps_no_server_from_starting(tmp_path: Path, directory: str) -> None:
    """Its writer was killed before it read the entry back, so nobody was told of it."""
    bucket = MemoryObjects()
    rig = Rig(tmp_path / "data", bucket)
    rig.send(1, "a")
    rig.upload()
    rig.close()
    bucket.create(entry_key(rig.tier.state.number + 1), b"garbled")
    for fsn in (2, 3):  # the second time it lies in the middle
        rig = Rig(tmp_path / directory, bucket, clock=rig.clock)
        assert values_of(rig.store, "a") == list(range(1, fsn))
        rig.send(fsn, "a")
        rig.upload()
        assert rig.durable["a"] == rig.store.handing.last_seq("a")
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
