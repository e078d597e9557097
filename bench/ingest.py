"""Frames over WebSocket into the store, each answered after its sync: the whole server, with a producer beside it.

The limits, measured in the same turns: a bare picows server that only answers (the sockets), and the bare disk writing
as many bytes into files that stay, eight megabytes or a window per sync, as the group commit does. Then the small
frames in turns with NATS JetStream, if it is there, as it comes and with `sync_interval: always`, which is what an OK
of ours means. JetStream gets messages of 1 KiB; what is in them is nothing to it.

Small frames come in two kinds. A producer whose strings are all equally long sends frames of one layout, which are
recognised and joined without Arrow. With "lengths differ" they are from half to one and a half times as long, no two
frames in a row have one layout, and each is read by Arrow. Both have as many bytes in the mean.

A rate depends on what else the machine does; the processor time of the server per frame depends on it least, and stands
beside each rate.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import msgspec

from bench import jetstream
from bench.figures import Result, Target
from bench.ingest_load import Figures, Load
from bench.served import Served, serving
from bench.workload import MB, MIB, ROOT, Bench, Budget, Timing, bare_disk, in_turns, rate

PATH = "/api/v4/write"
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
    layouts: int = 1
    """Frames that take turns; with more than one the lengths of their strings differ."""


SMALL = Target(20_000)
HALF = Target(0.5, of_ratio=True)
FIVE_TIMES = Target(5, of_ratio=True)
ALIKE = Case("1 KiB", 1024, 1024, 1, SMALL)
DIFFERENT = Case("1 KiB, lengths differ", 1024, 1024, 1, layouts=1000)
CASES = [
    ALIKE,
    Case("1 KiB", 1024, 1024, 16),
    DIFFERENT,
    Case("64 KiB", 64 << 10, 64, 1),
    Case("64 KiB", 64 << 10, 64, 16),
    Case("256 KiB", 256 << 10, 32, 1, HALF),
    Case("256 KiB", 256 << 10, 32, 16, HALF),
    Case("1 MiB", MIB, 16, 1),
    Case("1 MiB", MIB, 16, 16),
]


def run(bench: Bench) -> list[Result]:
    """One figure per size and number of connections, then the small ones beside their peer."""
    with serving(bench.directory / "ingest") as server, _bare_sockets() as sockets:
        results = [_measure(bench, case, server, sockets) for case in CASES]
        if jetstream.is_installed():
            results += [_beside_peer(bench, server, ALIKE, sync_always=False),
                        _beside_peer(bench, server, ALIKE, sync_always=True, target=FIVE_TIMES),
                        _beside_peer(bench, server, DIFFERENT, sync_always=True)]  # fmt: skip
    return results


def _measure(bench: Bench, case: Case, server: Served, sockets: Served) -> Result:
    seconds = bench.scale(3, 1)
    found: dict[Served, list[Figures]] = {server: [], sockets: []}
    per_sync = min(GROUP_BYTES, case.frame_bytes * case.window)
    timings = in_turns(
        {
            "disk": partial(bare_disk, bench.directory, os.urandom(per_sync), Budget(seconds / 2), keep=True),
            "ours": partial(_produce, case, server, seconds, found[server]),
            "sockets": partial(_produce, case, sockets, seconds, found[sockets]),
        },
        rounds=bench.rounds(3),
    )
    frame_bytes = found[server][0].frame_bytes
    rates = {"bare disk": rate(timings["disk"]) * per_sync / frame_bytes, "bare picows": rate(timings["sockets"])}
    limit_is = min(rates, key=rates.__getitem__)
    other = max(rates, key=rates.__getitem__)
    also = {"MB/s": rate(timings["ours"]) * frame_bytes / MB, **_costs(found[server]), other: rates[other]}
    return Result("ingest", _title(case), rate(timings["ours"]), "frames/s",
                  rates[limit_is], limit_is, case.target, also)  # fmt: skip


def _title(case: Case) -> str:
    many = f"{case.connections} connection{'s' if case.connections > 1 else ''}"
    return f"{case.name}, {many}, {case.window} in flight"


def _costs(found: list[Figures]) -> dict[str, float | str]:
    frames = sum(sent.frames for sent in found)
    return {
        "p50 ms": statistics.median(sent.p50_ms for sent in found),
        "p99 ms": statistics.median(sent.p99_ms for sent in found),
        "server CPU us/frame": sum(sent.server_cpu_s for sent in found) / frames * 1e6,
    }


def _beside_peer(
    bench: Bench, server: Served, case: Case, *, sync_always: bool, target: Target | None = None
) -> Result:
    """Ours with the peer as its limit, in turns."""
    seconds = bench.scale(3, 1)
    found: list[Figures] = []
    with jetstream.running(bench.directory, sync_always=sync_always) as port:
        publisher = jetstream.Publisher(port)
        publish = partial(publisher.publish, bytes(case.frame_bytes), window=case.window, seconds=seconds)
        timings = in_turns(
            {"peer": publish, "ours": partial(_produce, case, server, seconds, found)}, rounds=bench.rounds(3)
        )
        publisher.close()
    mode = "sync_interval: always" if sync_always else "answers before it syncs"
    return Result("ingest", f"{_title(case)}, beside its peer", rate(timings["ours"]), "frames/s",
                  rate(timings["peer"]), f"NATS JetStream, {mode}", target, _costs(found))  # fmt: skip


# -- processes ------------------------------------------------------------------------------------------------------


@contextmanager
def _bare_sockets() -> Iterator[Served]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.bare_sockets"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as server:
        assert server.stdout is not None
        yield Served(f"ws://127.0.0.1:{server.stdout.readline().strip()}", server.pid)
        server.terminate()


def _produce(case: Case, server: Served, seconds: float, into: list[Figures]) -> Timing:
    into.append(producing(case, server, seconds))
    return Timing(into[-1].frames, into[-1].seconds)


def producing(case: Case, server: Served, seconds: float) -> Figures:
    """Producers in a process of their own, for so long."""
    per_connection = max(1, case.window // case.connections)
    load = Load(f"{server.url}{PATH}", case.frame_bytes, per_connection, case.connections, seconds, server.pid,
                case.layouts)  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "bench.ingest_load", msgspec.json.encode(load).decode()],
        stdout=subprocess.PIPE, cwd=ROOT, check=True, timeout=60 + load.seconds,
    )  # fmt: skip
    return msgspec.json.decode(done.stdout, type=Figures)
