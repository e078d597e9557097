"""When a query that failed is started again (pure).

Promise: pauses double from `backoff` to `backoff_max`; after `max_restarts` failures in a row it is given up. A query
that ran for `reset_after` before it failed begins to count anew.
"""

from __future__ import annotations

from holdfast.spark.pipeline.model import Restart

DOUBLINGS_MAX = 40


class Attempts:
    """How often one query failed in a row."""

    def __init__(self, policy: Restart) -> None:
        self._policy = policy
        self._failures = 0

    def pause_ns(self, *, ran_ns: int) -> int | None:
        """How long to wait after a failure; None to give up."""
        if ran_ns >= self._policy.reset_after_ns:
            self._failures = 0
        self._failures += 1
        if self._failures > self._policy.max_restarts:
            return None
        return min(self._policy.backoff_max_ns, self._policy.backoff_ns << min(self._failures - 1, DOUBLINGS_MAX))
