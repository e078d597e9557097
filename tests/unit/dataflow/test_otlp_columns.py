"""Requests to columns and back: what each column holds, and that nothing is lost on the way."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest

from holdfast.errors import LimitReached, SchemaMismatch, WireError
from holdfast.wire.otlp.check import check
from holdfast.wire.otlp.decode import SCHEMAS, decode, decode_rows
from holdfast.wire.otlp.encode import encode
from holdfast.wire.otlp.envelopes import ITEMS_MAX, SMALL_BYTES
from holdfast.wire.otlp.raw import RawRequest, decoded, is_raw, raw_rows, signal_of
from holdfast.wire.otlp.signals import Signal
from holdfast.wire.otlp.varint import varint
from tests.unit.dataflow.otlp_samples import (
    SECOND,
    logs_request,
    metrics_request,
    put,
    sample,
    traces_request,
)

SIGNALS = pytest.mark.parametrize("signal", list(Signal), ids=lambda signal: signal.value)


def rows_of(signal: Signal, *requests: object) -> pa.RecordBatch:
    bodies = [request.SerializeToString() for request in requests]  # type: ignore[attr-defined]
    return decode_rows(signal, pa.array(bodies, pa.binary()))


def test_log_columns_hold_what_was_sent() -> None:
    row = rows_of(Signal.LOGS, logs_request(3)).to_pylist()[2]
    assert row["body"] == "order 2"
    assert row["time"].value == SECOND + 2
    assert (row["severity_number"], row["severity_text"], row["event_name"]) == (9, "INFO", "paid")
    assert row["trace_id"] == "000102030405060708090a0b0c0d0e0f"
    assert row["span_id"] == "0001020304050607"
    assert row["service_name"] == "shop"
    assert dict(row["resource_attributes"]) == {"service.name": "shop", "host.cpus": "4"}
    assert (row["scope_name"], row["scope_version"]) == ("checkout", "1.2")
    assert row["resource_schema_url"] == "https://example.org/r"


def test_attribute_values_are_texts_with_a_code_of_what_they_were() -> None:
    row = rows_of(Signal.LOGS, logs_request(1)).to_pylist()[0]
    assert dict(row["attributes"]) == {
        "order": "0",
        "ratio": "0.5",
        "ok": "true",
        "name": "a",
        "raw": "AP8=",
        "tags": '["x",1,2.5,null]',
        "inner": '{"deep":{"er":[true]}}',
    }
    assert row["attribute_types"] == [2, 3, 4, 1, 7, 6, 5]


def test_span_columns_hold_events_and_links() -> None:
    row = rows_of(Signal.TRACES, traces_request(2)).to_pylist()[1]
    assert (row["name"], row["kind"], row["duration_ns"]) == ("GET /1", 2, 1001)
    assert (row["status_code"], row["status_message"]) == (2, "failed")
    assert row["events"][0]["name"] == "exception"
    assert dict(row["events"][0]["attributes"]) == {"message": "no"}
    assert row["links"][0]["span_id"] == "0706050403020100"
    assert row["parent_span_id"] == "0001020304050607"


def test_points_of_all_five_kinds_are_rows() -> None:
    rows = {row["name"]: row for row in rows_of(Signal.METRICS, metrics_request()).to_pylist()}
    assert {name: row["kind"] for name, row in rows.items()} == {
        "temperature": "gauge",
        "requests": "sum",
        "latency": "histogram",
        "sizes": "exponential_histogram",
        "old": "summary",
    }
    assert rows["temperature"]["value"] == 21.5
    assert rows["temperature"]["exemplars"][0]["value_int"] == 3
    assert (rows["requests"]["value_int"], rows["requests"]["is_monotonic"]) == (2**53 + 1, True)
    assert rows["latency"]["bucket_counts"] == [1, 2, 3]
    assert rows["latency"]["explicit_bounds"] == [1.0, 5.0]
    assert rows["sizes"]["positive"] == {"offset": 3, "bucket_counts": [1, 2]}
    assert rows["sizes"]["negative"] is None
    assert (rows["sizes"]["scale"], rows["sizes"]["zero_count"]) == (-1, 2)
    assert rows["old"]["quantiles"][1] == {"quantile": 0.99, "value": 3.0}
    assert rows["old"]["aggregation_temporality"] is None


@SIGNALS
def test_rows_have_the_documented_schema_and_are_valid(signal: Signal) -> None:
    rows = rows_of(signal, sample(signal), sample(signal))
    assert rows.schema.equals(SCHEMAS[signal])
    rows.validate(full=True)
    assert signal_of(rows.schema) is signal


@SIGNALS
def test_rows_become_the_same_rows_when_sent_on(signal: Signal) -> None:
    rows = rows_of(signal, sample(signal), sample(signal))
    again = decode_rows(signal, pa.array([encode(signal, rows)], pa.binary()))
    assert again.equals(rows)


@SIGNALS
def test_a_slice_of_rows_is_sent_on_as_that_slice(signal: Signal) -> None:
    part = rows_of(signal, sample(signal), sample(signal)).slice(1, 2)
    assert decode_rows(signal, pa.array([encode(signal, part)], pa.binary())).equals(part)


def test_metrics_that_are_sent_on_are_the_same_message() -> None:
    request = metrics_request()
    assert Signal.METRICS.request.FromString(encode(Signal.METRICS, rows_of(Signal.METRICS, request))) == request


def test_neighbours_of_one_resource_share_an_envelope() -> None:
    rows = rows_of(Signal.LOGS, logs_request(3, service="a"), logs_request(3, service="b"))
    request = Signal.LOGS.request.FromString(encode(Signal.LOGS, rows))
    services = [resource.resource.attributes[0].value.string_value for resource in request.resource_logs]
    assert services == ["a", "b"]
    assert [len(resource.scope_logs[0].log_records) for resource in request.resource_logs] == [3, 3]


def test_numbers_that_texts_must_not_bend_survive() -> None:
    request = logs_request(1)
    put(request.resource_logs[1].scope_logs[0].log_records[0].attributes, third=1 / 3, huge=2**63 - 1, least=-(2**63))
    put(request.resource_logs[1].scope_logs[0].log_records[0].attributes, inf=math.inf, tiny=5e-324)
    rows = rows_of(Signal.LOGS, request)
    back = Signal.LOGS.request.FromString(encode(Signal.LOGS, rows)).resource_logs[0].scope_logs[0].log_records[0]
    assert list(back.attributes) == list(request.resource_logs[1].scope_logs[0].log_records[0].attributes)


def test_an_absent_time_or_id_is_null_and_stays_absent() -> None:
    request = Signal.LOGS.request()
    request.resource_logs.add().scope_logs.add().log_records.add()
    rows = rows_of(Signal.LOGS, request)
    row = rows.to_pylist()[0]
    assert [row[name] for name in ("time", "trace_id", "span_id", "body", "service_name", "scope_name")] == [None] * 6
    back = Signal.LOGS.request.FromString(encode(Signal.LOGS, rows))
    assert (
        back.resource_logs[0].scope_logs[0].log_records[0]
        == Signal.LOGS.request.FromString(request.SerializeToString()).resource_logs[0].scope_logs[0].log_records[0]
    )


def test_numbers_beyond_signed_ones_are_the_largest() -> None:
    request = metrics_request()
    point = request.resource_metrics[0].scope_metrics[0].metrics[2].histogram.data_points[0]
    point.count = 2**64 - 1
    point.time_unix_nano = 2**64 - 1
    row = next(row for row in rows_of(Signal.METRICS, request).to_pylist() if row["name"] == "latency")
    assert row["count"] == 2**63 - 1
    assert row["time"].value == 2**63 - 1


def test_envelopes_without_records_give_no_rows() -> None:
    request = Signal.LOGS.request()
    request.resource_logs.add().scope_logs.add()
    assert rows_of(Signal.LOGS, request, Signal.LOGS.request()).num_rows == 0
    empty = Signal.METRICS.request()
    empty.resource_metrics.add().scope_metrics.add().metrics.add(name="nothing")
    assert rows_of(Signal.METRICS, empty).num_rows == 0


@SIGNALS
def test_bytes_that_are_no_request_are_a_wire_error(signal: Signal) -> None:
    for body in (b"\xff\xff", sample(signal).SerializeToString()[:-3], b"\x0a\x05abc"):
        with pytest.raises(WireError):
            decode(signal, pa.array([body], pa.binary()))
        with pytest.raises(WireError):
            check(signal, body)


def test_a_nested_value_that_is_damaged_is_a_wire_error() -> None:
    request = logs_request(1)
    body = request.SerializeToString().replace(b"\x0a\x03\x0a\x01x", b"\x0a\x63\x0a\x01x")
    assert body != request.SerializeToString()
    with pytest.raises(WireError):
        decode(Signal.LOGS, pa.array([body], pa.binary()))
    with pytest.raises(WireError):
        check(Signal.LOGS, body)


@SIGNALS
def test_a_check_counts_records_and_keeps_the_bytes(signal: Signal) -> None:
    body = sample(signal).SerializeToString()
    checked = check(signal, body)
    assert checked.request is body
    assert (checked.records, checked.refused) == (rows_of(signal, sample(signal)).num_rows, 0)


def nested(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + varint(len(data)) + data


@pytest.mark.parametrize(
    ("signal", "request_bytes"),
    [
        (Signal.LOGS, b"\x0a\x00" * ITEMS_MAX + b"\x0a\x00"),
        (Signal.LOGS, nested(1, b"\x12\x00" * (ITEMS_MAX + 1))),
        (Signal.TRACES, nested(1, nested(2, b"\x12\x00" * (ITEMS_MAX + 1)))),
        (Signal.METRICS, nested(1, nested(2, nested(2, nested(5, b"\x0a\x00" * (ITEMS_MAX + 1)))))),
    ],
    ids=["resources", "scopes", "spans", "points"],
)
def test_a_request_of_empty_records_is_refused_before_it_is_parsed(signal: Signal, request_bytes: bytes) -> None:
    with pytest.raises(LimitReached, match="records"):
        check(signal, request_bytes)


@SIGNALS
def test_a_large_request_of_real_records_passes(signal: Signal) -> None:
    message = sample(signal)
    while len(message.SerializeToString()) <= SMALL_BYTES:
        message.MergeFrom(message)
    assert check(signal, message.SerializeToString()).records > 1000


def test_spans_without_ids_are_taken_out_and_counted() -> None:
    request = traces_request(3)
    request.resource_spans[0].scope_spans[0].spans[1].trace_id = b"short"
    body = request.SerializeToString()
    checked = check(Signal.TRACES, body)
    assert (checked.records, checked.refused) == (2, 1)
    kept = Signal.TRACES.request.FromString(checked.request).resource_spans[0].scope_spans[0].spans
    assert [span.name for span in kept] == ["GET /0", "GET /2"]
    found = decode(Signal.TRACES, pa.array([b"", body], pa.binary()))
    assert found.rows.column("name").to_pylist() == ["GET /0", "GET /2"]
    assert (found.refused.to_pylist(), found.request.to_pylist()) == ([0, 1], [1, 1])


@SIGNALS
def test_raw_rows_hold_the_request_and_open_to_its_records(signal: Signal) -> None:
    body = sample(signal).SerializeToString()
    rows = raw_rows(signal, [RawRequest(body, "grpc", 3), RawRequest(body, "http/json", 3)])
    assert is_raw(rows.schema)
    assert rows.column("request").to_pylist() == [body, body]
    assert rows.column("size_bytes").to_pylist() == [len(body)] * 2
    assert decoded(rows, channel="otlp").equals(rows_of(signal, sample(signal), sample(signal)))


def test_raw_rows_of_two_signals_cannot_be_opened_together() -> None:
    batches = [raw_rows(signal, [RawRequest(b"", "grpc", 0)]) for signal in (Signal.LOGS, Signal.TRACES)]
    with pytest.raises(SchemaMismatch, match="logs, traces"):
        decoded(pa.concat_batches(batches), channel="otlp")
