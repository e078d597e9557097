"""Committed events per second over sync: clients with one batch in flight each, answered after the sync of the disk.

Beside each figure stands the bare disk: one write and one sync for all that the clients have in flight. It is measured
in turns with ours; on a machine that others use, the two may meet a different disk.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from functools import partial
from typing import NamedTuple

import msgspec

from bench.figures import Result
from bench.served import Served, serving
from bench.sync_load import Figures, Load
from bench.workload import ROOT, Bench, Budget, Timing, bare_disk, in_turns, rate

EVENT_BYTES = 512
"""What an event of the load takes in the log, about."""


class Case(NamedTuple):
    """One line of the table."""

    connections: int
    batch: int
    one_project: bool = False

    @property
    def title(self) -> str:
        """For people."""
        events = f"{self.batch} event{'s' if self.batch > 1 else ''}"
        shared = f", one project: told to {self.connections - 1}" if self.one_project else ""
        return f"{self.connections} client{'s' if self.connections > 1 else ''} × {events}{shared}"


CASES = [Case(1, 1), Case(32, 1), Case(32, 50), Case(32, 1, one_project=True)]


def run(bench: Bench) -> list[Result]:
    """One figure per shape of load."""
    config = bench.directory / "sync.yaml"
    config.write_text("sync: {messages_per_second: 0}\n", encoding="utf-8")
    with serving(bench.directory / "sync", "-c", str(config)) as server:
        return [_measure(bench, case, server) for case in CASES]


def _measure(bench: Bench, case: Case, server: Served) -> Result:
    seconds = bench.scale(3, 1)
    found: list[Figures] = []
    in_flight = case.connections * case.batch
    before_s = server.cpu_s()
    timings = in_turns(
        {
            "disk": partial(bare_disk, bench.directory, bytes(EVENT_BYTES * in_flight), Budget(seconds / 2)),
            "ours": partial(produce, case, server, seconds, found),
        },
        rounds=bench.rounds(3),
    )
    events = sum(figures.events for figures in found)
    also: dict[str, float | str] = {
        "p50 ms": statistics.median(figures.p50_ms for figures in found),
        "p99 ms": statistics.median(figures.p99_ms for figures in found),
        "server CPU us/event": (server.cpu_s() - before_s) / events * 1e6,
    }
    if case.one_project:
        also["broadcasts/s"] = sum(figures.broadcasts for figures in found) / sum(f.seconds for f in found)
    disk = rate(timings["disk"]) * in_flight
    return Result("sync", case.title, rate(timings["ours"]), "commits/s", disk, "bare disk", None, also)


def produce(case: Case, server: Served, seconds: float, into: list[Figures]) -> Timing:
    """Clients of a process of their own; what they reached is put into `into`."""
    seed = CASES.index(case) * 1000 + len(into)
    load = Load(f"{server.url}/v1/sync", case.connections, case.batch, case.one_project, seconds, seed)
    done = subprocess.run(
        [sys.executable, "-m", "bench.sync_load", msgspec.json.encode(load).decode()],
        capture_output=True, cwd=ROOT, check=True, timeout=60 + load.seconds,
    )  # fmt: skip
    figures = msgspec.json.decode(done.stdout, type=Figures)
    into.append(figures)
    return Timing(figures.events, figures.seconds)
