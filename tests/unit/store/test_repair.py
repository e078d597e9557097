"""Repair: everything that any intact byte holds is there afterwards, and what is not is named by channel and seq.

The store that is damaged here is made once, on the crash disk, by a killed process: three channels, a slot, GUIDs,
events with ids, two subscribers, segments that were evicted, several log files and an open tail.
"""

from __future__ import annotations

import errno
import random
import struct
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.disk.appendlog import HEADER_BYTES, FileHeader, LogFile, read_log_file
from holdfast.disk.checksum import crc32c
from holdfast.errors import BadRequest, CorruptData, Locked, UnsupportedFormat
from holdfast.model.frame import Entry, EventIds, Guid, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.store.repair import MissingRange, RepairPlan, apply_repair, plan_repair
from holdfast.store.verify import verify_store
from holdfast.store.wal.codec import KIND_FRAME, KIND_SCHEMA, decode_frame, decode_schema_note
from holdfast.testing import CrashFilesystem, ManualClock

ROOT = Path("/data/store")
CONFIG: dict[str, object] = {
    "segment.target_size": "8KiB",
    "segment.max_open_duration": "1h",
    "wal.rotation_size": "64KiB",
    "wal.max_size": "1MiB",
    "frame.max_size": "32KiB",
    "memory_limit": "1MiB",
    "lease_timeout": "1h",
}
SLOT = b"slot of producer"
GUID = b"guid of one call"
FRAMES = 84
Events = dict[str, dict[int, object]]


def open_store(disk: CrashFilesystem, **settings: object) -> Store:
    return Store.open(ROOT, {**CONFIG, **settings}, filesystem=disk, clock=ManualClock(), inline=True)


def trade(number: int) -> dict[str, object]:
    return {"id": number, "text": f"trade {number} " + "x" * (60 + number % 40)}


def fill(store: Store) -> None:
    """Frames of a slot with three channels, now and then something else."""
    for fsn in range(1, FRAMES + 1):
        trades = pa.RecordBatch.from_pylist([trade(fsn * 100 + n) for n in range(12)])
        orders = pa.record_batch({"id": [fsn, -fsn]})
        store.commit_frame([Entry("trades", trades), Entry("orders", orders)], identity=SlotFrame(SLOT, Fsn(fsn)))
        if fsn % 7 == 0:
            store.commit("notes", pa.record_batch({"key": [f"key-{fsn}", f"key-{fsn}-b"]}), identity=EventIds("key"))
    store.commit("orders", pa.record_batch({"id": [0]}), identity=Guid(GUID))


@cache
def left() -> CrashFilesystem:
    """What the killed process left. `lake` acked the first two segments, `mirror` the second: it was evicted."""
    disk = CrashFilesystem()
    store = open_store(disk)
    lake, mirror = store.subscriber("lake", ["trades"]), store.subscriber("mirror", ["trades"])
    fill(store)
    leases = [lake.poll(0), lake.poll(0)]
    assert all(lease is not None for lease in leases)
    for lease in leases:
        assert lease is not None
        lease.ack()
    first, second = mirror.poll(0), mirror.poll(0)
    assert first is not None
    assert second is not None
    second.ack()
    store._keeper.tick()
    return disk.after_kill()


def damaged(*changes: Callable[[CrashFilesystem], object]) -> CrashFilesystem:
    disk = left().after_kill()
    for change in changes:
        change(disk)
    return disk


def read_all(store: Store) -> Events:
    """Channel to seq to value."""
    found: Events = {}
    for channel in store.channels():
        for batch in store.read(channel, system=["_seq"]):
            for row in batch.to_pylist():
                seq = row.pop("_seq")
                found.setdefault(channel, {})[seq] = row
    return found


@cache
def original() -> Events:
    return read_all(open_store(left().after_kill()))


@cache
def stored() -> Events:
    """What was ever stored, evicted or not."""
    store = open_store(CrashFilesystem())
    fill(store)
    return read_all(store)


