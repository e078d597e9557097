"""A real writer process is killed with SIGKILL, at random and at the n-th fdatasync, again and again on one directory.

These tests prove process death on a real file system, not power loss: what was written stays in the page cache. They
show that the threads, the real disk calls and the start after them work together; the crash disk proves the rest.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast import Store
from tests.crash.writer_process import BOTH, SETTINGS, body_of, events_of
from tests.faults import figures
from tests.faults.killing import QUICK, kill_counts, profile_of

PRODUCERS = 3
ROOT = Path(__file__).parents[2]
STRACE = shutil.which("strace")
pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="SIGKILL and strace as on Linux"), QUICK]


@dataclass
class History:
    """What the processes were told, over all kills of one directory."""

    directory: Path
    accepted: dict[tuple[int, int], list[list[object]]] = field(default_factory=dict)
    seen: dict[tuple[str, int], int] = field(default_factory=dict)
    recovered_events: int = 0

    def next_fsns(self) -> list[str]:
        """Each producer sends its first frame that was not answered again."""
        highest = [
            max((fsn for who, fsn in self.accepted if who == producer), default=0) for producer in range(PRODUCERS)
        ]
        return [str(fsn + 1) for fsn in highest]

    def note(self, line: bytes) -> None:
        producer, fsn, places, duplicate = json.loads(line)
        assert (producer, fsn) not in self.accepted
        assert not duplicate or fsn == int(self.next_fsns()[producer])
        self.accepted[producer, fsn] = places

    def check(self) -> None:
        """Open the directory in this process and compare."""
        with Store.open(self.directory, SETTINGS) as store:
            self.recovered_events += store.recovery.recovered_events
            stored = {channel: self._read(store, channel) for channel in BOTH if channel in store.channels()}
        for (producer, fsn), places in self.accepted.items():
            for (channel, first, last, _), numbers in zip(places, events_of(producer, fsn).values(), strict=True):
                assert isinstance(first, int)
                assert isinstance(last, int)
                assert stored[str(channel)][first - 1 : last] == numbers, f"frame {fsn} of {producer} is lost"
        self._check_the_rest(stored)

    def _read(self, store: Store, channel: str) -> list[int]:
        numbers: list[int] = []
        for batch in store.read(channel, system=["_seq"]):
            for row in batch.to_pylist():
                numbers.append(row["n"])
                assert row["_seq"] == len(numbers), "seqs have a gap"
                assert row["body"] == body_of(row["n"])
                assert self.seen.setdefault((channel, row["_seq"]), row["n"]) == row["n"], "a seq changed its meaning"
        assert len(set(numbers)) == len(numbers), "stored twice"
        return numbers

    def _check_the_rest(self, stored: dict[str, list[int]]) -> None:
        """Frames without an answer: at most the one each producer was waiting for, whole or not at all; in order."""
        answered = {number for key in self.accepted for numbers in events_of(*key).values() for number in numbers}
        extra = {number for numbers in stored.values() for number in numbers} - answered
        for producer, fsn in enumerate(map(int, self.next_fsns())):
            frame = {number for numbers in events_of(producer, fsn).values() for number in numbers}
            assert frame <= extra or frame.isdisjoint(extra), "a frame is there in part"
            extra -= frame
        assert not extra, f"events nobody sent: {extra}"
        for numbers in stored.values():
            for producer in range(PRODUCERS):
                mine = [number for number in numbers if number // 10_000_000 == producer]
                assert mine == sorted(mine), "events of one slot are out of order"


def start_writer(history: History, prefix: list[str]) -> subprocess.Popen[bytes]:
    """The writer, alone or under a tracer, in a process group of its own."""
    command = [*prefix, sys.executable, "-m", "tests.crash.writer_process", str(history.directory)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [*command, *history.next_fsns()], stdout=subprocess.PIPE, cwd=ROOT, env=environment, start_new_session=True
    )


def run_until(history: History, lines: int | None, prefix: list[str]) -> int:
    """Run the writer until it reported so many frames, then kill it; without a number, until something else does."""
    seen = 0
    with start_writer(history, prefix) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.endswith(b"\n"):
                    history.note(line)
                    seen += 1
                if seen == lines:
                    break
            if lines is not None:
                process.kill()
            for line in process.stdout:  # what was accepted before the signal arrived
                if line.endswith(b"\n"):
                    history.note(line)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@kill_counts(6)
def test_kill_at_a_random_moment_loses_nothing_accepted(tmp_path: Path, kills: int) -> None:
    """Process death. The moment is after a random number of answers, while other threads are busy."""
    history, chance = History(tmp_path / "store"), random.Random(kills)
    for kill in range(kills):
        code = run_until(history, chance.randint(1, 300), [])
        assert code == -signal.SIGKILL
        if kill % max(1, kills // 40) == 0:  # a look into the store costs more with every event
            history.check()
    history.check()
    assert len(history.accepted) >= kills
    assert history.recovered_events > 0, "every kill came when nothing was in the log"
    frames = len(history.accepted)
    figures.note("kills", "a killed embedded store", profile=profile_of(kills, 6), kills=kills, frames=frames)


@pytest.mark.guarantee("G1")
@pytest.mark.skipif(STRACE is None, reason="strace is not installed: no kill at the n-th fdatasync")
@pytest.mark.parametrize(
    "calls",
    [(1, 2, 3, 7, 30, 90), pytest.param(range(1, 121), marks=[pytest.mark.long, pytest.mark.timeout(3000)])],
    ids=["some", "every"],
)
def test_kill_at_the_nth_fdatasync_loses_nothing_accepted(tmp_path: Path, calls: tuple[int, ...]) -> None:
    """Process death. strace delivers SIGKILL at the n-th fdatasync, before it is carried out."""
    history = History(tmp_path / "store")
    for call in calls:
        tracer = [str(STRACE), "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"]
        tracer += ["-e", f"inject=fdatasync:signal=SIGKILL:when={call}"]
        code = run_until(history, None, tracer)
        if code not in (-signal.SIGKILL, 128 + signal.SIGKILL):
            pytest.skip(f"strace may not trace here: exit code {code}")
        history.check()
    assert history.accepted
