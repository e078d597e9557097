"""`retention.remote` and the sweep: what goes from the bucket, in which order, and what never does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import DamagedObject, FencedOut
from holdfast.testing.objects import FaultyObjects, MemoryObjects
from holdfast.tier.check import check_tier
from holdfast.tier.manifest import decode
from tests.unit.tier.rig import Rig, lease_of, values_of

HOUR_S = 3600


def segment_keys(objects: MemoryObjects) -> list[str]:
    return sorted(key for key in objects.objects if key.startswith("segments/"))


def filled(directory: Path, objects: MemoryObjects | FaultyObjects, *, frames: int = 4, **remote: object) -> Rig:
    """Every frame is a segment of `a` of almost 4 KiB; with an age, a minute after the one before."""
    rig = Rig(directory, objects, store={"retention": {"remote": remote}}, sweep="6h")
    for fsn in range(1, frames + 1):
        rig.send(fsn, "a")
        rig.upload()
        rig.clock.advance(60 if "max_age" in remote else 0.1)
    return rig


def test_segments_that_are_too_old_go_from_store_and_bucket(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = filled(tmp_path / "data", objects, max_age="150s")
    rig.tick(11)
    rig.tier.turn()
    assert values_of(rig.store, "a") == [3, 4]
    assert len(segment_keys(objects)) == len(rig.tier.state.segments) == 2
    assert rig.store.statistics().retention.evictions["remote_age"] == 2
    rig.close()


def test_the_oldest_segments_beyond_the_size_go(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = filled(tmp_path / "data", objects, max_size="9KiB")
    rig.tick(11)
    rig.tier.turn()
    assert values_of(rig.store, "a") == [3, 4]
    assert rig.tier.statistics().bytes <= 9 << 10
    rig.close()


def test_nothing_goes_that_a_subscriber_still_needs(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects, store={"retention": {"mode": "limits", "remote": {"max_size": "5KiB"}}})
    subscriber = rig.store.subscriber("slow", ["a"])
    for fsn in range(1, 5):
        rig.send(fsn, "a")
        rig.upload()
        rig.tick(60)
    rig.tier.turn()
    assert values_of(rig.store, "a") == [1, 2, 3, 4]
    for _ in range(3):
        lease_of(subscriber).ack()
    rig.tick(60)
    rig.tier.turn()
    assert values_of(rig.store, "a") == [4]
    assert rig.store.losses() == []
    rig.close()


def test_what_is_not_in_the_bucket_yet_does_not_go(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", MemoryObjects(), store={"retention": {"remote": {"max_age": "10s"}}})
    rig.send(1, "a")
    rig.tick(60)
    assert values_of(rig.store, "a") == [1]
    rig.upload()
    rig.tick(60)
    assert values_of(rig.store, "a") == []
    rig.close()


def test_the_entry_goes_before_the_object(tmp_path: Path) -> None:
    inner = MemoryObjects()
    objects = FaultyObjects(inner)
    rig = filled(tmp_path / "data", objects, max_size="5KiB")
    rig.tick(11)
    before = len(objects.requests)
    rig.tier.turn()
    asked = [request.partition(" ") for request in objects.requests[before:]]
    removals = [place for place, (verb, _, key) in enumerate(asked) if verb == "remove" and "segments/" in key]
    entries = [
        place
        for place, (verb, _, key) in enumerate(asked)
        if verb == "create" and key in inner.objects and decode(inner.objects[key]).kind == "remove"
    ]
    assert len(removals) == 3
    assert entries[0] < removals[0]
    rig.close()


def test_a_restore_that_missed_a_removal_reads_the_manifest_on(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = filled(tmp_path / "data", objects, max_size="9KiB")

    reading = threading.Lock()

    class Late(MemoryObjects):
        """The live server lets two segments go while the restore has read the manifest already."""

        gone = False

        def parts(self, key: str) -> Iterator[bytes]:
            with reading:
                if key.startswith("segments/") and not self.gone:
                    self.gone = True
                    rig.tick(11)
                    rig.tier.turn()
                    rig.close()
            return super().parts(key)

    late = Late()
    late.objects = objects.objects
    restored = Rig(tmp_path / "other", late)
    assert late.gone
    assert values_of(restored.store, "a") == [3, 4]
    restored.close()


def test_a_check_that_missed_a_removal_finds_no_damage(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = filled(tmp_path / "data", objects, max_size="9KiB")
    seen: list[str] = []

    def on_object(key: str) -> None:
        if not seen:
            rig.tick(11)
            rig.tier.turn()
        seen.append(key)

    assert check_tier(objects, workers=1, on_object=on_object).intact
    assert len(seen) == 4
    assert len(segment_keys(objects)) == 2
    rig.close()


def test_a_missing_object_that_is_still_listed_is_damage(tmp_path: Path) -> None:
    objects = MemoryObjects()
    filled(tmp_path / "data", objects).close()
    objects.remove(segment_keys(objects)[0])
    assert len(check_tier(objects, workers=1).findings) == 1
    with pytest.raises(DamagedObject, match="is not there"):
        Rig(tmp_path / "other", objects)


# -- the sweep --------------------------------------------------------------------------------------------------------


def test_an_object_nobody_lists_goes_when_two_looks_have_found_it(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = filled(tmp_path / "data", objects, frames=2)
    kept = segment_keys(objects)
    orphan = "segments/b/0000000000000099-0123456789abcdef0123456789abcdef.arrow"
    twin = kept[0].replace(".arrow", ".ids")
    for key in (orphan, twin, "probe/of-a-start-that-was-killed"):
        objects.create(key, b"x")
    rig.clock.advance(6 * HOUR_S)
    rig.tier.turn()
    assert orphan in objects.objects
    rig.clock.advance(6 * HOUR_S)
    rig.tier.turn()
    assert segment_keys(objects) == kept
    assert not any(key.startswith("probe/") for key in objects.objects)
    assert rig.uploads.swept_objects == 3
    assert check_tier(objects, workers=1).intact
    rig.close()


def test_the_sweep_leaves_alone_what_is_on_its_way(tmp_path: Path) -> None:
    """The object is there and its entry is not: a frame of two channels is listed as a whole."""
    objects = MemoryObjects()
    settings = {"channels": {"a": {"file_slice_max_msgs": 1}}, "segment": {"max_open_duration": "1h"}}
    rig = Rig(tmp_path / "data", objects, store=settings, sweep="1s")
    rig.send(1, "a", "b")  # the part in `a` is sealed and uploaded, that in `b` stays open
    for _ in range(4):
        rig.clock.advance(1.5)
        rig.tier.turn()
    assert len(segment_keys(objects)) == 1
    assert rig.durable == {}
    rig.upload()
    assert rig.durable == {"a": 1, "b": 1}
    assert check_tier(objects, workers=1).intact
    rig.close()


def test_a_process_that_died_between_entry_and_object_is_cleaned_up_after(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = filled(tmp_path / "data", objects, max_size="5KiB")
    left = dict(objects.objects)
    rig.tick(11)
    rig.tier.turn()
    rig.close()
    objects.objects |= {key: data for key, data in left.items() if key.startswith("segments/")}  # never deleted
    assert len(segment_keys(objects)) == 4
    again = Rig(tmp_path / "data", objects, sweep="6h")
    for _ in range(2):
        again.clock.advance(6 * HOUR_S + 1)
        again.tier.turn()
    assert len(segment_keys(objects)) == len(again.tier.state.segments) == 1
    again.close()


def test_a_sweep_of_one_who_was_replaced_deletes_nothing(tmp_path: Path) -> None:
    """It has nothing to write, so that nothing but the sweep tells it that the tier has gone on."""
    objects = MemoryObjects()
    first = filled(tmp_path / "data", objects, frames=2)
    second = Rig(tmp_path / "other", objects)
    second.send(3, "a")
    second.upload()
    kept = segment_keys(objects)
    assert len(kept) == 3
    first.clock.advance(6 * HOUR_S)
    first.tier.turn()
    first.clock.advance(6 * HOUR_S)
    with pytest.raises(FencedOut):
        first.tier.turn()
    assert segment_keys(objects) == kept
    second.close()
    first.close()
