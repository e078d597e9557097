"""OTLP logs into a graph: accepted after the sync, kept as requests or as columns; and how fast requests are decoded.

The client sends ready-made requests over gRPC, a window in flight, and shares the machine with the server; so the
processor time of the server per million logs stands beside each rate. The limit of the durable cases is the same graph
without its persistence node: the receiver, and an exporter that drops everything.

With several cores the client has as many connections as they have together, since the kernel gives whole connections
to cores; on a machine of two cores the client takes its part of them, so that more cores cannot be twice as fast there.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import psutil
import pyarrow as pa

from bench.figures import Result, Target
from bench.workload import Bench, Budget, Timing, in_turns, latencies, one_caller, rate
from holdfast.wire.otlp.check import check
from holdfast.wire.otlp.decode import decode_rows
from holdfast.wire.otlp.encode import encode
from holdfast.wire.otlp.jsontext import to_protobuf
from holdfast.wire.otlp.signals import Signal

LOGS = 512
"""Records in a request: what SDKs send by default."""
WINDOW = 64
"""Requests in flight: as many clients, or a collector with a queue."""
CORES, CONNECTIONS = 2, 8
ACCEPTED = Target(300_000)
OFFERED_LOGS_PER_S = 100_000
"""A steady load, below what saturates two cores that the client shares."""
OVERHEAD = Target(0.95, of_ratio=True)

_RECEIVER = """
nodes:
  receiver:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports: {out: {destinations: [%s]}}
    config: {listening_addr: "127.0.0.1:0", payload: %s}
  drop: {kind: exporter, plugin_urn: console, config: {rows: 0}}
"""
_STORE = """
  store:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports: {out: {destinations: [drop]}}
    config: {path: ./data, wal: {max_size: 4GB}, memory_limit: 256MiB}
