"""The append log against a list: whatever is appended, synced, rotated, trimmed and cut, a prefix comes back.

Power loss, on the crash disk: everything synced is there, of the rest the first records or none, and never damage.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.disk.appendlog import AppendLog, LogSpec, NewRecord, recover_log
from holdfast.disk.checksum import crc32c
from holdfast.testing import CrashFilesystem

FOLDER = Path("/log")
SPEC = LogSpec("wal", rotation_bytes=8192)
STORE_ID = bytes(range(16))
PROLOGUE = 1
DATA = 2

sizes = st.sampled_from((0, 1, 7, 8, 60, 400, 512, 513, 1200))
payloads = st.tuples(sizes, st.integers(0, 255)).map(lambda drawn: bytes([drawn[1]]) * drawn[0])
groups = st.lists(payloads, min_size=1, max_size=6)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), groups),
        st.tuples(st.just("commit"), groups),
        st.tuples(st.just("sync"), st.just([])),
        st.tuples(st.just("rotate"), st.just([])),
    ),
    max_size=12,
)


@dataclass
class Rig:
    """A log, and what it was given."""

    disk: CrashFilesystem = field(default_factory=CrashFilesystem)
    appended: list[bytes] = field(default_factory=list)
    synced: int = 0

    def __post_init__(self) -> None:
        self.disk.write_bytes(FOLDER / "made", b"")

    def begin(self, number: int = 1, position: int = 0) -> AppendLog:
        log = AppendLog(
            self.disk,
            FOLDER,
            spec=SPEC,
            store_id=STORE_ID,
            number=number,
            position=position,
            prologue=lambda: [NewRecord.of(PROLOGUE, b"floors")],
        )
        log.sync()
        return log

    def take(self, log: AppendLog, step: str, group: list[bytes]) -> None:
        if step == "rotate":
            log.rotate()
            self.synced = len(self.appended)
        elif step != "sync":
            if not log.fits(sum(map(len, group)) + 64 * len(group)):
                log.rotate()
                self.synced = len(self.appended)
            log.append([record(payload) for payload in group])
            self.appended += group
        if step in ("sync", "commit"):
            log.sync()
            self.synced = len(self.appended)

    def recovered(self, disk: CrashFilesystem) -> tuple[list[bytes], int, int]:
        """The payloads that are left, and where the log goes on."""
        left: list[bytes] = []
        number, position = 1, 0
        for found, _ in recover_log(disk, FOLDER, spec=SPEC, store_id=STORE_ID, from_position=0):
            left += [item.payload.to_pybytes() for item in found.records if item.kind == DATA]
            number, position = found.header.number + 1, found.end_position
        return left, number, position


def record(payload: bytes) -> NewRecord:
    """In two pieces, as the store hands over its payloads."""
    half = len(payload) // 2
    return NewRecord(DATA, (payload[:half], payload[half:]), len(payload), crc32c(payload))


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G9")
@given(steps=steps, seeds=st.lists(st.integers(0, 10_000), min_size=1, max_size=4), more=groups)
def test_power_cut_leaves_what_was_synced_and_a_prefix_of_the_rest(
    steps: list[tuple[str, list[bytes]]], seeds: list[int], more: list[bytes]
) -> None:
    rig = Rig()
    log = rig.begin()
    for step, group in steps:
        rig.take(log, step, group)
    for seed in (0, 1, *seeds):
        disk = rig.disk.after_power_cut(seed)
        left, number, position = rig.recovered(disk)
        assert left == rig.appended[: len(left)]
        assert len(left) >= rig.synced
        if seed == 1:
            assert left == rig.appended
        again = Rig(disk)
        follower = again.begin(number, position)
        again.take(follower, "commit", more)
        assert again.recovered(disk.after_power_cut(seed))[0] == left + more


@pytest.mark.guarantee("G1")
@given(steps=steps)
def test_process_death_leaves_everything_appended(steps: list[tuple[str, list[bytes]]]) -> None:
    rig = Rig()
    log = rig.begin()
    for step, group in steps:
        rig.take(log, step, group)
    assert rig.recovered(rig.disk.after_kill())[0] == rig.appended


@given(steps=steps)
def test_closed_log_is_complete_and_needs_no_mending(steps: list[tuple[str, list[bytes]]]) -> None:
    rig = Rig()
    log = rig.begin()
    for step, group in steps:
        rig.take(log, step, group)
    log.close()
    disk = rig.disk.after_power_cut(0)
    found = list(recover_log(disk, FOLDER, spec=SPEC, store_id=STORE_ID, from_position=0))
    assert [mended for _, mended in found] == [None] * len(found)
    assert found[-1][0].closed
    assert [
        item.payload.to_pybytes() for file, _ in found for item in file.records if item.kind == DATA
    ] == rig.appended
