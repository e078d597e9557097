"""OTAP without I/O: rows to batches and back, what other senders may do, and what strangers may not."""

from __future__ import annotations

import random
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.errors import HoldfastError, LimitReached, StreamBroken, WireError
from holdfast.wire.otap import cbor, writing
from holdfast.wire.otap.decode import decode
from holdfast.wire.otap.encode import encode
from holdfast.wire.otap.limits import Limits
from holdfast.wire.otap.messages import (
    ArrowPayload,
    Batch,
    Payload,
    Status,
    path,
    read_batch,
    read_status,
    write_batch,
    write_status,
)
from holdfast.wire.otap.reading import StreamReader, Tables
from holdfast.wire.otap.writing import StreamWriter
from holdfast.wire.otlp.decode import decode_rows
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.otlp_samples import SECOND, logs_request, sample, traces_request

SIGNALS = pytest.mark.parametrize("signal", list(Signal), ids=lambda signal: signal.value)
LIMITS = Limits(20 << 20)


def stored(signal: Signal, *messages: Any) -> pa.RecordBatch:
    """The rows that an OTLP receiver stores of some requests."""
    found = messages or (sample(signal), sample(signal))
    return decode_rows(signal, pa.array([message.SerializeToString() for message in found], pa.binary()))


def opened(signal: Signal, tables: Tables, limits: Limits = LIMITS) -> pa.RecordBatch:
    """The rows of tables, whatever stream they came on."""
    return decode(signal, tables, limits).rows


def table(**columns: Any) -> pa.RecordBatch:
    """A table of arrays; a pair is an array and the encoding of its ids."""
    fields, arrays = [], []
    for name, column in columns.items():
        array, metadata = (column[0], {"encoding": column[1]}) if isinstance(column, tuple) else (column, None)
        fields.append(pa.field(name, array.type, metadata=metadata))
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


# ----------------------------------------------------------------------------------------------------------- round trip


@SIGNALS
@pytest.mark.parametrize("compression", ["none", "zstd", "lz4"])
def test_batches_of_a_stream_give_the_rows_that_otlp_stores(signal: Signal, compression: str) -> None:
    rows = stored(signal)
    writer, reader = StreamWriter(signal, compression=compression), StreamReader(signal, LIMITS)
    for expected_id in (1, 2, 3):
        batch_id, data = writer.write(encode(signal, rows.slice(0, rows.num_rows - expected_id + 1)))
        found = opened(signal, reader.read(read_batch(data)))
        assert batch_id == expected_id
        assert found.equals(rows.slice(0, rows.num_rows - expected_id + 1))


def test_values_that_otlp_leaves_out_stay_out() -> None:
    request = Signal.LOGS.request()
    scope = request.resource_logs.add().scope_logs.add()
    scope.log_records.add()
    scope.log_records.add(time_unix_nano=SECOND).body.string_value = ""
    scope.log_records.add().attributes.add(key="empty")
    rows = stored(Signal.LOGS, request)
    assert opened(Signal.LOGS, encode(Signal.LOGS, rows)).equals(rows)


def test_spans_that_have_not_ended_have_no_end() -> None:
    request = traces_request()
    request.resource_spans[0].scope_spans[0].spans[0].end_time_unix_nano = 0
    request.resource_spans[0].scope_spans[0].spans[1].start_time_unix_nano = 0
    rows = stored(Signal.TRACES, request)
    found = opened(Signal.TRACES, encode(Signal.TRACES, rows))
    assert found.equals(rows)
    assert found.column("end_time").null_count == 1


def test_later_batches_send_only_what_is_new_in_their_dictionaries() -> None:
    writer, reader = StreamWriter(Signal.LOGS), StreamReader(Signal.LOGS, LIMITS)
    sizes = []
    for service in ("a", "a", "b"):
        rows = stored(Signal.LOGS, logs_request(service=service))
        rows = rows.set_column(3, "severity_text", pa.array([f"level {service}"] * 3))
        data = writer.write(encode(Signal.LOGS, rows))[1]
        sizes.append(len(data))
        assert opened(Signal.LOGS, reader.read(read_batch(data))).equals(rows)
    assert sizes[1] < sizes[2] < sizes[0]


