"""Repair: everything that any intact byte holds is there afterwards, and what is not is named by channel and seq.

Here: planning, damaged logs, and damage of any kind anywhere. Segments, the catalog and subscribers are in
`test_repair_files.py`.
"""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import BadRequest, CorruptData, Locked
from holdfast.store.repair import MissingRange, apply_repair, plan_repair
from holdfast.store.verify import verify_store
from holdfast.store.wal.codec import KIND_FRAME, KIND_SCHEMA, decode_schema_note
from holdfast.testing import CrashFilesystem, ManualClock
from tests.unit.store.damaged_store import (
    ROOT,
    check,
    check_numbers,
    closed,
    damaged,
    flip,
    left,
    log_of,
    lost_from,
    missing_seqs,
    open_store,
    original,
    paths,
    published,
    ranges,
    read_all,
    records,
    repair,
)

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


# ------------------------------------------------------------------------------------------------------ damaged records


def damage_frames(start: int, step: int) -> None:
    """Damage one frame after the other, each in a fresh copy, and repair it."""
    everything = records()
    for path, offset, kind, events in everything[start:-1:step]:
        if kind != KIND_FRAME:
            continue
        disk = damaged(lambda disk, path=path, offset=offset: flip(disk, path, offset + 60, bit=3))  # type: ignore[misc]
        plan = repair(disk)
        expected = {(channel, seq) for channel, seq in events if not published(channel, seq)}
        assert missing_seqs(plan) <= expected
        rest = len(expected - missing_seqs(plan))
        if rest:  # of channels that nothing names afterwards only the number of events is known
            assert plan.uncertain == (f"{rest} events of the channels notes, trades are lost; nothing tells which",)
        store = check(disk, plan, exact=not plan.uncertain)
        assert lost_from(store) == expected
        check_numbers(store)


@pytest.mark.guarantee("G9")
@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("start", [-3, 1, 7])
def test_damage_to_a_frame_of_the_log_loses_that_frame_and_nothing_else(start: int) -> None:
    damage_frames(start, 17)


@pytest.mark.long
@pytest.mark.guarantee("G9")
@pytest.mark.guarantee("G4")
def test_damage_to_any_frame_of_the_log_loses_that_frame_and_nothing_else() -> None:
    damage_frames(0, 1)


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
    for number in range(1, reads, 7):
        again.fail_read_at(number, errno.EIO)
        try:
            plan = plan_repair(again, ROOT)
        except OSError:
            plan = None
        again.stop_failing()
        again.reads = 0
        assert plan is None or plan.needed
    assert plan_repair(again, ROOT) == first


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


def damage_anything(seed: int) -> None:
    """Damage some files in some ways, repair, and see that nothing wrong or silently missing is delivered."""
    chance = random.Random(seed)
    disk = damaged() if seed % 3 else closed()
    for _ in range(chance.randrange(1, 7)):
        scribble(disk, chance)
    plan = repair(disk)
    store = check(disk, plan, exact=False)
    store.close()
    assert verify_store(disk, ROOT, live=False).intact


ONCE_WRONG = [169, 784, 876, 1662]
"""A newest log file lost beside other damage; a null slot; a channel that only a row names; a renamed column."""


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("seed", [*range(24), *ONCE_WRONG])
def test_any_damage_can_be_repaired_and_nothing_wrong_is_delivered(seed: int) -> None:
    damage_anything(seed)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("part", range(4))
def test_any_damage_of_thousands_can_be_repaired_and_nothing_wrong_is_delivered(part: int) -> None:
    for seed in range(part, 3000, 4):
        damage_anything(seed)


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
