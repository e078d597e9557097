"""Data points of all five kinds, from tables to columns.

Points come in the order of their kinds, then of their metrics, as OTLP's decoding has them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.wire.otap.context import Found, context
from holdfast.wire.otap.ids import DELTA, NONE, QUASI_DELTA, Flags, Numbers
from holdfast.wire.otap.messages import Payload
from holdfast.wire.otap.tables import Table
from holdfast.wire.otap.traces import listed
from holdfast.wire.otap.values import attributes
from holdfast.wire.otlp import parts
from holdfast.wire.otlp.metrics import BUCKETS, COUNTS, EXEMPLAR, KINDS, QUANTILE, SCHEMA
from holdfast.wire.otlp.parts import Columns

GAUGE, SUM, HISTOGRAM, EXPONENTIAL, SUMMARY = range(1, 6)
"""OTAP's metric types; 0 is a metric without points."""
_ACCUMULATED = (SUM, HISTOGRAM, EXPONENTIAL)


class Points(NamedTuple):
    """The tables of points of some metric types."""

    types: tuple[int, ...]
    points: Payload
    attributes: Payload
    exemplars: Payload | None
    exemplar_attributes: Payload | None


TABLES = (
    Points(
        (GAUGE, SUM),
        Payload.NUMBER_DATA_POINTS,
        Payload.NUMBER_DP_ATTRS,
        Payload.NUMBER_DP_EXEMPLARS,
        Payload.NUMBER_DP_EXEMPLAR_ATTRS,
    ),
    Points(
        (HISTOGRAM,),
        Payload.HISTOGRAM_DATA_POINTS,
        Payload.HISTOGRAM_DP_ATTRS,
        Payload.HISTOGRAM_DP_EXEMPLARS,
        Payload.HISTOGRAM_DP_EXEMPLAR_ATTRS,
    ),
    Points(
        (EXPONENTIAL,),
        Payload.EXP_HISTOGRAM_DATA_POINTS,
        Payload.EXP_HISTOGRAM_DP_ATTRS,
        Payload.EXP_HISTOGRAM_DP_EXEMPLARS,
        Payload.EXP_HISTOGRAM_DP_EXEMPLAR_ATTRS,
    ),
    Points((SUMMARY,), Payload.SUMMARY_DATA_POINTS, Payload.SUMMARY_DP_ATTRS, None, None),
)


class _Metrics(NamedTuple):
    """The metrics of a batch."""

    ids: Numbers
    types: Numbers
    columns: Columns


def columns(root: Table, found: Found) -> Columns:
    """Everything, one row per data point."""
    ids: Numbers = root.ids("id", DELTA)
    types = np.asarray(root.number("metric_type", pa.uint8())).astype(np.int64)
    if len(types) and types.max() > SUMMARY:
        raise root.bad("metric_type", "is not between 0 and 5")
    metrics = _Metrics(ids, types, {**_metrics(root, found, ids, types), **context(root, found)})
    batches = [batch for tables in TABLES for batch in _points(tables, found, metrics)]
    if not batches:
        return {item.name: pa.array([], item.type) for item in SCHEMA}
    joined = pa.concat_batches(batches)
    return {item.name: joined.column(item.name) for item in SCHEMA}


def _metrics(root: Table, found: Found, ids: Numbers, types: Numbers) -> Columns:
    """What a metric says of all its points."""
    accumulated, summed = pa.array(np.isin(types, _ACCUMULATED)), pa.array(types == SUM)
    temporality = root.number("aggregation_temporality", pa.int32())
    monotonic = root.column("is_monotonic", pa.bool_()).fill_null(False)
    names = pa.array(["", *KINDS], pa.string())
    return {
        "name": root.column("name", pa.string()).fill_null(""),
        "description": parts.nothing_if_empty(root.column("description", pa.string())),
        "unit": parts.nothing_if_empty(root.column("unit", pa.string())),
        "kind": names.take(pa.array(types)),
        "aggregation_temporality": pc.if_else(accumulated, temporality, pa.scalar(None, pa.int32())),
        "is_monotonic": pc.if_else(summed, monotonic, pa.scalar(None, pa.bool_())),
        **attributes(ids, found.table(Payload.METRIC_ATTRS), "metadata_"),
    }


def _points(tables: Points, found: Found, metrics: _Metrics) -> list[pa.RecordBatch]:
    table = found.table(tables.points)
    if table is None:
        return []
    metric_of = _owners(table, metrics.ids)
    types = metrics.types[metric_of]
    if not np.isin(types, tables.types).all():
        raise table.bad("parent_id", "names a metric of another type")
    order = np.lexsort((metric_of, types))
    own = _own(tables, table, found)
    at, rows = metric_of[order], len(order)
    columns = []
    for item in SCHEMA:
        if item.name in own:
            columns.append(own[item.name].take(pa.array(order)))
        elif item.name in metrics.columns:
            columns.append(found.budget.take(metrics.columns[item.name], at))
        else:
            columns.append(pa.nulls(rows, item.type))
    return [pa.RecordBatch.from_arrays(columns, schema=SCHEMA)]


