"""A sender on its own, and a sender with a real server: how long a hand-over takes, and how much gets through.

The server is `holdfast serve` in a process of its own, on the same disk; every answer means that the events are synced.
The client of QuestDB, if it is installed, does the same with the same server in the same run.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pyarrow as pa

from bench.figures import Result, Target
from bench.served import serving
from bench.workload import MB, Bench, Budget, Timing, bare_disk, one_caller
from holdfast.model.frame import Entry
from holdfast.sender.encoding import ArrowEncoder
from holdfast.sender.sender import Sender

ROW = {"id": 1, "value": 2.5, "source": "sensor-0000001", "ok": True, "count": 7}
FRAME_BYTES = 256 << 10
MESSAGE_BYTES = 1 << 10
MESSAGES = 1_000
"""What a sender makes one frame of by itself (`auto_flush_rows`)."""
TABLE_ROWS = 500_000
PATIENCE_S = 120.0


def run(bench: Bench) -> list[Result]:
    """All cases, in memory and with a slot."""
    with serving(bench.directory / "sender-data") as server:
        address = server.address
        return [
            *_latencies(bench, address),
            *_throughput(bench, address),
            *_replay(bench, address),
            *(_peer(bench, address) if find_spec("questdb") is not None else ()),
        ]


def _sender(address: str, bench: Bench, mode: str) -> Sender:
    keys: dict[str, object] = {"addr": address, "auto_flush": False, "close_flush_timeout_millis": 120_000}
    if mode != "memory":
        keys |= {"sf_dir": str(bench.directory / "slots"), "sender_id": mode.replace("+", "-")}
    if mode == "slot+flush":
        keys["sf_durability"] = "flush"
    return Sender(**keys)  # type: ignore[arg-type]


# --- latency --------------------------------------------------------------------------------------------------------

FLUSH_TARGETS = {"memory": Target(50, at_least=False), "slot": Target(50, at_least=False), "slot+flush": None}
HAND_OVER_TARGETS = {"memory": Target(10, at_least=False), "slot": Target(20, at_least=False)}


def _latencies(bench: Bench, address: str) -> Iterator[Result]:
    budget = Budget(bench.scale(2, 0.5), 20_000)
    for mode, target in FLUSH_TARGETS.items():
        with _sender(address, bench, mode) as sender:
            timings = _flushes(sender, Budget(0.2, 500)) and _flushes(sender, budget)
            for call, timing in timings.items():
                yield _latency(f"{call} of one row, {mode}", timing, target if call == "flush" else None)
    for mode, hand_over_target in HAND_OVER_TARGETS.items():
        with _sender(address, bench, mode) as sender:
            encoder = ArrowEncoder(sender._ring.slot_id)
            parts = encoder.encode([Entry("rows", pa.RecordBatch.from_pylist([ROW]))])
            append = partial(sender._ring.append, parts, encoder.stamp)
            one_caller(append, Budget(0.2, 500))
            yield _latency(f"hand-over of an encoded frame, {mode}", one_caller(append, budget), hand_over_target)


def _flushes(sender: Sender, budget: Budget) -> dict[str, Timing]:
    """A row at a time: how long `flush` took, which encodes it, and `send` and `flush` together."""
    flushes: list[float] = []

    def flush_one() -> None:
        sender.send("rows", ROW)
        started = time.perf_counter()
        sender.flush()
        flushes.append(time.perf_counter() - started)

    both = one_caller(flush_one, budget)
    return {"flush": Timing(both.calls, sum(flushes), flushes), "send + flush": both}


def _latency(case: str, timing: Timing, target: Target | None) -> Result:
    ordered = sorted(timing.latencies_s)
    p50, p99 = (1e6 * ordered[int(len(ordered) * part)] for part in (0.5, 0.99))
    return Result("sender", case, p50, "us (p50)", target=target, also={"p99 us": p99, "calls": len(ordered)})


# --- throughput -----------------------------------------------------------------------------------------------------


def _throughput(bench: Bench, address: str) -> Iterator[Result]:
    disk = bare_disk(bench.directory, os.urandom(FRAME_BYTES * 4), Budget(bench.scale(1.5, 0.5)), keep=True)
    disk_mb_s = disk.rate * FRAME_BYTES * 4 / MB
    table = pa.table({"a": range(TABLE_ROWS), "b": [0.5] * TABLE_ROWS, "c": range(TABLE_ROWS), "d": range(TABLE_ROWS)})
    frame = pa.record_batch({"body": [os.urandom(FRAME_BYTES - 512)]})
    messages = pa.record_batch({"body": [os.urandom(MESSAGE_BYTES) for _ in range(MESSAGES)]})
    one = pa.record_batch({"body": [os.urandom(MESSAGE_BYTES)]})
    for mode in ("memory", "slot"):
        handed, accepted, _ = _pump(bench, address, mode, table, to="tables")
        yield Result("sender", f"rows of a table handed over, {mode}", handed * TABLE_ROWS, "rows/s",
                     target=Target(5e6), also={"accepted rows/s": accepted * TABLE_ROWS})  # fmt: skip
        _, accepted, cpu_s = _pump(bench, address, mode, frame, to="frames")
        yield Result("sender", f"256 KiB frames, synced by the server, {mode}", accepted * FRAME_BYTES / MB, "MB/s",
                     disk_mb_s, "bare disk, 1 MiB per sync", Target(0.5, of_ratio=True),
                     {"sender's ms/MB": cpu_s / (FRAME_BYTES / MB) * 1e3})  # fmt: skip
        _, accepted, cpu_s = _pump(bench, address, mode, messages, to="batches")
        yield Result("sender", f"1 KiB messages in batches of {MESSAGES}, {mode}", accepted * MESSAGES, "messages/s",
                     disk_mb_s * MB / MESSAGE_BYTES, "bare disk", Target(500_000) if mode == "memory" else None,
                     {"sender's ms/MB": cpu_s / (MESSAGES * MESSAGE_BYTES / MB) * 1e3})  # fmt: skip
        _, accepted, cpu_s = _pump(bench, address, mode, one, to="messages")
        yield Result("sender", f"one 1 KiB message per frame, {mode}", accepted, "messages/s",
                     target=Target(20_000), also={"sender's us/frame": cpu_s * 1e6})  # fmt: skip


def _pump(bench: Bench, address: str, mode: str, data: object, *, to: str) -> tuple[float, float, float]:
    """Calls per second that were handed over, and that were accepted; processor seconds of the sender for each."""
    with _sender(address, bench, mode) as sender:

        def call() -> None:
            sender.send(to, data)
            sender.flush()

        started, cpu_started = time.perf_counter(), time.process_time()
        timing = one_caller(call, Budget(bench.scale(3, 1)))
        handed = timing.rate
        assert sender.drain(PATIENCE_S)
        cpu_s = time.process_time() - cpu_started
        return handed, timing.calls / (time.perf_counter() - started), cpu_s / timing.calls


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


# --- the client of QuestDB ------------------------------------------------------------------------------------------


def _peer(bench: Bench, address: str) -> Iterator[Result]:
    for mode in ("memory", "slot"):
        with _questdb(bench, address, mode) as client:
            one_caller(partial(_flush_rows, client, 1), Budget(0.2, 500))
            timing = one_caller(partial(_flush_rows, client, 1), Budget(bench.scale(2, 0.5), 20_000))
            yield _latency(f"QuestDB's client: row and flush, {mode}", timing, None)
        with _questdb(bench, address, mode) as client:
            started = time.perf_counter()
            timing = one_caller(partial(_flush_rows, client, MESSAGES), Budget(bench.scale(3, 1)))
        accepted = timing.calls * MESSAGES / (time.perf_counter() - started)
        yield Result("sender", f"QuestDB's client: rows handed over, {mode}", timing.rate * MESSAGES, "rows/s",
                     also={"accepted rows/s": accepted})  # fmt: skip


@contextmanager
def _questdb(bench: Bench, address: str, mode: str) -> Iterator[Any]:
    """Their client; everything is accepted when the block has ended."""
    slot = f"sf_dir={bench.directory / 'slots'};sender_id=questdb;" if mode == "slot" else ""
    conf = f"ws::addr={address};auto_flush=off;close_flush_timeout_millis=60000;{slot}"
    client = import_module("questdb").Sender.from_conf(conf)
    client.establish()
    try:
        yield client
    finally:
        client.close()


def _flush_rows(client: Any, rows: int) -> None:
    at = import_module("questdb").TimestampNanos(1_700_000_000_000_000_000)
    for _ in range(rows):
        client.row("questdb", symbols={"source": "sensor-0000001"}, columns={"id": 1, "value": 2.5}, at=at)
    client.flush()
