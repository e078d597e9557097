"""A write-ahead log with torn, flipped, zeroed, swapped or stale bytes: cut and reported, or refused; never believed.

What a tear leaves (a file that ends early, a tail of zeros or garbage) is mended at start. Damage at rest (a flipped
bit, a lost sector, another file) is refused with the file and the byte. In no case does a reader get a wrong event.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.disk.appendlog import HEADER_BYTES, LogFile, LogSpec, read_log, read_log_file
from holdfast.disk.records import SECTOR_BYTES, Record
from holdfast.errors import CorruptData
from holdfast.store.wal.codec import KIND_FRAME
from holdfast.testing import CrashFilesystem, ManualClock
from tests.crash.ledger import Ledger
from tests.crash.sweeps import every
from tests.crash.workload import AFTERWARDS, STORE, Frame, event, guid_frame, id_frame, open_store, send, slot_frame

WAL = STORE / "wal" / "wal-0000000001.log"
SHORT = [number for number in range(1001, 1100) if len(str(event("beta", number)["body"])) < 1000]
FRAMES = (
    slot_frame("s1", 1, alpha=(1, 2, 3)),
    guid_frame("g1", beta=(SHORT[0],), alpha=(4,)),
    id_frame("i1", 2001, 2002),
    Frame("plain", {"alpha": (5, 6)}),
    slot_frame("s2", 2, alpha=(7,), gamma=(2003,)),
    slot_frame("s3", 3, alpha=(8,), beta=(SHORT[1],)),
)

ALL_IN_THE_LOG = {"segment.direct_size": "1GiB"}


class Victim:
    """A store that was killed with a few accepted frames in its log, to be damaged again and again."""

    def __init__(self, frames: tuple[Frame, ...] = FRAMES) -> None:
        self.clock = ManualClock()
        self.ledger = Ledger()
        self.disk = CrashFilesystem()
        store = open_store(self.disk, self.clock, ALL_IN_THE_LOG)
        for frame in frames:
            send(store, frame, self.ledger.note)
        self.frames = frames
        self.disk = self.disk.after_kill()
        self.found: LogFile = read_log_file(self.disk, WAL, last=True)
        self.end = self.found.end_offset
        self.data = self.disk.read_bytes(WAL)[: self.end + 2048]
        """The file as the process left it, with some of the zeros behind the records."""

    def with_log(self, data: bytes) -> CrashFilesystem:
        """The disk with these bytes as its log."""
        left = self.disk.after_kill()
        left.write_bytes(WAL, data)
        return left

    def frame_ends(self) -> list[int]:
        """Where the record of each frame ends in the file."""
        ends, offset = [], HEADER_BYTES
        for record in self.found.records:
            offset += record.size_bytes
            if record.kind == KIND_FRAME:
                ends.append(offset)
        assert len(ends) == len(self.frames)
        return ends

    def history_up_to(self, offset: int) -> Ledger:
        """The history as if only the frames that end before that byte had been answered; the rest may not be there."""
        ledger = self.ledger.copy()
        for frame, end in zip(self.frames, self.frame_ends(), strict=True):
            if end > offset:
                ledger.answers.pop(frame)
        return ledger

    def open(self, data: bytes) -> Store:
        """The store on a log of these bytes."""
        return open_store(self.with_log(data), self.clock)

    def check_cut(self, data: bytes, *, at: int) -> Store:
        """Open on these bytes: what ends before `at` is there, the store goes on, and opens again. Gives the store."""
        disk, ledger = self.with_log(data), self.history_up_to(at)
        first = open_store(disk, self.clock)
        ledger.check(first)
        for frame in AFTERWARDS:
            send(first, frame, ledger.note)
        again = open_store(disk.after_kill(), self.clock)
        ledger.check(again)
        assert again.recovery.cut is None, "the second start found something to cut"
        return first


@cache
def victim() -> Victim:
    return Victim()


def log_of(data: bytes) -> LogFile:
    """The file read by the log's own rules; raises `CorruptData`."""
    disk = CrashFilesystem()
    disk.write_bytes(WAL, data)
    (found,) = read_log(
        disk, WAL.parent, spec=LogSpec("wal", 0), store_id=victim().found.header.store_id, from_position=0
    )
    return found


def content(records: tuple[Record, ...]) -> list[tuple[int, int, bytes]]:
    return [(record.kind, record.position, record.payload.to_pybytes()) for record in records]


# --- torn -----------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G9")
def test_log_cut_at_every_byte_keeps_the_records_before_it() -> None:
    """A tear: the file ends at any byte."""
    whole = content(victim().found.records)
    for size in range(HEADER_BYTES, victim().end + 1):
        found = log_of(victim().data[:size])
        kept = content(found.records)
        assert kept == whole[: len(kept)]
        assert found.flaw is None or found.flaw.torn
        assert sum(record.size_bytes for record in found.records) + HEADER_BYTES == found.end_offset <= size


