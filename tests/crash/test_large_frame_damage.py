"""Large frames, whose bytes are in the file of their segment and not in the log: torn, flipped, cut short, gone.

What was accepted is there, or the start refuses with the file and the byte. What was not accepted is cut like any torn
tail. In no case does a reader get a wrong event.
"""

from __future__ import annotations

import random
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from holdfast.disk.appendlog import LogFile, read_log_file
from holdfast.errors import CorruptData
from holdfast.store.repair import repair_store
from holdfast.store.verify import verify_store
from holdfast.store.wal.codec import KIND_FRAME, Reference, decode_frame
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from tests.crash.ledger import Ledger
from tests.crash.workload import AFTERWARDS, STORE, Frame, batch, guid_frame, open_store, send, slot_frame

WAL = STORE / "wal" / "wal-0000000001.log"
ROOMY = {"segment.target_size": "64KiB"}
SMALL = next(number for number in range(3100, 3200) if len(batch("delta", (number,)).serialize()) < 512)
FRAMES = (
    slot_frame("s1", 1, delta=(3001, 3002, 3003), alpha=(1, 2)),
    Frame("small", {"delta": (SMALL,)}),
    guid_frame("g1", delta=(3005, 3006, 3007), beta=(1001,)),
    slot_frame("s2", 2, delta=(3008, 3009, 3011)),
)


class Victim:
    """A store that was killed with a few accepted frames, three of them in a file that was being filled."""

    def __init__(self) -> None:
        self.clock, self.ledger, disk = ManualClock(), Ledger(), CrashFilesystem()
        store = open_store(disk, self.clock, ROOMY)
        for frame in FRAMES:
            send(store, frame, self.ledger.note)
        self.disk = disk.after_kill()
        (self.path,) = [path for path in self.disk.paths() if path.suffix == ".growing"]
        self.data = self.disk.read_bytes(self.path)
        self.log: LogFile = read_log_file(self.disk, WAL, last=True)
        frames = [decode_frame(record.payload) for record in self.log.records if record.kind == KIND_FRAME]
        found = [entry.payload.reference for frame in frames for entry in frame.entries]
        self.references: list[Reference] = [reference for reference in found if reference is not None]

    def with_file(self, data: bytes | None, path: Path | None = None) -> CrashFilesystem:
        """The disk with these bytes in the file; None without it."""
        left = self.disk.after_kill()
        if data is None:
            left.unlink(path or self.path)
        else:
            left.write_bytes(path or self.path, data)
        return left

    def check(self, disk: CrashFilesystem, ledger: Ledger) -> bool:
        """Open, compare, go on, open again. Whether something was cut."""
        store = open_store(disk, self.clock, ROOMY)
        ledger.check(store)
        cut = store.recovery.cut is not None
        for frame in AFTERWARDS:
            send(store, frame, ledger.note)
        again = open_store(disk.after_power_cut(0), self.clock, ROOMY)
        ledger.check(again)
        again.close()
        return cut

    def without_last(self) -> Ledger:
        """The history as if the last frame had not been answered."""
        ledger = self.ledger.copy()
        ledger.answers.pop(FRAMES[-1])
        return ledger


@cache
def victim() -> Victim:
    return Victim()


def test_large_frames_are_only_referred_to_by_the_log() -> None:
    assert len(victim().references) == 3
    assert victim().log.end_offset < sum(reference.size_bytes for reference in victim().references)
    assert not victim().check(victim().with_file(victim().data), victim().ledger.copy())


@pytest.mark.guarantee("G9")
def test_every_flipped_bit_of_an_accepted_large_frame_is_refused_with_its_place() -> None:
    """All but the last frame: the log says that it was synced past them."""
    chance = random.Random(1)
    for reference in victim().references[:-1]:
        for offset in range(reference.offset_bytes, reference.end_bytes, 97):
            data = bytearray(victim().data)
            data[offset] ^= 1 << chance.randrange(8)
            disk = victim().with_file(bytes(data))
            with pytest.raises(CorruptData, match="checksum") as caught:
                open_store(disk, victim().clock, ROOMY)
            assert (caught.value.file, caught.value.offset_bytes) == (victim().path, reference.offset_bytes)