def _owners(table: Table, ids: Numbers) -> Numbers:
    """The metric of each point."""
    of = table.parents(DELTA)
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    if ((ordered[1:] == ordered[:-1]) & (ordered[1:] != NONE)).any():
        raise table.bad("parent_id", "cannot be followed: an id of a metric is there twice")
    at = np.minimum(np.searchsorted(ordered, of), len(ids) - 1)
    if (ordered[at] != of).any():
        raise table.bad("parent_id", "names a metric that is not in the batch")
    return order[at]


def _own(tables: Points, table: Table, found: Found) -> Columns:
    """What the points themselves say."""
    ids: Numbers = table.ids("id", DELTA)
    columns: Columns = {
        "start_time": parts.times(table.nanos("start_time_unix_nano")),
        "time": parts.times(table.nanos("time_unix_nano")),
        **attributes(ids, found.table(tables.attributes)),
        "flags": table.number("flags", pa.int64()),
        **_KINDS[tables.points](table),
    }
    if tables.exemplars is not None and tables.exemplar_attributes is not None:
        columns["exemplars"] = _exemplars(ids, found, tables.exemplars, tables.exemplar_attributes)
    return columns


def _numbers(table: Table) -> Columns:
    whole = table.column("int_value", pa.int64())
    value = pc.coalesce(table.column("double_value", pa.float64()), whole.cast(pa.float64(), safe=False))
    return {"value": value, "value_int": whole}


def _count(table: Table) -> pa.Array:
    return parts.counts(table.number("count", pa.uint64()))


def _summary(table: Table) -> Columns:
    return {
        "count": _count(table),
        "sum": table.number("sum", pa.float64()),
        "quantiles": table.lists("quantile", QUANTILE),
    }


def _extremes(table: Table) -> Columns:
    return {name: table.column(name, pa.float64()) for name in ("sum", "min", "max")}


def _histogram(table: Table) -> Columns:
    counts = table.lists("bucket_counts", pa.uint64())
    return {
        "count": _count(table),
        **_extremes(table),
        "bucket_counts": parts.relisted(counts, parts.counts(counts.flatten())).cast(COUNTS),
        "explicit_bounds": table.lists("explicit_bounds", pa.float64()),
    }


def _exponential(table: Table) -> Columns:
    return {
        "count": _count(table),
        **_extremes(table),
        "scale": table.number("scale", pa.int32()),
        "zero_count": parts.counts(table.number("zero_count", pa.uint64())),
        "zero_threshold": table.number("zero_threshold", pa.float64()),
        "positive": _buckets(table, "positive"),
        "negative": _buckets(table, "negative"),
    }


def _buckets(table: Table, name: str) -> pa.StructArray:
    inside = table.struct(name)
    lists = inside.lists("bucket_counts", pa.uint64())
    counts = parts.relisted(lists, parts.counts(lists.flatten())).cast(COUNTS)
    mask = pc.invert(table.is_valid(name))
    return pa.StructArray.from_arrays([inside.number("offset", pa.int32()), counts], fields=list(BUCKETS), mask=mask)


_KINDS = {
    Payload.NUMBER_DATA_POINTS: _numbers,
    Payload.SUMMARY_DATA_POINTS: _summary,
    Payload.HISTOGRAM_DATA_POINTS: _histogram,
    Payload.EXP_HISTOGRAM_DATA_POINTS: _exponential,
}


def _exemplars(points: Numbers, found: Found, kind: Payload, kind_of_attributes: Payload) -> pa.ListArray:
    table = found.table(kind)
    if table is None:
        return listed(points, np.zeros(0, np.int64), _no_items(), EXEMPLAR, table=kind.name)
    double, whole = table.column("double_value", pa.float64()), table.column("int_value", pa.int64())
    owners = table.parents(QUASI_DELTA, lambda: _same_value(double, whole))
    items = {
        "time": parts.times(table.nanos("time_unix_nano")),
        "value_double": double,
        "value_int": whole,
        "trace_id": parts.hex_ids(table.data("trace_id")),
        "span_id": parts.hex_ids(table.data("span_id")),
        **attributes(table.ids("id", DELTA), found.table(kind_of_attributes)),
    }
    return listed(points, owners, items, EXEMPLAR, table=table.name)


def _no_items() -> Columns:
    return {item.name: pa.array([], item.type) for item in EXEMPLAR}


def _same_value(double: pa.Array, whole: pa.Array) -> Flags:
    """Which exemplars have the value of the one before; one of the two columns is null."""
    same = np.zeros(len(double), bool)
    for column in (double, whole):
        same[1:] |= np.asarray(
            pc.equal(column.slice(1), column.slice(0, max(0, len(column) - 1))).fill_null(False), dtype=bool
        )
    return same
