"""Frames that no encoder of ours would write."""

from __future__ import annotations

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from holdfast.model.frame import Entry
from holdfast.wire import hfa, qwp

NAME_BYTES_MAX = 120


def raw_frame(channel: str) -> bytes:
    """A frame whose channel has any name at all, cut to what a frame can hold."""
    name = channel.encode()[:NAME_BYTES_MAX]
    entry = Entry("c" * len(name), pa.record_batch({"n": pa.array([1], pa.int64())}))
    frame = b"".join(hfa.encode([entry], slot_id=None, fsn=0, guid=None))
    return frame.replace(entry.channel.encode(), name, 1)


def raw_message(table: str) -> bytes:
    """A QWP1 message whose table, and the column in it, have any name at all, cut to what a message can hold."""
    name = table.encode()[:NAME_BYTES_MAX]
    marker = "c" * len(name)
    message = qwp.encode([Entry(marker, pa.record_batch({marker: pa.array([1], pa.int64())}))], None)
    return message.replace(marker.encode(), name)


def raw_logs(name: str) -> bytes:
    """An OTLP request that has the name wherever OTLP takes one."""
    request = ExportLogsServiceRequest()
    resource = request.resource_logs.add(schema_url=name)
    scope = resource.scope_logs.add(schema_url=name)
    scope.scope.name = scope.scope.version = name
    record = scope.log_records.add(severity_text=name, event_name=name)
    record.body.string_value = name
    for attributes in (resource.resource.attributes, scope.scope.attributes, record.attributes):
        for key in ("service.name", name):
            attributes.add(key=key).value.string_value = name
    data: bytes = request.SerializeToString()
    return data
