"""The example configuration of the proposal, word for word but for its addresses: validated, drawn, and run.

OpenTelemetry's SDK sends logs, traces and metrics; another graph is both destinations, over OTAP and over OTLP.
"""

from __future__ import annotations

import importlib
import json
import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from tests.e2e.flowprocess import FlowProcess
from tests.e2e.served import free_port
from tests.unit.dataflow.flows import RunningFlow, until

WHY = "the OpenTelemetry SDK and its OTLP exporters are not installed"
pytest.importorskip("opentelemetry.sdk", reason=WHY)
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", reason=WHY)

PROPOSED = """\
nodes:
  otlp_receiver:
    kind: receiver
    plugin_urn: "urn:otel:otlp:receiver"
    out_ports:
      out_port:
        destinations:
          - persistence
        dispatch_strategy: round_robin
    config:
      listening_addr: "127.0.0.1:4317"
      response_stream_channel_size: 256 # Required: channel buffer capacity (number of messages)

  otap_receiver:
    kind: receiver
    plugin_urn: "urn:otel:otap:receiver"
    out_ports:
      out_port:
        destinations:
          - persistence
        dispatch_strategy: round_robin
    config:
      listening_addr: "127.0.0.1:4318"
      response_stream_channel_size: 256 # Required: channel buffer capacity (number of messages)

  persistence:
    kind: processor
    plugin_urn: "urn:otap:processor:persistence"
    out_ports:
      out_port:
        destinations:
          - otap_exporter
          - otlp_exporter
        dispatch_strategy: round_robin
    config:
      path: ./quiver_data  # Platform-appropriate persistent storage location
      segment:
        target_size: 32MB
      wal:
        max_size: 4GB
        flush_interval: 25ms
      retention:
        max_retain_after_ingestion_hours: 72
        size_cap: 500GB
        size_cap_policy: drop_oldest  # or backpressure

  otap_exporter:
    kind: exporter
    plugin_urn: "urn:otel:otap:exporter"
    config:
      grpc_endpoint: "http://{{backend_hostname}}:1235"
      compression_method: zstd
      arrow:
        payload_compression: none
  otlp_exporter:
    kind: exporter
    plugin_urn: "urn:otel:otlp:exporter"
    config:
      grpc_endpoint: "http://127.0.0.1:4318"
      # timeout: "15s"  # Optional: timeout for RPC requests
"""
BACKEND = "nodes:" + "".join(
    f"""
  {way}_in:
    kind: receiver
    plugin_urn: {way}
    out_ports: {{out: {{destinations: [over_{way}]}}}}
    config: {{listening_addr: "127.0.0.1:%d"}}
  over_{way}:
    kind: processor
    plugin_urn: persistence
    out_ports: {{out: {{destinations: [lake_{way}]}}}}
    config: {{path: ./stores/{way}, segment.max_open_duration: 20ms}}
  lake_{way}: {{kind: exporter, plugin_urn: parquet, config: {{path: ./{way}}}}}
"""
    for way in ("otap", "otlp")
)
LOGS, SPANS = 50, 20


def sdk(name: str) -> Any:
    return importlib.import_module(f"opentelemetry.{name}")


def send(target: str) -> None:
    """Logs, spans and a counter, over gRPC."""
    otlp, options = "exporter.otlp.proto.grpc", {"endpoint": target, "insecure": True}
    logs = sdk("sdk._logs").LoggerProvider()
    exporter = sdk(f"{otlp}._log_exporter").OTLPLogExporter(**options)
    logs.add_log_record_processor(sdk("sdk._logs.export").BatchLogRecordProcessor(exporter))
    for number in range(LOGS):
        logs.get_logger("shop").emit(sdk("_logs").LogRecord(timestamp=number + 1, body=f"order {number}"))
    traces = sdk("sdk.trace").TracerProvider()
    exporter = sdk(f"{otlp}.trace_exporter").OTLPSpanExporter(**options)
    traces.add_span_processor(sdk("sdk.trace.export").BatchSpanProcessor(exporter))
    for number in range(SPANS):
        traces.get_tracer("shop").start_span(f"span {number}").end()
    export = sdk("sdk.metrics.export")
    exporter = sdk(f"{otlp}.metric_exporter").OTLPMetricExporter(**options)
    reader = export.PeriodicExportingMetricReader(exporter, export_interval_millis=60_000)
    metrics = sdk("sdk.metrics").MeterProvider([reader])
    metrics.get_meter("shop").create_counter("orders").add(LOGS, {"shop": "north"})
    for provider in (logs, traces, metrics):
        assert provider.force_flush()
        provider.shutdown()


def rows(folder: Path) -> pa.Table | None:
    return pq.read_table(folder, partitioning="hive") if any(folder.rglob("*.parquet")) else None


def column(folder: Path, name: str) -> list[Any]:
    table = rows(folder)
    return sorted(table.column(name).to_pylist()) if table is not None else []


def has_everything(lake: Path) -> bool:
    """Each log and span once, and the counter as often as the SDK exported it."""
    logs = column(lake / "otlp.logs", "body") == sorted(f"order {number}" for number in range(LOGS))
    spans = column(lake / "otlp.traces", "name") == sorted(f"span {number}" for number in range(SPANS))
    return logs and spans and set(column(lake / "otlp.metrics", "value_int")) == {LOGS}


def test_the_proposed_graph_is_valid_and_drawn_as_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_text(PROPOSED)
    assert "5 nodes" in CliRunner().invoke(app, ["pipeline", "validate", str(file)]).stdout
    drawn = json.loads(CliRunner().invoke(app, ["pipeline", "graph", str(file), "--json"]).stdout)["result"]
    assert ["otap_receiver", "persistence"] in drawn["edges"]
    assert ["persistence", "otap_exporter"] in drawn["edges"]
    assert "urn:otel:otap:exporter" in drawn["picture"]


@pytest.mark.timeout(300)
@pytest.mark.guarantee("G1")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_proposed_graph_runs_and_both_destinations_get_everything(tmp_path: Path) -> None:
    over_otap, over_otlp = free_port(), free_port()
    file = tmp_path / "graph.yaml"
    text = PROPOSED.replace("http://{{backend_hostname}}:1235", f"http://127.0.0.1:{over_otap}")
    text = text.replace("http://127.0.0.1:4318", f"http://127.0.0.1:{over_otlp}")
    file.write_text(text.replace("127.0.0.1:4317", "127.0.0.1:0").replace("127.0.0.1:4318", "127.0.0.1:0"))
    with FlowProcess(file) as flow:
        assert set(flow.addresses) == {"otlp_receiver.grpc", "otap_receiver.grpc"}
        send(flow.addresses["otlp_receiver.grpc"])  # the destinations are not there yet
        with RunningFlow(tmp_path / "backend", BACKEND % (over_otap, over_otlp)):
            until(lambda: has_everything(tmp_path / "backend" / "otap"), patience_s=120)
            until(lambda: has_everything(tmp_path / "backend" / "otlp"), patience_s=120)
        assert flow.terminate() == 0


def test_an_address_that_another_has_is_refused_with_node_and_key(tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        file.write_text(PROPOSED.replace("127.0.0.1:4317", "127.0.0.1:0").replace('"127.0.0.1:4318"', f'"{address}"'))
        refused = CliRunner().invoke(app, ["pipeline", "run", str(file)])
    assert refused.exit_code == 3
    assert "nodes.otap_receiver.config.listening_addr" in refused.stderr
