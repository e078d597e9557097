"""A disk that fails or fills up at any call: nothing accepted is lost, and the store says what it can no longer do.

Input/output errors end the store: what was in flight is unknown, nothing more is accepted, no sync is repeated, and the
next process finds everything accepted. A full disk ends nothing: the call is refused and nothing of it is kept, or
sealing is put off; when there is space again the same store goes on.
"""

from __future__ import annotations

import errno
import re
import sqlite3
from functools import cache

import pytest

from holdfast import Store
from holdfast.errors import Backpressure, DiskFull, HoldfastError, StoreFailed
from holdfast.testing import CrashFilesystem, ManualClock
from tests.crash.ledger import Ledger
from tests.crash.workload import AFTERWARDS, FIRST_SESSION, SECOND_SESSION, STORE, Frame, open_store, run, send

SYNCS = {"sync", "sync_data", "sync_dir"}
GROWING = {"create", "makedir", "pwritev", "allocate", "commit"}
"""The calls that fail for lack of space on real disks."""

THIRDS = pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in (1, 2))])
"""Every third call, and the others in the long run."""


@cache
def calls_of_workload() -> list[tuple[int, str]]:
    """Number and operation of every call of the undisturbed workload."""
    disk = CrashFilesystem()
    for _ in run(disk, ManualClock(), Ledger().note):
        pass
    return [(call, operation) for call, operation, _ in disk.log]


def calls(part: int, parts: int) -> list[int]:
    return [call for call, _ in calls_of_workload()][part::parts]


class Trouble:
    """A workload on a disk that fails at one call."""

    def __init__(self, call: int, code: int) -> None:
        self.disk = CrashFilesystem()
        self.disk.fail_at(call, code)
        self.call = call
        self.clock = ManualClock()
        self.ledger = Ledger()
        self.store: Store | None = None
        self.error: Exception | None = None

    def run_until_it_fails(self) -> None:
        """Do the workload as far as it goes; `store` is the last one that could be opened."""
        try:
            for store in run(self.disk, self.clock, self.ledger.note):
                self.store = store
                if store.statistics().failed is not None:
                    return
        except (HoldfastError, OSError, sqlite3.Error) as error:
            self.error = error

    def check_that_it_ended(self) -> None:
        """Every later call of a store that failed says so, and the disk is left alone."""
        store = self.store
        if store is None or store._closed or store.statistics().failed is None:
            assert self.error is not None, f"the error at call {self.call} was swallowed"
            return
        assert re.search("Input/output error|disk I/O", str(store.statistics().failed))
        before = self.disk.calls
        for frame in AFTERWARDS:
            with pytest.raises(StoreFailed):
                send(store, frame, lambda *_: None)
        with pytest.raises(StoreFailed):
            store.flush()
        with pytest.raises(StoreFailed):
            store.read("alpha")
        store.close()
        assert self.disk.log[before:] == [], f"after the error at call {self.call} the store went on writing"


# --- input/output errors --------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G10")
@THIRDS
def test_error_at_any_disk_call_ends_the_store_and_loses_nothing_accepted(part: int) -> None:
    """EIO at every call. The store accepts nothing more and leaves the disk alone; the next process finds everything,
    after process death and after power loss, which takes what a failed sync left in the page cache."""
    for call in calls(part, 3):
        trouble = Trouble(call, errno.EIO)
        trouble.run_until_it_fails()
        trouble.check_that_it_ended()
        trouble.ledger.copy().check(open_store(trouble.disk.after_kill(), trouble.clock))
        if call % 2:
            trouble.ledger.check(open_store(trouble.disk.after_power_cut(call - 1), trouble.clock))


@pytest.mark.guarantee("G10")
def test_failed_sync_is_never_repeated_on_the_same_file() -> None:
    """The second sync would answer success for pages that the first one dropped."""
    for call, operation in calls_of_workload():
        if operation not in SYNCS:
            continue
        trouble = Trouble(call, errno.EIO)
        trouble.run_until_it_fails()
        _, _, failed = trouble.disk.log[call - 1]
        again = [entry for entry in trouble.disk.log[call:] if entry[1] in SYNCS and entry[2] == failed]
        assert again == [], f"{failed} was synced again after call {call} failed"


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("code", [errno.EROFS, errno.EDQUOT, errno.ENOSPC, errno.EIO])
def test_failed_sync_of_the_log_ends_the_store_whatever_the_reason(code: int) -> None:
    """Even for lack of space: what a failed sync left behind is unknown."""
    disk = CrashFilesystem()
    store = open_store(disk, ManualClock())
    disk.fail_when(lambda operation, path: code if operation == "sync_data" else None)
    with pytest.raises(StoreFailed, match="sync failed"):
        send(store, FIRST_SESSION[0], lambda *_: None)
    disk.stop_failing()
    with pytest.raises(StoreFailed):
        send(store, FIRST_SESSION[1], lambda *_: None)


# --- a full disk ----------------------------------------------------------------------------------------------------


