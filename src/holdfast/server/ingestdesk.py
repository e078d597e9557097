"""What all ingest connections share: the store, threads for large messages, the bounds over all of them, the wake-ups.

    messages ─► line_up ─► a turn: each handles its own ─► what boarded leaves (`ingesttrains`)
    a group is answered ─► answered, for each that has frames in it ─► one wake-up: these settle

Promises:

- However many commits a group answers, the loop is woken once for it, and only the connections that have an answer in
  it are looked at, however many others wait.
- Everybody who has messages has a turn before anybody has a second one.

All counts are kept on the event loop; only `answered`, `_woken_by_store` and `_became_durable` are called on other
threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.errors import Backpressure, HoldfastError
from holdfast.server.connection import Pause
from holdfast.server.ingesttrains import Trains
from holdfast.server.state import ServerState

if TYPE_CHECKING:
    from holdfast.server.ingest import IngestHandler

RETRY_S = 0.005
"""How often a frame that found the store full is tried again."""
KEPT_BYTES_MAX = 256 << 20
"""What all connections together may keep, beside one of the largest groups: open deferred groups, symbol dictionaries,
and what messages on their way have become beyond their own bytes. They are not among the bytes in flight, because
reading pauses at that bound, and a group would then wait for its end for ever."""
DECODERS = 2
"""Threads for large messages; decoding is bound by memory, more would only take turns."""


class IngestDesk:
    """What all ingest connections share: the store, threads, the total of what is in flight, the wake-up."""

    def __init__(self, state: ServerState, *, on_failure: Callable[[HoldfastError], None]) -> None:
        self.state = state
        self.store = state.store
        self.clock = state.clock
        self.loop = asyncio.get_running_loop()
        self.pool = state.make_pool(DECODERS, "holdfast-decoder")
        self._on_failure = on_failure
        self.trains = Trains(self.store, on_boarding=self._see_to_turn)
        self._line: deque[IngestHandler] = deque()
        self._turn_is_due = False
        self._to_settle: dict[IngestHandler, None] = {}
        self._with_answers: deque[IngestHandler] = deque()
        self._stalled: dict[IngestHandler, None] = {}
        self._over_total: dict[IngestHandler, None] = {}
        self._inflight_bytes = 0
        self._kept_bytes = 0
        self._woken = False
        self._closed = False
        self.durable_marks: dict[str, int] = {}
        self._durable: dict[IngestHandler, None] = {}
        self.store.on_answered(self._woken_by_store)
        if state.tier is not None:
            self.durable_marks.update(state.tier.durable())
            state.tier.on_durable(self._became_durable)

    @property
    def inflight_bytes(self) -> int:
        """Bytes of all connections that wait for their commit."""
        return self._inflight_bytes

    def close(self) -> None:
        """No connection is left."""
        self._closed = True
        self.pool.shutdown(wait=False, cancel_futures=True)

    # -- turns ------------------------------------------------------------------------------------------------------

    def line_up(self, handler: IngestHandler) -> None:
        """Give a connection a turn, behind those who have asked before."""
        self._line.append(handler)
        self._see_to_turn()

    def _see_to_turn(self) -> None:
        """Let there be a turn soon, at the end of which trains leave."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        try:
            for _ in range(len(self._line)):
                self._line.popleft().turn()
        finally:
            self._turn_is_due = False
            self.trains.leave_all()
            if self._line:
                self._see_to_turn()

    # -- wake-ups ---------------------------------------------------------------------------------------------------

    def answered(self, handler: IngestHandler) -> None:
        """Frames of a connection were committed or refused; on the store's thread."""
        self._with_answers.append(handler)

    def _woken_by_store(self) -> None:
        """A group was committed or refused; on the store's thread."""
        if not self._woken and not self._closed:
            self._woken = True
            self.loop.call_soon_threadsafe(self._settle)

    def _became_durable(self, news: dict[str, int]) -> None:
        """More is in the object store; on the tier's thread."""
        if not self._closed:
            self.loop.call_soon_threadsafe(self._tell_durable, news)

    def _tell_durable(self, news: dict[str, int]) -> None:
        self.durable_marks.update(news)
        for handler in list(self._durable):
            handler.became_durable(news)

    def await_durable(self, handler: IngestHandler) -> None:
        """The connection is told what is in the object store; so that it need not wait long, segments are cut early."""
        if self.state.tier is not None:
            self._durable[handler] = None
            self.state.tier.begin_waiting()

    def soon(self, handler: IngestHandler) -> None:
        """Let a connection answer at the end of this turn of the loop."""
        self._to_settle[handler] = None
        if not self._woken:
            self._woken = True
            self.loop.call_soon(self._settle)

    def _settle(self) -> None:
        self._woken = False  # before looking: what is answered from now on wakes us again
        with_answers, to_settle = self._with_answers, self._to_settle
        while with_answers:
            to_settle[with_answers.popleft()] = None
        for handler in list(to_settle):
            to_settle.pop(handler, None)
            handler.settle()

    # -- bounds -----------------------------------------------------------------------------------------------------

    def hold(self, handler: IngestHandler, size_bytes: int) -> None:
        """Count bytes that came in."""
        self._inflight_bytes += size_bytes
        if self._inflight_bytes >= self.state.config.ingest_total_inflight_bytes:
            self._over_total[handler] = None
            handler.connection.pause(Pause.TOTAL)

    def release(self, size_bytes: int) -> None:
        """They were committed, refused or given up."""
        self._inflight_bytes -= size_bytes
        if self._over_total and self._inflight_bytes < self.state.config.ingest_total_inflight_bytes:
            over, self._over_total = self._over_total, {}
            for handler in over:
                handler.connection.resume(Pause.TOTAL)

    def keep(self, change_bytes: int) -> None:
        """Count what a connection keeps between messages; `Backpressure` if all together keep too much."""
        self._kept_bytes += change_bytes
        cap_bytes = KEPT_BYTES_MAX + self.state.config.ingest_group_bytes_max
        if change_bytes > 0 and self._kept_bytes > cap_bytes:
            raise Backpressure(
                bound="deferred groups and symbols of all connections",
                used_bytes=self._kept_bytes,
                cap_bytes=cap_bytes,
                waited_s=0,
            )

    def stall(self, handler: IngestHandler) -> None:
        """A frame found the store full; try again soon."""
        self.state.totals.stalls += 1
        if not self._stalled:
            self.loop.call_later(RETRY_S, self._retry)
        self._stalled[handler] = None

    def _retry(self) -> None:
        for handler in list(self._stalled):
            if handler.retry():
                self._stalled.pop(handler, None)
        if self._stalled:
            self.loop.call_later(RETRY_S, self._retry)

    def forget(self, handler: IngestHandler) -> None:
        """The connection is gone."""
        for table in (self._to_settle, self._stalled, self._over_total):
            table.pop(handler, None)
        if handler in self._durable and self.state.tier is not None:
            del self._durable[handler]
            self.state.tier.end_waiting()

    def failed(self, error: HoldfastError) -> None:
        """The store stopped: nothing will be accepted any more."""
        self._on_failure(error)
