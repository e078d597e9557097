"""What one subscriber, or one group, gets of one channel: its members, its place, and whose turn it is.

    news, room, time ──► wake ──► offers ──► a turn off the loop (harvest) ──► held and sent ──► wake …
                                     answers ──► the book ──► settled, delivered again, or buried

Promises:

- One turn at a time, so messages leave in order and nobody gets more than its room. Nothing is read for a feed whose
  members have no room: a slow consumer costs its place, not memory.
- Redeliveries come before new messages.
- What is confirmed goes to the store; what a durable's members were given and did not confirm is remembered there as
  failed attempts, and what they hold as handed out. A feed that is dropped from memory loses nothing but delays of
  nacks.

Everything happens on the event loop, except the turn itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from holdfast.clock import NS_PER_S
from holdfast.delivery.filters import Filter
from holdfast.delivery.groups import OFFER_ROWS_MAX, Candidate, Member, Offer, offers
from holdfast.delivery.harvest import Cut, Harvest, Shape, Wish
from holdfast.delivery.redelivery import Book, Counted, Span, Taken
from holdfast.errors import HoldfastError, RetryLater
from holdfast.store.subscribers.handing import Place
from holdfast.wire import consume

if TYPE_CHECKING:
    from holdfast.delivery.desk import DeliveryDesk

RETRY_NS = NS_PER_S
"""When something is tried again that could not be read or buried."""
PENDING_RANGES_MAX = 10_000
"""Confirmed ranges that wait to be written before nothing more is delivered; one record of the log holds as many."""

LINGER_ROWS = 64
LINGER_S = 0.001
"""A turn costs as much as tens of messages; below so many it waits this long for more room."""

Answered = Callable[[HoldfastError | None], None]


class Sink(Protocol):
    """Where a subscription's messages go."""

    def may_consume(self, channel: str) -> bool:
        """Whether its owner still has the right."""

    def send_room(self) -> int:
        """Bytes its connection takes now."""

    def reserve(self, change_bytes: int) -> None:
        """Bytes that are about to be sent, or are not after all."""

    def starve(self, feed: Feed) -> None:
        """Wake the feed when there is room."""

    def deliver(self, sub: int, cut: Cut) -> None:
        """Send messages."""

    def tell(self, told: consume.Event) -> None:
        """Send an event."""

    def ended(self, sub: int) -> None:
        """The server ended a subscription."""


@dataclass(slots=True, eq=False)
class Subscription:
    """A member with its connection."""

    member: Member
    sub: int
    sink: Sink
    shape: Shape

    def tell(self, name: consume.EventName, ranges: Iterable[Span] = (), reason: str = "") -> None:
        """Send an event about this subscription."""
        some = tuple(ranges)
        for at in range(0, max(1, len(some)), consume.RANGES_MAX):
            part = some[at : at + consume.RANGES_MAX]
            self.sink.tell(consume.Event(event=name, sub=self.sub, ranges=part, reason=reason))


@dataclass(frozen=True, slots=True)
class Kind:
    """What the members of a feed must agree on."""

    channel: str
    durable: str = ""
    group: str = ""
    mode: consume.Mode = "fanout"
    filter: str = ""
    partitions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FeedStatistics:
    """A feed, for people and metrics."""

    channel: str
    durable: str
    group: str
    mode: str
    members: int
    next_seq: int
    """Where new messages go on."""
    held: int
    """Messages that members hold."""
    waiting: int
    """Messages that are to be delivered again."""
    stalled: bool
    """Whether there are messages, and no member has room for one."""
    delivered: int
    """Messages its members of now got."""


