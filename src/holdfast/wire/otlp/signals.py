"""The three signals: services, paths, messages."""

from __future__ import annotations

from enum import Enum
from typing import Any

from opentelemetry.proto.collector.logs.v1 import logs_service_pb2 as logs
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as metrics
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as traces

PACKAGE = "opentelemetry.proto.collector"


class Signal(Enum):
    """What a request carries."""

    LOGS = "logs"
    TRACES = "traces"
    METRICS = "metrics"

    @property
    def service(self) -> str:
        """The gRPC service; its one method is `Export`."""
        return _SERVICES[self]

    @property
    def method(self) -> str:
        """The full name of the gRPC method."""
        return f"/{self.service}/Export"

    @property
    def path(self) -> str:
        """Where HTTP clients post."""
        return f"/v1/{self.value}"

    @property
    def request(self) -> Any:
        """The class of requests."""
        return _REQUESTS[self]

    @property
    def response(self) -> Any:
        """The class of answers."""
        return _RESPONSES[self]

    @property
    def rejected_field(self) -> str:
        """How a partial success calls the number of refused records."""
        return _REJECTED[self]


_SERVICES = {
    Signal.LOGS: f"{PACKAGE}.logs.v1.LogsService",
    Signal.TRACES: f"{PACKAGE}.trace.v1.TraceService",
    Signal.METRICS: f"{PACKAGE}.metrics.v1.MetricsService",
}
_REQUESTS: dict[Signal, Any] = {
    Signal.LOGS: logs.ExportLogsServiceRequest,
    Signal.TRACES: traces.ExportTraceServiceRequest,
    Signal.METRICS: metrics.ExportMetricsServiceRequest,
}
_RESPONSES: dict[Signal, Any] = {
    Signal.LOGS: logs.ExportLogsServiceResponse,
    Signal.TRACES: traces.ExportTraceServiceResponse,
    Signal.METRICS: metrics.ExportMetricsServiceResponse,
}
_REJECTED = {
    Signal.LOGS: "rejected_log_records",
    Signal.TRACES: "rejected_spans",
    Signal.METRICS: "rejected_data_points",
}