def test_a_dictionary_that_grows_too_large_begins_anew_under_another_schema_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "VALUES_MAX", 4)
    writer, reader = StreamWriter(Signal.LOGS), StreamReader(Signal.LOGS, LIMITS)
    ids = []
    for number in range(6):
        rows = stored(Signal.LOGS, logs_request())
        rows = rows.set_column(3, "severity_text", pa.array([f"level {number}"] * 3))
        batch = read_batch(writer.write(encode(Signal.LOGS, rows))[1])
        ids.append(batch.payloads[0].schema_id)
        assert opened(Signal.LOGS, reader.read(batch)).equals(rows)
    assert ids == ["logs/1"] * 4 + ["logs/2"] * 2


def test_a_column_that_never_repeats_is_sent_without_a_dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "VALUES_MAX", 4)
    writer, reader = StreamWriter(Signal.LOGS), StreamReader(Signal.LOGS, LIMITS)
    tables: Tables = {}
    for _ in range(2):
        rows = stored(Signal.LOGS, logs_request(8))
        rows = rows.set_column(3, "severity_text", pa.array([f"level {number}" for number in range(8)]))
        batch = read_batch(writer.write(encode(Signal.LOGS, rows))[1])
        tables = reader.read(batch)
        assert opened(Signal.LOGS, tables).equals(rows)
    assert tables[Payload.LOGS].schema.field("severity_text").type == pa.string()
    assert pa.types.is_dictionary(tables[Payload.LOGS].schema.field("event_name").type)


# -------------------------------------------------------------------------------------------------------- other senders


def test_ids_without_metadata_are_delta_encoded_and_sorted_attributes_find_their_records() -> None:
    attributes = table(
        parent_id=pa.array([0, 1, 1, 1, 2], pa.uint16()),  # k=v of 0, 1 and 2; then n=5 of 1; then n=6 of 2
        type=pa.array([1, 1, 1, 2, 2], pa.uint8()),
        key=pa.array(["k", "k", "k", "n", "n"]).dictionary_encode().cast(pa.dictionary(pa.uint8(), pa.string())),
        str=pa.array(["v", "v", "v", None, None]).dictionary_encode().cast(pa.dictionary(pa.uint16(), pa.string())),
        int=pa.array([None, None, None, 5, 6], pa.int64()),
    )
    root = table(
        id=pa.array([0, 1, 1, None], pa.uint16()),
        time_unix_nano=pa.array([SECOND] * 4, pa.timestamp("ns")),
        severity_number=pa.array([9, 9, 9, 17], pa.int32()).dictionary_encode(),
    )
    rows = opened(Signal.LOGS, {Payload.LOGS: root, Payload.LOG_ATTRS: attributes})
    assert rows.column("attributes").to_pylist() == [
        [("k", "v")],
        [("k", "v"), ("n", "5")],
        [("k", "v"), ("n", "6")],
        [],
    ]
    assert rows.column("severity_number").to_pylist() == [9, 9, 9, 17]
    assert rows.column("body_type").to_pylist() == [0] * 4


def test_plain_ids_are_taken_as_they_are() -> None:
    root = table(id=(pa.array([7, 3], pa.uint16()), "plain"), flags=pa.array([1, 2], pa.uint32()))
    attributes = table(
        parent_id=(pa.array([3, 7, 7], pa.uint16()), "plain"),
        type=pa.array([4, 4, 4], pa.uint8()),
        key=pa.array(["a", "a", "b"]),
        bool=pa.array([True, False, None]),
    )
    rows = opened(Signal.LOGS, {Payload.LOGS: root, Payload.LOG_ATTRS: attributes})
    assert rows.column("attributes").to_pylist() == [[("a", "false"), ("b", "false")], [("a", "true")]]


def test_resources_are_shared_by_their_ids() -> None:
    resource = pa.StructArray.from_arrays(
        [pa.array([4, 0, 1, None], pa.uint16()), pa.array([1, 1, 0, None], pa.uint32())],
        names=["id", "dropped_attributes_count"],
    )
    attributes = table(
        parent_id=pa.array([4, 5], pa.uint16()),
        type=pa.array([1, 1], pa.uint8()),
        key=pa.array(["service.name", "service.name"]),
        str=pa.array(["shop", "bank"]),
    )
    rows = opened(Signal.LOGS, {Payload.LOGS: table(resource=resource), Payload.RESOURCE_ATTRS: attributes})
    assert rows.column("service_name").to_pylist() == ["shop", "shop", "bank", None]
    assert rows.column("resource_dropped_attributes_count").to_pylist() == [1, 1, 0, 0]


