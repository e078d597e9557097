"""Spans, their events and links, from tables to columns."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.wire.otap.context import Found
from holdfast.wire.otap.ids import DELTA, QUASI_DELTA, Flags, Numbers, children
from holdfast.wire.otap.messages import Payload
from holdfast.wire.otap.tables import Table, equals_last
from holdfast.wire.otap.values import attributes
from holdfast.wire.otlp import parts
from holdfast.wire.otlp.parts import Columns
from holdfast.wire.otlp.traces import EVENT, LINK, SPAN_ID_BYTES, TRACE_ID_BYTES


def columns(root: Table, found: Found) -> Columns:
    """Everything but where they come from."""
    ids: Numbers = root.ids("id", DELTA)
    start = parts.times(root.nanos("start_time_unix_nano"))
    end = parts.times(_ends(root))
    status = root.struct("status")
    return {
        **{name: parts.hex_ids(root.data(name)) for name in ("trace_id", "span_id", "parent_span_id")},
        "trace_state": parts.nothing_if_empty(root.column("trace_state", pa.string())),
        "name": root.column("name", pa.string()).fill_null(""),
        "kind": root.number("kind", pa.int32()),
        "start_time": start,
        "end_time": end,
        "duration_ns": pc.subtract(end.view(pa.int64()), start.view(pa.int64())),
        "status_code": status.number("code", pa.int32()),
        "status_message": parts.nothing_if_empty(status.column("status_message", pa.string())),
        **attributes(ids, found.table(Payload.SPAN_ATTRS)),
        "events": _events(ids, found),
        "links": _links(ids, found),
        **{
            name: root.number(name, pa.int64())
            for name in ("dropped_attributes_count", "dropped_events_count", "dropped_links_count", "flags")
        },
    }


def sound(rows: pa.RecordBatch) -> Flags:
    """Which spans have the ids that make them spans; as hex, these are twice as long."""
    has_trace = pc.equal(pc.binary_length(rows.column("trace_id")), 2 * TRACE_ID_BYTES)
    has_span = pc.equal(pc.binary_length(rows.column("span_id")), 2 * SPAN_ID_BYTES)
    return np.asarray(pc.and_(has_trace, has_span).fill_null(False), dtype=bool)


def _ends(root: Table) -> pa.Array:
    """When spans end, as nanoseconds; a duration that is null is an end that is not known."""
    durations = root.column("duration_time_unix_nano", pa.duration("ns")).view(pa.int64())
    return pc.add(root.nanos("start_time_unix_nano"), durations).fill_null(0)


def _events(spans: Numbers, found: Found) -> pa.ListArray:
    table = found.table(Payload.SPAN_EVENTS)
    if table is None:
        return _empty(len(spans), EVENT)
    name = table.column("name", pa.string()).fill_null("")
    owners = table.parents(QUASI_DELTA, lambda: equals_last(name))
    items = {
        "time": parts.times(table.nanos("time_unix_nano")),
        "name": name,
        **attributes(table.ids("id", DELTA), found.table(Payload.SPAN_EVENT_ATTRS)),
        "dropped_attributes_count": table.number("dropped_attributes_count", pa.int64()),
    }
    return listed(spans, owners, items, EVENT, table=table.name)


def _links(spans: Numbers, found: Found) -> pa.ListArray:
    table = found.table(Payload.SPAN_LINKS)
    if table is None:
        return _empty(len(spans), LINK)
    trace_id = table.data("trace_id")
    owners = table.parents(QUASI_DELTA, lambda: equals_last(trace_id))
    items = {
        "trace_id": parts.hex_ids(trace_id),
        "span_id": parts.hex_ids(table.data("span_id")),
        "trace_state": parts.nothing_if_empty(table.column("trace_state", pa.string())),
        **attributes(table.ids("id", DELTA), found.table(Payload.SPAN_LINK_ATTRS)),
        "dropped_attributes_count": table.number("dropped_attributes_count", pa.int64()),
        "flags": table.number("flags", pa.int64()),
    }
    return listed(spans, owners, items, LINK, table=table.name)


def listed(parents: Numbers, of: Numbers, items: Columns, kind: pa.StructType, *, table: str) -> pa.ListArray:
    """The rows of a child table as a list for each parent."""
    found = children(parents, of, table=table)
    structs = pa.StructArray.from_arrays([items[item.name] for item in kind], fields=list(kind))
    return pa.ListArray.from_arrays(found.offsets, structs.take(pa.array(found.rows)))


def _empty(rows: int, kind: pa.StructType) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(np.zeros(rows + 1), pa.int32()), pa.array([], kind))
