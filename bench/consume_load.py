"""Consumers of the delivery benchmark, in a process of their own: a `Load` as JSON in, `Figures` as JSON out.

Messages of a durable that begins with the first event are read to the last and confirmed; the time ends when the last
confirmation is on the server's disk. The tail is timed one event after the other: from before the producer's flush
until the consumer has the row.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import msgspec

from bench.workload import CHANNEL, events
from holdfast import Consumer, Sender

PATIENCE_S = 30.0
FETCH = 500
"""What nats-py asks for at a time; more did not make it faster."""


class Load(msgspec.Struct, frozen=True):
    """What to do where."""

    kind: str
    addr: str
    events: int
    consumers: int = 1
    name: str = ""
    batch_rows: int = 1024


class Figures(msgspec.Struct, frozen=True):
    """What all consumers together reached."""

    events: int
    bytes: int
    seconds: float
    latencies_s: tuple[float, ...] = ()


def fill(load: Load) -> Figures:
    """Store the events, for a subscriber that keeps them from being deleted."""
    with _consumer(load, durable="keeper"):
        pass
    batch = events(1000)
    started = time.perf_counter()
    with Sender.from_conf(_conf(load)) as sender:
        for _ in range(load.events // 1000):
            sender.send(CHANNEL, batch)
        sender.flush()
        assert sender.drain(PATIENCE_S)
    return Figures(load.events, load.events // 1000 * batch.nbytes, time.perf_counter() - started)


def messages(load: Load) -> Figures:
    """One by one: look at the row, acknowledge it."""
    with _consumer(load, durable=load.name, max_inflight=20_000) as consumer:
        started = time.perf_counter()
        for number, message in enumerate(consumer, start=1):
            assert message.data
            if number == load.events:
                message.ack_sync()
                break
            message.ack()
        return Figures(load.events, 0, time.perf_counter() - started)


def batches(load: Load) -> Figures:
    """A record batch at a time, in as many consumers as asked for; each gets everything."""

    def work(number: int) -> tuple[int, int]:
        got, size = 0, 0
        limits = {"max_inflight": 4 * load.batch_rows, "batch_rows": load.batch_rows}
        with _consumer(load, durable=f"{load.name}-{number}", **limits) as consumer:
            for delivery in consumer.deliveries(PATIENCE_S):
                got += len(delivery)
                size += int(delivery.batch.nbytes)
                if got >= load.events:
                    delivery.ack_sync()
                    return got, size
                delivery.ack()
        raise TimeoutError(f"{got} of {load.events} events came")

    started = time.perf_counter()
    with ThreadPoolExecutor(load.consumers) as pool:
        found = list(pool.map(work, range(load.consumers)))
    return Figures(sum(got for got, _ in found), sum(size for _, size in found), time.perf_counter() - started)


def tail(load: Load) -> Figures:
    """One event after the other, from the producer's flush to the consumer."""
    row, latencies = events(1), []
    with _consumer(load, start="new") as consumer, Sender.from_conf(_conf(load)) as sender:
        for _ in range(load.events):
            started = time.perf_counter()
            sender.send(CHANNEL, row)
            sender.flush()
            assert consumer.next(PATIENCE_S) is not None
            latencies.append(time.perf_counter() - started)
    return Figures(load.events, 0, sum(latencies), tuple(latencies))


def jetstream(load: Load) -> Figures:
    """The same messages by nats-py: publish, then fetch and acknowledge each."""
    return asyncio.run(_fetch_and_ack(load))


async def _fetch_and_ack(load: Load) -> Figures:
    nats = import_module("nats")  # of the group `bench`
    client = await nats.connect(f"nats://{load.addr}")
    stream = client.jetstream()
    await stream.add_stream(name="bench", subjects=["bench"])
    body = bytes(128)
    for _ in range(load.events):
        await client.publish("bench", body)  # without waiting: storing is not what is measured
    await client.flush()
    reader = await stream.pull_subscribe("bench", durable="reader")
    got = 0
    started = time.perf_counter()
    while got < load.events:
        found = await reader.fetch(FETCH, timeout=PATIENCE_S)
        for message in found:
            await message.ack()
        got += len(found)
    await client.flush()
    seconds = time.perf_counter() - started
    await client.close()
    return Figures(got, got * len(body), seconds)


def _conf(load: Load) -> str:
    return f"ws::addr={load.addr};"


def _consumer(load: Load, **options: object) -> Consumer:
    return Consumer.from_conf(_conf(load), channel=CHANNEL, **options)


KINDS: dict[str, Callable[[Load], Figures]] = {
    "fill": fill,
    "messages": messages,
    "batches": batches,
    "tail": tail,
    "jetstream": jetstream,
}

if __name__ == "__main__":
    wanted = msgspec.json.decode(sys.argv[1], type=Load)
    sys.stdout.buffer.write(msgspec.json.encode(KINDS[wanted.kind](wanted)))
