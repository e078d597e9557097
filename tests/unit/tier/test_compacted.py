"""Segments that the store puts together, in the tier: swapped there as a whole, with every promise kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.store.compaction import compact
from holdfast.testing.objects import MemoryObjects
from tests.unit.tier.rig import Rig, values_of


def filled(rig: Rig, frames: range) -> None:
    for fsn in frames:
        rig.send(fsn, "a")
        rig.upload()


@pytest.mark.guarantee("G5")
def test_the_tier_swaps_them_in_one_entry_and_restores_the_same(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "one", objects)
    filled(rig, range(5))
    assert compact(rig.store, "a").segments_before == 5
    assert rig.durable == {"a": 5}
    wiped = Rig(tmp_path / "two", objects)  # the old ones are still listed, and only they
    assert values_of(wiped.store, "a") == list(range(5))
    wiped.store.close()


@pytest.mark.guarantee("G5")
def test_after_the_swap_only_the_new_one_is_restored(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "one", objects)
    filled(rig, range(5))
    compact(rig.store, "a")
    rig.upload()
    assert len(list(objects.names("segments/a"))) == 1
    filled(rig, range(5, 7))
    assert rig.durable == {"a": 7}
    restored = Rig(tmp_path / "two", objects)
    assert values_of(restored.store, "a") == list(range(7))
    assert len(restored.store.listing.segments("a", from_seq=1, limit=100)) == 3
    restored.store.close()


@pytest.mark.guarantee("G5")
def test_what_the_tier_does_not_have_yet_is_left_alone(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "one", MemoryObjects())
    filled(rig, range(2))
    for fsn in range(2, 5):
        rig.send(fsn, "a")
        rig.store.flush()
    done = compact(rig.store, "a")
    assert (done.segments_before, done.left) == (0, 1)
    rig.upload()
    assert compact(rig.store, "a").segments_before == 5


@pytest.mark.guarantee("G5")
def test_a_restart_between_the_swap_here_and_there_goes_on(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "one", objects)
    filled(rig, range(4))
    compact(rig.store, "a")
    rig.store.close()
    again = Rig(tmp_path / "one", objects)
    again.upload()
    assert len(list(objects.names("segments/a"))) == 1
    restored = Rig(tmp_path / "two", objects)
    assert values_of(restored.store, "a") == list(range(4))
    restored.store.close()


def test_a_joined_segment_that_is_evicted_before_it_was_listed_takes_the_old_ones_along(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "one", objects)
    filled(rig, range(4))
    compact(rig.store, "a")
    rig.store.remove_channel("a")
    rig.tier.turn()
    assert list(objects.names("segments/a")) == []
    assert rig.tier.state.segments == {}
    rig.close()
