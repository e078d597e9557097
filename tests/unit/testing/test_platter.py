"""What a power cut leaves of content and of names, and what it always leaves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.disk.filesystem import Mode
from holdfast.testing import CrashFilesystem
from holdfast.testing.platter import EVERYTHING, NOTHING_EXTRA

ROOT = Path("/data")
SEEDS = range(200)


def disk_with(**files: bytes) -> CrashFilesystem:
    """A disk with these files, durable, and no call counted."""
    disk = CrashFilesystem()
    disk.write_bytes(ROOT / "keep", b"")
    for name, data in files.items():
        disk.write_bytes(ROOT / name, data)
    return disk


def contents(disk: CrashFilesystem, path: Path, seeds: Iterable[int] = SEEDS) -> set[bytes | None]:
    """What the file may hold after a power cut; None where it is not there."""
    left = [disk.after_power_cut(seed) for seed in seeds]
    return {after.read_bytes(path) if after.exists(path) else None for after in left}


# --- content --------------------------------------------------------------------------------------------------------


def test_what_was_not_synced_may_be_lost_kept_or_torn_at_any_byte() -> None:
    disk = disk_with(a=b"")
    disk.open(ROOT / "a", Mode.WRITE).pwritev([b"abcd"], 0)
    assert contents(disk, ROOT / "a") == {b"", b"a", b"ab", b"abc", b"abcd", b"\0\0\0\0"}


@pytest.mark.parametrize("operation", ["sync_data", "sync"])
def test_what_was_synced_is_always_there(operation: str) -> None:
    disk = disk_with(a=b"")
    file = disk.open(ROOT / "a", Mode.WRITE)
    file.pwritev([b"x" * 2000], 0)
    file.truncate(1500)
    file.allocate(3000)
    getattr(file, operation)()
    assert contents(disk, ROOT / "a") == {b"x" * 1500 + bytes(1500)}


def test_sectors_survive_one_by_one_and_out_of_order() -> None:
    disk = disk_with(a=bytes(2048))
    file = disk.open(ROOT / "a", Mode.WRITE)
    for sector in range(4):
        file.pwritev([b"x" * 512], sector * 512)
    patterns = {
        tuple(data[at : at + 512] == b"x" * 512 for at in range(0, 2048, 512))
        for data in contents(disk, ROOT / "a", range(1000))
        if data is not None and all(data[at : at + 512] in (b"x" * 512, bytes(512)) for at in range(0, 2048, 512))
    }
    assert len(patterns) == 16


def test_a_sector_never_goes_back_past_its_own_history() -> None:
    disk = disk_with(a=bytes(8))
    file = disk.open(ROOT / "a", Mode.WRITE)
    file.pwritev([b"1"], 0)
    file.pwritev([b"2"], 1)
    assert contents(disk, ROOT / "a") == {bytes(8), b"1" + bytes(7), b"12" + bytes(6)}


def test_a_size_may_survive_without_its_data() -> None:
    disk = disk_with(a=b"")
    disk.open(ROOT / "a", Mode.WRITE).pwritev([b"x" * 700], 0)
    assert bytes(700) in contents(disk, ROOT / "a")


def test_an_allocation_not_synced_may_or_may_not_survive() -> None:
    disk = disk_with(a=b"x")
    disk.open(ROOT / "a", Mode.WRITE).allocate(3)
    assert contents(disk, ROOT / "a") == {b"x", b"x\0\0"}


def test_a_truncation_not_synced_may_or_may_not_survive() -> None:
    disk = disk_with(a=b"hello")
    disk.open(ROOT / "a", Mode.WRITE).truncate(1)
    assert contents(disk, ROOT / "a") == {b"hello", b"h"}


def test_files_survive_independently_of_each_other() -> None:
    disk = disk_with(a=b"", b=b"")
    disk.open(ROOT / "a", Mode.WRITE).pwritev([b"x"], 0)
    disk.open(ROOT / "b", Mode.WRITE).pwritev([b"x"], 0)
    left = [disk.after_power_cut(seed) for seed in SEEDS]
    states = {(after.read_bytes(ROOT / "a"), after.read_bytes(ROOT / "b")) for after in left}
    assert {(b"", b"x"), (b"x", b""), (b"", b""), (b"x", b"x")} <= states


def test_two_named_seeds_keep_nothing_extra_and_everything() -> None:
    disk = disk_with(a=b"old")
    disk.open(ROOT / "a", Mode.WRITE).pwritev([b"new"], 0)
    disk.open(ROOT / "b", Mode.CREATE)
    nothing, everything = disk.after_power_cut(NOTHING_EXTRA), disk.after_power_cut(EVERYTHING)
    assert (nothing.read_bytes(ROOT / "a"), nothing.exists(ROOT / "b")) == (b"old", False)
    assert (everything.read_bytes(ROOT / "a"), everything.exists(ROOT / "b")) == (b"new", True)


def test_one_seed_always_gives_the_same_state() -> None:
    def left() -> list[tuple[Path, bytes]]:
        disk = disk_with(a=b"", b=b"")
        for name in ("a", "b"):
            disk.open(ROOT / name, Mode.WRITE).pwritev([name.encode() * 3000], 0)
        disk.open(ROOT / "c", Mode.CREATE)
        after = disk.after_power_cut(7)
        return [(path, after.read_bytes(path)) for path in after.paths()]

    assert left() == left()


# --- names ----------------------------------------------------------------------------------------------------------


def test_a_new_name_may_be_lost_until_its_directory_is_synced() -> None:
    disk = disk_with()
    file = disk.open(ROOT / "a", Mode.CREATE)
    file.pwritev([b"x"], 0)
    file.sync()
    assert contents(disk, ROOT / "a") == {None, b"x"}


def test_a_new_name_survives_once_its_directory_is_synced() -> None:
    disk = disk_with()
    disk.open(ROOT / "a", Mode.CREATE)
    disk.sync_dir(ROOT)
    assert contents(disk, ROOT / "a") == {b""}


def test_a_rename_is_the_old_file_or_the_new_one() -> None:
    disk = disk_with(a=b"new", b=b"old")
    disk.rename(ROOT / "a", ROOT / "b")
    left = [disk.after_power_cut(seed) for seed in SEEDS]
    states = {(after.exists(ROOT / "a"), after.read_bytes(ROOT / "b")) for after in left}
    assert states == {(True, b"old"), (False, b"new")}


def test_a_renamed_file_holds_only_what_was_synced() -> None:
    disk = disk_with()
    disk.open(ROOT / "a.tmp", Mode.CREATE).pwritev([b"data"], 0)
    disk.rename(ROOT / "a.tmp", ROOT / "a")
    disk.sync_dir(ROOT)
    assert {b"", b"data"} <= contents(disk, ROOT / "a")


def test_an_unlinked_name_may_come_back_until_synced() -> None:
    disk = disk_with(a=b"x")
    disk.unlink(ROOT / "a")
    assert contents(disk, ROOT / "a") == {None, b"x"}


def test_an_unlinked_name_is_gone_once_synced() -> None:
    disk = disk_with(a=b"x")
    disk.unlink(ROOT / "a")
    disk.sync_dir(ROOT)
    assert contents(disk, ROOT / "a") == {None}


def test_names_of_one_directory_survive_each_for_itself() -> None:
    disk = disk_with()
    disk.open(ROOT / "a", Mode.CREATE)
    disk.open(ROOT / "b", Mode.CREATE)
    left = [disk.after_power_cut(seed) for seed in SEEDS]
    assert len({(after.exists(ROOT / "a"), after.exists(ROOT / "b")) for after in left}) == 4


def test_a_name_never_survives_without_what_it_was_made_from() -> None:
    disk = disk_with()
    disk.open(ROOT / "a", Mode.CREATE)
    disk.rename(ROOT / "a", ROOT / "b")
    disk.unlink(ROOT / "b")
    disk.open(ROOT / "b", Mode.CREATE).pwritev([b"x"], 0)
    left = [disk.after_power_cut(seed) for seed in SEEDS]
    states = {(after.exists(ROOT / "a"), after.exists(ROOT / "b")) for after in left}
    assert states == {(False, False), (True, False), (False, True)}


def test_a_directory_not_synced_takes_its_synced_files_along() -> None:
    disk = disk_with()
    disk.makedir(ROOT / "d")
    disk.open(ROOT / "d" / "a", Mode.CREATE)
    disk.sync_dir(ROOT / "d")
    assert contents(disk, ROOT / "d" / "a") == {None, b""}
    assert not disk.after_power_cut(NOTHING_EXTRA).exists(ROOT / "d")


def test_a_removed_directory_may_come_back_until_synced() -> None:
    disk = disk_with()
    disk.makedir(ROOT / "d")
    disk.sync_dir(ROOT)
    disk.rmdir(ROOT / "d")
    assert {disk.after_power_cut(seed).exists(ROOT / "d") for seed in SEEDS} == {True, False}


def test_a_rename_between_directories_loses_no_file() -> None:
    disk = disk_with(a=b"x")
    disk.write_bytes(ROOT / "d" / "keep", b"")
    disk.rename(ROOT / "a", ROOT / "d" / "a")
    left = [disk.after_power_cut(seed) for seed in SEEDS]
    states = {(after.exists(ROOT / "a"), after.exists(ROOT / "d" / "a")) for after in left}
    assert states == {(True, False), (False, True)}


def test_syncing_the_last_directory_settles_the_whole_way_there() -> None:
    disk = disk_with(a=b"x")
    for name in ("d", "e"):
        disk.write_bytes(ROOT / name / "keep", b"")
    disk.rename(ROOT / "a", ROOT / "d" / "a")
    disk.rename(ROOT / "d" / "a", ROOT / "e" / "a")
    disk.sync_dir(ROOT / "e")
    for seed in SEEDS:
        assert [path for path in disk.after_power_cut(seed).paths() if path.name == "a"] == [ROOT / "e" / "a"]


# --- against a model ------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 1500), st.integers(1, 1200)),
        st.tuples(st.just("truncate"), st.integers(0, 2500), st.just(0)),
        st.tuples(st.just("allocate"), st.integers(0, 2500), st.just(0)),
        st.tuples(st.just("sync"), st.just(0), st.just(0)),
    ),
    max_size=12,
)


@given(steps=STEPS, seed=st.integers(0, 1 << 32))
def test_each_byte_left_is_one_it_held_since_the_last_sync(steps: list[tuple[str, int, int]], seed: int) -> None:
    disk = disk_with(a=b"")
    file = disk.open(ROOT / "a", Mode.WRITE)
    content = b""
    since_sync = [b""]
    for number, (step, at, length) in enumerate(steps, start=1):
        if step == "write":
            file.pwritev([bytes([number]) * length], at)
        elif step == "truncate":
            file.truncate(at)
        elif step == "allocate":
            file.allocate(at)
        else:
            file.sync_data()
            since_sync = []
        content = disk.read_bytes(ROOT / "a")
        since_sync.append(content)
    left = disk.after_power_cut(seed).read_bytes(ROOT / "a")
    assert min(map(len, since_sync)) <= len(left) <= max(map(len, since_sync))
    for at, byte in enumerate(left):
        assert byte in {0} | {held[at] for held in since_sync if at < len(held)}
    if len(since_sync) == 1:
        assert left == content


@given(
    steps=st.lists(st.tuples(st.sampled_from(["create", "rename", "unlink", "sync"]), *[st.sampled_from("abc")] * 2)),
    seed=st.integers(0, 1 << 32),
)
def test_each_name_left_is_one_state_it_had_since_the_last_sync(steps: list[tuple[str, str, str]], seed: int) -> None:
    disk = disk_with()
    made = 0

    def state() -> dict[str, bytes]:
        return {path.name: disk.read_bytes(path) for path in disk.paths() if path.name != "keep"}

    since_sync = [state()]
    for step, name, other in steps:
        exists = disk.exists(ROOT / name)
        if step == "create" and not exists:
            made += 1
            file = disk.open(ROOT / name, Mode.CREATE)
            file.pwritev([b"%d" % made], 0)
            file.sync()
        elif step == "rename" and exists:
            disk.rename(ROOT / name, ROOT / other)
        elif step == "unlink" and exists:
            disk.unlink(ROOT / name)
        elif step == "sync":
            disk.sync_dir(ROOT)
            since_sync = []
        since_sync.append(state())
    after = disk.after_power_cut(seed)
    left = {path.name: after.read_bytes(path) for path in after.paths() if path.name != "keep"}
    for name in "abc":
        assert left.get(name) in {held.get(name) for held in since_sync}
    assert len(set(left.values())) == len(left), "one file under two names"
