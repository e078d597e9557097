"""A sender on its own, and a sender with a real server: how long a hand-over takes, and how much gets through.

The server is `holdfast serve` in a process of its own, on the same disk; every answer means that the events are synced.
Two clients take turns with ours, if they are installed. That of QuestDB sends the same rows to the same server: a row
and a flush, rows in a loop, which is how it hands over without waiting, and tables, for whose commit it waits and which
therefore stand beside what was accepted. That of NATS publishes small messages to JetStream, as it comes, which answers
before it syncs. Of a latency a ratio above 1 is slower than the limit.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import pyarrow as pa

from bench import jetstream, questdb_client
from bench.figures import Result, Target
from bench.served import serving
from bench.workload import MB, Bench, Budget, Timing, bare_disk, in_turns, joined, one_caller, rate
from holdfast.model.frame import Entry
from holdfast.sender.encoding import ArrowEncoder
from holdfast.sender.sender import Sender

ROW = {"id": 1, "value": 2.5, "source": "sensor-0000001", "ok": True, "count": 7}
FRAME_BYTES = 256 << 10
MESSAGE_BYTES = 1 << 10
MESSAGES = 1_000
"""What a sender makes one frame of by itself (`auto_flush_rows`)."""
TABLE_ROWS = 500_000
TABLE_ROW = {"a": 1, "b": 0.5, "c": 1, "d": 1}
"""One of its rows."""
WINDOW = 4_000
"""Messages of nats-py on their way: its own default."""
PATIENCE_S = 120.0
MODES = ("memory", "slot")


def run(bench: Bench) -> list[Result]:
    """All cases, in memory and with a slot."""
    with serving(bench.directory / "sender-data") as server:
        address = server.address
        return [
            *_latencies(bench, address),
            *_throughput(bench, address),
            *_replay(bench, address),
        ]


def _sender(address: str, bench: Bench, mode: str) -> Sender:
    keys: dict[str, object] = {"addr": address, "auto_flush": False, "close_flush_timeout_millis": 120_000}
    if mode != "memory":
        keys |= {"sf_dir": str(bench.directory / "slots"), "sender_id": mode.replace("+", "-")}
    if mode == "slot+flush":
        keys["sf_durability"] = "flush"
    return Sender(**keys)  # type: ignore[arg-type]


def _slots(bench: Bench, mode: str) -> Path | None:
    return bench.directory / "slots" if mode == "slot" else None


# --- latency --------------------------------------------------------------------------------------------------------

FLUSH_TARGETS = {"memory": Target(50, at_least=False), "slot": Target(50, at_least=False), "slot+flush": None}
HAND_OVER_TARGETS = {"memory": Target(10, at_least=False), "slot": Target(20, at_least=False)}


def _latencies(bench: Bench, address: str) -> Iterator[Result]:
    for mode, target in FLUSH_TARGETS.items():
        yield from _flush_latencies(bench, address, mode, target)
    budget = Budget(bench.scale(2, 0.5), 20_000)
    for mode, hand_over_target in HAND_OVER_TARGETS.items():
        with _sender(address, bench, mode) as sender:
            encoder = ArrowEncoder(sender._ring.slot_id)
            parts = encoder.encode([Entry("rows", pa.RecordBatch.from_pylist([ROW]))])
            append = partial(sender._ring.append, parts, encoder.stamp)
            one_caller(append, Budget(0.2, 500))
            yield _latency(f"hand-over of an encoded frame, {mode}", one_caller(append, budget), hand_over_target)


def _flush_latencies(bench: Bench, address: str, mode: str, target: Target | None) -> Iterator[Result]:
    rounds = bench.rounds(3)
    budget, warm = Budget(bench.scale(2, 0.5) / rounds, 20_000 // rounds), Budget(0.2, 500)
    flushes: list[Timing] = []
    with ExitStack() as stack:
        sender = stack.enter_context(_sender(address, bench, mode))
        _flushes(sender, warm, [])
        ways: dict[str, Callable[[], Timing]] = {"ours": partial(_flushes, sender, budget, flushes)}
        if questdb_client.is_installed() and mode in MODES:
            client = stack.enter_context(questdb_client.opened(address, _slots(bench, mode)))
            questdb_client.flush_one(client, ROW, warm)
            ways["peer"] = partial(questdb_client.flush_one, client, ROW, budget)
        timings = in_turns(ways, rounds=rounds)
    peer = joined(timings["peer"]) if "peer" in timings else None
    yield _latency(f"flush of one row, {mode}", joined(flushes), target)
    yield _latency(f"send + flush of one row, {mode}", joined(timings["ours"]), peer=peer)


def _flushes(sender: Sender, budget: Budget, into: list[Timing]) -> Timing:
    """A row at a time, `send` and `flush` together; into the list how long `flush` took, which encodes it."""
    flushes: list[float] = []

    def flush_one() -> None:
        sender.send("rows", ROW)
        started = time.perf_counter()
        sender.flush()
        flushes.append(time.perf_counter() - started)

    both = one_caller(flush_one, budget)
    into.append(Timing(both.calls, sum(flushes), flushes))
    assert sender.drain(PATIENCE_S)  # whose turn is next has the server for itself
    return both


def _latency(case: str, timing: Timing, target: Target | None = None, peer: Timing | None = None) -> Result:
    p50, p99 = _percentiles_us(timing)
    also: dict[str, float | str] = {"p99 us": p99, "calls": len(timing.latencies_s)}
    if peer is None:
        return Result("sender", case, p50, "us (p50)", target=target, also=also)
    peer_p50, also["QuestDB's p99 us"] = _percentiles_us(peer)
    return Result("sender", case, p50, "us (p50)", peer_p50, "QuestDB's client, row() and flush()", target, also)


def _percentiles_us(timing: Timing) -> tuple[float, float]:
    ordered = sorted(timing.latencies_s)
    p50, p99 = (1e6 * ordered[int(len(ordered) * part)] for part in (0.5, 0.99))
    return p50, p99


# --- throughput -----------------------------------------------------------------------------------------------------


class Pumped(NamedTuple):
    """What a sender did in one turn."""

    timing: Timing
    """Of the calls, until the last was accepted."""
    handed_rate: float
    """Calls per second that were handed over."""
    cpu_s: float
    """Of the sender, for each call."""


def _throughput(bench: Bench, address: str) -> Iterator[Result]:
    disk = bare_disk(bench.directory, os.urandom(FRAME_BYTES * 4), Budget(bench.scale(1.5, 0.5)), keep=True)
    disk_mb_s = disk.rate * FRAME_BYTES * 4 / MB
    frame = pa.record_batch({"body": [os.urandom(FRAME_BYTES - 512)]})
    one = pa.record_batch({"body": [os.urandom(MESSAGE_BYTES)]})
    seconds = bench.scale(3, 1)
    for mode in MODES:
        yield from _tables(bench, address, mode)
        pumped = _pump(bench, address, mode, frame, to="frames", seconds=seconds)
        yield Result("sender", f"256 KiB frames, synced by the server, {mode}", pumped.timing.rate * FRAME_BYTES / MB,
                     "MB/s", disk_mb_s, "bare disk, 1 MiB per sync", Target(0.5, of_ratio=True),
                     {"sender's ms/MB": pumped.cpu_s / (FRAME_BYTES / MB) * 1e3})  # fmt: skip
        yield from _messages(bench, address, mode, disk_mb_s)
        pumped = _pump(bench, address, mode, one, to="messages", seconds=seconds)
        yield Result("sender", f"one 1 KiB message per frame, {mode}", pumped.timing.rate, "messages/s",
                     target=Target(20_000), also={"sender's us/frame": pumped.cpu_s * 1e6})  # fmt: skip


def _tables(bench: Bench, address: str, mode: str) -> Iterator[Result]:
    """Rows of a table, beside both ways that QuestDB's client has."""
    table = pa.table({"a": range(TABLE_ROWS), "b": [0.5] * TABLE_ROWS, "c": range(TABLE_ROWS), "d": range(TABLE_ROWS)})
    rounds, seconds = bench.rounds(3), bench.scale(1, 1)
    pumped: list[Pumped] = []
    accepted: list[float] = []

    def ours() -> Timing:
        pumped.append(_pump(bench, address, mode, table, to="tables", seconds=seconds))
        return pumped[-1].timing

    def rows_of_theirs() -> Timing:
        with questdb_client.opened(address, _slots(bench, mode)) as client:
            timing, accepted_rate = questdb_client.hand_over_rows(client, TABLE_ROW, Budget(seconds))
        accepted.append(accepted_rate)
        return timing

    ways: dict[str, Callable[[], Timing]] = {"ours": ours}
    if questdb_client.is_installed():
        ways["rows"] = rows_of_theirs
        if mode == "memory":  # with a slot it is the same
            ways["tables"] = partial(questdb_client.send_tables, address, table, Budget(seconds))
    timings = in_turns(ways, rounds=rounds)
    limits = {name: rate(timings[name]) if name in timings else None for name in ("rows", "tables")}
    yield Result("sender", f"rows of a table handed over, {mode}", median(p.handed_rate for p in pumped) * TABLE_ROWS,
                 "rows/s", limits["rows"], "QuestDB's client, row()" if limits["rows"] else "", Target(5e6),
                 {"QuestDB's accepted rows/s": median(accepted)} if accepted else {})  # fmt: skip
    yield Result("sender", f"rows of a table accepted, {mode}", rate(timings["ours"]) * TABLE_ROWS, "rows/s",
                 limits["tables"], "QuestDB's client, dataframe()" if limits["tables"] else "")  # fmt: skip


