"""What a query has found to be lost, and how its progress reports say so (pure).

Spark's Python sources have no metrics of their own. What they answer to `reportLatestOffset` is only shown, never
compared or kept, so the count goes in there: `{"trades": 31, "events lost": {"trades": 10}}`. No channel is named like
that. It counts since the query was started, and what planning has found; what a task finds is on its standard error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from holdfast.model.intervals import IntervalSet
from holdfast.spark.planning import Lost

EVENTS_LOST = "events lost"


class Losses:
    """Ranges of events, each counted once however often it is found missing."""

    def __init__(self) -> None:
        self._gone: dict[str, IntervalSet] = {}

    def add(self, lost: Iterable[Lost]) -> None:
        """These are gone."""
        for item in lost:
            self._gone.setdefault(item.channel, IntervalSet()).add(item.first_seq, item.last_seq)

    def shown_with(self, ends: Mapping[str, int]) -> dict[str, object]:
        """The answer to `reportLatestOffset`."""
        counts = {key: sum(last - first + 1 for first, last in gone) for key, gone in sorted(self._gone.items())}
        return {**ends, EVENTS_LOST: counts} if counts else {**ends}


def lost_in(latest: object) -> int:
    """Events lost, out of the `latestOffset` of a source in a progress report."""
    if isinstance(latest, str):
        try:
            latest = json.loads(latest)
        except ValueError:
            return 0
    counts = latest.get(EVENTS_LOST) if isinstance(latest, dict) else None
    return sum(count for count in counts.values() if isinstance(count, int)) if isinstance(counts, dict) else 0
