"""The session of one consumer, without the connection: what to send, what each reply means, what survives an outage.

                  opened                  SUBSCRIBED                    close
    offline ────────────────► subscribing ──────────► open ────────────────────────► closing ──► closed
       ▲                          │                    │                                ▲
       └───────── lost ───────────┴──────── lost ──────┘           close while offline ─┘

Nothing here does I/O or reads a clock. Each call returns `Effect`s for the shell to carry out, in order.

Promises:

1. The subscription and its configuration outlast connections: SUBSCRIBE is sent again after each connect, with the
   values of now, and a change that was not confirmed counts as confirmed by it.
2. Answers to messages do not outlast them. A request for one fails with `NotConfirmed` when the connection is lost: the
   server hands such messages out again, maybe to somebody else.
3. Closing while there is no connection is final at once; nothing is sent later.
4. An ephemeral subscription goes on at the lowest seq that was delivered and not answered, or behind the last one.
5. After `Halt` nothing happens any more.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from holdfast.consumer.options import Options
from holdfast.errors import Forbidden, HoldfastError, NotConfirmed, SubscriptionRefused, WireError
from holdfast.model.intervals import IntervalSet
from holdfast.wire import consume
from holdfast.wire.consume import Delivery, Range, Reply, Request

SUB = 1
"""The number of the subscription; a consumer has one."""


class Send(NamedTuple):
    """Hand this message to the transport."""

    message: bytes


class Hand(NamedTuple):
    """Hand these messages to the application."""

    delivery: Delivery


class Notice(NamedTuple):
    """Something the server said without being asked."""

    event: str
    ranges: tuple[Range, ...]
    reason: str


class Restored(NamedTuple):
    """The subscription stands again after an outage."""

    mark: int


class Ready(NamedTuple):
    """The subscription stands for the first time."""

    mark: int


class Answered(NamedTuple):
    """A request of the application came to an end."""

    request: int
    reply: Reply | None
    error: HoldfastError | None


class Hangup(NamedTuple):
    """End the connection; another one is tried after a pause."""

    reason: str


class Halt(NamedTuple):
    """Nothing more comes: the application gets this error."""

    error: HoldfastError


class Ended(NamedTuple):
    """The subscription is closed."""


Effect: TypeAlias = Send | Hand | Notice | Restored | Ready | Answered | Hangup | Halt | Ended


class ConsumerCore:
    """See the module. Not thread-safe."""

    def __init__(self, options: Options, *, client: str) -> None:
        self.options = options
        self.state = "offline"
        self.mark = 0
        self._client = client
        self._next_request = 1
        self._subscribe = 0  # the request that opens
        self._was_open = False
        self._pending: dict[int, Request] = {}
        self._owed = IntervalSet()
        self._behind = 0  # the highest seq that was delivered

    # --- the connection ----------------------------------------------------------------------------------------------

    def opened(self) -> list[Effect]:
        """A server took the connection."""
        self.state = "subscribing"
        self._subscribe = self.number()
        request = self.options.subscribe(self._subscribe, SUB, resume_at=self._resume_at())
        return [Send(consume.encode(consume.Hello(client=self._client))), Send(consume.encode(request))]

    def lost(self, reason: str) -> list[Effect]:
        """The connection is gone."""
        if self.state in {"closed", "halted"}:
            return []
        if self.state == "closing":
            return self._end()
        effects: list[Effect] = []
        self.state = "offline"
        pending, self._pending = self._pending, {}
        for number, request in pending.items():
            if isinstance(request, consume.Configure):
                self._pending[number] = request  # confirmed by the next SUBSCRIBED
            else:
                effects.append(Answered(number, None, NotConfirmed(reason=reason)))
        return effects

    def _resume_at(self) -> int | None:
        if not self._was_open:
            return None
        lowest = next(iter(self._owed), None)
        return lowest[0] if lowest is not None else self._behind + 1

    # --- what the application asks for -------------------------------------------------------------------------------

    def number(self) -> int:
        """A number for a request."""
        self._next_request += 1
        return self._next_request - 1

    def configure(self, number: int, changes: dict[str, Any]) -> list[Effect]:
        """Change the subscription now, or with the next connection."""
        self.options = self.options.changed(changes)
        request = self.options.configure(number, SUB)
        self._pending[number] = request
        return [Send(consume.encode(request))] if self.state == "open" else []

    def answer(self, request: consume.Ack | consume.Nack | consume.Reject | consume.Extend) -> list[Effect]:
        """Tell the server what became of messages."""
        if self.state != "open":
            error = NotConfirmed(reason="there is no connection")
            return [] if request.request is None else [Answered(request.request, None, error)]
        if not isinstance(request, consume.Extend):
            for first, last in request.ranges:
                self._owed.discard(first, last)
        if request.request is not None:
            self._pending[request.request] = request
        return [Send(consume.encode(request))]

    def close(self, number: int, *, remove: bool) -> list[Effect]:
        """End the subscription; with `remove` the server forgets its durable."""
        if self.state in {"closed", "halted", "closing"}:
            return [Answered(number, None, None)]
        if self.state != "open":
            if remove:
                return [Answered(number, None, NotConfirmed(reason="there is no connection"))]
            return [*self._end(), Answered(number, None, None)]
        self.state = "closing"
        kind = consume.Unsubscribe if remove else consume.Close
        request = kind(request=number, sub=SUB)
        self._pending[number] = request
        return [Send(consume.encode(request))]

    def _end(self) -> list[Effect]:
        pending, self._pending = self._pending, {}
        self.state = "closed"
        ended = (consume.Close, consume.Configure)
        lost = NotConfirmed(reason="the consumer was closed")
        answers = [Answered(n, None, None if isinstance(r, ended) else lost) for n, r in pending.items()]
        return [*answers, Ended()]

    # --- what the server says ----------------------------------------------------------------------------------------

    def received(self, message: bytes) -> list[Effect]:
        """A binary message of the server."""
        if self.state in {"offline", "closed", "halted"}:
            return []
        try:
            reply = consume.decode_reply(message)
        except WireError as error:
            return [Hangup(f"a message that cannot be read: {error}")]
        return self._on_delivery(reply) if isinstance(reply, Delivery) else self._on_reply(reply)

    def _on_reply(self, reply: Reply | None) -> list[Effect]:
        effects: list[Effect] = []  # WELCOME says nothing that we need, and a newer server may say more
        if isinstance(reply, consume.Subscribed):
            effects = self._on_subscribed(reply)
        elif isinstance(reply, consume.Refused):
            effects = self._on_refused(reply)
        elif isinstance(reply, consume.Event):
            effects = self._on_event(reply)
        elif isinstance(reply, consume.Configured | consume.Settled | consume.Closed):
            self._pending.pop(reply.request, None)
            effects = [Answered(reply.request, reply, None)]
            if isinstance(reply, consume.Closed):
                effects += self._end()
        return effects

    def _on_delivery(self, delivery: Delivery) -> list[Effect]:
        if self.state == "closing":
            return []
        for first, last in delivery.head.ranges:
            self._owed.add(first, last)
            self._behind = max(self._behind, last)
        return [Hand(delivery)]

    def _on_subscribed(self, reply: consume.Subscribed) -> list[Effect]:
        if self.state != "subscribing" or reply.request != self._subscribe:
            return []
        self.state, self.mark = "open", reply.mark
        self._owed = IntervalSet()
        self._behind = max(self._behind, reply.next_seq - 1) if not self._was_open else self._behind
        configured, self._pending = self._pending, {}
        effects: list[Effect] = [Answered(number, None, None) for number in configured]
        first, self._was_open = not self._was_open, True
        return [Ready(reply.mark) if first else Restored(reply.mark), *effects]

    def _on_refused(self, reply: consume.Refused) -> list[Effect]:
        error = _error_of(reply, self.options)
        if reply.request == self._subscribe and self.state == "subscribing":
            return [Hangup(reply.reason)] if reply.retry else self._halt(error)
        self._pending.pop(reply.request, None)
        if self.state == "closing":
            self.state = "open"
        return [Answered(reply.request, None, error)]

    def _on_event(self, reply: consume.Event) -> list[Effect]:
        notice = Notice(reply.event, reply.ranges, reply.reason)
        if reply.event != "ended" or self.state == "closing":
            return [notice]
        if reply.code == "unavailable":  # for a moment: it comes back, as after a lost connection
            return [notice, Hangup(reply.reason)]
        error = SubscriptionRefused(channel=self.options.channel, code=reply.code or "ended", reason=reply.reason)
        return [notice, *self._halt(error)]

    def _halt(self, error: HoldfastError) -> list[Effect]:
        pending, self._pending = self._pending, {}
        self.state = "halted"
        return [*(Answered(number, None, error) for number in pending), Halt(error)]

    def halt(self, error: HoldfastError) -> list[Effect]:
        """There will be no connection: the shell found out."""
        return [] if self.state in {"closed", "halted"} else self._halt(error)


def _error_of(reply: consume.Refused, options: Options) -> HoldfastError:
    if reply.code == "forbidden":
        return Forbidden(principal="", action=f"consume {options.channel!r}", said=reply.reason)
    return SubscriptionRefused(channel=options.channel, code=reply.code, reason=reply.reason)
