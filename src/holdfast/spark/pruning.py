"""Filters of a batch, to leave segments out (pure).

Promise: a segment is left out only if none of its events can pass. Every filter is given back to Spark, which applies
it to the rows that come, so a filter that is not understood here costs nothing but time.

Understood are comparisons (`=`, `<`, `<=`, `>`, `>=`, `in`) of `_seq`, `_committed_id`, `_ingested_at` and the column
named by `eventTime`. That one is compared with the event times of segments which say that they are of this column.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from holdfast.clock import NS_PER_S, wall_ns_of
from holdfast.errors import InvalidConfig
from holdfast.spark.access import SegmentRef
from holdfast.spark.planning import Piece

DAY_NS = 86_400 * NS_PER_S
LOWEST, HIGHEST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Range:
    """Values that may pass; both ends are included."""

    first: int = LOWEST
    last: int = HIGHEST

    def meets(self, first: int, last: int) -> bool:
        """Whether a value in `first..last` may pass."""
        return first <= self.last and last >= self.first

    def within(self, other: Range) -> Range:
        """What passes both."""
        return Range(max(self.first, other.first), min(self.last, other.last))


@dataclass(frozen=True)
class Bounds:
    """What the filters of a query allow."""

    seq: Range = Range()
    committed_id: Range = Range()
    ingested_at_ns: Range = Range()
    event_time_ns: Range = Range()
    event_time: str = ""
    """The column of these times."""

    def cut(self, pieces: Iterable[Piece]) -> list[Piece]:
        """The pieces, without segments and seqs that cannot pass."""
        found = []
        for piece in pieces:
            first, last = max(piece.first_seq, self.seq.first), min(piece.last_seq, self.seq.last)
            if first <= last and self._meets(piece.segment):
                found.append(Piece(piece.segment, first, last))
        return found

    def _meets(self, segment: SegmentRef) -> bool:
        times = (segment.first_event_time_ns, segment.last_event_time_ns)
        return (
            self.committed_id.meets(segment.first_committed_id, segment.last_committed_id)
            and self.ingested_at_ns.meets(segment.first_ingested_at_ns, segment.last_ingested_at_ns)
            and (
                segment.event_time_column != self.event_time
                or times[0] is None
                or times[1] is None
                or self.event_time_ns.meets(times[0], times[1])
            )
        )


def check_event_time(event_time: str, pieces: Iterable[Piece]) -> None:
    """Refuse a column that no channel notes the times of, if all segments say which they note."""
    noted = {piece.segment.event_time_column: piece.segment.channel for piece in pieces}
    if event_time and noted and event_time not in noted and "" not in noted:
        told = ", ".join(f"{column!r} in {channel!r}" for column, channel in sorted(noted.items()))
        reason = f"is {event_time!r}, and segments note the times of {told}; name that column, or leave it out"
        raise InvalidConfig(key="eventTime", reason=reason)


def bounds_of(filters: Iterable[Filter], *, event_time: str) -> Bounds:
    """What AND-ed filters allow. `event_time` is a column whose times segments note; empty for none."""
    names = {"_seq": "seq", "_committed_id": "committed_id", "_ingested_at": "ingested_at_ns"}
    if event_time:
        names[event_time] = "event_time_ns"
    bounds = Bounds(event_time=event_time)
    for item in filters:
        attribute: tuple[str, ...] = getattr(item, "attribute", ())
        name = names.get(attribute[0]) if len(attribute) == 1 else None
        found = _range(item, times=name in ("ingested_at_ns", "event_time_ns")) if name else None
        if name is not None and found is not None:
            bounds = replace(bounds, **{name: getattr(bounds, name).within(found)})
    return bounds


def _range(item: Filter, *, times: bool) -> Range | None:
    """The values that pass; None if that is not known."""
    if isinstance(item, In):
        spans = [_span(value, times=times) for value in item.value]
        known = [span for span in spans if span is not None]
        complete = known and len(known) == len(spans)
        return Range(min(known)[0], max(last for _, last in known)) if complete else None
    span = _span(getattr(item, "value", None), times=times)
    if span is None:
        return None
    first, last = span
    kinds: dict[type[Filter], Range] = {
        EqualTo: Range(first, last),
        GreaterThan: Range(first=first + 1),
        GreaterThanOrEqual: Range(first=first),
        LessThan: Range(last=last - (0 if times else 1)),
        LessThanOrEqual: Range(last=last),
    }
    return kinds.get(type(item))


def _span(value: object, *, times: bool) -> tuple[int, int] | None:
    """The stored values that are this one for Spark. Times are cut towards 1970: to microseconds, or to days."""
    if not times:
        return (value, value) if isinstance(value, int) and not isinstance(value, bool) else None
    if isinstance(value, datetime):
        ns = wall_ns_of(value if value.tzinfo is not None else value.replace(tzinfo=UTC))
        return ns - 999 * (ns <= 0), ns + 999 * (ns >= 0)
    if isinstance(value, date):
        ns = wall_ns_of(datetime(value.year, value.month, value.day, tzinfo=UTC))
        return ns - DAY_NS + 1, ns + DAY_NS - 1
    return None
