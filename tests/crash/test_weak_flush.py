"""Flush policies that answer before the sync: what they promise, and what they still keep in a power cut.

A receipt says `WRITTEN`: the event survives process death, a power cut may take it. Even then no number is given out
twice, a frame is there as a whole or not at all, and a segment never holds what the log lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from holdfast import Store
from holdfast.model.frame import Durability
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from tests.crash.ledger import Ledger, Stored, read_channel
from tests.crash.workload import AFTERWARDS, CHANNELS, FIRST_SESSION, open_store, run, send, slot_frame

INTERVAL = {"wal.flush": "interval"}
BYTES = {"wal.flush": "bytes", "wal.flush_bytes": "20KiB"}
POLICIES = pytest.mark.parametrize("settings", [INTERVAL, BYTES], ids=["interval", "bytes"])
SKIPPED = 1_000_000


def syncs(disk: CrashFilesystem) -> int:
    """How often log files were synced."""
    return sum(operation == "sync_data" and path.parent.name == "wal" for _, operation, path in disk.log)


@POLICIES
def test_receipt_of_a_weak_policy_says_written(settings: Mapping[str, object]) -> None:
    store = open_store(CrashFilesystem(), ManualClock(), settings)
    receipt = send(store, FIRST_SESSION[0], lambda *_: None)
    assert receipt.durability is Durability.WRITTEN
    assert receipt.entries[0].durability is Durability.WRITTEN
    assert store.statistics().durability is Durability.WRITTEN


def test_interval_policy_syncs_when_its_time_has_come() -> None:
    disk, clock = CrashFilesystem(), ManualClock()
    store = open_store(disk, clock, INTERVAL)
    send(store, slot_frame("a", 1, alpha=(1,)), lambda *_: None)  # creates the channel, so it is synced
    before = syncs(disk)
    send(store, slot_frame("b", 2, alpha=(2,)), lambda *_: None)
    clock.advance(0.024)
    send(store, slot_frame("c", 3, alpha=(3,)), lambda *_: None)
    assert syncs(disk) == before
    clock.advance(0.001)
    send(store, slot_frame("d", 4, alpha=(4,)), lambda *_: None)
    assert syncs(disk) == before + 1


def test_bytes_policy_syncs_when_enough_bytes_wait() -> None:
    disk, clock = CrashFilesystem(), ManualClock()
    store = open_store(disk, clock, {"wal.flush": "bytes", "wal.flush_bytes": "4KiB"})
    send(store, slot_frame("a", 1, alpha=(1,)), lambda *_: None)
    before = syncs(disk)
    sent = 0
    while syncs(disk) == before:
        sent += 1
        send(store, slot_frame(f"b{sent}", 1 + sent, alpha=(1 + sent,)), lambda *_: None)
    assert 4096 // 600 <= sent <= 4096 // 200


def test_quiet_log_of_the_bytes_policy_is_synced_after_a_second() -> None:
    disk, clock = CrashFilesystem(), ManualClock()
    store = open_store(disk, clock, BYTES)
    send(store, slot_frame("a", 1, alpha=(1,)), lambda *_: None)
    before = syncs(disk)
    send(store, slot_frame("b", 2, alpha=(2,)), lambda *_: None)
    clock.advance(1)
    send(store, slot_frame("a", 1, alpha=(1,)), lambda *_: None)  # a repeat, which writes nothing
    send(store, slot_frame("c", 3, alpha=(3,)), lambda *_: None)
    assert syncs(disk) == before + 1


@POLICIES
@pytest.mark.guarantee("G1")
def test_process_death_takes_nothing_from_a_weak_policy(settings: Mapping[str, object]) -> None:
    """Process death: everything written is there."""
    disk, clock, ledger = CrashFilesystem(), ManualClock(), Ledger()
    for store in run(disk, clock, ledger.note, settings):
        ledger.check(store)
        if len(ledger.answers) == 11:
            break
    ledger.check(open_store(disk.after_kill(), clock, settings))


@POLICIES
def test_orderly_end_of_a_weak_policy_skips_no_numbers(settings: Mapping[str, object]) -> None:
    disk, clock, ledger = CrashFilesystem(), ManualClock(), Ledger()
    for store in run(disk, clock, ledger.note, settings):
        assert store.recovery.skipped_numbers == 0
    again = open_store(disk.after_power_cut(0), clock, settings)
    assert again.recovery.skipped_numbers == 0
    ledger.check(again)


class Doubt:
    """Everything any receipt or reader said of positions, over restarts that lose some of it."""

    def __init__(self) -> None:
        self.ledger = Ledger(gapless=False)
        self.seqs: dict[tuple[str, int], int] = {}
        self.ids: dict[int, int] = {}

    def note(self, frame: object, receipt: object) -> None:
        self.ledger.note(frame, receipt)  # type: ignore[arg-type]
        self._note_receipts()

    def _note_receipts(self) -> None:
        for frame, receipt in self.ledger.answers.items():
            if len(receipt.entries) != len(frame.events):
                continue
            for entry, (channel, numbers) in zip(receipt.entries, frame.events.items(), strict=True):
                if entry.last_seq - entry.first_seq + 1 == len(numbers) and entry.first_committed_id:
                    for offset, number in enumerate(numbers):
                        item = Stored(channel, entry.first_seq + offset, entry.first_committed_id + offset, number)
                        self.saw(item)

    def saw(self, item: Stored) -> None:
        """One number, one event, for ever, also if the event was lost."""
        assert self.seqs.setdefault((item.channel, item.seq), item.number) == item.number, "a seq was used twice"
        assert self.ids.setdefault(item.committed_id, item.number) == item.number, "a committed_id was used twice"

    def check(self, store: Store) -> None:
        for channel in CHANNELS:
            for item in read_channel(store, channel):
                self.saw(item)

    def forget_lost(self, store: Store) -> None:
        """What the power cut took will be sent again: it counts as never answered."""
        present = {item.number for channel in CHANNELS for item in read_channel(store, channel)}
        for frame in [frame for frame in self.ledger.answers if not set(frame.numbers()) <= present]:
            lost = set(frame.numbers()) - present
            assert lost == set(frame.numbers()) or frame.name.startswith("i"), f"{frame.name} is there in part"
            del self.ledger.answers[frame]


def cut_runs(settings: Mapping[str, object], step: int) -> Iterator[tuple[CrashFilesystem, ManualClock, Doubt]]:
    """The workload under a weak policy, cut at every `step`-th call."""
    disk = CrashFilesystem()
    for _ in run(disk, ManualClock(), lambda *_: None, settings):
        pass
    for call in range(1, disk.calls + 1, step):
        disk, clock, doubt = CrashFilesystem(), ManualClock(), Doubt()
        disk.cut_at(call)
        with suppress(PowerCut):
            for store in run(disk, clock, doubt.note, settings):
                doubt.check(store)
        yield disk, clock, doubt


@POLICIES
@pytest.mark.parametrize("step", [19, pytest.param(1, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
@pytest.mark.guarantee("G4")
def test_no_number_is_reused_after_a_power_cut_of_a_weak_policy(settings: Mapping[str, object], step: int) -> None:
    """Power loss. Answers that were lost keep their numbers: the next ones are a million further on."""
    for disk, clock, doubt in cut_runs(settings, step):
        doubt.check(open_store(disk.after_power_cut(1), clock, settings))
        after_one = disk.after_power_cut(disk.calls % 3 and disk.calls)
        store = open_store(after_one, clock, settings)
        doubt.check(store)
        doubt.forget_lost(store)
        doubt.ledger.replay(store, list(dict.fromkeys(doubt.ledger.asked)))
        for frame in AFTERWARDS:
            send(store, frame, doubt.note)
        doubt.check(store)
        store.close()
        doubt.check(open_store(after_one, clock, settings))


@pytest.mark.guarantee("G4")
def test_numbers_are_skipped_even_if_the_next_start_is_strict_and_dies_too() -> None:
    """Power loss under a weak policy; the next process runs with `commit` and loses power at any call of its start."""
    disk, clock = CrashFilesystem(), ManualClock()
    store = open_store(disk, clock, INTERVAL)
    send(store, slot_frame("a", 1, alpha=(1,)), lambda *_: None)
    lost = send(store, slot_frame("b", 2, alpha=(2,)), lambda *_: None)
    call = 0
    while True:
        call += 1
        left = disk.after_power_cut(0)
        left.cut_at(call)
        try:
            open_store(left, clock)
        except PowerCut:
            after = open_store(left.after_power_cut(0), clock)
        else:
            break
        fresh = send(after, slot_frame("c", 3, alpha=(3,)), lambda *_: None)
        assert fresh.entries[0].first_seq > lost.entries[0].last_seq, f"cut at call {call}"
        assert fresh.entries[0].first_committed_id > lost.entries[0].first_committed_id
    assert call > 10


@POLICIES
def test_skipped_numbers_are_reported_and_reading_passes_over_them(settings: Mapping[str, object]) -> None:
    disk, clock = CrashFilesystem(), ManualClock()
    store = open_store(disk, clock, settings)
    send(store, slot_frame("a", 1, alpha=(1, 2)), lambda *_: None)
    store = open_store(disk.after_kill(), clock, settings)
    assert store.recovery.skipped_numbers == SKIPPED
    receipt = send(store, slot_frame("b", 2, alpha=(3,)), lambda *_: None)
    assert receipt.entries[0].first_seq == 3 + SKIPPED
    for _ in range(2):
        assert [(item.seq, item.number) for item in read_channel(store, "alpha")] == [(1, 1), (2, 2), (3 + SKIPPED, 3)]
        store.flush()


@pytest.mark.guarantee("G4")
def test_numbers_that_were_skipped_are_told_apart_from_lost_ones() -> None:
    disk, clock = CrashFilesystem(), ManualClock()
    store = open_store(disk, clock, INTERVAL)
    send(store, slot_frame("a", 1, alpha=(1,)), lambda *_: None)
    for fsn in (2, 3):  # twice in a row, the second time with nothing new in the channel
        disk = disk.after_kill()
        store = open_store(disk, clock, INTERVAL)
        send(store, slot_frame("b", fsn, beta=(fsn,)), lambda *_: None)
    receipt = send(store, slot_frame("a", 4, alpha=(4,)), lambda *_: None)
    first = receipt.entries[0].first_seq
    assert first > 2 * SKIPPED
    store.flush()
    assert store.listing.skipped("alpha") == [(2, first - 1)]
    assert store.listing.skipped("beta") == [(2, SKIPPED + 1)]