def _messages(bench: Bench, address: str, mode: str, disk_mb_s: float) -> Iterator[Result]:
    """Small messages that the client makes batches of, beside the disk, and in memory beside nats-py."""
    messages = pa.record_batch({"body": [os.urandom(MESSAGE_BYTES) for _ in range(MESSAGES)]})
    seconds = bench.scale(2, 1)
    pumped: list[Pumped] = []

    def ours() -> Timing:
        pumped.append(_pump(bench, address, mode, messages, to="batches", seconds=seconds))
        return pumped[-1].timing

    ways: dict[str, Callable[[], Timing]] = {"ours": ours}
    with ExitStack() as stack:
        if jetstream.has_client() and mode == "memory":
            port = stack.enter_context(jetstream.running(bench.directory, sync_always=False))
            ways["peer"] = partial(jetstream.publish_by_client, port, os.urandom(MESSAGE_BYTES),
                                   window=WINDOW, seconds=bench.scale(1, 0.5))  # fmt: skip
        timings = in_turns(ways, rounds=bench.rounds(3) if "peer" in ways else 1)
    case, found = f"1 KiB messages in batches of {MESSAGES}, {mode}", rate(timings["ours"]) * MESSAGES
    megabytes = MESSAGES * MESSAGE_BYTES / MB
    yield Result("sender", case, found, "messages/s", disk_mb_s * MB / MESSAGE_BYTES, "bare disk",
                 Target(500_000) if mode == "memory" else None,
                 {"sender's ms/MB": median(p.cpu_s for p in pumped) / megabytes * 1e3})  # fmt: skip
    if "peer" in timings:
        yield Result("sender", f"{case}, beside its peer", found, "messages/s", rate(timings["peer"]),
                     f"nats-py, publish_async, {WINDOW} in flight; JetStream answers before it syncs")  # fmt: skip


