"""Small commits from 32 threads, each waiting for its answer before the next.

The limit is the bare disk writing the commits of all 32 with one call and one sync.
"""

from __future__ import annotations

from functools import partial

from bench.figures import Result, Target
from bench.workload import CHANNEL, SIZES, Bench, Budget, bare_disk, events, in_turns, latencies, many_callers, rate
from holdfast.store.store import Store

CALLERS = 32
TARGET = Target(10_000)


def run(bench: Bench) -> list[Result]:
    """One figure."""
    batch = events(SIZES["1 KiB"])
    data = batch.serialize().to_pybytes() * CALLERS
    budget = Budget(bench.scale(1.2, 1))
    with Store.open(bench.directory / "threads32") as store:
        call = partial(store.commit, CHANNEL, batch)
        timings = in_turns(
            {
                "disk": partial(bare_disk, bench.directory, data, budget),
                "store": partial(many_callers, call, budget, callers=CALLERS),
            },
            rounds=bench.rounds(5),
        )
        statistics = store.statistics()
    also = latencies(timings["store"]) | {"commits per sync": statistics.frames / statistics.syncs}
    return [
        Result("threads32", "1 KiB", rate(timings["store"]), "commits/s", rate(timings["disk"]) * CALLERS,
               f"bare disk, {CALLERS} per sync", TARGET, also)
    ]  # fmt: skip