@pytest.mark.guarantee("G9")
def test_log_cut_inside_its_header_is_refused() -> None:
    """A named file has a whole header by then, so this is no tear."""
    for size in range(HEADER_BYTES):
        with pytest.raises(CorruptData, match="not a log file") as caught:
            log_of(victim().data[:size])
        assert (caught.value.file, caught.value.offset_bytes) == (WAL, 0)


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G9")
@every(149)
def test_store_opens_after_a_tear_and_goes_on(step: int) -> None:
    """A tear, through the store: the file ends at a byte, or is zero from there on as after a lost write."""
    for size in range(HEADER_BYTES, victim().end, step):
        victim().check_cut(victim().data[:size], at=size)
        victim().check_cut(victim().data[:size].ljust(len(victim().data), b"\0"), at=size)


def garbage(count: int) -> bytes:
    """Bytes that are no record, and not zero at the end."""
    return random.Random(count).randbytes(count - 1) + b"\x7f"


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("count", [*range(1, 24), 39, 40, 41, 64, 100, 511, 512, 513, 600])
def test_append_after_a_garbage_tail_survives_the_next_start(count: int) -> None:
    """Named bug: a log that appends behind garbage loses what it appended. Ours cuts, reports, and goes on."""
    tails = (victim().data[: victim().end] + garbage(count), _overwritten(victim().end, garbage(count)))
    for data in tails:
        store = victim().check_cut(data, at=victim().end)
        assert store.recovery.cut is not None
        assert (store.recovery.cut.path, store.recovery.cut.cut_at_bytes) == (WAL, victim().end)
        assert store.recovery.cut.reason


@pytest.mark.guarantee("G9")
def test_every_length_of_garbage_tail_is_cut_where_it_begins() -> None:
    for count in range(1, 601):
        found = log_of(victim().data[: victim().end] + garbage(count))
        assert found.flaw is not None
        assert (found.flaw.torn, found.flaw.offset_bytes) == (True, victim().end)


@pytest.mark.guarantee("G9")
def test_tail_of_zeros_is_the_end_and_nothing_is_cut() -> None:
    for count in (0, 1, 7, 8, 39, 40, 512, 600, 5000):
        store = victim().check_cut(victim().data[: victim().end] + bytes(count), at=victim().end)
        assert store.recovery.cut is None


def _overwritten(offset: int, piece: bytes) -> bytes:
    data = victim().data
    return data[:offset] + piece + data[offset + len(piece) :]


# --- damaged at rest ------------------------------------------------------------------------------------------------


