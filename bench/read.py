"""Reading everything back from segments in the page cache.

- first time: every segment's checksum is proved before Arrow sees it; the limit reads the files by 1 MiB and checksums.
- again: mapped, without a copy, every byte touched; the limit is pyarrow on the same mapped files.
- again, handed over only: batches as they come, untouched; the limit is pyarrow as well.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pyarrow as pa
from crc32c import crc32c

from bench.figures import Result
from bench.workload import CHANNEL, GB, MB, MIB, SIZES, Bench, Budget, Timing, events, in_turns, rate, touch, windowed
from holdfast.store.store import Store

Use = Callable[[pa.RecordBatch], object]


def run(bench: Bench) -> list[Result]:
    """Three figures over one store."""
    directory = bench.directory / "read"
    batch = events(SIZES["64 KiB"])
    calls = int(bench.scale(0.5 * GB, 0.1 * GB)) // len(batch.serialize())
    with Store.open(directory) as store:
        windowed(partial(store.commit_async, CHANNEL, batch), Budget(120, calls), window=64)
    files = sorted((directory / "channels" / CHANNEL).glob("*.arrow"))
    timings = in_turns(
        {
            "pread": partial(_pread, files),
            "first": partial(_first_time, directory),
            "pyarrow": partial(_pyarrow, files, touch),
            "again": partial(_again, directory, touch),
            "pyarrow, untouched": partial(_pyarrow, files, leave),
            "again, untouched": partial(_again, directory, leave),
        },
        rounds=bench.rounds(5),
    )
    size, rows = sum(file.stat().st_size for file in files), calls * batch.num_rows
    speed = {name: rate(timing) * size / MB for name, timing in timings.items()}
    return [
        Result("read", "first time, checked", speed["first"], "MB/s", speed["pread"], "pread and CRC32C",
               also={"M rows/s": rate(timings["first"]) * rows / 1e6}),
        Result("read", "again, every byte touched", speed["again"], "MB/s", speed["pyarrow"], "pyarrow, mapped",
               also={"M rows/s": rate(timings["again"]) * rows / 1e6}),
        Result("read", "again, handed over only", rate(timings["again, untouched"]) * rows / 1e6, "M rows/s",
               rate(timings["pyarrow, untouched"]) * rows / 1e6, "pyarrow, mapped"),
    ]  # fmt: skip


def leave(_batch: pa.RecordBatch) -> None:
    """Look at nothing."""


def _consume(batches: Iterable[pa.RecordBatch], use: Use) -> Timing:
    started = time.perf_counter()
    for batch in batches:
        use(batch)
    return Timing(1, time.perf_counter() - started)


def _first_time(directory: Path) -> Timing:
    with Store.open(directory) as store:
        return _consume(store.read(CHANNEL), leave)


def _again(directory: Path, use: Use) -> Timing:
    with Store.open(directory) as store:
        _consume(store.read(CHANNEL), leave)
        return _consume(store.read(CHANNEL), use)


def _pread(files: list[Path]) -> Timing:
    started = time.perf_counter()
    for file in files:
        fd = os.open(file, os.O_RDONLY)
        crc = offset = 0
        while data := os.pread(fd, MIB, offset):
            crc, offset = crc32c(data, crc), offset + len(data)
        os.close(fd)
    return Timing(1, time.perf_counter() - started)


def _pyarrow(files: list[Path], use: Use) -> Timing:
    return _consume(_mapped(files), use)


def _mapped(files: list[Path]) -> Iterable[pa.RecordBatch]:
    for file in files:
        reader = pa.ipc.open_file(pa.memory_map(str(file)))
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)
