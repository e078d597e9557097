"""Requests of every shape, made with OpenTelemetry's own messages."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces

from holdfast.wire.otlp.signals import Signal

SECOND = 1_700_000_000_000_000_000
TRACE_ID, SPAN_ID = bytes(range(16)), bytes(range(8))


def put(attributes: Any, **values: object) -> None:
    """Add attributes; `_` in a name stands for a dot."""
    for name, value in values.items():
        pair = attributes.add(key=name.replace("_", "."))
        set_value(pair.value, value)


def set_value(target: Any, value: object) -> None:
    """Any Python value as an attribute value."""
    if isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int):
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    elif isinstance(value, str):
        target.string_value = value
    elif isinstance(value, bytes):
        target.bytes_value = value
    elif isinstance(value, list):
        target.array_value.SetInParent()
        for item in value:
            set_value(target.array_value.values.add(), item)
    elif isinstance(value, dict):
        target.kvlist_value.SetInParent()
        for key, item in value.items():
            set_value(target.kvlist_value.values.add(key=key).value, item)


def logs_request(records: int = 3, *, service: str = "shop", first: int = 0) -> logs.ExportLogsServiceRequest:
    """Two resources; the second one has the last record."""
    request = logs.ExportLogsServiceRequest()
    for part in (range(records - 1), range(records - 1, records)):
        resource = request.resource_logs.add(schema_url="https://example.org/r")
        put(resource.resource.attributes, service_name=service, host_cpus=4)
        scope = resource.scope_logs.add(schema_url="")
        scope.scope.name, scope.scope.version = "checkout", "1.2"
        for number in part:
            record = scope.log_records.add(
                time_unix_nano=SECOND + first + number,
                observed_time_unix_nano=SECOND + 5,
                severity_number=9,
                severity_text="INFO",
                trace_id=TRACE_ID,
                span_id=SPAN_ID,
                flags=1,
                event_name="paid",
            )
            record.body.string_value = f"order {first + number}"
            put(record.attributes, order=first + number, ratio=0.5, ok=True, name="a", raw=b"\x00\xff")
            put(record.attributes, tags=["x", 1, 2.5, None], inner={"deep": {"er": [True]}})
    return request


def traces_request(spans: int = 2) -> traces.ExportTraceServiceRequest:
    """Spans with an event and a link each."""
    request = traces.ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    put(request.resource_spans[0].resource.attributes, service_name="shop")
    for number in range(spans):
        span = scope.spans.add(
            trace_id=TRACE_ID,
            span_id=number.to_bytes(8, "big"),
            parent_span_id=SPAN_ID,
            trace_state="a=b",
            name=f"GET /{number}",
            kind=2,
            start_time_unix_nano=SECOND,
            end_time_unix_nano=SECOND + 1000 + number,
            dropped_events_count=1,
            flags=257,
        )
        span.status.code, span.status.message = 2, "failed"
        put(span.attributes, http_status=500)
        event = span.events.add(time_unix_nano=SECOND + 7, name="exception", dropped_attributes_count=2)
        put(event.attributes, message="no")
        link = span.links.add(trace_id=TRACE_ID[::-1], span_id=SPAN_ID[::-1], trace_state="", flags=1)
        put(link.attributes, why="retry")
    return request


def metrics_request() -> metrics.ExportMetricsServiceRequest:
    """One metric of each of the five kinds."""
    request = metrics.ExportMetricsServiceRequest()
    resource = request.resource_metrics.add()
    put(resource.resource.attributes, service_name="shop")
    scope = resource.scope_metrics.add()
    scope.scope.name = "meter"
    gauge = scope.metrics.add(name="temperature", unit="Cel", description="outside")
    point = gauge.gauge.data_points.add(time_unix_nano=SECOND, as_double=21.5)
    put(point.attributes, place="roof")
    example = point.exemplars.add(time_unix_nano=SECOND, as_int=3, trace_id=TRACE_ID, span_id=SPAN_ID)
    put(example.filtered_attributes, user="u")
    total = scope.metrics.add(name="requests", unit="1")
    total.sum.aggregation_temporality, total.sum.is_monotonic = 2, True
    for number in (7, 2**53 + 1):
        total.sum.data_points.add(start_time_unix_nano=SECOND, time_unix_nano=SECOND + 1, as_int=number)
    histogram = scope.metrics.add(name="latency", unit="ms")
    histogram.histogram.aggregation_temporality = 1
    histogram.histogram.data_points.add(
        time_unix_nano=SECOND, count=6, sum=12.5, bucket_counts=[1, 2, 3], explicit_bounds=[1.0, 5.0], min=0.5, max=9.0
    )
    exponential = scope.metrics.add(name="sizes").exponential_histogram
    exponential.aggregation_temporality = 2
    grown = exponential.data_points.add(time_unix_nano=SECOND, count=5, sum=9.0, scale=-1, zero_count=2)
    grown.positive.offset, grown.zero_threshold = 3, 0.25
    grown.positive.bucket_counts.extend([1, 2])
    quantiles = scope.metrics.add(name="old").summary.data_points.add(time_unix_nano=SECOND, count=4, sum=8.0)
    quantiles.quantile_values.add(quantile=0.5, value=2.0)
    quantiles.quantile_values.add(quantile=0.99, value=3.0)
    put(scope.metrics[0].metadata, source="sensor")
    return request


def sample(signal: Signal) -> Any:
    """A full request of a signal."""
    makers: dict[Signal, Any] = {
        Signal.LOGS: logs_request,
        Signal.TRACES: traces_request,
        Signal.METRICS: metrics_request,
    }
    return makers[signal]()
