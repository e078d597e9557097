"""What delivery over a network needs of the store: events in pieces, whose they are, and outcomes that do not wait.

Promises:

- `piece` finds the first events at or above a seq: in a segment, or in memory when no segment has them yet. The border
  is decided under the tail's lock, so there is neither a gap nor a repeat. What it returns is bounded by
  `PIECE_BYTES_MAX`, or is one batch as it was stored.
- `last_seq` and `Watch.take` never wait for a disk; everything else may.
- `settle` returns a future. Many callers share one sync, as everywhere in the acknowledgement log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import groupby

import pyarrow as pa

from holdfast.errors import BadRequest, HoldfastError, LimitReached
from holdfast.model.evolution import conform
from holdfast.model.schema import SchemaMode
from holdfast.store.channels import Channel
from holdfast.store.ground import Ground
from holdfast.store.reading import Position, Reader
from holdfast.store.segments.runs import RunTable
from holdfast.store.subscribers.acklog import OutcomeRecord
from holdfast.store.subscribers.attempts import Counted
from holdfast.store.subscribers.desk import SubscriberDesk
from holdfast.store.subscribers.moves import Move, check_start
from holdfast.store.subscribers.progress import Outcome, Progress
from holdfast.store.subscribers.registry import SubscriberState
from holdfast.store.units import Chunk
from holdfast.store.wal.codec import decode_pieces

PIECE_BYTES_MAX = 1 << 20
"""What is taken of the tail at once, and of a segment beyond its first batch."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Place:
    """A subscriber's place in one channel."""

    state: SubscriberState
    channel: str
    resumed: bool

    @property
    def removed(self) -> bool:
        """Whether the subscriber was removed, or does not follow the channel any more."""
        return self.state.removed or not self.state.follows(self.channel)


@dataclass(frozen=True, slots=True)
class LazyPiece:
    """Consecutive events in the channel's schema of now; who brought them is looked up when asked."""

    first_seq: int
    batch: pa.RecordBatch
    segment_seq: int
    """0 for events in memory."""
    runs: RunTable | None = None

    @property
    def last_seq(self) -> int:
        """Included."""
        return self.first_seq + int(self.batch.num_rows) - 1


class InTier(Exception):  # not an error: somebody who may wait asks again
    """The next events are in the tier, and the caller must not wait for it."""


class Watch:
    """Channels that got events since the last look. One reader; filled under the tail's lock."""

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._ids: set[int] = set()
        ground.tail.watches.append(self._ids)

    def take(self) -> list[str]:
        """Their names."""
        with self._ground.tail.lock:
            ids = list(self._ids)
            self._ids.clear()
        found = (self._ground.channels.get_by_id(number) for number in ids)
        return [channel.name for channel in found if channel is not None]