@pytest.mark.guarantee("G9")
def test_flipped_bit_of_the_last_large_frame_is_refused_or_cut_and_told() -> None:
    """It may look like a tear if the frame has a sector of zeros; then the whole frame goes, and the report says so."""
    last = victim().references[-1]
    for offset in range(last.offset_bytes, last.end_bytes, 131):
        data = bytearray(victim().data)
        data[offset] ^= 16
        with suppress(CorruptData):
            assert victim().check(victim().with_file(bytes(data)), victim().without_last())


@pytest.mark.guarantee("G4")
def test_large_frame_that_was_never_written_as_a_whole_is_cut() -> None:
    """Any sector of the last frame missing, or the file ending anywhere inside of it."""
    last = victim().references[-1]
    for start in range(last.offset_bytes // 512 * 512, last.end_bytes, 512):
        data = bytearray(victim().data)
        low, high = max(start, last.offset_bytes), min(start + 512, last.end_bytes)
        data[low:high] = bytes(high - low)
        changed = bytes(data) != victim().data
        assert victim().check(victim().with_file(bytes(data)), victim().without_last()) == changed
    for size in range(last.offset_bytes, last.end_bytes, 499):
        assert victim().check(victim().with_file(victim().data[:size]), victim().without_last())


def commit_all(disk: CrashFilesystem, ledger: Ledger) -> None:
    store = open_store(disk, ManualClock(), ROOMY)
    for frame in FRAMES:
        send(store, frame, ledger.note)


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G4")
def test_power_cut_before_either_sync_keeps_a_large_frame_as_a_whole_or_not_at_all() -> None:
    """Power loss when the file and the log are written and one is synced, or none; many states of each."""
    disk = CrashFilesystem()
    commit_all(disk, Ledger())
    syncs = [call for call, operation, path in disk.log if operation == "sync_data" and path.suffix == ".growing"]
    torn = 0
    for call in [call + later for call in syncs for later in (0, 1)]:
        disk, ledger = CrashFilesystem(), Ledger()
        disk.cut_at(call)
        with pytest.raises(PowerCut):
            commit_all(disk, ledger)
        for seed in range(25):
            history = ledger.copy()
            store = open_store(disk.after_power_cut(seed), ManualClock(), ROOMY)
            history.check(store)
            torn += store.recovery.cut is not None and ".growing" in store.recovery.cut.reason
    assert torn > 3, "the state for which the rule was made did not come up"


@pytest.mark.guarantee("G9")
def test_file_that_the_log_refers_to_is_missed_by_name() -> None:
    disk = victim().with_file(None)
    with pytest.raises(CorruptData, match="missing") as caught:
        open_store(disk, victim().clock, ROOMY)
    assert caught.value.file == victim().path
    report = verify_store(disk, STORE, live=False)
    assert not report.intact
    assert str(victim().path) in {finding.file for finding in report.findings if finding.severity == "damage"}


def test_verify_calls_a_killed_store_with_large_frames_intact() -> None:
    report = verify_store(victim().disk.after_kill(), STORE, live=False)
    assert report.intact, report.findings
    assert ("note", str(victim().path)) in {(finding.severity, finding.file) for finding in report.findings}


@pytest.mark.guarantee("G9")
def test_verify_finds_a_flipped_bit_and_notes_a_torn_tail() -> None:
    first, last = victim().references[0], victim().references[-1]
    data = bytearray(victim().data)
    data[first.offset_bytes + 700] ^= 1
    damaged = verify_store(victim().with_file(bytes(data)), STORE, live=False)
    assert not damaged.intact
    torn = verify_store(victim().with_file(victim().data[: last.end_bytes - 8]), STORE, live=False)
    assert torn.intact
    assert any("torn tail" in finding.reason for finding in torn.findings)


@pytest.mark.guarantee("G9")
def test_repair_keeps_every_large_frame_but_the_damaged_one() -> None:
    reference = victim().references[1]
    data = bytearray(victim().data)
    data[reference.offset_bytes + 700] ^= 1
    disk = victim().with_file(bytes(data))
    report = repair_store(disk, STORE, clock=victim().clock)
    assert report.plan.lost_events == 3
    store = open_store(disk, victim().clock, ROOMY)
    numbers = [number for part in store.read("delta") for number in part.column("n").to_pylist()]
    assert numbers == [3001, 3002, 3003, SMALL, 3008, 3009, 3011]
    assert [n for part in store.read("beta") for n in part.column("n").to_pylist()] == [1001]
    store.close()
    assert not [path for path in disk.paths() if path.suffix == ".growing"]
