"""The whole way of a segment through a graph with two exporters, in real processes."""

from __future__ import annotations

import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc  # type: ignore[import-untyped]
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast import Store
from holdfast.wire.otlp.signals import Signal
from tests.e2e.flowprocess import FlowProcess
from tests.e2e.served import PATIENCE_S, free_port
from tests.unit.dataflow.flows import GrpcServer, graph_text, until
from tests.unit.dataflow.otlp_samples import logs_request

REQUESTS, RECORDS = 40, 5


def bodies(count: int, first: int = 0) -> list[bytes]:
    return [logs_request(RECORDS, first=RECORDS * at).SerializeToString() for at in range(first, first + count)]


def send(target: str, requests: list[bytes]) -> None:
    with grpc.insecure_channel(target) as channel, ThreadPoolExecutor(4) as pool:
        export = channel.unary_unary(Signal.LOGS.method)
        list(pool.map(lambda body: export(body, timeout=PATIENCE_S), requests))


def in_parquet(folder: Path) -> list[str]:
    if not folder.exists() or not any(folder.rglob("*.parquet")):
        return []
    table: pa.Table = pq.read_table(folder, partitioning="hive")
    return sorted(table.column("body").to_pylist())


def expected(count: int) -> list[str]:
    return sorted(f"order {number}" for number in range(RECORDS * count))


def dual(tmp_path: Path, server: GrpcServer) -> Path:
    """A graph with a Parquet exporter and an OTLP exporter on one persistence node."""
    text = graph_text(
        ("parquet_exporter", "parquet", "path: ./lake"),
        ("otlp_exporter", "otlp", f'grpc_endpoint: "http://127.0.0.1:{server.port}"'),
        persistence="ack: {checkpoint_interval: 1h}",
    )
    file = tmp_path / "graph.yaml"
    file.write_text(text + 'admin: {listening_addr: "127.0.0.1:0"}\n', encoding="utf-8")
    return file


@pytest.mark.guarantee("G6")
def test_a_segment_goes_once_both_exporters_have_acknowledged_it(tmp_path: Path) -> None:
    with GrpcServer() as server:
        server.gate.clear()  # the remote endpoint is slow
        with FlowProcess(dual(tmp_path, server)) as flow:
            send(flow.addresses["otlp_receiver.grpc"], bodies(REQUESTS))
            until(lambda: in_parquet(tmp_path / "lake") == expected(REQUESTS))  # the fast one does not wait
            metrics = read_metrics(flow.addresses["admin"])
            assert metrics['holdfast_exporter_events_total{node="parquet_exporter"}'] == REQUESTS
            assert metrics['holdfast_exporter_events_total{node="otlp_exporter"}'] == 0
            assert metrics["holdfast_segments"] > 0  # pinned by the slow one
            assert metrics['holdfast_subscriber_lag_events{subscriber="otlp_exporter"}'] == REQUESTS
            flow.kill()  # what each has confirmed is in the log of acknowledgements
            server.gate.set()
            flow.start()
            until(lambda: len(server.taken) >= REQUESTS)
            until(lambda: read_metrics(flow.addresses["admin"])["holdfast_segments"] == 0)
            assert read_metrics(flow.addresses["admin"])['holdfast_gc_evictions_total{reason="acked"}'] > 0
            assert flow.terminate() == 0
    assert in_parquet(tmp_path / "lake") == expected(REQUESTS)
    assert {body for _, body in server.taken} == set(bodies(REQUESTS))


def read_metrics(admin: str) -> dict[str, float]:
    with urllib.request.urlopen(f"{admin}/metrics", timeout=PATIENCE_S) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


@pytest.mark.guarantee("G1")
def test_requests_that_were_answered_survive_kills_and_keys_keep_them_single(tmp_path: Path) -> None:
    port = free_port()
    text = graph_text(("sink", "console", "rows: 0, channels: [nothing]"))
    file = tmp_path / "graph.yaml"
    file.write_text(text.replace('listening_addr: "127.0.0.1:0"', f'listening_addr: "127.0.0.1:{port}"', 1))
    sent = bodies(150)
    answered = threading.Semaphore(0)

    def client() -> None:
        """Repeats each request, with its key, until it is answered."""
        with grpc.insecure_channel(f"127.0.0.1:{port}", [("grpc.max_reconnect_backoff_ms", 100)]) as channel:
            export = channel.unary_unary(Signal.LOGS.method)
            for number, body in enumerate(sent):
                while True:
                    try:
                        export(body, timeout=PATIENCE_S, metadata=[("idempotency-key", str(number))])
                        break
                    except grpc.RpcError as error:
                        if error.code() is not grpc.StatusCode.UNAVAILABLE:
                            raise
                answered.release()

    flow = FlowProcess(file).start()
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(client)
        for _ in range(3):
            for _ in range(30):
                assert answered.acquire(timeout=PATIENCE_S)
            flow.kill()
            flow.start()
        done.result(PATIENCE_S)
    flow.kill()
    with Store.open(tmp_path / "data" / "core-0") as store:
        kept = [body for batch in store.read("otlp.logs", columns=["request"]) for body in batch.column(0).to_pylist()]
    assert kept == sent
