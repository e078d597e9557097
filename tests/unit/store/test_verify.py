"""Verify finds whatever was changed, names the place, and changes nothing itself."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.disk.appendlog import FileHeader
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest
from holdfast.store.catalog import Catalog, Publication
from holdfast.store.inspect.logs import inspect_log
from holdfast.store.tables import row_crc
from holdfast.store.verify import Finding, VerifyReport, verify_store
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from tests.crash import workload
from tests.unit.store.left_behind import flip, logs, make_store, picture, segments


def verify(directory: Path) -> VerifyReport:
    return verify_store(LocalFilesystem(), directory)


def damage(directory: Path) -> list[Finding]:
    """What verify calls damage; its verdict says the same."""
    report = verify(directory)
    found = [finding for finding in report.findings if finding.severity == "damage"]
    assert report.intact == (not found)
    return found


def only_damage(directory: Path) -> Finding:
    (finding,) = damage(directory)
    return finding


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


def change_catalog(store: Path, *statements: str) -> None:
    with closing(sqlite3.connect(store / "catalog.db", isolation_level=None)) as connection:
        for statement in statements:
            assert connection.execute(statement).rowcount > 0


# ----------------------------------------------------------------------------------------------------- undamaged stores


def test_store_of_a_killed_process_is_intact_and_counted(store: Path) -> None:
    report = verify(store)
    assert report.intact
    assert report.findings == ()
    assert report.segments == len(segments(store))
    assert report.events == 25 * 62 + 1
    assert report.files >= 1 + len(logs(store)) + len(segments(store))
    assert report.checked_bytes > sum(path.stat().st_size for path in [*logs(store), *segments(store)])


def test_store_that_was_closed_in_order_is_intact(tmp_path: Path) -> None:
    report = verify(make_store(tmp_path / "store", closed=True))
    assert report.findings == ()
    assert report.events == 25 * 62 + 1


def test_verify_changes_neither_bytes_nor_times_of_an_intact_store(store: Path) -> None:
    before = picture(store)
    verify(store)
    assert picture(store) == before


def test_verify_changes_neither_bytes_nor_times_of_a_damaged_store(store: Path) -> None:
    flip(logs(store)[0], 200)
    flip(segments(store)[0], 200)
    change_catalog(store, "UPDATE segments SET size_bytes = size_bytes + 1 WHERE segment_seq = 2")
    (store / "wal" / "wal-0000000009.tmp").write_bytes(b"unfinished")
    before = picture(store)
    assert len(damage(store)) == 3
    assert picture(store) == before


def test_directory_without_a_store_is_a_bad_request(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="is not a store"):
        verify(tmp_path)


@pytest.mark.guarantee("G9")
def test_no_state_that_a_power_cut_leaves_is_called_damaged() -> None:
    """Power loss, on the crash disk: what recovery can open, before and after it did so."""
    disk = CrashFilesystem()
    for _ in workload.run(disk, ManualClock(), lambda *_: None):
        pass
    for call in range(12, disk.calls, 23):
        dead, clock = CrashFilesystem(), ManualClock()
        dead.cut_at(call)
        with pytest.raises(PowerCut):
            for _ in workload.run(dead, clock, lambda *_: None):
                pass
        left = dead.after_power_cut(seed=call)
        assert verify_store(left, workload.STORE, live=False).intact
        workload.open_store(left, clock).close()
        assert verify_store(left, workload.STORE, live=False).findings == ()


# -------------------------------------------------------------------------------------------------------------- the log


@pytest.mark.guarantee("G9")
def test_flipped_bit_in_any_log_record_is_found_at_that_record(store: Path) -> None:
    disk = LocalFilesystem()
    for path in logs(store)[:-1]:
        for record in inspect_log(disk, path).records[::5]:
            offset = record.offset_bytes + record.size_bytes // 2
            flip(path, offset)
            finding = only_damage(store)
            assert (finding.file, finding.offset_bytes) == (str(path), record.offset_bytes)
            assert finding.dump
            flip(path, offset)


def test_flipped_bit_in_an_accepted_record_of_the_last_file_is_damage(store: Path) -> None:
    path = logs(store)[-1]
    record = inspect_log(LocalFilesystem(), path).records[0]
    flip(path, record.offset_bytes + 50)
    finding = only_damage(store)
    assert (finding.file, finding.offset_bytes) == (str(path), record.offset_bytes)


def test_flipped_bit_in_a_log_header_is_found(store: Path) -> None:
    flip(logs(store)[1], 20)
    finding = only_damage(store)
    assert (finding.file, finding.offset_bytes) == (str(logs(store)[1]), 0)


@pytest.mark.parametrize("index", [0, 1])
def test_missing_older_log_file_is_named(store: Path, index: int) -> None:
    path = logs(store)[index]
    path.unlink()
    finding = only_damage(store)
    assert finding.file == str(path)
    assert "is missing" in finding.reason


def test_missing_newest_log_file_is_noticed_by_what_is_published(store: Path) -> None:
    kept, gone = logs(store)[-2:]
    gone.unlink()
    finding = only_damage(store)
    assert finding.file == str(kept)
    assert "a newer log file is missing" in finding.reason


def test_missing_log_is_damage(store: Path) -> None:
    shutil.rmtree(store / "wal")
    finding = only_damage(store)
    assert finding.file == str(store / "wal")


def test_older_log_file_that_was_cut_is_damage(store: Path) -> None:
    path = logs(store)[0]
    last = inspect_log(LocalFilesystem(), path).records[-1]
    os.truncate(path, last.offset_bytes + 10)
    finding = only_damage(store)
    assert (finding.file, finding.offset_bytes) == (str(path), last.offset_bytes)


def test_older_log_file_that_was_cut_between_records_is_damage(store: Path) -> None:
    path, following = logs(store)[:2]
    os.truncate(path, inspect_log(LocalFilesystem(), path).records[-1].offset_bytes)
    finding = only_damage(store)
    assert finding.file == str(following)
    assert "a file is missing or cut" in finding.reason


def test_torn_tail_of_the_last_log_file_is_only_a_note(store: Path) -> None:
    path = logs(store)[-1]
    last = inspect_log(LocalFilesystem(), path).records[-1]
    os.truncate(path, last.offset_bytes + 10)
    report = verify(store)
    assert report.intact
    (note,) = report.findings
    assert (note.severity, note.file, note.offset_bytes) == ("note", str(path), last.offset_bytes)
    assert "torn tail" in note.reason


def test_log_file_of_another_store_is_damage(store: Path, tmp_path: Path) -> None:
    path = logs(store)[1]
    header = FileHeader.decode(path, path.read_bytes())
    other = FileHeader(b"another store id", header.number, header.start_position, header.file_id, False, "wal")
    path.write_bytes(other.encode() + path.read_bytes()[64:])
    finding = only_damage(store)
    assert (finding.file, finding.offset_bytes) == (str(path), 0)
    assert "belongs to store" in finding.reason


def test_log_file_under_another_name_is_damage(store: Path) -> None:
    logs(store)[2].rename(store / "wal" / "wal-0000000007.log")
    assert "under another name" in damage(store)[0].reason


# --------------------------------------------------------------------------------------------------------- the segments


@pytest.mark.guarantee("G9")
def test_flipped_bit_anywhere_in_a_segment_is_found_in_that_segment(store: Path) -> None:
    path = segments(store)[2]
    for offset in range(3, path.stat().st_size, 1013):
        flip(path, offset, bit=offset % 8)
        finding = only_damage(store)
        assert finding.file == str(path)
        assert finding.offset_bytes <= path.stat().st_size
        flip(path, offset, bit=offset % 8)


def test_missing_segment_is_named(store: Path) -> None:
    path = segments(store)[1]
    path.unlink()
    finding = only_damage(store)
    assert (finding.file, finding.reason) == (str(path), "is missing")


def test_truncated_segment_is_damaged_where_it_ends(store: Path) -> None:
    path = segments(store)[1]
    os.truncate(path, 1000)
    finding = only_damage(store)
    assert (finding.file, finding.offset_bytes) == (str(path), 1000)


def test_segment_that_was_exchanged_for_another_is_damage(store: Path) -> None:
    first, second = segments(store)[:2]
    assert first.stat().st_size == second.stat().st_size
    first.write_bytes(second.read_bytes())
    finding = only_damage(store)
    assert finding.file == str(first)
    assert "but another one" in finding.reason


def test_unpublished_segment_whose_events_are_in_the_log_is_a_note() -> None:
    """Process death after the segment got its name and before the catalog knew of it."""
    disk = CrashFilesystem()
    for _ in workload.run(disk, ManualClock(), lambda *_: None):
        pass
    named, path = next((n, path) for n, operation, path in disk.log if operation == "sync_dir" and path.name == "beta")
    dead = CrashFilesystem()
    dead.cut_at(named + 1)
    with pytest.raises(PowerCut):
        for _ in workload.run(dead, ManualClock(), lambda *_: None):
            pass
    report = verify_store(dead.after_kill(), workload.STORE, live=False)
    assert report.intact
    findings = [finding for finding in report.findings if Path(finding.file).parent == path]
    assert findings
    assert all("is not published; the log holds its events" in finding.reason for finding in findings)


def test_segment_that_nobody_knows_is_damage(store: Path) -> None:
    stray = store / "channels" / "trades" / "seg-77.arrow"
    shutil.copy(segments(store)[0], stray)
    finding = only_damage(store)
    assert finding.file == str(stray)
    assert "neither catalog nor log know" in finding.reason


# ---------------------------------------------------------------------------------------------------------- the catalog


@pytest.mark.parametrize(
    ("statement", "row"),
    [
        ("UPDATE meta SET value = x'31' WHERE key = 'wal_cursor'", "'wal_cursor' of table meta"),
        ("UPDATE channels SET next_seq = 5 WHERE name = 'trades'", "1 of table channels"),
        ("UPDATE segments SET size_bytes = size_bytes + 1 WHERE segment_seq = 3", "3 of table segments"),
        ("UPDATE slots SET ranges = x'90'", "736c6f74206f662070726f6475636572 of table slots"),
    ],
)
@pytest.mark.guarantee("G9")
def test_changed_row_of_the_catalog_is_named_with_its_place(store: Path, statement: str, row: str) -> None:
    change_catalog(store, statement)
    findings = damage(store)
    assert findings[0].file == str(store / "catalog.db")
    assert findings[0].reason == f"row {row} does not match its checksum"
    assert 0 < findings[0].offset_bytes < (store / "catalog.db").stat().st_size


def test_flipped_bit_in_a_catalog_row_is_found_near_that_byte(store: Path) -> None:
    path = store / "catalog.db"
    place = path.read_bytes().rfind(b"events")  # the signal, in the newest segment's metadata
    flip(path, place + 2)
    finding = damage(store)[0]
    assert finding.file == str(path)
    assert abs(finding.offset_bytes - place) < 512


def test_damaged_page_of_the_catalog_is_found_with_its_place(store: Path) -> None:
    path = store / "catalog.db"
    page_bytes = int.from_bytes(path.read_bytes()[16:18], "big")
    flip(path, page_bytes, bit=4)  # the kind of the second page
    findings = damage(store)
    assert {finding.file for finding in findings} == {str(path)}
    assert findings[0].reason


def test_bytes_that_are_no_database_are_damage(store: Path) -> None:
    (store / "catalog.db").write_bytes(b"no database" * 1000)
    assert damage(store)[0].file == str(store / "catalog.db")


def test_missing_catalog_is_damage(store: Path) -> None:
    (store / "catalog.db").unlink()
    findings = damage(store)
    assert [(finding.file, finding.reason) for finding in findings] == [
        (str(store / "catalog.db"), "the catalog is missing")
    ]


def test_frames_that_the_catalog_forgot_are_noticed(store: Path) -> None:
    change_catalog(store, "DELETE FROM segment_slots WHERE segment_seq = 4")
    assert "the frames of segment 4" in only_damage(store).reason


def test_lost_row_of_a_segment_is_noticed_by_its_file(store: Path) -> None:
    change_catalog(
        store, "DELETE FROM segments WHERE segment_seq = 3", "DELETE FROM segment_slots WHERE segment_seq = 3"
    )
    finding = only_damage(store)
    assert finding.file == str(segments(store)[2])
    assert "neither catalog nor log know" in finding.reason


def test_segments_that_overlap_are_damage(store: Path) -> None:
    catalog = Catalog(LocalFilesystem(), store)
    (channel,) = catalog.channels()
    second = next(segment for segment in catalog.all_segments() if segment.meta.segment_seq == 2)
    changed = replace(second, meta=replace(second.meta, first_seq=second.meta.first_seq - 5))
    slots = {slot: [(first, last)] for slot, first, number, last, _ in read_slots(store) if number == 2}
    catalog.publish([Publication(changed, channel, slots, [])], wal_cursor=0)
    catalog.close()
    assert any("but seg-1.arrow goes up to 240" in finding.reason for finding in damage(store))


def read_slots(store: Path) -> list[tuple[bytes, int, int, int, int]]:
    with closing(sqlite3.connect(store / "catalog.db")) as connection:
        return connection.execute("SELECT * FROM segment_slots").fetchall()


def test_hole_between_segments_is_a_note_because_eviction_leaves_holes(store: Path) -> None:
    change_catalog(
        store, "DELETE FROM segments WHERE segment_seq = 3", "DELETE FROM segment_slots WHERE segment_seq = 3"
    )
    segments(store)[2].unlink()
    report = verify(store)
    assert report.intact
    assert "240 events between the segments of channel 'trades'" in report.findings[0].reason


def test_file_of_an_evicted_segment_is_a_note(store: Path) -> None:
    change_catalog(
        store,
        "DELETE FROM segments WHERE segment_seq = 1",
        "DELETE FROM segment_slots WHERE segment_seq = 1",
        f"INSERT INTO doomed VALUES (1, 1, {row_crc((1, 1))})",
    )
    (store / "channels" / "trades" / "seg-0.arrow.bak").write_bytes(b"archived")
    report = verify(store)
    assert report.intact
    assert {Path(finding.file).name for finding in report.findings} == {"seg-1.arrow", "seg-0.arrow.bak"}


# ------------------------------------------------------------------------------------------- other files, other process


def test_unfinished_and_unknown_files_are_notes(store: Path) -> None:
    (store / "wal" / "wal-0000000009.tmp").write_bytes(b"")
    (store / "channels" / "trades" / "seg-9.arrow.tmp").write_bytes(b"")
    (store / "readme.txt").write_text("mine")
    (store / "other").mkdir()
    report = verify(store)
    assert report.intact
    assert {Path(finding.file).name for finding in report.findings} == {
        "wal-0000000009.tmp",
        "seg-9.arrow.tmp",
        "readme.txt",
        "other",
    }


def test_damage_at_the_end_of_a_live_log_is_a_note_that_names_the_process(store: Path) -> None:
    (store / "lock").write_text(f"{os.getpid()}\n")
    flip(logs(store)[-1], 120)
    report = verify(store)
    assert report.intact
    assert report.holder_pid == os.getpid()
    assert f"process {os.getpid()} has the store open" in report.findings[0].reason
    assert "is being written" in report.findings[1].reason


def test_damage_in_a_segment_of_a_live_store_is_damage(store: Path) -> None:
    (store / "lock").write_text(f"{os.getpid()}\n")
    flip(segments(store)[0], 500)
    assert only_damage(store).file == str(segments(store)[0])


def test_lock_of_a_process_that_is_gone_does_not_count(store: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    (store / "lock").write_text(f"{process.pid}\n")
    assert verify(store).holder_pid is None


def test_every_file_is_announced_before_it_is_read(store: Path) -> None:
    heard: list[Path] = []
    report = verify_store(LocalFilesystem(), store, on_file=heard.append)
    assert len(heard) == report.files
    assert {store / "catalog.db", *logs(store), *segments(store)} <= set(heard)


def test_file_that_cannot_be_read_is_damage_and_does_not_stop_the_rest() -> None:
    disk = CrashFilesystem()
    for _ in workload.run(disk, ManualClock(), lambda *_: None):
        pass
    before = disk.reads
    whole = verify_store(disk, workload.STORE, live=False)
    disk.fail_read_at(disk.reads + (disk.reads - before) // 2, errno.EIO)
    report = verify_store(disk, workload.STORE, live=False)
    assert not report.intact
    assert report.files == whole.files - 1
