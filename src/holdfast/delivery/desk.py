"""All feeds of a server: who joins which, threads for reading, news from the store, and the clock's tick.

Promises:

- The event loop waits for no disk: turns, registrations and burials run on a few threads, confirmations on one of
  their own.
- A group of commits wakes the loop once, and only feeds of channels that got events.
- A feed without members is dropped once nothing would be lost by it; a durable's place is in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Executor, Future
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TypeVar

from holdfast.delivery.feed import Feed, FeedStatistics, Kind, Subscription
from holdfast.delivery.filters import Filter
from holdfast.delivery.harvest import Harvest, Wish, harvest
from holdfast.delivery.pieces import Pieces
from holdfast.delivery.redelivery import Span
from holdfast.delivery.refusals import refusal
from holdfast.delivery.settling import Settler
from holdfast.delivery.totals import Totals, figures_of
from holdfast.errors import Closed, HoldfastError, RetryLater, StoreFailed
from holdfast.server.state import ServerState
from holdfast.store.reading import Position
from holdfast.store.subscribers.handing import Place
from holdfast.telemetry import event
from holdfast.wire import consume

READERS = 2
"""Threads that read and encode; more would only take turns."""
FETCHERS = 2
"""Threads for turns that wait for the tier, so that nobody else does."""
CLERKS = 2
"""Threads that register, remove and bury: they wait for the disk, so reading must not wait for them."""
TICK_S = 1.0
BURYING_S = 0.01
"""How often it is looked whether the burials of a feed are done."""

_Result = TypeVar("_Result")
Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Made:
    """What the store says about a new feed."""

    place: Place | None
    next_seq: int
    mark: int


@dataclass(frozen=True, slots=True)
class _Joining:
    key: Key
    kind: Kind
    filter: Filter


class Conflict(Exception):
    """Why a subscription cannot join a feed; the code and the text of the refusal."""

    def __init__(self, code: consume.RefusalCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class DeliveryDesk:
    """Everything happens on the event loop, except what is given to threads."""

    def __init__(self, state: ServerState, *, on_failure: Callable[[HoldfastError], None]) -> None:
        self.state = state
        self.port = state.store.handing
        self.loop = asyncio.get_running_loop()
        self.pieces = Pieces(self.port)
        self.feeds: dict[Key, Feed] = {}
        self.sessions = count(1)
        self.members = count(1)
        self._on_failure = on_failure
        self.settler = Settler(self.port, thread=state.make_pool(1, "holdfast-settler"), on_failure=self.note)
        self._by_channel: dict[str, dict[Feed, None]] = {}
        self._readers = state.make_pool(READERS, "holdfast-reader")
        self._fetchers = state.make_pool(FETCHERS, "holdfast-fetcher")
        self._clerks = state.make_pool(CLERKS, "holdfast-clerk")
        self._watch = self.port.watch()
        self._woken = False
        self._closed = False
        self.totals = Totals()
        state.store.on_answered(self._answered)
        self._vacated: set[str] = set()
        self._resets = 0
        state.vacating.append(self.vacated)
        state.more_figures.append(lambda: figures_of(self.statistics(), self.totals))
        self._ticking = self.loop.call_later(TICK_S, self._tick)

    @property
    def draining(self) -> bool:
        """Whether nothing more is delivered."""
        return self.state.draining or self._closed

    def now_ns(self) -> int:
        """The clock that drives every wait."""
        return self.state.clock.monotonic_ns()

    def close(self) -> None:
        """No connection is left. What was confirmed is written; waits for that."""
        self._closed = True
        self._ticking.cancel()
        for feed in self.feeds.values():
            feed.drop()
        self.settler.close()
        for pool in (self._readers, self._fetchers, self._clerks):
            pool.shutdown(wait=True, cancel_futures=True)

    def note(self, error: BaseException | None) -> None:
        """Something failed that no request waits for."""
        if isinstance(error, StoreFailed):
            self._on_failure(error)
        elif error is not None:
            event("delivery.fail", error=type(error).__name__, reason=error)

    # -- news -------------------------------------------------------------------------------------------------------

    def _answered(self) -> None:
        """A group was committed; on the store's thread."""
        if not self._woken and not self._closed and self._by_channel:
            self._woken = True
            self.loop.call_soon_threadsafe(self._news)

    def _news(self) -> None:
        self._woken = False  # before looking: what is committed from now on wakes us again
        for channel in self._watch.take():
            for feed in list(self._by_channel.get(channel, ())):
                feed.wake()

    def _tick(self) -> None:
        self._ticking = self.loop.call_later(TICK_S, self._tick)
        self.look()

    def look(self) -> None:
        """What is done once in a while: subscribers are still listened to, and feeds without use go."""
        self.port.seen([feed.place for feed in self.feeds.values() if feed.place is not None and feed.members])
        for feed in list(self.feeds.values()):
            if feed.place is not None and feed.place.removed and feed.members:
                feed.end("unknown_subscription", f"the subscriber {feed.kind.durable!r} was removed")
            if feed.is_idle or (feed.place is not None and feed.place.removed):
                self.drop(feed)

    def statistics(self) -> list[FeedStatistics]:
        """Everybody who is served now, by channel."""
        return [feed.statistics() for _, feed in sorted(self.feeds.items(), key=lambda item: item[1].kind.channel)]

    # -- opening ----------------------------------------------------------------------------------------------------

    def join(
        self,
        request: consume.Subscribe,
        subscription: Subscription,
        then: Callable[[Feed | None, consume.Subscribed | consume.Refused], None],
    ) -> None:
        """Make the subscription a member of its feed, which is made if it is new; `then` gets it and the reply."""
        try:
            self._check_open(request.durable)
            chosen = Filter(request.filter, request.partitions)
        except HoldfastError as error:
            then(None, refusal(request.request, request.sub, error))
            return
        kind = Kind(request.channel, request.durable, request.group, request.mode, request.filter, request.partitions)
        joining = _Joining(_key(kind, subscription), kind, chosen)
        if joining.key in self.feeds and not kind.durable:
            then(*self._attach(request, subscription, joining, None))
            return
        others = sum(feed.place is None for feed in self._by_channel.get(kind.channel, ()))
        start, resets = start_position(request), self._resets

        def prepare() -> Made:
            if kind.durable:
                place = self.port.join(kind.durable, kind.channel, start=start, others=others)
                return Made(place, self.port.next_owed(place, 1), self.port.mark(place))
            self.port.check_room(kind.channel, others)
            return Made(None, self.port.start_seq(kind.channel, start), 0)

        def prepared(made: Made | None, error: BaseException | None) -> None:
            if made is None:
                if not isinstance(error, HoldfastError) or isinstance(error, StoreFailed):
                    self.note(error)
                then(None, refusal(request.request, request.sub, error))
            elif resets != self._resets:  # what was looked up may have changed
                self.join(request, subscription, then)
            else:
                then(*self._attach(request, subscription, joining, made))

        self.clerk(prepare, prepared)

    def _check_open(self, durable: str) -> None:
        if self.draining:
            raise Closed(what="the server")
        if durable and durable in self._vacated:
            raise _being_reset(durable)

    def _attach(
        self,
        request: consume.Subscribe,
        subscription: Subscription,
        joining: _Joining,
        made: Made | None,
    ) -> tuple[Feed | None, consume.Subscribed | consume.Refused]:
        feed, kind = self.feeds.get(joining.key), joining.kind
        resumed = feed is not None or (made is not None and made.place is not None and made.place.resumed)
        if feed is not None and feed.place is not None and feed.place.removed:  # and registered again since
            self.drop(feed)
            feed = None
        if feed is None:
            assert made is not None
            feed = Feed(self, joining.key, kind, joining.filter, place=made.place, next_seq=made.next_seq)
            self.feeds[joining.key] = feed
            self._by_channel.setdefault(kind.channel, {})[feed] = None
        try:
            self._admit(feed, kind, joining.filter, replace=request.replace)
        except Conflict as conflict:
            refused = consume.Refused(
                request=request.request,
                sub=request.sub,
                code=conflict.code,
                reason=conflict.reason,
                retry=conflict.code == "in_use",
            )
            return None, refused
        feed.attach(subscription)
        return feed, consume.Subscribed(
            request=request.request,
            sub=request.sub,
            next_seq=made.next_seq if made is not None else feed.next_seq,
            mark=made.mark if made is not None else 0,
            resumed=resumed,
            members=len(feed.members),
        )

    def _admit(self, feed: Feed, kind: Kind, chosen: Filter, *, replace: bool) -> None:
        """Raise `Conflict` unless one more member of that kind may join."""
        if not feed.members:
            feed.choose(kind, chosen)
            return
        if not kind.group or not feed.kind.group:
            if not replace:
                raise Conflict("in_use", f"durable {kind.durable!r} of channel {kind.channel!r} has a consumer already")
            feed.end("in_use", "another consumer took the durable over")
            feed.choose(kind, chosen)
        elif feed.kind != kind:
            differing = [name for name in Kind.__slots__ if getattr(kind, name) != getattr(feed.kind, name)]
            raise Conflict("mismatch", f"group {feed.kind.group!r} has another {' and '.join(differing)}")

    @asynccontextmanager
    async def vacated(self, name: str, channel: str | None) -> AsyncIterator[None]:
        """While inside, nobody consumes by that name, in the channel or in any, and all answers are written."""
        if name in self._vacated:
            raise _being_reset(name)
        self._vacated.add(name)
        self._resets += 1
        try:
            for feed in [feed for feed in self.feeds.values() if _is_of(feed, name, channel)]:
                feed.end("unavailable", f"the subscriber {name!r} is put at another place or removed; subscribe again")
                self.drop(feed)
                await self._written(feed)
            yield
        finally:
            self._vacated.discard(name)
            self._resets += 1

    async def _written(self, feed: Feed) -> None:
        """Until nothing that a feed said is on its way."""
        while feed.place is not None and (feed.is_burying or self.settler.is_pending(feed.place)):
            done = asyncio.Event()
            if feed.is_burying:
                self.loop.call_later(BURYING_S, done.set)
            else:
                self.settler.after(feed.place, lambda _error, done=done: done.set())  # type: ignore[misc]
            await done.wait()

    def drop(self, feed: Feed) -> None:
        """Forget a feed."""
        feed.drop()
        if self.feeds.get(feed.key) is feed:
            del self.feeds[feed.key]
        others = self._by_channel.get(feed.kind.channel, {})
        others.pop(feed, None)
        if not others:
            self._by_channel.pop(feed.kind.channel, None)

    def remove(self, feed: Feed, then: Callable[[BaseException | None], None]) -> None:
        """Remove what a feed without members leaves behind; then forget it."""
        self.drop(feed)  # so that who comes now begins anew
        if feed.place is None:
            then(None)
            return
        place = feed.place
        self.clerk(lambda: self.port.leave(place), lambda _done, error: then(error))

    # -- threads ----------------------------------------------------------------------------------------------------

    def turn(self, wish: Wish, then: Callable[[Harvest | None, BaseException | None], None]) -> None:
        """Read and encode for a feed. Those that wait for the tier have threads of their own."""
        self._on(self._fetchers if wish.remote else self._readers, lambda: harvest(self.port, self.pieces, wish), then)

    def bury(self, feed: Feed, spans: list[Span], reason: str, then: Callable[[BaseException | None], None]) -> None:
        """Put messages into the dead-letter channel."""
        place, name = feed.place, feed.name

        def work() -> None:
            if place is not None:
                self.port.reject(place, spans, reason=reason)
            else:
                self.port.bury(feed.kind.channel, spans, reader=name, reason=reason)

        self.clerk(work, lambda _done, error: then(error))

    def clerk(self, work: Callable[[], _Result], then: Callable[[_Result | None, BaseException | None], None]) -> None:
        """Do something that waits for the disk."""
        self._on(self._clerks, work, then)

    def _on(
        self,
        pool: Executor,
        work: Callable[[], _Result],
        then: Callable[[_Result | None, BaseException | None], None],
    ) -> None:
        def finished(done: Future[_Result]) -> None:
            if self._closed:
                return
            error = done.exception()
            then(None if error is not None else done.result(), error)

        if not self._closed:
            pool.submit(work).add_done_callback(lambda done: self.loop.call_soon_threadsafe(finished, done))


def _being_reset(name: str) -> RetryLater:
    return RetryLater(f"the subscriber {name!r} is being put at another place; try again")


def _is_of(feed: Feed, name: str, channel: str | None) -> bool:
    return feed.kind.durable == name and channel in (None, feed.kind.channel)


def _key(kind: Kind, subscription: Subscription) -> Key:
    if kind.durable:
        return ("durable", kind.durable, kind.channel)
    if kind.group:
        return ("group", kind.group, kind.channel)
    return ("ephemeral", str(subscription.member.number))


def start_position(request: consume.Subscribe) -> Position:
    """Where a new subscription begins."""
    if request.start_time_ns is not None:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=-(-request.start_time_ns // 1000))
    if request.start is None:
        return "first" if request.durable else "new"
    return request.start
