"""Waiting for work: notified when a segment is published, in threads and in asyncio; never longer than asked."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.errors import Closed
from holdfast.store.subscribers.subscriber import Lease, Subscriber
from tests.unit.store.subscribers.small_store import SMALL, batch

LONG_S = 60.0  # far beyond what the test waits for; a test that needs it hangs, and is reported


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store", {**SMALL, "segment.max_open_duration": "1h"}) as opened:
        yield opened


class Waiter(threading.Thread):
    """Polls once, and keeps what it got. Says before that it is about to."""

    def __init__(self, subscriber: Subscriber, timeout: float | None) -> None:
        super().__init__(daemon=True)
        self.subscriber, self.timeout = subscriber, timeout
        self.started = threading.Event()
        self.answer: Lease | Exception | None = None
        self.start()
        assert self.started.wait(LONG_S)

    def run(self) -> None:
        self.started.set()
        try:
            self.answer = self.subscriber.poll(self.timeout)
        except Closed as error:
            self.answer = error

    def result(self) -> Lease | Exception | None:
        """What it got."""
        self.join(LONG_S)
        assert not self.is_alive()
        return self.answer


def publish(store: Store, channel: str = "trades") -> None:
    """One segment."""
    store.commit(channel, batch(10))
    store.flush()


def test_publishing_wakes_a_thread_that_waits_for_ever(store: Store) -> None:
    waiter = Waiter(store.subscriber("reader", ["trades"]), None)
    publish(store)
    lease = waiter.result()
    assert isinstance(lease, Lease)
    assert (lease.first_seq, lease.last_seq) == (1, 10)


def test_publishing_wakes_all_subscribers_each_with_its_own_lease(store: Store) -> None:
    waiters = [Waiter(store.subscriber(f"reader-{n}", ["*"]), LONG_S) for n in range(8)]
    publish(store)
    assert all(isinstance(waiter.result(), Lease) for waiter in waiters)


def test_one_of_two_handles_of_a_name_gets_the_lease(store: Store) -> None:
    waiters = [Waiter(store.subscriber("pool", ["*"]), None) for _ in range(2)]
    publish(store)
    publish(store)
    spans = sorted(
        (lease.first_seq, lease.last_seq) for waiter in waiters if isinstance(lease := waiter.result(), Lease)
    )
    assert spans == [(1, 10), (11, 20)]


def test_nack_wakes_another_handle_that_waits(store: Store) -> None:
    publish(store)
    lease = store.subscriber("pool", ["*"]).poll(0.0)
    assert lease is not None
    waiter = Waiter(store.subscriber("pool", ["*"]), None)
    lease.nack()
    assert isinstance(waiter.result(), Lease)


def test_timeout_is_not_cut_short_by_news_for_others(store: Store) -> None:
    reader, other = store.subscriber("reader", ["orders"]), store.subscriber("other", ["trades"])
    waiter = Waiter(reader, LONG_S)
    for _ in range(100):  # each of these wakes the waiter
        publish(store)
        lease = other.poll(0.0)
        assert lease is not None
        lease.ack()
    assert waiter.is_alive(), "it gave up early"
    publish(store, "orders")
    assert isinstance(waiter.result(), Lease)


def test_poll_gives_up_after_its_timeout(store: Store) -> None:
    assert store.subscriber("reader", ["trades"]).poll(0.02) is None


def test_closing_the_handle_wakes_its_waiter(store: Store) -> None:
    reader = store.subscriber("reader", ["trades"])
    waiter = Waiter(reader, None)
    reader.close()
    assert isinstance(waiter.result(), Closed)


def test_removing_the_subscriber_wakes_its_waiter(store: Store) -> None:
    waiter = Waiter(store.subscriber("reader", ["trades"]), None)
    store.deregister("reader")
    assert isinstance(waiter.result(), Closed)


def test_closing_the_store_wakes_everybody_who_waits(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", SMALL)
    waiters = [Waiter(store.subscriber(name, ["trades"]), None) for name in ("a", "b")]
    store.close()
    assert all(isinstance(waiter.result(), Closed) for waiter in waiters)


def test_iteration_ends_when_the_store_is_closed(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", SMALL)
    seen: list[int] = []
    ready = threading.Event()

    def read() -> None:
        for lease in store.subscriber("reader", ["trades"]):
            seen.append(lease.first_seq)
            lease.ack()
            ready.set()

    thread = threading.Thread(target=read)
    thread.start()
    publish(store)
    assert ready.wait(LONG_S)
    store.close()
    thread.join(LONG_S)
    assert seen == [1]


def test_publishing_wakes_a_task_that_waits_in_asyncio(store: Store) -> None:
    async def read() -> tuple[int, int]:
        reader = store.subscriber("reader", ["trades"])
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(reader.next())
            await asyncio.to_thread(publish, store)
            lease = await waiting
        await asyncio.to_thread(lease.ack)
        return lease.first_seq, lease.last_seq

    assert asyncio.run(read()) == (1, 10)
    (shown,) = store.subscribers()
    assert shown.channels[0].mark == 10


def test_asyncio_iteration_ends_when_the_handle_is_closed(store: Store) -> None:
    async def read() -> list[int]:
        reader = store.subscriber("reader", ["trades"])
        seen = []
        async for lease in reader:
            seen.append(lease.first_seq)
            lease.ack()
            if len(seen) == 2:
                reader.close()
        return seen

    publish(store)
    publish(store)
    assert asyncio.run(read()) == [1, 11]


def test_waiting_in_asyncio_does_not_block_the_loop(store: Store) -> None:
    async def wait_and_work() -> int:
        reader = store.subscriber("reader", ["trades"])
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(reader.next())
            turns = 0
            while turns < 100:
                await asyncio.wait([waiting], timeout=0)
                turns += 1
            waiting.cancel()
        return turns

    assert asyncio.run(wait_and_work()) == 100
    publish(store)
    assert store.subscriber("reader", ["trades"]).poll(0.0) is not None, "nothing was taken by the one that gave up"


def test_event_loop_that_is_gone_disturbs_nobody(store: Store) -> None:
    reader = store.subscriber("reader", ["trades"])
    loop = asyncio.new_event_loop()
    stop = store._desk.registry.add_listener(lambda: loop.call_soon_threadsafe(print))
    loop.close()
    publish(store)
    assert reader.poll(0.0) is not None
    stop()


def test_many_threads_ack_everything_exactly_once(store: Store) -> None:
    for _ in range(40):
        publish(store)
    seen: list[int] = []
    lock = threading.Lock()

    def work() -> None:
        for lease in store.subscriber("pool", ["trades"]).drain():
            lease.ack()
            with lock:
                seen.append(lease.first_seq)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG_S)
    assert sorted(seen) == list(range(1, 400, 10))
    assert store.subscribers()[0].outcomes["ack"] == 400
    assert store.statistics().ack_syncs <= 40 + 1


def test_segment_is_there_for_a_poll_once_flush_has_returned(store: Store) -> None:
    reader = store.subscriber("reader", ["trades"])
    for _ in range(100):
        publish(store)
        lease = reader.poll(0.0)
        assert lease is not None, "flush came back before the subscriber was told"
        lease.ack()


def test_lease_thrown_away_is_the_next_one_while_real_time_passes(store: Store) -> None:
    reader = store.subscriber("reader", ["trades"])
    for _ in range(2):
        publish(store)
    lease = reader.poll(0.0)
    assert lease is not None
    first = lease.first_seq
    del lease
    gc.collect()
    again = reader.poll(0.0)
    assert again is not None
    assert again.first_seq == first
