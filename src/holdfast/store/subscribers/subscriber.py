"""The handle through which a program reads as a subscriber.

    with store.subscriber("parquet", channels=["trades"]) as sub:
        for lease in sub:
            for batch in lease.read(): ...
            lease.ack()

A lease is a part of one published segment, held by this program until it answers, `lease_timeout` passes, or the lease
is thrown away: then it is given back at once, as by a nack, but no answer is kept or counted. Answers may come in any
order. `ack`, `nack` and `reject` are durable when they have returned. A closed handle keeps the subscriber's place;
`store.deregister` removes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import pyarrow as pa

from holdfast.clock import NS_PER_S
from holdfast.errors import BadRequest, Closed
from holdfast.store.catalog import PublishedSegment
from holdfast.store.subscribers.progress import Outcome
from holdfast.store.subscribers.registry import Claim, Registry, SubscriberState

WAIT_SLICE_S = 1.0
"""A waiting `poll` looks again this often, in case a clock moved, or a lease was thrown away, without a signal."""

Spans = Sequence[tuple[str, int, int]]
"""Channel, first and last seq."""


class Desk(Protocol):
    """What a subscriber needs of its store."""

    registry: Registry

    def settle(
        self, state: SubscriberState, claim: Claim | None, *, outcome: Outcome, spans: Spans, reason: str
    ) -> None:
        """Make an outcome durable and let it take effect."""

    def read_span(
        self, channel: str, first_seq: int, last_seq: int, *, columns: Sequence[str] | None, system: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Events of a channel."""

    def frame_spans(self, slot_id: bytes, fsn: int) -> list[tuple[str, int, int]]:
        """Where a frame's events are: channel, first and last seq."""

    def find_segment(self, segment_seq: int) -> PublishedSegment:
        """A published segment by its number."""

    def segment_path(self, segment: PublishedSegment) -> Path:
        """Its file."""

    def lag_of(self, state: SubscriberState) -> list[ChannelLag]:
        """How far behind it is, per channel."""

    def check_open(self) -> None:
        """Raise when the store is closed or has failed."""


@dataclass(frozen=True, slots=True)
class ChannelLag:
    """How far a subscriber is behind in one channel: events it is owed, their bytes in segments, age of the oldest."""

    channel: str
    mark: int
    gaps: tuple[tuple[int, int], ...]
    events: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SubscriberStatistics:
    """A subscriber, for people and metrics. Outcomes are counts of events since the store was opened."""

    name: str
    patterns: tuple[str, ...]
    newest_first: bool
    created_at_ns: int
    leases: int
    waiting: int
    outcomes: dict[str, int]
    channels: tuple[ChannelLag, ...]


