"""How often deliveries failed: against a counter per event, and across a restart of the store."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Store
from holdfast.store.subscribers.attempts import COUNT_MAX, Attempts
from holdfast.store.subscribers.progress import Outcome

STEPS = st.lists(st.tuples(st.booleans(), st.integers(1, 20), st.integers(0, 8)), max_size=30)


@given(STEPS)
def test_attempts_agree_with_a_counter_per_event(steps: list[tuple[bool, int, int]]) -> None:
    attempts, model = Attempts(), Counter[int]()
    for fails, first, length in steps:
        if fails:
            attempts.fail(first, first + length)
            model.update(range(first, first + length + 1))
        else:
            attempts.settle(first, first + length)
            for seq in range(first, first + length + 1):
                model.pop(seq, None)
        told = {seq: count for low, high, count in attempts.split(1, 30) for seq in range(low, high + 1)}
        assert told == {seq: model[seq] for seq in range(1, 31)}
        again = Attempts(attempts.counted())
        assert again.split(1, 30) == attempts.split(1, 30)


def test_events_that_fail_together_cost_one_range() -> None:
    attempts = Attempts()
    attempts.fail(1, 1_000_000)
    attempts.fail(1, 1_000_000)
    assert attempts.counted() == ((1, 1_000_000, 2),)


def test_counting_stops_at_its_bound() -> None:
    attempts = Attempts()
    for _ in range(COUNT_MAX + 5):
        attempts.fail(1, 1)
    assert attempts.counted() == ((1, 1, COUNT_MAX),)


def test_failed_attempts_survive_a_restart_with_and_without_a_checkpoint(tmp_path: Path) -> None:
    batch = pa.record_batch({"n": [1, 2, 3, 4]})
    with Store.open(tmp_path) as store:
        store.commit("trades", batch)
        place = store.handing.join("billing", "trades", start="first", others=0)
        store.handing.settle(place, Outcome.NACK, [(1, 3)], reason="nack").result()
        store.handing.settle(place, Outcome.NACK, [(3, 3)], reason="nack").result()
        store.handing.settle(place, Outcome.ACK, [(1, 1)]).result()
    for _ in range(2):
        with Store.open(tmp_path) as store:
            place = store.handing.join("billing", "trades", start="first", others=0)
            assert place.resumed
            assert store.handing.owed(place, 1, 4) == [(2, 2, 1), (3, 3, 2), (4, 4, 0)]
