"""Requests to rows: one row per log record, span or data point, whatever request it came with.

Promise: rows come in the order of the requests and of their records; data points by kind first. What is not a request
of the signal is `WireError`. Empty envelopes, resources and scopes without records, give no rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.wire.otlp import logs, metrics, parts, traces
from holdfast.wire.otlp.descriptors import to_columns
from holdfast.wire.otlp.parts import Columns
from holdfast.wire.otlp.signals import Signal

NONE = pa.array([], pa.int64())
SCHEMAS = {Signal.LOGS: logs.SCHEMA, Signal.TRACES: traces.SCHEMA, Signal.METRICS: metrics.SCHEMA}
_LISTS = {
    Signal.LOGS: ("scope_logs", "log_records"),
    Signal.TRACES: ("scope_spans", "spans"),
    Signal.METRICS: ("scope_metrics", "metrics"),
}


@dataclass(frozen=True, slots=True)
class Decoded:
    """The rows, which request each is of, and how many records of each request were refused."""

    rows: pa.RecordBatch
    request: pa.Array
    refused: pa.Array


def decode(signal: Signal, requests: pa.Array) -> Decoded:
    """The records in an array of requests. Spans without the ids that make them spans are refused."""
    lists = to_columns(signal, requests)
    resources = lists.flatten()
    scope_name, record_name = _LISTS[signal]
    scope_lists = resources.field(scope_name)
    resource_of_scope, scopes = pc.list_parent_indices(scope_lists), scope_lists.flatten()
    record_lists = scopes.field(record_name)
    scope_of, records = pc.list_parent_indices(record_lists), record_lists.flatten()
    request_of = pc.list_parent_indices(lists).take(resource_of_scope).take(scope_of)
    refused = pa.repeat(pa.scalar(0, pa.int64()), len(requests))
    if signal is Signal.TRACES:
        keep = traces.sound(records)
        if not pc.all(keep).as_py() and len(records):
            refused = _counted(request_of.filter(pc.invert(keep)), len(requests))
            records, scope_of, request_of = records.filter(keep), scope_of.filter(keep), request_of.filter(keep)
    context = parts.context(resources, scopes, resource_of_scope)
    if signal is Signal.METRICS:
        return replace(_points(records, scope_of, request_of, context), refused=refused)
    own = logs.columns(records) if signal is Signal.LOGS else traces.columns(records)
    return Decoded(_batch(SCHEMAS[signal], own, context, scope_of), request_of.cast(pa.int64()), refused)


def decode_rows(signal: Signal, requests: pa.Array) -> pa.RecordBatch:
    """The records alone."""
    return decode(signal, requests).rows


def _points(found: pa.StructArray, scope_of: pa.Array, request_of: pa.Array, context: Columns) -> Decoded:
    batches, requests = [], []
    for kind in metrics.KINDS:
        points, metric_of = metrics.points_of(found, kind)
        if not len(points):
            continue
        shared = {name: column.take(metric_of) for name, column in metrics.metric_columns(found, kind).items()}
        own = {**shared, **metrics.columns(points)}
        batches.append(_batch(metrics.SCHEMA, own, context, scope_of.take(metric_of)))
        requests.append(request_of.take(metric_of).cast(pa.int64()))
    if not batches:
        return Decoded(_no_rows(metrics.SCHEMA), NONE, NONE)
    return Decoded(pa.concat_batches(batches), pa.concat_arrays(requests), NONE)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _batch(schema: pa.Schema, own: Columns, context: Columns, scope_of: pa.Array) -> pa.RecordBatch:
    rows = len(scope_of)
    columns = []
    for field in schema:
        if field.name in own:
            columns.append(own[field.name])
        elif field.name in context:
            columns.append(context[field.name].take(scope_of))
        else:
            columns.append(pa.nulls(rows, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _counted(requests: pa.Array, total: int) -> pa.Array:
    counts = [0] * total
    for item in pc.value_counts(requests).to_pylist():
        counts[item["values"]] = item["counts"]
    return pa.array(counts, pa.int64())
