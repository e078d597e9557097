"""Frames over WebSocket into the store, each answered after its sync: the whole server, with a producer beside it.

The limits, measured in the same turns: a bare picows server that only answers (the sockets), and the bare disk writing
the same bytes, eight megabytes or a window per sync, as the group commit does. Beside the small frames, NATS JetStream
if it is there, as it comes and with `sync_interval: always`, which is what an OK of ours means.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench import jetstream
from bench.figures import Result, Target
from bench.ingest_load import Figures, Load
from bench.workload import MB, MIB, ROOT, Bench, Budget, Timing, bare_disk, in_turns, rate

GROUP_BYTES = 8 * MIB
"""What the store commits with one sync at most."""


class Case(NamedTuple):
    """One line of the table."""

    name: str
    frame_bytes: int
    window: int
    """Frames in flight, over all connections."""
    connections: int
    target: Target | None = None


SMALL = Target(20_000)
HALF = Target(0.5, of_ratio=True)
CASES = [
    Case("1 KiB", 1024, 1024, 1, SMALL),
    Case("1 KiB", 1024, 1024, 16),
    Case("64 KiB", 64 << 10, 64, 1),
    Case("64 KiB", 64 << 10, 64, 16),
    Case("256 KiB", 256 << 10, 32, 1, HALF),
    Case("256 KiB", 256 << 10, 32, 16, HALF),
    Case("1 MiB", MIB, 16, 1),
    Case("1 MiB", MIB, 16, 16),
]


def run(bench: Bench) -> list[Result]:
    """One figure per size and number of connections."""
    with _holdfast(bench.directory / "ingest") as server, _bare_sockets() as sockets:
        results = [_measure(bench, case, server, sockets) for case in CASES]
    if jetstream.is_installed():
        results += [_peer(bench, sync_always=always) for always in (False, True)]
    return results


def _measure(bench: Bench, case: Case, server: str, sockets: str) -> Result:
    seconds = bench.scale(3, 1)
    per_connection = max(1, case.window // case.connections)
    loads = [Load(url, case.frame_bytes, per_connection, case.connections, seconds) for url in (server, sockets)]
    found: dict[str, list[Figures]] = {url: [] for url in (server, sockets)}
    per_sync = min(GROUP_BYTES, case.frame_bytes * case.window)
    timings = in_turns(
        {
            "disk": partial(bare_disk, bench.directory, bytes(per_sync), Budget(seconds / 2)),
            **{load.url: partial(_produce, load, found[load.url]) for load in loads},
        },
        rounds=bench.rounds(3),
    )
    frame_bytes = found[server][0].frame_bytes
    rates = {"bare disk": rate(timings["disk"]) * per_sync / frame_bytes, "bare picows": rate(timings[sockets])}
    limit_is = min(rates, key=rates.__getitem__)
    many = f"{case.connections} connection{'s' if case.connections > 1 else ''}"
    return Result("ingest", f"{case.name}, {many}, {case.window} in flight", rate(timings[server]), "frames/s",
                  rates[limit_is], limit_is, case.target,
                  {"MB/s": rate(timings[server]) * frame_bytes / MB,
                   "p50 ms": statistics.median(figures.p50_ms for figures in found[server]),
                   "p99 ms": statistics.median(figures.p99_ms for figures in found[server])})  # fmt: skip


def _peer(bench: Bench, *, sync_always: bool) -> Result:
    case = CASES[0]
    with jetstream.running(bench.directory, sync_always=sync_always) as port:
        publisher = jetstream.Publisher(port)
        timing = publisher.publish(bytes(case.frame_bytes), window=case.window, seconds=bench.scale(3, 1))
        publisher.close()
    mode = "sync_interval: always" if sync_always else "as it comes: answered before the sync"
    return Result("ingest", f"NATS JetStream, {case.name}, {case.window} in flight, {mode}", timing.rate, "messages/s")


# -- processes ------------------------------------------------------------------------------------------------------


@contextmanager
def _holdfast(directory: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "holdfast.cli.main", "serve", "--data", str(directory)]
    options = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    with subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT
    ) as server:
        assert server.stdout is not None
        ready = dict(word.split("=", 1) for word in server.stdout.readline().split()[2:])
        yield f"{ready['data']}/api/v4/write"
        server.terminate()


@contextmanager
def _bare_sockets() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.bare_sockets"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        assert server.stdout is not None
        yield f"ws://127.0.0.1:{server.stdout.readline().strip()}/"
        server.terminate()


def _produce(load: Load, into: list[Figures]) -> Timing:
    done = subprocess.run(
        [sys.executable, "-m", "bench.ingest_load", msgspec.json.encode(load).decode()],
        capture_output=True, cwd=ROOT, check=True, timeout=60 + load.seconds,
    )  # fmt: skip
    figures = msgspec.json.decode(done.stdout, type=Figures)
    into.append(figures)
    return Timing(figures.frames, figures.seconds)