def test_a_missing_value_column_makes_values_empty_and_a_null_is_the_default() -> None:
    attributes = table(
        parent_id=pa.array([0, 0, 0, 0], pa.uint16()),
        type=pa.array([1, 2, 7, 5], pa.uint8()),
        key=pa.array(["text", "whole", "bytes", "map"]),
        str=pa.array(["", None, None, None]),
        bytes=pa.nulls(4, pa.binary()),
        ser=pa.nulls(4, pa.binary()),
    )
    root = table(id=pa.array([0], pa.uint16()))
    rows = opened(Signal.LOGS, {Payload.LOGS: root, Payload.LOG_ATTRS: attributes})
    assert dict(rows.column("attributes").to_pylist()[0]) == {"text": "", "whole": None, "bytes": "", "map": "{}"}
    assert rows.column("attribute_types").to_pylist() == [[1, 0, 7, 5]]


def test_spans_without_ids_are_left_out_and_counted() -> None:
    root = table(
        trace_id=pa.array([b"t" * 16, None, b"t" * 16], pa.binary(16)),
        span_id=pa.array([b"s" * 8, b"s" * 8, None], pa.binary(8)),
        name=pa.array(["a", "b", "c"]),
        start_time_unix_nano=pa.array([SECOND] * 3, pa.timestamp("ns")),
        duration_time_unix_nano=pa.array([5] * 3, pa.duration("ns")),
    )
    found = decode(Signal.TRACES, {Payload.SPANS: root}, LIMITS)
    assert (found.rows.column("name").to_pylist(), found.refused) == (["a"], 2)
    assert found.rows.column("duration_ns").to_pylist() == [5]


def test_replaced_dictionaries_are_read_as_they_come() -> None:
    reader = StreamReader(Signal.LOGS, LIMITS)
    sink = writing._Out()
    kind = pa.dictionary(pa.uint8(), pa.string())
    writer = pa.ipc.new_stream(pa.PythonFile(sink, "w"), pa.schema([("severity_text", kind)]))
    for text in ("a", "b", "c"):
        writer.write_batch(table(severity_text=pa.array([text]).dictionary_encode().cast(kind)))
        batch = Batch(1, [ArrowPayload("x", Payload.LOGS, sink.taken())])
        assert opened(Signal.LOGS, reader.read(batch)).column("severity_text").to_pylist() == [text]


def test_the_same_schema_id_of_two_tables_is_two_streams() -> None:
    data = StreamWriter(Signal.LOGS).write(encode(Signal.LOGS, stored(Signal.LOGS)))[1]
    batch = read_batch(data)
    payloads = [ArrowPayload("same", payload.kind, payload.record) for payload in batch.payloads]
    assert opened(Signal.LOGS, StreamReader(Signal.LOGS, LIMITS).read(Batch(1, payloads))).equals(stored(Signal.LOGS))


def test_a_batch_without_tables_has_no_rows() -> None:
    assert opened(Signal.METRICS, StreamReader(Signal.METRICS, LIMITS).read(Batch(1, []))).num_rows == 0


# ------------------------------------------------------------------------------------------------------------- refusals


def batches(signal: Signal, count: int = 2) -> list[Batch]:
    """Batches of one stream."""
    writer, tables = StreamWriter(signal), encode(signal, stored(signal))
    return [read_batch(writer.write(tables)[1]) for _ in range(count)]


@pytest.mark.parametrize("kind", [99, 0, 25, Payload.SPANS])
def test_a_table_that_does_not_belong_is_refused_and_the_stream_goes_on(kind: int) -> None:
    first, second = batches(Signal.LOGS)
    reader = StreamReader(Signal.LOGS, LIMITS)
    with pytest.raises(WireError, match=r"payload type|does not belong"):
        reader.read(Batch(1, [*first.payloads, ArrowPayload("x", kind, b"")]))
    assert not reader.broken
    assert opened(Signal.LOGS, reader.read(second)).equals(stored(Signal.LOGS))


def test_a_table_that_is_there_twice_is_refused_and_the_stream_goes_on() -> None:
    first, second, third = batches(Signal.LOGS, 3)
    reader = StreamReader(Signal.LOGS, LIMITS)
    reader.read(first)
    with pytest.raises(WireError, match="twice"):
        reader.read(Batch(2, [*second.payloads, third.payloads[0]]))
    assert not reader.broken


