"""The page `docs/reference/metrics.md`: every metric with its labels, from the functions that make them.

Each of those is given figures of zeros, so that it makes all it can make.
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, get_origin, get_type_hints

import msgspec
from prometheus_client.core import Metric

from holdfast.dataflow.exporters.parcels import ExporterStatistics
from holdfast.dataflow.metrics import _exporter_metrics, _receiver_metrics
from holdfast.dataflow.receivers.intake import IntakeStatistics
from holdfast.dataflow.serving import OtlpDoors
from holdfast.delivery.totals import Totals, figures_of
from holdfast.sender.metrics import LABEL, METRICS
from holdfast.server.admin.metrics import ServerFigures, more_metrics, server_metrics, store_metrics, tier_metrics
from holdfast.server.latency import Latencies
from holdfast.spark.pipeline.board import Board
from holdfast.spark.pipeline.metrics import BoardCollector
from holdfast.store.copies import CopiesStatistics
from holdfast.store.store import Store
from holdfast.sync.desk import SyncDesk
from holdfast.sync.hub import HubStatistics
from holdfast.tier import TierStatistics
from holdfast.tier.uploader import UploadStatistics

_HEAD = """# Metrics

Printed by `python -m tests.tidy.reference`; a test compares.

`GET /metrics` of the admin port, in Prometheus' text format. Counters end in `_total` and count since the process
started, unless the text says otherwise. The number of series does not grow with channels or connections. A node graph
on several cores adds the label `core_id` to all, and [two metrics of its own](dataflow.md#metrics-and-log-events).

`deploy/prometheus/alerts.yml` has alert rules over them, `deploy/grafana/holdfast.json` a dashboard; a test compares
both with what a server exports. [Run it in production](../howto/run-in-production.md#watch-it) says how to use them.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Exported:
    """One metric as it stands in the text format."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def metrics_markdown() -> str:
    """The page."""
    return _HEAD + "".join(f"\n## {title}\n\n{_table(rows)}" for title, rows in sections().items())


def sections() -> dict[str, list[Exported]]:
    """All metrics, by who exports them."""
    return {
        "A server": _exported(server_metrics(_server_figures())),
        "Its store": _exported(_of_a_store()),
        "Consumers": _exported(more_metrics(figures_of([], Totals()))),
        "Sync": _exported(more_metrics(SyncDesk._figures(_StandingHub()))),  # type: ignore[arg-type]
        "OTLP at a server": _exported(more_metrics(OtlpDoors._figures(_StandingReceiver()))),  # type: ignore[arg-type]
        "The tier": _exported(tier_metrics(_tier_figures())),
        "Node graphs": _exported(
            chain(
                _receiver_metrics({"n": _zeros(IntakeStatistics)}), _exporter_metrics({"n": _zeros(ExporterStatistics)})
            )
        ),
        "Pipelines on Spark": _exported(BoardCollector("p", Board([])).collect()),
        "Senders": [
            Exported(
                f"holdfast_sender_{item.name}" + ("_total" if item.is_total else ""),
                "counter" if item.is_total else "gauge",
                (LABEL,),
                item.text[0].upper() + item.text[1:] + ".",
            )
            for item in METRICS
        ],
    }


def _exported(families: Iterable[Metric]) -> list[Exported]:
    ends = {"counter": "_total", "info": "_info"}
    return [
        Exported(
            family.name + ends.get(family.type, ""),
            "gauge" if family.type == "info" else family.type,
            _labels(family),
            family.documentation,
        )
        for family in families
    ]


def _labels(family: Metric) -> tuple[str, ...]:
    """Those of the family, or of a sample where it does not say; `le` belongs to every histogram."""
    names = family._labelnames or (family.samples[0].labels if family.samples else ())  # type: ignore[attr-defined]
    return tuple(name for name in names if name != "le")


def _table(rows: Iterable[Exported]) -> str:
    lines = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for row in rows:
        labels = ", ".join(f"`{label}`" for label in row.labels)
        lines.append(f"| `{row.name}` | {row.kind} | {labels} | {row.text} |")
    return "\n".join(lines) + "\n"


def _of_a_store() -> Iterator[Metric]:
    with tempfile.TemporaryDirectory() as folder, Store.open(folder) as store:
        yield from store_metrics(store)


class _StandingHub:
    """As much of a sync desk as its figures need."""

    def __init__(self) -> None:
        self.hub = self

    def statistics(self) -> HubStatistics:
        """Zeros."""
        zeros: HubStatistics = _zeros(HubStatistics)
        return zeros


class _StandingReceiver:
    """As much of a server's OTLP receiver as its figures need: one of each kind."""

    def __init__(self) -> None:
        self._receiver = self

    def statistics(self) -> IntakeStatistics:
        """Zeros."""
        return IntakeStatistics(requests={"logs": 0}, records={"logs": 0}, refusals={"full": 0})


def _server_figures() -> ServerFigures:
    figures: ServerFigures = _zeros(ServerFigures)
    return dataclasses.replace(figures, latency=Latencies().statistics(), tier=None)


def _tier_figures() -> TierStatistics:
    zeros: TierStatistics = _zeros(TierStatistics)
    return dataclasses.replace(zeros, upload=_zeros(UploadStatistics), cache=_zeros(CopiesStatistics), alarm=None)


def _zeros(kind: Any) -> Any:
    """A value with nothing in it."""
    return kind(**{name: _nothing(hint) for name, hint in get_type_hints(kind).items()})


def _nothing(hint: Any) -> Any:
    made = get_origin(hint) or hint
    if dataclasses.is_dataclass(made) or (isinstance(made, type) and issubclass(made, msgspec.Struct)):
        return _zeros(made)
    if made in (dict, Mapping):
        return {}
    return () if made in (tuple, list, Sequence) else 0
