"""How cost grows with what there is: channels, connections, subscribers, bytes and segments that are kept.

A row is a point of a curve; `python -m bench.plots` draws them. What should not matter (a backlog nobody reads) is
measured as the time to open the store and the rate of commits into it. A backlog is made of one real segment and as
many more that the catalog knows and whose files have the right size but no blocks: only their number and size count
here, nobody reads them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial
from itertools import cycle
from pathlib import Path

import pyarrow as pa

from bench.consume import consuming
from bench.consume_load import Load as Consumption
from bench.figures import Result
from bench.ingest import Case, producing
from bench.served import serving
from bench.startup import opening
from bench.workload import CHANNEL, GB, SIZES, Bench, Budget, Timing, events, one_caller, windowed
from holdfast.disk.local import LocalFilesystem
from holdfast.store.answer import CommitFuture
from holdfast.store.catalog import Catalog, Publication, PublishedSegment
from holdfast.store.store import Store

WINDOW = 1024
SEGMENT_BYTES = 32 << 20
ROWS_APART = 1
"""Events of a segment of a made-up backlog."""


def run(bench: Bench) -> list[Result]:
    """Every curve."""
    return [*_channels(bench), *_connections(bench), *_subscribers(bench), *_segments(bench), *_bytes(bench)]


def _steps(bench: Bench, full: tuple[int, ...]) -> tuple[int, ...]:
    return full[:2] if bench.quick else full


def _point(curve: str, x: int, figure: float, unit: str, **also: float | str) -> Result:
    return Result("growth", f"{curve}: {x:,}", figure, unit, also={"curve": curve, "x": x, **also})


# --- what is live ---------------------------------------------------------------------------------------------------


def _channels(bench: Bench) -> Iterator[Result]:
    batch = events(SIZES["1 KiB"])
    for count in _steps(bench, (1, 10, 100, 1000)):
        with Store.open(bench.directory / f"channels-{count}") as store:
            names = cycle([f"{CHANNEL}-{number:04d}" for number in range(count)])
            submit = partial(_next_commit, store, names, batch)
            windowed(submit, Budget(30, 2 * count), window=WINDOW)  # every channel is there before the time begins
            timing = windowed(submit, Budget(bench.scale(4, 1)), window=WINDOW)
        yield _point("channels written to", count, timing.rate, "commits/s")


def _next_commit(store: Store, names: Iterator[str], batch: pa.RecordBatch) -> CommitFuture:
    return store.commit_async(next(names), batch)


def _connections(bench: Bench) -> Iterator[Result]:
    with serving(bench.directory / "connections") as server:
        for count in _steps(bench, (1, 10, 100, 1000)):
            sent = producing(Case("1 KiB", 1024, max(WINDOW, count), count), server, bench.scale(4, 1))
            frames = sent.figures.frames
            yield _point("connections that send", count, frames / sent.figures.seconds, "frames/s",
                         **{"server CPU us/frame": sent.cpu_s / frames * 1e6, "p99 ms": sent.figures.p99_ms,
                            "server RSS MB": server.rss_mb()})  # fmt: skip


def _subscribers(bench: Bench) -> Iterator[Result]:
    total = int(bench.scale(200, 50)) * 1000
    with serving(bench.directory / "subscribers") as server:
        consuming(Consumption("fill", server.address, total))
        for count in _steps(bench, (1, 10, 100)):
            before_s = server.cpu_s()
            load = Consumption("batches", server.address, total, name=f"growth-{count}", consumers=count)
            found = consuming(load)
            yield _point("durable subscribers, each gets everything", count, found.events / found.seconds, "events/s",
                         **{"server CPU us/event": (server.cpu_s() - before_s) / found.events * 1e6,
                            "server RSS MB": server.rss_mb()})  # fmt: skip


# --- what is only kept ----------------------------------------------------------------------------------------------


def _segments(bench: Bench) -> Iterator[Result]:
    for count in _steps(bench, (10, 1000, 10_000, 100_000)):
        yield _kept(bench, "segments kept", count, segments=count, size_bytes=4096)


def _bytes(bench: Bench) -> Iterator[Result]:
    for gigabytes in _steps(bench, (1, 10, 100)):
        yield _kept(bench, "GB kept", gigabytes, segments=gigabytes * GB // SEGMENT_BYTES, size_bytes=SEGMENT_BYTES)


def _kept(bench: Bench, curve: str, x: int, *, segments: int, size_bytes: int) -> Result:
    directory = bench.directory / f"kept-{segments}-{size_bytes}"
    _make_backlog(directory, segments, size_bytes)
    opened = opening(directory)
    with Store.open(directory) as store:
        timing: Timing = one_caller(partial(store.commit, CHANNEL, events(SIZES["1 KiB"])), Budget(bench.scale(2, 0.5)))
    return _point(curve, x, opened["seconds"], "s to open",
                  **{"commits/s": timing.rate, "peak RSS MB": opened["peak_rss_mb"]})  # fmt: skip


def _make_backlog(directory: Path, segments: int, size_bytes: int) -> None:
    with Store.open(directory, inline=True) as store:
        store.commit(CHANNEL, events(ROWS_APART))
        store.flush()
    catalog = Catalog(LocalFilesystem(), directory)
    try:
        (first,), (channel,), cursor = list(catalog.all_segments()), catalog.channels(), catalog.cursor("wal")
        assert cursor is not None
        folder = next(directory.rglob(first.file_name)).parent
        for start in range(1, segments, 1000):
            steps = range(start, min(segments, start + 1000))
            made = [_moved(first, catalog.next_segment_seq(), step, size_bytes) for step in steps]
            for segment in made:
                with (folder / segment.file_name).open("xb") as file:
                    file.truncate(size_bytes)
            end = dataclasses.replace(channel, next_seq=made[-1].meta.last_seq + 1)
            catalog.publish([Publication(segment, end, {}, []) for segment in made], wal_cursor=cursor)
    finally:
        catalog.close()


def _moved(first: PublishedSegment, number: int, steps: int, size_bytes: int) -> PublishedSegment:
    """The same segment, `steps` segments later."""
    meta = dataclasses.replace(
        first.meta,
        segment_seq=number,
        first_seq=first.meta.first_seq + steps * ROWS_APART,
        last_seq=first.meta.last_seq + steps * ROWS_APART,
        first_committed_id=first.meta.first_committed_id + steps * ROWS_APART,
        last_committed_id=first.meta.last_committed_id + steps * ROWS_APART,
    )
    return dataclasses.replace(first, meta=meta, size_bytes=size_bytes)