def _pump(bench: Bench, address: str, mode: str, data: object, *, to: str, seconds: float) -> Pumped:
    """Calls one behind the other, until all are accepted."""
    with _sender(address, bench, mode) as sender:

        def call() -> None:
            sender.send(to, data)
            sender.flush()

        started, cpu_started = time.perf_counter(), time.process_time()
        handed = one_caller(call, Budget(seconds))
        assert sender.drain(PATIENCE_S)
        took, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
    return Pumped(Timing(handed.calls, took), handed.rate, cpu_s / handed.calls)


# --- after an outage ------------------------------------------------------------------------------------------------


def _replay(bench: Bench, address: str) -> Iterator[Result]:
    """A slot that filled while no server was there, opened again and sent."""
    for name, size, total in (("64 KiB", 64 << 10, 256 << 20), ("1 KiB", 1 << 10, 16 << 20)):
        frames = int(bench.scale(total, total / 4)) // size
        keys: dict[str, object] = {"sf_dir": str(bench.directory / "slots"), "sender_id": "replay"}
        keys |= {"auto_flush": False, "close_flush_timeout_millis": 0}
        batch = pa.record_batch({"body": [os.urandom(size - 512)]})
        away = Sender(addr="127.0.0.1:1", initial_connect_retry="async", **keys)  # type: ignore[arg-type]
        for _ in range(frames):
            away.send("replayed", batch)
            away.flush()
        away.close()
        started, cpu_started = time.perf_counter(), time.process_time()
        with Sender(addr=address, **keys) as sender:  # type: ignore[arg-type]
            assert sender.drain(PATIENCE_S)
        took, cpu_s = time.perf_counter() - started, time.process_time() - cpu_started
        megabytes = frames * size / MB
        yield Result("sender", f"replay of a slot, {name} frames", megabytes / took, "MB/s",
                     also={"frames/s": frames / took, "sender's ms/MB": cpu_s / megabytes * 1e3})  # fmt: skip
