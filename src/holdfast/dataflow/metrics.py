"""What a running graph counts, in Prometheus' text format.

Promise: names begin with `holdfast_`; nodes are told apart by the label `node`. What a store counts has the names of a
server's metrics: `holdfast_gc_evictions_total`, `holdfast_ingest_throttle_total`, `holdfast_subscriber_gaps`, ….
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.dataflow.exporters.parcels import ExporterStatistics
from holdfast.dataflow.receivers.intake import IntakeStatistics
from holdfast.server.admin.metrics import store_metrics
from holdfast.store.store import Store

_BY_SIGNAL = {
    "requests": "Requests that were accepted.",
    "records": "Log records, spans and data points that were accepted.",
    "refused_records": "Records that were taken out of accepted requests.",
}
_COUNTED = {
    "parcels": "Parcels that were handed to the exporter.",
    "events": "Events that the destination has taken.",
    "rejected": "Events that went to the dead-letter channel.",
    "retries": "Parcels that must be sent again.",
    "refused_records": "Records that the destination took out of what it accepted.",
}


def render(
    receivers: Mapping[str, IntakeStatistics], exporters: Mapping[str, ExporterStatistics], store: Store | None
) -> bytes:
    """The text."""
    registry = CollectorRegistry(auto_describe=False)
    metrics = [*_receiver_metrics(receivers), *_exporter_metrics(exporters)]
    registry.register(_Once([*metrics, *(store_metrics(store) if store is not None else ())]))
    return generate_latest(registry)


def _receiver_metrics(receivers: Mapping[str, IntakeStatistics]) -> Iterator[Metric]:
    for name, text in _BY_SIGNAL.items():
        family = CounterMetricFamily(f"holdfast_receiver_{name}", text, labels=["node", "signal"])
        for node, figures in receivers.items():
            for signal, count in sorted(getattr(figures, name).items()):
                family.add_metric([node, signal], count)
        yield family
    refusals = CounterMetricFamily(
        "holdfast_receiver_refusals", "Requests that were refused, by reason.", labels=["node", "reason"]
    )
    for node, figures in receivers.items():
        for reason, count in sorted(figures.refusals.items()):
            refusals.add_metric([node, reason], count)
    yield refusals
    texts = {
        "bytes": "Bytes of accepted requests, as they came.",
        "duplicates": "Requests whose idempotency key was known.",
        "throttled": "Requests that were told to come again.",
        "groups": "Groups of requests that were handled together.",
    }
    for name, text in texts.items():
        family = CounterMetricFamily(f"holdfast_receiver_{name}", text, labels=["node"])
        for node, figures in receivers.items():
            family.add_metric([node], getattr(figures, name))
        yield family


def _exporter_metrics(exporters: Mapping[str, ExporterStatistics]) -> Iterator[Metric]:
    for name, text in _COUNTED.items():
        family = CounterMetricFamily(f"holdfast_exporter_{name}", text, labels=["node"])
        for node, figures in exporters.items():
            family.add_metric([node], getattr(figures, name))
        yield family
    failing = GaugeMetricFamily(
        "holdfast_exporter_failing", "Failures in a row; 0 while the destination takes what it gets.", labels=["node"]
    )
    for node, figures in exporters.items():
        failing.add_metric([node], figures.failing)
    yield failing


class _Once(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics
