"""A node graph in several processes that share its ports: killed, fewer, more, and never forgetful."""

from __future__ import annotations

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import psutil
import pytest

from holdfast import Store
from holdfast.wire.otlp.signals import Signal
from tests.e2e.flowprocess import FlowProcess
from tests.e2e.served import PATIENCE_S
from tests.e2e.test_otlp_flow import bodies, expected, in_parquet, read_metrics
from tests.unit.dataflow.flows import GrpcServer, graph_text, until
from tests.unit.dataflow.otlp_samples import logs_request

CLIENTS = 16
"""Connections: the kernel chooses a core for each, and all of them choose the same one once in 32,768 times."""

AWAY: list[Any] = [(grpc.StatusCode.UNAVAILABLE, "away", ())]


def send(target: str, requests: list[bytes]) -> None:
    """Send all requests, over a connection of its own for each client, repeating those that no core answered."""

    def client(number: int) -> None:
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 100)]
        with grpc.insecure_channel(target, options) as channel:
            export = channel.unary_unary(Signal.LOGS.method)
            for body in requests[number::CLIENTS]:
                while True:
                    try:
                        export(body, timeout=PATIENCE_S)
                        break
                    except grpc.RpcError as error:
                        if error.code() is not grpc.StatusCode.UNAVAILABLE:
                            raise

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(client, range(CLIENTS)))


def graph(tmp_path: Path, server: GrpcServer, *, persistence: str = "") -> Path:
    text = graph_text(
        ("parquet_exporter", "parquet", "path: ./lake"),
        ("otlp_exporter", "otlp", f'grpc_endpoint: "http://127.0.0.1:{server.port}"'),
        persistence=persistence,
    )
    file = tmp_path / "graph.yaml"
    file.write_text(text + 'admin: {listening_addr: "127.0.0.1:0"}\n', encoding="utf-8")
    return file


def kept_in(tmp_path: Path, core: int) -> int:
    """Events of one core's store, which nobody has open."""
    with Store.open(tmp_path / "data" / f"core-{core}") as store:
        return sum(batch.num_rows for batch in store.read("otlp.logs")) if "otlp.logs" in store.channels() else 0


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G6")
def test_a_killed_core_comes_back_and_fewer_cores_adopt_what_is_left(tmp_path: Path) -> None:
    sent = bodies(160)
    with GrpcServer() as server:
        server.answers = AWAY * 10_000  # everything waits in the stores
        flow = FlowProcess(graph(tmp_path, server)).start(cores=2)
        with flow_ended(flow):
            with ThreadPoolExecutor(1) as pool:
                sending = pool.submit(send, flow.addresses["otlp_receiver.grpc"], sent[:80])
                psutil.Process(flow.process.pid).children()[0].send_signal(signal.SIGKILL)
                sending.result(PATIENCE_S)
            until(lambda: core_metrics(flow, "holdfast_core_up") == [1, 1])
            assert sum(core_metrics(flow, "holdfast_core_restarts_total")) == 1
            send(flow.addresses["otlp_receiver.grpc"], sent[80:120])
            assert flow.terminate() == 0
            assert kept_in(tmp_path, 0) > 0
            assert kept_in(tmp_path, 1) > 0
            server.answers = []
            flow.start()  # one process has both stores
            until(lambda: len({body for _, body in server.taken}) >= 120)
            until(lambda: read_metrics(flow.addresses["admin"])["holdfast_segments"] == 0)
            assert flow.terminate() == 0
            assert kept_in(tmp_path, 1) == 0  # confirmed by both exporters, and gone
            flow.start(cores=2)
            send(flow.addresses["otlp_receiver.grpc"], sent[120:])
            until(lambda: len({body for _, body in server.taken}) == 160)
            until(lambda: sorted(set(in_parquet(tmp_path / "lake"))) == expected(160))
            assert flow.terminate() == 0
    assert {body for _, body in server.taken} == set(sent)


def core_metrics(flow: FlowProcess, name: str) -> list[float]:
    found = read_metrics(flow.addresses["admin"])
    return [found[f'{name}{{core_id="{core}"}}'] for core in range(2)]


class flow_ended:
    """A graph that is killed if the block fails."""

    def __init__(self, flow: FlowProcess) -> None:
        self._flow = flow

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self._flow.__exit__(None, None, None)


@pytest.mark.guarantee("G11")
@pytest.mark.long
@pytest.mark.timeout(900)
def test_cores_share_the_size_cap_and_stay_within_it(tmp_path: Path) -> None:
    segment, log_file, cap = 1 << 20, 1 << 20, 16 << 20
    text = graph_text(
        ("sink", "console", "rows: 0"),
        persistence="wal: {max_size: 4MiB, rotation_size: 1MiB}, frame: {max_size: 512KiB}, "
        "retention.size_cap: 16MiB, retention.steady_state_headroom: 15MiB",  # only the cap lets confirmed ones go
    )
    file = tmp_path / "graph.yaml"
    file.write_text(text + 'admin: {listening_addr: "127.0.0.1:0"}\n', encoding="utf-8")
    requests = [logs_request(400, first=400 * at).SerializeToString() for at in range(20)]
    flow = FlowProcess(file).start(cores=2)
    with flow_ended(flow):
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(send, flow.addresses["otlp_receiver.grpc"], requests * 40)
            most = 0
            while not sending.done():
                looks = [disk_bytes(tmp_path / "data") for _ in range(2)]  # files come and go while one looks
                most = max(most, min(looks))
            sending.result()
        metrics = read_metrics(flow.addresses["admin"])
        evicted = sum(core_metrics(flow, "holdfast_gc_evicted_bytes_total"))
        assert evicted > cap  # the bound was reached, again and again
        assert sum(metrics[name] for name in metrics if name.startswith("holdfast_segment_dropped_total")) == 0
        assert flow.terminate() == 0
    assert most <= cap + 2 * (segment + log_file)  # a segment being sealed, and a log file that is reserved ahead


def disk_bytes(directory: Path) -> int:
    """Bytes of segments and logs of all stores."""
    total = 0
    for part in ("channels", "wal"):
        for path in directory.glob(f"core-*/{part}/**/*"):
            with suppress(FileNotFoundError):  # it goes while we look
                total += path.stat().st_size if path.is_file() else 0
    return total


@pytest.mark.long
@pytest.mark.timeout(900)
def test_cores_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with GrpcServer() as server:
        flow = FlowProcess(graph(tmp_path, server)).start(cores=2)
        cores = psutil.Process(flow.process.pid).children()
        assert len(cores) == 2
        flow.kill()
        _, alive = psutil.wait_procs(cores, timeout=PATIENCE_S)
        assert alive == []
        assert [kept_in(tmp_path, core) for core in range(2)] == [0, 0]  # closed in order: nobody holds them


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_core_that_cannot_start_ends_all_with_its_exit_code(tmp_path: Path) -> None:
    with GrpcServer() as server:
        command = [sys.executable, "-m", "holdfast.cli.main", "pipeline", "run", str(graph(tmp_path, server))]
        with Store.open(tmp_path / "data" / "core-1"):
            done = subprocess.run(
                [*command, "--cores", "2"], capture_output=True, text=True, timeout=PATIENCE_S, check=False
            )
    assert done.returncode == 3
    assert done.stdout == ""
    assert "core-1" in done.stderr
