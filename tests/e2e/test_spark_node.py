"""A Spark pipeline as a node of a graph that runs on two cores: everything lands, and nothing goes before it has."""

from __future__ import annotations

import socket
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from holdfast.errors import BadRequest
from holdfast.spark.tables import read_manifest
from tests.e2e.flowprocess import FlowProcess
from tests.e2e.served import free_port
from tests.e2e.test_cores import flow_ended, send
from tests.e2e.test_otlp_flow import bodies, expected
from tests.unit.dataflow.flows import graph_text, until

PIPELINE = """
name: landing
sources: {logs: {channel: otlp.logs, addr: "${HOLDFAST_ADMIN}", schema: "%s"}}
steps: [{name: decoded, decode: otlp.logs}]
outputs: {lake: {from: decoded, format: parquet, path: lake}}
checkpoint: checkpoint
trigger: 100ms
master: local[2,4]
conf: {spark.ui.enabled: false, spark.log.level: ERROR, spark.driver.memory: 600m}
"""
SCHEMA = "request binary, signal string, protocol string, records bigint, size_bytes bigint"


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.guarantee("G8")
def test_spark_lands_what_all_cores_accepted_once_and_is_asked_before_anything_goes(tmp_path: Path) -> None:
    (tmp_path / "landing.yaml").write_text(PIPELINE % SCHEMA)
    file = tmp_path / "graph.yaml"
    text = graph_text(("sink", "console", "rows: 0"), ("landing", "spark", "pipeline: ./landing.yaml"))
    file.write_text(text + f'admin: {{listening_addr: "127.0.0.1:{free_row(3)}"}}\n')
    flow = FlowProcess(file).start(cores=2)
    with flow_ended(flow):
        send(flow.addresses["otlp_receiver.grpc"], bodies(40))
        until(lambda: landed(tmp_path / "lake") == expected(40), patience_s=800)
        assert flow.terminate() == 0
        flow.start()  # one core has both stores, at the addresses that Spark's checkpoint names
        send(flow.addresses["otlp_receiver.grpc"], bodies(20, first=40))
        until(lambda: landed(tmp_path / "lake") == expected(60), patience_s=800)
        assert flow.terminate() == 0


def landed(lake: Path) -> list[str]:
    """The bodies of all records, as often as they are there."""
    try:
        files = read_manifest(lake).files
    except BadRequest:
        return []
    return sorted(ds.dataset(files).to_table(columns=["body"]).column("body").to_pylist()) if files else []


def free_row(count: int) -> int:
    """A port that is free, and those after it."""
    while True:
        first = free_port()
        try:
            for number in range(first + 1, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", number))
        except OSError:
            continue
        return first
