"""Repair of segments and the catalog, and what subscribers see of it."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.disk.appendlog import HEADER_BYTES, FileHeader
from holdfast.disk.checksum import crc32c
from holdfast.errors import UnsupportedFormat
from holdfast.model.frame import EventIds, Guid, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.store.repair import plan_repair
from holdfast.store.verify import verify_store
from holdfast.store.wal.codec import KIND_FRAME
from holdfast.testing import CrashFilesystem, ManualClock
from tests.unit.store.damaged_store import (
    FRAMES,
    GUID,
    ROOT,
    SLOT,
    check,
    check_numbers,
    closed,
    damaged,
    fill,
    flip,
    left,
    log_of,
    marks,
    missing_seqs_of,
    open_store,
    original,
    paths,
    published,
    ranges,
    read_all,
    records,
    repair,
    without_catalog,
)

# ------------------------------------------------------------------------------------------------------------- segments


@pytest.mark.guarantee("G9")
def test_damaged_segment_that_the_log_still_holds_is_made_good() -> None:
    path = paths(left(), "channels/trades")[-1]
    disk = damaged(lambda disk: flip(disk, path, 100))
    plan = repair(disk)
    assert plan.missing == ()
    assert plan.rescued_events > 0
    check(disk, plan)


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("how", ["flipped", "cut", "missing"])
def test_damaged_segment_that_nothing_else_holds_is_lost_by_seq(how: str) -> None:
    disk = closed()
    path = paths(disk, "channels/trades")[-1]
    if how == "flipped":
        flip(disk, path, 100)
    elif how == "cut":
        disk.write_bytes(path, disk.read_bytes(path)[:-100])
    else:
        disk.unlink(path)
    plan = repair(disk)
    ((channel, first, last),) = ranges(plan)
    assert channel == "trades"
    store = check(disk, plan)
    assert store.losses()[0].events == last - first + 1
    check_numbers(store)


def large_segment() -> tuple[CrashFilesystem, int]:
    """One segment with five batches of 300 KiB, and how many rows each has."""
    disk, rows = CrashFilesystem(), 300
    config = {"segment.target_size": "1536KiB", "memory_limit": "8MiB", "frame.max_size": "1MiB"}
    store = Store.open(ROOT, config, filesystem=disk, clock=ManualClock(), inline=True)
    chance = random.Random(1)
    for _ in range(5):
        store.commit("trades", pa.record_batch({"body": [chance.randbytes(1024) for _ in range(rows)]}))
    store.close()
    Store.open(ROOT, filesystem=disk, clock=ManualClock(), inline=True).close()  # lets the old log files go
    return disk.after_kill(), rows


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("batch", range(5))
def test_damaged_batch_of_a_segment_loses_that_batch_only(batch: int) -> None:
    disk, rows = large_segment()
    (path,) = paths(disk, "channels/trades")
    flip(disk, path, 310_000 * batch + 200_000)
    plan = repair(disk)
    assert ranges(plan) == [("trades", rows * batch + 1, rows * (batch + 1))]
    assert verify_store(disk, ROOT, live=False).intact
    store = Store.open(ROOT, filesystem=disk, clock=ManualClock(), inline=True)
    assert sum(found.num_rows for found in store.read("trades")) == 4 * rows


def test_damaged_footer_of_a_segment_loses_all_of_it() -> None:
    disk, rows = large_segment()
    (path,) = paths(disk, "channels/trades")
    flip(disk, path, len(disk.read_bytes(path)) - 400)
    plan = repair(disk)
    assert ranges(plan) == [("trades", 1, 5 * rows)]


def test_segment_of_another_store_is_set_aside() -> None:
    other, _ = large_segment()
    foreign = paths(other, "channels/trades")[0]
    disk = damaged(lambda disk: disk.write_bytes(ROOT / "channels/trades/seg-9000.arrow", other.read_bytes(foreign)))
    plan = repair(disk)
    assert plan.missing == ()
    assert not disk.exists(ROOT / "channels/trades/seg-9000.arrow")
    check(disk, plan)


def test_copy_of_an_evicted_segment_does_not_come_back() -> None:
    evicted = sorted(set(range(1, max(original()["trades"]))) - set(original()["trades"]))
    disk = damaged(lambda disk: flip(disk, paths(disk, "wal")[1], 5000))
    plan = repair(disk)
    store = check(disk, plan)
    assert evicted
    assert not set(evicted) & set(read_all(store)["trades"])


def test_good_copy_that_was_put_back_is_entered_again() -> None:
    disk = closed()
    path = paths(disk, "channels/trades")[-1]
    good = disk.read_bytes(path)
    flip(disk, path, 100)
    ((_, first, last),) = ranges(repair(disk))
    disk.write_bytes(path, good)
    plan = repair(disk)
    assert [action.kind for action in plan.actions] == ["adopt"]
    assert verify_store(disk, ROOT, live=False).intact
    assert set(range(first, last + 1)) <= set(read_all(open_store(disk))["trades"])


# -------------------------------------------------------------------------------------------------------------- catalog


def garbage_catalog(disk: CrashFilesystem) -> None:
    disk.write_bytes(ROOT / "catalog.db", b"not a database " * 500)


def damaged_page(disk: CrashFilesystem) -> None:
    size = len(disk.read_bytes(ROOT / "catalog.db"))
    chance = random.Random(5)
    for _ in range(400):
        flip(disk, ROOT / "catalog.db", chance.randrange(4096, size), bit=chance.randrange(8))


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("damage", [without_catalog, garbage_catalog, damaged_page])
def test_lost_catalog_is_rebuilt_from_segments_and_logs(damage: Callable[[CrashFilesystem], None]) -> None:
    disk = damaged(damage)
    plan = repair(disk)
    assert plan.findings
    assert ranges(plan) == []
    store = check(disk, plan, exact=False)
    found = read_all(store)
    assert {channel: {seq: found[channel][seq] for seq in rows} for channel, rows in original().items()} == original()
    check_numbers(store)


def test_rebuilding_a_sound_catalog_keeps_everything() -> None:
    before = open_store(left().after_kill())
    disk = damaged()
    plan = repair(disk, rebuild_catalog=True)
    assert plan.missing == ()
    store = check(disk, plan)
    assert marks(store) == marks(before)
    assert store._catalog.gone(1) == before._catalog.gone(1)
    for channel in store.channels():
        assert store.schema(channel) == before.schema(channel)


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("damage", [without_catalog, damaged_page])
def test_rebuilt_catalog_recognises_repeats(damage: Callable[[CrashFilesystem], None]) -> None:
    """Of slots, GUIDs, and events whose id column the log tells; not of frames whose events were evicted before."""
    disk = damaged(damage)
    repair(disk)
    store = open_store(disk)
    batch = pa.record_batch({"id": [FRAMES, -FRAMES]})
    assert store.commit("orders", batch, identity=SlotFrame(SLOT, Fsn(FRAMES))).duplicate
    assert store.commit("orders", pa.record_batch({"id": [0]}), identity=Guid(GUID)).duplicate
    keys = pa.record_batch({"key": ["key-7", "key-84-b"]})
    assert store.commit("notes", keys, identity=EventIds("key")).duplicate
    assert store.statistics().events == 0


@pytest.mark.guarantee("G4")
def test_segment_numbers_are_not_used_again_after_a_rebuild() -> None:
    highest = max(int(path.stem.removeprefix("seg-")) for path in paths(left(), "channels"))
    disk = damaged(without_catalog)
    before = set(paths(disk, "channels"))
    repair(disk)
    store = open_store(disk)
    store.commit("orders", pa.record_batch({"id": [5]}))
    store.close()
    numbers = {int(path.stem.removeprefix("seg-")) for path in set(paths(disk, "channels")) - before}
    assert min(numbers) >= highest + 1_000_000


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("closing", [False, True])
def test_catalog_of_an_earlier_moment_is_brought_up_to_date(closing: bool) -> None:
    """A page cache that was lost, a file from a backup: everything else is newer than the catalog."""
    disk = CrashFilesystem()
    store = open_store(disk)
    fill(store)
    earlier = disk.read_bytes(ROOT / "catalog.db")
    number = store._catalog.segment_seq_floor
    store.close()
    store = open_store(disk)  # goes on with the next block of segment numbers
    for _ in range(300):
        store.commit("orders", pa.record_batch({"id": range(200)}))
    expected, committed = read_all(store), store.statistics().next_committed_id
    if closing:
        store.close()
        open_store(disk)  # lets the old log files go
    left = disk.after_kill()
    highest = max(int(path.stem.removeprefix("seg-")) for path in paths(left, "channels"))
    assert highest > number
    left.write_bytes(ROOT / "catalog.db", earlier)
    plan = repair(left)
    assert plan.missing == ()
    assert verify_store(left, ROOT, live=False).intact
    again = open_store(left)
    assert read_all(again) == expected
    assert again.commit("orders", pa.record_batch({"id": [1]})).first_committed_id >= committed
    assert again._catalog.next_segment_seq() > highest


def test_catalog_and_log_damaged_together_still_name_what_is_lost() -> None:
    frames = [(path, offset, events) for path, offset, kind, events in records() if kind == KIND_FRAME]
    path, offset, events = frames[-5]
    disk = damaged(without_catalog, lambda disk: flip(disk, path, offset + 60))
    plan = repair(disk)
    assert set(ranges(plan)) == {
        (channel, min(seqs), max(seqs))
        for channel in {channel for channel, _ in events}
        if (seqs := [seq for name, seq in events if name == channel and not published(name, seq)])
    }
    check(disk, plan, exact=False)


def test_store_of_a_later_version_is_refused_and_not_touched() -> None:
    path = paths(left(), "wal")[-1]
    data = bytearray(left().read_bytes(path))
    data[8:10] = struct.pack("<H", 9)
    data[HEADER_BYTES - 4 : HEADER_BYTES] = struct.pack("<I", crc32c(bytes(data[: HEADER_BYTES - 4])))
    with pytest.raises(UnsupportedFormat):
        FileHeader.decode(path, bytes(data[:HEADER_BYTES]))
    disk = damaged(lambda disk: disk.write_bytes(path, bytes(data)))
    with pytest.raises(UnsupportedFormat):
        plan_repair(disk, ROOT)


# ---------------------------------------------------------------------------------------------------------- subscribers


@pytest.mark.guarantee("G6")
@pytest.mark.guarantee("G7")
def test_subscribers_see_what_is_lost_as_dropped_and_their_marks_pass_it() -> None:
    disk = closed()
    flip(disk, paths(disk, "channels/trades")[-3], 100)
    ((_, first, last),) = ranges(repair(disk))
    store = open_store(disk)
    losses = {(loss.subscriber, loss.reason): loss.events for loss in store.losses() if loss.channel == "trades"}
    lost = last - first + 1
    assert losses == {("", "damage"): lost, ("lake", "damage"): lost, ("mirror", "damage"): lost}
    lake = store.subscriber("lake", ["trades"])
    seen: set[int] = set()
    while (lease := lake.poll(0)) is not None:
        seen |= set(range(lease.first_seq, lease.last_seq + 1))
        lease.ack()
    assert not seen & set(range(first, last + 1))
    ((progress,),) = [item.channels for item in store.subscribers() if item.name == "lake"]
    assert (progress.mark, progress.gaps) == (max(original()["trades"]), ())
    store.close()
    again = open_store(disk)
    assert {(loss.subscriber, loss.reason): loss.events for loss in again.losses()} == losses


def test_subscriber_that_comes_later_is_told_at_once_what_is_lost() -> None:
    disk = closed()
    flip(disk, paths(disk, "channels/trades")[-3], 100)
    ((_, first, last),) = ranges(repair(disk))
    store = open_store(disk)
    late = store.subscriber("late", ["trades"])
    while (lease := late.poll(0)) is not None:
        lease.ack()
    ((progress,),) = [item.channels for item in store.subscribers() if item.name == "late"]
    assert (progress.mark, progress.gaps, progress.events) == (max(original()["trades"]), (), 0)
    assert next(item.outcomes["dropped"] for item in store.subscribers() if item.name == "late") >= last - first + 1


@pytest.mark.guarantee("G7")
def test_marks_survive_the_loss_of_the_catalog() -> None:
    """Of subscribers that the log's newest snapshot names: those here registered in an earlier session."""
    started = left().after_kill()
    open_store(started)  # a new log file, which begins with a snapshot
    expected = marks(open_store(started.after_kill()))
    disk = started.after_kill()
    without_catalog(disk)
    repair(disk)
    assert marks(open_store(disk)) == expected


@pytest.mark.guarantee("G7")
def test_damaged_record_of_the_ack_log_costs_only_that_answer() -> None:
    (path,) = paths(left(), "ack")
    found = log_of(path)
    expected = marks(open_store(left().after_kill()))
    for record in found.records[1:]:
        disk = damaged(
            lambda disk, at=record.position - found.header.start_position: flip(disk, path, at + 44)  # type: ignore[misc]
        )
        plan = repair(disk)
        assert plan.missing == ()
        store = check(disk, plan)
        after = marks(store)
        assert set(after) == set(expected)
        for name, lags in expected.items():
            assert [mark <= before for (mark, _), (before, _) in zip(after[name], lags, strict=True)]


def test_store_with_a_damaged_segment_and_lost_catalog_opens_with_the_rest() -> None:
    disk = closed()
    without_catalog(disk)
    path = paths(disk, "channels/trades")[-1]
    flip(disk, path, 100)
    plan = repair(disk)
    assert verify_store(disk, ROOT, live=False).intact
    found = read_all(open_store(disk))
    assert found["orders"] == original()["orders"]
    assert set(original()["trades"]) - set(found["trades"]) == missing_seqs_of(plan, "trades") & set(
        original()["trades"]
    )
