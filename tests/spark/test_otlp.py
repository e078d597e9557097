"""OTLP requests opened by Spark on its executors."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast import Store
from holdfast.errors import BadRequest
from holdfast.spark.otlp import decode
from holdfast.wire.otlp.decode import SCHEMAS, decode_rows
from holdfast.wire.otlp.raw import RawRequest, raw_rows
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.otlp_samples import logs_request, sample

SIGNALS = pytest.mark.parametrize("signal", list(Signal), ids=lambda signal: signal.value)


def stored(tmp_path: Path, signal: Signal, bodies: list[bytes]) -> Path:
    with Store.open(tmp_path / "store") as store:
        for body in bodies:
            store.commit(f"otlp.{signal.value}", raw_rows(signal, [RawRequest(body, "grpc", 1)]))
    return tmp_path / "store"


@SIGNALS
def test_raw_requests_become_the_documented_columns(spark: SparkSession, tmp_path: Path, signal: Signal) -> None:
    bodies = [sample(signal).SerializeToString()] * 2
    path = stored(tmp_path, signal, bodies)
    source = spark.read.format("holdfast").option("path", str(path)).option("channel", f"otlp.{signal.value}")
    rows = decode(source.load(), signal.value)
    assert rows.columns == SCHEMAS[signal].names
    expected = decode_rows(signal, pa.array(bodies, pa.binary()))
    names = ["service_name", "name"] if signal is not Signal.LOGS else ["service_name", "body", "trace_id"]
    found = sorted(tuple(row) for row in rows.select(*names).collect())
    assert found == sorted(zip(*(expected.column(name).to_pylist() for name in names), strict=True))


def test_columns_of_the_event_come_along_when_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    path = stored(tmp_path, Signal.LOGS, [logs_request(2).SerializeToString(), logs_request(1).SerializeToString()])
    source = spark.read.format("holdfast").option("path", str(path)).option("channel", "otlp.logs")
    frame = source.option("includeMetadata", "true").load()
    rows = decode(frame, "logs", keep=["_seq", "protocol"])
    assert rows.columns[-2:] == ["_seq", "protocol"]
    assert sorted((row._seq, row.body, row.protocol) for row in rows.collect()) == [
        (1, "order 0", "grpc"),
        (1, "order 1", "grpc"),
        (2, "order 0", "grpc"),
    ]


def test_a_frame_without_requests_is_refused_at_once(spark: SparkSession) -> None:
    with pytest.raises(BadRequest, match="'request'"):
        decode(spark.range(1), "logs")
    with pytest.raises(BadRequest, match="logs, traces, metrics"):
        decode(spark.range(1), "profiles")
