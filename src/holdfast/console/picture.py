"""The running server as one value, and what of it one caller may see.

Promise: `take` reads counters and lists that are bounded or kept in memory; it makes no query per channel, so a
thousand channels cost what ten do. Rates are left to whoever compares two pictures.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from holdfast import __version__
from holdfast.clock import NS_PER_S
from holdfast.server.access import Principal
from holdfast.server.admin.metrics import ServerFigures
from holdfast.server.admin.querying import may_see
from holdfast.server.admin.views import sees, subscriber_facts
from holdfast.server.latency import BOUNDS_S
from holdfast.server.queries import QueryNews
from holdfast.server.senders import SenderInfo
from holdfast.server.state import ConnectionInfo, ServerState
from holdfast.server.troubles import Trouble
from holdfast.store.listing import ChannelSummary
from holdfast.store.statistics import StoreStatistics
from holdfast.store.store import Store
from holdfast.store.subscribers.subscriber import SubscriberStatistics

CONNECTIONS_MAX = 200
"""Connections and senders in a picture; the API lists all."""
ERRORS_MAX = 20
"""Refusals in a picture; the API lists more."""
SUBSCRIBERS_MAX = 200
"""Subscribers in a picture, those furthest behind first."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Company:
    """Who is there, and what was refused: a copy of what the event loop owns."""

    connections: tuple[ConnectionInfo, ...]
    senders: tuple[SenderInfo, ...]
    queries: tuple[QueryNews, ...]
    """Spark queries that told how they are doing."""
    troubles: tuple[Trouble, ...]


def company_of(state: ServerState) -> Company:
    """Copied on the loop."""
    return Company(
        connections=tuple(replace(item) for item in state.connections[:CONNECTIONS_MAX]),
        senders=state.senders.current()[:CONNECTIONS_MAX],
        queries=state.queries.current(),
        troubles=state.troubles.current()[:ERRORS_MAX],
    )


@dataclass(frozen=True, slots=True)
class Picture:
    """A moment of the server. `store` is None once the store has failed."""

    at_ns: int
    figures: ServerFigures
    company: Company
    store: StoreStatistics | None
    channels: dict[str, ChannelSummary]
    subscribers: tuple[SubscriberStatistics, ...]
    losses: dict[str, int]
    caps: Json
    disk: tuple[int, int]
    """Bytes of the file system, and how many are free."""


def take(store: Store, figures: ServerFigures, company: Company, *, at_ns: int) -> Picture:
    """The server now; reads the store, so a loop hands it to a thread."""
    config = store.config
    usage = shutil.disk_usage(store.path)
    losses: dict[str, int] = {}
    for loss in store.losses():
        if not loss.subscriber:
            losses[loss.reason] = losses.get(loss.reason, 0) + loss.events
    return Picture(
        at_ns=at_ns,
        figures=figures,
        company=company,
        store=store.statistics(),
        channels={item.name: item for item in store.listing.summaries()},
        subscribers=tuple(store.subscribers()),
        losses=losses,
        caps={
            "wal_bytes": config.wal_max_bytes,
            "store_bytes": config.retention_size_cap_bytes,
            "memory_bytes": config.memory_limit_bytes,
        },
        disk=(usage.total, usage.free),
    )


def shown(picture: Picture, caller: Principal, known: dict[str, ChannelSummary]) -> Json:
    """What the caller may see of a picture; of channels, what changed since `known`, which is brought up to date."""
    visible = {name: item for name, item in picture.channels.items() if sees(caller, name)}
    changed = [item for name, item in visible.items() if known.get(name) != item]
    gone = [name for name in known if name not in visible]
    known.clear()
    known.update(visible)
    found: Json = {
        "at": picture.at_ns / NS_PER_S,
        "server": _server(picture.figures),
        "channels": {"changed": [_channel(item) for item in changed], "gone": gone, "total": len(visible)},
        "subscribers": _subscribers(picture.subscribers, caller),
        "queries": [_query(item) for item in picture.company.queries if may_see(caller, item)],
    }
    if caller.may("admin"):
        found |= _for_administrators(picture)
    return found


def _server(figures: ServerFigures) -> Json:
    return {
        "version": __version__,
        "started_at": figures.started_at_ns / NS_PER_S,
        "insecure": figures.insecure,
        "draining": figures.draining,
        "failed": figures.failed,
    }


def _channel(item: ChannelSummary) -> list[object]:
    return [item.name, item.next_seq - 1, item.events, item.bytes, item.active_at_ns / NS_PER_S]


def _subscribers(found: Iterable[SubscriberStatistics], caller: Principal) -> list[Json]:
    shown_to = [facts for item in found if (facts := subscriber_facts(item, caller)) is not None]
    shown_to.sort(key=lambda facts: -sum(lag["events"] for lag in facts["channels"]))  # type: ignore[attr-defined]
    return shown_to[:SUBSCRIBERS_MAX]


def _query(item: QueryNews) -> Json:
    return {
        "name": item.name,
        "batch": item.batch,
        "rows_per_s": item.rows_per_s,
        "rows": item.rows,
        "behind": item.behind,
        "batch_s": item.batch_s,
        "at": item.at_ns / NS_PER_S,
        "error": item.error,
    }


def _for_administrators(picture: Picture) -> Json:
    figures, store = picture.figures, picture.store
    found: Json = {
        "ingest": {
            "frames": figures.frames,
            "bytes": figures.bytes,
            "duplicates": figures.duplicates,
            "stalls": figures.stalls,
            "inflight_bytes": figures.inflight_bytes,
            "refusals": dict(figures.refusals),
            "by_kind": dict(figures.connections),
        },
        "latency": {"bounds": BOUNDS_S, "counts": figures.latency.counts},
        "connections": [_connection(item) for item in picture.company.connections],
        "senders": [_sender(item) for item in picture.company.senders],
        "errors": [{**msgspec.to_builtins(item), "at": item.at_ns / NS_PER_S} for item in picture.company.troubles],
        "losses": picture.losses,
        "caps": picture.caps,
        "disk": {"total": picture.disk[0], "free": picture.disk[1]},
        "tier": msgspec.to_builtins(figures.tier) if figures.tier is not None else None,
    }
    if store is not None:
        found["store"] = {
            "durability": store.durability,
            "events": store.events,
            "syncs": store.syncs,
            "groups": store.groups,
            "wal_bytes": store.wal_bytes,
            "segment_bytes": store.segment_bytes,
            "segments": store.segments,
            "open_bytes": store.tail.open_bytes + store.tail.cut_bytes + store.tail.queued_bytes,
            "throttled": store.tail.throttled,
            "sealed": store.sealed_segments,
            "evictions": dict(store.retention.evictions),
            "scrub_findings": len(store.scrub.findings),
            "seal_postponed": store.seal_postponed,
        }
    return found


def _sender(item: SenderInfo) -> Json:
    return {**msgspec.to_builtins(item), "since": item.since_ns / NS_PER_S}


def _connection(item: ConnectionInfo) -> Json:
    return {
        "id": item.id,
        "peer": item.peer,
        "principal": item.principal,
        "kind": item.kind,
        "frames": item.frames,
        "bytes": item.bytes,
        "waiting": max(0, item.wire_seq - item.acknowledged),
        "inflight_bytes": item.inflight_bytes,
        "paused": item.paused,
        "slot_id": item.slot_id,
        "last_error": item.last_error,
    }
