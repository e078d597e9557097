"""The counters of senders for Prometheus; needs `prometheus-client`, which the extra `server` brings.

    from prometheus_client import REGISTRY
    REGISTRY.register(PrometheusCollector({"app-1": sender}))

Every metric is `holdfast_sender_…` with the label `sender`. The mapping is looked at with each scrape, so a program may
add and remove senders; a registry takes one collector.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from holdfast.sender.metrics import LABEL, METRICS, HasStatistics, Metric


class PrometheusCollector(Collector):
    """Give it to `register` of a registry."""

    def __init__(self, senders: Mapping[str, HasStatistics]) -> None:
        self._senders = senders

    def describe(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Names and texts, so that registering looks at no sender."""
        return map(_family, METRICS)

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """Every metric of every sender, all from one look at each."""
        looks = {name: sender.statistics() for name, sender in list(self._senders.items())}
        for metric in METRICS:
            family = _family(metric)
            for name, statistics in looks.items():
                family.add_metric([name], metric.value(statistics))
            yield family


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.is_total else GaugeMetricFamily
    return kind(f"holdfast_sender_{metric.name}", metric.text, labels=[LABEL])
