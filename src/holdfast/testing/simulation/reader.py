"""A consumer: the real session of a subscription, and an application that confirms, puts off, forgets and dies.

What is real: `ConsumerCore`, `Redialing`, the messages. What is not: `Consumer` and `Link` (threads, sockets).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from holdfast.consumer.core import (
    Answered,
    ConsumerCore,
    Effect,
    Halt,
    Hand,
    Hangup,
    Ready,
    Restored,
    Send,
)
from holdfast.consumer.options import Options
from holdfast.consumer.redialing import Redialing
from holdfast.sender.conf import SenderConfig
from holdfast.sender.core import DialFailure, Outcome
from holdfast.testing.history import Acked, Delivered, Joined, Mark, Settled
from holdfast.testing.simulation.network import Call, End, Host
from holdfast.testing.simulation.scene import Client, Scene
from holdfast.wire import consume
from holdfast.wire.consume import Delivery, Range

CONNECTION = SenderConfig.from_conf(
    "ws::addr=server:9000;reconnect_initial_backoff_millis=50;reconnect_max_backoff_millis=1000;"
    "initial_connect_retry=async;"
)


class Taste(NamedTuple):
    """What a reader reads, and how."""

    number: int
    channel: str
    durable: str
    group: str = ""
    ack_wait_s: float = 2.0
    max_inflight: int = 20
    batch_rows: int = 7
    lapses: float = 0.1
    """How much it never answers."""
    nacks: float = 0.1


class Reader(Client):
    """One member of one durable subscription."""

    def __init__(self, scene: Scene, server: Host, taste: Taste) -> None:
        super().__init__(f"reader-{taste.number}", scene)
        self.taste = taste
        self._server = server
        self.core: ConsumerCore
        self._redialing: Redialing
        self._session = 0
        self._asked: dict[int, tuple[Range, ...]] = {}
        scene.happened(self.name, Joined(taste.durable, taste.channel, 1))

    def start(self) -> None:
        taste = self.taste
        options = Options(
            channel=taste.channel,
            durable=taste.durable,
            group=taste.group,
            ack_wait=taste.ack_wait_s,
            max_inflight=taste.max_inflight,
            batch_rows=taste.batch_rows,
        )
        self.core = ConsumerCore(options, client=self.name)
        self._redialing = Redialing(CONNECTION, clock=self.scene.clock, chance=self.chance)
        self.started()
        self.later(0.0, self._step)

    def forget(self) -> None:
        super().forget()
        self._asked = {}

    # --- the connection --------------------------------------------------------------------------------------------

    def _step(self) -> None:
        if self._redialing.next_host() is None:
            self.later(self._redialing.pause_s, self._step)
        else:
            self.scene.network.dial(self, self._server, Call(consume.PATH, {}, self._opened, self._failed))

    def _failed(self, reason: str) -> None:
        self._redialing.failed(0, DialFailure(Outcome.UNREACHABLE, reason))
        self.later(0.0, self._step)

    def _opened(self, end: End, _headers: Mapping[str, str]) -> None:
        self.hold(end)
        self._redialing.opened(0)
        self._session = next(self.scene.sessions)
        self._apply(self.core.opened())

    def lost(self, _code: int | None, reason: str) -> None:
        self._redialing.closed(reason)
        self._apply(self.core.lost(reason))
        if self.core.state in {"closed", "halted"}:
            self.kill()
        else:
            self.later(0.0, self._step)

    def received(self, message: bytes) -> None:
        self._apply(self.core.received(message))

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                if self.end is not None:
                    self.end.send(effect.message)
            elif isinstance(effect, Hand):
                self._take(effect.delivery)
            elif isinstance(effect, Answered):
                self._answered(effect)
            elif isinstance(effect, Ready | Restored):
                mark = Mark(self.taste.durable, self.taste.channel, effect.mark, sent_at=self.said_at)
                self.scene.happened(self.name, mark)
            elif isinstance(effect, Hangup):
                self._redialing.wait()
                self.hang_up(effect.reason)
            elif isinstance(effect, Halt):
                self.scene.note(self.name, f"halted: {effect.error}")
                self.hang_up("halted")

    # --- the application -------------------------------------------------------------------------------------------

    def _take(self, delivery: Delivery) -> None:
        head, numbers = delivery.head, delivery.batch().column("n").to_pylist()
        seqs = [seq for first, last in head.ranges for seq in range(first, last + 1)]
        taste = self.taste
        for seq, number in zip(seqs, numbers, strict=True):
            delivered = Delivered(
                taste.durable,
                taste.channel,
                seq,
                number,
                again=head.redelivered,
                session=self._session,
                sent_at=self.said_at,
            )
            self.scene.happened(self.name, delivered)
        ranges = head.ranges
        if len(seqs) > 1 and self.chance.random() < 0.3:  # only some, out of order
            ranges = tuple((seq, seq) for seq in self.chance.sample(seqs, len(seqs) // 2))
            self.later(self.chance.random(), self._answer, tuple((seq, seq) for seq in seqs), self.end)
        self.later(self.chance.random() * 0.2, self._answer, ranges, self.end)

    def _answer(self, ranges: tuple[Range, ...], end: End | None) -> None:
        if end is not self.end or self.core.state != "open":
            return
        fate, trouble = self.chance.random(), self.scene.trouble
        if trouble and fate < self.taste.lapses:
            return
        number = self.core.number()
        if trouble and fate < self.taste.lapses + self.taste.nacks:
            delay_ms = self.chance.choice((None, 0, 300))
            self._apply(self.core.answer(consume.Nack(sub=1, ranges=ranges, delay_ms=delay_ms, request=number)))
            return
        taste = self.taste
        self.scene.happened(self.name, *(Acked(taste.durable, taste.channel, *span) for span in ranges))
        self._asked[number] = ranges
        self._apply(self.core.answer(consume.Ack(sub=1, ranges=ranges, request=number)))

    def _answered(self, effect: Answered) -> None:
        ranges = self._asked.pop(effect.request, ())
        if isinstance(effect.reply, consume.Settled) and effect.reply.stale == 0:
            taste = self.taste
            settled = (Settled(taste.durable, taste.channel, *span, sent_at=self.said_at) for span in ranges)
            self.scene.happened(self.name, *settled)
