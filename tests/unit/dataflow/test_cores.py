"""Several processes of one graph: who has which store, how they are kept alive, and how they end."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]
import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Store
from holdfast.dataflow.cores import Supervisor
from holdfast.dataflow.coresadmin import merged
from holdfast.dataflow.graph import load, problems
from holdfast.dataflow.places import Place, Reservation, admin_of_core, with_doors
from holdfast.errors import CannotListen
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.flows import PATIENCE_S, GrpcServer, RunningFlow, graph_text, until
from tests.unit.dataflow.otlp_samples import logs_request

CORE = """
import os, signal, socket, sys, time
core, link, folder, script = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
lives = len(os.listdir(folder))
open(os.path.join(folder, f"{core}-{lives}"), "w").close()
signal.signal(signal.SIGTERM, signal.SIG_IGN if "deaf" in script else lambda *_: sys.exit(0))
if "broken" in script and core == 1:
    sys.exit(3)
sock = socket.socket(fileno=link)
sock.sendall(b'{"addresses":{"r.grpc":"127.0.0.1:4317"},"admin":{"%d":"http://127.0.0.1:%d"}}\\n' % (core, 9000 + core))
if "mortal" in script and lives < 3 and core == 1:
    sys.exit(4)
while sock.recv(1):
    pass
