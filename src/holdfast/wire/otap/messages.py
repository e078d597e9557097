"""OTAP's three messages, its payload types and its services.

    BatchArrowRecords   batch_id 1: int64 | arrow_payloads 2: ArrowPayload* | headers 3: bytes, HPACK
    ArrowPayload        schema_id 1: string | type 2: int32 | record 3: bytes, messages of one Arrow IPC stream
    BatchStatus         batch_id 1: int64 | status_code 2: int32 | status_message 3: string

OpenTelemetry publishes no Python package with these messages, so their descriptors are made here from the numbers.
Enums are numbers: an unknown one is refused with a sentence instead of being lost.

One header is ours: `idempotency-key`, written as HPACK's literal that nobody may index. Other headers are left unread,
as the specification allows.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from holdfast.errors import Category, WireError
from holdfast.wire.otlp.signals import Signal

PACKAGE = "opentelemetry.proto.experimental.arrow.v1"
_SERVICES = {Signal.LOGS: "ArrowLogs", Signal.TRACES: "ArrowTraces", Signal.METRICS: "ArrowMetrics"}
_KEY = b"\x10\x0fidempotency-key"
"""Never indexed, a new name of 15 bytes without Huffman's code."""
KEY_BYTES_MAX = 126
"""What a length of one byte can say."""


class Payload(IntEnum):
    """The tables of a batch."""

    RESOURCE_ATTRS = 1
    SCOPE_ATTRS = 2
    UNIVARIATE_METRICS = 10
    NUMBER_DATA_POINTS = 11
    SUMMARY_DATA_POINTS = 12
    HISTOGRAM_DATA_POINTS = 13
    EXP_HISTOGRAM_DATA_POINTS = 14
    NUMBER_DP_ATTRS = 15
    SUMMARY_DP_ATTRS = 16
    HISTOGRAM_DP_ATTRS = 17
    EXP_HISTOGRAM_DP_ATTRS = 18
    NUMBER_DP_EXEMPLARS = 19
    HISTOGRAM_DP_EXEMPLARS = 20
    EXP_HISTOGRAM_DP_EXEMPLARS = 21
    NUMBER_DP_EXEMPLAR_ATTRS = 22
    HISTOGRAM_DP_EXEMPLAR_ATTRS = 23
    EXP_HISTOGRAM_DP_EXEMPLAR_ATTRS = 24
    METRIC_ATTRS = 26
    LOGS = 30
    LOG_ATTRS = 31
    SPANS = 40
    SPAN_ATTRS = 41
    SPAN_EVENTS = 42
    SPAN_LINKS = 43
    SPAN_EVENT_ATTRS = 44
    SPAN_LINK_ATTRS = 45


ROOTS = {Signal.LOGS: Payload.LOGS, Signal.TRACES: Payload.SPANS, Signal.METRICS: Payload.UNIVARIATE_METRICS}
"""The table that every batch of a signal has."""
_SHARED = (Payload.RESOURCE_ATTRS, Payload.SCOPE_ATTRS)
ALLOWED: dict[Signal, frozenset[Payload]] = {
    Signal.LOGS: frozenset([*_SHARED, Payload.LOGS, Payload.LOG_ATTRS]),
    Signal.TRACES: frozenset([*_SHARED, *(item for item in Payload if item >= Payload.SPANS)]),
    Signal.METRICS: frozenset([*_SHARED, *(item for item in Payload if 10 <= item < Payload.LOGS)]),
}


def service(signal: Signal) -> str:
    """The gRPC service of a signal."""
    return f"{PACKAGE}.{_SERVICES[signal]}Service"


def method(signal: Signal) -> str:
    """The name of its one method."""
    return _SERVICES[signal]


def path(signal: Signal) -> str:
    """The full name of the method."""
    return f"/{service(signal)}/{method(signal)}"


class ArrowPayload(msgspec.Struct, frozen=True, gc=False):
    """One table: messages of an Arrow stream."""

    schema_id: str
    kind: int
    record: bytes


class Batch(msgspec.Struct, frozen=True, gc=False):
    """One batch of a stream."""

    batch_id: int
    payloads: list[ArrowPayload]
    key: str = ""
    """Recognises a repeat on another stream; empty if the sender gave none."""


class Status(msgspec.Struct, frozen=True, gc=False):
    """What became of one batch. `code` is a gRPC status; 0 is taken."""

    batch_id: int
    code: int = 0
    message: str = ""


def _messages() -> tuple[Any, Any]:
    kinds = descriptor_pb2.FieldDescriptorProto
    number, small, text, data = kinds.TYPE_INT64, kinds.TYPE_INT32, kinds.TYPE_STRING, kinds.TYPE_BYTES
    file = descriptor_pb2.FileDescriptorProto(name="holdfast/otap.proto", package=PACKAGE, syntax="proto3")
    shapes = {
        "ArrowPayload": [("schema_id", text), ("type", small), ("record", data)],
        "BatchArrowRecords": [("batch_id", number), ("arrow_payloads", kinds.TYPE_MESSAGE), ("headers", data)],
        "BatchStatus": [("batch_id", number), ("status_code", small), ("status_message", text)],
    }
    for name, fields in shapes.items():
        message = file.message_type.add(name=name)
        for at, (field, kind) in enumerate(fields, start=1):
            is_list = kind == kinds.TYPE_MESSAGE
            label = kinds.LABEL_REPEATED if is_list else kinds.LABEL_OPTIONAL
            type_name = f".{PACKAGE}.ArrowPayload" if is_list else None
            message.field.add(name=field, number=at, type=kind, label=label, type_name=type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))
        for name in ("BatchArrowRecords", "BatchStatus")
    ]
    return found[0], found[1]


_BATCH, _STATUS = _messages()


def read_batch(data: bytes) -> Batch:
    """A batch as it came; `WireError` if it is none."""
    message = _parsed(_BATCH, data, "a batch of Arrow records")
    payloads = [ArrowPayload(item.schema_id, item.type, item.record) for item in message.arrow_payloads]
    return Batch(message.batch_id, payloads, _key_of(message.headers))


def write_batch(batch: Batch) -> bytes:
    """The batch as bytes."""
    message = _BATCH(batch_id=batch.batch_id, headers=_headers(batch.key))
    for payload in batch.payloads:
        message.arrow_payloads.add(schema_id=payload.schema_id, type=payload.kind, record=payload.record)
    data: bytes = message.SerializeToString()
    return data


def read_status(data: bytes) -> Status:
    """What a server says; `WireError` if it is no status."""
    message = _parsed(_STATUS, data, "the status of a batch")
    return Status(message.batch_id, message.status_code, message.status_message)


def write_status(status: Status) -> bytes:
    """The status as bytes."""
    message = _STATUS(batch_id=status.batch_id, status_code=status.code, status_message=status.message)
    data: bytes = message.SerializeToString()
    return data


def _parsed(kind: Any, data: bytes, place: str) -> Any:
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise WireError(category=Category.PARSE_ERROR, reason=str(error), place=place) from None


def _headers(key: str) -> bytes:
    value = key.encode()
    assert len(value) <= KEY_BYTES_MAX, key
    return _KEY + bytes([len(value)]) + value if value else b""


def _key_of(headers: bytes) -> str:
    size, value = headers[len(_KEY) : len(_KEY) + 1], headers[len(_KEY) + 1 :]
    is_ours = headers.startswith(_KEY) and size == bytes([min(len(value), 255)]) and len(value) <= KEY_BYTES_MAX
    return value.decode("utf-8", "replace") if is_ours else ""