def deliver(store: Store, frame: Frame, ledger: Ledger, *, tries: int = 3) -> None:
    """Send until accepted, as a producer does."""
    for _ in range(tries):
        try:
            send(store, frame, ledger.note)
        except (DiskFull, Backpressure):
            ledger.refused(frame)
        else:
            return
    raise AssertionError(f"{frame.name} was refused {tries} times")


@pytest.mark.guarantee("G11")
@THIRDS
def test_full_disk_at_any_call_is_survived_without_a_restart(part: int) -> None:
    """ENOSPC at every call that takes space: the caller sends again, and the same store goes on."""
    for call, operation in calls_of_workload()[part::3]:
        if operation not in GROWING:
            continue
        disk, clock, ledger = CrashFilesystem(), ManualClock(), Ledger()
        disk.fail_at(call, errno.ENOSPC)
        for session in (FIRST_SESSION, SECOND_SESSION):
            store = open_patiently(disk, clock)
            for number, frame in enumerate(session):
                deliver(store, frame, ledger)
                if number == 6:
                    clock.advance(60)
            ledger.check(store)
            if session is FIRST_SESSION:
                flush_patiently(store)
            assert store.statistics().failed is None, f"call {call} ({operation}): {store.statistics().failed}"
            assert store.statistics().seal_postponed is None
            close_patiently(store)
        final = open_patiently(disk, clock)
        ledger.check(final)
        close_patiently(final)
        ledger.note_segments(disk)


def open_patiently(disk: CrashFilesystem, clock: ManualClock) -> Store:
    try:
        return open_store(disk, clock)
    except (DiskFull, OSError, sqlite3.Error):
        return open_store(disk, clock)


def flush_patiently(store: Store) -> None:
    try:
        store.flush()
    except DiskFull:
        store.flush()


def close_patiently(store: Store) -> None:
    try:
        store.close()
    except DiskFull:
        store.close()


@pytest.mark.guarantee("G1")
def test_lack_of_space_at_a_sync_or_a_name_loses_nothing_accepted() -> None:
    """ENOSPC where disks seldom say it: the store ends or goes on, and the next process finds everything."""
    for call, operation in calls_of_workload()[::2]:
        if operation in GROWING:
            continue
        trouble = Trouble(call, errno.ENOSPC)
        trouble.run_until_it_fails()
        left = trouble.disk.after_kill()
        for _ in range(2):
            store = open_store(left, trouble.clock)
            trouble.ledger.check(store)
            store.close()


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G11")
def test_disk_without_space_refuses_and_goes_on_when_space_is_back() -> None:
    """ENOSPC for a while, from each of several moments on: definite refusals, nothing accepted lost, no restart."""
    session = (*FIRST_SESSION, *SECOND_SESSION)
    for start in range(0, 20, 4):
        disk, clock, ledger = CrashFilesystem(), ManualClock(), Ledger()
        store = open_store(disk, clock)
        refusals = 0
        for number, frame in enumerate(session):
            if number == start:
                disk.capacity_bytes = disk.used_bytes + 300
            refusals += try_to_send(store, frame, ledger)
            ledger.check(store)
        assert store.statistics().seal_postponed is not None or refusals
        disk.capacity_bytes = None
        for frame in session:
            if frame.identity is not None:
                deliver(store, frame, ledger)
        store.flush()
        assert store.statistics().failed is None
        assert store.statistics().seal_postponed is None
        ledger.check(store)
        store.close()
        ledger.check(open_store(disk, clock))


def try_to_send(store: Store, frame: Frame, ledger: Ledger) -> bool:
    """Whether the frame was refused."""
    try:
        send(store, frame, ledger.note)
    except (DiskFull, Backpressure):
        ledger.refused(frame)
        return True
    return False


@pytest.mark.guarantee("G1")
def test_power_cut_while_the_disk_is_full_loses_nothing_accepted() -> None:
    """ENOSPC, then power loss, then more space."""
    session = (*FIRST_SESSION, *SECOND_SESSION)
    disk, clock, ledger = CrashFilesystem(), ManualClock(), Ledger()
    store = open_store(disk, clock)
    for number, frame in enumerate(session):
        if number == 5:
            disk.capacity_bytes = disk.used_bytes + 300
        try_to_send(store, frame, ledger)
    for seed in range(6):
        left = disk.after_power_cut(seed)
        left.capacity_bytes = None
        history = ledger.copy()
        after = open_store(left, clock)
        history.check(after)
        history.replay(after, session)
        history.check(after)


@pytest.mark.guarantee("G11")
def test_close_on_a_full_disk_keeps_everything_in_the_log() -> None:
    """What could not be sealed is found in the log by the next process."""
    disk, clock, ledger = CrashFilesystem(), ManualClock(), Ledger()
    store = open_store(disk, clock)
    for frame in FIRST_SESSION[:4]:
        send(store, frame, ledger.note)
    disk.capacity_bytes = disk.used_bytes
    close_patiently(store)
    disk.capacity_bytes = None
    assert not [path for path in disk.paths() if path.suffix == ".arrow"]
    again = open_store(disk, clock)
    ledger.check(again)
    assert again.recovery.recovered_frames == 4
    assert STORE / "lock" in disk.paths()