def flips(start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The log with one bit wrong, for each bit of these bytes."""
    for at in range(start, end):
        for bit in range(8):
            yield at, _overwritten(at, bytes([victim().data[at] ^ (1 << bit)]))


@pytest.mark.guarantee("G9")
def test_every_flipped_bit_of_the_log_is_refused_with_its_place() -> None:
    """Damage at rest, all bits of header and records. No accepted record is taken for a torn one."""
    assert misjudged_flips() == []


def misjudged_flips(step: int = 1) -> list[str]:
    """Every so many bits of header and records flipped, one at a time: those that are not refused at their record."""
    ends = [HEADER_BYTES]
    for record in victim().found.records:
        ends.append(ends[-1] + record.size_bytes)
    wrong = []
    for at, data in islice(flips(0, victim().end), 0, None, step):
        start = max((end for end in ends if end <= at), default=0)
        try:
            found = log_of(data)
        except CorruptData as error:
            if (error.file, error.offset_bytes) != (WAL, start):
                wrong.append(f"byte {at}: {error}")
        else:
            wrong.append(f"byte {at} passed: {found.flaw}")
    return wrong


@pytest.mark.guarantee("G9")
def test_flipped_bit_behind_the_last_record_costs_nothing() -> None:
    """The zeros behind the records are no data: a stray bit there is cut and reported."""
    for at, data in flips(victim().end, victim().end + 600):
        if at % 97 == 0:
            assert victim().check_cut(data, at=victim().end).recovery.cut is not None
        found = log_of(data)
        assert content(found.records) == content(victim().found.records)


@pytest.mark.guarantee("G9")
@every(61)
def test_store_never_reads_a_wrong_event_from_a_flipped_log(step: int) -> None:
    """Damage at rest, through the store, which refuses with file and byte."""
    for number, (_, data) in enumerate(flips(0, victim().end)):
        if number % step == 0:
            with pytest.raises(CorruptData) as caught:
                victim().open(data)
            assert caught.value.file == WAL
            assert 0 <= caught.value.offset_bytes < victim().end
            assert caught.value.dump


@pytest.mark.guarantee("G9")
def test_every_zeroed_sector_is_refused_or_looks_like_a_tear_of_the_last_group() -> None:
    """Damage at rest that looks like a lost write. Only in the last group nothing proves that it was synced."""
    last_group = victim().frame_ends()[-2]
    for start in range(0, victim().end, SECTOR_BYTES):
        data = _overwritten(start, bytes(min(SECTOR_BYTES, victim().end - start)))
        try:
            store = victim().open(data)
        except CorruptData:
            continue
        assert start + SECTOR_BYTES > last_group, f"the sector at {start} was taken for a tear"
        assert store.recovery.cut is not None
        victim().history_up_to(min(start, last_group)).check(store)


@pytest.mark.guarantee("G9")
def test_record_moved_to_another_place_is_not_a_record_there() -> None:
    """Misdirected writes: each record copied over each other one of at least its size."""
    offset, places = HEADER_BYTES, []
    for record in victim().found.records:
        places.append((offset, record.size_bytes))
        offset += record.size_bytes
    for source, size in places:
        for target, room in places:
            if source != target and size <= room:
                with pytest.raises(CorruptData):
                    log_of(_overwritten(target, victim().data[source : source + size]))


@pytest.mark.guarantee("G9")
def test_flipped_bit_in_a_last_record_with_a_zero_sector_is_cut_and_reported() -> None:
    """The one documented limit: a record that holds 512 zero bytes, is the last one and is damaged, looks torn."""
    blank = Victim((*FRAMES, Frame("blank", {"alpha": tuple(0 for _ in range(300))})))
    start = blank.frame_ends()[-2]
    data = bytearray(blank.data)
    data[start + 20] ^= 1
    store = blank.open(bytes(data))
    assert store.recovery.cut is not None
    assert store.recovery.cut.cut_at_bytes == start
    blank.history_up_to(start).check(store)


# --- whole files ----------------------------------------------------------------------------------------------------


class TwoLogs:
    """A store whose log has several files, because one channel keeps events in the first."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.disk = CrashFilesystem()
        self.ledger = Ledger()
        store = open_store(self.disk, self.clock, {"segment.target_size": "64KiB"})
        self.old = b""
        numbers = iter(range(1001, 1200))
        send(store, slot_frame("s1", 1, gamma=(2001,)), self.ledger.note)
        for fsn in range(2, 20):
            send(store, slot_frame(f"s{fsn}", fsn, alpha=(fsn,), beta=(next(numbers),)), self.ledger.note)
            if fsn == 3:
                self.old = self.disk.read_bytes(WAL)
        self.disk = self.disk.after_kill()
        self.files = [path for path in self.disk.paths() if path.parent == WAL.parent]

    def with_files(self, contents: dict[Path, bytes]) -> CrashFilesystem:
        left = self.disk.after_kill()
        for path, data in contents.items():
            left.write_bytes(path, data)
        return left


@cache
def two_logs() -> TwoLogs:
    return TwoLogs()


def test_two_log_files_are_replayed_when_nothing_is_wrong() -> None:
    assert len(two_logs().files) >= 2
    store = open_store(two_logs().with_files({}), two_logs().clock)
    two_logs().ledger.copy().check(store)


@pytest.mark.guarantee("G9")
def test_two_swapped_log_files_are_refused() -> None:
    first, second = two_logs().files[:2]
    swapped = {first: two_logs().disk.read_bytes(second), second: two_logs().disk.read_bytes(first)}
    with pytest.raises(CorruptData, match="under another name"):
        open_store(two_logs().with_files(swapped), two_logs().clock)


@pytest.mark.guarantee("G9")
def test_missing_log_file_is_refused() -> None:
    for missing in two_logs().files[:-1]:
        left = two_logs().with_files({})
        left.unlink(missing)
        with pytest.raises(CorruptData, match="position"):
            open_store(left, two_logs().clock)


@pytest.mark.guarantee("G9")
def test_older_state_of_a_log_file_is_refused() -> None:
    """A stale file put back, as from a backup: it ends before the next one begins."""
    with pytest.raises(CorruptData) as caught:
        open_store(two_logs().with_files({WAL: two_logs().old}), two_logs().clock)
    assert caught.value.file.parent == WAL.parent


@pytest.mark.guarantee("G9")
def test_log_file_of_another_store_is_refused() -> None:
    for path in two_logs().files:
        with pytest.raises(CorruptData, match="belongs to store"):
            open_store(two_logs().with_files({path: victim().data}), two_logs().clock)


@pytest.mark.guarantee("G9")
def test_tear_in_a_file_that_is_not_the_last_is_refused() -> None:
    first = two_logs().files[0]
    data = two_logs().disk.read_bytes(first)
    for lost in (1, 4, 8, 100, 512, len(data) // 2):
        with pytest.raises(CorruptData) as caught:
            open_store(two_logs().with_files({first: data[:-lost]}), two_logs().clock)
        assert caught.value.file.parent == WAL.parent


@pytest.mark.guarantee("G9")
@pytest.mark.guarantee("G4")
def test_log_file_that_was_already_deleted_and_comes_back_changes_nothing() -> None:
    """A stale file put back after its events were published and the file was trimmed."""
    left = two_logs().with_files({})
    store = open_store(left, two_logs().clock)
    ledger = two_logs().ledger.copy()
    ledger.check(store)
    store.close()
    assert two_logs().files[0] not in left.paths()
    left.write_bytes(two_logs().files[0], two_logs().disk.read_bytes(two_logs().files[0]))
    ledger.check(open_store(left, two_logs().clock))