def test_tables_without_their_root_are_refused() -> None:
    first = batches(Signal.LOGS)[0]
    with pytest.raises(WireError, match="no LOGS"):
        StreamReader(Signal.LOGS, LIMITS).read(Batch(1, first.payloads[1:]))


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9])
def test_arrow_that_is_cut_off_breaks_the_stream_and_the_next_batch_is_not_to_blame(cut: float) -> None:
    first, second = batches(Signal.LOGS)
    reader = StreamReader(Signal.LOGS, LIMITS)
    payload = first.payloads[0]
    record = payload.record[: int(len(payload.record) * cut)]
    with pytest.raises(WireError, match="LOGS"):
        reader.read(Batch(1, [ArrowPayload(payload.schema_id, payload.kind, record)]))
    assert "LOGS" in reader.broken
    with pytest.raises(StreamBroken, match="another"):
        reader.read(second)


def test_a_stream_that_begins_without_its_schema_is_broken() -> None:
    second = batches(Signal.LOGS)[1]
    reader = StreamReader(Signal.LOGS, LIMITS)
    with pytest.raises(WireError, match="without its schema"):
        reader.read(second)
    assert reader.broken


def test_a_second_schema_under_one_schema_id_breaks_the_stream() -> None:
    first = batches(Signal.LOGS)[0]
    reader = StreamReader(Signal.LOGS, LIMITS)
    reader.read(first)
    with pytest.raises(WireError, match="second schema"):
        reader.read(first)


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        ({Payload.LOG_ATTRS: table(parent_id=pa.array([0]), key=pa.array(["a"]))}, "unsigned"),
        ({Payload.LOG_ATTRS: table(parent_id=pa.array([0], pa.uint16()))}, "key"),
        ({Payload.LOG_ATTRS: table(key=pa.array(["a"]))}, "parent_id"),
        ({Payload.LOG_ATTRS: table(parent_id=(pa.array([0], pa.uint16()), "zip"), key=pa.array(["a"]))}, "encoding"),
        ({Payload.LOGS: table(severity_text=pa.array([1]))}, "not string"),
        ({Payload.LOGS: table(trace_id=pa.array(["text"]))}, "not binary"),
        ({Payload.LOGS: table(resource=pa.array([1]))}, "not a struct"),
        ({Payload.LOGS: table(flags=pa.array([-1])), Payload.RESOURCE_ATTRS: table(key=pa.array(["a"]))}, "parent_id"),
    ],
)
def test_columns_that_are_not_what_they_must_be_are_named(tables: Tables, reason: str) -> None:
    root = {Payload.LOGS: table(id=pa.array([0], pa.uint16()))}
    with pytest.raises(WireError, match=reason):
        opened(Signal.LOGS, {**root, **tables})


def test_a_type_of_no_value_is_refused() -> None:
    attributes = table(
        parent_id=pa.array([0], pa.uint16()), type=pa.array([8], pa.uint8()), key=pa.array(["a"]), str=pa.array(["b"])
    )
    with pytest.raises(WireError, match="between 0 and 7"):
        opened(Signal.LOGS, {Payload.LOGS: table(id=pa.array([0], pa.uint16())), Payload.LOG_ATTRS: attributes})


def test_points_of_a_metric_that_is_not_there_are_refused() -> None:
    root = table(id=pa.array([0], pa.uint16()), metric_type=pa.array([1], pa.uint8()), name=pa.array(["m"]))
    points = table(parent_id=pa.array([3], pa.uint16()), int_value=pa.array([1]))
    with pytest.raises(WireError, match="not in the batch"):
        opened(Signal.METRICS, {Payload.UNIVARIATE_METRICS: root, Payload.NUMBER_DATA_POINTS: points})
    with pytest.raises(WireError, match="another type"):
        opened(
            Signal.METRICS,
            {
                Payload.UNIVARIATE_METRICS: root,
                Payload.HISTOGRAM_DATA_POINTS: table(parent_id=pa.array([0], pa.uint16())),
            },
        )


# --------------------------------------------------------------------------------------------------------------- limits


def one_table(kind: Payload, batch: pa.RecordBatch, compression: str | None = None) -> Batch:
    """A batch of one table."""
    sink = writing._Out()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    pa.ipc.new_stream(pa.PythonFile(sink, "w"), batch.schema, options=options).write_batch(batch)
    return Batch(1, [ArrowPayload("x", kind, sink.taken())])