"""


def run(bench: Bench) -> list[Result]:
    """The graph with and without persistence, in turns; then the pieces."""
    budget = Budget(bench.scale(6, 2))
    results = []
    for payload in ("raw", "columns"):
        with (
            graph(bench.directory / f"{payload}-durable", payload, durable=True) as durable,
            graph(bench.directory / f"{payload}-memory", payload, durable=False) as memory,
        ):
            ways = {"durable": lambda: durable.send(budget), "memory": lambda: memory.send(budget)}
            found = in_turns(ways, rounds=bench.rounds(3))
            steady = {"durable": lambda: durable.offer(budget), "memory": lambda: memory.offer(budget)}
            offered = in_turns(steady, rounds=bench.rounds(3)) if payload == "raw" else {}
        results.append(
            Result(
                "otlp",
                f"logs, {payload}, {LOGS} in a request, gRPC",
                rate(found["durable"]) * LOGS,
                "logs/s",
                limit=rate(found["memory"]) * LOGS,
                limit_is="without persistence",
                target=ACCEPTED if payload == "raw" else None,
                also={"CPU s per million": durable.cpu_per_million, "without persistence": memory.cpu_per_million},
            )
        )
        if offered:
            results.append(
                Result(
                    "otlp",
                    f"the same, {OFFERED_LOGS_PER_S:,} logs/s offered",
                    rate(offered["durable"]) * LOGS,
                    "logs/s",
                    limit=rate(offered["memory"]) * LOGS,
                    limit_is="without persistence",
                    target=OVERHEAD,
                    also=latencies(offered["durable"]),
                )
            )
    return [*results, _cores(bench, budget), *_pieces(bench)]


def _cores(bench: Bench, budget: Budget) -> Result:
    """The same graph in one process and in several."""
    with (
        graph(bench.directory / "one-core", "raw", durable=True) as one,
        graph(bench.directory / "many-cores", "raw", durable=True, cores=CORES) as many,
    ):
        ways = {"one": lambda: one.spread(budget), "many": lambda: many.spread(budget)}
        found = in_turns(ways, rounds=bench.rounds(3))
    return Result(
        "otlp",
        f"logs, raw, {CORES} cores, {CONNECTIONS} connections",
        rate(found["many"]) * LOGS,
        "logs/s",
        limit=rate(found["one"]) * LOGS,
        limit_is="one core",
        also={"CPU s per million": many.cpu_per_million, "one core": one.cpu_per_million},
    )


def _pieces(bench: Bench) -> Iterator[Result]:
    body = request()
    many = pa.array([body] * 16, pa.binary())
    text = _as_json(body)
    rows = decode_rows(Signal.LOGS, many)
    budget = Budget(bench.scale(3, 1))
    cases = {
        "check": (LOGS, lambda: check(Signal.LOGS, body)),
        "decode, 16 requests at a time": (16 * LOGS, lambda: decode_rows(Signal.LOGS, many)),
        "encode": (16 * LOGS, lambda: encode(Signal.LOGS, rows)),
        "JSON to protobuf": (LOGS, lambda: to_protobuf(Signal.LOGS, text)),
    }
    for name, (logs, call) in cases.items():
        call()
        cpu = time.process_time()
        timing = one_caller(call, budget)
        cpu = time.process_time() - cpu
        yield Result("otlp", name, timing.calls * logs / cpu, "logs/s of one core")


def request() -> bytes:
    """A request of `LOGS` records as an application writes them: a line and four attributes."""
    message = Signal.LOGS.request()
    resource = message.resource_logs.add()
    for key in ("service.name", "service.version", "host.name"):
        resource.resource.attributes.add(key=key).value.string_value = f"{key} of the shop"
    scope = resource.scope_logs.add()
    scope.scope.name = "checkout"
    for number in range(LOGS):
        record = scope.log_records.add(
            time_unix_nano=1_700_000_000_000_000_000 + number,
            severity_number=9,
            severity_text="INFO",
            trace_id=number.to_bytes(16, "big"),
            span_id=number.to_bytes(8, "big"),
        )
        record.body.string_value = f"order {number} was paid after {number % 97} ms by card"
        for key in ("http.method", "http.route"):
            record.attributes.add(key=key).value.string_value = f"value {number % 13}"
        for key in ("http.status", "customer"):
            record.attributes.add(key=key).value.int_value = number
    data: bytes = message.SerializeToString()
    return data


def _as_json(body: bytes) -> bytes:
    from google.protobuf import json_format  # type: ignore[import-untyped]  # noqa: PLC0415

    message = Signal.LOGS.request.FromString(body)
    for resource in message.resource_logs:
        for scope in resource.scope_logs:
            for record in scope.log_records:
                record.ClearField("trace_id")
                record.ClearField("span_id")
    text: str = json_format.MessageToJson(message, use_integers_for_enums=True)
    return text.encode()


class _Running:
    """A graph in a process of its own, and a client."""

    def __init__(self, process: psutil.Process, address: str) -> None:
        self._process = process
        self._address = address
        self._body = request()
        self._cpu_s = 0.0
        self._logs = 0

    @property
    def pid(self) -> int:
        """Of the server."""
        number: int = self._process.pid
        return number

    @property
    def cpu_per_million(self) -> float:
        """Processor seconds of the server for a million logs."""
        return self._cpu_s / max(1, self._logs) * 1e6

    def offer(self, budget: Budget) -> Timing:
        """Requests at a steady pace, whether or not the server keeps up."""
        due_s = LOGS / OFFERED_LOGS_PER_S
        with grpc.insecure_channel(self._address) as channel:
            export = channel.unary_unary(Signal.LOGS.method)
            under_way: deque[grpc.Future] = deque()
            started, taken_s = time.perf_counter(), list[float]()
            while (now := time.perf_counter()) - started < budget.seconds:
                begun_s = now

                def done(_call: grpc.Future, begun_s: float = begun_s) -> None:
                    taken_s.append(time.perf_counter() - begun_s)

                call = export.future(self._body)
                call.add_done_callback(done)
                under_way.append(call)
                time.sleep(max(0.0, started + len(under_way) * due_s - time.perf_counter()))
            for call in under_way:
                call.result()
            return Timing(len(under_way), time.perf_counter() - started, taken_s)

    def send(self, budget: Budget) -> Timing:
        """Requests, a window in flight, until the budget is used up."""
        return self.spread(budget, connections=1)

    def spread(self, budget: Budget, *, connections: int = CONNECTIONS) -> Timing:
        """The same over several connections."""
        before = self._cpu()
        with ExitStack() as opened:
            options = [("grpc.use_local_subchannel_pool", 1)]
            channels = [opened.enter_context(grpc.insecure_channel(self._address, options)) for _ in range(connections)]
            exports = cycle([channel.unary_unary(Signal.LOGS.method) for channel in channels])
            under_way = deque(next(exports).future(self._body) for _ in range(WINDOW))
            started, calls = time.perf_counter(), 0
            while time.perf_counter() - started < budget.seconds:
                under_way.popleft().result()
                calls += 1
                under_way.append(next(exports).future(self._body))
            while under_way:
                under_way.popleft().result()
                calls += 1
            seconds = time.perf_counter() - started
        self._cpu_s += self._cpu() - before
        self._logs += calls * LOGS
        return Timing(calls, seconds)

    def _cpu(self) -> float:
        """Processor seconds of the server and its cores."""
        times = [process.cpu_times() for process in (self._process, *self._process.children())]
        return float(sum(one.user + one.system for one in times))


@contextmanager
def graph(directory: Path, payload: str, *, durable: bool, cores: int = 1) -> Iterator[_Running]:
    """A receiver, with persistence behind it if `durable`, and an exporter that drops everything."""
    directory.mkdir()
    file = directory / "graph.yaml"
    text = _RECEIVER % ("store" if durable else "drop", payload) + (_STORE if durable else "")
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "holdfast.cli.main", "pipeline", "run", str(file), "--cores", str(cores)]
    with (directory / "stderr").open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("holdfast ready "), (directory / "stderr").read_text()
    draining = subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)
    try:
        yield _Running(psutil.Process(process.pid), line.split("receiver.grpc=")[1].split()[0])
    finally:
        process.terminate()
        process.wait()
        draining.wait()
        process.stdout.close()
