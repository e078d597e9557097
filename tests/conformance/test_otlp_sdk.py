"""OpenTelemetry's own SDK sends logs, traces and metrics; what arrives in Parquet is what was sent.

Runs where the SDK and its exporters are installed: opentelemetry-sdk, opentelemetry-exporter-otlp-proto-grpc and
opentelemetry-exporter-otlp-proto-http.
"""

from __future__ import annotations

import importlib
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.dataflow.flows import RunningFlow, graph_text

WHY = "the OpenTelemetry SDK and its OTLP exporters are not installed"
sdk = pytest.importorskip("opentelemetry.sdk", reason=WHY)
pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc.trace_exporter", reason=WHY)
pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter", reason=WHY)

LOGS, SPANS, COUNTS = 700, 300, 5
DOORS = pytest.mark.parametrize("door", ["grpc", "http"])
PAYLOADS = pytest.mark.parametrize("payload", ["raw", "columns"])


def part(name: str) -> Any:
    return importlib.import_module(f"opentelemetry.{name}")


def resource() -> Any:
    return part("sdk.resources").Resource.create({"service.name": "shop", "service.version": "1.2.3"})


def exporter(door: str, kind: str, running: RunningFlow) -> Any:
    """The SDK's exporter of a kind (`trace`, `metric`, `_log`) to a door of the receiver."""
    module = part(f"exporter.otlp.proto.{door}.{kind}_exporter")
    name = {"trace": "OTLPSpanExporter", "metric": "OTLPMetricExporter", "_log": "OTLPLogExporter"}[kind]
    address = running.addresses[f"otlp_receiver.{door}"]
    path = {"trace": "traces", "metric": "metrics", "_log": "logs"}[kind]
    if door == "http":
        return getattr(module, name)(endpoint=f"http://{address}/v1/{path}", timeout=30)
    return getattr(module, name)(endpoint=address, insecure=True, timeout=30)


def flow(tmp_path: Path, payload: str) -> RunningFlow:
    text = graph_text(("lake", "parquet", "path: ./lake"), receiver=f"payload: {payload}")
    return RunningFlow(tmp_path, text)


def arrived(running: RunningFlow, channel: str, rows: int) -> list[dict[str, Any]]:
    """The rows in the Parquet files, once they are all there."""
    folder = running.directory / "lake" / channel

    def table() -> pa.Table:
        return pq.read_table(folder, partitioning="hive")

    running.until(lambda: folder.exists() and any(folder.rglob("*.parquet")) and table().num_rows >= rows)
    found: list[dict[str, Any]] = table().to_pylist()
    return found


@DOORS
@PAYLOADS
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_logs_of_the_sdk_arrive_in_parquet_as_they_were_sent(tmp_path: Path, door: str, payload: str) -> None:
    logs = part("sdk._logs")
    export = part("sdk._logs.export")
    with flow(tmp_path, payload) as running:
        provider = logs.LoggerProvider(resource=resource())
        provider.add_log_record_processor(export.BatchLogRecordProcessor(exporter(door, "_log", running)))
        record_type = part("_logs").LogRecord
        numbers = part("_logs").SeverityNumber
        logger = provider.get_logger("shop.orders", "2.0")
        for number in range(LOGS):
            logger.emit(
                record_type(
                    timestamp=1_700_000_000_000_000_000 + number,
                    severity_text="WARN",
                    severity_number=numbers.WARN,
                    body=f"order {number}",
                    attributes={"order": number, "paid": number % 2 == 0, "tags": ["a", "b"]},
                )
            )
        assert provider.force_flush()
        provider.shutdown()
        rows = sorted(arrived(running, "otlp.logs", LOGS), key=lambda row: row["time"])
    assert [row["body"] for row in rows] == [f"order {number}" for number in range(LOGS)]
    assert [row["time"].value for row in rows] == [1_700_000_000_000_000_000 + number for number in range(LOGS)]
    attributes = dict(rows[7]["attributes"])
    assert (attributes["order"], attributes["paid"], attributes["tags"]) == ("7", "false", '["a","b"]')
    assert {(row["service_name"], row["severity_text"], row["severity_number"]) for row in rows} == {
        ("shop", "WARN", 13)
    }
    assert {(row["scope_name"], row["scope_version"]) for row in rows} == {("shop.orders", "2.0")}