def test_a_table_that_inflates_beyond_the_limit_is_refused_before_it_does() -> None:
    bomb = one_table(Payload.LOGS, table(severity_text=pa.array(["x" * (64 << 20)])), "zstd")
    assert len(bomb.payloads[0].record) < 16 << 10
    reader = StreamReader(Signal.LOGS, Limits(1 << 20))
    before = pa.total_allocated_bytes()
    with pytest.raises(LimitReached, match="inflated"):
        reader.read(bomb)
    assert pa.total_allocated_bytes() - before < 1 << 20
    assert reader.broken


def test_tables_of_one_batch_share_the_limit() -> None:
    text = random.Random(1).randbytes(200_000).hex()
    found = [one_table(Payload.LOGS, table(severity_text=pa.array([text]))).payloads[0]]
    found += [one_table(Payload.LOG_ATTRS, table(key=pa.array([text]))).payloads[0]]
    with pytest.raises(LimitReached, match="inflated"):
        StreamReader(Signal.LOGS, Limits(600_000)).read(Batch(1, found))


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_long_text_behind_small_keys_is_refused_before_it_is_repeated(kind: pa.DataType) -> None:
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(60_000, np.uint8)), pa.array(["x" * 30_000], kind))
    tables = StreamReader(Signal.LOGS, Limits(1 << 20)).read(one_table(Payload.LOGS, table(severity_text=texts)))
    with pytest.raises(LimitReached, match="rows of a batch"):
        opened(Signal.LOGS, tables, Limits(1 << 16))


@pytest.mark.parametrize(
    "kind", [pa.string_view(), pa.list_(pa.string()), pa.struct([("a", pa.string())]), pa.struct([])]
)
def test_a_dictionary_whose_size_cannot_be_told_is_refused(kind: pa.DataType) -> None:
    values = pa.nulls(1, kind)
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2, np.uint8)), values)
    with pytest.raises(WireError, match="dictionary of"):
        opened(Signal.LOGS, {Payload.LOGS: table(severity_text=column)})


def test_a_large_resource_of_many_rows_is_refused_before_it_is_repeated() -> None:
    resource = pa.StructArray.from_arrays([pa.array(np.zeros(60_000), pa.uint16())], names=["id"])
    attributes = table(
        parent_id=pa.array([0], pa.uint16()),
        type=pa.array([1], pa.uint8()),
        key=pa.array(["a"]),
        str=pa.array(["x" * 30_000]),
    )
    with pytest.raises(LimitReached, match="rows of a batch"):
        opened(Signal.LOGS, {Payload.LOGS: table(resource=resource), Payload.RESOURCE_ATTRS: attributes})


def test_an_id_that_is_there_twice_does_not_multiply_its_children() -> None:
    root = table(id=(pa.array([5] * 1000, pa.uint16()), "plain"))
    attributes = table(
        parent_id=(pa.array([5] * 1000, pa.uint16()), "plain"),
        type=pa.array([0] * 1000, pa.uint8()),
        key=pa.array(["a"] * 1000),
    )
    with pytest.raises(WireError, match="twice"):
        opened(Signal.LOGS, {Payload.LOGS: root, Payload.LOG_ATTRS: attributes})


def test_more_rows_than_a_request_may_have_are_refused() -> None:
    many = table(nothing=pa.nulls((1 << 19) + 1))
    with pytest.raises(LimitReached, match="rows"):
        StreamReader(Signal.LOGS, LIMITS).read(one_table(Payload.LOGS, many))


def test_dictionaries_that_only_grow_end_the_stream_without_blame() -> None:
    reader, writer = StreamReader(Signal.LOGS, Limits(64 << 10)), StreamWriter(Signal.LOGS)
    caught: HoldfastError | None = None
    for number in range(20):
        rows = table(severity_text=pa.array([f"{number}" + "x" * 30_000]))
        try:
            reader.read(read_batch(writer.write({Payload.LOGS: rows})[1]))
        except HoldfastError as error:
            caught = error
            break
    assert isinstance(caught, StreamBroken)
    assert 5 < number < 12
    assert "dictionaries" in reader.broken


# ------------------------------------------------------------------------------------------------------------- messages


