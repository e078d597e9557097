"""Bugs that stores of this kind are known for, planted into ours: each must be found, most of them by the simulation.

A planted bug replaces one step of the product for the length of one test. Its hunt runs seeds, with only those kinds of
faults that can show it, until one complains; the bound says how many are enough. What needs damaged bytes, or two
servers, is hunted by the test that makes those.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.clock import Clock
from holdfast.disk import records
from holdfast.disk.records import Flaw
from holdfast.errors import DamagedData, DamagedObject
from holdfast.sender.core import LinkCore
from holdfast.sender.segment import FileSegment
from holdfast.store.committer import Committer
from holdfast.store.store import Store
from holdfast.store.subscribers.progress import Progress
from holdfast.testing import CrashFilesystem
from holdfast.testing.clock import START_WALL_NS
from holdfast.testing.crashdisk import CrashFile
from holdfast.testing.history import HistoryBroken
from holdfast.testing.objects import MemoryObjects
from holdfast.testing.simulation import NotSettled, simulate
from holdfast.tier import copying
from holdfast.tier.uploader import Uploader
from tests.crash import test_log_damage
from tests.simulation import test_found
from tests.unit.tier import test_uploader

Plant = Callable[[pytest.MonkeyPatch], None]

# --- bugs -----------------------------------------------------------------------------------------------------------


def no_fdatasync(patch: pytest.MonkeyPatch) -> None:
    real = CrashFile._sync
    logs = ("wal", "ack")
    patch.setattr(CrashFile, "_sync", lambda self, how: None if self.path.parent.name in logs else real(self, how))


def no_directory_fsync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CrashFilesystem, "sync_dir", lambda self, path: None)


def accept_before_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Committer, "_must_sync", lambda self, group: False)


def fsync_retried(patch: pytest.MonkeyPatch) -> None:
    real = CrashFile.sync_data

    def sync_data(self: CrashFile) -> None:
        try:
            real(self)
        except OSError:
            real(self)

    patch.setattr(CrashFile, "sync_data", sync_data)


def crc_not_compared(patch: pytest.MonkeyPatch) -> None:
    real = records.decode
    patch.setattr(records, "decode", lambda *arguments, **options: real(*arguments, **{**options, "verify": False}))


def mid_log_truncation(patch: pytest.MonkeyPatch) -> None:
    real = records.classify

    def classify(*arguments: Any, **options: Any) -> Flaw | None:
        found = real(*arguments, **options)
        return None if found is None else Flaw(found.offset_bytes, found.reason, torn=True)

    patch.setattr(records, "classify", classify)


def dedup_only_in_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Store, "_remember", lambda self, state: None)


def trim_on_plain_ok_in_durable_mode(patch: pytest.MonkeyPatch) -> None:
    real = LinkCore._begin
    patch.setattr(LinkCore, "_begin", lambda self, opening: real(self, opening._replace(durable=False)))


def upload_without_checksum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(copying, "difference", lambda *_arguments, **_options: None)


class _WallClock:
    """Time that follows the wall, as if nobody ever set it."""

    def __init__(self, clock: Clock) -> None:
        self.wall_ns = clock.wall_ns

    def monotonic_ns(self) -> int:
        return self.wall_ns() - START_WALL_NS


def wall_clock_timeouts(patch: pytest.MonkeyPatch) -> None:
    real = LinkCore.__init__

    def init(self: LinkCore, *arguments: Any, clock: Clock, **options: Any) -> None:
        real(self, *arguments, clock=_WallClock(clock), **options)

    patch.setattr(LinkCore, "__init__", init)


def lock_without_fencing(patch: pytest.MonkeyPatch) -> None:
    """The manifest is written without asking whether somebody else was first."""
    real = MemoryObjects.create

    def create(self: MemoryObjects, key: str, data: bytes) -> bool:
        if key.startswith("manifest/"):
            self.remove(key)
        return real(self, key, data)

    patch.setattr(MemoryObjects, "create", create)


def mark_past_a_hole(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "mark", property(lambda self: self.confirmed.highest or 0))


def append_behind_a_failed_sync(patch: pytest.MonkeyPatch) -> None:
    """Found by the simulation, and mended."""
    patch.setattr(FileSegment, "rewrite", lambda self: None)


def wait_for_what_was_evicted(patch: pytest.MonkeyPatch) -> None:
    """Found by the simulation, and mended."""
    patch.setattr(Uploader, "_pass_evicted", lambda self, channels: None)


# --- hunts ----------------------------------------------------------------------------------------------------------


class Hunt(NamedTuple):
    """Where a bug shows."""

    kinds: tuple[str, ...] = ()
    """What goes wrong in the simulation; see `Nemesis.kinds`."""
    seeds: int = 60
    """So many are enough."""
    test: Callable[[Path], None] | None = None
    """Instead of the simulation."""


class BrokenPlant(Exception):
    """A planted bug that shows without any damage proves nothing."""


def flip_bits_of_a_log(_directory: Path) -> None:
    victim = test_log_damage.victim()
    try:
        undamaged = test_log_damage.log_of(victim.data)
    except DamagedData as error:
        raise BrokenPlant from error
    if (undamaged.records, undamaged.flaw) != (victim.found.records, None):
        raise BrokenPlant
    assert test_log_damage.misjudged_flips(EVERY_SO_MANY_BITS) == []


def frames_behind_a_failed_sync(_directory: Path) -> None:
    test_found.test_frames_behind_a_failed_sync_of_an_earlier_process_survive_a_power_cut()


EVERY_SO_MANY_BITS = 97
"""Both bugs let most of them pass; all bits are for the test that is borrowed here."""
POWER = ("cut_power", "cut_power_soon")
BUGS: dict[Plant, Hunt] = {
    no_fdatasync: Hunt(POWER),
    no_directory_fsync: Hunt(POWER),
    accept_before_sync: Hunt(POWER),
    fsync_retried: Hunt(("fail_disk", "cut_power"), seeds=200),
    crc_not_compared: Hunt(test=flip_bits_of_a_log),
    mid_log_truncation: Hunt(test=flip_bits_of_a_log),
    dedup_only_in_memory: Hunt(("kill_server", "cut_connection")),
    trim_on_plain_ok_in_durable_mode: Hunt(("wipe",)),
    upload_without_checksum: Hunt(("trouble_tier", "wipe")),
    wall_clock_timeouts: Hunt(("jump_clock", "cut_connection")),
    lock_without_fencing: Hunt(test=test_uploader.test_a_process_that_was_replaced_tells_nothing_more),
    mark_past_a_hole: Hunt(("kill_reader", "kill_server")),
    append_behind_a_failed_sync: Hunt(test=frames_behind_a_failed_sync),
    wait_for_what_was_evicted: Hunt(
        test=test_found.test_events_that_come_and_go_between_two_turns_of_the_tier_hold_no_producer_back
    ),
}
"""The first twelve are the ones that every store should be tried with."""
TWELVE = (
    "no fdatasync, no directory fsync, accept before sync, fsync retried, crc not compared, mid log truncation, "
    "dedup only in memory, trim on plain ok in durable mode, upload without checksum, wall clock timeouts, "
    "lock without fencing, mark past a hole"
)
FOUND = (HistoryBroken, NotSettled, AssertionError, DamagedData, DamagedObject, pytest.fail.Exception)
"""How a bug shows: the checker, peace that does not settle, or a product that stops before it does worse."""
IN_PEACE = {mark_past_a_hole}
"""Shows without any fault: readers confirm out of order anyway."""


def hunt(found_by: Hunt, directory: Path) -> None:
    if found_by.test is not None:
        found_by.test(directory)
        return
    for seed in range(found_by.seeds):
        simulate(seed, only=found_by.kinds)


@pytest.fixture(autouse=True)
def _damage_is_made_before_planting() -> None:
    test_log_damage.victim()


@pytest.mark.parametrize("plant", BUGS)
def test_planted_bug_of_the_product_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found_by = BUGS[plant]
    plant(monkeypatch)
    with pytest.raises(FOUND) as caught:
        hunt(found_by, tmp_path)
    assert "Timeout" not in str(caught.value), "it was not found in time"


@pytest.mark.parametrize(
    "plant", [plant for plant, found_by in BUGS.items() if found_by.test is None and plant not in IN_PEACE]
)
def test_planted_bug_shows_only_by_the_faults_of_its_hunt(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that breaks the product always would be found too, and prove nothing."""
    plant(monkeypatch)
    for seed in range(2):
        simulate(seed, only=("slow_network",))


def test_all_twelve_known_bugs_are_on_the_list() -> None:
    names = [plant.__name__.replace("_", " ") for plant in BUGS]
    assert names[:12] == TWELVE.split(", ")


def test_product_without_a_planted_bug_passes_the_hunts(tmp_path: Path) -> None:
    for kinds in {found_by.kinds for found_by in BUGS.values() if found_by.test is None}:
        hunt(Hunt(kinds, seeds=2), tmp_path)
