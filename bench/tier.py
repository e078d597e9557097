"""The tier: how fast segments get into an object store, how soon an event is durable, how fast a store comes back.

Objects go to a folder on the same disk, so that the figures are those of our part and not of a network. The limit of an
upload is the same bytes put and got back by the bare client (`obstore` on a folder, as many at a time), which syncs
nothing. A cold read fetches segments into the cache and reads them; the limit is a second read, which finds the copies.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import obstore
from obstore.store import LocalStore

from bench.figures import Result
from bench.workload import CHANNEL, MB, Bench, events
from holdfast.clock import SystemClock
from holdfast.config.tier import TierConfig
from holdfast.disk.checksum import crc32c
from holdfast.disk.local import LocalFilesystem
from holdfast.store.store import Store
from holdfast.tier import Tier

ROWS = 8192
"""A batch of a mebibyte."""
MAX_DELAY = "50ms"
PATIENCE_S = 60.0


def run(bench: Bench) -> list[Result]:
    """Upload and restore the same store; then single events."""
    bucket = bench.directory / "bucket"
    bucket.mkdir()
    uploaded, size_bytes = _upload(bench, bucket)
    return [uploaded, _restore(bench, bucket, size_bytes), *_cold(bench, bucket, size_bytes), _delay(bench)]


def open_tier(bucket: Path) -> Tier:
    """A tier in a folder."""
    config = TierConfig.from_mapping({"tier": {"url": f"file://{bucket}", "max_delay": MAX_DELAY}})
    return Tier.connect(config, filesystem=LocalFilesystem(), clock=SystemClock(), chance=random.Random(1))


def _upload(bench: Bench, bucket: Path) -> tuple[Result, int]:
    batch, tier, done = events(ROWS), open_tier(bucket), threading.Event()
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
    """The same bytes as objects, put and got back."""
    folder = directory / "bare"
    folder.mkdir()
    client = LocalStore(folder)

    def one(path: Path) -> None:
        obstore.put(client, path.name, path.read_bytes(), use_multipart=False)
        for _ in obstore.get(client, path.name).stream(min_chunk_size=4 << 20):
            pass

    started = time.perf_counter()
    with ThreadPoolExecutor(TierConfig().concurrency) as pool:
        list(pool.map(one, files))
    return time.perf_counter() - started


def _restore(bench: Bench, bucket: Path, size_bytes: int) -> Result:
    tier = open_tier(bucket)
    started = time.perf_counter()
    report = tier.restore(bench.directory / "restored")
    took_s = time.perf_counter() - started
    also: dict[str, float | str] = {"segments": report.segments, "events/s": report.events / took_s}
    return Result("tier", "restore", size_bytes / MB / took_s, "MB/s", also=also)


def _cold(bench: Bench, bucket: Path, size_bytes: int) -> list[Result]:
    """Everything that is only in the tier, read twice; then a few events of a segment that nobody has a copy of."""
    tier = open_tier(bucket)
    tier.restore(bench.directory / "cold", keep_bytes=1)
    with Store.open(bench.directory / "cold", source=tier) as store:
        cold_s, warm_s = _read_all(store), _read_all(store)
    tier.restore(bench.directory / "part", keep_bytes=1)
    seconds: list[float] = []
    with Store.open(bench.directory / "part", source=tier) as store:
        for segment in store.listing.segments(CHANNEL, from_seq=1, limit=1000):
            if segment.remote:
                seq = (segment.meta.first_seq + segment.meta.last_seq) // 2
                started = time.perf_counter()
                assert sum(batch.num_rows for batch in store.read(CHANNEL, start=seq, end=seq + 9)) == 10
                seconds.append(time.perf_counter() - started)
        fetched = store.port.copies()
    tier.close()
    whole = Result("tier", "cold read", size_bytes / MB / cold_s, "MB/s", size_bytes / MB / warm_s, "warm read")
    also: dict[str, float | str] = {"parts": fetched.parts, "whole": fetched.fetches}
    return [whole, Result("tier", "cold read of 10 events", statistics.median(seconds) * 1000, "ms", also=also)]


def _read_all(store: Store) -> float:
    """Every byte is looked at, since a map alone reads nothing."""
    started = time.perf_counter()
    for batch in store.read(CHANNEL):
        for buffer in (buffer for column in batch.columns for buffer in column.buffers() if buffer is not None):
            crc32c(buffer)
    return time.perf_counter() - started


def _delay(bench: Bench) -> Result:
    """From `commit` to durable, one event at a time."""
    bucket = bench.directory / "delay-bucket"
    bucket.mkdir()
    batch, tier, moved = events(1), open_tier(bucket), threading.Event()
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
