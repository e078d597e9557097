"""What Spark's progress reports say of a query, for whoever is told (pure).

Offsets of our source are `{channel: seq}`, so a report names the channels that a query reads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from holdfast.clock import NS_PER_S

CHANNELS_MAX = 100
"""Channels that are named to a server; it takes no more."""
QUIET_S = 60
"""A query without news is told of this often; servers forget after five minutes."""


@dataclass(frozen=True)
class Progress:
    """A query after its last report. `offsets` and `ends` are by channel: where it is, and where the channel ends."""

    name: str
    offsets: Mapping[str, int]
    ends: Mapping[str, int]
    batch: int = -1
    rows: int = 0
    rows_per_s: float = 0.0
    batch_s: float = 0.0
    error: str = ""
    ended: bool = False

    def told(self, addr: str, patterns: Sequence[str]) -> dict[str, object] | None:
        """What the server at `addr` is told of its channels; None if the query has read nothing of it."""
        offsets, ends = _at(addr, patterns, self.offsets), _at(addr, patterns, self.ends)
        if not offsets:
            return None
        return {
            "channels": sorted(offsets)[:CHANNELS_MAX],
            "batch": self.batch,
            "rows": self.rows,
            "rows_per_s": self.rows_per_s,
            "behind": sum(max(0, seq - offsets.get(channel, 1)) for channel, seq in ends.items()),
            "batch_s": self.batch_s,
            "error": self.error,
        }


def after(before: Progress | None, report: Mapping[str, Any]) -> Progress:
    """A query after another report of Spark's. Reports of idle times have no rows and are no batches."""
    rows, batch = int(report.get("numInputRows") or 0), int(report.get("batchId", -1))
    took_s = float((report.get("durationMs") or {}).get("triggerExecution") or 0) / 1000
    sources = report.get("sources") or []
    name = str(report.get("name") or report["id"])
    old = before or Progress(name, {}, {})
    fresh = rows > 0 and batch > old.batch
    return replace(
        old,
        name=name,
        offsets=_merged(sources, "endOffset") or old.offsets,
        ends=_merged(sources, "latestOffset") or old.ends,
        batch=batch if fresh else old.batch,
        rows=old.rows + (rows if fresh else 0),
        rows_per_s=rows / took_s if took_s else 0.0,
        batch_s=took_s if rows else old.batch_s,
        error="",
    )


def offsets_of(value: object) -> dict[str, int]:
    """Offsets of ours, `{channel: seq}`; empty for those of other sources."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, dict):
        return {}
    return {str(name): seq for name, seq in value.items() if isinstance(seq, int)}


def _merged(sources: Sequence[Mapping[str, Any]], key: str) -> dict[str, int]:
    return {channel: seq for source in sources for channel, seq in offsets_of(source.get(key)).items()}


def _at(addr: str, patterns: Sequence[str], offsets: Mapping[str, int]) -> dict[str, int]:
    """Those of one server: of a source with several servers, channels are named with theirs."""
    start = f"{addr}/"
    own = {
        channel.removeprefix(start): seq
        for channel, seq in offsets.items()
        if channel.startswith(start) or "/" not in channel
    }
    return {channel: seq for channel, seq in own.items() if any(fnmatchcase(channel, glob) for glob in patterns)}


class News:
    """The latest of each query, and when it was told."""

    def __init__(self) -> None:
        self._latest: dict[str, Progress] = {}
        self._told_at_ns: dict[str, int] = {}

    def latest(self, query: str) -> Progress | None:
        """What is known of a query."""
        return self._latest.get(query)

    def put(self, query: str, progress: Progress) -> None:
        """There is something to tell."""
        self._latest[query] = progress
        self._told_at_ns.pop(query, None)

    def due(self, now_ns: int) -> list[Progress]:
        """What is to be told now; it counts as told. A query that ended is told of once."""
        told_after_ns = now_ns - QUIET_S * NS_PER_S
        due = {
            query: progress
            for query, progress in self._latest.items()
            if query not in self._told_at_ns or self._told_at_ns[query] <= told_after_ns
        }
        for query, progress in due.items():
            self._told_at_ns[query] = now_ns
            if progress.ended:
                del self._latest[query], self._told_at_ns[query]
        return list(due.values())
