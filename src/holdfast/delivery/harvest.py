"""One turn of a feed, off the event loop: read what its members were offered, leave out what does not pass, encode.

    offers + where to read ──► pieces ──► owed? ──► filter ──► cut by offer, attempt and bytes ──► bodies

Promises: members get whole messages in the order of their seqs, no more than they were offered. What was examined and
did not pass is reported, so that it can be confirmed. What was asked for and is not there any more is reported too. A
turn reads a bounded amount, so that feeds take turns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.delivery.filters import Filter
from holdfast.delivery.groups import Offer
from holdfast.delivery.pieces import Pieces
from holdfast.delivery.redelivery import Counted, Span
from holdfast.model.intervals import IntervalSet
from holdfast.store.reading import Piece, with_system_columns
from holdfast.store.subscribers.handing import HandingPort, InTier, LazyPiece, Place
from holdfast.wire.consume import encode_body

TURN_BYTES_MAX = 4 << 20
"""Encoded in one turn, beyond the first message."""
TURN_ROWS_MAX = 1 << 18
"""Examined in one turn: a filter that lets nothing pass still lets others have theirs."""
WINDOW_ROWS_MIN = 1024
"""Rows that are filtered at once, at least."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Which columns a subscription wants; None is all."""

    columns: tuple[str, ...] | None = None
    system: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wish:
    """What a turn is to bring."""

    channel: str
    offers: tuple[Offer, ...]
    shapes: dict[int, Shape]
    from_seq: int = 1
    again: tuple[Counted, ...] | None = None
    """Messages to be delivered again, instead of new ones from `from_seq` on."""
    given_back: tuple[Span, ...] = ()
    """Those of them that were delivered before though their number does not tell."""
    filter: Filter = field(default_factory=Filter)
    place: Place | None = None
    remote: bool = True
    """Whether the turn may wait for the tier."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What one member gets in one DELIVER."""

    member: int
    ranges: tuple[Span, ...]
    attempt: int
    body: pa.Buffer
    rows: int
    again: bool = False
    """They were delivered before, and it did not count."""


@dataclass(slots=True)
class Harvest:
    """What a turn brought."""

    cuts: list[Cut] = field(default_factory=list)
    next_seq: int = 1
    """Where new messages go on."""
    passed: list[Span] = field(default_factory=list)
    """Examined, and not wanted."""
    gone: list[Span] = field(default_factory=list)
    """Asked for, and not there."""
    left: list[Counted] = field(default_factory=list)
    """Of messages to be delivered again: those that found no room."""
    tight: set[int] = field(default_factory=set)
    """Members into whose bytes the next message did not fit."""
    in_tier: bool = False
    """The next events are in the tier, and the turn must not wait for it."""
    removed: bool = False
    """The subscriber is not there any more."""


def harvest(port: HandingPort, pieces: Pieces, wish: Wish) -> Harvest:
    """Carry out a turn. Reads the disk."""
    found = Harvest(next_seq=wish.from_seq)
    if wish.place is not None and wish.place.removed:
        found.removed = True
        return found
    turn = _Turn(port, pieces, wish, found)
    if wish.again is None:
        turn.bring_new()
    else:
        turn.bring_again(list(wish.again))
    return found


class _Try(NamedTuple):
    """A delivery to come."""

    number: int
    again: bool


_Part = tuple[int, int, _Try]
"""First and last seq, and the same delivery of all."""


class _Hand:
    """What is still to be given of the offers."""

    def __init__(self, offers: Sequence[Offer]) -> None:
        self._offers = list(reversed(offers))
        self._rows = offers[0].rows if offers else 0
        self._bytes = {offer.member: offer.bytes for offer in offers}
        self._held_left = {offer.member: offer.held_bytes_left for offer in offers}
        self._must_fit = {offer.member for offer in offers if offer.holds_some}

    @property
    def rows(self) -> int:
        """Of all offers."""
        return sum(offer.rows for offer in self._offers[:-1]) + self._rows if self._offers else 0

    def current(self) -> tuple[int, int, int] | None:
        """The member whose turn it is, its rows and bytes; None if nobody has room."""
        while self._offers:
            member = self._offers[-1].member
            if self._rows > 0 and self._bytes[member] > 0:
                return member, self._rows, self._bytes[member]
            self._offers.pop()
            self._rows = self._offers[-1].rows if self._offers else 0
        return None

    def gave(self, member: int, rows: int, size_bytes: int) -> None:
        """The current member got messages."""
        self._bytes[member] -= size_bytes
        self._held_left[member] -= size_bytes
        self._rows -= rows
        self._must_fit.add(member)

    def refuses(self, member: int, size_bytes: int) -> bool:
        """Whether one more message is too much for a member; if so, its turn is over."""
        too_much = member in self._must_fit and size_bytes > self._held_left[member]
        if too_much:
            self._bytes[member] = 0
        return too_much


