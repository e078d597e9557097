"""The crash tests are worth something: each of these bugs, planted into the store, is found by one of them.

A planted bug replaces one step of the product for the length of one test. The hunt is the body of a crash test, run
until it complains; a hunt that finds nothing fails here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.disk import appendlog, records
from holdfast.disk.appendlog import AppendLog
from holdfast.disk.records import Flaw
from holdfast.errors import DamagedData, DiskFull
from holdfast.store import recovery
from holdfast.store.committer import Committer
from holdfast.store.sealer import Sealer
from holdfast.store.segments.growing import GrowingSegment
from holdfast.store.store import Store
from holdfast.store.tail import Tail
from holdfast.store.wal.references import ReferredBytes, Settlement
from holdfast.testing import CrashFilesystem, ManualClock, PowerCut
from holdfast.testing.crashdisk import CrashFile
from tests.crash import test_disk_errors, test_large_frame_damage, test_log_damage, test_power_cut, test_weak_flush
from tests.crash.ledger import Ledger
from tests.crash.workload import open_store, run

Plant = Callable[[pytest.MonkeyPatch], None]
Hunt = Callable[[], object]

# --- hunts ----------------------------------------------------------------------------------------------------------


def calls_in_any_order() -> list[int]:
    """Late calls as early as early ones, so that most bugs are found soon."""
    calls = list(range(1, test_power_cut.calls_of_workload() + 1))
    random.Random(7).shuffle(calls)
    return calls


def cut_runs() -> Iterator[tuple[int, CrashFilesystem, ManualClock, Ledger]]:
    """The workload, cut at every call; with the bug it may make fewer of them."""
    for call in calls_in_any_order():
        disk, clock, ledger = CrashFilesystem(), ManualClock(), Ledger()
        disk.cut_at(call)
        with suppress(PowerCut):
            for _ in run(disk, clock, ledger.note):
                pass
        yield call, disk, clock, ledger


def hunt_power_cuts() -> None:
    for call, disk, clock, ledger in cut_runs():
        for seed in (0, call):
            test_power_cut.recover_and_check(disk.after_power_cut(seed), clock, ledger.copy())


def hunt_replays() -> None:
    for _, disk, clock, ledger in cut_runs():
        test_power_cut.recover_and_go_on(disk.after_power_cut(0), clock, ledger.copy())


def hunt_process_death() -> None:
    for _, disk, clock, ledger in cut_runs():
        left = disk.after_kill()
        open_store(left, clock)
        test_power_cut.recover_and_check(left.after_power_cut(0), clock, ledger)


def hunt_second_starts() -> None:
    for _, disk, clock, ledger in cut_runs():
        left = disk.after_power_cut(0)
        open_store(left, clock)
        test_power_cut.recover_and_check(left.after_kill(), clock, ledger)


def hunt_cuts_of_large_frames() -> None:
    test_large_frame_damage.test_power_cut_before_either_sync_keeps_a_large_frame_as_a_whole_or_not_at_all()


def hunt_sync_errors() -> None:
    test_disk_errors.test_failed_sync_is_never_repeated_on_the_same_file()


def hunt_errors() -> None:
    test_disk_errors.test_error_at_any_disk_call_ends_the_store_and_loses_nothing_accepted(1)


def hunt_flipped_bits() -> None:
    test_log_damage.test_every_flipped_bit_of_the_log_is_refused_with_its_place()


def hunt_weak_numbers() -> None:
    test_weak_flush.test_no_number_is_reused_after_a_power_cut_of_a_weak_policy(test_weak_flush.INTERVAL, 3)


def hunt_leftover_logs() -> None:
    test_power_cut.test_power_cut_leaves_no_log_file_behind_for_ever()


# --- bugs -----------------------------------------------------------------------------------------------------------


def answer_before_the_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "_must_sync", lambda self, group: False)


def skip_syncs_of(patch: pytest.MonkeyPatch, wanted: Callable[[Path], bool]) -> None:
    """A file system whose file syncs do nothing for some paths."""
    real = CrashFile._sync
    patch.setattr(CrashFile, "_sync", lambda self, operation: None if wanted(self.path) else real(self, operation))


def skip_directory_syncs_of(patch: pytest.MonkeyPatch, wanted: Callable[[Path], bool]) -> None:
    real = CrashFilesystem.sync_dir
    patch.setattr(CrashFilesystem, "sync_dir", lambda self, path: None if wanted(path) else real(self, path))


def publish_segments_without_syncing_them(patch: pytest.MonkeyPatch) -> None:
    skip_syncs_of(patch, lambda path: ".arrow" in path.name)


def publish_segments_without_syncing_their_names(patch: pytest.MonkeyPatch) -> None:
    skip_directory_syncs_of(patch, lambda path: path.parent.name == "channels")


def name_log_files_without_syncing_the_directory(patch: pytest.MonkeyPatch) -> None:
    skip_directory_syncs_of(patch, lambda path: path.name == "wal")


def take_over_a_log_without_syncing_it(patch: pytest.MonkeyPatch) -> None:
    real = appendlog.mend

    def mend(*arguments: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            skip_syncs_of(inner, lambda path: path.suffix == ".tmp")
            return real(*arguments, **options)

    patch.setattr(appendlog, "mend", mend)


def answer_before_the_file_of_a_large_frame_is_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(GrowingSegment, "sync", lambda self: None)


def refer_to_a_file_whose_name_is_not_synced(patch: pytest.MonkeyPatch) -> None:
    real = GrowingSegment.create

    def create(*arguments: Any, **options: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            skip_directory_syncs_of(inner, lambda path: path.parent.name == "channels")
            return real(*arguments, **options)

    patch.setattr(GrowingSegment, "create", create)


def publish_filled_segments_without_syncing_their_footers(patch: pytest.MonkeyPatch) -> None:
    real = CrashFile._sync

    def sync(self: CrashFile, operation: str) -> None:
        if self.path.suffix != ".growing" or operation != "sync":
            real(self, operation)

    patch.setattr(CrashFile, "_sync", sync)


def take_over_references_without_their_bytes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Settlement, "_with_bytes", lambda self, record: record)


def believe_every_reference(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ReferredBytes, "flaw", lambda self, channel, reference, *, verify=True: "")


def remove_files_that_the_log_refers_to(patch: pytest.MonkeyPatch) -> None:
    real = recovery._settle_growing

    def settle(filesystem: Any, state: Any) -> Any:
        state.spent.clear()
        return real(filesystem, state)

    patch.setattr(recovery, "_settle_growing", settle)


def trim_the_log_before_publishing(patch: pytest.MonkeyPatch) -> None:
    real = Sealer._publish

    def publish(self: Sealer, units: Any) -> None:
        self._wal.log.trim(keep_from_number=self._tail.oldest_file(active=self._wal.log.number, without=units))
        real(self, units)

    patch.setattr(Sealer, "_publish", publish)


def move_the_cursor_past_unpublished_units(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Tail, "oldest_file", lambda self, *, active, without=(): active)


def remember_frames_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Store, "_remember", lambda self, state: None)


def never_replay_the_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery._Replay, "file", lambda self, found: None)


def believe_every_checksum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(records, "crc32c", lambda data, value=0: 7)


def take_all_damage_for_a_tear(patch: pytest.MonkeyPatch) -> None:
    def classify(buffer: pa.Buffer, *, offset: int, reason: str, **_: int) -> Flaw:
        return Flaw(offset, reason, torn=True)

    patch.setattr(records, "classify", classify)


def try_a_failed_sync_again(patch: pytest.MonkeyPatch) -> None:
    real = CrashFile.sync_data

    def sync_data(self: CrashFile) -> None:
        try:
            real(self)
        except OSError:
            real(self)

    patch.setattr(CrashFile, "sync_data", sync_data)


def go_on_after_an_error(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AppendLog, "_fail", lambda self, error, what: DiskFull(file=self._directory, reason=what))


def reuse_numbers_of_lost_answers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(recovery, "_skip_numbers", lambda state: 0)


def seal_what_the_log_has_not_synced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "settle", lambda self, *, inline: None)


def forget_log_files_that_are_not_needed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AppendLog, "adopt", lambda self, number, start_position: None)


BUGS: list[tuple[Plant, Hunt]] = [
    (answer_before_the_sync, hunt_power_cuts),
    (publish_segments_without_syncing_them, hunt_power_cuts),
    (publish_segments_without_syncing_their_names, hunt_power_cuts),
    (name_log_files_without_syncing_the_directory, hunt_power_cuts),
    (take_over_a_log_without_syncing_it, hunt_process_death),
    (answer_before_the_file_of_a_large_frame_is_synced, hunt_power_cuts),
    (refer_to_a_file_whose_name_is_not_synced, hunt_power_cuts),
    (publish_filled_segments_without_syncing_their_footers, hunt_power_cuts),
    (take_over_references_without_their_bytes, hunt_process_death),
    (believe_every_reference, hunt_cuts_of_large_frames),
    (remove_files_that_the_log_refers_to, hunt_second_starts),
    (move_the_cursor_past_unpublished_units, hunt_power_cuts),
    (remember_frames_in_memory_only, hunt_replays),
    (never_replay_the_log, hunt_power_cuts),
    (try_a_failed_sync_again, hunt_sync_errors),
    (go_on_after_an_error, hunt_errors),
    (reuse_numbers_of_lost_answers, hunt_weak_numbers),
    (forget_log_files_that_are_not_needed, hunt_leftover_logs),
]
BUGS_HARD_TO_FIND: list[tuple[Plant, Hunt]] = [
    (trim_the_log_before_publishing, hunt_power_cuts),
    (seal_what_the_log_has_not_synced, hunt_weak_numbers),
    (take_all_damage_for_a_tear, hunt_flipped_bits),
    (believe_every_checksum, hunt_flipped_bits),
]
CASES = [
    *(pytest.param(plant, hunt, id=plant.__name__) for plant, hunt in BUGS),
    *(pytest.param(plant, hunt, id=plant.__name__, marks=pytest.mark.long) for plant, hunt in BUGS_HARD_TO_FIND),
]


@pytest.fixture(autouse=True)
def _calls_counted_before_planting() -> None:
    """The undisturbed workloads are measured without the bug."""
    test_power_cut.calls_of_workload()
    test_disk_errors.calls_of_workload()
    test_log_damage.victim()


@pytest.mark.parametrize(("plant", "hunt"), CASES)
def test_planted_bug_is_found_by_its_crash_test(plant: Plant, hunt: Hunt, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = (AssertionError, DamagedData, pa.ArrowException, OSError, EOFError, pytest.fail.Exception)
    with pytest.raises(found) as caught:
        hunt()
    assert "Timeout" not in str(caught.value), "it was not found in time"
