"""A durable is put at another place while it is consumed: who is told what, and which answers count."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.errors import RetryLater
from holdfast.store.subscribers.moves import Move
from holdfast.wire import consume
from tests.unit.delivery.harness import PATIENCE_S, DeliveryServer


def reset(
    server: DeliveryServer, to: int | str, *, channel: str | None = None, meanwhile: Callable[[], None] = lambda: None
) -> list[Move]:
    """As the admin server does it; `meanwhile` is done while nobody may consume by the name."""

    async def change() -> list[Move]:
        async with server.delivery.vacated("d", channel):
            await asyncio.to_thread(meanwhile)
            return await asyncio.to_thread(server.store.handing.reset, "d", channel, to=to)

    return asyncio.run_coroutine_threadsafe(change(), server.loop).result(PATIENCE_S)


def test_consumers_of_a_durable_that_is_reset_are_told_and_begin_anew(server: DeliveryServer) -> None:
    server.commit(1, 2, 3)
    consumer = server.consumer()
    consumer.subscribe(durable="d")
    consumer.seqs(3)
    consumer.nack(3)
    assert consumer.seqs(1) == [3]
    consumer.send(consume.Ack(sub=1, ranges=((1, 2),)))
    (move,) = reset(server, "first")
    ended = consumer.event("ended")
    assert (ended.sub, ended.code) == (1, "unavailable")
    assert "'d'" in ended.reason
    assert (move.mark, move.again) == (0, 2)
    assert consumer.subscribe(durable="d").next_seq == 1
    head = consumer.delivery().head
    assert (head.ranges, head.attempt, head.redelivered) == (((1, 3),), 1, False)
    consumer.ack(1, 2, 3)
    assert server.mark("d") == 3


def test_answers_that_come_after_a_reset_are_of_no_subscription(server: DeliveryServer) -> None:
    server.commit(1, 2, 3)
    consumer = server.consumer()
    consumer.subscribe(durable="d")
    consumer.seqs(3)
    reset(server, 3)
    consumer.event("ended")
    consumer.requests += 1
    late = consume.Ack(sub=1, ranges=((3, 3),), request=consumer.requests)
    assert consumer.ask(late, consume.Refused).code == "unknown_subscription"
    assert (server.mark("d"), server.gaps("d")) == (2, [])


def test_nobody_comes_in_while_a_durable_is_being_reset(server: DeliveryServer) -> None:
    server.commit(1, 2, 3)
    consumer, other = server.consumer(), server.consumer()
    consumer.subscribe(durable="d")
    refused: list[consume.Refused] = []

    def try_to_come() -> None:
        refused.append(other.refused(durable="d"))
        other.subscribe(2, durable="another")

    reset(server, "new", meanwhile=try_to_come)
    assert [(item.code, item.retry) for item in refused] == [("unavailable", True)]
    server.commit(4)
    late = server.consumer()
    late.subscribe(durable="d")
    assert late.seqs(1) == [4]


def test_a_second_reset_at_the_same_time_may_be_tried_later(server: DeliveryServer) -> None:
    server.commit(1)
    server.consumer().subscribe(durable="d")
    errors: list[str] = []

    def again() -> None:
        try:
            reset(server, "first")
        except RetryLater as error:
            errors.append(str(error))

    reset(server, "first", meanwhile=again)
    assert len(errors) == 1
    reset(server, "first")


def test_other_channels_of_a_durable_go_on_when_one_is_reset(server: DeliveryServer) -> None:
    server.commit(1, 2)
    server.commit(10, 20, channel="orders")
    consumer = server.consumer()
    consumer.subscribe(1, "trades", durable="d")
    consumer.subscribe(2, "orders", durable="d")
    consumer.seqs(4)
    reset(server, "new", channel="trades")
    assert consumer.event("ended").sub == 1
    consumer.ack(1, 2, sub=2)
    assert (server.mark("d"), server.mark("d", "orders")) == (2, 2)