sys.exit(int("orphan" in script))
"""
"""A core that says that it is ready and waits; how it fails is an argument."""


def supervised(
    tmp_path: Path, script: str, act: Callable[[Supervisor], None] = Supervisor.stop
) -> tuple[int, list[Mapping[str, str]]]:
    """Two such cores until `act` ends them: the exit code, and what was said when they were ready."""
    said: list[Mapping[str, str]] = []

    def command(place: Place, link: int) -> Sequence[str]:
        return [sys.executable, "-S", "-c", CORE, str(place.core), str(link), str(tmp_path), script]

    async def run() -> int:
        supervisor = Supervisor(2, command, chance=random.Random(1))

        def on_ready(addresses: Mapping[str, str]) -> None:
            said.append(addresses)
            act(supervisor)

        return await asyncio.wait_for(supervisor.run(on_ready), PATIENCE_S)

    return asyncio.run(run()), said


def test_cores_that_are_all_ready_are_said_to_be_so_once(tmp_path: Path) -> None:
    code, said = supervised(tmp_path, "well")
    assert (code, said) == (0, [{"r.grpc": "127.0.0.1:4317"}])
    assert len(list(tmp_path.iterdir())) == 2


def test_a_core_that_does_not_come_up_ends_all_with_its_code(tmp_path: Path) -> None:
    assert supervised(tmp_path, "broken") == (3, [])


def test_a_core_that_dies_is_started_again_until_it_lives(tmp_path: Path) -> None:
    def act(supervisor: Supervisor) -> None:
        def look() -> None:
            core = supervisor.cores[1]
            if core.restarts >= 2 and core.ready is not None:
                assert supervisor.admin_urls() == {0: "http://127.0.0.1:9000", 1: "http://127.0.0.1:9001"}
                supervisor.stop()
            else:
                asyncio.get_running_loop().call_later(0.01, look)

        look()

    code, said = supervised(tmp_path, "mortal", act)
    assert code == 0
    assert len(said) == 1
    assert len(list(tmp_path.glob("0-*"))) == 1  # the other one went on


def test_a_second_signal_kills_cores_that_do_not_end(tmp_path: Path) -> None:
    def act(_supervisor: Supervisor) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        asyncio.get_running_loop().call_later(0.2, os.kill, os.getpid(), signal.SIGTERM)

    code, _ = supervised(tmp_path, "deaf", act)
    assert code == 4


def test_every_left_over_store_belongs_to_exactly_one_process() -> None:
    for cores in range(1, 5):
        places = [Place(core, cores) for core in range(cores)]
        for store in range(12):
            owners = [place.core for place in places if place.core == store or place.adopts(store)]
            assert len(owners) == 1


def test_the_ports_of_cores_are_held_for_them_and_for_nobody_else(tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_text(graph_text(("sink", "console", "rows: 0")))
    graph = load(file)
    reservation = Reservation(graph)
    with closing(reservation):
        doors = reservation.doors["otlp_receiver"]
        held = with_doors(graph, reservation.doors)
        assert held.nodes["otlp_receiver"].settings.doors() == doors  # type: ignore[attr-defined]
        port = int(doors["listening_addr"].rpartition(":")[2])
        with pytest.raises(OSError, match="in use"), socket.socket() as alone:
            alone.bind(("127.0.0.1", port))
    with socket.socket() as sharing:
        sharing.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sharing.bind(("127.0.0.1", 0))
        sharing.listen()
        file.write_text(file.read_text().replace("127.0.0.1:0", f"127.0.0.1:{sharing.getsockname()[1]}", 1))
        with pytest.raises(CannotListen, match=r"nodes\.otlp_receiver\.config\.listening_addr"):
            Reservation(load(file))


def test_the_admin_address_of_a_core_is_beside_that_of_the_graph() -> None:
    assert [admin_of_core("127.0.0.1:9001", core) for core in range(2)] == ["127.0.0.1:9002", "127.0.0.1:9003"]
    assert admin_of_core("[::1]:9001", 3) == "[::1]:9005"
    assert admin_of_core("127.0.0.1:0", 3) == "127.0.0.1:0"


def test_metrics_of_cores_are_told_apart_by_a_label() -> None:
    text = '# TYPE a_total counter\na_total{node="n"} %d\n# TYPE core_bytes gauge\ncore_bytes{core_id="0"} 1\n'
    families = {family.name: family for family in merged({0: text % 1, 3: text % 2})}
    assert [(sample.name, sample.labels, sample.value) for sample in families["a"].samples] == [
        ("a_total", {"node": "n", "core_id": "0"}, 1.0),
        ("a_total", {"node": "n", "core_id": "3"}, 2.0),
    ]
    assert [sample.labels for sample in families["core_bytes"].samples] == [{"core_id": "0"}, {"core_id": "3"}]
    assert list(text_string_to_metric_families("")) == []


@pytest.mark.guarantee("G6")
def test_one_process_delivers_and_evicts_what_others_left_within_the_shared_cap(tmp_path: Path) -> None:
    sent = [logs_request(2, first=at).SerializeToString() for at in range(3)]
    kept = {"persistence": "wal.max_size: 128MiB, retention.size_cap: 512MiB"}
    with GrpcServer() as server:
        exporters = (("out", "otlp", f'grpc_endpoint: "http://127.0.0.1:{server.port}"'),)
        server.answers = AWAY * 1000
        with RunningFlow(tmp_path, graph_text(*exporters, **kept)) as flow:
            for body in sent:
                flow.grpc(Signal.LOGS, body)
        (tmp_path / "data" / "core-0").rename(tmp_path / "data" / "core-3")
        server.answers = []
        with RunningFlow(tmp_path, graph_text(*exporters, **kept)) as flow:
            until(lambda: {body for _, body in server.taken} == set(sent))
            until(lambda: flow.flow.adopted[3]["persistence"].statistics().segments == 0)
            assert flow.flow.exporter_statistics()["out"].events >= len(sent)
            assert any((tmp_path / "data" / "room").glob("core-*"))
    with Store.open(tmp_path / "data" / "core-3") as store:
        assert list(store.read("otlp.logs")) == []


AWAY: list[Any] = [(grpc.StatusCode.UNAVAILABLE, "away", ())]
SPARK = """
sources: {logs: {channel: otlp.logs, addr: "${HOLDFAST_ADMIN}"}}
outputs: {lake: {from: logs, format: parquet, path: lake}}
checkpoint: checkpoint
"""


def spark_graph(tmp_path: Path, pipeline: str, *, admin: str = "127.0.0.1:9001") -> Path:
    (tmp_path / "landing.yaml").write_text(pipeline)
    file = tmp_path / "graph.yaml"
    text = graph_text(("landing", "spark", "pipeline: ./landing.yaml"))
    file.write_text(text + (f'admin: {{listening_addr: "{admin}"}}\n' if admin else ""))
    return file


def test_a_spark_node_is_checked_with_the_pipeline_that_it_names(tmp_path: Path) -> None:
    file = spark_graph(tmp_path, SPARK)
    settings = load(file).nodes["landing"].settings
    assert getattr(settings, "subscribers") == (("landing.logs.lake", ("otlp.logs",)),)  # noqa: B009
    assert settings.shown() == [f"pipeline={tmp_path / 'landing.yaml'}"]
    [wrong] = problems(spark_graph(tmp_path, SPARK.replace("from: logs", "from: lgos")))
    assert wrong.key == "nodes.landing.config.pipeline"
    assert "landing.yaml" in file.read_text().splitlines()[wrong.line - 1]
    assert f"{tmp_path / 'landing.yaml'}:3: outputs.lake.from" in wrong.reason
    [elsewhere] = problems(spark_graph(tmp_path, SPARK.replace("${HOLDFAST_ADMIN}", "http://127.0.0.1:9")))
    assert "HOLDFAST_ADMIN" in elsewhere.reason
    for admin in ("", "127.0.0.1:0"):
        [nowhere] = problems(spark_graph(tmp_path, SPARK, admin=admin))
        assert nowhere.key == "admin.listening_addr"
        assert "'landing'" in nowhere.reason


def test_a_spark_node_without_a_store_or_with_channels_is_refused(tmp_path: Path) -> None:
    file = spark_graph(tmp_path, SPARK)
    text = file.read_text()
    file.write_text(text.replace("destinations: [persistence]", "destinations: [persistence, landing]"))
    assert any("behind a persistence node" in error.reason for error in problems(file))
    file.write_text(text.replace("pipeline: ./landing.yaml", "pipeline: ./landing.yaml, channels: [x]"))
    [wrong] = problems(file)
    assert wrong.key == "nodes.landing.config.channels"
    file.write_text(text.replace("pipeline: ./landing.yaml", "pipeline: ./nowhere.yaml"))
    [missing] = problems(file)
    assert "nowhere.yaml" in missing.reason
