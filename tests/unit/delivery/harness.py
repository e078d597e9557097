"""A real server with delivery on a real socket, and a small consumer that says what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import pyarrow as pa

from holdfast.clock import Clock
from holdfast.delivery import DeliveryDesk, attach_delivery
from holdfast.server.server import Parts, Server
from holdfast.wire import consume
from tests.unit.server.harness import BINARY, CLOSE, PATIENCE_S, PING, PONG, RawClient, RunningServer

R = TypeVar("R", bound=consume.Reply)


class DeliveryServer(RunningServer):
    """A server that lets consumers in."""

    delivery: DeliveryDesk

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, object] | None = None,
        *,
        store: Mapping[str, object] | None = None,
        clock: Clock | None = None,
        tls: bool = False,
    ) -> None:
        super().__init__(directory, settings, store=store, clock=clock, tls=tls)
        self.consumers: list[Consumer] = []

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = Server(self.config, Parts(self.store, self.gatekeeper, self.clock, self.tls))
        self.delivery = attach_delivery(self.server)
        _, self.port = await self.server.start()
        self.failure = await self.server.run(on_ready=self._ready.set)
        self.delivery.close()

    def __enter__(self) -> Self:
        super().__enter__()
        return self

    def stop_gently(self) -> None:
        """As SIGTERM does, with consumers that are still there."""
        super().stop()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for consumer in self.consumers:
            consumer.raw.close()
        super().__exit__(kind, error, trace)

    def consumer(self, **headers: str) -> Consumer:
        """One that has said HELLO."""
        consumer = Consumer(self.client(consume.PATH, **headers))
        self.consumers.append(consumer)
        consumer.send(consume.Hello(client="test"))
        consumer.expect(consume.Welcome)
        return consumer

    def commit(self, *numbers: int, channel: str = "trades", partitions: tuple[str, ...] = ()) -> None:
        """Store one frame with a column `n`."""
        self.store.commit(channel, pa.record_batch({"n": pa.array(numbers, pa.int64())}), partitions=partitions)

    def mark(self, durable: str, channel: str = "trades") -> int:
        """How far a durable is."""
        found = {item.name: item for item in self.store.subscribers()}[durable]
        return {lag.channel: lag.mark for lag in found.channels}[channel]

    def gaps(self, durable: str, channel: str = "trades") -> list[tuple[int, int]]:
        """What a durable has not confirmed below its highest."""
        found = {item.name: item for item in self.store.subscribers()}[durable]
        return list({lag.channel: lag.gaps for lag in found.channels}[channel])

    def wake(self) -> None:
        """Let every feed look at the clock."""

        def look() -> None:
            for feed in list(self.delivery.feeds.values()):
                feed.wake()

        self.ask(look)


class Consumer:
    """A connection that consumes. Replies that are not asked for are kept in order."""

    def __init__(self, raw: RawClient) -> None:
        self.raw = raw
        self.kept: list[consume.Reply | consume.Delivery] = []
        self.requests = 0

    def send(self, message: consume.Message) -> None:
        """One message."""
        self.raw.send(consume.encode(message))

    def next(self) -> consume.Reply | consume.Delivery:
        """The next reply, kept or new."""
        return self.kept.pop(0) if self.kept else self._receive()

    def _receive(self) -> consume.Reply | consume.Delivery:
        while True:
            opcode, payload = self.raw.receive()
            if opcode == BINARY:
                reply = consume.decode_reply(payload)
                assert reply is not None
                return reply
            if opcode == PING:
                self.raw.send(payload, opcode=PONG)
            assert opcode != CLOSE, f"the server closed: {payload!r}"

    def _until(self, wanted: Callable[[consume.Reply | consume.Delivery], bool]) -> consume.Reply | consume.Delivery:
        for at, kept in enumerate(self.kept):
            if wanted(kept):
                return self.kept.pop(at)
        while True:
            reply = self._receive()
            if wanted(reply):
                return reply
            self.kept.append(reply)

    def expect(self, kind: type[R]) -> R:
        """The next reply of a kind."""
        found = self._until(lambda reply: isinstance(reply, kind))
        assert isinstance(found, kind)
        return found

    def event(self, name: str) -> consume.Event:
        """The next event of a name."""
        found = self._until(lambda reply: isinstance(reply, consume.Event) and reply.event == name)
        assert isinstance(found, consume.Event)
        return found

    def ask(self, message: consume.Message, kind: type[R]) -> R:
        """Send, and wait for the answer."""
        self.send(message)
        return self.expect(kind)

    def subscribe(self, sub: int = 1, channel: str = "trades", **fields: object) -> consume.Subscribed:
        """Open a subscription."""
        self.requests += 1
        request = consume.Subscribe(request=self.requests, sub=sub, channel=channel, **fields)  # type: ignore[arg-type]
        self.send(request)
        reply = self._until(
            lambda reply: isinstance(reply, consume.Subscribed | consume.Refused) and reply.request == request.request
        )
        assert isinstance(reply, consume.Subscribed), reply
        return reply

    def refused(self, sub: int = 1, channel: str = "trades", **fields: object) -> consume.Refused:
        """Ask for a subscription that is refused."""
        self.requests += 1
        self.send(consume.Subscribe(request=self.requests, sub=sub, channel=channel, **fields))  # type: ignore[arg-type]
        return self.expect(consume.Refused)

    def delivery(self) -> consume.Delivery:
        """The next DELIVER."""
        found = self._until(lambda reply: isinstance(reply, consume.Delivery))
        assert isinstance(found, consume.Delivery)
        return found

    def numbers(self, count: int) -> list[int]:
        """The column `n` of so many messages."""
        found: list[int] = []
        while len(found) < count:
            found += self.delivery().batch().column("n").to_pylist()
        assert len(found) == count, found
        return found

    def seqs(self, count: int) -> list[int]:
        """The seqs of so many messages."""
        found: list[int] = []
        while len(found) < count:
            found += [seq for first, last in self.delivery().head.ranges for seq in range(first, last + 1)]
        assert len(found) == count, found
        return found

    def ack(self, *seqs: int, sub: int = 1) -> consume.Settled:
        """Confirm, and wait until that is durable."""
        self.requests += 1
        ranges = tuple((seq, seq) for seq in seqs)
        return self.ask(consume.Ack(sub=sub, ranges=ranges, request=self.requests), consume.Settled)

    def ack_upto(self, seq: int, sub: int = 1) -> consume.Settled:
        """Confirm everything held up to a seq."""
        self.requests += 1
        return self.ask(consume.Ack(sub=sub, upto=seq, request=self.requests), consume.Settled)

    def nack(self, *seqs: int, sub: int = 1, delay_ms: int | None = None) -> consume.Settled:
        """Give back."""
        self.requests += 1
        ranges = tuple((seq, seq) for seq in seqs)
        message = consume.Nack(sub=sub, ranges=ranges, delay_ms=delay_ms, request=self.requests)
        return self.ask(message, consume.Settled)

    def close_sub(self, sub: int = 1) -> consume.Closed:
        """End a subscription; its place stays."""
        self.requests += 1
        return self.ask(consume.Close(request=self.requests, sub=sub), consume.Closed)

    def unsubscribe(self, sub: int = 1) -> consume.Closed:
        """End a subscription and remove its durable."""
        self.requests += 1
        return self.ask(consume.Unsubscribe(request=self.requests, sub=sub), consume.Closed)

    def configure(self, sub: int = 1, **fields: object) -> consume.Configured:
        """Change a subscription."""
        self.requests += 1
        message = consume.Configure(request=self.requests, sub=sub, **fields)  # type: ignore[arg-type]
        return self.ask(message, consume.Configured)

    def nothing_more(self) -> None:
        """What was under way has come, and no message is among it: a round trip shows it."""
        self.requests += 1
        answer = consume.Extend(sub=1, ranges=((2**40, 2**40),), request=self.requests)
        self.ask(answer, consume.Settled)
        assert not [reply for reply in self.kept if isinstance(reply, consume.Delivery)]

    def nothing_more_on(self, sub: int) -> None:
        """The subscription is over, and no message came before that."""
        self.requests += 1
        answer = consume.Extend(sub=sub, request=self.requests)
        assert self.ask(answer, consume.Refused).code == "unknown_subscription"
        assert not [reply for reply in self.kept if isinstance(reply, consume.Delivery)]

    def drop(self) -> None:
        """Die without a word."""
        self.raw.close()


__all__ = ["PATIENCE_S", "Consumer", "DeliveryServer"]
