"""The tier: how fast segments get into an object store, how soon an event is durable, how fast a store comes back.

Objects go to a folder on the same disk, so that the figures are those of our part and not of a network. The limit of an
upload is the same bytes written as objects and read back by the bare client, one after the other.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from pathlib import Path

from bench.figures import Result
from bench.workload import CHANNEL, MB, Bench, events
from holdfast.clock import SystemClock
from holdfast.config.tier import TierConfig
from holdfast.disk.local import LocalFilesystem
from holdfast.store.store import Store
from holdfast.tier import Tier
from holdfast.tier.folder import FolderObjects

ROWS = 8192
"""A batch of a mebibyte."""
MAX_DELAY = "50ms"
PATIENCE_S = 60.0


def run(bench: Bench) -> list[Result]:
    """Upload and restore the same store; then single events."""
    bucket = bench.directory / "bucket"
    bucket.mkdir()
    uploaded, size_bytes = _upload(bench, bucket)
    return [uploaded, _restore(bench, bucket, size_bytes), _delay(bench)]


def _tier(bucket: Path) -> Tier:
    config = TierConfig.from_mapping({"tier": {"url": f"file://{bucket}", "max_delay": MAX_DELAY}})
    return Tier.connect(config, filesystem=LocalFilesystem(), clock=SystemClock(), chance=random.Random(1))


def _upload(bench: Bench, bucket: Path) -> tuple[Result, int]:
    batch, tier, done = events(ROWS), _tier(bucket), threading.Event()
    count = int(bench.scale(400, 60))
    with Store.open(bench.directory / "tier") as store:
        for _ in range(count):
            store.commit(CHANNEL, batch)
        store.flush()
        size_bytes = store.statistics().segment_bytes
        tier.on_durable(lambda news: done.set() if news.get(CHANNEL) == count * ROWS else None)
        started = time.perf_counter()
        tier.attach(store.port)
        assert done.wait(PATIENCE_S)
        took_s = time.perf_counter() - started
        tier.close()
        bare_s = _bare(bench.directory, [path for path in store.path.glob("channels/*/*.arrow")])
    figure, limit = size_bytes / MB / took_s, size_bytes / MB / bare_s
    return Result("tier", "upload", figure, "MB/s", limit, "bare client", also={"MB": size_bytes / MB}), size_bytes


def _bare(directory: Path, files: list[Path]) -> float:
    """The same bytes as objects, written and read back."""
    objects = FolderObjects(LocalFilesystem(), directory / "bare")
    started = time.perf_counter()
    for number, path in enumerate(files):
        objects.create(f"segments/{number}", path.read_bytes())
        for _ in objects.parts(f"segments/{number}"):
            pass
    return time.perf_counter() - started


def _restore(bench: Bench, bucket: Path, size_bytes: int) -> Result:
    tier = _tier(bucket)
    started = time.perf_counter()
    report = tier.restore(bench.directory / "restored")
    took_s = time.perf_counter() - started
    also: dict[str, float | str] = {"segments": report.segments, "events/s": report.events / took_s}
    return Result("tier", "restore", size_bytes / MB / took_s, "MB/s", also=also)


def _delay(bench: Bench) -> Result:
    """From `commit` to durable, one event at a time."""
    bucket = bench.directory / "delay-bucket"
    bucket.mkdir()
    batch, tier, moved = events(1), _tier(bucket), threading.Event()
    seconds: list[float] = []
    with Store.open(bench.directory / "delay") as store:
        tier.on_durable(lambda _news: moved.set())
        tier.attach(store.port)
        tier.begin_waiting()
        for _ in range(int(bench.scale(50, 10))):
            moved.clear()
            started = time.perf_counter()
            store.commit(CHANNEL, batch)
            assert moved.wait(PATIENCE_S)
            seconds.append(time.perf_counter() - started)
        tier.close()
    return Result("tier", f"durable, max_delay {MAX_DELAY}", statistics.median(seconds) * 1000, "ms",
                  also={"worst ms": max(seconds) * 1000})  # fmt: skip
