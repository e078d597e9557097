"""OTLP rows leave Spark as requests: what a task does, without Spark."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.errors import BadRequest, ServerAway
from holdfast.spark.columns import conform, spark_schema
from holdfast.spark.otlpsink import ROWS_MAX, OtlpTarget, check_columns, requests_of, send
from holdfast.spark.pipeline import Pipeline
from holdfast.wire.otlp.decode import SCHEMAS, decode_rows
from holdfast.wire.otlp.raw import RawRequest, raw_rows
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.flows import HttpServer
from tests.unit.dataflow.otlp_samples import logs_request, sample
from tests.unit.dataflow.test_receiver import flow

SIGNALS = pytest.mark.parametrize("signal", list(Signal), ids=lambda signal: signal.value)


def in_spark(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the types that Spark gives them."""
    return conform(rows, to_arrow_schema(spark_schema(rows.schema), timezone="UTC"), channel="otlp")


@SIGNALS
def test_rows_in_spark_types_become_the_requests_they_came_from(signal: Signal) -> None:
    rows = decode_rows(signal, pa.array([sample(signal).SerializeToString()], pa.binary()))
    ((found, body, records),) = requests_of([in_spark(rows)])
    assert (found, records) == (signal, rows.num_rows)
    names = [name for name in rows.schema.names if name != "duration_ns"]  # Spark's times are of microseconds
    again = decode_rows(signal, pa.array([body], pa.binary()))
    assert again.select(names).equals(conform(in_spark(rows), rows.schema, channel="").select(names))


def test_requests_are_cut_by_their_number_of_records() -> None:
    rows = decode_rows(Signal.LOGS, pa.array([logs_request(10).SerializeToString()] * 1000, pa.binary()))
    counts = [records for _, _, records in requests_of([in_spark(rows), in_spark(rows.slice(0, 5))])]
    assert counts == [ROWS_MAX, 10_000 - ROWS_MAX, 5]


def test_raw_requests_leave_as_they_came() -> None:
    bodies = [logs_request(count).SerializeToString() for count in (1, 2)]
    rows = raw_rows(Signal.LOGS, [RawRequest(body, "grpc", 1) for body in bodies])
    assert [(signal, body) for signal, body, _ in requests_of([rows])] == [(Signal.LOGS, body) for body in bodies]


def test_a_task_that_runs_again_is_stored_once_by_our_receiver(tmp_path: Path) -> None:
    requests = [(Signal.LOGS, logs_request(count).SerializeToString(), count) for count in (1, 2)]
    with flow(tmp_path) as running:
        target = OtlpTarget(f"http://{running.addresses['otlp_receiver.http']}")
        for key in ("query/7/0", "query/7/0", "query/7/1"):
            assert send(target, requests, key=key) == 3
        stored = running.rows("otlp.logs").column("request").to_pylist()
    assert stored == [body for _, body, _ in requests] * 2


def test_server_that_is_busy_or_refuses_the_token_is_asked_again(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret\n", encoding="utf-8")
    with HttpServer() as server:
        server.answers = [(503, {}), (401, {}), (500, {})]
        target = OtlpTarget(f"http://127.0.0.1:{server.port}/base", token_file=str(token))
        send(target, [(Signal.LOGS, b"a", 1), (Signal.TRACES, b"b", 1)], key="k")
        found = [(path, body, headers["idempotency-key"]) for path, headers, body in server.taken]
        assert found == [("/base/v1/logs", b"a", "k/0"), ("/base/v1/traces", b"b", "k/1")]
        assert server.taken[0][1]["authorization"] == "Bearer secret"


def test_request_that_the_server_calls_wrong_ends_the_query() -> None:
    with HttpServer() as server:
        server.answers = [(400, {})]
        target = OtlpTarget(f"http://127.0.0.1:{server.port}")
        with pytest.raises(BadRequest, match="/v1/logs: 400"):
            send(target, [(Signal.LOGS, b"a", 1)], key="k")


def test_server_that_stays_away_fails_the_task() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        addr = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ServerAway):
        send(OtlpTarget(addr), [(Signal.LOGS, b"a", 1)], key="k", patience_s=0.0)


@SIGNALS
def test_rows_that_lack_a_column_of_telemetry_are_refused(signal: Signal) -> None:
    names = SCHEMAS[signal].names
    check_columns([*names, "more"])
    with pytest.raises(BadRequest, match=f"no OTLP {signal.value}: they lack {names[-1]}"):
        check_columns(names[:-1])


@pytest.mark.parametrize(
    ("keys", "place"),
    [
        ({"addr": "collector:4318"}, "outputs.o.addr"),
        ({}, "outputs.o.addr"),
        ({"addr": "http://c:4318", "path": "x"}, "outputs.o.path"),
        ({"addr": "http://c:4318", "options": {"a": "b"}}, "outputs.o.options.a"),
        ({"addr": "http://c:4318", "token": "a", "token_file": "b"}, "outputs.o.token_file"),
    ],
)
def test_output_that_cannot_send_otlp_is_refused_with_its_place(keys: dict[str, Any], place: str) -> None:
    builder = Pipeline.builder("p", checkpoint="c").source("s", channel="a", path="d")
    with pytest.raises(BadRequest, match=place):
        builder.output("o", format="otlp", **keys).build()
    found = Pipeline.builder("p", checkpoint="c").source("s", channel="a", path="d")
    assert "otlp to http://c:4318" in found.output("o", format="otlp", addr="http://c:4318").build().graph()
