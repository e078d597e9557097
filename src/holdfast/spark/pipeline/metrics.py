"""A board as Prometheus metrics, on a port of its own.

| metric | labels | what it is |
|---|---|---|
| holdfast_pipeline_up | pipeline, output | 1 while the query runs |
| holdfast_pipeline_rows_total | pipeline, output | rows read |
| holdfast_pipeline_batches_total | pipeline, output | batches with rows |
| holdfast_pipeline_restarts_total | pipeline, output | starts after a failure |
| holdfast_pipeline_lost_events_total | pipeline, output | gone when their batch was planned, and passed over |
| holdfast_pipeline_rows_per_second | pipeline, output | of the last batch |
| holdfast_pipeline_batch_seconds | pipeline, output | of the last batch |
| holdfast_pipeline_lag_events | pipeline, output | published and not yet read |
| holdfast_pipeline_state_rows, …_state_bytes | pipeline, output | what Spark remembers between batches |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.errors import CannotListen
from holdfast.spark.pipeline.board import Board, OutputStatus

PREFIX = "holdfast_pipeline_"
_GAUGES: dict[str, tuple[str, Callable[[OutputStatus], float]]] = {
    "up": ("Whether the query runs.", lambda status: float(status.state == "running")),
    "rows_per_second": ("Rows per second of the last batch.", lambda status: status.rows_per_s),
    "batch_seconds": ("How long the last batch took.", lambda status: status.batch_s),
    "lag_events": ("Events that are published and not yet read.", lambda status: float(status.lag_events)),
    "state_rows": ("Rows that Spark remembers between batches.", lambda status: float(status.state_rows)),
    "state_bytes": ("Memory of those rows.", lambda status: float(status.state_bytes)),
}
_COUNTERS: dict[str, tuple[str, Callable[[OutputStatus], float]]] = {
    "rows": ("Rows read.", lambda status: float(status.rows)),
    "batches": ("Batches with rows.", lambda status: float(status.batches)),
    "restarts": ("Starts after a failure.", lambda status: float(status.restarts)),
    "lost_events": (
        "Events that were gone when their batch was planned, and were passed over.",
        lambda status: float(status.lost_events),
    ),
}


class BoardCollector(Collector):
    """Makes metrics out of a board whenever it is asked."""

    def __init__(self, pipeline: str, board: Board) -> None:
        self._pipeline = pipeline
        self._board = board

    def collect(self) -> Iterator[Metric]:
        """All metrics of now."""
        statuses, labels = self._board.statuses(), ("pipeline", "output")
        for name, (text, value) in _GAUGES.items():
            gauge = GaugeMetricFamily(PREFIX + name, text, labels=labels)
            for status in statuses:
                gauge.add_metric((self._pipeline, status.output), value(status))
            yield gauge
        for name, (text, value) in _COUNTERS.items():
            counter = CounterMetricFamily(PREFIX + name, text, labels=labels)
            for status in statuses:
                counter.add_metric((self._pipeline, status.output), value(status))
            yield counter


@contextmanager
def served(address: str, pipeline: str, board: Board) -> Iterator[None]:
    """Metrics at `host:port` while the block runs; nothing for an empty address."""
    if not address:
        yield
        return
    registry = CollectorRegistry(auto_describe=False)
    registry.register(BoardCollector(pipeline, board))
    host, _, port = address.rpartition(":")
    try:
        server, thread = start_http_server(int(port), host, registry)
    except OSError as error:
        raise CannotListen(key="metrics", address=address, reason=error.strerror or str(error)) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
