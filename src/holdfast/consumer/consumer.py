"""The consumer's API: messages of a channel, each answered when its work is done.

    with Consumer.from_conf("ws::addr=127.0.0.1:9000;", channel="trades", durable="billing") as consumer:
        for message in consumer:
            bill(message.data)
            message.ack()

Promises:

1. Every message of a durable comes until it is acknowledged, rejected, or dead after `max_deliver` deliveries. What a
   program held that died goes to the next one, or to other members of its group.
2. A lost connection is won back in the background, over the list of hosts, and the subscription opened again as it was
   configured last. Messages that were not answered come again.
3. Answers are not kept without a connection: `ack` and the others raise `NotConfirmed` then.
4. No call waits for the network but `ack_sync`, `nack`, `reject`, `in_progress`, `configure` and `close`, each with a
   bound.
5. Handlers run on a thread of their own and may call anything, `close` included.

Thread-safe. A process that was forked opens a consumer of its own.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as FutureTimeout
from threading import Thread, current_thread
from types import TracebackType
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa

from holdfast.clock import NS_PER_S, Clock, SystemClock
from holdfast.consumer.core import ConsumerCore, Effect, Notice
from holdfast.consumer.hopper import Hopper
from holdfast.consumer.link import Link, Listeners, Wire
from holdfast.consumer.messages import Delivery, Message
from holdfast.consumer.options import connection_of, options_of, sorted_keys
from holdfast.errors import Closed, HoldfastError, InvalidConfig, NotConfirmed
from holdfast.sender.conf import ENVIRONMENT
from holdfast.sender.dialing import tls_context
from holdfast.sender.errorinbox import Inbox
from holdfast.sender.happenings import ConnectionEvent
from holdfast.telemetry import event
from holdfast.wire import consume
from holdfast.wire.consume import Delivery as WireDelivery
from holdfast.wire.consume import Range, Reply

ANSWER_TIMEOUT_S = 30.0
"""How long an answer that waits may take: longer than a sync of a slow disk."""
CLOSE_TIMEOUT_S = 5.0
LINK_TIMEOUT_S = 5.0
EVENTS_MAX = 256
"""Events for a slow listener; the oldest go first."""

EventListener: TypeAlias = Callable[[ConnectionEvent | Notice], None]
MessageHandler: TypeAlias = Callable[[Message], None]


class ConsumerStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A consumer at one moment."""

    connected_to: str
    messages: int
    deliveries: int
    redelivered: int
    reconnects: int
    events_dropped: int


