"""OTAP logs into a graph, and how fast batches are read, decoded, encoded and written; OTLP's decoding beside it.

Batches are made before the clock starts, as another process would make them. Rates of pieces are per second of one
core; the stream shares the machine with its client.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from queue import SimpleQueue

import grpc  # type: ignore[import-untyped]
import psutil
import pyarrow as pa

from bench.figures import Result
from bench.otlp import request
from bench.workload import Bench, Budget
from holdfast.wire.otap.decode import decode
from holdfast.wire.otap.encode import encode
from holdfast.wire.otap.limits import Limits
from holdfast.wire.otap.messages import path, read_batch
from holdfast.wire.otap.reading import StreamReader
from holdfast.wire.otap.writing import StreamWriter
from holdfast.wire.otlp.check import check
from holdfast.wire.otlp.decode import decode_rows
from holdfast.wire.otlp.signals import Signal

LIMITS = Limits(20 << 20)
SIZES = {"512 logs": 1, "8192 logs": 16}
"""Requests of 512 logs that make a batch."""
WINDOW = 16
"""Batches in flight."""
_GRAPH = """
nodes:
  receiver:
    kind: receiver
    plugin_urn: "urn:otel:otap:receiver"
    out_ports: {out: {destinations: [store]}}
    config: {listening_addr: "127.0.0.1:0", payload: columns}
  store:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {out: {destinations: [drop]}}
    config: {path: ./data, wal: {max_size: 4GB}, memory_limit: 256MiB}
  drop: {kind: exporter, plugin_urn: console, config: {rows: 0}}
"""


def run(bench: Bench) -> list[Result]:
    """The pieces, then a graph."""
    return [*_pieces(bench), *_stream(bench)]


def _pieces(bench: Bench) -> Iterator[Result]:
    budget = Budget(bench.scale(3, 1))
    body = request()
    for name, requests in SIZES.items():
        bodies = pa.array([body] * requests, pa.binary())
        rows = decode_rows(Signal.LOGS, bodies)
        tables = encode(Signal.LOGS, rows)
        writer, reader = StreamWriter(Signal.LOGS), StreamReader(Signal.LOGS, LIMITS)
        first, again = (writer.write(tables)[1] for _ in range(2))
        reader.read(read_batch(first))

        def open_batch(reader: StreamReader = reader, again: bytes = again) -> None:
            decode(Signal.LOGS, reader.read(read_batch(again)), LIMITS)

        def write_batch(rows: pa.RecordBatch = rows, writer: StreamWriter = writer) -> None:
            writer.write(encode(Signal.LOGS, rows))

        def open_requests(bodies: pa.Array = bodies, requests: int = requests) -> None:
            for _ in range(requests):
                check(Signal.LOGS, body)
            decode_rows(Signal.LOGS, bodies)

        cases = {
            "read and decode": open_batch,
            "encode and write": write_batch,
            "OTLP: check and decode": open_requests,
        }
        for case, call in cases.items():
            yield Result("otap", f"{case}, {name}", _rate(call, budget) * rows.num_rows, "logs/s of one core")


def _rate(call: object, budget: Budget) -> float:
    """Calls for each second of processor time."""
    assert callable(call)
    call()
    started, cpu, calls = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - started < budget.seconds:
        call()
        calls += 1
    return calls / (time.process_time() - cpu)


def _stream(bench: Bench) -> Iterator[Result]:
    directory = bench.directory / "otap"
    directory.mkdir()
    file = directory / "graph.yaml"
    file.write_text(_GRAPH, encoding="utf-8")
    command = [sys.executable, "-m", "holdfast.cli.main", "pipeline", "run", str(file)]
    with (directory / "stderr").open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("holdfast ready "), (directory / "stderr").read_text()
    draining = subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)
    process.stdout.close()
    try:
        address = dict(word.split("=", 1) for word in line.split()[2:])["receiver.grpc"]
        for name in SIZES:
            yield _sent(address, psutil.Process(process.pid), name, Budget(bench.scale(6, 2)))
    finally:
        process.terminate()
        process.wait()
        draining.wait()


def _sent(address: str, server: psutil.Process, name: str, budget: Budget) -> Result:
    rows = decode_rows(Signal.LOGS, pa.array([request()] * SIZES[name], pa.binary()))
    writer, tables = StreamWriter(Signal.LOGS), encode(Signal.LOGS, rows)
    outbox: SimpleQueue[bytes | None] = SimpleQueue()
    before, batches = server.cpu_times(), 0
    with grpc.insecure_channel(address) as channel:
        statuses = channel.stream_stream(path(Signal.LOGS))(iter(outbox.get, None))
        outbox.put(writer.write(tables)[1])
        next(statuses)
        ready = deque(writer.write(tables)[1] for _ in range(2 * WINDOW))
        for _ in range(WINDOW):
            outbox.put(ready.popleft())
        started = time.perf_counter()
        while time.perf_counter() - started < budget.seconds:
            next(statuses)
            batches += 1
            ready.append(writer.write(tables)[1])
            outbox.put(ready.popleft())
        seconds = time.perf_counter() - started
        outbox.put(None)
    after = server.cpu_times()
    cpu_s = after.user + after.system - before.user - before.system
    logs = batches * rows.num_rows
    return Result(
        "otap",
        f"logs, columns, {name} in a batch",
        logs / seconds,
        "logs/s",
        also={"CPU s per million": cpu_s / logs * 1e6},
    )
