"""The counters of senders as metrics: one table, which `prometheus` and OpenTelemetry read.

    from opentelemetry import metrics
    observe(metrics.get_meter("app"), {"app-1": sender})

Nothing is counted twice and nothing costs anything between two looks: each look is one `statistics()` per sender. The
mapping is looked at each time, so a program may add and remove senders. Its keys become the attribute `sender`.

Promise: every number of `SenderStatistics` is here. OpenTelemetry is not imported; a meter is what has its methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from holdfast.sender.statistics import SenderStatistics

LABEL = "sender"


class HasStatistics(Protocol):
    """A `Sender` or an `AsyncSender`."""

    def statistics(self) -> SenderStatistics: ...


class Metric(NamedTuple):
    """One number of a sender."""

    field: str
    """Of `SenderStatistics`."""
    name: str
    text: str
    unit: str = "1"

    @property
    def is_total(self) -> bool:
        """Whether it only grows."""
        return self.field.startswith(("total_", "dropped_"))

    def value(self, statistics: SenderStatistics) -> int:
        """The number; 1 and 0 for yes and no."""
        found = getattr(statistics, self.field)
        return found if type(found) is int else int(bool(found))


METRICS: Sequence[Metric] = (
    Metric("published_fsn", "published_fsn", "the last frame that was published; -1 before the first"),
    Metric("acked_fsn", "acked_fsn", "a server has answered for every frame up to this one"),
    Metric("synced_fsn", "synced_fsn", "every frame up to this one survives a power cut"),
    Metric("pending_rows", "pending_rows", "rows in no frame yet", "{row}"),
    Metric("used_bytes", "used_bytes", "what unanswered frames take, in segments", "By"),
    Metric("cap_bytes", "cap_bytes", "what they may take", "By"),
    Metric("segments", "segments", "segments of the slot or the memory", "{segment}"),
    Metric("is_connected", "connected", "1 while a connection stands"),
    Metric("was_ever_connected", "ever_connected", "1 once a connection stood"),
    Metric("last_terminal_error", "halted", "1 after an error that ended the sender"),
    Metric(
        "total_reconnect_attempts", "reconnect_attempts", "attempts to connect, the first one included", "{attempt}"
    ),
    Metric("total_reconnects_succeeded", "reconnects_succeeded", "connections after the first", "{connection}"),
    Metric("total_frames_sent", "frames_sent", "frames sent, again or not", "{frame}"),
    Metric("total_bytes_sent", "sent_bytes", "their bytes", "By"),
    Metric("total_frames_replayed", "frames_replayed", "frames sent again", "{frame}"),
    Metric("total_frames_rejected", "frames_rejected", "frames that were given up because of a refusal", "{frame}"),
    Metric("total_acks", "acks", "answers that accepted frames", "{answer}"),
    Metric("total_server_errors", "server_errors", "refusals and connections ended with a complaint", "{error}"),
    Metric("total_backpressure_stalls", "backpressure_stalls", "hand-overs that had to wait for room", "{stall}"),
    Metric(
        "total_error_notifications_delivered", "error_notifications_delivered", "errors given to the handler", "{error}"
    ),
    Metric(
        "dropped_error_notifications", "error_notifications_dropped", "errors that a slow handler missed", "{error}"
    ),
    Metric("active_background_drainers", "background_drainers", "orphans that are being drained", "{slot}"),
    Metric(
        "total_background_drainers_succeeded", "background_drainers_succeeded", "orphans that were emptied", "{slot}"
    ),
    Metric("total_background_drainers_failed", "background_drainers_failed", "orphans that could not be", "{slot}"),
)
"""Names without the part of the sender in front; a metrics system adds it in its own way."""


class Observation(NamedTuple):
    """One value at one look, with the fields of OpenTelemetry's own class of this name."""

    value: int
    attributes: Mapping[str, str]
    context: None = None


Callback = Callable[[Any], Iterable[Observation]]


class Meter(Protocol):
    """What is needed of an OpenTelemetry meter."""

    def create_observable_counter(
        self, name: str, callbacks: Sequence[Callback] | None = None, unit: str = "", description: str = ""
    ) -> Any: ...
    def create_observable_gauge(
        self, name: str, callbacks: Sequence[Callback] | None = None, unit: str = "", description: str = ""
    ) -> Any: ...


def observe(meter: Meter, senders: Mapping[str, HasStatistics]) -> None:
    """Make an observable instrument `holdfast.sender.…` of every metric. Once per meter."""
    for metric in METRICS:
        create = meter.create_observable_counter if metric.is_total else meter.create_observable_gauge
        create(f"holdfast.sender.{metric.name}", [_callback(metric, senders)], metric.unit, metric.text)


def _callback(metric: Metric, senders: Mapping[str, HasStatistics]) -> Callback:
    def look(_options: Any) -> Iterable[Observation]:
        return [Observation(metric.value(sender.statistics()), {LABEL: name}) for name, sender in list(senders.items())]

    return look
