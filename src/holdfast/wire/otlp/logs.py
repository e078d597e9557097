"""Log records as columns."""

from __future__ import annotations

import pyarrow as pa

from holdfast.wire.otlp import parts
from holdfast.wire.otlp.parts import ATTRIBUTES, CONTEXT, TIME, Columns

SCHEMA = pa.schema(
    [
        ("time", TIME),
        ("observed_time", TIME),
        ("severity_number", pa.int32()),
        ("severity_text", pa.string()),
        ("event_name", pa.string()),
        ("body", pa.string()),
        ("body_type", pa.int8()),
        *ATTRIBUTES,
        ("dropped_attributes_count", pa.int64()),
        ("trace_id", pa.string()),
        ("span_id", pa.string()),
        ("flags", pa.int64()),
        *CONTEXT,
    ]
)


def columns(records: pa.StructArray) -> Columns:
    """Everything but where they come from."""
    body, body_type = parts.values(records.field("body"))
    return {
        "time": parts.times(records.field("time_unix_nano")),
        "observed_time": parts.times(records.field("observed_time_unix_nano")),
        "severity_number": records.field("severity_number"),
        "severity_text": parts.nothing_if_empty(records.field("severity_text")),
        "event_name": parts.nothing_if_empty(records.field("event_name")),
        "body": body,
        "body_type": body_type,
        **parts.attributes(records.field("attributes")),
        "dropped_attributes_count": records.field("dropped_attributes_count").cast(pa.int64()),
        "trace_id": parts.hex_ids(records.field("trace_id")),
        "span_id": parts.hex_ids(records.field("span_id")),
        "flags": records.field("flags").cast(pa.int64()),
    }
