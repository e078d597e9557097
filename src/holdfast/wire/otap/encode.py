"""Rows to tables: the inverse of decoding, whole columns at a time.

Promise: decoding the tables gives the rows again, attributes in their order, except that ids of a wrong length become
none. Neighbouring rows of one resource, scope or metric share its id. At most `ROWS_MAX` rows, since ids have 16 bits.

Ids ascend and are delta-encoded, as every receiver expects them without being told. Only exemplars have plain ids:
implementations do not agree on when two of them are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.wire.otap import ids
from holdfast.wire.otap.ids import DELTA, PLAIN, QUASI_DELTA, Flags, Numbers
from holdfast.wire.otap.messages import Payload
from holdfast.wire.otap.metrics import EXPONENTIAL, GAUGE, HISTOGRAM, SUMMARY, TABLES, Points
from holdfast.wire.otap.reading import Tables
from holdfast.wire.otap.tables import equals_last
from holdfast.wire.otap.values import EMPTY, LIST, MAP, write_values
from holdfast.wire.otlp.encode import METRIC, RESOURCE, SCOPE
from holdfast.wire.otlp.metrics import KINDS
from holdfast.wire.otlp.regroup import changes, starts
from holdfast.wire.otlp.signals import Signal

ROWS_MAX = 8192
"""Rows of one batch; far below what 16 bits can name, and what collectors send at most."""
TRACE_ID, SPAN_ID = pa.binary(16), pa.binary(8)
_TIME = pa.timestamp("ns")

Named = list[tuple[pa.Field, pa.Array]]


def encode(signal: Signal, rows: pa.RecordBatch) -> Tables:
    """The tables of a batch with all the rows; tables without rows are left out."""
    assert rows.num_rows <= ROWS_MAX, rows.num_rows
    rows = rows.take(pa.array(np.arange(rows.num_rows)))  # so that no column begins in the middle of its buffers
    tables = _ENCODERS[signal](rows)
    return {kind: table for kind, table in tables.items() if table.num_rows}


# ---------------------------------------------------------------------------------------------------------------- roots


def _logs(rows: pa.RecordBatch) -> Tables:
    context, tables = _context(rows)
    row_ids = np.arange(rows.num_rows)
    body = write_values(rows.column("body"), rows.column("body_type"))
    tables[Payload.LOGS] = _table(
        [
            _id("id", row_ids, pa.uint16()),
            *context,
            _plain("time_unix_nano", _times(rows.column("time"))),
            _plain("observed_time_unix_nano", _times(rows.column("observed_time"))),
            _plain("trace_id", _bytes(rows.column("trace_id"), TRACE_ID)),
            _plain("span_id", _bytes(rows.column("span_id"), SPAN_ID)),
            _plain("severity_number", rows.column("severity_number")),
            _plain("severity_text", rows.column("severity_text")),
            _plain("event_name", rows.column("event_name")),
            _struct("body", [_plain(name, column) for name, column in body.items()]),
            *_counters(rows, ("dropped_attributes_count", "flags")),
        ]
    )
    tables[Payload.LOG_ATTRS] = _attributes(rows, row_ids, pa.uint16())
    return tables


def _spans(rows: pa.RecordBatch) -> Tables:
    context, tables = _context(rows)
    row_ids = np.arange(rows.num_rows)
    start, end = rows.column("start_time"), rows.column("end_time")
    begin = start.cast(pa.timestamp("ns", "UTC")).view(pa.int64()).fill_null(0)
    lasted = pc.subtract(end.cast(pa.timestamp("ns", "UTC")).view(pa.int64()), begin)
    status = [("code", rows.column("status_code")), ("status_message", rows.column("status_message"))]
    tables[Payload.SPANS] = _table(
        [
            _id("id", row_ids, pa.uint16()),
            *context,
            _plain("start_time_unix_nano", _times(start)),
            _plain("duration_time_unix_nano", lasted.view(pa.duration("ns"))),
            _plain("trace_id", _bytes(rows.column("trace_id"), TRACE_ID)),
            _plain("span_id", _bytes(rows.column("span_id"), SPAN_ID)),
            _plain("trace_state", rows.column("trace_state")),
            _plain("parent_span_id", _bytes(rows.column("parent_span_id"), SPAN_ID)),
            _plain("name", rows.column("name")),
            _plain("kind", rows.column("kind")),
            *_counters(rows, ("dropped_attributes_count", "dropped_events_count", "dropped_links_count", "flags")),
            _struct("status", [_plain(name, column) for name, column in status]),
        ]
    )
    tables[Payload.SPAN_ATTRS] = _attributes(rows, row_ids, pa.uint16())
    events, owners = _inner(rows.column("events"), row_ids)
    own = [("time_unix_nano", _times(events.column("time"))), ("name", events.column("name"))]
    tables[Payload.SPAN_EVENTS] = _children(events, owners, own, equal="name", counters=("dropped_attributes_count",))
    tables[Payload.SPAN_EVENT_ATTRS] = _attributes(events, np.arange(events.num_rows), pa.uint32())
    links, owners = _inner(rows.column("links"), row_ids)
    own = [
        ("trace_id", _bytes(links.column("trace_id"), TRACE_ID)),
        ("span_id", _bytes(links.column("span_id"), SPAN_ID)),
        ("trace_state", links.column("trace_state")),
    ]
    counters = ("dropped_attributes_count", "flags")
    tables[Payload.SPAN_LINKS] = _children(links, owners, own, equal="trace_id", counters=counters)
    tables[Payload.SPAN_LINK_ATTRS] = _attributes(links, np.arange(links.num_rows), pa.uint32())
    return tables


def _metrics(rows: pa.RecordBatch) -> Tables:
    new_metric = changes(rows, METRIC) | changes(rows, SCOPE) | changes(rows, RESOURCE)
    begins = starts(new_metric)
    heads = rows.take(pa.array(begins))
    metric_of = np.cumsum(new_metric) - 1
    context, tables = _context(heads)
    types = pc.index_in(heads.column("kind"), pa.array(KINDS, pa.string())).fill_null(-1)
    metric_types = np.asarray(types).astype(np.int64) + GAUGE
    same = ("name", "description", "unit", "aggregation_temporality", "is_monotonic")
    tables[Payload.UNIVARIATE_METRICS] = _table(
        [
            _id("id", np.arange(heads.num_rows), pa.uint16()),
            *context,
            _plain("metric_type", pa.array(metric_types, pa.uint8())),
            *(_plain(name, heads.column(name)) for name in same),
        ]
    )
    tables[Payload.METRIC_ATTRS] = _attributes(heads, np.arange(heads.num_rows), pa.uint16(), "metadata_")
    for kinds in TABLES:
        at = np.flatnonzero(np.isin(metric_types[metric_of], kinds.types))
        if len(at):
            tables |= _points(kinds, rows.take(pa.array(at)), metric_of[at])
    return tables


def _points(kinds: Points, rows: pa.RecordBatch, metric_of: Numbers) -> Tables:
    row_ids = np.arange(rows.num_rows)
    tables: Tables = {
        kinds.points: _table(
            [
                _id("id", row_ids, pa.uint32()),
                _id("parent_id", metric_of, pa.uint16()),
                _plain("start_time_unix_nano", _times(rows.column("start_time"))),
                _plain("time_unix_nano", _times(rows.column("time"))),
                *_POINTS[kinds.types[0]](rows),
                *_counters(rows, ("flags",)),
            ]
        ),
        kinds.attributes: _attributes(rows, row_ids, pa.uint32()),
    }
    if kinds.exemplars is not None and kinds.exemplar_attributes is not None:
        found, owners = _inner(rows.column("exemplars"), row_ids)
        tables[kinds.exemplars] = _table(
            [
                _id("id", np.arange(found.num_rows), pa.uint32()),
                _encoded("parent_id", owners, pa.uint32(), PLAIN),
                _plain("time_unix_nano", _times(found.column("time"))),
                _plain("int_value", found.column("value_int")),
                _plain("double_value", found.column("value_double")),
                _plain("span_id", _bytes(found.column("span_id"), SPAN_ID)),
                _plain("trace_id", _bytes(found.column("trace_id"), TRACE_ID)),
            ]
        )
        tables[kinds.exemplar_attributes] = _attributes(found, np.arange(found.num_rows), pa.uint32())
    return tables


def _numbers(rows: pa.RecordBatch) -> Named:
    whole = rows.column("value_int")
    double = pc.if_else(whole.is_valid(), pa.scalar(None, pa.float64()), rows.column("value"))
    return [_plain("int_value", whole), _plain("double_value", double)]


def _histogram(rows: pa.RecordBatch) -> Named:
    return [
        *_same(rows, ("count",), pa.uint64()),
        *_same(rows, ("sum", "min", "max"), pa.float64()),
        *_same(rows, ("bucket_counts",), pa.list_(pa.uint64())),
        *_same(rows, ("explicit_bounds",), pa.list_(pa.float64())),
    ]


def _exponential(rows: pa.RecordBatch) -> Named:
    buckets = pa.struct([("offset", pa.int32()), ("bucket_counts", pa.list_(pa.uint64()))])
    return [
        *_same(rows, ("count", "zero_count"), pa.uint64()),
        *_same(rows, ("sum", "min", "max", "zero_threshold"), pa.float64()),
        *_same(rows, ("scale",), pa.int32()),
        *_same(rows, ("positive", "negative"), buckets),
    ]


def _summary(rows: pa.RecordBatch) -> Named:
    return [
        *_same(rows, ("count",), pa.uint64()),
        *_same(rows, ("sum",), pa.float64()),
        _plain("quantile", rows.column("quantiles")),
    ]


_POINTS: dict[int, Callable[[pa.RecordBatch], Named]] = {
    GAUGE: _numbers,
    HISTOGRAM: _histogram,
    EXPONENTIAL: _exponential,
    SUMMARY: _summary,
}
_ENCODERS: dict[Signal, Callable[[pa.RecordBatch], Tables]] = {
    Signal.LOGS: _logs,
    Signal.TRACES: _spans,
    Signal.METRICS: _metrics,
}


# -------------------------------------------------------------------------------------------------------------- context


def _context(rows: pa.RecordBatch) -> tuple[Named, Tables]:
    """Resource and scope of each row, and their attributes."""
    new_resource = changes(rows, RESOURCE)
    new_scope = changes(rows, SCOPE) | new_resource
    columns = [
        _struct(
            "resource",
            [
                _id("id", np.cumsum(new_resource) - 1, pa.uint16()),
                _plain("schema_url", rows.column("resource_schema_url")),
                *_counters(rows, ("resource_dropped_attributes_count",), "resource_"),
            ],
        ),
        _struct(
            "scope",
            [
                _id("id", np.cumsum(new_scope) - 1, pa.uint16()),
                _plain("name", rows.column("scope_name")),
                _plain("version", rows.column("scope_version")),
                *_counters(rows, ("scope_dropped_attributes_count",), "scope_"),
            ],
        ),
        _plain("schema_url", rows.column("scope_schema_url")),
    ]
    resources, scopes = (rows.take(pa.array(starts(flags))) for flags in (new_resource, new_scope))
    tables: Tables = {
        Payload.RESOURCE_ATTRS: _attributes(resources, np.arange(resources.num_rows), pa.uint16(), "resource_"),
        Payload.SCOPE_ATTRS: _attributes(scopes, np.arange(scopes.num_rows), pa.uint16(), "scope_"),
    }
    return columns, tables


# ------------------------------------------------------------------------------------------------------------- children


def _attributes(rows: pa.RecordBatch, row_ids: Numbers, kind: pa.DataType, prefix: str = "") -> pa.RecordBatch:
    texts, codes = rows.column(f"{prefix}attributes"), rows.column(f"{prefix}attribute_types").values
    owners = np.repeat(row_ids, np.diff(np.asarray(texts.offsets)))
    keys, items = texts.keys, texts.items
    same = equals_last(keys, items, codes)
    same &= ~np.isin(np.asarray(codes), (EMPTY, MAP, LIST))
    values = write_values(items, codes)
    return _table(
        [
            _encoded("parent_id", ids.to_quasi_delta(owners, same), kind, QUASI_DELTA),
            _plain("key", keys),
            *(_plain(name, column) for name, column in values.items()),
        ]
    )


def _inner(lists: pa.ListArray, row_ids: Numbers) -> tuple[pa.RecordBatch, Numbers]:
    """The items of lists as rows, and whose each is."""
    owners = np.repeat(row_ids, np.diff(np.asarray(lists.offsets)))
    return pa.RecordBatch.from_struct_array(lists.values), owners


def _children(
    rows: pa.RecordBatch,
    owners: Numbers,
    own: list[tuple[str, pa.Array]],
    *,
    equal: str,
    counters: tuple[str, ...],
) -> pa.RecordBatch:
    same: Flags = equals_last(dict(own)[equal])
    return _table(
        [
            _id("id", np.arange(rows.num_rows), pa.uint32()),
            _encoded("parent_id", ids.to_quasi_delta(owners, same), pa.uint16(), QUASI_DELTA),
            *(_plain(name, column) for name, column in own),
            *_counters(rows, counters),
        ]
    )


# -------------------------------------------------------------------------------------------------------------- columns


def _plain(name: str, column: pa.Array) -> tuple[pa.Field, pa.Array]:
    return pa.field(name, column.type), column


def _id(name: str, values: Numbers, kind: pa.DataType) -> tuple[pa.Field, pa.Array]:
    """An id column whose values ascend."""
    return _encoded(name, ids.to_delta(values), kind, DELTA)


def _encoded(name: str, values: Numbers, kind: pa.DataType, encoding: str) -> tuple[pa.Field, pa.Array]:
    return pa.field(name, kind, metadata={ids.ENCODING: encoding}), pa.array(values, kind)


def _struct(name: str, named: Named) -> tuple[pa.Field, pa.Array]:
    found = pa.StructArray.from_arrays([column for _, column in named], fields=[field for field, _ in named])
    return pa.field(name, found.type), found


def _table(named: Named) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column for _, column in named], schema=pa.schema([field for field, _ in named]))


def _counters(rows: pa.RecordBatch, names: Iterable[str], prefix: str = "") -> Named:
    return [_plain(name.removeprefix(prefix), rows.column(name).cast(pa.uint32(), safe=False)) for name in names]


def _same(rows: pa.RecordBatch, names: tuple[str, ...], kind: pa.DataType) -> Named:
    return [_plain(name, rows.column(name).cast(kind, safe=False)) for name in names]


def _times(times: pa.Array) -> pa.Array:
    """Unknown times are zero, as in OTLP."""
    return times.cast(pa.timestamp("ns", "UTC")).view(pa.int64()).fill_null(0).view(_TIME)


def _bytes(texts: pa.Array, kind: pa.FixedSizeBinaryType) -> pa.Array:
    """Hex to bytes of one length; what has another is none."""
    fits = pc.equal(pc.binary_length(texts), 2 * kind.byte_width).fill_null(False)
    data = bytes.fromhex("".join(pc.if_else(fits, texts, "00" * kind.byte_width).to_pylist()))
    found = pa.FixedSizeBinaryArray.from_buffers(kind, len(texts), [None, pa.py_buffer(data)])
    return pc.if_else(fits, found, pa.scalar(None, kind))
