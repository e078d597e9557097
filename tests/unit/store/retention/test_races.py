"""Retention beside writers, readers and newcomers, with threads on the real disk: every event has one fate.

Each test runs parts against each other that meet only in locks. What is asserted is a sum that must hold whoever was
first: accepted = confirmed + dropped + still owed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.errors import UnknownChannel
from holdfast.store.subscribers.subscriber import Subscriber
from tests.unit.store.retention.threads import together
from tests.unit.store.subscribers.small_store import SMALL, batch

LARGE = batch(5, size=3000)
CAPPED: dict[str, object] = {
    **SMALL,
    "retention.size_cap": 1200 << 10,
    "retention.size_cap_policy": "drop_oldest",
    "retention.tick": "1ms",
    "memory_limit": "128KiB",
    "ack.checkpoint_records": 20,
}
FRAMES = 150


def writer(store: Store, done: threading.Event, events: pa.RecordBatch) -> Callable[[], None]:
    """A job that commits and publishes the events so many times, and says when it is done."""

    def write() -> None:
        try:
            for _ in range(FRAMES):
                store.commit("trades", events)
            store.flush()
        finally:
            done.set()

    return write


def ack_all(reader: Subscriber) -> None:
    """Answer all there is."""
    for lease in reader.drain():
        lease.ack()


def acker(reader: Subscriber, done: threading.Event) -> Callable[[], None]:
    """A job that acks until everything was written, and once more."""

    def read() -> None:
        while not done.is_set():
            ack_all(reader)
        ack_all(reader)

    return read


@pytest.mark.guarantee("G6")
def test_each_event_is_acked_or_dropped_and_counted_as_what_it_is(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", CAPPED) as store:
        readers = [store.subscriber(name, ["trades"]) for name in ("one", "two")]
        done = threading.Event()
        one, two = (acker(reader, done) for reader in readers)
        together(writer(store, done, LARGE), one, one, two)
        for shown in store.subscribers():
            (lag,) = shown.channels
            outcomes = shown.outcomes
            assert outcomes["ack"] + outcomes["dropped"] + lag.events == 5 * FRAMES
            assert (lag.events, lag.gaps, lag.mark) == (0, (), 5 * FRAMES)
            lost = sum(loss.events for loss in store.losses() if loss.subscriber == shown.name)
            assert lost == outcomes["dropped"]
        before = store.losses()
    with Store.open(tmp_path / "store", CAPPED) as store:
        assert store.losses() == before


def finished(reader: Subscriber) -> tuple[int, tuple[tuple[int, int], ...], int]:
    """Mark, gaps and what is owed after it has acked all there is."""
    ack_all(reader)
    (lag,) = reader.lag()
    return lag.mark, lag.gaps, lag.events


@pytest.mark.guarantee("G7")
def test_newcomers_during_evictions_are_never_stuck_at_a_hole(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", CAPPED) as store:
        done = threading.Event()

        def register() -> None:
            number = 0
            while not done.is_set():
                store.subscriber(f"late-{number}", ["trades"], start="first")
                number += 1
                if number > 20:
                    store.deregister(f"late-{number - 20}")

        def read() -> None:
            while not done.is_set():
                ack_all(store.subscriber("quick", ["trades"]))

        together(writer(store, done, LARGE), register, read)
        for shown in store.subscribers():
            assert finished(store.subscriber(shown.name, ["trades"])) == (5 * FRAMES, (), 0), shown.name


@pytest.mark.guarantee("G6")
def test_channel_written_to_while_it_is_retired_loses_nothing_uncounted(tmp_path: Path) -> None:
    settings = {**SMALL, "retention.tick": "1ms", "max_inactivity": "1ms", "segment.max_open_duration": "10ms"}
    with Store.open(tmp_path / "store", settings) as store:
        seqs = [store.commit("trades", batch(1)).first_seq for _ in range(FRAMES)]
        assert seqs == list(range(1, FRAMES + 1))
        store.flush()
        lost = sum(loss.events for loss in store.losses())
        while lost < FRAMES:  # the last of it goes as well, soon
            store.subscribers()
            lost = sum(loss.events for loss in store.losses())
        assert lost == FRAMES
        assert store.commit("trades", batch(1)).first_seq == FRAMES + 1


@pytest.mark.guarantee("G6")
def test_readers_beside_evictions_see_events_in_order_without_an_error(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", CAPPED) as store:
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                try:
                    parts = store.read("trades", columns=["n"], system=("_seq",))
                except UnknownChannel:
                    continue
                seqs = [seq for part in parts for seq in part.column("_seq").to_pylist()]
                assert seqs == sorted(set(seqs))

        together(writer(store, done, LARGE), read)


@pytest.mark.guarantee("G6")
def test_limit_beside_a_writer_and_a_reader_counts_each_event_once(tmp_path: Path) -> None:
    settings = {**SMALL, "retention.tick": "1ms", "channels": {"trades": {"max_msgs": 20}}}
    with Store.open(tmp_path / "store", settings) as store:
        reader = store.subscriber("reader", ["trades"])
        done = threading.Event()
        together(writer(store, done, batch(3)), acker(reader, done))
        (shown,) = store.subscribers()
        assert shown.outcomes["ack"] + shown.outcomes["dropped"] == 3 * FRAMES
        assert sum(loss.events for loss in store.losses() if loss.subscriber) == shown.outcomes["dropped"]
        assert shown.channels[0].mark == 3 * FRAMES
