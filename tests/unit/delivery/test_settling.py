"""Outcomes on their way to the store: many with one round, a full disk, and who is told when."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from holdfast import Store
from holdfast.delivery.settling import Settler
from holdfast.errors import DiskFull, HoldfastError
from holdfast.store.subscribers.acklog import OutcomeRecord
from holdfast.store.subscribers.handing import HandingPort, Place
from holdfast.store.subscribers.progress import Outcome
from tests.unit.store.subscribers.small_store import batch

PATIENCE_S = 20.0


async def until(condition: asyncio.Event) -> None:
    await asyncio.wait_for(condition.wait(), PATIENCE_S)


def opened(store: Store) -> Place:
    """A durable's place in a channel of ten events."""
    store.commit("trades", batch(10))
    return store.handing.join("d", "trades", start="first", others=0)


def test_answers_that_come_meanwhile_share_the_next_round(tmp_path: Path) -> None:
    async def scene(store: Store) -> int:
        place = opened(store)
        settler = Settler(store.handing, on_failure=lambda error: None)
        before = store.statistics().ack_records
        done = asyncio.Event()
        for seq in range(1, 11):
            settler.ack(place, [(seq, seq)])
        settler.after(place, lambda _error: done.set())
        assert settler.is_pending(place)
        await until(done)
        settler.close()
        assert store.handing.mark(place) == 10
        return store.statistics().ack_records - before

    with Store.open(tmp_path) as store:
        assert asyncio.run(scene(store)) <= 2


def test_whoever_asks_with_nothing_pending_is_told_at_once(tmp_path: Path) -> None:
    async def scene(store: Store) -> list[HoldfastError | None]:
        place = opened(store)
        settler = Settler(store.handing, on_failure=lambda error: None)
        told: list[HoldfastError | None] = []
        settler.after(place, told.append)
        settler.close()
        return told

    with Store.open(tmp_path) as store:
        assert asyncio.run(scene(store)) == [None]


class FullAtFirst:
    """A ledger whose disk is full for the first outcomes."""

    def __init__(self, port: HandingPort, refusals: int) -> None:
        self._port = port
        self.refusals = refusals

    def settle(
        self, place: Place, outcome: Outcome, spans: Sequence[tuple[int, int]], *, reason: str = ""
    ) -> Future[list[OutcomeRecord]]:
        if not self.refusals:
            return self._port.settle(place, outcome, spans, reason=reason)
        self.refusals -= 1
        refused: Future[list[OutcomeRecord]] = Future()
        refused.set_exception(DiskFull(file=Path("ack.log"), reason="no space"))
        return refused


def test_a_full_disk_costs_time_and_no_outcome(tmp_path: Path) -> None:
    async def scene(store: Store) -> None:
        place = opened(store)
        ledger = FullAtFirst(store.handing, refusals=1)
        settler = Settler(ledger, on_failure=lambda error: None)
        done = asyncio.Event()
        settler.ack(place, [(1, 4)], lambda _error: done.set())
        settler.ack(place, [(6, 7)])
        settler.fail(place, [(5, 5)], reason="nack")
        await until(done)
        settler.after(place, lambda _error: done.set())
        settler.close()
        assert ledger.refusals == 0
        assert store.handing.owed(place, 1, 8) == [(5, 5, 1), (8, 8, 0)]

    with Store.open(tmp_path) as store:
        asyncio.run(scene(store))


def test_outcomes_of_a_removed_subscriber_are_told_as_failed(tmp_path: Path) -> None:
    async def scene(store: Store) -> list[HoldfastError | None]:
        place = opened(store)
        settler = Settler(store.handing, on_failure=lambda error: None)
        store.deregister("d")
        told: list[HoldfastError | None] = []
        done = asyncio.Event()

        def tell(error: HoldfastError | None) -> None:
            told.append(error)
            done.set()

        settler.ack(place, [(1, 4)], tell)
        await until(done)
        settler.close()
        return told

    with Store.open(tmp_path) as store:
        (error,) = asyncio.run(scene(store))
        assert error is None or "d" in str(error)