@cache
def next_seqs() -> dict[str, int]:
    store = open_store(left().after_kill())
    return {name: store.commit(name, another(name)).first_seq for name in store.channels()}


def another(channel: str) -> pa.RecordBatch:
    """An event that the channel takes."""
    rows = {"trades": trade(0), "orders": {"id": 1}, "notes": {"key": "another"}}
    return pa.RecordBatch.from_pylist([rows[channel]])


def paths(disk: CrashFilesystem, part: str) -> list[Path]:
    """Files of the store below a folder, the logs oldest first, segments by number."""
    found = [path for path in disk.paths() if path.is_relative_to(ROOT / part)]
    return sorted(found, key=lambda path: (len(path.name), path.name))


def flip(disk: CrashFilesystem, path: Path, offset: int, *, bit: int = 0) -> None:
    data = bytearray(disk.read_bytes(path))
    data[offset] ^= 1 << bit
    disk.write_bytes(path, bytes(data))


def log_of(path: Path) -> LogFile:
    """A log file of the undamaged store."""
    return read_log_file(left().after_kill(), path, last=True)


def repair(disk: CrashFilesystem, *, rebuild_catalog: bool = False) -> RepairPlan:
    plan = plan_repair(disk, ROOT, rebuild_catalog=rebuild_catalog)
    apply_repair(disk, plan, clock=ManualClock())
    return plan


def ranges(plan: RepairPlan, reason: str = "damage") -> list[tuple[str, int, int]]:
    return [(item.channel, item.first_seq, item.last_seq) for item in plan.missing if item.reason == reason]


def missing_seqs(plan: RepairPlan) -> set[tuple[str, int]]:
    return {(item.channel, seq) for item in plan.missing for seq in range(item.first_seq, item.last_seq + 1)}


def check(disk: CrashFilesystem, plan: RepairPlan, *, exact: bool = True) -> Store:
    """After a repair: verify is content, the store opens, what is there is right, and what is not was said."""
    report = verify_store(disk, ROOT, live=False)
    assert report.intact, [finding for finding in report.findings if finding.severity == "damage"]
    assert not plan_repair(disk, ROOT).needed
    store = open_store(disk)
    found = read_all(store)
    gone = {
        (channel, seq) for channel, events in original().items() for seq in events if seq not in found.get(channel, {})
    }
    if exact:
        assert gone == missing_seqs(plan)
    else:
        assert gone <= missing_seqs(plan) or plan.uncertain or store.recovery.cut
    for channel, events in found.items():
        for seq, value in events.items():
            assert stored()[channel][seq] == value, f"{channel} {seq} is not what was stored"
            assert plan.rebuild_catalog or not exact or seq in original()[channel], f"{channel} {seq} was evicted"
    return store


def check_numbers(store: Store) -> None:
    """No seq that was ever given out is given out again."""
    for channel, before in next_seqs().items():
        if channel in store.channels():
            assert store.commit(channel, another(channel)).first_seq >= before


# ------------------------------------------------------------------------------------------------------------ the scene


def test_scene_has_evicted_segments_and_several_log_files() -> None:
    assert len(paths(left(), "wal")) >= 2
    assert len(paths(left(), "channels/trades")) >= 4
    assert min(original()["trades"]) == 1
    assert sorted(original()["trades"])[-1] - len(original()["trades"]) > 0, "nothing was evicted"
    assert verify_store(left().after_kill(), ROOT, live=False).intact


# ------------------------------------------------------------------------------------------------------------- planning


def test_sound_store_needs_no_repair() -> None:
    plan = plan_repair(damaged(), ROOT)
    assert not plan.needed
    assert (plan.findings, plan.actions, plan.missing) == ((), (), ())


def test_planning_changes_no_byte_of_a_damaged_store() -> None:
    disk = damaged(
        lambda disk: flip(disk, paths(disk, "wal")[0], 5000), lambda disk: flip(disk, ROOT / "catalog.db", 5000)
    )
    before = {path: disk.read_bytes(path) for path in disk.paths() if path.name != "lock"}
    assert plan_repair(disk, ROOT).needed
    assert {path: disk.read_bytes(path) for path in disk.paths() if path.name != "lock"} == before


