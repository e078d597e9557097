"""How the Spark queries over a server are doing, as they tell it themselves.

Promise: at most `QUERIES_MAX` queries are known, each forgotten `FORGET_S` after its last news; nothing is kept on
disk. A query is known by who tells of it and its name, so that nobody writes over the news of others. Read and changed
on the event loop only.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.clock import NS_PER_S, Clock
from holdfast.errors import LimitReached

QUERIES_MAX = 200
"""More than a page shows well, and bounded memory whoever tells."""
FORGET_S = 300
"""Longer than a restart of a query takes; a query that lives tells more often."""


@dataclass(frozen=True, slots=True)
class QueryNews:
    """One query. `rows` is a total since it was started, the other figures are of its last batch."""

    name: str
    principal: str
    channels: tuple[str, ...]
    batch: int
    rows: int
    rows_per_s: float
    behind: int
    batch_s: float
    error: str
    at_ns: int
    """When it was last heard of."""


class Queries:
    """All queries that were heard of lately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._found: dict[tuple[str, str], tuple[int, QueryNews]] = {}

    def tell(self, news: QueryNews) -> None:
        """A query has news; `LimitReached` for one more than are kept."""
        self._forget()
        key = (news.principal, news.name)
        if key not in self._found and len(self._found) >= QUERIES_MAX:
            raise LimitReached(
                what=f"query {news.name!r}", limit="the number of queries that are kept", allowed=QUERIES_MAX
            )
        self._found[key] = (self._clock.monotonic_ns(), news)

    def current(self) -> tuple[QueryNews, ...]:
        """By name."""
        self._forget()
        return tuple(self._found[key][1] for key in sorted(self._found, key=lambda key: (key[1], key[0])))

    def _forget(self) -> None:
        oldest_ns = self._clock.monotonic_ns() - FORGET_S * NS_PER_S
        self._found = {key: told for key, told in self._found.items() if told[0] > oldest_ns}
