"""What an application gets: a delivery, which is a batch of messages, and single messages of it.

    for message in consumer: handle(message.data); message.ack()
    for delivery in consumer.deliveries(): table.append(delivery.batch); delivery.ack()

A batch is turned into rows once, when the first of its messages is asked for its data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa

from holdfast.wire.consume import Delivery as WireDelivery
from holdfast.wire.consume import Range


class Desk(Protocol):
    """Where answers go."""

    def ack(self, ranges: Sequence[Range]) -> None:
        """Done with; soon durable."""

    def settle(self, kind: str, ranges: Sequence[Range], *, delay: float | None = None, reason: str = "") -> None:
        """Done with, given back or given up; durable when it returns."""


class Delivery:
    """Messages that came together. Answers of a delivery are for all of them."""

    __slots__ = ("_batch", "_desk", "_rows", "_seqs", "_wire", "attempt", "channel")

    def __init__(self, wire: WireDelivery, desk: Desk, channel: str) -> None:
        self.channel = channel
        self.attempt = wire.head.attempt
        self._wire = wire
        self._desk = desk
        self._batch: pa.RecordBatch | None = None
        self._rows: list[dict[str, Any]] | None = None
        self._seqs: Sequence[int] | None = None

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows."""
        if self._batch is None:
            self._batch = self._wire.batch()
        return self._batch

    @property
    def ranges(self) -> tuple[Range, ...]:
        """First and last seqs of the messages, both included."""
        return self._wire.head.ranges

    @property
    def seqs(self) -> Sequence[int]:
        """The seq of each row."""
        if self._seqs is None:
            spans = [range(first, last + 1) for first, last in self.ranges]
            self._seqs = spans[0] if len(spans) == 1 else list(chain.from_iterable(spans))
        return self._seqs

    @property
    def redelivered(self) -> bool:
        """Whether these messages were delivered before."""
        return self._wire.head.redelivered

    def __len__(self) -> int:
        return self._wire.head.rows

    def rows(self) -> list[dict[str, Any]]:
        """The rows as Python values."""
        if self._rows is None:
            self._rows = self.batch.to_pylist()
        return self._rows

    def messages(self) -> Iterator[Message]:
        """One by one."""
        return (Message(self, index, seq) for index, seq in enumerate(self.seqs))

    def ack(self) -> None:
        """Done with; durable soon. `NotConfirmed` without a connection."""
        self._desk.ack(self.ranges)

    def ack_sync(self) -> None:
        """Done with; durable when this returns."""
        self._desk.settle("ack", self.ranges)

    def nack(self, delay: float | None = None) -> None:
        """Again, after that many seconds; None is at once, or the subscription's `backoff`."""
        self._desk.settle("nack", self.ranges, delay=delay)

    def reject(self, reason: str = "") -> None:
        """Never again: to the dead-letter channel."""
        self._desk.settle("reject", self.ranges, reason=reason)

    def in_progress(self) -> None:
        """Still at work: the time for the answer begins anew."""
        self._desk.settle("extend", self.ranges)

    def answer(self, kind: str, seq: int, **how: Any) -> None:
        """For one message of it."""
        self._desk.settle(kind, ((seq, seq),), **how)

    def ack_one(self, seq: int) -> None:
        """For one message of it."""
        self._desk.ack(((seq, seq),))


class Message:
    """One event of a channel, as it was delivered."""

    __slots__ = ("_delivery", "_index", "seq")

    def __init__(self, delivery: Delivery, index: int, seq: int) -> None:
        self._delivery = delivery
        self._index = index
        self.seq = seq

    @property
    def data(self) -> dict[str, Any]:
        """The row: column to value."""
        return self._delivery.rows()[self._index]

    @property
    def channel(self) -> str:
        """Where it was sent to."""
        return self._delivery.channel

    @property
    def attempt(self) -> int:
        """1 for the first delivery."""
        return self._delivery.attempt

    @property
    def redelivered(self) -> bool:
        """Whether it was delivered before."""
        return self._delivery.redelivered

    def ack(self) -> None:
        """Done with; durable soon. `NotConfirmed` without a connection."""
        self._delivery.ack_one(self.seq)

    def ack_sync(self) -> None:
        """Done with; durable when this returns."""
        self._delivery.answer("ack", self.seq)

    def nack(self, delay: float | None = None) -> None:
        """Again, after that many seconds; None is at once, or the subscription's `backoff`."""
        self._delivery.answer("nack", self.seq, delay=delay)

    def reject(self, reason: str = "") -> None:
        """Never again: to the dead-letter channel."""
        self._delivery.answer("reject", self.seq, reason=reason)

    def in_progress(self) -> None:
        """Still at work: the time for the answer begins anew."""
        self._delivery.answer("extend", self.seq)

    def __repr__(self) -> str:
        return f"Message(channel={self.channel!r}, seq={self.seq}, attempt={self.attempt})"
