"""The append log: files, rotation, trimming, a full disk, errors, and reading back."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.disk.appendlog import (
    HEADER_BYTES,
    KIND_CLOSE,
    AppendLog,
    FileHeader,
    LogFile,
    LogSpec,
    NewRecord,
    log_numbers,
    log_path,
    read_headers,
    read_log,
    read_log_file,
    recover_log,
)
from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Mode
from holdfast.disk.records import Record, record_bytes
from holdfast.errors import CorruptData, DiskFull, StoreFailed, UnsupportedFormat
from holdfast.testing import CrashFilesystem

FOLDER = Path("/log")
STORE_ID = b"store sixteen by"
SPEC = LogSpec("wal", rotation_bytes=4096)
DATA = 5


def disk() -> CrashFilesystem:
    made = CrashFilesystem()
    made.write_bytes(FOLDER / "made", b"")
    return made


def begin(filesystem: CrashFilesystem, *, number: int = 1, position: int = 0, spec: LogSpec = SPEC) -> AppendLog:
    return AppendLog(
        filesystem,
        FOLDER,
        spec=spec,
        store_id=STORE_ID,
        number=number,
        position=position,
        prologue=lambda: [NewRecord.of(1, b"prologue")],
    )


def data(*payloads: bytes) -> list[NewRecord]:
    return [NewRecord.of(DATA, payload) for payload in payloads]


def payloads(filesystem: CrashFilesystem, *, from_position: int | None = 0) -> list[bytes]:
    files = read_log(filesystem, FOLDER, spec=SPEC, store_id=STORE_ID, from_position=from_position)
    return [item.payload.to_pybytes() for found in files for item in found.records if item.kind == DATA]


# --- writing --------------------------------------------------------------------------------------------------------


def test_new_file_is_named_after_its_header_is_on_disk() -> None:
    """Power loss at every call of making it: there is no file, or one with a whole header."""
    calls = disk()
    begin(calls)
    for call in range(1, calls.calls + 1):
        filesystem = disk()
        filesystem.cut_at(call)
        with pytest.raises(BaseException, match="power was cut"):
            begin(filesystem)
        for seed in range(8):
            left = filesystem.after_power_cut(seed)
            for number in log_numbers(left, FOLDER, "wal"):
                assert read_log_file(left, log_path(FOLDER, "wal", number), last=True).header.number == 1


def test_append_gives_the_position_of_each_record() -> None:
    log = begin(disk(), position=10_000)
    start = log.end_position
    assert start == 10_000 + HEADER_BYTES + record_bytes(8)
    assert log.append(data(b"abc", b"de")) == [start, start + record_bytes(3)]
    assert log.end_position == start + record_bytes(3) + record_bytes(2)


def test_sync_moves_the_synced_position_to_the_end() -> None:
    filesystem = disk()
    log = begin(filesystem)
    log.sync()
    log.append(data(b"abc"))
    assert log.synced_position < log.end_position
    log.sync()
    assert log.synced_position == log.end_position
    before = filesystem.calls
    log.sync()
    assert filesystem.calls == before, "nothing was written since, so nothing is synced"


def test_group_is_written_with_one_call() -> None:
    filesystem = disk()
    log = begin(filesystem)
    before = filesystem.calls
    log.append(data(*(b"%d" % n for n in range(50))))
    assert [operation for _, operation, _ in filesystem.log[before:]] == ["pwritev"]


def test_rotation_goes_on_in_a_file_that_begins_where_the_old_one_ends() -> None:
    filesystem = disk()
    log = begin(filesystem)
    log.append(data(b"one"))
    end = log.end_position
    log.rotate()
    log.append(data(b"two"))
    first, second = read_headers(filesystem, FOLDER, spec=SPEC, store_id=STORE_ID)
    assert (first.number, second.number, second.start_position) == (1, 2, end)
    assert filesystem.read_bytes(log_path(FOLDER, "wal", 1))[end - 4 : end] == b"HFr\xff", "the old file ends there"
    assert payloads(filesystem) == [b"one", b"two"]


def test_every_file_opens_with_the_prologue() -> None:
    filesystem = disk()
    log = begin(filesystem)
    log.rotate()
    log.rotate()
    files = list(read_log(filesystem, FOLDER, spec=SPEC, store_id=STORE_ID, from_position=0))
    assert [found.records[0].payload.to_pybytes() for found in files] == [b"prologue"] * 3


def test_file_is_full_when_a_group_would_pass_the_rotation_size() -> None:
    log = begin(disk())
    left = 4096 - log.end_position
    assert log.fits(left)
    assert not log.fits(left + 1)


def test_group_larger_than_a_file_is_still_written_whole() -> None:
    filesystem = disk()
    log = begin(filesystem)
    log.append(data(b"x" * 10_000))
    log.sync()
    assert payloads(filesystem.after_power_cut(0)) == [b"x" * 10_000]


def test_trim_deletes_whole_files_oldest_first() -> None:
    filesystem = disk()
    log = begin(filesystem)
    for n in range(4):
        log.append(data(b"%d" % n))
        log.rotate()
    before = log.size_bytes()
    assert log.trim(keep_from_number=3) == [log_path(FOLDER, "wal", 1), log_path(FOLDER, "wal", 2)]
    assert log_numbers(filesystem, FOLDER, "wal") == [3, 4, 5]
    assert log.size_bytes() < before
    assert log.trim(keep_from_number=3) == []
    deleted = [path.name for _, operation, path in filesystem.log if operation == "unlink"]
    assert deleted == ["wal-0000000001.log", "wal-0000000002.log"]


def test_trim_deletes_files_of_an_earlier_process_that_were_adopted() -> None:
    filesystem = disk()
    first = begin(filesystem)
    first.append(data(b"old"))
    first.close()
    log = begin(filesystem, number=2, position=first.end_position)
    log.adopt(1, 0)
    assert log.size_bytes() == log.end_position
    assert log.file_start(1) == 0
    log.trim(keep_from_number=2)
    assert log_numbers(filesystem, FOLDER, "wal") == [2]


def test_closed_log_ends_with_a_close_record_and_no_zeros() -> None:
    filesystem = disk()
    log = begin(filesystem)
    log.append(data(b"last"))
    log.close()
    found = read_log_file(filesystem, log.path, last=True)
    assert found.closed
    assert found.records[-1].kind == KIND_CLOSE
    assert len(filesystem.read_bytes(log.path)) == found.end_offset


# --- a full disk ----------------------------------------------------------------------------------------------------


def test_write_on_a_full_disk_is_cut_off_and_the_log_goes_on() -> None:
    filesystem = disk()
    log = begin(filesystem)
    log.append(data(b"kept"))
    filesystem.capacity_bytes = filesystem.used_bytes + 100
    with pytest.raises(DiskFull) as caught:
        log.append(data(b"x" * 9000))
    assert caught.value.file == log.path
    assert payloads(filesystem.after_kill()) == [b"kept"]


def test_log_goes_on_in_a_new_file_after_a_full_disk() -> None:
    """Power loss later on: nothing of the refused write comes back."""
    filesystem = disk()
    log = begin(filesystem)
    log.append(data(b"kept"))
    filesystem.capacity_bytes = filesystem.used_bytes + 100
    with pytest.raises(DiskFull):
        log.append(data(b"x" * 9000))
    assert not log.fits(0), "the old file is not written again"
    with pytest.raises(DiskFull):
        log.rotate()
    filesystem.capacity_bytes = None
    log.rotate()
    log.append(data(b"more"))
    log.sync()
    for seed in range(6):
        assert payloads(filesystem.after_power_cut(seed)) == [b"kept", b"more"]


def test_no_room_for_a_new_file_changes_nothing() -> None:
    filesystem = disk()
    log = begin(filesystem)
    log.append(data(b"kept"))
    filesystem.capacity_bytes = filesystem.used_bytes
    with pytest.raises(DiskFull):
        log.rotate()
    assert log.failure is None
    assert [path.name for path in filesystem.paths() if path.suffix == ".tmp"] == []
    log.append(data(b"fits into the old file"))
    log.sync()
    assert payloads(filesystem.after_power_cut(0)) == [b"kept", b"fits into the old file"]


# --- errors ---------------------------------------------------------------------------------------------------------


def write_and_sync(log: AppendLog) -> None:
    log.append(data(b"new"))
    log.sync()


def rotate_and_trim(log: AppendLog) -> None:
    log.rotate()
    log.trim(keep_from_number=2)


ACTIONS: dict[str, tuple[str, Callable[[AppendLog], object]]] = {
    "write": ("pwritev", lambda log: log.append(data(b"new"))),
    "sync": ("sync_data", write_and_sync),
    "truncate": ("truncate", AppendLog.rotate),
    "rename": ("rename", AppendLog.rotate),
    "sync_dir": ("sync_dir", AppendLog.rotate),
    "allocate": ("allocate", AppendLog.rotate),
    "unlink": ("unlink", rotate_and_trim),
    "close": ("truncate", AppendLog.close),
}


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("name", ACTIONS)
def test_after_an_error_every_call_says_so_and_writes_nothing(name: str) -> None:
    operation, action = ACTIONS[name]
    filesystem = disk()
    log = begin(filesystem)
    log.append(data(b"kept"))
    log.sync()
    filesystem.fail_when(lambda found, _path: errno.EIO if found == operation else None)
    with pytest.raises(StoreFailed, match="Input/output error"):
        action(log)
    filesystem.stop_failing()
    before = filesystem.calls
    for again in (
        lambda: log.append(data(b"never")),
        log.sync,
        log.rotate,
        lambda: log.trim(keep_from_number=9),
    ):
        with pytest.raises(StoreFailed):
            again()
    log.close()
    assert filesystem.calls == before
    assert b"kept" in payloads(filesystem.after_power_cut(0))


# --- reading --------------------------------------------------------------------------------------------------------


def three_files() -> tuple[CrashFilesystem, list[int]]:
    filesystem = disk()
    log = begin(filesystem)
    starts = [0]
    for payload in (b"one", b"two", b"three"):
        log.append(data(payload))
        if payload != b"three":
            starts.append(log.end_position)
            log.rotate()
    log.close()
    return filesystem, starts


def test_reading_begins_with_the_file_that_holds_the_position() -> None:
    filesystem, starts = three_files()
    assert payloads(filesystem, from_position=starts[1]) == [b"two", b"three"]
    assert payloads(filesystem, from_position=starts[1] - 1) == [b"one", b"two", b"three"]
    assert payloads(filesystem, from_position=None) == [b"one", b"two", b"three"]


def test_log_that_begins_after_the_position_is_refused() -> None:
    filesystem, starts = three_files()
    filesystem.unlink(log_path(FOLDER, "wal", 1))
    with pytest.raises(CorruptData, match="needed from position"):
        payloads(filesystem, from_position=starts[1] - 1)
    assert payloads(filesystem, from_position=starts[1]) == [b"two", b"three"]


def test_log_without_files_is_refused_when_a_position_is_needed() -> None:
    assert payloads(disk(), from_position=None) == []
    with pytest.raises(CorruptData, match="there is no file"):
        payloads(disk(), from_position=0)


def test_hole_between_two_files_is_refused() -> None:
    filesystem, _ = three_files()
    filesystem.unlink(log_path(FOLDER, "wal", 2))
    with pytest.raises(CorruptData, match="a file is missing or cut") as caught:
        payloads(filesystem)
    assert caught.value.file == log_path(FOLDER, "wal", 3)


def test_file_of_a_newer_format_is_refused_by_its_version() -> None:
    header = bytearray(FileHeader(STORE_ID, 1, 0, 3, weak=False, name="wal").encode())
    header[8] = 9
    header[60:64] = crc32c(bytes(header[:60])).to_bytes(4, "little")
    with pytest.raises(UnsupportedFormat) as caught:
        FileHeader.decode(Path("x.log"), bytes(header))
    assert (caught.value.found, caught.value.supported) == (9, 1)


def test_file_under_the_number_of_another_is_refused() -> None:
    filesystem, _ = three_files()
    filesystem.write_bytes(log_path(FOLDER, "wal", 9), filesystem.read_bytes(log_path(FOLDER, "wal", 3)))
    with pytest.raises(CorruptData, match="is file 3 of log 'wal' under another name"):
        payloads(filesystem)


def test_refusal_carries_a_dump_of_the_bad_record() -> None:
    filesystem, _ = three_files()
    path = log_path(FOLDER, "wal", 2)
    content = bytearray(filesystem.read_bytes(path))
    content[HEADER_BYTES + 50] ^= 1
    filesystem.write_bytes(path, bytes(content))
    with pytest.raises(CorruptData) as caught:
        payloads(filesystem)
    assert caught.value.file == path
    assert caught.value.offset_bytes == HEADER_BYTES
    assert caught.value.dump.startswith("  0000000040  "), "the record's own place"
    assert caught.value.dump in str(caught.value)


# --- mending --------------------------------------------------------------------------------------------------------


def mended(filesystem: CrashFilesystem) -> list[bool]:
    found = recover_log(filesystem, FOLDER, spec=SPEC, store_id=STORE_ID, from_position=0)
    return [repair is not None for _, repair in found]


def test_only_an_unclean_last_file_is_replaced_by_a_copy() -> None:
    filesystem = disk()
    log = begin(filesystem)
    log.append(data(b"one"))
    log.rotate()
    log.append(data(b"two"))
    left = filesystem.after_kill()
    old = read_log_file(left, log.path, last=True).header.file_id
    assert mended(left) == [False, True]
    found = read_log_file(left, log.path, last=True)
    assert found.header.file_id != old, "a new file, so that old blocks are no records in it"
    assert payloads(left.after_power_cut(0)) == [b"one", b"two"]


def test_mending_removes_unfinished_files() -> None:
    filesystem = disk()
    begin(filesystem)
    left = filesystem.after_kill()
    left.write_bytes(FOLDER / "wal-0000000002.tmp", b"half")
    mended(left)
    assert [path.name for path in left.paths() if path.suffix == ".tmp"] == []


def test_mending_on_a_full_disk_says_so_and_leaves_it_no_fuller() -> None:
    filesystem = killed_after((b"one", b"two" * 1000))
    before = filesystem.used_bytes
    filesystem.capacity_bytes = before + 1000
    with pytest.raises(DiskFull, match=r"\.tmp: No space left"):
        mended(filesystem)
    assert filesystem.used_bytes == before
    filesystem.capacity_bytes = None
    mended(filesystem)
    assert payloads(filesystem) == [b"one", b"two" * 1000]


def test_power_cut_while_mending_leaves_the_old_file_or_the_copy() -> None:
    """Power loss at every call of the repair."""
    filesystem = disk()
    log = begin(filesystem)
    log.append(data(b"one", b"two"))
    log.sync()
    once = filesystem.after_kill()
    mended(once)
    for call in range(1, once.calls + 1):
        left = filesystem.after_kill()
        left.cut_at(call)
        with pytest.raises(BaseException, match="power was cut"):
            mended(left)
        for seed in range(6):
            after = left.after_power_cut(seed)
            mended(after)
            assert payloads(after) == [b"one", b"two"]


def test_reading_never_writes_anything() -> None:
    filesystem = disk()
    log = begin(filesystem)
    log.append(data(b"one"))
    left = filesystem.after_kill()
    payloads(left)
    assert left.calls == 0
    assert left.open(log.path, Mode.READ).size_bytes() == 4096


# --- records that speak of something else ----------------------------------------------------------------------------


def killed_after(*groups: tuple[bytes, ...]) -> CrashFilesystem:
    """The disk of a process that died with these groups written, each but the last synced."""
    filesystem = disk()
    log = begin(filesystem)
    for group in groups[:-1]:
        log.append(data(*group))
        log.sync()
    log.append(data(*groups[-1]))
    return filesystem.after_kill()


def test_records_tell_up_to_where_the_log_was_synced() -> None:
    filesystem = killed_after((b"first", b"second"), (b"third", b"fourth"))
    found = read_log_file(filesystem, log_path(FOLDER, "wal", 1), last=True)
    third = next(record for record in found.records if record.payload.to_pybytes() == b"third")
    assert found.synced_position == third.position


def test_settled_records_are_taken_over_as_they_were_changed_or_cut() -> None:
    """One record becomes longer, the one after the next goes: the file that is read next time has it so."""

    def settle(found: LogFile) -> LogFile:
        longer = pa.py_buffer(b"second, and much more than it was")
        changed = [
            Record(item.kind, longer, item.position, item.synced, 0) if item.payload == b"second" else item
            for item in found.records
        ]
        return replace(found, records=tuple(changed)).cut_at(changed[-1], "is not true")

    filesystem = killed_after((b"first", b"second"), (b"third", b"fourth"))
    ((_, mended),) = recover_log(filesystem, FOLDER, spec=SPEC, store_id=STORE_ID, from_position=0, settle=settle)
    assert mended is not None
    assert mended.reason == "is not true"
    expected = [b"first", b"second, and much more than it was", b"third"]
    assert payloads(filesystem.after_power_cut(0)) == expected


def test_stopped_log_takes_nothing_more() -> None:
    filesystem = disk()
    log = begin(filesystem)
    log.append(data(b"kept"))
    log.stop(StoreFailed(file=FOLDER, reason="what it refers to is lost"))
    with pytest.raises(StoreFailed, match="refers to"):
        log.append(data(b"more"))
    with pytest.raises(StoreFailed, match="refers to"):
        log.sync()
