"""Rows to a request: the inverse of decoding, whole columns at a time.

Promise: decoding the request gives the rows again, except that bytes and doubled keys inside nested attribute values
come back as texts and single keys. Neighbouring rows of one resource, scope or metric share one envelope.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from opentelemetry.proto.common.v1 import common_pb2

from holdfast.wire.otlp import metrics
from holdfast.wire.otlp.descriptors import handler
from holdfast.wire.otlp.parts import Columns
from holdfast.wire.otlp.regroup import Numbers, changes, offsets, starts
from holdfast.wire.otlp.signals import Signal

RESOURCE = (
    "resource_attributes",
    "resource_attribute_types",
    "resource_dropped_attributes_count",
    "resource_schema_url",
)
SCOPE = (
    "scope_name",
    "scope_version",
    "scope_attributes",
    "scope_attribute_types",
    "scope_dropped_attributes_count",
    "scope_schema_url",
)
METRIC = (
    "name",
    "description",
    "unit",
    "kind",
    "aggregation_temporality",
    "is_monotonic",
    "metadata_attributes",
    "metadata_attribute_types",
)
"""Columns that rows of one resource, one scope, one metric have in common."""


def encode(signal: Signal, rows: pa.RecordBatch) -> bytes:
    """One request with all the rows."""
    rows = rows.take(pa.array(np.arange(rows.num_rows)))  # so that no column begins in the middle of its buffers
    top = handler(signal).schema().field(0).type
    resource_kind = top.value_type
    scopes = resource_kind.field(1).type
    records = scopes.value_type.field(1).type
    by_resource = starts(changes(rows, RESOURCE))
    new_scope = changes(rows, SCOPE)
    new_scope[by_resource] = True
    by_scope = starts(new_scope)
    items, begins = _ITEMS[signal](rows, records.value_type, by_scope)
    record_lists = _list(records, offsets(begins, by_scope), items)
    scope_items = _scopes(rows.take(pa.array(by_scope)), scopes.value_type, record_lists)
    scope_lists = _list(scopes, offsets(by_scope, by_resource), scope_items)
    resources = _resources(rows.take(pa.array(by_resource)), resource_kind, scope_lists)
    request = pa.RecordBatch.from_arrays(
        [_list(top, pa.array([0, len(resources)], pa.int32()), resources)], schema=handler(signal).schema()
    )
    data: bytes = handler(signal).record_batch_to_array(request)[0].as_py()
    return data


# ------------------------------------------------------------------------------------------------------------ envelopes


def _resources(rows: pa.RecordBatch, kind: pa.StructType, scope_lists: pa.Array) -> pa.StructArray:
    resource = _struct(
        kind.field("resource").type,
        {
            "attributes": _attributes(kind.field("resource").type.field("attributes").type, rows, "resource_"),
            "dropped_attributes_count": rows.column("resource_dropped_attributes_count"),
        },
        rows.num_rows,
    )
    columns = {"resource": resource, kind.field(1).name: scope_lists, "schema_url": rows.column("resource_schema_url")}
    return _struct(kind, columns, rows.num_rows)


def _scopes(rows: pa.RecordBatch, kind: pa.StructType, record_lists: pa.Array) -> pa.StructArray:
    scope = _struct(
        kind.field("scope").type,
        {
            "name": rows.column("scope_name"),
            "version": rows.column("scope_version"),
            "attributes": _attributes(kind.field("scope").type.field("attributes").type, rows, "scope_"),
            "dropped_attributes_count": rows.column("scope_dropped_attributes_count"),
        },
        rows.num_rows,
    )
    columns = {"scope": scope, kind.field(1).name: record_lists, "schema_url": rows.column("scope_schema_url")}
    return _struct(kind, columns, rows.num_rows)


# -------------------------------------------------------------------------------------------------------------- records


def _logs(rows: pa.RecordBatch, kind: pa.StructType, _scope_starts: Numbers) -> tuple[pa.StructArray, Numbers]:
    columns = {
        "time_unix_nano": _nanos(rows.column("time")),
        "observed_time_unix_nano": _nanos(rows.column("observed_time")),
        "body": _value(kind.field("body").type, rows.column("body"), rows.column("body_type")),
        "attributes": _attributes(kind.field("attributes").type, rows),
        "trace_id": _ids(rows.column("trace_id")),
        "span_id": _ids(rows.column("span_id")),
        **_same(rows, ("severity_number", "severity_text", "event_name", "dropped_attributes_count", "flags")),
    }
    columns["body"] = pc.if_else(
        pc.equal(rows.column("body_type").fill_null(0), 0), pa.scalar(None, columns["body"].type), columns["body"]
    )
    return _struct(kind, columns, rows.num_rows), np.arange(rows.num_rows)


def _spans(rows: pa.RecordBatch, kind: pa.StructType, _scope_starts: Numbers) -> tuple[pa.StructArray, Numbers]:
    status_kind = kind.field("status").type
    status = {"code": rows.column("status_code"), "message": rows.column("status_message")}
    columns = {
        "start_time_unix_nano": _nanos(rows.column("start_time")),
        "end_time_unix_nano": _nanos(rows.column("end_time")),
        "attributes": _attributes(kind.field("attributes").type, rows),
        "events": _inner(rows.column("events"), kind.field("events").type, _event),
        "links": _inner(rows.column("links"), kind.field("links").type, _link),
        "status": _struct(status_kind, status, rows.num_rows),
        **{name: _ids(rows.column(name)) for name in ("trace_id", "span_id", "parent_span_id")},
        **_same(
            rows,
            ("trace_state", "name", "kind", "flags", "dropped_attributes_count", "dropped_events_count"),
        ),
        "dropped_links_count": rows.column("dropped_links_count"),
    }
    return _struct(kind, columns, rows.num_rows), np.arange(rows.num_rows)


def _event(items: pa.RecordBatch, kind: pa.StructType) -> pa.StructArray:
    columns = {
        "time_unix_nano": _nanos(items.column("time")),
        "attributes": _attributes(kind.field("attributes").type, items),
        **_same(items, ("name", "dropped_attributes_count")),
    }
    return _struct(kind, columns, items.num_rows)


def _link(items: pa.RecordBatch, kind: pa.StructType) -> pa.StructArray:
    columns = {
        "trace_id": _ids(items.column("trace_id")),
        "span_id": _ids(items.column("span_id")),
        "attributes": _attributes(kind.field("attributes").type, items),
        **_same(items, ("trace_state", "dropped_attributes_count", "flags")),
    }
    return _struct(kind, columns, items.num_rows)


def _metrics(rows: pa.RecordBatch, kind: pa.StructType, scope_starts: Numbers) -> tuple[pa.StructArray, Numbers]:
    new_metric = changes(rows, METRIC)
    new_metric[scope_starts] = True
    begins = starts(new_metric)
    heads = rows.take(pa.array(begins))
    sizes = np.diff(np.append(begins, rows.num_rows))
    columns: Columns = {
        "metadata": _attributes(kind.field("metadata").type, heads, "metadata_"),
        **_same(heads, ("name", "description", "unit")),
    }
    for name in metrics.KINDS:
        columns[name] = _points_of(name, kind.field(name).type, rows=rows, heads=heads, sizes_of=sizes)
    return _struct(kind, columns, heads.num_rows), begins


def _points_of(
    name: str, kind: pa.StructType, *, rows: pa.RecordBatch, heads: pa.RecordBatch, sizes_of: Numbers
) -> pa.StructArray:
    """The body of one kind for every metric; null for metrics of another kind."""
    is_kind = np.asarray(pc.equal(heads.column("kind"), name).fill_null(False), dtype=bool)
    sizes = np.where(is_kind, sizes_of, 0)
    points = rows.filter(pc.equal(rows.column("kind"), name).fill_null(False))
    lists = kind.field("data_points").type
    point_offsets = pa.array(np.append(0, np.cumsum(sizes)), pa.int32())
    data_points = _list(lists, point_offsets, _point(points, lists.value_type))
    columns = {"data_points": data_points, **_same(heads, ("aggregation_temporality", "is_monotonic"))}
    return _struct(kind, columns, heads.num_rows, mask=pa.array(~is_kind))


def _point(points: pa.RecordBatch, kind: pa.StructType) -> pa.StructArray:
    whole = points.column("value_int")
    columns: Columns = {
        "start_time_unix_nano": _nanos(points.column("start_time")),
        "time_unix_nano": _nanos(points.column("time")),
        "attributes": _attributes(kind.field("attributes").type, points),
        "as_int": whole,
        "as_double": pc.if_else(whole.is_valid(), pa.scalar(None, pa.float64()), points.column("value")),
        "quantile_values": points.column("quantiles"),
        **_same(points, ("count", "sum", "min", "max", "bucket_counts", "explicit_bounds", "scale", "zero_count")),
        **_same(points, ("zero_threshold", "positive", "negative", "flags")),
    }
    has = {field.name for field in kind}
    if "exemplars" in has:
        columns["exemplars"] = _inner(points.column("exemplars"), kind.field("exemplars").type, _exemplar)
    return _struct(kind, {name: column for name, column in columns.items() if name in has}, points.num_rows)


def _exemplar(items: pa.RecordBatch, kind: pa.StructType) -> pa.StructArray:
    columns = {
        "time_unix_nano": _nanos(items.column("time")),
        "as_double": items.column("value_double"),
        "as_int": items.column("value_int"),
        "trace_id": _ids(items.column("trace_id")),
        "span_id": _ids(items.column("span_id")),
        "filtered_attributes": _attributes(kind.field("filtered_attributes").type, items),
    }
    return _struct(kind, columns, items.num_rows)


_Items = Callable[[pa.RecordBatch, pa.StructType, Numbers], tuple[pa.StructArray, Numbers]]
_ITEMS: dict[Signal, _Items] = {Signal.LOGS: _logs, Signal.TRACES: _spans, Signal.METRICS: _metrics}


# --------------------------------------------------------------------------------------------------------------- values


def _attributes(kind: pa.ListType, rows: pa.RecordBatch, prefix: str = "") -> pa.ListArray:
    texts, codes = rows.column(f"{prefix}attributes"), rows.column(f"{prefix}attribute_types")
    pair = kind.value_type
    value = _value(pair.field("value").type, texts.items, codes.values)
    return _list(kind, texts.offsets, _struct(pair, {"key": texts.keys, "value": value}, len(texts.keys)))


def _value(kind: pa.StructType, texts: pa.Array, codes: pa.Array) -> pa.StructArray:
    columns: Columns = {}
    present = set(codes.unique().to_pylist())
    for code, (name, convert) in _FROM_TEXT.items():
        if code in present:
            own = pc.if_else(pc.equal(codes, code), texts, pa.scalar(None, pa.string()))
            columns[name] = convert(own)
    return _struct(kind, columns, len(texts))


def _each_distinct(texts: pa.Array, bytes_of: Callable[[str], bytes]) -> pa.Array:
    encoded = texts.dictionary_encode()
    found = pa.array([bytes_of(text) for text in encoded.dictionary.to_pylist()], pa.binary())
    return found.take(encoded.indices)


def _list_bytes(text: str) -> bytes:
    value = common_pb2.AnyValue()
    _fill(value, json.loads(text))
    data: bytes = value.array_value.SerializeToString()
    return data


def _map_bytes(text: str) -> bytes:
    value = common_pb2.AnyValue()
    _fill(value, json.loads(text))
    data: bytes = value.kvlist_value.SerializeToString()
    return data


def _fill(target: common_pb2.AnyValue, value: object) -> None:
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int):
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, list):
        target.array_value.SetInParent()
        for item in value:
            _fill(target.array_value.values.add(), item)
    elif isinstance(value, dict):
        target.kvlist_value.SetInParent()
        for key, item in value.items():
            _fill(target.kvlist_value.values.add(key=key).value, item)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return text.encode()


_FROM_TEXT: dict[int, tuple[str, Callable[[pa.Array], pa.Array]]] = {
    1: ("string_value", lambda texts: texts),
    2: ("int_value", lambda texts: texts.cast(pa.int64())),
    3: ("double_value", lambda texts: texts.cast(pa.float64())),
    4: ("bool_value", lambda texts: texts.cast(pa.bool_())),
    5: ("kvlist_value", lambda texts: _each_distinct(texts, _map_bytes)),
    6: ("array_value", lambda texts: _each_distinct(texts, _list_bytes)),
    7: ("bytes_value", lambda texts: _each_distinct(texts, _from_base64)),
}


def _ids(texts: pa.Array) -> pa.Array:
    """Hex to bytes; the texts are those that decoding made."""
    filled = texts.fill_null("")
    begins = np.asarray(pc.binary_length(filled)).astype(np.int64).cumsum() // 2
    data = bytes.fromhex("".join(filled.to_pylist()))
    ends = pa.array(np.append(0, begins), pa.int32())
    return pa.Array.from_buffers(pa.binary(), len(texts), [None, ends.buffers()[1], pa.py_buffer(data)])


def _nanos(times: pa.Array) -> pa.Array:
    return times.cast(pa.timestamp("ns", "UTC")).view(pa.int64()).fill_null(0).cast(pa.uint64(), safe=False)


def _same(rows: pa.RecordBatch, names: tuple[str, ...]) -> Columns:
    return {name: rows.column(name) for name in names}


def _inner(
    lists: pa.ListArray, kind: pa.ListType, build: Callable[[pa.RecordBatch, pa.StructType], pa.StructArray]
) -> pa.ListArray:
    items = pa.RecordBatch.from_struct_array(lists.values)
    return _list(kind, lists.offsets, build(items, kind.value_type))


# ---------------------------------------------------------------------------------------------------------------- shape


def _struct(kind: pa.StructType, columns: Columns, rows: int, *, mask: pa.Array | None = None) -> pa.StructArray:
    """A struct of exactly that type; what is not given, or null where null is not allowed, is protobuf's default."""
    arrays = [_fitting(columns.get(field.name), field, rows) for field in kind]
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=mask)


