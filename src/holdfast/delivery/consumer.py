"""One consumer's connection: the shell around `holdfast.wire.consumesession`.

Promises:

- What is sent and not taken is bounded: `SEND_BYTES_MAX`, and a message more for each subscription. A feed that finds
  no room is woken when there is some.
- The server reads answers whether or not the peer takes messages, so neither waits for the other.
- When the server stops, nothing more is delivered, the peer is told, and its answers are taken for a moment.
"""

from __future__ import annotations

from picows import WSCloseCode

from holdfast import __version__
from holdfast.delivery.desk import DeliveryDesk
from holdfast.delivery.feed import Feed, Subscription
from holdfast.delivery.groups import Member
from holdfast.delivery.harvest import Cut, Shape
from holdfast.delivery.redelivery import Policy
from holdfast.delivery.refusals import refusal
from holdfast.errors import AccessRefused, HoldfastError, WireError
from holdfast.model.frame import Durability
from holdfast.server.connection import Connection
from holdfast.server.door import Opening, Route, Upgrade
from holdfast.wire import consume
from holdfast.wire.consumesession import SUBS_MAX, ConsumeSession

SEND_BYTES_MAX = 4 << 20
"""Sent and not taken by one peer, beyond which its feeds wait."""
SHARE_BYTES_MIN = 64 << 10
"""What each of many subscriptions of a connection may send in a turn, at least."""
WRITE_HIGH_BYTES = 1 << 20
"""Above this the peer counts as slow; it is woken again at a quarter."""
DRAIN_S = 1.0
"""How long a peer may still answer what it holds when the server stops."""
CLOSE_TEXT_MAX = 120

_MS = 1_000_000
_Answers = consume.Ack | consume.Nack | consume.Reject | consume.Extend


