"""How long `Store.open` takes, in a fresh process: with many segments, and with a long log that a kill left behind.

The log is filled by a process whose settings seal nothing, and which is then killed with SIGKILL. Its files are in the
page cache, as after the crash of a process; after the crash of a machine the time to read them from disk comes on top.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from bench.figures import Result, Target
from bench.workload import CHANNEL, GB, MB, ROOT, SIZES, Bench, Budget, events, windowed
from holdfast.model.frame import Entry
from holdfast.store.store import Store

CHANNELS = 100
SEGMENTS_TARGET = Target(1, at_least=False)
"""For 10 000 segments; fewer may not take longer."""
LOG_TARGET = Target(10, at_least=False)
UNSEALED = {"memory_limit": "8GiB", "wal.max_size": "8GiB", "segment.target_size": "1GiB",
            "segment.max_open_duration": "1h", "file_slice_max_bytes": "1GiB"}  # fmt: skip
WINDOW = 1024


def run(bench: Bench) -> list[Result]:
    """Segments first, then logs."""
    counts = (100, 300) if bench.quick else (1000, 10_000)
    log_bytes = {"64 KiB": bench.scale(1.0 * GB, 0.05 * GB), "1 KiB": bench.scale(0.5 * GB, 0.03 * GB)}
    return [*(_segments(bench, count) for count in counts),
            *(_log(bench, size, int(count)) for size, count in log_bytes.items())]  # fmt: skip


def _segments(bench: Bench, count: int) -> Result:
    directory = bench.directory / f"startup-{count}"
    batch = events(1)
    with Store.open(directory, inline=True) as store:
        for _ in range(count // CHANNELS):
            store.commit_frame([Entry(f"{CHANNEL}-{number:03d}", batch) for number in range(CHANNELS)])
            store.flush()
        assert store.statistics().segments == count
    opened = sorted((opening(directory) for _ in range(3)), key=lambda found: float(found["seconds"]))[1]
    return Result(
        "startup", f"{count:,} segments", opened["seconds"], "s", target=SEGMENTS_TARGET, also=_memory(opened)
    )


def _log(bench: Bench, size: str, log_bytes: int) -> Result:
    directory = bench.directory / f"startup-wal-{SIZES[size]}"
    arguments = [sys.executable, "-m", "bench.startup", "fill", str(directory), str(SIZES[size]), str(log_bytes)]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "full\n", "the process that fills the log ended early"
        os.kill(child.pid, signal.SIGKILL)
    found = sum(file.stat().st_size for file in (directory / "wal").glob("*.log"))
    opened = opening(directory)
    return Result("startup", f"log of {size} frames", opened["seconds"] * GB / found, "s per GB", target=LOG_TARGET,
                  also={"log MB": found / MB, "frames": opened["frames"], **_memory(opened)})  # fmt: skip


def _memory(opened: dict[str, Any]) -> dict[str, float | str]:
    return {"peak RSS MB": opened["peak_rss_mb"]}


def opening(directory: Path) -> dict[str, Any]:
    """What a fresh process found when it opened a store: `seconds`, `cpu_s`, `frames`, `peak_rss_mb`."""
    arguments = [sys.executable, "-m", "bench.startup", "open", str(directory)]
    answer = subprocess.run(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


# -- the processes --------------------------------------------------------------------------------------------------


def fill(directory: Path, *, rows: int, log_bytes: int) -> None:
    """Commit so many bytes, say so, and wait to be killed."""
    batch = events(rows)
    calls = log_bytes // len(batch.serialize())
    with Store.open(directory, UNSEALED) as store:
        windowed(partial(store.commit_async, CHANNEL, batch), Budget(300, calls), window=WINDOW)
        assert store.statistics().wal_bytes >= log_bytes, "the log was trimmed, so something was sealed"
        print("full", flush=True)
        signal.pause()


def open_store(directory: Path) -> None:
    """Open with default settings and say how long it took."""
    started, before_s = time.perf_counter(), time.process_time()
    store = Store.open(directory)
    seconds, cpu_s = time.perf_counter() - started, time.process_time() - before_s
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    peak_kb = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    frames = store.recovery.recovered_frames
    found = {"seconds": seconds, "cpu_s": cpu_s, "frames": frames, "peak_rss_mb": peak_kb * 1024 / MB}
    print(json.dumps(found), flush=True)
    store.close()


if __name__ == "__main__":
    if sys.argv[1] == "fill":
        fill(Path(sys.argv[2]), rows=int(sys.argv[3]), log_bytes=int(sys.argv[4]))
    else:
        open_store(Path(sys.argv[2]))
