"""Small commits from one thread, up to 1024 of them in flight, each answered after its sync.

The limit is the bare disk writing a whole window with one call and one sync.
"""

from __future__ import annotations

from functools import partial

from bench.figures import Result, Target
from bench.workload import CHANNEL, SIZES, Bench, Budget, bare_disk, events, in_turns, rate, windowed
from holdfast.store.store import Store

WINDOW = 1024
TARGET = Target(30_000)


def run(bench: Bench) -> list[Result]:
    """One figure."""
    batch = events(SIZES["1 KiB"])
    data = batch.serialize().to_pybytes() * WINDOW
    budget = Budget(bench.scale(1.2, 1))
    with Store.open(bench.directory / "commit-async") as store:
        submit = partial(store.commit_async, CHANNEL, batch)
        timings = in_turns(
            {
                "disk": partial(bare_disk, bench.directory, data, budget),
                "store": partial(windowed, submit, budget, window=WINDOW),
            },
            rounds=bench.rounds(5),
        )
        statistics = store.statistics()
    return [
        Result("commit_async", f"1 KiB, window {WINDOW}", rate(timings["store"]), "commits/s",
               rate(timings["disk"]) * WINDOW, "bare disk, a window per sync", TARGET,
               {"commits per sync": statistics.frames / statistics.syncs})
    ]  # fmt: skip