class Consumer:
    """Gets the messages of a channel and answers each; the server keeps its place under the name in `durable`.

    >>> with Consumer.from_conf("ws::addr=127.0.0.1:9000;", channel="trades", durable="billing") as consumer:
    ...     for message in consumer.fetch(2, timeout=30):
    ...         print(message.seq, message.data)
    ...         message.ack()
    1 {'symbol': 'ABC', 'price': 12.5}
    2 {'symbol': 'XYZ', 'price': 7.0}

    `keys` are those of a subscription and of the connect string. Thread-safe; a forked process opens its own.
    """

    def __init__(
        self,
        conf: str | None = None,
        *,
        on_message: MessageHandler | None = None,
        on_event: EventListener | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        shared_conf: bool = False,
        **keys: Any,
    ) -> None:
        """Connect as `initial_connect_retry` says, and open the subscription."""
        own, others = sorted_keys(keys)
        options, config = options_of(own), connection_of(conf, others, shared=shared_conf)
        self._clock = clock or SystemClock()
        self._channel = options.channel
        self._hopper = Hopper()
        self._current: Iterator[Message] = iter(())
        self._handed: tuple[Range, ...] = ()
        self._is_closed = False
        self._messages = self._deliveries = self._redelivered = 0
        self._events: Inbox[ConnectionEvent | Notice] | None = None
        if on_event is not None:
            self._events = Inbox(on_event, capacity=EVENTS_MAX, name="holdfast-consumer-events")
        self._core = ConsumerCore(options, client=config.client_id or f"pid {os.getpid()}")
        wire = Wire(config, tls_context(config), self._clock, chance or random.Random())
        self._link = Link(
            self._core, wire, Listeners(self._on_delivery, self._hopper.clear, self._on_event, self._hopper.end)
        )
        self._link.start()
        self._worker: Thread | None = None
        try:
            if config.initial_connect_retry != "async":
                self._link.started.result()
        except BaseException:
            self._release()
            raise
        if on_message is not None:
            self._worker = Thread(target=self._work, args=(on_message,), name="holdfast-messages", daemon=True)
            self._worker.start()

    @classmethod
    def from_conf(cls, conf: str, **keys: Any) -> Consumer:
        """From a connect string, and the keys of the subscription."""
        return cls(conf, **keys)

    @classmethod
    def from_env(cls, **keys: Any) -> Consumer:
        """From the connect string in `HOLDFAST_CONF`, which may have keys of a producer too."""
        conf = os.environ.get(ENVIRONMENT)
        if not conf:
            raise InvalidConfig(key=ENVIRONMENT, reason="is not set; expected ws::addr=host:port;…")
        return cls(conf, shared_conf=True, **keys)

    # --- getting messages --------------------------------------------------------------------------------------------

    def next(self, timeout: float | None = None) -> Message | None:
        """The next message; None when none came within that many seconds, or the consumer was closed."""
        message = next(self._current, None)
        if message is None:
            delivery = self._take(timeout)
            if delivery is None:
                return None
            self._current = delivery.messages()
            message = next(self._current)
        return message

    def __iter__(self) -> Iterator[Message]:
        """Messages as they come, until the consumer is closed."""
        while (message := self.next()) is not None:
            yield message

    def fetch(self, count: int, timeout: float | None = None) -> list[Message]:
        """Up to `count` messages: what is there, or what comes first within that many seconds."""
        found: list[Message] = []
        message = self.next(timeout)
        while message is not None:
            found.append(message)
            message = self.next(0.0) if len(found) < count else None
        return found

    def deliveries(self, timeout: float | None = None) -> Iterator[Delivery]:
        """Messages as they were delivered, a batch at a time; ends when none comes within that many seconds."""
        while (delivery := self._take(timeout)) is not None:
            yield delivery

    def batches(self, timeout: float | None = None) -> Iterator[pa.RecordBatch]:
        """Record batches for fast readers; `ack` of the consumer confirms the one that was given last."""
        for delivery in self.deliveries(timeout):
            self._handed = delivery.ranges
            yield delivery.batch

    def _take(self, timeout: float | None) -> Delivery | None:
        return self._hopper.take(timeout, lambda: self._clock.monotonic_ns() / NS_PER_S)

    def poll(self, when_changed: Callable[[], None]) -> Delivery | None:
        """A delivery if one is here; otherwise `when_changed` is called, once, when there may be."""
        return self._hopper.poll(when_changed)

    @property
    def is_ended(self) -> bool:
        """Whether nothing more comes."""
        return self._hopper.is_ended

    # --- answering ---------------------------------------------------------------------------------------------------

    def ack(self, ranges: Sequence[Range] | None = None) -> None:
        """Done with these seqs, or with the batch that `batches` gave last; durable soon."""
        ranges = self._handed if ranges is None else ranges
        if not self._link.is_open:
            raise self._unconfirmed()
        hurry_at = max(1, self._core.options.max_inflight // 2)
        linger = self._link.answers.add(ranges, hurry_at=hurry_at)
        if linger is not False:
            self._link.hurry_acks(linger=linger is True)

    def settle(self, kind: str, ranges: Sequence[Range], *, delay: float | None = None, reason: str = "") -> None:
        """Answer with `ack`, `nack`, `reject` or `extend`; durable when this returns.

        For a durable `NotConfirmed` if some of the messages were given to others meanwhile, and the answer does not
        count for them. A nack then says nothing new: they come again anyway.
        """
        spans = tuple(ranges)

        def request(number: int) -> list[Effect]:
            core = self._core
            if kind == "ack":
                return core.answer(consume.Ack(sub=1, ranges=spans, request=number))
            if kind == "nack":
                delay_ms = None if delay is None else round(delay * 1000)
                return core.answer(consume.Nack(sub=1, ranges=spans, delay_ms=delay_ms, request=number))
            if kind == "reject":
                return core.answer(consume.Reject(sub=1, ranges=spans, reason=reason, request=number))
            return core.answer(consume.Extend(sub=1, ranges=spans, request=number))

        if not self._link.is_open:
            raise self._unconfirmed()
        reply = self._wait(request, ANSWER_TIMEOUT_S, what=f"the {kind}")
        if isinstance(reply, consume.Settled) and reply.stale and kind != "nack" and self._core.options.durable:
            raise NotConfirmed(reason=f"{reply.stale} of the messages are not held by this consumer any more")

    def _unconfirmed(self) -> HoldfastError:
        if self._is_closed:
            return Closed(what="the consumer")
        return NotConfirmed(reason="there is no connection")

    def _wait(self, make: Callable[[int], list[Effect]], timeout_s: float, *, what: str) -> Reply | None:
        try:
            return self._link.ask(make).result(timeout_s)
        except FutureTimeout:
            raise NotConfirmed(reason=f"{what} was not answered within {timeout_s:g} s") from None

    # --- the subscription --------------------------------------------------------------------------------------------

    def configure(self, *, timeout: float = ANSWER_TIMEOUT_S, **changes: Any) -> None:
        """Change limits of the open subscription. Without a connection it waits for one, and counts from there on.

        When the time is up `NotConfirmed` is raised; the change stays, and is sent with the next connection.
        """
        if self._is_closed:
            raise Closed(what="the consumer")
        self._wait(lambda number: self._core.configure(number, changes), timeout, what="the change")

    def unsubscribe(self) -> None:
        """Close, and let the server forget the durable's place. `NotConfirmed` without a connection."""
        if self._is_closed:
            raise Closed(what="the consumer")
        self._wait(lambda number: self._core.close(number, remove=True), CLOSE_TIMEOUT_S, what="the removal")
        self.close()

    def statistics(self) -> ConsumerStatistics:
        """The consumer now."""
        return ConsumerStatistics(
            connected_to=self._link.connected_to,
            messages=self._messages,
            deliveries=self._deliveries,
            redelivered=self._redelivered,
            reconnects=self._link.reconnects,
            events_dropped=self._events.dropped if self._events is not None else 0,
        )

    @property
    def mark(self) -> int:
        """Everything up to this seq was confirmed when the subscription was opened last."""
        return self._core.mark

    def close(self) -> None:
        """Send acks that are on their way, end the subscription, and stop. A durable keeps its place. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._link.hurry_acks(linger=False)
            self._link.ask(lambda number: self._core.close(number, remove=False)).exception(CLOSE_TIMEOUT_S)
        except FutureTimeout:
            pass  # the server gives what is held to others once the connection is gone
        finally:
            self._release()

    def _release(self) -> None:
        self._is_closed = True
        self._link.stop(LINK_TIMEOUT_S)
        self._hopper.end()
        if self._events is not None:
            self._events.close(1.0)
        if self._worker is not None and self._worker is not current_thread():
            self._worker.join(LINK_TIMEOUT_S)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    # --- on other threads --------------------------------------------------------------------------------------------

    def _on_delivery(self, wire: WireDelivery) -> None:
        delivery = Delivery(wire, self, self._channel)
        self._messages += len(delivery)
        self._deliveries += 1
        self._redelivered += len(delivery) if delivery.redelivered else 0
        self._hopper.put(delivery)

    def _on_event(self, happened: ConnectionEvent | Notice) -> None:
        if self._events is not None:
            self._events.offer(happened)

    def _work(self, handle: MessageHandler) -> None:
        """Hand messages to the handler until the end; one that raises gives its message back."""
        for message in self:
            try:
                handle(message)
            except Exception as error:
                self._give_back(message, error)

    def _give_back(self, message: Message, error: Exception) -> None:
        event("consumer.handler.fail", channel=message.channel, seq=message.seq, error=repr(error))
        if not self._is_closed:
            message.nack()
