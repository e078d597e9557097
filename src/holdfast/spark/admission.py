"""How much of what is there a micro-batch takes (pure).

Promise: `admit` takes events in the order in which they were committed, whatever their channel, so that no channel
starves. It never takes more events or segments than the limits allow, nor more bytes, except that it takes at least one
event if there is one. The bytes of a part of a segment are its share of the rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from holdfast.spark.access import SegmentRef
from holdfast.spark.options import Limits

Offsets = dict[str, int]
"""By channel the first seq that is not in the batch; sorted by channel, so that equal ones are equal as text."""

NO_LIMITS = Limits(events=0, size_bytes=0, segments=0)


def canonical(offsets: Mapping[str, int]) -> Offsets:
    """Sorted by channel."""
    return dict(sorted(offsets.items()))


def admit(
    start: Mapping[str, int],
    targets: Mapping[str, int],
    limits: Limits,
    *,
    segments: Callable[[str, int], Iterable[SegmentRef]],
) -> Offsets:
    """The end of the batch that begins at `start`: at most `targets`, by channel.

    `segments(channel, from_seq)` lists segments in order; it is asked only for as much as is taken.
    """
    end = {channel: seq for channel, seq in start.items()}
    ahead = {channel: seq for channel, seq in targets.items() if seq > start.get(channel, 1)}
    if limits == NO_LIMITS:
        return canonical({**end, **ahead})
    taken = _Taken(limits)
    streams = [_parts(segments, channel, start.get(channel, 1), seq) for channel, seq in ahead.items()]
    for part in heapq.merge(*streams, key=_order):
        events = taken.take(part)
        if events:
            end[part.key] = part.first_seq + events
        if events < part.last_seq - part.first_seq + 1:
            return canonical(end)
    return canonical({**end, **ahead})  # also past what is gone at the end, which no segment holds


def _parts(
    segments: Callable[[str, int], Iterable[SegmentRef]], channel: str, start: int, end: int
) -> Iterator[SegmentRef]:
    """Segments cut to `start..end-1`, with the bytes of what is left of them."""
    for segment in segments(channel, start):
        first, last = max(segment.first_seq, start), min(segment.last_seq, end - 1)
        if first >= end:
            return
        if first > last:  # a list in pages has events twice if segments were put together meanwhile
            continue
        rows = segment.last_seq - segment.first_seq + 1
        size_bytes = -(-segment.size_bytes * (last - first + 1) // rows)
        yield replace(segment, first_seq=first, last_seq=last, size_bytes=size_bytes)
        start = last + 1


def _order(part: SegmentRef) -> tuple[int, int]:
    """As committed; servers count for themselves, and of several the time at which events came in decides."""
    return (part.first_ingested_at_ns if part.server else 0, part.first_committed_id)


class _Taken:
    """What the batch holds so far."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._events = self._bytes = self._segments = 0

    def take(self, part: SegmentRef) -> int:
        """How many of its events are taken; fewer than all when a limit is reached."""
        limits, rows = self._limits, part.last_seq - part.first_seq + 1
        if limits.segments and self._segments >= limits.segments:
            return 0
        events = rows
        if limits.events:
            events = min(events, limits.events - self._events)
        if limits.size_bytes:
            left = limits.size_bytes - self._bytes
            events = min(events, rows if part.size_bytes <= left else left * rows // part.size_bytes)
        if events < 1 and not self._events:
            events = 1
        self._events += max(0, events)
        self._bytes += part.size_bytes * max(0, events) // rows
        self._segments += 1
        return max(0, events)