def test_store_that_is_open_is_not_repaired() -> None:
    disk = damaged()
    open_store(disk)
    with pytest.raises(Locked):
        plan_repair(disk, ROOT)


def test_plan_for_another_state_of_the_store_is_refused() -> None:
    disk = damaged(lambda disk: flip(disk, paths(disk, "wal")[0], 5000))
    plan = plan_repair(disk, ROOT)
    flip(disk, paths(disk, "wal")[1], 5000)
    with pytest.raises(BadRequest, match="has changed"):
        apply_repair(disk, plan)


def test_directory_without_a_store_is_refused_and_stays_empty() -> None:
    disk = CrashFilesystem()
    disk.makedir(Path("/empty"))
    with pytest.raises(BadRequest, match="not a store"):
        plan_repair(disk, Path("/empty"))
    assert disk.paths() == []


def test_repaired_store_needs_no_second_repair_and_goes_on() -> None:
    disk = damaged(lambda disk: flip(disk, paths(disk, "wal")[0], 5000))
    plan = repair(disk)
    store = check(disk, plan)
    check_numbers(store)
    store.close()
    assert not plan_repair(disk, ROOT).needed


def test_what_was_taken_away_is_in_quarantine_byte_for_byte() -> None:
    disk = damaged(
        lambda disk: flip(disk, paths(disk, "wal")[0], 5000),
        lambda disk: flip(disk, paths(disk, "channels/trades")[2], 90),
    )
    before = {path.relative_to(ROOT): disk.read_bytes(path) for path in disk.paths() if path.name != "lock"}
    plan = plan_repair(disk, ROOT)
    report = apply_repair(disk, plan, clock=ManualClock())
    quarantine = Path(report.quarantine)
    kept = {
        path.relative_to(quarantine): disk.read_bytes(path) for path in disk.paths() if path.is_relative_to(quarantine)
    }
    assert kept.pop(Path("report.json"))
    assert set(map(str, kept)) == set(report.quarantined) - {"report.json"}
    assert kept == {place: before[place] for place in kept}
    gone = {place for place in before if not disk.exists(ROOT / place)}
    assert gone
    assert gone <= set(kept)


# ------------------------------------------------------------------------------------------------------- damaged records


@cache
def records() -> list[tuple[Path, int, int, set[tuple[str, int]]]]:
    """(file, offset, kind, events) of every record of the undamaged write-ahead log."""
    return [record for path in paths(left(), "wal") for record in records_of(path)]


def records_of(path: Path) -> Iterator[tuple[Path, int, int, set[tuple[str, int]]]]:
    names: dict[int, str] = {}
    found = log_of(path)
    for record in found.records:
        events: set[tuple[str, int]] = set()
        if record.kind == KIND_SCHEMA:
            note = decode_schema_note(record.payload)
            names[note.channel_id] = note.channel
        if record.kind == KIND_FRAME:
            for entry in decode_frame(record.payload).entries:
                seqs = range(entry.first_seq, entry.first_seq + entry.payload.rows)
                events |= {(names[entry.channel_id], seq) for seq in seqs}
        yield path, record.position - found.header.start_position, record.kind, events


@pytest.mark.guarantee("G9")
@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("part", range(4))
def test_damage_to_any_frame_of_the_log_loses_that_frame_and_nothing_else(part: int) -> None:
    everything = records()
    last = everything[-1]
    for path, offset, kind, events in everything[part::4]:
        if kind != KIND_FRAME or (path, offset) == last[:2]:
            continue
        disk = damaged(lambda disk, path=path, offset=offset: flip(disk, path, offset + 60, bit=3))  # type: ignore[misc]
        plan = repair(disk)
        expected = {(channel, seq) for channel, seq in events if not published(channel, seq)}
        assert missing_seqs(plan) == expected
        store = check(disk, plan)
        check_numbers(store)