class Lease:
    """Events handed out to this program."""

    def __init__(self, desk: Desk, state: SubscriberState, claim: Claim) -> None:
        self._desk = desk
        self._state = state
        self._claim = claim
        self._answered = False

    @property
    def channel(self) -> str:
        """The channel of the events."""
        return self._claim.channel.name

    @property
    def segment_seq(self) -> int:
        """The number of the segment."""
        return self._claim.segment.meta.segment_seq

    @property
    def first_seq(self) -> int:
        """The first event."""
        return self._claim.first_seq

    @property
    def last_seq(self) -> int:
        """The last event, included."""
        return self._claim.last_seq

    @property
    def path(self) -> Path:
        """The segment's file: plain Arrow IPC. It may hold more events than the lease; it is gone once evicted."""
        return self._desk.segment_path(self._claim.segment)

    def read(self, *, columns: Sequence[str] | None = None, system: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
        """The events, mapped from the segment. What was dropped meanwhile, and counted so, is left out."""
        return self._desk.read_span(self.channel, self.first_seq, self.last_seq, columns=columns, system=system)

    def ack(self) -> None:
        """Done with all of it."""
        self._answer(Outcome.ACK, "")

    def reject(self, reason: str) -> None:
        """Never again: the events go to the channel `<channel>.dead` with the reason, then count as done."""
        self._answer(Outcome.REJECTED, reason)

    def nack(self, delay: float = 0.0) -> None:
        """Again later, not before `delay` seconds."""
        if delay < 0:
            raise BadRequest(f"delay {delay} is negative")
        self._check()
        self._answered = True
        held = self._desk.registry.finish(self._state, self._claim, again_in_ns=int(delay * NS_PER_S))
        if held:
            self._settle(Outcome.NACK, "")

    def extend(self) -> None:
        """Hold it for another `lease_timeout` from now; `BadRequest` if it has expired."""
        self._check()
        if not self._desk.registry.extend(self._claim, self._state):
            raise BadRequest(f"the lease of {self.channel} {self.first_seq}..{self.last_seq} has expired")

    def _answer(self, outcome: Outcome, reason: str) -> None:
        self._check()
        self._settle(outcome, reason)
        self._answered = True
        self._desk.registry.finish(self._state, self._claim, again_in_ns=None)

    def _settle(self, outcome: Outcome, reason: str) -> None:
        spans = [(self.channel, self.first_seq, self.last_seq)]
        self._desk.settle(self._state, self._claim, outcome=outcome, spans=spans, reason=reason)

    def _check(self) -> None:
        if self._state.removed:
            raise Closed(what=f"subscriber {self._state.note.name!r}")
        if self._answered:
            raise BadRequest(f"the lease of {self.channel} {self.first_seq}..{self.last_seq} was answered before")

    def __del__(self) -> None:
        """Given back without taking a lock: this runs wherever Python collects garbage."""
        if not self._answered:
            self._desk.registry.returned.append((self._state, self._claim))


class Subscriber:
    """A registered name, used by this program. Thread-safe; several handles of one name share the work."""

    def __init__(self, desk: Desk, state: SubscriberState) -> None:
        self._desk = desk
        self._state = state
        self._closed = False

    @property
    def name(self) -> str:
        """The durable name."""
        return self._state.note.name

    def keep_confirmed(self, grace_ns: int) -> None:
        """Have what is confirmed kept for so long, for a reader whose own record may come back older than its acks."""
        self._check_open()
        self._desk.registry.keep_confirmed(self._state, grace_ns)

    def poll(self, timeout: float | None = None, *, max_bytes: int | None = None) -> Lease | None:
        """The next lease; waits for one up to `timeout` seconds (None: for ever), then returns None.

        `max_bytes` bounds what is handed out at once: a part of a larger segment, by its rows, but at least one event.
        """
        if max_bytes is not None and max_bytes < 1:
            raise BadRequest(f"max_bytes={max_bytes} is not positive")
        registry = self._desk.registry
        deadline_ns = None if timeout is None else registry.clock.monotonic_ns() + int(timeout * NS_PER_S)
        with registry.changed:
            while True:
                self._check_open()
                claim = registry.claim(self._state, max_bytes=max_bytes)
                if claim is not None:
                    return Lease(self._desk, self._state, claim)
                left_s = WAIT_SLICE_S
                if deadline_ns is not None:
                    left_s = (deadline_ns - registry.clock.monotonic_ns()) / NS_PER_S
                if left_s <= 0:
                    return None
                due_s = registry.seconds_until_due(self._state)
                pause_s = min(left_s, WAIT_SLICE_S, WAIT_SLICE_S if due_s is None else due_s)
                registry.changed.wait(max(0.001, pause_s))

    async def next(self, *, max_bytes: int | None = None) -> Lease:
        """The next lease, for asyncio; waits without a thread."""
        loop = asyncio.get_running_loop()
        news = asyncio.Event()
        stop = self._desk.registry.add_listener(lambda: loop.call_soon_threadsafe(news.set))
        try:
            while True:
                news.clear()
                lease = self.poll(0.0, max_bytes=max_bytes)
                if lease is not None:
                    return lease
                with self._desk.registry.lock:
                    due = self._desk.registry.seconds_until_due(self._state)
                try:
                    await asyncio.wait_for(news.wait(), min(WAIT_SLICE_S, WAIT_SLICE_S if due is None else due))
                except TimeoutError:
                    continue
        finally:
            stop()

    def drain(self) -> Iterator[Lease]:
        """Leases until nothing published is free. What is given back meanwhile is left to a later call."""
        lease = self.poll(0.0)
        while lease is not None:
            yield lease
            del lease  # whoever asked for it decides how long it lives
            self._check_open()
            claim = self._desk.registry.claim(self._state, max_bytes=None, release=False)
            lease = Lease(self._desk, self._state, claim) if claim is not None else None

    def __iter__(self) -> Iterator[Lease]:
        """Leases for ever, until the handle or the store is closed."""
        while not self._closed:
            try:
                lease = self.poll()
            except Closed:
                return
            if lease is not None:
                yield lease
            del lease

    async def __aiter__(self) -> AsyncIterator[Lease]:
        """Leases for ever, for asyncio."""
        while not self._closed:
            try:
                yield await self.next()
            except Closed:
                return

    def ack(self, channel: str, first_seq: int, last_seq: int | None = None) -> None:
        """Done with single events or a range, leased or not."""
        self._ack([(channel, first_seq, first_seq if last_seq is None else last_seq)])

    def ack_many(self, channel: str, spans: Sequence[tuple[int, int]]) -> None:
        """Done with many ranges, with one record and one sync."""
        self._ack([(channel, first_seq, last_seq) for first_seq, last_seq in spans])

    def ack_segment(self, segment_seq: int) -> None:
        """Done with a whole segment."""
        meta = self._desk.find_segment(segment_seq).meta
        self._ack([(meta.channel, meta.first_seq, meta.last_seq)])

    def ack_frame(self, slot_id: bytes, fsn: int) -> None:
        """Done with the events that came with one frame, in all channels this subscriber follows."""
        spans = self._desk.frame_spans(slot_id, fsn)
        if not spans:
            raise BadRequest(f"no event of frame {fsn} of slot {slot_id.hex()} is here")
        self._ack([span for span in spans if self._state.follows(span[0])])

    def reject(self, channel: str, first_seq: int, last_seq: int | None = None, *, reason: str) -> None:
        """Never again, for single events or a range, leased or not: they go to `<channel>.dead` with the reason."""
        self._check_open()
        spans = [(channel, first_seq, first_seq if last_seq is None else last_seq)]
        self._desk.settle(self._state, None, outcome=Outcome.REJECTED, spans=spans, reason=reason)

    def _ack(self, spans: Spans) -> None:
        self._check_open()
        self._desk.settle(self._state, None, outcome=Outcome.ACK, spans=spans, reason="")

    def lag(self) -> list[ChannelLag]:
        """Mark, gap set, and what is owed, per channel."""
        return self._desk.lag_of(self._state)

    def close(self) -> None:
        """Let go of the handle; the subscriber keeps its place."""
        self._closed = True
        self._desk.registry.wake()

    def _check_open(self) -> None:
        if self._closed or self._state.removed:
            raise Closed(what=f"subscriber {self.name!r}")
        self._desk.check_open()

    def __enter__(self) -> Subscriber:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