class HandingPort:
    """A store, as delivery sees it."""

    def __init__(self, ground: Ground, reader: Reader, desk: SubscriberDesk) -> None:
        self._ground = ground
        self._reader = reader
        self._desk = desk
        self._registry = desk.registry

    def watch(self) -> Watch:
        """From now on remember which channels get events."""
        return Watch(self._ground)

    # -- who --------------------------------------------------------------------------------------------------------

    def join(self, name: str, channel: str, *, start: Position, others: int) -> Place:
        """A durable's place in a channel, made if it is new. `others` are subscriptions the store does not know of."""
        registry = self._registry
        patterns: tuple[str, ...] = (channel,)
        newest_first = False
        if registry.has(name):
            note = registry.find(name).note
            if registry.find(name).follows(channel):
                state = self._desk.register(name, note.patterns, start=start, newest_first=note.newest_first)
                return Place(state, channel, resumed=True)
            patterns, newest_first = (*note.patterns, channel), note.newest_first
        self.check_room(channel, others)
        return Place(
            self._desk.register(name, patterns, start=start, newest_first=newest_first), channel, resumed=False
        )

    def leave(self, place: Place) -> None:
        """Remove a durable's place in a channel, and the durable with its last one; `BadRequest` if it follows it by a
        pattern."""
        note = place.state.note
        if place.removed:
            return
        if place.channel not in note.patterns:
            raise BadRequest(
                f"subscriber {note.name!r} follows channel {place.channel!r} by a pattern "
                f"({', '.join(note.patterns[:5])}); remove the subscriber instead"
            )
        rest = tuple(pattern for pattern in note.patterns if pattern != place.channel)
        if rest:
            self._desk.register(note.name, rest, start="new", newest_first=note.newest_first)
        else:
            self._desk.deregister(note.name)

    def plan_reset(self, name: str, channel: str | None, *, to: Position) -> list[Move]:
        """What `reset` would change."""
        return self._desk.places(self._registry.find(name), channel, to)[0]

    def reset(self, name: str, channel: str | None, *, to: Position) -> list[Move]:
        """Put a subscriber at another place, back or on, in one channel or in all it follows; durable when it returns.

        Counts of failed attempts begin anew there. Not while somebody consumes by that name.
        """
        return self._desk.reset(name, channel, to=to)

    def check_room(self, channel: str, others: int) -> None:
        """Raise `LimitReached` unless one more subscription of the channel is allowed."""
        found = self._ground.channels.get(channel)
        if found is None or not found.limits.max_subs:
            return
        allowed = found.limits.max_subs
        with self._registry.lock:
            followers = len(self._registry.followers(found)) if self._registry.states_count() + others >= allowed else 0
        if followers + others >= allowed:
            raise LimitReached(what=f"subscribers of channel {channel!r}", limit="max_subs", allowed=allowed)

    def seen(self, places: Sequence[Place]) -> None:
        """These subscribers have somebody who listens."""
        now_ns = self._ground.clock.monotonic_ns()
        for place in places:
            place.state.last_seen_ns = now_ns

    # -- how far ----------------------------------------------------------------------------------------------------

    def last_seq(self, channel: str) -> int:
        """The last event there is; 0 in a channel without any."""
        found = self._ground.channels.get(channel)
        return found.last_seq if found is not None else 0

    def start_seq(self, channel: str, start: Position) -> int:
        """A start position as a seq, clamped to what there is."""
        check_start(start)
        found = self._ground.channels.get(channel)
        if found is None:
            return 1
        wanted = found.last_seq + 1 if start == "new" else self._reader.resolve(found, start)
        first = self._ground.catalog.first_seq(found.id) or found.published_seq + 1
        return min(max(first, found.first_seq, wanted), found.last_seq + 1)

    def mark(self, place: Place) -> int:
        """The high-water mark; 0 before the channel exists."""
        progress = self._progress(place)
        with self._registry.lock:
            return progress.mark if progress is not None else 0

    def owed(self, place: Place, first_seq: int, last_seq: int) -> list[Counted]:
        """What is owed of a range, in parts of one count of failed attempts each."""
        progress = self._progress(place)
        if progress is None:
            return []
        with self._registry.lock:
            return [part for span in progress.owed(first_seq, last_seq) for part in progress.attempts.split(*span)]

    def unconfirmed(self, place: Place, ranges: Iterable[Span]) -> int | None:
        """How many events of these ranges are owed; None where the subscriber or the channel is gone."""
        progress = self._progress(place)
        if progress is None:
            return None
        with self._registry.lock:
            return sum([last - first + 1 for span in ranges for first, last in progress.owed(*span)])

    def handed(self, place: Place, first_seq: int, last_seq: int) -> list[Span]:
        """The parts of a range that were handed out before and are still owed."""
        progress = self._progress(place)
        if progress is None:
            return []
        with self._registry.lock:
            return progress.handed.overlap(first_seq, last_seq)

    def next_owed(self, place: Place, from_seq: int) -> int:
        """The first seq at or above `from_seq` that is owed; one past the last event if none is."""
        last_seq, progress = self.last_seq(place.channel), self._progress(place)
        if progress is None:
            return last_seq + 1
        with self._registry.lock:
            span = progress.confirmed.lowest_missing(max(from_seq, progress.start_seq), last_seq)
        return span[0] if span is not None else max(from_seq, last_seq + 1)

    def _progress(self, place: Place) -> Progress | None:
        found = self._ground.channels.get(place.channel)
        if found is None or place.removed:
            return None
        with self._registry.lock:
            return self._registry.progress(place.state, found)

    # -- answers ----------------------------------------------------------------------------------------------------

    def settle(
        self, place: Place, outcome: Outcome, spans: Sequence[Span], *, reason: str = ""
    ) -> Future[list[OutcomeRecord]]:
        """Write an outcome; the future is done when it is durable and has taken effect. Not for rejections."""
        named = [(place.channel, first, last) for first, last in spans]
        try:
            return self._desk.settle_later(place.state, outcome=outcome, spans=named, reason=reason)
        except HoldfastError as error:
            failed: Future[list[OutcomeRecord]] = Future()
            failed.set_exception(error)
            return failed

    def reject(self, place: Place, spans: Sequence[Span], *, reason: str) -> None:
        """Put events into the dead-letter channel, then count them as done; waits for both."""
        named = [(place.channel, first, last) for first, last in spans]
        self._desk.settle(place.state, None, outcome=Outcome.REJECTED, spans=named, reason=reason)

    def bury(self, channel: str, spans: Sequence[Span], *, reader: str, reason: str) -> None:
        """The same for a reader that is no subscriber."""
        self._desk.bury(channel, spans, subscriber=reader, reason=reason)

    # -- events -----------------------------------------------------------------------------------------------------

    def pieces(self, channel: str, from_seq: int, *, remote: bool = True) -> list[LazyPiece]:
        """The next events at or above a seq; none if there are none. Never empty batches, never out of order.

        Without `remote` it raises `InTier` where it would wait for the tier.
        """
        found = self._ground.channels.get(channel)
        if found is None:
            return []
        self._ground.tail.check()
        from_seq = max(from_seq, found.first_seq)
        while True:
            border, chunks = self._ground.tail.chunks_from(found, from_seq, bytes_max=PIECE_BYTES_MAX)
            if from_seq >= border:
                return self._from_tail(found, chunks, from_seq)
            pieces, end_seq = self._from_segment(found, (from_seq, border - 1), remote=remote)
            if pieces or end_seq is None:
                return pieces or self._from_tail(found, chunks, from_seq)
            from_seq = end_seq + 1  # evicted between the look into the catalog and the file

    def runs(self, channel: str, piece: LazyPiece) -> RunTable | None:
        """Who brought the events of a piece; None if they were evicted meanwhile."""
        if piece.runs is not None:
            return piece.runs
        segment = self._ground.catalog.segment(piece.segment_seq)
        return self._reader.run_table(segment, channel) if segment is not None else None

    def _from_segment(self, channel: Channel, span: Span, *, remote: bool) -> tuple[list[LazyPiece], int | None]:
        first, last = span
        segment = self._ground.catalog.segment_within(channel.id, span, newest_first=False)
        if segment is None:
            return [], None
        if not remote and not self._reader.is_here(segment):
            raise InTier
        pieces: list[LazyPiece] = []
        size = 0
        for seq, batch in self._reader.segment_batches(segment, channel.name, first_seq=first, last_seq=last):
            pieces.append(LazyPiece(seq, self._fit(channel, batch), segment.meta.segment_seq))
            size += batch.nbytes
            if size >= PIECE_BYTES_MAX:
                break
        return pieces, segment.meta.last_seq

    def _from_tail(self, channel: Channel, chunks: list[Chunk], from_seq: int) -> list[LazyPiece]:
        pieces: list[LazyPiece] = []
        for version, same in groupby(chunks, key=lambda chunk: chunk.version):
            group = list(same)
            seq = group[0].run.first_seq
            runs = RunTable.from_runs([chunk.run for chunk in group])
            for rows, make in decode_pieces((chunk.payload for chunk in group), version.schema):
                if seq + rows > from_seq:
                    low = max(seq, from_seq)
                    pieces.append(LazyPiece(low, self._fit(channel, make().slice(low - seq)), 0, runs))
                seq += rows
        return pieces

    def _fit(self, channel: Channel, batch: pa.RecordBatch) -> pa.RecordBatch:
        if channel.version is None or channel.limits.schema_mode is SchemaMode.ANY:
            return batch
        return conform(batch, channel.version.schema, channel=channel.name)
