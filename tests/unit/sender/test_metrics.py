"""A sender's numbers as metrics: all of them, under fixed names, for Prometheus and for OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from holdfast.errors import Category
from holdfast.sender.metrics import METRICS, Observation, observe
from holdfast.sender.prometheus import PrometheusCollector
from holdfast.sender.sender import Sender
from holdfast.sender.statistics import SenderStatistics
from tests.unit.sender.loopback import PATIENCE_S, Loopback, accept_all
from tests.unit.sender.test_link import connect, publish, refuse_first

TEXTS = {"address", "outage"}
"""Fields that say in words what other fields count."""


class RecordingMeter:
    """A meter as OpenTelemetry's API has it, that keeps what it is asked for and looks when told to."""

    def __init__(self) -> None:
        self.instruments: dict[str, tuple[str, str, str, Sequence[Callable[[Any], Iterable[Observation]]]]] = {}

    def _create(self, kind: str, name: str, callbacks: Any, unit: str, description: str) -> object:
        assert name not in self.instruments, "one instrument of a name"
        self.instruments[name] = (kind, unit, description, callbacks or ())
        return object()

    def create_observable_counter(
        self, name: str, callbacks: Any = None, unit: str = "", description: str = ""
    ) -> object:
        return self._create("counter", name, callbacks, unit, description)

    def create_observable_gauge(
        self, name: str, callbacks: Any = None, unit: str = "", description: str = ""
    ) -> object:
        return self._create("gauge", name, callbacks, unit, description)

    def look(self) -> dict[tuple[str, str], int]:
        """Value by name and sender."""
        return {
            (name, found.attributes["sender"]): found.value
            for name, (_, _, _, callbacks) in self.instruments.items()
            for callback in callbacks
            for found in callback(object())
        }


def samples(registry: CollectorRegistry) -> dict[tuple[str, str], float]:
    """Value by name and sender."""
    return {
        (sample.name, sample.labels["sender"]): sample.value
        for family in registry.collect()
        for sample in family.samples
    }


def test_every_number_of_the_statistics_is_a_metric() -> None:
    assert {metric.field for metric in METRICS} == set(SenderStatistics.__struct_fields__) - TEXTS
    assert len({metric.name for metric in METRICS}) == len(METRICS)


@pytest.mark.parametrize(
    "name",
    [
        *("total_reconnect_attempts", "total_reconnects_succeeded", "total_frames_replayed", "total_server_errors"),
        *("dropped_error_notifications", "total_error_notifications_delivered", "total_backpressure_stalls"),
        *("last_terminal_error", "active_background_drainers", "total_background_drainers_succeeded"),
        *("total_background_drainers_failed", "total_frames_sent", "total_acks", "was_ever_connected"),
        *("published_fsn", "acked_fsn"),
    ],
)
def test_counters_of_other_clients_are_there_by_name(name: str) -> None:
    assert name in SenderStatistics.__struct_fields__


def test_prometheus_scrapes_what_happened_per_sender() -> None:
    registry = CollectorRegistry()
    with Loopback(accept_all) as server, connect(server) as one, connect(server) as two:
        senders = {"one": one}
        registry.register(PrometheusCollector(senders))
        assert one.await_acked(publish(one, 1, 2, 3), PATIENCE_S)
        senders["two"] = two
        found = samples(registry)
    assert found["holdfast_sender_frames_sent_total", "one"] == 3
    assert found["holdfast_sender_frames_sent_total", "two"] == 0
    assert found["holdfast_sender_acked_fsn", "one"] == 2
    assert found["holdfast_sender_connected", "two"] == 1
    assert found["holdfast_sender_sent_bytes_total", "one"] > 3 * 100
    assert len({name for name, _ in found}) == len(METRICS)


def test_prometheus_text_has_type_help_and_label(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    with Loopback(accept_all) as server, connect(server, sf_dir=str(tmp_path / "sf")) as sender:
        registry.register(PrometheusCollector({"app-1": sender}))
        text = generate_latest(registry).decode()
    assert "# TYPE holdfast_sender_frames_sent_total counter" in text
    assert "# TYPE holdfast_sender_used_bytes gauge" in text
    assert 'holdfast_sender_halted{sender="app-1"} 0.0' in text


def test_registering_a_second_collector_is_refused_without_a_look() -> None:
    registry = CollectorRegistry()
    registry.register(PrometheusCollector({}))
    with pytest.raises(ValueError, match="Duplicated"):
        registry.register(PrometheusCollector({}))


def test_opentelemetry_sees_the_same_numbers() -> None:
    meter, registry = RecordingMeter(), CollectorRegistry()
    with Loopback(refuse_first(Category.SCHEMA_MISMATCH)) as server, connect(server) as sender:
        senders = {"app": sender}
        observe(meter, senders)
        registry.register(PrometheusCollector(senders))
        assert sender.await_acked(publish(sender, 0, 1, 2), PATIENCE_S)
        sender.close()
        seen, scraped = meter.look(), samples(registry)
    assert seen["holdfast.sender.frames_rejected", "app"] == 1
    assert seen["holdfast.sender.server_errors", "app"] == 1
    assert seen["holdfast.sender.reconnects_succeeded", "app"] == 1
    kinds = {metric.name: "_total" if metric.is_total else "" for metric in METRICS}
    for (name, sender_name), value in seen.items():
        short = name.removeprefix("holdfast.sender.")
        assert scraped[f"holdfast_sender_{short}{kinds[short]}", sender_name] == value


def test_opentelemetry_instruments_have_kind_unit_and_text() -> None:
    meter = RecordingMeter()
    observe(meter, {})
    assert meter.instruments["holdfast.sender.frames_sent"][:2] == ("counter", "{frame}")
    assert meter.instruments["holdfast.sender.used_bytes"][:2] == ("gauge", "By")
    assert all(text for _, _, text, _ in meter.instruments.values())
    assert meter.look() == {}


def test_halted_sender_shows_in_its_metrics() -> None:
    meter = RecordingMeter()
    with Loopback(refuse_first(Category.PARSE_ERROR)) as server:
        sender: Sender = connect(server, error_handler=lambda _error: None)
        observe(meter, {"app": sender})
        future = sender.when_acked(publish(sender, 1))
        assert future.exception(PATIENCE_S) is not None
        assert meter.look()["holdfast.sender.halted", "app"] == 1
        sender.close()
    assert msgspec.structs.asdict(sender.statistics())["last_terminal_error"]
