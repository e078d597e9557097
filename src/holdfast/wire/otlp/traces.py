"""Spans as columns; events and links stay lists in their span's row."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.wire.otlp import parts
from holdfast.wire.otlp.parts import ATTRIBUTES, CONTEXT, TIME, Columns

EVENT = pa.struct([("time", TIME), ("name", pa.string()), *ATTRIBUTES, ("dropped_attributes_count", pa.int64())])
LINK = pa.struct(
    [
        ("trace_id", pa.string()),
        ("span_id", pa.string()),
        ("trace_state", pa.string()),
        *ATTRIBUTES,
        ("dropped_attributes_count", pa.int64()),
        ("flags", pa.int64()),
    ]
)
SCHEMA = pa.schema(
    [
        ("trace_id", pa.string()),
        ("span_id", pa.string()),
        ("parent_span_id", pa.string()),
        ("trace_state", pa.string()),
        ("name", pa.string()),
        ("kind", pa.int32()),
        ("start_time", TIME),
        ("end_time", TIME),
        ("duration_ns", pa.int64()),
        ("status_code", pa.int32()),
        ("status_message", pa.string()),
        *ATTRIBUTES,
        ("dropped_attributes_count", pa.int64()),
        ("events", pa.list_(EVENT)),
        ("dropped_events_count", pa.int64()),
        ("links", pa.list_(LINK)),
        ("dropped_links_count", pa.int64()),
        ("flags", pa.int64()),
        *CONTEXT,
    ]
)
TRACE_ID_BYTES, SPAN_ID_BYTES = 16, 8


def columns(spans: pa.StructArray) -> Columns:
    """Everything but where they come from."""
    start, end = parts.times(spans.field("start_time_unix_nano")), parts.times(spans.field("end_time_unix_nano"))
    status = spans.field("status")
    return {
        "trace_id": parts.hex_ids(spans.field("trace_id")),
        "span_id": parts.hex_ids(spans.field("span_id")),
        "parent_span_id": parts.hex_ids(spans.field("parent_span_id")),
        "trace_state": parts.nothing_if_empty(spans.field("trace_state")),
        "name": spans.field("name"),
        "kind": spans.field("kind"),
        "start_time": start,
        "end_time": end,
        "duration_ns": pc.subtract(end.view(pa.int64()), start.view(pa.int64())),
        "status_code": status.field("code").fill_null(0),
        "status_message": parts.nothing_if_empty(status.field("message")),
        **parts.attributes(spans.field("attributes")),
        "dropped_attributes_count": spans.field("dropped_attributes_count").cast(pa.int64()),
        "events": _list(spans.field("events"), EVENT, _event),
        "dropped_events_count": spans.field("dropped_events_count").cast(pa.int64()),
        "links": _list(spans.field("links"), LINK, _link),
        "dropped_links_count": spans.field("dropped_links_count").cast(pa.int64()),
        "flags": spans.field("flags").cast(pa.int64()),
    }


def sound(spans: pa.StructArray) -> pa.Array:
    """Which spans have the ids that make them spans."""
    has_trace = pc.equal(pc.binary_length(spans.field("trace_id")), TRACE_ID_BYTES)
    return pc.and_(has_trace, pc.equal(pc.binary_length(spans.field("span_id")), SPAN_ID_BYTES))


def _list(lists: pa.ListArray, kind: pa.StructType, columns_of: parts.ColumnsOf) -> pa.ListArray:
    items = columns_of(lists.flatten())
    return parts.relisted(lists, pa.StructArray.from_arrays([items[field.name] for field in kind], fields=list(kind)))


def _event(events: pa.StructArray) -> Columns:
    return {
        "time": parts.times(events.field("time_unix_nano")),
        "name": events.field("name"),
        **parts.attributes(events.field("attributes")),
        "dropped_attributes_count": events.field("dropped_attributes_count").cast(pa.int64()),
    }


def _link(links: pa.StructArray) -> Columns:
    return {
        "trace_id": parts.hex_ids(links.field("trace_id")),
        "span_id": parts.hex_ids(links.field("span_id")),
        "trace_state": parts.nothing_if_empty(links.field("trace_state")),
        **parts.attributes(links.field("attributes")),
        "dropped_attributes_count": links.field("dropped_attributes_count").cast(pa.int64()),
        "flags": links.field("flags").cast(pa.int64()),
    }
