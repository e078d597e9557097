"""The whole pipeline in virtual time: whatever goes wrong, no seed's history breaks a guarantee, and peace settles it.

`python -m holdfast.testing.simulation --seed N` shows the run of a seed that fails here.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.testing.simulation import World, simulate
from holdfast.testing.simulation.__main__ import main

QUICK_SEEDS = range(0, 120)
LONG_SEEDS = range(1_000, 21_000)
CHUNK = 20


def chunks(seeds: range, size: int) -> list[range]:
    return [seeds[at : at + size] for at in range(0, len(seeds), size)]


def run(seeds: range) -> None:
    for seed in seeds:
        try:
            simulate(seed)
        except Exception as error:
            error.add_note(f"seed {seed}: python -m holdfast.testing.simulation --seed {seed}")
            raise


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G4")
@pytest.mark.guarantee("G5")
@pytest.mark.guarantee("G6")
@pytest.mark.guarantee("G7")
@pytest.mark.guarantee("G10")
@pytest.mark.parametrize(
    "seeds",
    [
        *chunks(QUICK_SEEDS, CHUNK),
        *(pytest.param(seeds, marks=pytest.mark.long) for seeds in chunks(LONG_SEEDS, 10 * CHUNK)),
    ],
    ids=lambda seeds: f"{seeds[0]}-{seeds[-1]}",
)
def test_no_seed_breaks_a_guarantee_whatever_goes_wrong(seeds: range) -> None:
    run(seeds)


def test_same_seed_gives_the_same_trace_again() -> None:
    for seed in (3, 9, 33):
        assert simulate(seed).trace_hash == simulate(seed).trace_hash
    assert simulate(3).trace_hash != simulate(9).trace_hash


def test_seed_replays_exactly_in_another_process_with_other_hashes() -> None:
    """The order of sets of texts differs from process to process; a trace must not."""
    command = [sys.executable, "-m", "holdfast.testing.simulation", "--first", "4", "--count", "4", "--hashes"]
    traces = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        traces.append([line for line in done.stdout.splitlines() if len(line.split()) == 2][:4])
    assert traces[0] == traces[1]
    assert len(traces[0]) == 4


def test_command_shows_the_trace_of_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3"]) == 0
    shown = capsys.readouterr().out
    assert "Restart(what='server')" in shown
    assert "seed 3 is fine" in shown
    assert f"trace {simulate(3).trace_hash}" in shown


def test_command_counts_seeds_and_faults_by_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--first", "5", "--count", "3"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("3 seeds, 0 failed")
    assert "killed" in shown


def test_seeds_differ_in_what_goes_wrong_and_reach_every_fault() -> None:
    """Of the kinds that a nemesis knows each is chosen by some of the quick seeds."""
    chosen = {kind.__name__ for seed in QUICK_SEEDS for kind in World(seed).nemesis.chosen}
    known = {kind.__name__ for seed in QUICK_SEEDS for kind in World(seed).nemesis.kinds()}
    assert chosen == known
    assert len(known) == 16
