"""`Store.commit` against the bare disk: from one row to 1 MiB, one caller and 32.

The limit is one thread that writes the same bytes with `pwrite` and `fdatasync` into pre-allocated files. A store
writes more: a header per record, the making of files, and small frames a second time into their segments. Large ones
are written once, with a reference in the log beside (`segment.direct_size`). Three views of it:

- by size: as long as the clock says; large batches are sealed beside.
- 1 MiB in bursts below `segment.target_size`: nothing is sealed meanwhile.
- 1 MiB for a gigabyte: sealing runs beside all the time. "Calls of 256 KiB" is the bare disk written as the store
  writes it: several small calls before a sync can be much faster than one large one.

What is written in the last two stays, with us and with the bare disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from bench.figures import Result, Target
from bench.workload import (
    CHANNEL,
    GB,
    MB,
    SIZES,
    Bench,
    Budget,
    Timing,
    bare_disk,
    events,
    in_turns,
    latencies,
    many_callers,
    one_caller,
    rate,
    windowed,
)
from holdfast.store.store import Store

CALLERS = 32
WINDOW = 8
BURST_CALLS = 28
"""Of 1 MiB: below `segment.target_size`."""
SMALL_CALLS = "bare disk, calls of 256 KiB"
TARGET = Target(0.8, of_ratio=True)


def run(bench: Bench) -> list[Result]:
    """All three views."""
    results = [result for size in SIZES for result in _by_size(bench, size)]
    sustained_calls = int(bench.scale(1.1 * GB, 0.15 * GB)) // len(events(SIZES["1 MiB"]).serialize())
    return [
        *results,
        *_large(bench, "bursts", calls=BURST_CALLS, rounds=bench.rounds(15)),
        *_large(bench, "sustained", calls=sustained_calls, rounds=bench.rounds(3)),
    ]


def _by_size(bench: Bench, size: str) -> list[Result]:
    batch = events(SIZES[size])
    data = batch.serialize().to_pybytes()
    budget = Budget(bench.scale(0.5, 0.2))
    with Store.open(bench.directory / f"commit-{SIZES[size]}") as store:
        call = partial(store.commit, CHANNEL, batch)
        timings = in_turns(
            {
                "disk": partial(bare_disk, bench.directory, data, budget),
                "1 caller": _then_flush(store, partial(one_caller, call, budget)),
                f"{CALLERS} callers": _then_flush(store, partial(many_callers, call, budget, callers=CALLERS)),
            },
            rounds=bench.rounds(5),
        )
    disk = timings.pop("disk")
    return [_result(f"{size}, {way}", timing, disk, data=data) for way, timing in timings.items()]


def _large(bench: Bench, view: str, *, calls: int, rounds: int) -> list[Result]:
    batch = events(SIZES["1 MiB"])
    data = batch.serialize().to_pybytes()
    budget = Budget(bench.scale(30, 5), calls)
    with Store.open(bench.directory / f"commit-{view}") as store:
        call, submit = partial(store.commit, CHANNEL, batch), partial(store.commit_async, CHANNEL, batch)
        ways: dict[str, Callable[[], Timing]] = {
            "disk": partial(bare_disk, bench.directory, data, budget, keep=True),
            "1 caller": _then_flush(store, partial(one_caller, call, budget)),
            f"window {WINDOW}": _then_flush(store, partial(windowed, submit, budget, window=WINDOW)),
        }
        if view == "sustained":
            ways[SMALL_CALLS] = partial(bare_disk, bench.directory, data, budget, keep=True, small_calls=True)
        timings = in_turns(ways, rounds=rounds)
    disk = timings.pop("disk")
    results = [_result(f"1 MiB {view}, {way}", timing, disk, data=data) for way, timing in timings.items()]
    best = max(results[:2], key=lambda result: result.figure)
    return [replace(result, target=TARGET) if result is best else result for result in results]


def _then_flush(store: Store, way: Callable[[], Timing]) -> Callable[[], Timing]:
    """Seal what was committed before somebody else's turn; not timed."""

    def timed() -> Timing:
        timing = way()
        store.flush()
        return timing

    return timed


def _result(case: str, timings: Sequence[Timing], disk: Sequence[Timing], *, data: bytes) -> Result:
    small = len(data) < 10_000
    factor, unit = (1.0, "commits/s") if small else (len(data) / MB, "MB/s")
    also = latencies(timings) | {f"disk {name}": value for name, value in latencies(disk).items()}
    return Result("commit", case, rate(timings) * factor, unit, rate(disk) * factor, "bare disk", also=also)
