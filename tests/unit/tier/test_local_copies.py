"""`retention.local`: old local copies go once the tier has them, and everything stays readable."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Store
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import OnlyInTier, TierMismatch, TierUnavailable
from holdfast.model.frame import Guid
from holdfast.spark.embedded import _ref, open_file
from holdfast.store.inspect.directory import inspect_store
from holdfast.store.repair.plan import plan_repair, repair_store
from holdfast.store.verify import verify_store
from holdfast.testing.objects import FaultyObjects, MemoryObjects
from holdfast.tier.check import check_tier
from tests.unit.tier.rig import Rig, lease_of, rows, values_of

ONE_COPY = {"retention": {"local": "5KiB"}}
"""A segment of one event has almost 4 KiB, so that one copy fits and two do not."""


def filled(directory: Path, objects: MemoryObjects | FaultyObjects, *, frames: int = 4, **settings: object) -> Rig:
    """Every frame is a segment of `a`; all of them are in the tier, and the newest one is here, too."""
    rig = Rig(directory, objects, store={**ONE_COPY, **settings})
    for fsn in range(1, frames + 1):
        rig.send(fsn, "a")
        rig.upload()
    rig.tick()
    return rig


def test_the_oldest_copies_go_and_the_newest_stay(tmp_path: Path) -> None:
    rig = filled(tmp_path / "data", MemoryObjects())
    assert rig.remote("a") == [1, 2, 3]
    assert len(rig.files("a")) == 1
    assert rig.store.statistics().retention.released_segments == 3
    assert rig.tier.statistics().remote_segments == 3
    rig.close()


def test_nothing_is_lost_to_a_reader_of_remote_segments(tmp_path: Path) -> None:
    rig = filled(tmp_path / "data", MemoryObjects())
    assert values_of(rig.store, "a") == [1, 2, 3, 4]
    assert [name for name, _ in rig.store.read_committed()] == ["a"] * 4
    rig.close()


def test_a_copy_that_is_not_in_the_tier_stays(tmp_path: Path) -> None:
    objects = FaultyObjects(MemoryObjects())
    rig = filled(tmp_path / "data", objects, frames=2)
    for fsn in (3, 4, 5):
        rig.send(fsn, "a")
        rig.tick()
    assert rig.remote("a") == [1, 2]
    assert len(rig.files("a")) == 3
    rig.tier.turn()
    rig.tick()
    assert rig.remote("a") == [1, 2, 3, 4]
    rig.close()


def test_no_copy_goes_before_the_tier_is_ours(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects)
    for fsn in (1, 2, 3):
        rig.send(fsn, "a")
        rig.upload()
    rig.close()
    other = Rig(tmp_path / "other", objects)  # restores, and takes the tier over
    other.close()
    with pytest.raises(TierMismatch):
        Rig(tmp_path / "data", objects, store=ONE_COPY)
    assert len(list((tmp_path / "data/channels/a").iterdir())) == 3


def test_a_channel_with_an_archive_script_keeps_its_copies(tmp_path: Path) -> None:
    channels = {"a": {"archive_script": "/bin/true"}}
    rig = filled(tmp_path / "data", MemoryObjects(), channels=channels)
    assert rig.remote("a") == []
    rig.close()


def test_subscribers_get_remote_segments_and_their_acks_count(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", MemoryObjects(), store=ONE_COPY)
    subscriber = rig.store.subscriber("slow", ["a"])
    for fsn in range(1, 5):
        rig.send(fsn, "a")
        rig.upload()
    rig.tick()
    assert rig.remote("a") == [1, 2, 3]
    for value in range(1, 5):
        lease = lease_of(subscriber)
        assert [batch.column("value").to_pylist() for batch in lease.read()] == [[value]]
        assert lease.path.exists()
        lease.ack()
    rig.tick()
    rig.tier.turn()
    assert (rig.files("a"), rig.remote("a")) == ([], [])
    assert rig.tier.statistics().segments == 0
    rig.close()


def test_what_is_remote_stays_so_after_a_restart(tmp_path: Path) -> None:
    objects = MemoryObjects()
    filled(tmp_path / "data", objects).close()
    again = Rig(tmp_path / "data", objects, store=ONE_COPY)
    assert again.remote("a") == [1, 2, 3]
    assert values_of(again.store, "a") == [1, 2, 3, 4]
    assert not any(key.startswith("create segments/") for key in getattr(objects, "requests", []))
    again.close()


def test_a_file_that_is_found_is_a_local_copy_again(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = filled(tmp_path / "data", objects)
    segment = rig.store.listing.segments("a", from_seq=1, limit=1)[0]
    key = rig.tier.state.segments[segment.meta.segment_seq].key
    rig.close()
    (tmp_path / "data/channels/a" / segment.file_name).write_bytes(objects.read(key))
    again = Rig(tmp_path / "data", objects)
    assert again.remote("a") == [2, 3]
    again.close()


def test_a_torn_file_beside_a_note_is_removed(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = filled(tmp_path / "data", objects)
    segment = rig.store.listing.segments("a", from_seq=1, limit=1)[0]
    rig.close()
    (tmp_path / "data/channels/a" / segment.file_name).write_bytes(b"half of it")
    again = Rig(tmp_path / "data", objects, store=ONE_COPY)
    assert again.remote("a") == [1, 2, 3]
    assert values_of(again.store, "a") == [1, 2, 3, 4]
    again.close()


def test_a_store_without_its_tier_opens_and_says_what_it_cannot_read(tmp_path: Path) -> None:
    filled(tmp_path / "data", MemoryObjects()).close()
    with Store.open(tmp_path / "data", inline=True) as store:
        store.commit("b", rows(7))
        with pytest.raises(OnlyInTier, match="segment 1 of channel 'a' is only in the tier"):
            values_of(store, "a")
        assert values_of(store, "b") == [7]


def test_another_tier_is_refused_while_segments_are_only_in_the_first(tmp_path: Path) -> None:
    filled(tmp_path / "data", MemoryObjects()).close()
    elsewhere = MemoryObjects()
    elsewhere.name = "elsewhere"
    with pytest.raises(TierMismatch, match="3 segments of the directory are only in the tier it was used with"):
        Rig(tmp_path / "data", elsewhere, store=ONE_COPY)


def test_a_bucket_that_is_away_is_an_error_of_the_reader_only(tmp_path: Path) -> None:
    objects = FaultyObjects(MemoryObjects())
    rig = filled(tmp_path / "data", objects)
    objects.broken = True
    with pytest.raises(TierUnavailable):
        values_of(rig.store, "a")
    assert rig.send(5, "b").entries[0].last_seq == 1
    assert rig.send(1, "a").duplicate  # the commit does not ask the bucket where the first one is
    objects.broken = False
    assert values_of(rig.store, "a") == [1, 2, 3, 4]
    rig.close()


def test_verify_counts_remote_segments_and_finds_no_damage(tmp_path: Path) -> None:
    rig = filled(tmp_path / "data", MemoryObjects())
    rig.close()
    report = verify_store(LocalFilesystem(), tmp_path / "data")
    assert report.intact
    assert (report.segments, report.remote_segments) == (1, 3)
    assert any("3 segments" in finding.reason and finding.severity == "note" for finding in report.findings)
    assert inspect_store(LocalFilesystem(), tmp_path / "data").damage == ()
    assert inspect_store(LocalFilesystem(), tmp_path / "data").unknown == ()


def test_verify_remote_misses_what_the_directory_counts_on(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = filled(tmp_path / "data", objects)
    needed = [item for item in rig.store.listing.segments("a", from_seq=1, limit=10) if item.remote]
    assert check_tier(objects, workers=1, needed=needed).intact
    rig.close()
    empty = MemoryObjects()
    findings = check_tier(empty, workers=1, needed=needed).findings
    assert [finding.first_seq for finding in findings] == [1, 2, 3]
    assert "does not list it" in findings[0].reason


@pytest.mark.parametrize("rebuild_catalog", [False, True])
def test_repair_does_not_take_remote_segments_for_lost(tmp_path: Path, rebuild_catalog: bool) -> None:
    objects = MemoryObjects()
    rig = filled(tmp_path / "data", objects)
    rig.close()
    plan = plan_repair(LocalFilesystem(), tmp_path / "data", rebuild_catalog=rebuild_catalog)
    assert plan.needed == rebuild_catalog
    assert plan.missing == ()
    repair_store(LocalFilesystem(), tmp_path / "data", rebuild_catalog=rebuild_catalog)
    assert verify_store(LocalFilesystem(), tmp_path / "data").remote_segments == 3
    again = Rig(tmp_path / "data", objects, store=ONE_COPY)
    assert again.remote("a") == [1, 2, 3]
    assert values_of(again.store, "a") == [1, 2, 3, 4]
    again.close()


def test_scrubbing_does_not_miss_remote_segments(tmp_path: Path) -> None:
    rig = filled(tmp_path / "data", MemoryObjects())
    rig.store.scrub_step(1 << 20)
    scrub = rig.store.statistics().scrub
    assert (scrub.segments, scrub.findings) == (1, ())
    rig.close()


def test_remote_bytes_do_not_count_for_the_size_cap(tmp_path: Path) -> None:
    cap = {"local": "5KiB", "size_cap": "2MiB", "size_cap_policy": "drop_oldest"}
    log = {"max_size": "1MiB", "rotation_size": "256KiB"}
    small = {"frame": {"max_size": "64KiB"}, "segment": {"target_size": "64KiB"}, "wal": log, "retention": cap}
    rig = Rig(tmp_path / "data", MemoryObjects(), store=small)
    value = 0
    while rig.tier.statistics().bytes < 3 << 20:
        value += 1
        rig.store.commit("a", rows(*range(7000)))
        rig.upload()
        rig.tick()
    assert rig.store.losses() == []
    assert sum(batch.num_rows for batch in rig.store.read("a")) == 7000 * value
    rig.close()


def test_a_restore_fetches_no_more_than_the_local_copies(tmp_path: Path) -> None:
    objects = MemoryObjects()
    filled(tmp_path / "data", objects).close()
    again = Rig(tmp_path / "new", objects, store=ONE_COPY)
    assert again.restored is not None
    assert (again.restored.segments, again.restored.fetched) == (4, 1)
    assert again.remote("a") == [1, 2, 3]
    assert values_of(again.store, "a") == [1, 2, 3, 4]
    assert again.send(2, "a").duplicate
    again.close()


def test_a_program_that_maps_files_is_told_which_segment_is_elsewhere(tmp_path: Path) -> None:
    """As Spark does with the directory alone."""
    rig = filled(tmp_path / "data", MemoryObjects())
    refs = [_ref("a", segment) for segment in rig.store.listing.segments("a", from_seq=1, limit=10)]
    with pytest.raises(OnlyInTier, match="read it through the server"), open_file(tmp_path / "data", refs[0]):
        pass
    with open_file(tmp_path / "data", refs[3]) as reader:
        assert reader.meta.first_seq == 4
    rig.close()


def test_guids_of_remote_segments_are_known_after_a_restart(tmp_path: Path) -> None:
    objects = MemoryObjects()
    rig = Rig(tmp_path / "data", objects, store=ONE_COPY)
    for number in range(4):
        rig.store.commit("a", rows(number), identity=Guid(bytes([number]) * 16))
        rig.upload()
    rig.tick()
    assert rig.remote("a") == [1, 2, 3]
    rig.close()
    again = Rig(tmp_path / "data", objects, store=ONE_COPY, clock=rig.clock)
    assert again.store.commit("a", rows(0), identity=Guid(bytes(16))).duplicate
    again.close()
