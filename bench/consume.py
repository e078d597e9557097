"""Messages of 128 bytes from the server to consumers that acknowledge them: one by one, in batches, to many, and live.

The whole server and the SDK, each in a process of its own. Acknowledgements are durable: a time ends when the server
has answered for the last one. Beside one by one stands NATS JetStream with its Python client, which fetches 500 at a
time and acknowledges each, if it is installed. Its acknowledgements are not synced.
"""

from __future__ import annotations

import subprocess
import sys
from itertools import count

import msgspec

from bench import jetstream
from bench.consume_load import Figures, Load
from bench.figures import Result, Target
from bench.served import Served, serving
from bench.workload import MB, ROOT, Bench, Timing, in_turns, latencies, rate

FAN_OUT = 50
HUNDRED_THOUSAND = Target(100_000)
NAMES = count(1)


def run(bench: Bench) -> list[Result]:
    """All cases on one server with one backlog."""
    events = int(bench.scale(200, 50)) * 1000
    with serving(bench.directory / "consume") as server:
        _consume(Load("fill", server.address, events))
        return [
            _one_by_one(bench, server, events),
            _batches(bench, server, events),
            _fan_out(bench, server, events // 5),
            _tail(bench, server),
        ]


def _one_by_one(bench: Bench, server: Served, events: int) -> Result:
    before_s, rounds = server.cpu_s(), bench.rounds(3)
    ways = {"ours": lambda: _consume(Load("messages", server.address, events, name=_name()))}
    peer = jetstream.has_client()
    if peer:
        ways["peer"] = lambda: _peer(bench, min(events, 50_000))
    timings = in_turns(ways, rounds=rounds)
    also: dict[str, float | str] = {"server CPU us/message": (server.cpu_s() - before_s) / (events * rounds) * 1e6}
    limit = rate(timings["peer"]) if peer else None
    return Result("consume", "deliver and ack, one by one", rate(timings["ours"]), "messages/s", limit,
                  "nats-py, fetch and ack" if peer else "", HUNDRED_THOUSAND, also)  # fmt: skip


def _batches(bench: Bench, server: Served, events: int) -> Result:
    sizes: list[Figures] = []

    def once() -> Timing:
        return _consume(Load("batches", server.address, events, name=_name(), batch_rows=16_384), sizes)

    found = rate(in_turns({"ours": once}, rounds=bench.rounds(3))["ours"])
    per_event = sizes[0].bytes / sizes[0].events
    return Result("consume", "deliver and ack, in batches", found * per_event / MB, "MB/s", also={"messages/s": found})


def _fan_out(bench: Bench, server: Served, events: int) -> Result:
    sizes: list[Figures] = []
    before_s, rounds = server.cpu_s(), bench.rounds(3)

    def once() -> Timing:
        load = Load("batches", server.address, events, consumers=FAN_OUT, name=_name())
        return _consume(load, sizes)

    found = rate(in_turns({"ours": once}, rounds=rounds)["ours"])
    megabytes = sizes[0].bytes / sizes[0].events * found / MB
    cpu_us = (server.cpu_s() - before_s) / (events * FAN_OUT * rounds) * 1e6
    return Result("consume", f"fan-out to {FAN_OUT} durables, in batches", found, "messages/s",
                  also={"MB/s": megabytes, "server CPU us/message": cpu_us})  # fmt: skip


def _tail(bench: Bench, server: Served) -> Result:
    timing = _consume(Load("tail", server.address, int(bench.scale(2000, 500))))
    found = latencies([timing])
    p50_ms = float(found.pop("p50 ms"))
    return Result("consume", "tail: producer's flush to consumer, p50", p50_ms, "ms", also=found)


def _name() -> str:
    return f"bench-{next(NAMES)}"


# -- processes ------------------------------------------------------------------------------------------------------


def _consume(load: Load, into: list[Figures] | None = None) -> Timing:
    found = consuming(load)
    if into is not None:
        into.append(found)
    return Timing(found.events, found.seconds, found.latencies_s)


def consuming(load: Load) -> Figures:
    """Consumers in a process of their own, until they have everything."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.consume_load", msgspec.json.encode(load).decode()],
        stdout=subprocess.PIPE, cwd=ROOT, check=True, timeout=180,
    )  # fmt: skip
    return msgspec.json.decode(done.stdout, type=Figures)


def _peer(bench: Bench, events: int) -> Timing:
    with jetstream.running(bench.directory, sync_always=False) as port:
        found = consuming(Load("jetstream", f"127.0.0.1:{port}", events))
    return Timing(found.events, found.seconds)
