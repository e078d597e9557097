"""Committed events to a published segment: what `flush` takes, per byte of the log.

The limit writes the same bytes into a new file by 1 MiB, syncs it, renames it and syncs the directory.
"""

from __future__ import annotations

import os
import time
from functools import partial

import pyarrow as pa

from bench.figures import Result
from bench.workload import CHANNEL, MB, MIB, SIZES, Bench, Budget, Timing, events, in_turns, rate, windowed
from holdfast.store.store import Store

SEGMENT_BYTES = 24 * MIB
"""Below `segment.target_size`, so that nothing is sealed before the flush."""
SETTINGS = {"segment.max_open_duration": "1h"}


def run(bench: Bench) -> list[Result]:
    """One figure per size of the batches that make the segment."""
    return [_sealed(bench, size) for size in ("1 KiB", "64 KiB", "1 MiB")]


def _sealed(bench: Bench, size: str) -> Result:
    batch = events(SIZES[size])
    data = batch.serialize().to_pybytes()
    calls = SEGMENT_BYTES // len(data)
    with Store.open(bench.directory / f"seal-{SIZES[size]}", SETTINGS) as store:
        timings = in_turns(
            {
                "disk": partial(_write_file, bench, data * calls),
                "store": partial(_commit_and_flush, store, batch, calls),
            },
            rounds=bench.rounds(5),
        )
    mb = calls * len(data) / MB
    return Result("seal", f"batches of {size}", rate(timings["store"]) * mb, "MB/s", rate(timings["disk"]) * mb,
                  "new file, synced")  # fmt: skip


def _commit_and_flush(store: Store, batch: pa.RecordBatch, calls: int) -> Timing:
    windowed(partial(store.commit_async, CHANNEL, batch), Budget(60, calls), window=64)
    started = time.perf_counter()
    store.flush()
    return Timing(1, time.perf_counter() - started)


def _write_file(bench: Bench, data: bytes) -> Timing:
    path = bench.directory / "file"
    started = time.perf_counter()
    fd = os.open(path.with_suffix(".tmp"), os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    for offset in range(0, len(data), MIB):
        os.pwrite(fd, memoryview(data)[offset : offset + MIB], offset)
    os.fsync(fd)
    os.close(fd)
    os.replace(path.with_suffix(".tmp"), path)
    directory = os.open(bench.directory, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    return Timing(1, time.perf_counter() - started)
