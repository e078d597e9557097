"""How cost grows with what there is: channels, connections, subscribers, bytes and segments that are kept.

A row is a point of a curve, beside the first point of that curve; `python -m bench.plots` draws them. The points of a
curve are measured in turns, so that all of them see the same machine, and told in processor time, which depends less on
what else the machine does than time. What is live may cost in proportion to what there is of it. What is only kept, a
backlog nobody reads, must not be felt by a commit, and is looked at once by a start: one row of the catalog and one
name in a directory for each segment, however large.

A backlog is made of one real segment and as many more that the catalog knows and whose files have the right size but no
blocks: only their number and size count here, nobody reads them.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from pathlib import Path

import pyarrow as pa

from bench.consume import consuming
from bench.consume_load import Load as Consumption
from bench.figures import Result, Target
from bench.ingest import Case, producing
from bench.served import Served, serving
from bench.startup import opening
from bench.workload import CHANNEL, GB, SIZES, Bench, Budget, events, one_caller, windowed
from holdfast.disk.local import LocalFilesystem
from holdfast.store.answer import CommitFuture
from holdfast.store.catalog import Catalog, Publication, PublishedSegment
from holdfast.store.store import Store

WINDOW = 1024
SEGMENT_BYTES = 32 << 20
SMALL_BYTES = 4096
ROWS_APART = 1
"""Events of a segment of a made-up backlog."""
UNFELT = Target(1.25, at_least=False, of_ratio=True)
"""A commit beside a backlog, of one beside the smallest: turns of a shared machine differ by as much anyway."""
A_SECOND = Target(1, at_least=False)

Figures = Mapping[str, float]
"""What was found at one point, by name with its unit; the first is what the curve is about."""


def run(bench: Bench) -> list[Result]:
    """Every curve."""
    return [*_channels(bench), *_connections(bench), *_subscribers(bench), *_segments(bench), *_bytes(bench)]


def _steps(bench: Bench, full: tuple[int, ...]) -> tuple[int, ...]:
    return full[:2] if bench.quick else full


def _curve(
    name: str, turns: Sequence[Mapping[int, Figures]], *, part: str = "", target: Target | None = None
) -> Iterator[Result]:
    """The points, each the median of its turns, beside the first; `part` says what of it was measured."""
    middle = {
        x: {key: statistics.median(turn[x][key] for turn in turns) for key in figures}
        for x, figures in turns[0].items()
    }
    first, *_ = middle
    unit, *others = middle[first]
    for x, figures in middle.items():
        beside = None if x == first else middle[first][unit]
        yield Result("growth", f"{name}: {x:,}{part}", figures[unit], unit, beside, f"at {first:,}" if beside else "",
                     target if beside or not (target and target.of_ratio) else None,
                     {key: figures[key] for key in others})  # fmt: skip


# --- what is live ---------------------------------------------------------------------------------------------------


def _channels(bench: Bench) -> Iterator[Result]:
    batch, counts = events(SIZES["1 KiB"]), _steps(bench, (1, 10, 100, 1000))
    for count in counts:  # every channel is there before the time begins
        _write_to(bench, count, batch, Budget(60, 2 * count))
    turns = [
        {count: _write_to(bench, count, batch, Budget(bench.scale(2, 0.5))) for count in counts}
        for _ in range(bench.rounds(3))
    ]
    return _curve("channels written to", turns)


def _write_to(bench: Bench, count: int, batch: pa.RecordBatch, budget: Budget) -> Figures:
    names = cycle([f"{CHANNEL}-{number:04d}" for number in range(count)])
    with Store.open(bench.directory / f"channels-{count}") as store:
        windowed(partial(_next_commit, store, names, batch), Budget(60, count), window=WINDOW)  # it knows them all
        before_s = time.process_time()
        timing = windowed(partial(_next_commit, store, names, batch), budget, window=WINDOW)
        cpu_s = time.process_time() - before_s
    return {"CPU us/commit": cpu_s / timing.calls * 1e6, "commits/s": timing.rate}


def _next_commit(store: Store, names: Iterator[str], batch: pa.RecordBatch) -> CommitFuture:
    return store.commit_async(next(names), batch)


def _connections(bench: Bench) -> Iterator[Result]:
    with serving(bench.directory / "connections") as server:
        turns = [
            {count: _sending(bench, server, count) for count in _steps(bench, (1, 10, 100, 1000))}
            for _ in range(bench.rounds(3))
        ]
    return _curve("connections that send", turns)


def _sending(bench: Bench, server: Served, count: int) -> Figures:
    sent = producing(Case("1 KiB", 1024, max(WINDOW, count), count), server, bench.scale(2, 1))
    return {"server CPU us/frame": sent.server_cpu_s / sent.frames * 1e6, "frames/s": sent.frames / sent.seconds,
            "p99 ms": sent.p99_ms, "server RSS MB": sent.server_rss_mb}  # fmt: skip


def _subscribers(bench: Bench) -> Iterator[Result]:
    total = int(bench.scale(100, 50)) * 1000
    with serving(bench.directory / "subscribers") as server:
        consuming(Consumption("fill", server.address, total))
        turns = [
            {count: _receiving(server, count, total, turn) for count in _steps(bench, (1, 10, 100))}
            for turn in range(bench.rounds(3))
        ]
    return _curve("durable subscribers, each gets everything", turns)


def _receiving(server: Served, count: int, total: int, turn: int) -> Figures:
    before_s = server.cpu_s()
    found = consuming(Consumption("batches", server.address, total, name=f"growth-{turn}-{count}", consumers=count))
    return {"server CPU us/event": (server.cpu_s() - before_s) / found.events * 1e6,
            "events/s": found.events / found.seconds,
            "server RSS MB": server.rss_mb()}  # fmt: skip


# --- what is only kept ----------------------------------------------------------------------------------------------


def _segments(bench: Bench) -> Iterator[Result]:
    counts = _steps(bench, (10, 1000, 10_000, 100_000))
    return _kept(bench, "segments kept", {count: _made(bench, count, SMALL_BYTES) for count in counts})


def _bytes(bench: Bench) -> Iterator[Result]:
    sizes = _steps(bench, (1, 10, 100))
    return _kept(bench, "GB kept", {size: _made(bench, size * GB // SEGMENT_BYTES, SEGMENT_BYTES) for size in sizes})


def _kept(bench: Bench, name: str, backlogs: Mapping[int, Path]) -> Iterator[Result]:
    opened = [{x: _opening(directory) for x, directory in backlogs.items()} for _ in range(bench.rounds(3))]
    yield from _curve(name, opened, part=", opened", target=A_SECOND)
    batch, budget = events(SIZES["1 KiB"]), Budget(bench.scale(1, 0.5))
    with ExitStack() as stack:
        stores = {x: stack.enter_context(Store.open(directory)) for x, directory in backlogs.items()}
        committed = [
            {x: _committing(store, batch, budget) for x, store in stores.items()} for _ in range(bench.rounds(5))
        ]
    yield from _curve(name, committed, part=", commits beside them", target=UNFELT)


def _opening(directory: Path) -> Figures:
    found = opening(directory)
    return {"CPU s": found["cpu_s"], "s to open": found["seconds"], "peak RSS MB": found["peak_rss_mb"]}


def _committing(store: Store, batch: pa.RecordBatch, budget: Budget) -> Figures:
    before_s = time.process_time()
    timing = one_caller(partial(store.commit, CHANNEL, batch), budget)
    return {"CPU us/commit": (time.process_time() - before_s) / timing.calls * 1e6, "commits/s": timing.rate}


def _made(bench: Bench, segments: int, size_bytes: int) -> Path:
    directory = bench.directory / f"kept-{segments}-{size_bytes}"
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
    return directory


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