def test_messages_have_the_numbers_of_the_protocol() -> None:
    assert write_status(Status(5, 14, "no")) == b"\x08\x05\x10\x0e\x1a\x02no"
    assert read_status(b"\x08\x05\x10\x0e\x1a\x02no") == Status(5, 14, "no")
    batch = Batch(3, [ArrowPayload("s", 30, b"rec")])
    assert write_batch(batch) == b"\x08\x03\x12\x0a\x0a\x01s\x10\x1e\x1a\x03rec"
    assert read_batch(write_batch(batch)) == batch
    assert path(Signal.LOGS) == "/opentelemetry.proto.experimental.arrow.v1.ArrowLogsService/ArrowLogs"


def test_a_key_travels_in_the_headers_and_other_headers_are_left_alone() -> None:
    data = write_batch(Batch(1, [], "k" * 32))
    assert read_batch(data).key == "k" * 32
    assert b"\x1a\x32\x10\x0fidempotency-key\x20" + b"k" * 32 in data
    for other in (b"\x1a\x02\x82\x86", b"\x1a\x11\x10\x0fidempotency-key", b"\x1a\x12\x10\x0fidempotency-key\x05"):
        assert read_batch(b"\x08\x01" + other).key == ""


CBOR = [
    (b"\x00", 0),
    (b"\x18\x64", 100),
    (b"\x1b\x00\x00\x00\xe8\xd4\xa5\x10\x00", 1_000_000_000_000),
    (b"\x38\x63", -100),
    (b"\xf9\x3c\x00", 1.0),
    (b"\xfa\x47\xc3\x50\x00", 100000.0),
    (b"\xfb\x3f\xf1\x99\x99\x99\x99\x99\x9a", 1.1),
    (b"\xf4", False),
    (b"\xf6", None),
    (b"\x63\xc3\xbc\x21", "ü!"),
    (b"\x44\x01\x02\x03\x04", "AQIDBA=="),
    (b"\x83\x01\x82\x02\x03\x82\x04\x05", [1, [2, 3], [4, 5]]),
    (b"\xa2\x61\x61\x01\x61\x62\x82\x02\x03", {"a": 1, "b": [2, 3]}),
    (b"\x9f\x01\xff", [1]),
    (b"\xbf\x61\x61\x01\xff", {"a": 1}),
    (b"\x7f\x61\x61\x61\x62\xff", "ab"),
    (b"\x5f\x41\x01\x41\x02\xff", "AQI="),
    (b"\xc1\x1a\x51\x4b\x67\xb0", 1363896240),
]
"""Examples of RFC 8949, appendix A."""


@pytest.mark.parametrize(("data", "value"), CBOR)
def test_cbor_is_read_as_its_specification_shows(data: bytes, value: object) -> None:
    assert cbor.read(data) == value


@pytest.mark.parametrize("data", [b"", b"\xff", b"\x81", b"\x81\xff", b"\x1f", b"\x1c", b"\x00\x00", b"\xa1\x01\x01"])
def test_cbor_that_is_malformed_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        cbor.read(data)


@pytest.mark.parametrize(
    "data", [b"\x81" * 100 + b"\x00", b"\x9b" + b"\xff" * 8, b"\x1b" + b"\xff" * 8, b"\x7a\xff\xff\xff\xff"]
)
def test_cbor_that_claims_too_much_is_a_wire_error(data: bytes) -> None:
    with pytest.raises(WireError):
        cbor.read(data)


def test_cbor_survives_writing_and_reading() -> None:
    value = {"list": [0, 23, 24, 255, 256, 65535, 65536, 2**32, -1, -(2**63), 1.5, None, True, "x" * 300], "map": {}}
    assert cbor.read(cbor.write(value)) == value
    assert cbor.write(1.1) == b"\xfb" + struct.pack(">d", 1.1)


def test_quasi_delta_ids_are_added_only_while_rows_are_equal() -> None:
    events = table(parent_id=pa.array([0, 1, 1, 1], pa.uint16()), name=pa.array(["a", "a", "b", "b"]))
    root = table(
        id=pa.array([0, 1, 1], pa.uint16()),
        trace_id=pa.array([b"t" * 16] * 3, pa.binary(16)),
        span_id=pa.array([b"s" * 8] * 3, pa.binary(8)),
    )
    rows = opened(Signal.TRACES, {Payload.SPANS: root, Payload.SPAN_EVENTS: events})
    names = [[item["name"] for item in found] for found in rows.column("events").to_pylist()]
    assert names == [["a"], ["a", "b"], ["b"]]
    assert pc.list_value_length(rows.column("links")).to_pylist() == [0, 0, 0]
