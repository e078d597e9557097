"""A store that may be away: waited for, by whoever must have an answer.

Promise: a call is repeated while its server or object store is away, for as long as it was given, and then raises what
the last attempt did. A warning stands in the log at the beginning and once a minute.

Patience may have no end. Then Spark ends it: it kills a Python process whose query is stopped, or whose task is not
wanted any more. Where Spark's own process is dead nobody would, so a process that has lost its parent does not wait.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import pyarrow as pa

from holdfast.clock import NS_PER_S, Clock, SystemClock
from holdfast.errors import ServerAway, TierUnavailable
from holdfast.spark.access import ChannelFacts, SegmentRef, StoreAccess
from holdfast.spark.many import ManyServers, Subscriber
from holdfast.store.segments.reader import SegmentReader
from holdfast.telemetry import event

AWAY = (ServerAway, TierUnavailable)
"""What waiting may mend."""
ROUND_S = 30.0
"""One attempt at a server lasts so long at most."""
TELL_EVERY_S = 60.0
PAUSE_FIRST_S, PAUSE_MAX_S = 0.1, 2.0

_T = TypeVar("_T")


def tell_away(away: ServerAway | TierUnavailable) -> None:
    """Say in the log who is away, and why."""
    where = {"addr": away.addr} if isinstance(away, ServerAway) else {"tier": away.url}
    event("spark.server.away", level=logging.WARNING, **where, reason=away.reason)


def _after(away: ServerAway | TierUnavailable, waited_s: float) -> ServerAway | TierUnavailable:
    """The same at the end of all attempts."""
    return ServerAway(addr=away.addr, reason=away.reason, waited_s=waited_s) if isinstance(away, ServerAway) else away


class Patience:
    """How long one process waits."""

    def __init__(self, seconds: float, *, clock: Clock | None = None) -> None:
        self._seconds = seconds
        self._clock = clock or SystemClock()
        self._parent = os.getppid()

    def spend(self, call: Callable[[], _T]) -> _T:
        """The answer of a call that may be repeated."""
        started_ns, told_ns, pause_s = self._clock.monotonic_ns(), 0, PAUSE_FIRST_S
        while True:
            try:
                return call()
            except AWAY as away:
                now_ns = self._clock.monotonic_ns()
                waited_s = (now_ns - started_ns) / NS_PER_S
                left_s = self._seconds - waited_s
                if left_s <= 0 or (math.isinf(left_s) and os.getppid() != self._parent):
                    raise _after(away, waited_s) from None
                if not told_ns or now_ns - told_ns >= TELL_EVERY_S * NS_PER_S:
                    told_ns = now_ns
                    tell_away(away)
            threading.Event().wait(min(pause_s, max(0.01, left_s)))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)


class PatientAccess:
    """Another access, whose answers are waited for. Used by one thread."""

    def __init__(self, access: StoreAccess, patience_s: float) -> None:
        self._access = access
        self._patience_s = patience_s
        self._patience = Patience(patience_s)

    def holding(self, channels: Iterable[str]) -> PatientAccess:
        """Of several servers those of these channels alone: one that has none of them need not answer."""
        if isinstance(self._access, ManyServers):
            return PatientAccess(self._access.holding(channels), self._patience_s)
        return self

    def channels(self) -> list[ChannelFacts]:
        """As the access does."""
        return self._patience.spend(self._access.channels)

    def schema(self, channel: str) -> pa.Schema:
        """As the access does."""
        return self._patience.spend(lambda: self._access.schema(channel))

    def skipped(self, channel: str) -> list[tuple[int, int]]:
        """As the access does."""
        return self._patience.spend(lambda: self._access.skipped(channel))

    def segments(self, channel: str, *, from_seq: int) -> Iterator[SegmentRef]:
        """As the access does; a list that breaks off is taken up behind the last segment that came."""
        listed: Iterator[SegmentRef] | None = None

        def following() -> SegmentRef | None:
            nonlocal listed
            try:
                listed = self._access.segments(channel, from_seq=from_seq) if listed is None else listed
                return next(listed, None)
            except AWAY:
                listed = None
                raise

        while (segment := self._patience.spend(following)) is not None:
            yield segment
            from_seq = max(from_seq, segment.last_seq + 1)

    def seal(self, channel: str) -> None:
        """As the access does."""
        self._patience.spend(lambda: self._access.seal(channel))

    @contextmanager
    def opened(self, segment: SegmentRef) -> Iterator[SegmentReader]:
        """As the access does."""
        with ExitStack() as held:
            yield self._patience.spend(lambda: held.enter_context(self._access.opened(segment)))


class PatientSubscriber:
    """Another subscriber, whose server is waited for."""

    def __init__(self, subscriber: Subscriber, patience_s: float) -> None:
        self._subscriber = subscriber
        self._patience = Patience(patience_s)

    def start(self) -> dict[str, int]:
        """As the subscriber does."""
        return self._patience.spend(self._subscriber.start)

    def confirm(self, offsets: Mapping[str, int]) -> None:
        """As the subscriber does."""
        self._patience.spend(lambda: self._subscriber.confirm(offsets))
