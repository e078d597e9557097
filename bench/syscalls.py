"""`python -m bench.syscalls`: the system calls of each path, counted by `strace`, for the page of envelope figures.

A server, a sender or a store is watched while it does a known number of things. Under `strace` everything is slower, so
more or fewer frames share a sync than in a benchmark; the counts per group hold.
"""

from __future__ import annotations

import re
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

import pyarrow as pa

from bench import otlp, sync, tier
from bench.consume import consuming
from bench.consume_load import Load
from bench.ingest import Case, producing
from bench.served import Served, serving
from bench.sync_load import Figures
from bench.workload import CHANNEL, ROOT, SIZES, Budget, events, one_caller, windowed
from holdfast import Sender, Store

SECONDS = 2.0
EVENTS = 100_000
CALLS = 2000
QUIET_S = 1.0
"""A thread that has just been seen by `strace` is let alone for this long."""

Calls = dict[str, int]


def main() -> None:
    """All paths, a line each."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "build") as scratch:
        directory = Path(scratch)
        lines = (line for path in (_server, _sender, _store, _otlp, _sync, _tier) for line in path(directory))
        for what, number, unit, calls in lines:
            told = ", ".join(
                f"{n} {name}" for name, n in sorted(calls.items(), key=lambda item: -item[1]) if 1000 * n > number
            )
            print(f"{what}: {number} {unit}: {told}", flush=True)


Line = tuple[str, int, str, Calls]


def _server(directory: Path) -> Iterator[Line]:
    with serving(directory / "server") as server:
        for case in (Case("1 KiB", 1024, 1024, 1), Case("1 KiB", 1024, 1024, 64), Case("256 KiB", 256 << 10, 32, 1),
                     Case("1 MiB", 1 << 20, 16, 1)):  # fmt: skip
            with _watched(server.pid) as calls:
                sent = producing(case, server, SECONDS)
            many = f"{case.connections} connections" if case.connections > 1 else "1 connection"
            yield f"server, {case.name}, {many}, {case.window} in flight", sent.frames, "frames", calls
        yield from _delivery(server)


def _delivery(server: Served) -> Iterator[Line]:
    consuming(Load("fill", server.address, EVENTS))
    for kind, number in zip(("batches", "messages"), count(), strict=False):
        with _watched(server.pid) as calls:
            consuming(Load(kind, server.address, EVENTS, name=f"reader-{number}"))
        yield f"server, delivery, {kind}", EVENTS, "messages", calls


def _sender(directory: Path) -> Iterator[Line]:
    one = pa.record_batch({"body": [b"x" * 1024]})
    with serving(directory / "receiver") as server:
        for mode, durability in (("memory", ""), ("slot", "memory"), ("slot", "flush")):
            slot = {"sf_dir": str(directory / "slots"), "sender_id": durability, "sf_durability": durability}
            keys: dict[str, object] = {"addr": server.address, "auto_flush": False, **(slot if durability else {})}
            with Sender(**keys) as sender:  # type: ignore[arg-type]
                flush = partial(_flush_one, sender, one)
                flush()
                assert sender.drain(30)
                with _watched(threading.get_native_id(), threads=False) as calls:
                    one_caller(flush, Budget(30, CALLS))
                assert sender.drain(60)
            yield f"the thread that flushes, {mode} {durability}".rstrip(), CALLS, "frames", calls


def _flush_one(sender: Sender, batch: pa.RecordBatch) -> None:
    sender.send(CHANNEL, batch)
    sender.flush()


def _store(directory: Path) -> Iterator[Line]:
    pid = int(Path("/proc/self").resolve().name)
    for size, window in (("1 KiB", 1), ("1 KiB", 1024), ("1 MiB", 8)):
        batch = events(SIZES[size])
        number = CALLS if size == "1 KiB" else 100
        with Store.open(directory / f"store-{size[0]}{size[2]}-{window}") as store:
            submit = partial(store.commit_async, CHANNEL, batch)
            submit().result()
            with _watched(pid) as calls:
                windowed(submit, Budget(60, number), window=window)
            yield f"store, {size}, {window} in flight", number, "commits", calls
            with _watched(pid) as calls:
                store.flush()
            yield f"store, {size}, sealed", 1, "segment", calls


def _otlp(directory: Path) -> Iterator[Line]:
    for payload in ("raw", "columns"):
        with otlp.graph(directory / payload, payload, durable=True) as running:
            running.send(Budget(SECONDS / 2))
            with _watched(running.pid) as calls:
                sent = running.send(Budget(SECONDS))
        yield (
            f"otlp, {payload}, {otlp.LOGS} logs a request, gRPC, {otlp.WINDOW} in flight",
            sent.calls,
            "requests",
            calls,
        )


def _sync(directory: Path) -> Iterator[Line]:
    config = directory / "sync.yaml"
    config.write_text("sync: {messages_per_second: 0}\n", encoding="utf-8")
    with serving(directory / "sync", "-c", str(config)) as server:
        for case in sync.CASES:
            figures: list[Figures] = []
            sync.produce(case, server, SECONDS / 2, figures)  # warms up
            with _watched(server.pid) as calls:
                sync.produce(case, server, SECONDS, figures)
            yield f"sync, {case.title} ({figures[1].broadcasts} told)", figures[1].events, "events", calls


def _tier(directory: Path) -> Iterator[Line]:
    bucket, done = directory / "bucket", threading.Event()
    bucket.mkdir()
    pid, number, batch = int(Path("/proc/self").resolve().name), 40, events(100_000)
    with Store.open(directory / "tiered") as store:
        for _ in range(number):
            store.commit(CHANNEL, batch)
        store.flush()
        there = store.statistics()
        upload = tier.open_tier(bucket)
        upload.on_durable(lambda news: done.set() if news.get(CHANNEL) == number * batch.num_rows else None)
        with _watched(pid) as calls:
            upload.attach(store.port)
            assert done.wait(60)
        upload.close()
    yield f"tier, upload, a folder, {there.segment_bytes >> 20} MiB", there.sealed_segments, "segments", calls


@contextmanager
def _watched(pid: int, *, threads: bool = True) -> Iterator[Calls]:
    """What the process, or the one thread, calls inside the block; the result is complete after it."""
    calls: Calls = {}
    with tempfile.NamedTemporaryFile("r", encoding="utf-8") as out:
        command = ["strace", *(["-f"] if threads else []), "-c", "-o", out.name, "-p", str(pid)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as strace:
            assert strace.stderr is not None
            strace.stderr.readline()  # it has attached
            time.sleep(QUIET_S)
            yield calls
            strace.send_signal(signal.SIGINT)
            strace.communicate()
        calls.update(_read(out.read()))


def _read(table: str) -> Calls:
    found = re.finditer(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)(?:\s+\d+)?\s+(\w+)$", table, re.MULTILINE)
    return {match[2]: int(match[1]) for match in found if match[2] != "total"}


if __name__ == "__main__":
    main()
