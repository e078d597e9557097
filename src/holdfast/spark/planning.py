"""From a range of offsets to tasks (pure), and what is missing in it.

Promise: the tasks of a range hold each event of it once, in any cut of segments; a task is about `task_bytes` of
segments, and tasks of one plan are about equal. What no segment holds, and what was not skipped when seqs were given
out, is named as lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition

from holdfast.errors import UnknownChannel
from holdfast.model.intervals import IntervalSet
from holdfast.spark.access import SegmentRef, StoreAccess
from holdfast.spark.options import TASK_BYTES_DEFAULT

PIECE_EVENTS_MIN = 20_000
"""A segment is not cut finer: every task that reads a part of it proves the whole of it."""


@dataclass(frozen=True)
class Piece:
    """Events `first_seq..last_seq` of a segment."""

    segment: SegmentRef
    first_seq: int
    last_seq: int

    @property
    def size_bytes(self) -> int:
        """Its share of the segment, by rows."""
        rows = self.segment.last_seq - self.segment.first_seq + 1
        return -(-self.segment.size_bytes * (self.last_seq - self.first_seq + 1) // rows)


@dataclass
class Task(InputPartition):
    """What one Spark task reads, in this order."""

    pieces: tuple[Piece, ...]

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self.pieces = tuple(pieces)
        super().__init__(self.pieces)


@dataclass(frozen=True)
class Lost:
    """Events that are in no segment any more; both ends are included."""

    channel: str
    first_seq: int
    last_seq: int


def pieces_of(
    access: StoreAccess, start: Mapping[str, int], end: Mapping[str, int], floors: Mapping[str, int]
) -> tuple[list[Piece], list[Lost]]:
    """What there is of `start..end`, and what is lost of it. `floors` has the first event that is left, by channel."""
    pieces: list[Piece] = []
    lost: list[Lost] = []
    for channel, end_seq in end.items():
        first = start.get(channel, 1)
        if first >= end_seq:
            continue
        found = pieces_within(access, channel, (max(first, floors.get(channel, end_seq)), end_seq - 1))
        pieces += found
        missing = _missing(found, (first, end_seq - 1))
        if missing:
            skipped = IntervalSet(_skipped(access, channel) if channel in floors else [])
            lost += [Lost(channel, *part) for gap in missing for part in skipped.missing(*gap)]
    return pieces, lost


def pieces_within(access: StoreAccess, channel: str, span: tuple[int, int]) -> list[Piece]:
    """What segments hold now of a range of seqs, both ends included, each event once."""
    first, last = span
    found: list[Piece] = []
    if first > last:
        return found
    for segment in segments_of(access, channel, first):
        if segment.first_seq > last:
            break
        if segment.last_seq >= first:  # a list in pages has events twice if segments were put together meanwhile
            found.append(Piece(segment, max(first, segment.first_seq), min(last, segment.last_seq)))
            first = segment.last_seq + 1
    return found


def segments_of(access: StoreAccess, channel: str, from_seq: int) -> Iterator[SegmentRef]:
    """The segments of a channel; no more of them once it is removed."""
    try:
        yield from access.segments(channel, from_seq=from_seq)
    except UnknownChannel:
        return


def _skipped(access: StoreAccess, channel: str) -> list[tuple[int, int]]:
    try:
        return access.skipped(channel)
    except UnknownChannel:  # removed while it was looked at
        return []


def _missing(pieces: Sequence[Piece], span: tuple[int, int]) -> list[tuple[int, int]]:
    there = IntervalSet((piece.first_seq, piece.last_seq) for piece in pieces)
    return list(there.missing(*span))


def tasks_of(pieces: Sequence[Piece], *, task_bytes: int = TASK_BYTES_DEFAULT, tasks_min: int = 1) -> list[Task]:
    """Consecutive pieces together, cut where a task is full; at least `tasks_min` if there are events enough."""
    total = sum(piece.size_bytes for piece in pieces)
    if not pieces:
        return []
    count = max(tasks_min, -(-total // task_bytes))
    share = max(1, -(-total // count))
    tasks: list[list[Piece]] = [[]]
    room = share
    for piece in pieces:
        for part in _cut(piece, room, share):
            if tasks[-1] and part.size_bytes > 2 * room:  # more of it would stand out than fits
                tasks.append([])
                room = share
            tasks[-1].append(part)
            room -= part.size_bytes
    return [Task(parts) for parts in tasks if parts]


def _cut(piece: Piece, room: int, share: int) -> list[Piece]:
    """Parts of a piece: the first fits into `room`, the others into a task each."""
    rows, size = piece.last_seq - piece.first_seq + 1, max(1, piece.size_bytes)
    parts: list[Piece] = []
    first = piece.first_seq
    budget = room if room > 0 else share
    while first <= piece.last_seq:
        wanted = max(PIECE_EVENTS_MIN, budget * rows // size)
        left = piece.last_seq - first + 1
        events = left if left - wanted < PIECE_EVENTS_MIN else wanted
        parts.append(Piece(piece.segment, first, first + events - 1))
        first += events
        budget = share
    return parts
