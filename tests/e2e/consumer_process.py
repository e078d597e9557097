"""A consumer that is killed: takes deliveries, answers them in every way, and says what it got and was told.

Each line on standard output is a JSON array: what, when, then

| what | when it is said | then |
|---|---|---|
| `mark` | the subscription stands | the mark |
| `got` | a delivery came | session, whether the server said "again", ranges of seqs, ids |
| `acks` | before an acknowledgement is sent | ranges |
| `told` | the acknowledgement is durable | ranges |

Times are of the monotonic clock, which all processes of a machine share, so lines of many processes have one order. A
session is a connection; -1 if it cannot be told of which one a delivery was.
"""

from __future__ import annotations

import json
import random
import sys

from holdfast import Consumer
from holdfast.clock import SystemClock
from holdfast.consumer.messages import Delivery
from holdfast.errors import NotConfirmed

RUN_EVENTS_MAX = 1_000_000_000
"""Tells the events of runs apart."""
IDLE_S = 0.3
"""How long answers are held back for a next delivery."""
_CLOCK = SystemClock()


def tell(what: str, *values: object) -> None:
    """One write for one line, so that a kill leaves whole lines."""
    sys.stdout.write(json.dumps([what, _CLOCK.monotonic_ns(), *values]) + "\n")
    sys.stdout.flush()


def main(conf: str, channel: str, durable: str, group: str, seed: int) -> None:
    """Consume until the end of the process."""
    chance = random.Random(seed)
    with _open(conf, channel, durable, group) as consumer:
        reader = _Reader(consumer, tells_marks=not group)
        held: list[Delivery] = []
        while True:
            delivery = reader.take(IDLE_S)
            how = chance.choice(["sync", "sync", "soon", "late"]) if delivery is not None else "sync"
            held += [delivery] if delivery is not None else []
            if how != "late":
                for one in held:
                    reader.answer(one, waits=how == "sync")
                held = []


def finish(conf: str, channel: str, durable: str, group: str, last_seq: int) -> None:
    """Consume until the mark is at the end of the channel."""
    mark = 0
    while mark < last_seq:
        with _open(conf, channel, durable, group) as consumer:
            reader = _Reader(consumer, tells_marks=not group)
            while (delivery := reader.take(IDLE_S)) is not None:
                reader.answer(delivery, waits=True)
            mark = consumer.mark  # of when it was opened; 0 if there is no connection yet


def _open(conf: str, channel: str, durable: str, group: str) -> Consumer:
    keys = {"group": group} if group else {"replace": True}  # the server may not have seen yet that the last one died
    return Consumer.from_conf(
        conf, channel=channel, durable=durable, columns=("run", "n"), max_inflight=100, batch_rows=20, **keys
    )


class _Reader:
    def __init__(self, consumer: Consumer, *, tells_marks: bool) -> None:
        self._consumer = consumer
        self._tells_marks = tells_marks
        self._mark = 0

    def take(self, timeout_s: float) -> Delivery | None:
        before = self._consumer.statistics().reconnects
        delivery = next(self._consumer.deliveries(timeout_s), None)
        if self._tells_marks and self._consumer.mark != self._mark:
            self._mark = self._consumer.mark
            tell("mark", self._mark)
        if delivery is not None:
            session = before if self._consumer.statistics().reconnects == before else -1
            runs, numbers = (delivery.batch.column(name).to_pylist() for name in ("run", "n"))
            ids = [run * RUN_EVENTS_MAX + n for run, n in zip(runs, numbers, strict=True)]
            tell("got", session, delivery.redelivered, delivery.ranges, ids)
        return delivery

    @staticmethod
    def answer(delivery: Delivery, *, waits: bool) -> None:
        tell("acks", delivery.ranges)
        try:
            if waits:
                delivery.ack_sync()
                tell("told", delivery.ranges)
            else:
                delivery.ack()
        except NotConfirmed:
            return  # it comes again