def _fitting(column: pa.Array | None, field: pa.Field, rows: int) -> pa.Array:
    if column is None:
        return pa.nulls(rows, field.type) if field.nullable else _defaults(field.type, rows)
    if column.type != field.type:
        column = _cast(column, field.type)
    return column if field.nullable or not column.null_count else _filled(column, field.type)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_list(kind):
        return _list(kind, column.offsets, _cast(column.values, kind.value_type))
    if pa.types.is_struct(kind):
        inner = {field.name: column.field(field.name) for field in kind if column.type.get_field_index(field.name) >= 0}
        mask = column.is_null() if column.null_count else None
        return _struct(kind, inner, len(column), mask=mask)
    return column.cast(kind, safe=False)


def _filled(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_list(kind):
        return _list(kind, column.offsets, column.values)
    return column.fill_null(_defaults(kind, 1)[0])


def _defaults(kind: pa.DataType, rows: int) -> pa.Array:
    if pa.types.is_list(kind):
        return _list(kind, pa.array(np.zeros(rows + 1), pa.int32()), _no_items(kind.value_type))
    return pa.array(np.zeros(rows, np.int8)).cast(kind) if not _is_bytes(kind) else pa.array([b""] * rows, kind)


def _no_items(kind: pa.DataType) -> pa.Array:
    return pa.array([], kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _list(kind: pa.ListType, begins: pa.Array, items: pa.Array) -> pa.ListArray:
    if items.type != kind.value_type:
        items = _cast(items, kind.value_type)
    return pa.Array.from_buffers(kind, len(begins) - 1, [None, begins.cast(pa.int32()).buffers()[1]], children=[items])
