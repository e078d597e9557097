"""Power loss inside a frame that is larger than `frame.max_size`: all of it is there, or nothing.

That is how a deferred group of a QuestDB client is stored. Its entries become several, of several channels: some are
written straight into many segment files, some stand in one record that is longer than a log file is meant to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

import pytest
from msgspec.structs import replace

from holdfast import Store
from holdfast.errors import InvalidBatch
from holdfast.model.frame import FrameReceipt
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from tests.crash.ledger import Ledger
from tests.crash.workload import TINY, Frame, Note, open_store, send, slot_frame

GROUP = slot_frame(
    "group", 50, alpha=tuple(range(100, 110)), beta=tuple(range(1100, 1116)), delta=tuple(range(3100, 3130))
)
BEFORE = slot_frame("before", 1, alpha=(1, 2), delta=(3001, 3002))
BEHIND = slot_frame("behind", 51, alpha=(3,), beta=(1003,))
WAYS: dict[str, Mapping[str, object]] = {
    "into its segments": {},
    "through the log": {"segment.direct_size": "1GiB"},
}
BYTES_MAX = 1 << 20


def send_large(store: Store, frame: Frame, note: Note) -> FrameReceipt:
    """As `send`, of a frame that may be large; its receipt has one entry per channel again."""
    note(frame, None)
    receipt = store.commit_frame_async(frame.entries(), identity=frame.identity, bytes_max=BYTES_MAX).result()
    first = {entry.channel: entry for entry in reversed(receipt.entries)}
    receipt = replace(receipt, entries=tuple(first[channel] for channel in frame.events))
    note(frame, receipt)
    return receipt


def run(disk: CrashFilesystem, clock: ManualClock, ledger: Ledger, way: str) -> range:
    """The calls of the disk from the start of the group until it is answered and sealed."""
    store = open_store(disk, clock, WAYS[way])
    send(store, BEFORE, ledger.note)
    first = disk.calls + 1
    send_large(store, GROUP, ledger.note)
    store.flush()
    calls = range(first, disk.calls + 1)
    send(store, BEHIND, ledger.note)
    store.close()
    return calls


@cache
def calls_of(way: str) -> range:
    return run(CrashFilesystem(), ManualClock(), Ledger(), way)


def cut_at(call: int, way: str) -> tuple[CrashFilesystem, ManualClock, Ledger]:
    disk, clock, ledger = CrashFilesystem(), ManualClock(), Ledger()
    disk.cut_at(call)
    with pytest.raises(PowerCut):
        run(disk, clock, ledger, way)
    return disk, clock, ledger


def recover_and_check(disk: CrashFilesystem, clock: ManualClock, ledger: Ledger, *, go_on: bool) -> None:
    with open_store(disk, clock) as store:
        ledger.check(store)
        for frame in dict.fromkeys(ledger.asked) if go_on else ():
            answered = frame in ledger.answers
            assert send_large(store, frame, ledger.note).duplicate or not answered
    if go_on:
        with open_store(disk, clock) as again:
            ledger.check(again)


def test_group_is_many_times_what_a_frame_may_have() -> None:
    disk = CrashFilesystem()
    store = open_store(disk, ManualClock(), WAYS["through the log"])
    with pytest.raises(InvalidBatch, match="32768"):
        store.commit_frame(GROUP.entries(), identity=GROUP.identity)
    receipt = store.commit_frame_async(GROUP.entries(), identity=GROUP.identity, bytes_max=BYTES_MAX).result()
    assert len(receipt.entries) > 6
    assert store.statistics().frames == 1
    largest = max(len(disk.read_bytes(path)) for path in disk.paths() if path.suffix == ".log")
    assert largest > 2 * 65536, f"a log file is meant to have {TINY['wal.rotation_size']}"
    with pytest.raises(InvalidBatch, match="brings the frame to"):
        store.commit_frame_async(GROUP.entries(), bytes_max=100_000)


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("states", [1, pytest.param(30, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
@pytest.mark.parametrize("way", WAYS)
def test_power_cut_at_every_disk_call_keeps_a_large_group_whole_or_nothing_of_it(way: str, states: int) -> None:
    """Power loss. What was not synced is gone, or is there in part; now and then all is sent again."""
    for call in calls_of(way):
        disk, clock, ledger = cut_at(call, way)
        for state in range(states):
            left = disk.after_power_cut(0 if (call + state) % 2 else call + 1000 * state)
            recover_and_check(left, clock, ledger.copy(), go_on=(call + state) % 8 == 0)


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("way", WAYS)
def test_process_death_keeps_a_large_group_whole_or_nothing_of_it(way: str) -> None:
    """Process death, then power loss: what the next process took over from the page cache is safe by then."""
    for call in calls_of(way)[::5]:
        disk, clock, ledger = cut_at(call, way)
        left = disk.after_kill()
        open_store(left, clock)
        recover_and_check(left.after_power_cut(0), clock, ledger, go_on=False)
