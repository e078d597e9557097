"""A store back from its tier."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest, DamagedObject
from holdfast.model.frame import EventIds, Guid
from holdfast.store.repair import plan_repair
from holdfast.store.verify import verify_store
from holdfast.testing.objects import MemoryObjects
from tests.unit.tier.rig import Rig, lease_of, rows, values_of


def wipe(rig: Rig) -> None:
    rig.close()
    shutil.rmtree(rig.directory)


@pytest.mark.guarantee("G5")
def test_durable_events_come_back_after_a_wipe(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    for fsn in range(1, 6):
        rig.send(fsn, "a", "b")
    rig.upload()
    rig.send(6, "a", "b")
    wipe(rig)
    again = Rig(tmp_path / "data", objects, clock=rig.clock)
    assert again.restored is not None
    assert again.restored.events == 10
    assert values_of(again.store, "a") == values_of(again.store, "b") == [1, 2, 3, 4, 5]
    again.close()


@pytest.mark.guarantee("G3")
def test_what_was_durable_is_recognised_and_the_rest_is_taken_again(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "a", "b")
    rig.upload()
    rig.send(2, "a", "b")
    wipe(rig)
    again = Rig(tmp_path / "data", objects, clock=rig.clock)
    repeat = again.send(1, "a", "b")
    assert repeat.duplicate
    assert [entry.last_seq for entry in repeat.entries] == [1, 1]
    assert not again.send(2, "a", "b").duplicate
    assert values_of(again.store, "a") == values_of(again.store, "b") == [1, 2]
    again.close()


@pytest.mark.guarantee("G3")
def test_a_frame_of_which_one_part_was_uploaded_is_taken_again_as_a_whole(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects, store={"channels": {"a": {"file_slice_max_msgs": 1}}})
    rig.send(1, "a", "b")
    rig.tier.turn()  # the object of `a` is there, that of `b` is not
    assert any("segments/a/" in key for key in objects.objects)
    wipe(rig)
    again = Rig(tmp_path / "data", objects, clock=rig.clock)
    assert not again.send(1, "a", "b").duplicate
    assert values_of(again.store, "a") == values_of(again.store, "b") == [1]
    again.close()


@pytest.mark.guarantee("G4")
def test_no_number_that_was_given_out_comes_twice(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "known")
    rig.upload()
    before = [rig.send(2, "known", "unknown"), rig.send(3, "unknown", "other")]
    seen = {(entry.channel, entry.last_seq) for receipt in before for entry in receipt.entries}
    ids = {entry.first_committed_id for receipt in before for entry in receipt.entries}
    for life in range(3):
        wipe(rig)
        rig = Rig(tmp_path / "data", objects, clock=rig.clock)
        for fsn in range(10 + life, 13 + life):
            receipt = rig.send(fsn, "known", "unknown", f"new{life}")
            for entry in receipt.entries:
                assert (entry.channel, entry.last_seq) not in seen
                assert entry.first_committed_id not in ids
                seen.add((entry.channel, entry.last_seq))
                ids.add(entry.first_committed_id)
    rig.close()


def test_segment_numbers_start_anew_behind_all_that_were_used(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "a")
    rig.upload()
    rig.send(2, "a")
    rig.store.flush()
    used = [segment.meta.segment_seq for segment in rig.store.port.segments_after(0)]
    wipe(rig)
    again = Rig(tmp_path / "data", objects, clock=rig.clock)
    again.send(2, "a")
    again.store.flush()
    assert [segment.meta.segment_seq for segment in again.store.port.segments_after(max(used))]
    again.close()


def test_subscribers_go_on_where_their_marks_were_kept(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects, store={"retention": {"steady_state_headroom": "1MiB"}})
    subscriber = rig.store.subscriber("s", ["a", "later"])
    rig.send(1, "a")
    rig.store.flush()
    lease_of(subscriber).ack()
    rig.send(2, "a")
    rig.upload()
    rig.clock.advance(11)
    rig.tier.turn()
    wipe(rig)
    again = Rig(tmp_path / "data", objects, clock=rig.clock)
    subscriber = again.store.subscriber("s", ["a", "later"])
    lease = lease_of(subscriber)
    assert (lease.first_seq, lease.last_seq) == (2, 2)
    lease.ack()
    again.send(3, "a", "later")
    again.store.flush()
    leases = [lease_of(subscriber), lease_of(subscriber)]
    for lease in leases:
        lease.ack()
    (statistics,) = again.store.subscribers()
    marks = {lag.channel: lag.mark for lag in statistics.channels}
    assert marks == {lease.channel: lease.last_seq for lease in leases}
    again.close()


def test_events_with_ids_and_guids_are_recognised_after_a_wipe(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.store.commit("ids", rows(1, 2), identity=EventIds("value"))
    rig.store.commit("guids", rows(7), identity=Guid(b"g" * 16))
    rig.upload()
    wipe(rig)
    again = Rig(tmp_path / "data", objects, clock=rig.clock)
    assert again.store.commit("guids", rows(7), identity=Guid(b"g" * 16)).duplicate
    again.store.commit("ids", rows(2, 3), identity=EventIds("value"))
    assert values_of(again.store, "ids") == [1, 2, 3]
    again.close()


def test_a_restored_store_opens_again_without_its_tier(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "a")
    rig.upload()
    wipe(rig)
    again = Rig(tmp_path / "data", objects, clock=rig.clock)
    again.send(2, "a", "born")
    again.close()
    with Store.open(tmp_path / "data", inline=True) as store:
        assert values_of(store, "a") == [1, 2]
        assert values_of(store, "born") == [2]


def test_a_restore_that_was_interrupted_begins_again(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "a")
    rig.upload()
    wipe(rig)
    (key,) = [key for key in objects.objects if key.startswith("segments/")]
    data = objects.objects.pop(key)
    with pytest.raises(DamagedObject):
        Rig(tmp_path / "data", objects, clock=rig.clock)
    assert (tmp_path / "data" / "restoring").exists()
    objects.objects[key] = data
    again = Rig(tmp_path / "data", objects, clock=rig.clock)
    assert values_of(again.store, "a") == [1]
    assert not (tmp_path / "data" / "restoring").exists()
    again.close()


def test_a_directory_with_a_store_is_never_restored_over(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.close()
    with pytest.raises(BadRequest, match="is not empty"):
        rig.tier.restore(tmp_path / "data")


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("harm", ["missing", "flipped", "short"])
def test_a_damaged_local_segment_heals_from_the_tier(tmp_path: Path, harm: str) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "a")
    rig.upload()
    rig.close()
    (file,) = (tmp_path / "data" / "channels" / "a").iterdir()
    good = file.read_bytes()
    file.unlink()
    if harm == "flipped":
        file.write_bytes(good[:200] + bytes([good[200] ^ 1]) + good[201:])
    elif harm == "short":
        file.write_bytes(good[:-40])
    again = Rig(tmp_path / "data", objects, clock=rig.clock)
    assert values_of(again.store, "a") == [1]
    assert file.read_bytes() == good
    assert again.tier.statistics().healed == 1
    again.close()


@pytest.mark.guarantee("G9")
def test_a_missing_segment_heals_before_the_store_opens(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "a")
    rig.upload()
    rig.close()
    shutil.rmtree(tmp_path / "data" / "channels" / "a")
    again = Rig(tmp_path / "data", objects, clock=rig.clock)
    assert values_of(again.store, "a") == [1]
    again.close()


@pytest.mark.guarantee("G9")
def test_scrubbing_heals_what_it_finds(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", MemoryObjects())
    rig.send(1, "a")
    rig.upload()
    (file,) = (tmp_path / "data" / "channels" / "a").iterdir()
    good = file.read_bytes()
    file.write_bytes(good[:200] + bytes([good[200] ^ 1]) + good[201:])
    rig.store.scrub_step(1 << 20)
    assert file.read_bytes() == good
    assert rig.store.statistics().scrub.findings == ()
    rig.close()


def test_a_restored_store_is_found_intact_and_needs_no_repair(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.store.subscriber("s", ["a"])
    for fsn in range(1, 4):
        rig.send(fsn, "a", "b")
        rig.upload()
    wipe(rig)
    again = Rig(tmp_path / "data", objects, clock=rig.clock)
    again.send(4, "a", "b", "new")
    again.close()
    report = verify_store(LocalFilesystem(), tmp_path / "data")
    assert report.findings == ()
    assert not plan_repair(LocalFilesystem(), tmp_path / "data").needed
