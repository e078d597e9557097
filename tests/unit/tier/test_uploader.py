"""Segments into the tier: what is told as durable, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import Backpressure, FencedOut, TierMismatch
from holdfast.testing.objects import FaultyObjects, MemoryObjects
from holdfast.tier.manifest import RESERVED_NUMBERS, decode
from tests.unit.tier.rig import Rig, lease_of, rows


def segment_keys(objects: MemoryObjects) -> list[str]:
    return [key for key in objects.objects if key.startswith("segments/")]


@pytest.mark.guarantee("G5")
def test_what_is_told_as_durable_is_in_a_listed_object(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "a")
    rig.tier.turn()
    assert rig.durable == {}
    rig.upload()
    assert rig.durable == {"a": 1}
    entries = [decode(data) for key, data in objects.objects.items() if key.startswith("manifest/")]
    assert [note.key for entry in entries for note in entry.added] == segment_keys(objects)
    rig.close()


@pytest.mark.guarantee("G5")
def test_nothing_is_told_while_the_object_store_is_away(tmp_path: Path) -> None:
    objects = FaultyObjects(MemoryObjects())
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "a")
    rig.store.flush()
    objects.broken = True
    seen: list[dict[str, int]] = []

    def mend(seconds: float) -> bool:
        rig.clock.advance(seconds)
        seen.append(dict(rig.durable))
        objects.broken = len(seen) < 20
        return False

    rig.tier._persistence._pause = mend
    rig.tier.turn()
    assert seen == [{}] * 20
    assert rig.durable == {"a": 1}
    assert rig.tier.statistics().failures == 20
    rig.close()


def test_a_frame_of_two_channels_is_listed_as_a_whole(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", MemoryObjects(), store={"channels": {"a": {"file_slice_max_msgs": 2}}})
    rig.send(1, "a", "b")
    rig.send(2, "a")  # fills the segment of `a`; that of `b` stays open
    rig.tier.turn()
    assert rig.durable == {}
    assert rig.uploads.uploaded_segments == 1
    rig.upload()
    assert rig.durable == {"a": 2, "b": 1}
    rig.close()


def test_who_waits_for_durability_makes_open_units_sealed_soon(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", MemoryObjects(), max_delay="1s")
    rig.tier.begin_waiting()
    rig.send(1, "a", "b")
    rig.tier.turn()
    rig.clock.advance(1.0)
    rig.tier.turn()
    rig.store.scrub_step(1)
    rig.store.commit("z", rows(1))  # a store without threads seals when it is called
    rig.tier.turn()
    assert {"a": 1, "b": 1}.items() <= rig.durable.items()
    rig.tier.end_waiting()
    rig.close()


def test_without_anybody_waiting_units_stay_open(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", MemoryObjects(), max_delay="1s")
    rig.send(1, "a")
    rig.clock.advance(2.0)
    rig.tier.turn()
    rig.store.commit("z", rows(1))
    rig.tier.turn()
    assert rig.durable == {}
    rig.close()


def test_a_later_process_goes_on_where_the_last_one_was_killed(tmp_path: Path) -> None:
    objects = MemoryObjects()
    first = Rig(tmp_path / "data", objects)
    first.send(1, "a")
    first.upload()
    first.send(2, "a")
    first.store.close()  # sealed and published, and nobody uploads it
    second = Rig(tmp_path / "data", objects, clock=first.clock)
    assert second.restored is None
    second.tier.turn()
    assert second.durable == {"a": 2}
    assert len(segment_keys(objects)) == 2
    second.close()


def test_evicted_segments_leave_the_manifest_and_then_the_bucket(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "a")
    rig.upload()
    assert rig.store.remove_channel("a") == 1
    rig.tier.turn()
    assert segment_keys(objects) == []
    assert rig.tier.state.segments == {}
    rig.close()


def test_eviction_while_no_tier_was_there_is_made_up_for(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "a")
    rig.upload()
    rig.tier.close()
    rig.store.remove_channel("a")
    rig.store.close()
    later = Rig(tmp_path / "data", objects, clock=rig.clock)
    later.tier.turn()
    assert segment_keys(objects) == []
    later.close()


def test_an_object_that_was_garbled_on_its_way_is_written_anew(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    rig.send(1, "a")
    rig.store.flush()
    (segment,) = rig.store.port.segments_after(0)
    with rig.store.port.lend(segment) as file:
        data = bytes(memoryview(file.map()))
    rig.tier.turn()
    (key,) = segment_keys(objects)
    assert objects.objects[key] == data
    rig.close()


def test_a_damaged_local_segment_is_never_told_as_durable(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", MemoryObjects())
    rig.send(1, "a")
    rig.store.flush()
    (file,) = (tmp_path / "data" / "channels" / "a").iterdir()
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    rig.send(2, "a")
    rig.upload()
    assert rig.durable == {}
    assert list(rig.uploads.blocked) == [1]
    assert "cannot be read" in (rig.tier.statistics().alarm or "")
    rig.close()


def test_marks_of_subscribers_are_kept_in_the_manifest(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", MemoryObjects())
    subscriber = rig.store.subscriber("s", ["a"])
    rig.send(1, "a")
    rig.upload()
    lease_of(subscriber).ack()
    rig.clock.advance(11)
    rig.tier.turn()
    readers = rig.tier.state.readers
    assert readers is not None
    assert [note.name for note in readers.subscribers] == ["s"]
    assert [note.ranges for note in readers.progress] == [((1, 1),)]
    rig.close()


def test_numbers_that_were_not_reserved_are_not_given_out(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", MemoryObjects())
    rig.store.port.hold_below(4)
    rig.store.commit("a", rows(1, 2, 3))
    with pytest.raises(Backpressure, match=r"tier\.reservation"):
        rig.store.commit("a", rows(4))
    rig.store.port.hold_below(5)
    assert rig.store.commit("a", rows(4)).last_seq == 4
    rig.close()


def test_the_reservation_is_renewed_when_half_of_it_is_used(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", MemoryObjects())
    rig.store._committer_of().next_committed_id += RESERVED_NUMBERS // 2 + 1
    rig.send(1, "a")
    rig.tier.turn()
    assert rig.tier.state.reserved is not None
    assert rig.tier.state.reserved.committed_id > rig.store.port.next_committed_id + RESERVED_NUMBERS // 2
    rig.close()


@pytest.mark.guarantee("G5")
def test_a_process_that_was_replaced_tells_nothing_more(tmp_path: Path) -> None:
    objects = MemoryObjects()
    first = Rig(tmp_path / "one", objects)
    first.send(1, "a")
    first.upload()
    second = Rig(tmp_path / "two", objects, clock=first.clock)
    first.send(2, "a")
    first.store.flush()
    with pytest.raises(FencedOut):
        first.tier.turn()
    assert first.durable == {"a": 1}
    second.close()
    first.close()


def test_the_directory_of_a_replaced_process_is_refused(tmp_path: Path) -> None:
    objects = MemoryObjects()
    first = Rig(tmp_path / "one", objects)
    first.send(1, "a")
    first.upload()
    first.close()
    Rig(tmp_path / "two", objects, clock=first.clock).close()
    with pytest.raises(TierMismatch, match="another process has used the tier"):
        Rig(tmp_path / "one", objects, clock=first.clock)


def test_a_tier_of_another_store_is_refused(tmp_path: Path) -> None:
    objects = MemoryObjects()
    Rig(tmp_path / "one", objects).close()
    alone = Rig(tmp_path / "two", MemoryObjects())
    alone.close()
    with pytest.raises(TierMismatch, match="holds store"):
        Rig(tmp_path / "two", objects)


def test_a_manifest_that_lost_entries_is_refused(tmp_path: Path) -> None:
    objects = MemoryObjects()
    Rig(tmp_path / "data", objects).close()
    objects.objects.clear()
    with pytest.raises(TierMismatch, match="objects are missing"):
        Rig(tmp_path / "data", objects)


def test_a_lag_that_grows_is_an_alarm_and_is_over_when_all_is_durable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"channels": {"a": {"file_slice_max_msgs": 1}}, "segment": {"max_open_duration": "1h"}}
    rig = Rig(tmp_path / "data", MemoryObjects(), store=settings, alarm_after="5m")
    rig.send(1, "a", "b")  # the part in `b` stays open, so that the one in `a` cannot be listed
    rig.tier.turn()
    assert rig.tier.statistics().alarm is None
    rig.clock.advance(301)
    rig.tier.turn()
    assert rig.uploads.lag_s == 301
    assert "has waited 301 s" in (rig.tier.statistics().alarm or "")
    rig.upload()
    assert rig.tier.statistics().alarm is None
    names = [record.getMessage().split()[0] for record in caplog.records if "tier.alarm" in record.getMessage()]
    assert names == ["tier.alarm", "tier.alarm.over"]
    rig.close()