@DOORS
@PAYLOADS
def test_traces_of_the_sdk_arrive_in_parquet_as_they_were_sent(tmp_path: Path, door: str, payload: str) -> None:
    trace = part("sdk.trace")
    sent: dict[str, tuple[str, str, int, int]] = {}
    with flow(tmp_path, payload) as running:
        provider = trace.TracerProvider(resource=resource())
        processor = part("sdk.trace.export").BatchSpanProcessor(exporter(door, "trace", running))
        provider.add_span_processor(processor)
        tracer = provider.get_tracer("shop")
        with tracer.start_as_current_span("root"):
            for number in range(SPANS - 1):
                with tracer.start_as_current_span(f"step {number}", attributes={"n": number}) as span:
                    span.add_event("done", {"n": number})
                context = span.get_span_context()
                sent[f"{context.span_id:016x}"] = (
                    f"{context.trace_id:032x}",
                    span.name,
                    span.start_time,
                    span.end_time,
                )
        assert provider.force_flush()
        provider.shutdown()
        rows = arrived(running, "otlp.traces", SPANS)
    found = {
        row["span_id"]: (row["trace_id"], row["name"], row["start_time"].value, row["end_time"].value)
        for row in rows
        if row["name"] != "root"
    }
    assert found == sent
    root = next(row for row in rows if row["name"] == "root")
    assert {row["parent_span_id"] for row in rows if row["name"] != "root"} == {root["span_id"]}
    assert all(row["events"][0]["name"] == "done" for row in rows if row["name"] != "root")


@DOORS
@PAYLOADS
def test_metrics_of_the_sdk_arrive_in_parquet_as_they_were_sent(tmp_path: Path, door: str, payload: str) -> None:
    metrics = part("sdk.metrics")
    view = part("sdk.metrics.view")
    with flow(tmp_path, payload) as running:
        reader = part("sdk.metrics.export").PeriodicExportingMetricReader(
            exporter(door, "metric", running), export_interval_millis=3_600_000
        )
        exponential = view.View(instrument_name="sizes", aggregation=view.ExponentialBucketHistogramAggregation())
        provider = metrics.MeterProvider(metric_readers=[reader], resource=resource(), views=[exponential])
        meter = provider.get_meter("shop")
        counter, histogram = meter.create_counter("orders", unit="1"), meter.create_histogram("latency", unit="ms")
        sizes, gauge = meter.create_histogram("sizes"), meter.create_gauge("temperature")
        for number in range(COUNTS):
            counter.add(2, {"kind": "web"})
            histogram.record(10 * number)
            sizes.record(2**number)
        gauge.set(21.5)
        assert provider.force_flush(30_000)
        provider.shutdown()
        rows = {row["name"]: row for row in arrived(running, "otlp.metrics", 4)}
    assert (rows["orders"]["value_int"], rows["orders"]["is_monotonic"]) == (2 * COUNTS, True)
    assert dict(rows["orders"]["attributes"]) == {"kind": "web"}
    assert (rows["latency"]["count"], rows["latency"]["sum"]) == (COUNTS, 100.0)
    assert sum(rows["latency"]["bucket_counts"]) == COUNTS
    assert (rows["sizes"]["kind"], rows["sizes"]["count"]) == ("exponential_histogram", COUNTS)
    assert sum(rows["sizes"]["positive"]["bucket_counts"]) == COUNTS
    assert rows["temperature"]["value"] == 21.5


logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # what it says of outages is not this test's subject