@cache
def published_up_to() -> dict[str, int]:
    store = open_store(left().after_kill())
    return {channel.name: channel.published_seq for channel in store._channels}


def published(channel: str, seq: int) -> bool:
    return seq <= published_up_to().get(channel, 0)


@pytest.mark.guarantee("G9")
def test_damage_to_the_very_last_frame_skips_numbers_and_says_so() -> None:
    path, offset, _, events = records()[-1]
    disk = damaged(lambda disk: flip(disk, path, offset + 60))
    plan = repair(disk)
    assert len(plan.uncertain) == 1
    assert path.name in plan.uncertain[0]
    store = check(disk, plan, exact=False)
    found = read_all(store)
    assert {
        (channel, seq) for channel, rows in original().items() for seq in rows if seq not in found[channel]
    } == events
    check_numbers(store)


@pytest.mark.guarantee("G9")
def test_damage_to_a_schema_record_is_made_good_by_the_neighbouring_file() -> None:
    schemas = [(path, offset) for path, offset, kind, _ in records() if kind == KIND_SCHEMA]
    first, *later = [(path, offset) for path, offset in schemas if path == paths(left(), "wal")[1]]
    for path, offset in (first, *later):
        disk = damaged(lambda disk, path=path, offset=offset: flip(disk, path, offset + 45))  # type: ignore[misc]
        plan = repair(disk)
        assert plan.missing == ()
        check(disk, plan)


def test_frames_without_any_schema_are_lost_by_seq_and_kept_in_quarantine() -> None:
    notes = [
        (path, log_of(path), record)
        for path in paths(left(), "wal")
        for record in log_of(path).records
        if record.kind == KIND_SCHEMA and decode_schema_note(record.payload).channel == "notes"
    ]
    disk = damaged()
    for path, found, record in notes:
        flip(disk, path, record.position - found.header.start_position + 45)
    plan = repair(disk)
    assert ranges(plan) == [("notes", 1, len(original()["notes"]))]
    check(disk, plan)


@pytest.mark.guarantee("G9")
def test_several_damaged_records_are_each_named() -> None:
    frames = [(path, offset, events) for path, offset, kind, events in records() if kind == KIND_FRAME]
    chosen = frames[-9], frames[-6], frames[-3]
    disk = damaged()
    for path, offset, _ in chosen:
        flip(disk, path, offset + 60)
    plan = repair(disk)
    assert missing_seqs(plan) == {event for _, _, events in chosen for event in events if not published(*event)}
    check_numbers(check(disk, plan))


def test_damaged_header_of_a_log_file_costs_nothing() -> None:
    for path in paths(left(), "wal"):
        disk = damaged(lambda disk, path=path: flip(disk, path, 20))  # type: ignore[misc]
        plan = repair(disk)
        assert plan.missing == ()
        check(disk, plan)


def test_header_and_first_record_lost_together_cost_only_that_record() -> None:
    path = paths(left(), "wal")[-1]
    disk = damaged(lambda disk: disk.write_bytes(path, bytes(90) + disk.read_bytes(path)[90:]))
    plan = repair(disk)
    assert plan.missing == ()
    check_numbers(check(disk, plan))


def test_missing_oldest_log_file_loses_what_only_it_held() -> None:
    path = paths(left(), "wal")[0]
    held = {event for file, _, _, events in records() if file == path for event in events}
    disk = damaged(lambda disk: disk.unlink(path))
    plan = repair(disk)
    assert missing_seqs(plan) == {event for event in held if not published(*event)}
    check(disk, plan)


def test_missing_newest_log_file_skips_numbers_and_says_so() -> None:
    disk = damaged(lambda disk: disk.unlink(paths(disk, "wal")[-1]))
    plan = repair(disk)
    assert plan.uncertain
    check_numbers(check(disk, plan, exact=False))


