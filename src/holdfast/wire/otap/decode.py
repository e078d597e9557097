"""Tables to rows: the columns that OTLP's decoding gives, one row per log record, span or data point.

Promise: rows are the same as those of an OTLP request with the same records, up to the order of attributes where the
sender has sorted them. Spans without ids are left out and counted. What the tables may not be is `WireError`; what
would become too large is `LimitReached`, before it is.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.wire.otap import metrics, traces
from holdfast.wire.otap.context import Found, context
from holdfast.wire.otap.ids import DELTA, Numbers
from holdfast.wire.otap.limits import Limits
from holdfast.wire.otap.messages import ROOTS, Payload
from holdfast.wire.otap.reading import Tables
from holdfast.wire.otap.tables import Table
from holdfast.wire.otap.values import attributes, read_values
from holdfast.wire.otlp import parts
from holdfast.wire.otlp.decode import SCHEMAS
from holdfast.wire.otlp.parts import Columns
from holdfast.wire.otlp.signals import Signal


class Decoded(NamedTuple):
    """The rows, and how many records were left out."""

    rows: pa.RecordBatch
    refused: int


def decode(signal: Signal, tables: Tables, limits: Limits) -> Decoded:
    """The records in the tables of one batch."""
    found = Found(tables, limits)
    schema = SCHEMAS[signal]
    root = found.table(ROOTS[signal])
    if root is None:
        return Decoded(_no_rows(schema), 0)
    if signal is Signal.METRICS:
        return Decoded(_batch(schema, metrics.columns(root, found)), 0)
    if signal is Signal.LOGS:
        return Decoded(_batch(schema, {**_logs(root, found), **context(root, found)}), 0)
    rows = _batch(schema, {**traces.columns(root, found), **context(root, found)})
    keep = traces.sound(rows)
    refused = rows.num_rows - int(keep.sum())
    return Decoded(rows.filter(pa.array(keep)) if refused else rows, refused)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], item.type) for item in schema], schema=schema)


def _batch(schema: pa.Schema, columns: Columns) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([columns[item.name] for item in schema], schema=schema)


def _logs(root: Table, found: Found) -> Columns:
    ids: Numbers = root.ids("id", DELTA)
    body = read_values(root.struct("body"))
    empty = pa.array(body.codes == 0)
    return {
        "time": parts.times(root.nanos("time_unix_nano")),
        "observed_time": parts.times(root.nanos("observed_time_unix_nano")),
        "severity_number": root.number("severity_number", pa.int32()),
        "severity_text": parts.nothing_if_empty(root.column("severity_text", pa.string())),
        "event_name": parts.nothing_if_empty(root.column("event_name", pa.string())),
        "body": pc.if_else(empty, pa.scalar(None, pa.string()), body.texts),
        "body_type": pa.array(body.codes.astype(np.int8)),
        **attributes(ids, found.table(Payload.LOG_ATTRS)),
        "dropped_attributes_count": root.number("dropped_attributes_count", pa.int64()),
        "trace_id": parts.hex_ids(root.data("trace_id")),
        "span_id": parts.hex_ids(root.data("span_id")),
        "flags": root.number("flags", pa.int64()),
    }
