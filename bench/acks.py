"""Answers of subscribers: how many are durable per second, what an idle subscriber costs, how fast segments go, and how
fast a store opens that has had a million answers."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from bench.figures import Result, Target
from bench.workload import CHANNEL, SIZES, Bench, Budget, events, in_turns, many_callers, one_caller, rate
from holdfast.store.store import Store

BATCH = 100
"""Single events confirmed with one call: first the odd ones of a block, with the next call the even ones."""
CALLERS = 32
IDLE = 100


def run(bench: Bench) -> list[Result]:
    """All of it."""
    return [_batched(bench), _single(bench), _idle(bench), _eviction(bench), _startup(bench)]


def _filled(directory: Path, rows: int) -> Store:
    """A store with that many events in one channel, all published."""
    store = Store.open(directory)
    batch = events(SIZES["1 MiB"])
    for _ in range(-(-rows // batch.num_rows)):
        store.commit(CHANNEL, batch)
    store.flush()
    return store


def _answers(rows: int) -> Iterator[list[tuple[int, int]]]:
    """Single events, a call's worth at a time, out of order within a block."""
    for first in range(1, rows - 2 * BATCH, 2 * BATCH):
        yield [(seq, seq) for seq in range(first, first + 2 * BATCH, 2)]
        yield [(seq, seq) for seq in range(first + 1, first + 2 * BATCH, 2)]


def _batched(bench: Bench) -> Result:
    count = int(bench.scale(400_000, 50_000))
    with _filled(bench.directory / "batched", 2 * count) as store:
        subscriber = store.subscriber("batched", [CHANNEL])
        answers = _answers(2 * count)
        timing = one_caller(
            lambda: subscriber.ack_many(CHANNEL, next(answers)), Budget(bench.scale(5, 1), 2 * count // BATCH - 1)
        )
    return Result("acks", f"{BATCH} at a time", timing.rate * BATCH, "acks/s", target=Target(20_000))


def _single(bench: Bench) -> Result:
    with _filled(bench.directory / "single", 1_000_000) as store:
        subscriber = store.subscriber("single", [CHANNEL])
        seqs = itertools.count(1)
        timing = many_callers(lambda: subscriber.ack(CHANNEL, next(seqs)), Budget(bench.scale(3, 1)), callers=CALLERS)
        statistics = store.statistics()
    also = {"acks per sync": statistics.ack_records / max(1, statistics.ack_syncs)}
    return Result("acks", f"one at a time, {CALLERS} threads", timing.rate, "acks/s", also=also)


def _idle(bench: Bench) -> Result:
    """Commits with idle subscribers, with commits without as the limit."""
    batch = events(SIZES["1 KiB"])
    budget = Budget(bench.scale(2, 1))
    with Store.open(bench.directory / "alone") as alone, Store.open(bench.directory / "followed") as followed:
        for number in range(IDLE):
            followed.subscriber(f"idle-{number}", [CHANNEL])
        timings = in_turns(
            {
                "alone": partial(one_caller, partial(alone.commit, CHANNEL, batch), budget),
                "followed": partial(one_caller, partial(followed.commit, CHANNEL, batch), budget),
            },
            rounds=bench.rounds(3),
        )
    limit = rate(timings["alone"])
    return Result("acks", f"commits beside {IDLE} idle subscribers", rate(timings["followed"]), "commits/s", limit,
                  "without subscribers")  # fmt: skip


def _eviction(bench: Bench) -> Result:
    """From the last answer to the last file deleted."""
    count = int(bench.scale(2000, 200))
    settings = {"channels": {CHANNEL: {"file_slice_max_msgs": 8}}, "retention.tick": "10ms"}
    with Store.open(bench.directory / "eviction", settings) as store:
        subscriber = store.subscriber("evict", [CHANNEL])
        batch = events(SIZES["1 KiB"])
        for future in [store.commit_async(CHANNEL, batch) for _ in range(count)]:
            future.result()
        store.flush()
        segments = store.statistics().segments
        started = time.perf_counter()
        subscriber.ack(CHANNEL, 1, count * batch.num_rows)
        while store.statistics().segments:
            time.sleep(0.005)
        seconds = time.perf_counter() - started
    return Result("acks", "segments evicted once confirmed", segments / seconds, "segments/s")


def _startup(bench: Bench) -> Result:
    """Opening after a million answers and a checkpoint."""
    count = int(bench.scale(1_000_000, 50_000))
    directory = bench.directory / "answers"
    with _filled(directory, count) as store:
        subscriber = store.subscriber("answers", [CHANNEL])
        for spans in _answers(count):
            subscriber.ack_many(CHANNEL, spans)
    started = time.perf_counter()
    store = Store.open(directory)
    seconds = time.perf_counter() - started
    store.close()
    return Result("acks", f"opening after {count:,} answers", seconds, "s", target=Target(1, at_least=False))