def test_log_file_of_another_store_is_set_aside_and_not_read() -> None:
    other = CrashFilesystem()
    stranger = open_store(other)
    stranger.commit("trades", pa.RecordBatch.from_pylist([{"id": 666, "text": "of another store"}]))
    foreign = other.after_kill().read_bytes(paths(other.after_kill(), "wal")[0])
    disk = damaged(lambda disk: disk.write_bytes(paths(disk, "wal")[0], foreign))
    plan = repair(disk)
    check(disk, plan, exact=False)


def test_bad_sectors_of_a_log_are_read_around() -> None:
    """The disk does not give one megabyte: every read of it fails, in large pieces and in small ones."""
    disk = damaged(lambda disk: flip(disk, paths(disk, "wal")[0], 5000))
    first = plan_repair(disk, ROOT)
    reads = disk.reads
    again = damaged(lambda disk: flip(disk, paths(disk, "wal")[0], 5000))
    for number in range(1, reads):
        again.fail_read_at(number, errno.EIO)
        try:
            plan = plan_repair(again, ROOT)
        except OSError:
            plan = None
        again.stop_failing()
        again.reads = 0
        assert plan is None or plan.needed
    assert plan_repair(again, ROOT) == first


# -------------------------------------------------------------------------------------------------------------- segments


def closed() -> CrashFilesystem:
    """The same events, closed in order: only segments hold them."""
    disk = left().after_kill()
    open_store(disk).close()
    return disk.after_kill()


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


# --------------------------------------------------------------------------------------------------------------- catalog


def without_catalog(disk: CrashFilesystem) -> None:
    disk.unlink(ROOT / "catalog.db")


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
    assert store.subscribers() == before.subscribers()
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


# ----------------------------------------------------------------------------------------------------------- subscribers


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
    assert [item.outcomes["dropped"] for item in store.subscribers() if item.name == "late"][0] >= last - first + 1


def marks(store: Store) -> dict[str, list[tuple[int, tuple[tuple[int, int], ...]]]]:
    return {item.name: [(lag.mark, lag.gaps) for lag in item.channels] for item in store.subscribers()}


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
        assert after != expected or record is found.records[-1]


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


def missing_seqs_of(plan: RepairPlan, channel: str) -> set[int]:
    return {seq for name, seq in missing_seqs(plan) if name == channel}


# ------------------------------------------------------------------------------------------------------------- anything


def scribble(disk: CrashFilesystem, chance: random.Random) -> None:
    """Some damage to some file: flipped bits, zeros, a cut, a lost file."""
    found = [path for path in disk.paths() if path.name != "lock" and "quarantine" not in path.parts]
    path = chance.choice(found)
    data = bytearray(disk.read_bytes(path))
    kind = chance.choice(("flip", "flip", "zero", "cut", "lose"))
    at = chance.randrange(len(data)) if data else 0
    if kind == "lose" or not data:
        disk.unlink(path)
        return
    if kind == "flip":
        data[at] ^= 1 << chance.randrange(8)
    elif kind == "zero":
        count = min(chance.choice((1, 512, 4096)), len(data) - at)
        data[at : at + count] = bytes(count)
    else:
        del data[at:]
    disk.write_bytes(path, bytes(data))


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("seed", range(40))
def test_any_damage_can_be_repaired_and_nothing_wrong_is_delivered(seed: int) -> None:
    chance = random.Random(seed)
    disk = damaged() if seed % 3 else closed()
    for _ in range(chance.randrange(1, 5)):
        scribble(disk, chance)
    try:
        plan = repair(disk)
    except BadRequest:
        assert not disk.paths(), "only a directory without anything is no store"
        return
    store = check(disk, plan, exact=False)
    store.close()
    assert verify_store(disk, ROOT, live=False).intact


def test_refusing_error_names_the_damage_that_repair_mends() -> None:
    disk = damaged(lambda disk: flip(disk, paths(disk, "wal")[0], 5000))
    with pytest.raises(CorruptData) as refused:
        open_store(disk)
    plan = repair(disk)
    assert (plan.findings[0].file, plan.findings[0].offset_bytes) == (
        str(refused.value.file),
        refused.value.offset_bytes,
    )
    assert MissingRange("a", 1, 3, "damage").events == 3
