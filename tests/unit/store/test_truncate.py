"""`truncate_bad_tail`: consent to cut log files that end too early, for one start, and to nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from holdfast import Store
from holdfast.disk.appendlog import HEADER_BYTES
from holdfast.errors import CorruptData, InvalidConfig
from holdfast.store.ground import WITNESS_NAME
from holdfast.store.verify import verify_store
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from tests.unit.store.damaged_store import (
    CONFIG,
    ROOT,
    check_numbers,
    damaged,
    flip,
    left,
    log_of,
    lost_from,
    open_store,
    paths,
    published,
    read_all,
    records,
    stored,
    without_catalog,
)

WITNESS = ROOT / WITNESS_NAME


def consenting(disk: CrashFilesystem) -> Store:
    return Store.open(ROOT, CONFIG, filesystem=disk, clock=ManualClock(), inline=True, truncate_bad_tail=True)


def cut_first_file(disk: CrashFilesystem, *, into: int = 20, back: int = 12) -> None:
    """The oldest log file, which is not the last, ends inside one of its records."""
    path = paths(disk, "wal")[0]
    found = log_of(path)
    at = found.records[-back].position - found.header.start_position + into
    disk.write_bytes(path, disk.read_bytes(path)[:at])


def cut_between_records(disk: CrashFilesystem) -> None:
    cut_first_file(disk, into=0)


def cut_into_the_header(disk: CrashFilesystem) -> None:
    path = paths(disk, "wal")[0]
    disk.write_bytes(path, disk.read_bytes(path)[: HEADER_BYTES - 10])


def empty_file(disk: CrashFilesystem) -> None:
    disk.write_bytes(paths(disk, "wal")[0], b"")


def empty_last_file(disk: CrashFilesystem) -> None:
    disk.write_bytes(paths(disk, "wal")[-1], b"")


ENDED: list[Callable[[CrashFilesystem], None]] = [
    cut_first_file,
    cut_between_records,
    cut_into_the_header,
    empty_file,
    empty_last_file,
]


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("damage", ENDED)
def test_log_that_ends_too_early_is_refused_without_consent_and_opened_with_it(
    damage: Callable[[CrashFilesystem], None],
) -> None:
    disk = damaged(damage)
    with pytest.raises(CorruptData):
        open_store(disk)
    store = consenting(disk)
    truncated = store.recovery.truncated
    assert truncated is not None
    (cut,) = truncated.files
    assert cut.file in paths(left(), "wal")
    for channel, events in read_all(store).items():
        assert events == {seq: stored()[channel][seq] for seq in events}
    check_numbers(store)
    store.close()
    assert verify_store(disk, ROOT, live=False).intact
    assert open_store(disk).recovery.truncated is None


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("damage", [cut_first_file, cut_between_records, cut_into_the_header, empty_file])
def test_lost_seqs_are_named_exactly_where_later_files_tell(damage: Callable[[CrashFilesystem], None]) -> None:
    disk = damaged(damage)
    path = paths(disk, "wal")[0]
    end = len(disk.read_bytes(path))
    held = {event for file, offset, _, events in records() if file == path and offset + 100 > end for event in events}
    store = consenting(disk)
    truncated = store.recovery.truncated
    assert truncated is not None
    named = {(channel, seq) for channel, first, last in truncated.lost for seq in range(first, last + 1)}
    assert named == lost_from(store) == {event for event in held if not published(*event)}
    assert truncated.uncertain == ()


def test_each_bad_record_is_logged_with_its_bytes(caplog: pytest.LogCaptureFixture) -> None:
    disk = damaged(cut_first_file)
    with caplog.at_level(logging.WARNING, logger="holdfast"):
        store = consenting(disk)
    truncated = store.recovery.truncated
    assert truncated is not None
    lines = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    (line,) = [line for line in lines if line.startswith("store.recovery.truncate ")]
    assert str(truncated.files[0].offset_bytes) in line
    assert truncated.files[0].dump.split()[1] in line
    assert [line for line in lines if line.startswith("store.recovery.lost ")]


def test_cut_files_are_in_quarantine_as_they_were() -> None:
    disk = damaged(cut_first_file)
    path = paths(disk, "wal")[0]
    data = disk.read_bytes(path)
    truncated = consenting(disk).recovery.truncated
    assert truncated is not None
    assert disk.read_bytes(truncated.quarantine / "wal" / path.name) == data


@pytest.mark.guarantee("G9")
def test_record_with_a_wrong_checksum_is_refused_with_consent_too() -> None:
    path, offset, _, _ = records()[5]
    disk = damaged(lambda disk: flip(disk, path, offset + 60))
    before = {place: disk.read_bytes(place) for place in paths(disk, "wal")}
    with pytest.raises(CorruptData, match="checksum"):
        consenting(disk)
    assert {place: disk.read_bytes(place) for place in paths(disk, "wal")} == before
    assert not disk.exists(ROOT / "quarantine")


def test_wrong_checksum_beside_an_early_end_leaves_both_as_they_are() -> None:
    path, offset, _, _ = records()[-4]
    disk = damaged(cut_first_file, lambda disk: flip(disk, path, offset + 60))
    before = {place: disk.read_bytes(place) for place in paths(disk, "wal")}
    with pytest.raises(CorruptData):
        consenting(disk)
    assert {place: disk.read_bytes(place) for place in paths(disk, "wal")} == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda disk: disk.unlink(paths(disk, "wal")[1]),
        lambda disk: disk.write_bytes(
            paths(disk, "channels/trades")[0], disk.read_bytes(paths(disk, "channels/trades")[0])[:-9]
        ),
        without_catalog,
    ],
    ids=["missing log file", "segment that ends early", "missing catalog"],
)
def test_consent_does_not_help_against_other_damage(damage: Callable[[CrashFilesystem], None]) -> None:
    disk = damaged(damage)
    with pytest.raises(CorruptData):
        consenting(disk)


def test_consent_twice_in_a_row_is_refused_and_says_what_to_do() -> None:
    disk = damaged()
    consenting(disk).close()
    with pytest.raises(InvalidConfig, match="open the store once without it"):
        consenting(disk)
    open_store(disk).close()
    consenting(disk).close()


def test_refused_start_without_consent_allows_the_next_one_with_it() -> None:
    disk = damaged(cut_first_file)
    with pytest.raises(CorruptData):
        open_store(disk)
    consenting(disk).close()
    assert disk.exists(WITNESS)
    open_store(disk)
    assert not disk.exists(WITNESS)


def test_witness_is_on_disk_before_anything_is_cut() -> None:
    """Power loss at every call of the start, with nothing left that was not promised."""
    total = calls_to_open()
    for call in range(1, total + 1, 5):
        disk = damaged(cut_first_file)
        disk.cut_at(disk.calls + call)
        with pytest.raises(PowerCut):
            consenting(disk)
        after = disk.after_power_cut(0)
        touched = after.exists(ROOT / "quarantine") or len(paths(after, "wal")) != len(paths(left(), "wal"))
        assert after.exists(WITNESS) or not touched


def calls_to_open() -> int:
    disk = damaged(cut_first_file)
    before = disk.calls
    consenting(disk)
    return disk.calls - before


@pytest.mark.guarantee("G9")
def test_power_cut_while_a_log_is_cut_loses_nothing_more() -> None:
    """Power loss. The next start is without consent: it opens, or refuses and allows another one with consent."""
    reference = damaged(cut_first_file)
    expected = lost_from(consenting(reference))
    for call in range(1, calls_to_open() + 1, 6):
        disk = damaged(cut_first_file)
        disk.cut_at(disk.calls + call)
        with pytest.raises(PowerCut):
            consenting(disk)
        after = disk.after_power_cut(call)
        try:
            store = open_store(after)
        except CorruptData:
            store = consenting(after)
        assert lost_from(store) == expected
        check_numbers(store)


def test_store_with_nothing_wrong_opens_with_consent_and_is_not_touched() -> None:
    disk = damaged()
    store = consenting(disk)
    assert store.recovery.truncated is None
    assert lost_from(store) == set()
    assert not disk.exists(ROOT / "quarantine")


def test_new_store_may_be_created_with_consent() -> None:
    disk = CrashFilesystem()
    consenting(disk).close()
    assert disk.exists(WITNESS)


def test_consent_is_no_setting() -> None:
    with pytest.raises(InvalidConfig):
        Store.open(ROOT, {"truncate_bad_tail": True}, filesystem=CrashFilesystem(), inline=True)
