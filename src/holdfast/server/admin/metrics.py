"""`/metrics`: what the store, the server and the gatekeeper count, in Prometheus' text format.

Promise: names begin with `holdfast_`; counters are since the process started and end in `_total`. The number of series
does not grow with channels or connections; it does with subscribers, up to `SUBSCRIBERS_MAX`. The figures of the server
are copied on its loop, those of the store are read on a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, groupby

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from holdfast import __version__
from holdfast.clock import NS_PER_S
from holdfast.errors import HoldfastError
from holdfast.server.access.gatekeeper import GatekeeperStatistics
from holdfast.server.admin.caller import caller_of, on_thread, server_of
from holdfast.server.latency import BOUNDS_S, LatencyStatistics
from holdfast.server.state import ConnectionInfo, Figure, ServerState
from holdfast.store.statistics import StoreStatistics
from holdfast.store.store import Store
from holdfast.tier import TierStatistics

CORE_ID = "0"
"""One store per server so far."""
SUBSCRIBERS_MAX = 1000
MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """A copy of what the loop owns."""

    started_at_ns: int
    insecure: bool
    draining: bool
    failed: bool
    connections: Mapping[str, int]
    inflight_bytes: int
    paused: int
    frames: int
    bytes: int
    duplicates: int
    stalls: int
    accepted: int
    refusals: Mapping[str, int]
    handshakes_refused: Mapping[int, int]
    gatekeeper: GatekeeperStatistics
    latency: LatencyStatistics
    tier: TierStatistics | None = None
    more: tuple[Figure, ...] = ()


def figures_of(state: ServerState) -> ServerFigures:
    """Copied on the loop."""
    connections, totals = state.connections, state.totals
    return ServerFigures(
        started_at_ns=state.started_at_ns,
        insecure=state.insecure,
        draining=state.draining,
        failed=state.failure is not None,
        connections=_by_kind(connections),
        inflight_bytes=sum(item.inflight_bytes for item in connections),
        paused=sum(bool(item.paused) for item in connections),
        frames=totals.frames,
        bytes=totals.bytes,
        duplicates=totals.duplicates,
        stalls=totals.stalls,
        accepted=totals.connections,
        refusals=dict(totals.refusals),
        handshakes_refused=dict(totals.handshakes_refused),
        gatekeeper=state.gatekeeper.statistics(),
        latency=state.latencies.statistics(),
        tier=state.tier.statistics() if state.tier is not None else None,
        more=tuple(figure for source in state.more_figures for figure in source()),
    )


def _by_kind(connections: Iterable[ConnectionInfo]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for item in connections:
        counts[item.kind] = counts.get(item.kind, 0) + 1
    return counts


async def show_metrics(request: Request) -> Response:
    """`GET /metrics`."""
    caller_of(request).require("admin")
    state = server_of(request)
    text = await on_thread(render, state.store, figures_of(state))
    return Response(text, media_type=MEDIA_TYPE)


def render(store: Store, figures: ServerFigures) -> bytes:
    """The text; a store that has failed is told by `holdfast_store_failed`, without its other figures."""
    registry = CollectorRegistry(auto_describe=False)
    tier = tier_metrics(figures.tier) if figures.tier is not None else ()
    registry.register(_Once([*server_metrics(figures), *tier, *more_metrics(figures.more), *store_metrics(store)]))
    return generate_latest(registry)


class _Once(Collector):
    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(f"holdfast_{name}", text, value=value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"holdfast_{name}", text, value=value)


def _counters(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"holdfast_{name}", text, labels=[label])
    for value, count in sorted(values.items()):
        family.add_metric([value], count)
    return family


def _gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"holdfast_{name}", text, labels=[label])
    for value, number in sorted(values.items()):
        family.add_metric([value], number)
    return family


def _histogram(name: str, text: str, found: LatencyStatistics) -> Metric:
    totals = accumulate(found.counts)
    ends = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
    buckets = list(zip(ends, totals, strict=True))
    return HistogramMetricFamily(f"holdfast_{name}", text, buckets=buckets, sum_value=found.sum_s)


def server_metrics(figures: ServerFigures) -> Iterator[Metric]:
    """What the server and the gatekeeper count."""
    gate = figures.gatekeeper
    statuses = {str(status): count for status, count in figures.handshakes_refused.items()}
    yield InfoMetricFamily("holdfast_build", "The release.", value={"version": __version__})
    yield _gauge("start_time_seconds", "When the server started.", figures.started_at_ns / NS_PER_S)
    yield _gauge("insecure", "1 when run with --insecure.", figures.insecure)
    yield _gauge("draining", "1 while the server stops.", figures.draining)
    yield _gauges("connections", "Open now, by protocol.", "kind", figures.connections)
    yield _counter("connections_accepted", "Connections that were let in.", figures.accepted)
    yield _counters("handshakes_refused", "Connections that were not, by HTTP status.", "status", statuses)
    yield _gauge("ingest_inflight_bytes", "Received and not yet answered.", figures.inflight_bytes)
    yield _gauge("ingest_paused_connections", "Connections that are not read from now.", figures.paused)
    yield _counter("ingest_frames", "Frames that came in.", figures.frames)
    yield _counter("ingest_bytes", "Bytes of frames that came in.", figures.bytes)
    yield _counter("ingest_duplicates", "Frames that were known already.", figures.duplicates)
    yield _counter("ingest_stalls", "Frames that had to wait for a full store.", figures.stalls)
    yield _counters("ingest_refusals", "Frames that were refused, by category.", "category", figures.refusals)
    yield _histogram("ingest_accept_seconds", "From a frame's arrival to its answer; a sample.", figures.latency)
    yield _gauge("auth_required", "1 when callers must show a credential.", gate.auth_on)
    yield _counter("auth_successes", "Credentials that were right.", gate.authenticated)
    yield _counter("auth_failures", "Credentials that were missing or wrong.", gate.failures)
    yield _counter("auth_ended_connections", "Connections whose credential ended.", gate.revoked)
    yield _counter("audit_lines", "Lines of the audit log.", gate.audit_lines)
    yield _counter("audit_suppressed", "Lines left out because there were too many.", gate.audit_suppressed)
    yield _counter("audit_failures", "Lines that could not be written.", gate.audit_failures)


def tier_metrics(figures: TierStatistics) -> Iterator[Metric]:
    """What is in the object store, what is not, and how that goes."""
    yield _gauge("tier_segments", "Segments listed in the manifest.", figures.segments)
    yield _gauge("tier_bytes", "Their bytes.", figures.bytes)
    yield _gauge(
        "tier_remote_segments", "Segments of the store that have no file on its disk.", figures.remote_segments
    )
    yield _gauge("tier_remote_bytes", "Their bytes.", figures.remote_bytes)
    yield _counter("tier_entries", "Entries of the manifest.", figures.entries)
    yield _gauge("tier_epoch", "How often the tier was taken over.", figures.epoch)
    yield _counter("tier_failures", "Requests that failed and were repeated.", figures.failures)
    yield _counter("tier_healed", "Local segments replaced by a copy from the tier.", figures.healed)
    yield _gauge(
        "tier_alarm", "1 while trouble or lag has lasted for tier.alarm_after.", int(figures.alarm is not None)
    )
    if figures.upload is not None:
        yield _counter("tier_uploaded_segments", "Segments uploaded and read back.", figures.upload.uploaded_segments)
        yield _counter("tier_uploaded_bytes", "Their bytes.", figures.upload.uploaded_bytes)
        yield _counter("tier_removed_segments", "Segments removed after eviction.", figures.upload.removed_segments)
        yield _gauge(
            "tier_pending_segments", "Published segments that are not durable.", figures.upload.pending_segments
        )
        yield _gauge("tier_pending_bytes", "Their bytes.", figures.upload.pending_bytes)
        yield _gauge("tier_lag_seconds", "Age of the oldest published event that is not durable.", figures.upload.lag_s)
        yield _counter("tier_swept_objects", "Objects deleted that no entry named.", figures.upload.swept_objects)
    if figures.cache is not None:
        yield _gauge("tier_cache_bytes", "Copies of remote segments on this disk.", figures.cache.bytes)
        yield _gauge("tier_cache_limit_bytes", "What they may take.", figures.cache.limit_bytes)
        yield _counter("tier_cache_hits", "Readers that found a copy.", figures.cache.hits)
        yield _counter("tier_cache_fetches", "Segments fetched for readers.", figures.cache.fetches)
        yield _counter("tier_cache_fetched_bytes", "Their bytes.", figures.cache.fetched_bytes)
        yield _counter("tier_cache_parts", "Parts of segments fetched for readers.", figures.cache.parts)
        yield _counter("tier_cache_evictions", "Copies deleted to keep the limit.", figures.cache.evictions)


def more_metrics(figures: Iterable[Figure]) -> Iterator[Metric]:
    """What parts above the server count; figures of one name are one family."""
    for name, same in groupby(figures, key=lambda figure: figure.name):
        family = list(same)
        first = family[0]
        if first.label is None:
            yield (_counter if first.is_counter else _gauge)(name, first.text, first.value)
            continue
        made = CounterMetricFamily if first.is_counter else GaugeMetricFamily
        metric = made(f"holdfast_{name}", first.text, labels=[first.label[0]])
        for one in family:
            metric.add_metric([one.label[1] if one.label else ""], one.value)
        yield metric


def store_metrics(store: Store) -> Iterator[Metric]:
    """What the store counts."""
    try:
        figures = store.statistics()
        subscribers, losses = store.subscribers(), store.losses()
    except HoldfastError:
        yield _gauge("store_failed", "1 once the store has failed.", 1)
        return
    yield _gauge("store_failed", "1 once the store has failed.", figures.failed is not None)
    yield from _commit_metrics(figures)
    yield from _retention_metrics(figures, cap_bytes=store.config.retention_size_cap_bytes)
    lags: dict[str, float] = {}
    ages: dict[str, float] = {}
    gaps: dict[str, float] = {}
    for item in subscribers[:SUBSCRIBERS_MAX]:
        lags[item.name] = sum(lag.events for lag in item.channels)
        ages[item.name] = max((lag.seconds for lag in item.channels), default=0.0)
        gaps[item.name] = sum(len(lag.gaps) for lag in item.channels)
    yield _gauge("subscribers", "Registered.", len(subscribers))
    yield _gauges("subscriber_lag_events", "Events that a subscriber is owed.", "subscriber", lags)
    yield _gauges("subscriber_lag_seconds", "Age of the oldest of them.", "subscriber", ages)
    yield _gauges("subscriber_gaps", "Holes below what it confirmed.", "subscriber", gaps)
    lost: dict[str, int] = {}
    for loss in losses:
        if not loss.subscriber:
            lost[loss.reason] = lost.get(loss.reason, 0) + loss.events
    yield _counters("events_lost", "Events that went unconfirmed, over all time, by reason.", "reason", lost)


def _commit_metrics(figures: StoreStatistics) -> Iterator[Metric]:
    tail = figures.tail
    yield _gauge("channels", "In the store.", figures.channels)
    yield _counter("commit_groups", "Groups of frames that shared a sync.", figures.groups)
    yield _counter("commit_frames", "Frames that were committed.", figures.frames)
    yield _counter("commit_events", "Events that were committed.", figures.events)
    yield _counter("wal_syncs", "Syncs of the write-ahead log.", figures.syncs)
    yield _gauge("next_committed_id", "The next number in commit order.", figures.next_committed_id)
    yield _gauge("wal_bytes", "Size of the write-ahead log.", figures.wal_bytes)
    yield _gauge("segments", "Published segments.", figures.segments)
    yield _gauge("segment_events", "Events in them.", figures.segment_events)
    yield _gauge("segment_bytes", "Bytes of them.", figures.segment_bytes)
    yield _counter("segments_sealed", "Segments that were sealed.", figures.sealed_segments)
    yield _gauge("seal_postponed", "1 while sealing waits for room on the disk.", figures.seal_postponed is not None)
    yield _gauge("queued_bytes", "Waiting for the log.", tail.queued_bytes)
    yield _gauge("open_bytes", "Committed, in open segments.", tail.open_bytes)
    yield _gauge("sealing_bytes", "Committed, waiting to be sealed.", tail.cut_bytes)
    yield _counter("ingest_throttle", "Commits that met a bound.", tail.throttled)
    yield _gauge("dedup_slots", "Slots of producers whose frame numbers are in memory.", figures.slots)
    yield _gauge("dedup_guids", "GUIDs that are remembered.", figures.guids)
    yield _counter("dedup_guids_forgotten", "GUIDs forgotten before their window.", figures.guids_forgotten_early)
    yield _counter("ack_records", "Records of the acknowledgement log.", figures.ack_records)
    yield _counter("ack_syncs", "Syncs of the acknowledgement log.", figures.ack_syncs)


def _retention_metrics(figures: StoreStatistics, *, cap_bytes: int) -> Iterator[Metric]:
    retention, scrub = figures.retention, figures.scrub
    used = figures.segment_bytes + figures.wal_bytes
    yield _counters("gc_evictions", "Segments that went, by reason.", "reason", retention.evictions)
    yield _counter("gc_evicted_bytes", "Bytes of them.", retention.evicted_bytes)
    yield _counter("segment_dropped", "Segments that went unconfirmed.", retention.dropped_segments)
    yield _counter(
        "subscriber_dropped_segments",
        "The same, once for each subscriber that was owed.",
        retention.subscriber_dropped_segments,
    )
    yield _counter("archived_segments", "Segments handed to the archive script.", retention.archived)
    yield _counter("archive_failures", "Archive scripts that failed.", retention.archive_failures)
    yield _counter("retention_size_emergency", "Times that the size cap forced a deletion.", figures.size_emergencies)
    yield _counter("clock_jumps", "Jumps of the wall clock that retention did not follow.", figures.clock_jumps)
    yield _gauges("core_bytes", "Bytes that a core's store uses on disk.", "core_id", {CORE_ID: used})
    fraction = used / cap_bytes if cap_bytes else 0.0
    yield _gauge("core_cap_fraction", "Used part of retention.size_cap; 0 without one.", fraction)
    yield _counter("scrub_bytes", "Bytes that were read again to find decay.", scrub.bytes)
    yield _gauge("scrub_findings", "Damaged segments that were found.", len(scrub.findings))