class _Turn:
    def __init__(self, port: HandingPort, pieces: Pieces, wish: Wish, found: Harvest) -> None:
        self._port = port
        self._pieces = pieces
        self._wish = wish
        self._found = found
        self._hand = _Hand(wish.offers)
        self._bytes = self._examined = 0

    @property
    def _is_open(self) -> bool:
        within = self._bytes < TURN_BYTES_MAX and self._examined < TURN_ROWS_MAX
        return within and self._hand.current() is not None

    # -- new messages -----------------------------------------------------------------------------------------------

    def bring_new(self) -> None:
        wish, found = self._wish, self._found
        while self._is_open:
            if wish.place is not None:
                found.next_seq = max(found.next_seq, self._port.next_owed(wish.place, found.next_seq))
            piece = self._at(found.next_seq)
            if piece is None:
                return
            if piece.first_seq > found.next_seq and wish.place is None:
                found.gone.append((found.next_seq, piece.first_seq - 1))
            self._examine(piece)

    def _at(self, seq: int) -> LazyPiece | None:
        try:
            return self._pieces.at(self._wish.channel, seq, remote=self._wish.remote)
        except InTier:
            self._found.in_tier = True
            return None

    def _examine(self, piece: LazyPiece) -> None:
        """Hand out a window of a piece, from `next_seq` on."""
        wish, found = self._wish, self._found
        first = max(found.next_seq, piece.first_seq)
        last = min(piece.last_seq, first + max(WINDOW_ROWS_MIN, 2 * self._hand.rows) - 1)
        owed = [(first, last, 0)] if wish.place is None else self._port.owed(wish.place, first, last)
        handed = [] if wish.place is None else self._port.handed(wish.place, first, last)
        parts = _marked([(low, high, failed + 1) for low, high, failed in owed], handed)
        self._examined += last - first + 1
        wanted = parts if wish.filter.passes_all else self._filtered(piece, (first, last), parts)
        left = self._fill(piece, wanted)
        found.next_seq = left[0][0] if left else last + 1
        if not wish.filter.passes_all:
            found.passed += _without(parts, wanted, end=found.next_seq - 1)

    def _filtered(self, piece: LazyPiece, window: Span, parts: list[_Part]) -> list[_Part]:
        first, last = window
        chosen, batch = self._wish.filter, piece.batch.slice(first - piece.first_seq, last - first + 1)
        runs = self._port.runs(self._wish.channel, piece) if chosen.needs_runs else None
        mask = chosen.mask(batch, first_seq=first, runs=runs)
        return [
            (low + start, low + end - 1, attempt)
            for low, high, attempt in parts
            for start, end in _runs_of(mask[low - first : high - first + 1])
        ]

    # -- messages again ---------------------------------------------------------------------------------------------

    def bring_again(self, asked: list[Counted]) -> None:
        wish, found = self._wish, self._found
        spans = _marked(asked if wish.place is None else self._still_owed(asked), wish.given_back)
        while spans and self._is_open:
            piece = self._at(spans[0][0])
            if found.in_tier:
                break
            end = piece.first_seq - 1 if piece is not None else spans[-1][1]
            missing, spans = _split_at(spans, end)
            found.gone += [(first, last) for first, last, _ in missing]
            if piece is None:
                return
            here, spans = _split_at(spans, piece.last_seq)
            spans = [*self._fill(piece, here), *spans]
        found.left = [(first, last, attempt.number) for first, last, attempt in spans]

    def _still_owed(self, spans: list[Counted]) -> list[Counted]:
        place = self._wish.place
        assert place is not None
        return [
            (low, high, attempt)
            for first, last, attempt in spans
            for low, high, _ in _joined(self._port.owed(place, first, last))
        ]

    # -- cutting ----------------------------------------------------------------------------------------------------

    def _fill(self, piece: LazyPiece, parts: list[_Part]) -> list[_Part]:
        """Give messages of a piece to whose turn it is; returns those that are left."""
        while parts and self._is_open:
            turn = self._hand.current()
            assert turn is not None
            member, rows, room_bytes = turn
            chosen, parts = _take(parts, rows)
            batch = _rows_of(piece, chosen)
            while batch.num_rows > 1 and batch.nbytes > room_bytes:
                fewer, rest = _take(chosen, batch.num_rows // 2)
                chosen, parts = fewer, [*rest, *parts]
                batch = _rows_of(piece, chosen)
            if self._hand.refuses(member, batch.nbytes):
                parts = [*chosen, *parts]
                self._found.tight.add(member)
                continue
            cut = self._cut(piece, member, chosen, batch)
            self._found.cuts.append(cut)
            self._hand.gave(member, cut.rows, cut.body.size)
            self._bytes += cut.body.size
        return parts

    def _cut(self, piece: LazyPiece, member: int, chosen: list[_Part], batch: pa.RecordBatch) -> Cut:
        ranges = tuple([(first, last) for first, last, _ in chosen])
        shape, wish, attempt = self._wish.shapes[member], self._wish, chosen[0][2]

        def make() -> pa.Buffer:
            return encode_body(self._shaped(piece, ranges, batch, shape))

        if len(ranges) == 1:
            key = (wish.channel, *ranges[0], shape.columns, shape.system)
            body = self._pieces.body(key, make)
        else:
            body = make()
        return Cut(member, ranges, attempt.number, body, batch.num_rows, again=attempt.again)

    def _shaped(self, piece: LazyPiece, ranges: Sequence[Span], batch: pa.RecordBatch, shape: Shape) -> pa.RecordBatch:
        shaped = batch
        if shape.columns is not None:
            shaped = batch.select([name for name in shape.columns if name in batch.schema.names])
        if not shape.system:
            return shaped
        runs = self._port.runs(self._wish.channel, piece)
        if runs is None:
            return shaped
        extra = [
            with_system_columns(
                shaped.slice(start, last - first + 1), Piece(first, shaped, runs), self._wish.channel, shape.system
            )
            for (first, last), start in zip(ranges, _starts(ranges), strict=True)
        ]
        return extra[0] if len(extra) == 1 else pa.concat_batches(extra)


# ------------------------------------------------------------------------------------------------------- ranges, pure


def _starts(ranges: Sequence[Span]) -> Iterator[int]:
    start = 0
    for first, last in ranges:
        yield start
        start += last - first + 1


def _marked(parts: Sequence[Counted], before: Sequence[Span]) -> list[_Part]:
    """Parts, split where some of their first deliveries are known to have begun before."""
    if not before:
        return [(first, last, _Try(number, again=False)) for first, last, number in parts]
    seen, out = IntervalSet(before), []
    for first, last, number in parts:
        if number > 1:
            out.append((first, last, _Try(number, again=False)))
            continue
        known = [(*span, _Try(number, again=True)) for span in seen.overlap(first, last)]
        new = [(*span, _Try(number, again=False)) for span in seen.missing(first, last)]
        out += sorted(known + new)
    return out


def _rows_of(piece: LazyPiece, chosen: Sequence[_Part]) -> pa.RecordBatch:
    """The rows of some ranges of a piece."""
    if len(chosen) == 1:
        first, last, _ = chosen[0]
        return piece.batch.slice(first - piece.first_seq, last - first + 1)
    places = np.concatenate([np.arange(first, last + 1) for first, last, _ in chosen]) - piece.first_seq
    return piece.batch.take(pa.array(places))


def _take(parts: list[_Part], rows: int) -> tuple[list[_Part], list[_Part]]:
    """The first so many messages, of one attempt, and the rest."""
    chosen: list[_Part] = []
    for n, (first, last, attempt) in enumerate(parts):
        if attempt != parts[0][2] or not rows:
            return chosen, parts[n:]
        end = min(last, first + rows - 1)
        chosen.append((first, end, attempt))
        rows -= end - first + 1
        if end < last:
            return chosen, [(end + 1, last, attempt), *parts[n + 1 :]]
    return chosen, []


def _split_at(spans: list[_Part], end: int) -> tuple[list[_Part], list[_Part]]:
    """Those up to `end`, and those above."""
    below = [(first, min(last, end), attempt) for first, last, attempt in spans if first <= end]
    above = [(max(first, end + 1), last, attempt) for first, last, attempt in spans if last > end]
    return below, above


def _joined(parts: Sequence[Counted]) -> list[Counted]:
    """Neighbours as one, whatever their counts."""
    out: list[Counted] = []
    for first, last, count in parts:
        if out and out[-1][1] + 1 == first:
            out[-1] = (out[-1][0], last, out[-1][2])
        else:
            out.append((first, last, count))
    return out


def _runs_of(mask: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Where a mask is true, as half-open runs."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def _without(parts: Sequence[_Part], wanted: Sequence[_Part], *, end: int) -> list[Span]:
    """What is in `parts` and not in `wanted`, up to `end`."""
    passing = IntervalSet((first, last) for first, last, _ in wanted)
    return [span for first, last, _ in parts for span in passing.missing(first, min(last, end))]
