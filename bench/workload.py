"""Events to store, callers that store them, and the bare disk to compare with."""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from crc32c import crc32c

from holdfast.disk.local import CALL_BYTES_MAX

MB, GB, MIB = 10**6, 10**9, 1 << 20
ROOT = Path(__file__).resolve().parents[1]
"""Where `python -m bench.…` works."""
LOG_FILE_BYTES = 64 * MIB
"""The default of `wal.rotation_size`."""
CHANNEL = "events"
SETTLE_S = 0.05
"""What a store does behind an answered call, such as deleting log files, is over after this long."""
SIZES = {"1 row": 1, "1 KiB": 8, "64 KiB": 512, "1 MiB": 8192}
"""Rows of 128 bytes that make a batch of this size."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where to measure, and how long."""

    directory: Path
    quick: bool

    def scale(self, full: float, quick: float) -> float:
        """How much of something to do."""
        return quick if self.quick else full

    def rounds(self, full: int) -> int:
        """How often to take turns; odd, for a median that was measured."""
        return 1 if self.quick else full


def events(rows: int) -> pa.RecordBatch:
    """A batch of events, 128 bytes each: two numbers, a time, a short text and a longer one."""
    chance = random.Random(rows)
    start_us = 1_700_000_000_000_000
    return pa.record_batch(
        {
            "id": pa.array(range(rows), pa.int64()),
            "at": pa.array(range(start_us, start_us + rows), pa.timestamp("us", "UTC")),
            "value": pa.array([chance.random() for _ in range(rows)]),
            "source": pa.array([f"sensor-{chance.randrange(10_000):07d}" for _ in range(rows)]),
            "body": pa.array([chance.randbytes(41).hex() for _ in range(rows)]),
        }
    )


def touch(batch: pa.RecordBatch) -> None:
    """Look at every byte of a batch, as fast as memory allows."""
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None:
                crc32c(buffer)


# -- timing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Timing:
    """Calls made in one go."""

    calls: int
    seconds: float
    latencies_s: Sequence[float] = ()

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds


@dataclass(frozen=True, slots=True)
class Budget:
    """When to stop: after so much time, or so many calls."""

    seconds: float
    calls: int = 1 << 62


def joined(timings: Sequence[Timing]) -> Timing:
    """Several as one."""
    return Timing(sum(timing.calls for timing in timings), sum(timing.seconds for timing in timings),
                  [latency for timing in timings for latency in timing.latencies_s])  # fmt: skip


def one_caller(call: Callable[[], object], budget: Budget) -> Timing:
    """Call after call."""
    latencies: list[float] = []
    started = now = time.perf_counter()
    deadline = started + budget.seconds
    while now < deadline and len(latencies) < budget.calls:
        call()
        latencies.append(-now + (now := time.perf_counter()))
    return Timing(len(latencies), now - started, latencies)


def many_callers(call: Callable[[], object], budget: Budget, *, callers: int) -> Timing:
    """Threads that each make call after call, together as many as the budget says."""
    share = Budget(budget.seconds, max(1, budget.calls // callers))
    timings: list[Timing] = []
    ready = threading.Barrier(callers + 1)

    def work() -> None:
        ready.wait()
        timings.append(one_caller(call, share))

    threads = [threading.Thread(target=work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    ready.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - started
    return Timing(sum(t.calls for t in timings), seconds, [s for t in timings for s in t.latencies_s])


def windowed(submit: Callable[[], Future[Any]], budget: Budget, *, window: int) -> Timing:
    """One thread that has up to `window` calls in flight; ends when all are answered."""
    waiting: deque[Future[Any]] = deque()
    calls = 0
    started = time.perf_counter()
    deadline = started + budget.seconds
    while calls < budget.calls and (calls % 16 or time.perf_counter() < deadline):
        if len(waiting) == window:
            waiting.popleft().result()
        waiting.append(submit())
        calls += 1
    for future in waiting:
        future.result()
    return Timing(calls, time.perf_counter() - started)


def in_turns(ways: Mapping[str, Callable[[], Timing]], *, rounds: int) -> dict[str, list[Timing]]:
    """Each way once per round, so that all see the same machine; none pays for what the one before left to write."""
    timings: dict[str, list[Timing]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            time.sleep(SETTLE_S)
            os.sync()
            timings[name].append(way())
    return timings


def rate(timings: Sequence[Timing]) -> float:
    """Calls per second, the median of the rounds."""
    return statistics.median(timing.rate for timing in timings)


def latencies(timings: Sequence[Timing]) -> dict[str, float | str]:
    """What half, and 99 of 100, of the calls took at most."""
    ordered = sorted(latency for timing in timings for latency in timing.latencies_s)
    if not ordered:
        return {}
    return {"p50 ms": ordered[len(ordered) // 2] * 1e3, "p99 ms": ordered[len(ordered) * 99 // 100] * 1e3}


# -- the bare disk --------------------------------------------------------------------------------------------------


def bare_disk(directory: Path, data: bytes, budget: Budget, *, keep: bool = False, small_calls: bool = False) -> Timing:
    """`pwrite` and `fdatasync` of the same bytes again and again, one behind the other in pre-allocated files.

    The files are as large as those of the log and are deleted when full, as those are: a disk that is slower where it
    was never written is equally slow for both. Making them takes no part in the time. With `keep` they stay, as
    segments do: the limit of everything that keeps what it writes. Memory and blocks that a deleted file gives back are
    used again at once, which is several times faster on some machines. With `small_calls` each write is made by several
    calls, as `holdfast.disk.local` makes it.
    """
    call_bytes = CALL_BYTES_MAX if small_calls else len(data)
    parts: list[Timing] = []
    left = budget
    while left.seconds > 0 and left.calls > 0:
        parts.append(_fill_file(directory, data, left, keep=keep, call_bytes=call_bytes))
        left = Budget(left.seconds - parts[-1].seconds, left.calls - parts[-1].calls)
    return joined(parts)


def _fill_file(directory: Path, data: bytes, budget: Budget, *, keep: bool, call_bytes: int) -> Timing:
    fd, name = tempfile.mkstemp(prefix="bare-disk-", dir=directory)
    try:
        os.posix_fallocate(fd, 0, LOG_FILE_BYTES)
        os.fsync(fd)
        offsets = iter(range(0, LOG_FILE_BYTES, len(data)))

        def write() -> None:
            offset = next(offsets)
            for start in range(0, len(data), call_bytes):
                os.pwrite(fd, memoryview(data)[start : start + call_bytes], offset + start)
            os.fdatasync(fd)

        return one_caller(write, Budget(budget.seconds, min(budget.calls, LOG_FILE_BYTES // len(data))))
    finally:
        os.close(fd)
        if not keep:
            os.unlink(name)
