"""Data points of all five kinds as columns: one row per point, with its metric's name and unit.

Columns that a kind does not have are null. Points come in the order of their kinds, then of their metrics.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.wire.otlp import parts
from holdfast.wire.otlp.parts import ATTRIBUTES, CONTEXT, TIME, Columns

KINDS = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
COUNTS = pa.list_(pa.int64())
BUCKETS = pa.struct([("offset", pa.int32()), ("bucket_counts", COUNTS)])
QUANTILE = pa.struct([("quantile", pa.float64()), ("value", pa.float64())])
EXEMPLAR = pa.struct(
    [
        ("time", TIME),
        ("value_double", pa.float64()),
        ("value_int", pa.int64()),
        ("trace_id", pa.string()),
        ("span_id", pa.string()),
        *ATTRIBUTES,
    ]
)
SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("description", pa.string()),
        ("unit", pa.string()),
        ("kind", pa.string()),
        ("aggregation_temporality", pa.int32()),
        ("is_monotonic", pa.bool_()),
        ("metadata_attributes", parts.TEXTS),
        ("metadata_attribute_types", parts.CODES),
        ("start_time", TIME),
        ("time", TIME),
        ("value", pa.float64()),
        ("value_int", pa.int64()),
        ("count", pa.int64()),
        ("sum", pa.float64()),
        ("min", pa.float64()),
        ("max", pa.float64()),
        ("bucket_counts", COUNTS),
        ("explicit_bounds", pa.list_(pa.float64())),
        ("scale", pa.int32()),
        ("zero_count", pa.int64()),
        ("zero_threshold", pa.float64()),
        ("positive", BUCKETS),
        ("negative", BUCKETS),
        ("quantiles", pa.list_(QUANTILE)),
        ("exemplars", pa.list_(EXEMPLAR)),
        *ATTRIBUTES,
        ("flags", pa.int64()),
        *CONTEXT,
    ]
)


def points_of(metrics: pa.StructArray, kind: str) -> tuple[pa.StructArray, pa.Array]:
    """The points of one kind, and the metric of each."""
    lists = metrics.field(kind).field("data_points")
    return lists.flatten(), pc.list_parent_indices(lists)


def metric_columns(metrics: pa.StructArray, kind: str) -> Columns:
    """What a metric says of all its points."""
    body = metrics.field(kind)
    named = {"name", "aggregation_temporality", "is_monotonic"} & {field.name for field in body.type}
    return {
        "name": metrics.field("name"),
        "description": parts.nothing_if_empty(metrics.field("description")),
        "unit": parts.nothing_if_empty(metrics.field("unit")),
        "kind": pa.repeat(pa.scalar(kind, pa.string()), len(metrics)),
        **{name: body.field(name) for name in sorted(named)},
        **parts.attributes(metrics.field("metadata"), "metadata_"),
    }


def columns(points: pa.StructArray) -> Columns:
    """What a point says, whatever its kind."""
    has = {field.name for field in points.type}
    found: Columns = {
        "start_time": parts.times(points.field("start_time_unix_nano")),
        "time": parts.times(points.field("time_unix_nano")),
        **parts.attributes(points.field("attributes")),
        "flags": points.field("flags").cast(pa.int64()),
        **{name: points.field(name) for name in ("sum", "min", "max", "scale", "zero_threshold") if name in has},
        **{name: parts.counts(points.field(name)) for name in ("count", "zero_count") if name in has},
        **{name: _buckets(points.field(name)) for name in ("positive", "negative") if name in has},
    }
    if "as_int" in has:
        whole = points.field("as_int")
        found |= {"value": pc.coalesce(points.field("as_double"), whole.cast(pa.float64(), safe=False))}
        found["value_int"] = whole
    if "bucket_counts" in has:
        lists = points.field("bucket_counts")
        bounds = points.field("explicit_bounds")
        found["bucket_counts"] = parts.relisted(lists, parts.counts(lists.flatten()))
        found["explicit_bounds"] = parts.relisted(bounds, bounds.flatten())
    if "quantile_values" in has:
        found["quantiles"] = points.field("quantile_values").cast(pa.list_(QUANTILE))
    if "exemplars" in has:
        found["exemplars"] = _exemplars(points.field("exemplars"))
    return found


def _buckets(found: pa.StructArray) -> pa.StructArray:
    lists = found.field("bucket_counts")
    counts = parts.relisted(lists, parts.counts(lists.flatten()))
    mask = pc.invert(found.is_valid())
    return pa.StructArray.from_arrays([found.field("offset"), counts], fields=list(BUCKETS), mask=mask)


def _exemplars(lists: pa.ListArray) -> pa.ListArray:
    found = lists.flatten()
    columns = {
        "time": parts.times(found.field("time_unix_nano")),
        "value_double": found.field("as_double"),
        "value_int": found.field("as_int"),
        "trace_id": parts.hex_ids(found.field("trace_id")),
        "span_id": parts.hex_ids(found.field("span_id")),
        **parts.attributes(found.field("filtered_attributes")),
    }
    items = pa.StructArray.from_arrays([columns[field.name] for field in EXEMPLAR], fields=list(EXEMPLAR))
    return parts.relisted(lists, items)