class ConsumeHandler:
    """A connection's subscriptions. Everything happens on the event loop."""

    def __init__(self, desk: DeliveryDesk, connection: Connection) -> None:
        self.connection = connection
        self._desk = desk
        self._principal = connection.principal
        durability = Durability.SYNCED
        welcome = consume.Welcome(
            server=__version__, session=next(desk.sessions), subs_max=SUBS_MAX, durability=durability.name.lower()
        )
        self._session = ConsumeSession(welcome)
        self._subs: dict[int, tuple[Feed, Subscription]] = {}
        self._starved: dict[Feed, None] = {}
        self._reserved = 0
        self._gone = False
        self._limited = False
        self._finishing = False
        connection.on_flow = self._flow

    # -- called by the connection -----------------------------------------------------------------------------------

    def message(self, data: bytes) -> None:
        """A binary message."""
        info = self.connection.info
        info.frames += 1
        info.bytes += len(data)
        if len(data) > consume.REQUEST_BYTES_MAX:
            self.connection.close(WSCloseCode.MESSAGE_TOO_BIG, f"at most {consume.REQUEST_BYTES_MAX} bytes")
            return
        try:
            found = self._session.receive(data)
        except WireError as error:
            info.last_error = str(error)
            self.connection.close(WSCloseCode.PROTOCOL_ERROR, str(error)[:CLOSE_TEXT_MAX])
            return
        if isinstance(found, consume.Reply):
            self._send(found)
        elif found is not None:
            self._carry_out(found)

    def finish(self) -> None:
        """The server stops: say so, take answers for a moment, then close."""
        if self._finishing:
            return
        self._finishing = True
        self._send(consume.Event(event="draining", reason="the server stops"))
        if self._holds_nothing():
            self._farewell()
        else:
            self._desk.loop.call_later(DRAIN_S, self._farewell)

    def closed(self) -> None:
        """The connection is gone; what it held goes to others."""
        self._gone = True
        self._starved.clear()
        for feed, subscription in list(self._subs.values()):
            feed.detach(subscription.member.number, lost=not self._finishing)
        self._subs.clear()

    def _holds_nothing(self) -> bool:
        return not any(feed.book.load(one.member.number).rows for feed, one in self._subs.values())

    def _farewell(self) -> None:
        """Close once what was answered is durable."""
        if self._gone or self.connection.is_closing:
            return
        waiting = [feed.place for feed, _ in self._subs.values() if feed.place is not None]
        waiting = [place for place in waiting if self._desk.settler.is_pending(place)]
        if waiting:
            self._desk.settler.after(waiting[0], lambda _error: self._farewell())
            return
        failed = self._desk.state.failure is not None
        self.connection.close(WSCloseCode.INTERNAL_ERROR if failed else WSCloseCode.GOING_AWAY, "the server stops")

    # -- what the peer takes ----------------------------------------------------------------------------------------

    def _flow(self, taking: bool) -> None:
        self.connection.info.paused = "" if taking else "peer"
        if taking:
            self._feed_starved()

    def _feed_starved(self) -> None:
        """Wake as many feeds as there is room for, those first that have waited longest."""
        room = 0 if self._gone else self._room()
        woke = False
        while self._starved and room > 0:
            feed = next(iter(self._starved))
            del self._starved[feed]
            self._desk.loop.call_soon(feed.wake)
            room -= self._share()
            woke = True
        if woke and self._starved:
            self._desk.loop.call_soon(self._feed_starved)  # in case those had nothing to send

    def may_consume(self, channel: str) -> bool:
        """Whether its owner still has the right."""
        return self._principal.may("consume", channel)

    def send_room(self) -> int:
        """Bytes its connection takes now."""
        if self._gone or self._finishing or self.connection.is_closing:
            return 0
        return min(self._room(), self._share())

    def _room(self) -> int:
        return SEND_BYTES_MAX - self._buffered() - self._reserved

    def _share(self) -> int:
        """What one of its subscriptions may send in a turn."""
        return max(SHARE_BYTES_MIN, SEND_BYTES_MAX // max(1, len(self._subs)))

    def _buffered(self) -> int:
        transport = self.connection.transport.underlying_transport
        if not self._limited:
            self._limited = True
            transport.set_write_buffer_limits(high=WRITE_HIGH_BYTES)
        return int(transport.get_write_buffer_size())

    def reserve(self, change_bytes: int) -> None:
        """Bytes that are about to be sent, or are not after all."""
        self._reserved += change_bytes
        if change_bytes < 0 and self._starved and not self._gone:
            self._feed_starved()

    def starve(self, feed: Feed) -> None:
        """Wake the feed when there is room."""
        self._starved[feed] = None

    def deliver(self, sub: int, cut: Cut) -> None:
        """Send messages."""
        if not self._gone and not self.connection.is_closing:
            head = consume.Deliver(sub=sub, ranges=cut.ranges, attempt=cut.attempt, again=cut.again)
            self.connection.send(consume.encode_deliver(head, cut.body))

    def tell(self, told: consume.Event) -> None:
        """Send an event."""
        self._send(told)

    def ended(self, sub: int) -> None:
        """The server ended a subscription."""
        self._subs.pop(sub, None)
        self._session.freed(sub)

    def _send(self, reply: consume.Reply) -> None:
        if not self._gone and not self.connection.is_closing:
            self.connection.send(consume.encode(reply))

    # -- requests ---------------------------------------------------------------------------------------------------

    def _carry_out(self, request: consume.Request) -> None:
        if isinstance(request, consume.Subscribe):
            self._subscribe(request)
        elif isinstance(request, _Answers):
            self._answer(request)
        elif isinstance(request, consume.Credit):
            feed, subscription = self._subs[request.sub]
            subscription.member.credit = request.upto
            feed.wake()
        elif isinstance(request, consume.Configure):
            self._configure(request)
        elif isinstance(request, consume.Close):
            self._close(request)
        elif isinstance(request, consume.Unsubscribe):
            self._unsubscribe(request)

    def _subscribe(self, request: consume.Subscribe) -> None:
        try:
            self._principal.require("consume", request.channel)
        except AccessRefused as error:
            self._opened(request, None, None, refusal(request.request, request.sub, error))
            return
        member = Member(
            next(self._desk.members),
            policy_of(request),
            request.max_inflight,
            request.max_inflight_bytes,
            request.batch_rows,
            priority=request.priority,
            credit=request.credit,
            holds=request.mode != "broadcast",
        )
        subscription = Subscription(member, request.sub, self, Shape(request.columns, request.system))
        self._desk.join(request, subscription, lambda feed, reply: self._opened(request, subscription, feed, reply))

    def _opened(
        self,
        request: consume.Subscribe,
        subscription: Subscription | None,
        feed: Feed | None,
        reply: consume.Subscribed | consume.Refused,
    ) -> None:
        if feed is None or subscription is None:
            self._session.freed(request.sub)
            self._send(reply)
            return
        if self._gone:  # while it was being opened
            feed.detach(subscription.member.number, lost=False)
            return
        self._subs[request.sub] = (feed, subscription)
        self._session.opened(request.sub)
        self._send(reply)

    def _configure(self, request: consume.Configure) -> None:
        feed, subscription = self._subs[request.sub]
        member = subscription.member
        old = member.policy
        if request.priority and feed.kind.mode != "priority":
            reason = f"priority={request.priority} counts only in mode priority"
            refused = consume.Refused(request=request.request, sub=request.sub, code="bad_request", reason=reason)
            self._send(refused)
            return
        member.policy = Policy(
            old.ack_wait_ns if request.ack_wait_ms is None else request.ack_wait_ms * _MS,
            old.backoff_ns if request.backoff_ms is None else tuple(ms * _MS for ms in request.backoff_ms),
            old.max_deliver if request.max_deliver is None else request.max_deliver,
        )
        for name in ("max_inflight", "max_inflight_bytes", "batch_rows", "priority"):
            value = getattr(request, name)
            if value is not None:
                setattr(member, name, value)
        member.tight_at_bytes = None
        self._send(configured(request.request, request.sub, member))
        feed.wake()

    def _answer(self, request: _Answers) -> None:
        feed, subscription = self._subs[request.sub]
        number = subscription.member.number
        answered = _Settling(self, request)
        if isinstance(request, consume.Ack):
            done = feed.ack(number, request, answered.later)
        elif isinstance(request, consume.Nack):
            done = feed.nack(number, request, answered.later)
        elif isinstance(request, consume.Reject):
            done = feed.reject(number, request, answered.later)
        else:
            done = feed.extend(number, request)
            answered.later(None)
        self._desk.totals.stale += done[1]
        answered.known(done)
        if self._finishing and self._holds_nothing():
            self._farewell()

    def _close(self, request: consume.Close) -> None:
        feed, subscription = self._subs.pop(request.sub)
        feed.detach(subscription.member.number, lost=False)
        if feed.place is None:
            self._closed_sub(request, removed=False)
        else:
            self._desk.settler.after(feed.place, lambda _error: self._closed_sub(request, removed=False))

    def _unsubscribe(self, request: consume.Unsubscribe) -> None:
        feed, subscription = self._subs[request.sub]
        place = feed.place
        if place is not None and len(feed.members) == 1 and place.channel not in place.state.note.patterns:
            reason = f"subscriber {feed.kind.durable!r} follows the channel by a pattern; remove the subscriber instead"
            self._session.kept(request.sub)
            refused = consume.Refused(request=request.request, sub=request.sub, code="bad_request", reason=reason)
            self._send(refused)
            return
        del self._subs[request.sub]
        feed.detach(subscription.member.number, lost=False)
        if feed.members:
            self._closed_sub(request, removed=False)
            return

        def removed(error: BaseException | None) -> None:
            if error is None:
                self._closed_sub(request, removed=place is not None)
            else:
                self._session.freed(request.sub)
                self._send(refusal(request.request, request.sub, error))

        self._desk.remove(feed, removed)

    def _closed_sub(self, request: consume.Close | consume.Unsubscribe, *, removed: bool) -> None:
        self._session.freed(request.sub)
        self._send(consume.Closed(request=request.request, sub=request.sub, removed=removed))

    def settled(self, request: _Answers, counts: tuple[int, int], error: HoldfastError | None) -> None:
        """An answer is durable, or could not be made so."""
        if request.request is None:
            return
        if error is not None:
            self._send(refusal(request.request, request.sub, error))
            return
        settled, stale = counts
        if stale and isinstance(request, consume.Ack) and request.sub in self._subs:
            owed = self._subs[request.sub][0].unconfirmed(request.ranges)
            if owed is not None:  # what was confirmed before is as good as confirmed now
                settled, stale = settled + stale - owed, owed
        self._send(consume.Settled(request=request.request, sub=request.sub, settled=settled, stale=stale))


class _Settling:
    """An answer whose counts are known at once, and which may be durable before or after that."""

    def __init__(self, handler: ConsumeHandler, request: _Answers) -> None:
        self._handler = handler
        self._request = request
        self._outcome: list[HoldfastError | None] = []
        self._counts: tuple[int, int] | None = None

    def later(self, error: HoldfastError | None) -> None:
        """It is durable."""
        self._outcome.append(error)
        if self._counts is not None:
            self._handler.settled(self._request, self._counts, error)

    def known(self, counts: tuple[int, int]) -> None:
        """The counts are there."""
        self._counts = counts
        if self._outcome:
            self._handler.settled(self._request, counts, self._outcome[0])


def policy_of(request: consume.Subscribe) -> Policy:
    """How messages of a subscription are tried."""
    backoff_ns = tuple(ms * _MS for ms in request.backoff_ms)
    return Policy(request.ack_wait_ms * _MS, backoff_ns, request.max_deliver)


def configured(request: int, sub: int, member: Member) -> consume.Configured:
    """What holds for a subscription now."""
    return consume.Configured(
        request=request,
        sub=sub,
        ack_wait_ms=member.policy.ack_wait_ns // _MS,
        max_inflight=member.max_inflight,
        max_inflight_bytes=member.max_inflight_bytes,
        batch_rows=member.batch_rows,
        priority=member.priority,
        max_deliver=member.policy.max_deliver,
        backoff_ms=tuple(ns // _MS for ns in member.policy.backoff_ns),
    )


def consume_route(desk: DeliveryDesk) -> Route:
    """What lives at `/v1/consume`."""

    def open_consume(_upgrade: Upgrade) -> Opening:
        return Opening("consume", lambda connection: ConsumeHandler(desk, connection))

    return open_consume
