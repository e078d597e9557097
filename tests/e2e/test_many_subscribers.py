"""Many subscribers over many segments, on the real disk with threads: time and memory per step stay flat."""

from __future__ import annotations

import gc
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil
import pytest

from holdfast import Store
from holdfast.clock import SystemClock
from holdfast.store.subscribers.subscriber import Lease, Subscriber
from tests.unit.store.subscribers.small_store import batch

SETTINGS: dict[str, object] = {
    "channels": {"trades": {"file_slice_max_msgs": 1, "max_subs": 0}},
    "segment.max_open_duration": "1h",
    "lease_timeout": "1h",
    "retention.tick": "1h",
}
MIB = 1 << 20


def fill(store: Store, segments: int) -> None:
    """So many segments of one event."""
    rows = batch(1)
    last = None
    for _ in range(segments):
        last = store.commit_async("trades", rows)
    assert last is not None
    last.result()
    store.flush()
    assert store.statistics().segments == segments


def drain(subscriber: Subscriber) -> tuple[list[Lease], list[int]]:
    """Everything there is, and what each lease took in nanoseconds."""
    clock, leases, took = SystemClock(), [], []
    before = clock.monotonic_ns()
    for lease in subscriber.drain():
        after = clock.monotonic_ns()
        took.append(after - before)
        leases.append(lease)
        before = after
    return leases, took


def ack_out_of_order(subscriber: Subscriber, leases: list[Lease]) -> list[int]:
    """Ack every other segment, then the rest, some hundred at a time; returns what each ack took in nanoseconds."""
    clock, took = SystemClock(), []
    for part in (leases[1::2], leases[::2]):
        for start in range(0, len(part), 250):
            spans = [(lease.first_seq, lease.last_seq) for lease in part[start : start + 250]]
            before = clock.monotonic_ns()
            subscriber.ack_many("trades", spans)
            took.append(clock.monotonic_ns() - before)
    return took


def is_flat(took: list[int]) -> bool:
    """Whether the last tenth took about as long as the first: medians, so that a busy machine does not decide."""
    tenth = max(1, len(took) // 10)
    return median(took[-tenth:]) < 5 * median(took[:tenth]) + 1_000_000


def walk(directory: Path, *, subscribers: int, segments: int, rss_mib_max: int) -> None:
    """All of them read, ack, and let go of everything."""
    process = psutil.Process()
    with Store.open(directory, SETTINGS) as store:
        readers = [
            store.subscriber(f"reader-{number:03d}", ["trades"], newest_first=number % 2 == 1)
            for number in range(subscribers)
        ]
        fill(store, segments)
        gc.collect()
        before = process.memory_info().rss
        for number, reader in enumerate(readers):
            leases, took = drain(reader)
            assert len({lease.segment_seq for lease in leases}) == segments
            order = [lease.first_seq for lease in leases]
            assert all((a < b) != (number % 2 == 1) for a, b in pairwise(order))
            assert is_flat(took), f"claims became slow: {took[:3]} … {took[-3:]}"
            if number == 0:
                assert is_flat(ack_out_of_order(reader, leases))
            else:
                reader.ack("trades", 1, segments)
            del leases
            if number + 1 < subscribers:
                store._keeper.tick_safely()
                assert store.statistics().segments == segments, "the others are still owed them"
        gc.collect()
        grown = (process.memory_info().rss - before) / MIB
        assert grown < rss_mib_max, f"{grown:.0f} MiB for {subscribers} subscribers and {segments} segments"
        assert all(item.mark == segments for reader in readers for item in reader.lag())
        store._keeper.tick_safely()
        assert store.statistics().segments == 0
    with Store.open(directory, SETTINGS) as store:
        assert all(item.mark == segments for shown in store.subscribers() for item in shown.channels)


@pytest.mark.guarantee("G11")
@pytest.mark.timeout(300)
def test_twenty_subscribers_and_a_thousand_segments_stay_within_bounds(tmp_path: Path) -> None:
    walk(tmp_path / "store", subscribers=20, segments=1000, rss_mib_max=40)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.guarantee("G11")
def test_hundred_subscribers_and_ten_thousand_segments_stay_within_bounds(tmp_path: Path) -> None:
    walk(tmp_path / "store", subscribers=100, segments=10_000, rss_mib_max=150)


def test_idle_subscribers_cost_no_queries_when_others_work(tmp_path: Path) -> None:
    """A subscriber that waits is not looked at when somebody else acks: no claim, no look at the catalog."""
    with Store.open(tmp_path / "store", SETTINGS) as store:
        idle = [store.subscriber(f"idle-{number}", ["nothing.*"]) for number in range(50)]
        busy = store.subscriber("busy", ["trades"])
        fill(store, 50)
        for reader in idle:
            assert reader.poll(0.0) is None
        states = [reader._state for reader in idle]
        for lease in busy.drain():
            lease.ack()
        assert not any(state.stale or state.dirty for state in states)