class Feed:
    """One subscriber or group, one channel."""

    def __init__(
        self,
        desk: DeliveryDesk,
        key: tuple[str, ...],
        kind: Kind,
        chosen: Filter,
        *,
        place: Place | None,
        next_seq: int,
    ) -> None:
        self.key = key
        self.kind = kind
        self.place = place
        self.members: dict[int, Subscription] = {}
        self.book = Book()
        self.next_seq = next_seq
        self.dropped = False
        self._filter = chosen
        self._desk = desk
        self._busy = False
        self._turns = 0
        self._burying = 0
        self._paused_until_ns = 0
        self._timer: asyncio.TimerHandle | None = None
        self._lingering: asyncio.TimerHandle | None = None
        self._in_tier = False  # the next turn has to wait for the tier
        self._patience_is_over = False
        self._timer_at_ns = 0

    @property
    def name(self) -> str:
        """For people, and for dead letters of ephemeral subscriptions."""
        return self.kind.durable or self.kind.group or f"ephemeral-{id(self):x}"

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost if it were dropped."""
        pending = self.place is not None and self._desk.settler.is_pending(self.place)
        delayed = self.book.next_ns(self._desk.now_ns()) is not None
        return not (self.members or self._busy or self._burying or pending or delayed)

    @property
    def is_burying(self) -> bool:
        """Whether messages are on their way to the dead letters."""
        return self._burying > 0

    def statistics(self) -> FeedStatistics:
        """A picture."""
        members = [item.member for item in self.members.values()]
        more = self.book.waiting_rows > 0 or self._desk.port.last_seq(self.kind.channel) >= self.next_seq
        return FeedStatistics(
            self.kind.channel,
            self.kind.durable,
            self.kind.group,
            self.kind.mode,
            members=len(members),
            next_seq=self.next_seq,
            held=self.book.held_rows,
            waiting=self.book.waiting_rows,
            stalled=more and not any(member.room(self.book.load(member.number)) for member in members),
            delivered=sum(member.delivered for member in members),
        )

    def choose(self, kind: Kind, chosen: Filter) -> None:
        """Nobody is here, so whoever comes decides again."""
        assert not self.members
        self.kind, self._filter = kind, chosen

    # -- members ----------------------------------------------------------------------------------------------------

    def attach(self, subscription: Subscription) -> None:
        """One more member. Nothing is sent before this returns."""
        self.members[subscription.member.number] = subscription
        self._desk.loop.call_soon(self.wake)

    def detach(self, number: int, *, lost: bool) -> None:
        """A member is gone; the others get what it held."""
        if self.members.pop(number, None) is None:
            return
        taken = self.book.leave(number, lost=lost, now_ns=self._desk.now_ns())
        self._failed(taken, None, reason="the consumer was lost")
        if not lost and self.place is not None and taken.spans:
            self._desk.settler.give_back(self.place, taken.spans)
        if not self.members and self.place is None:
            self._desk.drop(self)
        else:
            self.wake()

    def end(self, code: consume.RefusalCode, reason: str) -> None:
        """The server ends every subscription of the feed."""
        for subscription in list(self.members.values()):
            self.end_one(subscription, code, reason)

    def end_one(self, subscription: Subscription, code: consume.RefusalCode, reason: str) -> None:
        """The server ends one subscription."""
        if self.members.get(subscription.member.number) is not subscription:
            return
        told = consume.Event(event="ended", sub=subscription.sub, code=code, reason=reason)
        subscription.sink.tell(told)
        subscription.sink.ended(subscription.sub)
        self.detach(subscription.member.number, lost=False)

    def drop(self) -> None:
        """Out of memory: no timer, no more turns."""
        self.dropped = True
        for timer in (self._timer, self._lingering):
            if timer is not None:
                timer.cancel()

    # -- turns ------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Begin a turn if there is something to deliver and somebody with room for it."""
        if self._busy or self.dropped:
            return
        now_ns = self._desk.now_ns()
        self._expire(now_ns)
        if self.members and now_ns >= self._paused_until_ns and not self._desk.draining:
            wish = self._wish(now_ns)
            if wish is not None:
                self._begin(wish)
        self._arm(now_ns)

    def _wish(self, now_ns: int) -> Wish | None:
        again = self.book.has_due(now_ns)
        new = self._desk.port.last_seq(self.kind.channel) - self.next_seq + 1
        if self.place is not None and self._desk.settler.ranges_pending(self.place) > PENDING_RANGES_MAX:
            self._desk.settler.after(self.place, lambda _error: self.wake())
            return None
        if not again and new <= 0:
            return None
        wanted = OFFER_ROWS_MAX if again else new
        if self._lingers(self.book.waiting_rows if again else new):
            return None
        some = self._offers(wanted)
        if not some:
            return None
        spans = None
        if again:
            spans = tuple(self.book.due(now_ns, rows_max=sum(offer.rows for offer in some)))
        shapes = {number: subscription.shape for number, subscription in self.members.items()}
        return Wish(
            self.kind.channel,
            tuple(some),
            shapes,
            self.next_seq,
            spans,
            tuple(self.book.given_back(spans or ())),
            filter=self._filter,
            place=self.place,
            remote=self._in_tier,
        )

    def _lingers(self, wanted: int) -> bool:
        """Whether more room is worth a moment: a consumer that answers one by one would get one by one."""
        members = [item.member for item in self.members.values()]
        room = sum(member.room(self.book.load(member.number)) for member in members)
        worthwhile = min(wanted, LINGER_ROWS, sum(member.max_inflight for member in members) // 4)
        lingers = 0 < room < worthwhile and not self._patience_is_over
        if lingers and self._lingering is None:
            self._lingering = self._desk.loop.call_later(LINGER_S, self._lingered)
        return lingers

    def _lingered(self) -> None:
        self._lingering, self._patience_is_over = None, True
        self.wake()
        self._patience_is_over = False

    def _offers(self, wanted: int) -> list[Offer]:
        for item in list(self.members.values()):
            if not item.sink.may_consume(self.kind.channel):
                reason = f"channel {self.kind.channel!r} may not be consumed any more"
                self._desk.loop.call_soon(self.end_one, item, "forbidden", reason)
                return []
        candidates = [
            Candidate(item.member, self.book.load(number), item.sink.send_room())
            for number, item in self.members.items()
        ]
        for candidate in candidates:
            if candidate.send_bytes <= 0:
                self.members[candidate.member.number].sink.starve(self)
        found = offers(candidates, wanted=wanted)
        self._turns += 1
        for offer in found:
            self.members[offer.member].member.served_at = self._turns
        return found

    def _begin(self, wish: Wish) -> None:
        self._busy = True
        reserved = {offer.member: offer.bytes for offer in wish.offers}
        sinks = [(self.members[number].sink, size) for number, size in reserved.items()]
        for sink, size in sinks:
            sink.reserve(size)

        def done(found: Harvest | None, error: BaseException | None) -> None:
            self._busy = False
            for sink, size in sinks:
                sink.reserve(-size)
            if self.dropped:
                return
            if found is None:
                self._not_read(wish, error)
            else:
                self._read(wish, found)
            self.wake()

        self._desk.turn(wish, done)

    def _read(self, wish: Wish, found: Harvest) -> None:
        now_ns = self._desk.now_ns()
        if found.removed:
            self.end("unknown_subscription", f"the subscriber {self.kind.durable!r} was removed")
            self._desk.drop(self)
            return
        self._in_tier = found.in_tier
        if wish.again is None:
            self._end_at_absent(found)
            self.next_seq = found.next_seq
        for cut in found.cuts:
            self._hand_out(cut, now_ns)
        self.book.again(found.left, due_ns=now_ns)
        for number in found.tight & self.members.keys():
            self.members[number].member.tight_at_bytes = self.book.load(number).bytes
        if self.place is not None and found.passed:
            self._desk.settler.ack(self.place, found.passed)
        if found.gone and wish.again is None:
            for subscription in self.members.values():
                subscription.tell("gap", found.gone, "retention took them")

    def _end_at_absent(self, found: Harvest) -> None:
        """New messages for a member that left while they were read, and all behind them, are read again: else others
        would get those behind first."""
        for at, cut in enumerate(found.cuts):
            if cut.member not in self.members:
                found.next_seq = end = cut.ranges[0][0]
                found.cuts = found.cuts[:at]
                found.passed = [(first, min(last, end - 1)) for first, last in found.passed if first < end]
                found.gone = [(first, min(last, end - 1)) for first, last in found.gone if first < end]
                return

    def _hand_out(self, cut: Cut, now_ns: int) -> None:
        subscription = self.members.get(cut.member)
        if subscription is None:  # it left while they were read once more
            self.book.again([(*span, cut.attempt) for span in cut.ranges], due_ns=now_ns)
            return
        member = subscription.member
        if member.policy.forbids(cut.attempt):
            self._bury_untried(cut)
            return
        member.delivered += cut.rows
        self._desk.totals.delivered += cut.rows
        self._desk.totals.redelivered += cut.rows if cut.attempt > 1 or cut.again else 0
        if member.holds:
            if self.place is not None:
                self._desk.settler.hand(self.place, cut.ranges)
            self.book.deliver(
                member.number,
                cut.ranges,
                attempt=cut.attempt,
                size_bytes=cut.body.size,
                policy=member.policy,
                now_ns=now_ns,
            )
        subscription.sink.deliver(subscription.sub, cut)

    def _bury_untried(self, cut: Cut) -> None:
        """The server ended before it had buried these, or by a crash during their last delivery."""
        dead = [(first, last, cut.attempt) for first, last in cut.ranges]
        self._bury(dead, f"max_deliver: {cut.attempt - 1} deliveries, the last one: the server crashed")

    def _not_read(self, wish: Wish, error: BaseException | None) -> None:
        self._paused_until_ns = self._desk.now_ns() + RETRY_NS
        self.book.again(wish.again or (), due_ns=self._paused_until_ns)
        if isinstance(error, RetryLater):
            return
        self._desk.note(error)
        self.end("internal", str(error) if isinstance(error, HoldfastError) else "the server's log has the reason")

    # -- answers ----------------------------------------------------------------------------------------------------

    def ack(self, number: int, request: consume.Ack, answered: Answered) -> tuple[int, int]:
        """Messages settled, and messages that were stale; `answered` when it is durable."""
        ranges = list(request.ranges)
        if request.upto is not None and request.upto > 0:
            ranges.append((1, request.upto))
        taken = self.book.ack(number, ranges)
        if self.place is None:
            answered(None)
        elif taken.spans:
            self._desk.settler.ack(self.place, taken.spans, answered)
        else:
            self._desk.settler.after(self.place, answered)  # an earlier answer may be on its way
        self.wake()
        return taken.rows, max(0, _count(request.ranges) - taken.rows)

    def unconfirmed(self, ranges: Iterable[Span]) -> int | None:
        """How many of these messages are still owed, whoever has them; None where nothing is kept."""
        if self.place is None:
            return None
        return self._desk.port.unconfirmed(self.place, ranges)

    def nack(self, number: int, request: consume.Nack, answered: Answered) -> tuple[int, int]:
        """Messages given back, and messages that were stale."""
        delay_ns = None if request.delay_ms is None else request.delay_ms * 1_000_000
        taken = self.book.nack(number, request.ranges, delay_ns=delay_ns, now_ns=self._desk.now_ns())
        self._failed(taken, self.members.get(number), reason="nack", answered=answered)
        self.wake()
        return taken.rows, _count(request.ranges) - taken.rows

    def reject(self, number: int, request: consume.Reject, answered: Answered) -> tuple[int, int]:
        """Messages that become dead letters, and messages that were stale."""
        taken = self.book.reject(number, request.ranges)
        if taken.spans:
            self._bury(taken.dead, request.reason, answered)
        else:
            answered(None)
        self.wake()
        return taken.rows, _count(request.ranges) - taken.rows

    def extend(self, number: int, request: consume.Extend) -> tuple[int, int]:
        """Messages whose time begins anew, and messages that were stale."""
        ranges = request.ranges or tuple(self.book.held_by(number))
        taken = self.book.extend(number, ranges, now_ns=self._desk.now_ns())
        self._arm(self._desk.now_ns())
        return taken.rows, _count(ranges) - taken.rows

    # -- time -------------------------------------------------------------------------------------------------------

    def _expire(self, now_ns: int) -> None:
        for number, taken in self.book.expire(now_ns).items():
            subscription = self.members.get(number)
            if subscription is not None:
                subscription.tell("expired", taken.spans)
            self._failed(taken, subscription, reason="no answer in time")

    def _failed(
        self, taken: Taken, subscription: Subscription | None, *, reason: str, answered: Answered | None = None
    ) -> None:
        """Remember failed attempts, and bury what has used up its own."""
        if taken.dead:
            attempts = max(attempt for _, _, attempt in taken.dead)
            self._bury(taken.dead, f"max_deliver: {attempts} deliveries, the last one: {reason}")
            if subscription is not None:
                subscription.tell("dead", [(first, last) for first, last, _ in taken.dead], reason)
        if self.place is not None and taken.failed:
            self._desk.settler.fail(self.place, taken.failed, reason=reason, told=answered)
        elif answered is not None:
            answered(None)

    def _bury(self, dead: list[Counted], reason: str, answered: Answered | None = None) -> None:
        spans = [(first, last) for first, last, _ in dead]
        self._burying += 1

        def done(error: BaseException | None) -> None:
            self._burying -= 1
            if error is not None:
                self._desk.note(error)
                self.book.again(dead, due_ns=self._desk.now_ns() + RETRY_NS)
            else:
                self._desk.totals.dead += _count(spans)
            if answered is not None:
                answered(error if isinstance(error, HoldfastError) else None)
            self.wake()

        self._desk.bury(self, spans, reason, done)

    def _arm(self, now_ns: int) -> None:
        """Look again when something happens by itself."""
        times = [at for at in (self.book.next_ns(now_ns), self._paused_until_ns) if at is not None and at > now_ns]
        if not times or self.dropped:
            return
        at_ns = min(times)
        if self._timer is not None and now_ns < self._timer_at_ns <= at_ns:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ns = at_ns
        self._timer = self._desk.loop.call_later((at_ns - now_ns) / NS_PER_S, self._ring)

    def _ring(self) -> None:
        self._timer = None
        self.wake()


def _count(ranges: Iterable[Span]) -> int:
    return sum([last - first + 1 for first, last in ranges])
