"""Where a subscription begins: worked out once, clamped to what is there, ignored when resuming."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.testing import ManualClock
from tests.unit.delivery.harness import DeliveryServer


@pytest.mark.parametrize(
    ("fields", "begins"),
    [
        ({"start": "first"}, 1),
        ({"start": "new"}, 6),
        ({"start": "last"}, 5),
        ({"start": 3}, 3),
        ({"start": 0}, 1),
        ({"start": 99}, 6),
        ({}, 6),
        ({"durable": "d"}, 1),
        ({"durable": "d", "start": "new"}, 6),
        ({"durable": "d", "start": "last"}, 5),
        ({"durable": "d", "start": 4}, 4),
        ({"durable": "d", "start": 99}, 6),
        ({"group": "g", "start": 2}, 2),
    ],
    ids=str,
)
def test_sub_start_position_is_clamped_to_what_is_there(
    server: DeliveryServer, fields: dict[str, object], begins: int
) -> None:
    server.commit(1, 2, 3, 4, 5)
    consumer = server.consumer()
    assert consumer.subscribe(1, "trades", **fields).next_seq == begins
    server.commit(6)
    assert consumer.seqs(7 - begins) == list(range(begins, 7))


def test_sub_start_position_by_time_takes_the_first_event_at_or_after(tmp_path: Path) -> None:
    clock = ManualClock()
    with DeliveryServer(tmp_path, clock=clock) as server:
        times = []
        for number in range(3):
            clock.advance(1)
            times.append(clock.wall_ns())
            server.commit(number)
        consumer = server.consumer()
        assert consumer.subscribe(1, start_time_ns=times[1]).next_seq == 2
        assert consumer.subscribe(2, start_time_ns=times[1] + 1000).next_seq == 3
        assert consumer.subscribe(3, start_time_ns=0).next_seq == 1
        assert consumer.subscribe(4, start_time_ns=times[2] + 10**12).next_seq == 4


@pytest.mark.parametrize("start", ["first", "new", "last", 7])
@pytest.mark.parametrize("durable", ["", "d"])
def test_a_channel_without_events_starts_with_its_first_one(
    server: DeliveryServer, start: str | int, durable: str
) -> None:
    consumer = server.consumer()
    consumer.subscribe(start=start, durable=durable)
    server.commit(41, 42)
    assert consumer.numbers(2) == [41, 42]


def test_start_is_ignored_when_a_durable_resumes(server: DeliveryServer) -> None:
    server.commit(1, 2, 3)
    consumer = server.consumer()
    consumer.subscribe(durable="d", start=2)
    assert consumer.seqs(2) == [2, 3]
    consumer.ack(2)
    consumer.close_sub()
    again = consumer.subscribe(durable="d", start="first")
    assert (again.resumed, again.next_seq, again.mark) == (True, 3, 2)
    assert consumer.seqs(1) == [3]


def test_start_position_is_a_fixed_seq_from_when_a_durable_is_made(tmp_path: Path) -> None:
    with DeliveryServer(tmp_path) as server:
        server.commit(1, 2)
        consumer = server.consumer()
        assert consumer.subscribe(durable="d", start="new").next_seq == 3
        consumer.close_sub()
        server.commit(3)
    with DeliveryServer(tmp_path) as server:
        server.commit(4)
        consumer = server.consumer()
        assert consumer.subscribe(durable="d", start="new").next_seq == 3, "what came while nobody was there is owed"
        assert consumer.seqs(2) == [3, 4]


@pytest.mark.parametrize("fields", [{"start": "middle"}, {"start": -1}, {"start": 1, "start_time_ns": 1}], ids=str)
def test_start_position_failures_leave_nothing_behind(server: DeliveryServer, fields: dict[str, object]) -> None:
    server.commit(1)
    consumer = server.consumer()
    assert "start" in consumer.refused(1, "trades", durable="d", **fields).reason
    assert server.store.subscribers() == []


def test_start_counts_only_for_the_first_member_of_a_group(server: DeliveryServer) -> None:
    server.commit(1, 2, 3)
    one, two = server.consumer(), server.consumer()
    one.subscribe(group="g", start=3)
    assert one.seqs(1) == [3]
    joined = two.subscribe(group="g", start="first")
    assert (joined.resumed, joined.members) == (True, 2)
    two.nothing_more()


def test_first_is_what_retention_left(tmp_path: Path) -> None:
    settings = {"max_msgs": 4, "file_slice_max_msgs": 2, "retention.mode": "limits"}
    with DeliveryServer(tmp_path, store=settings) as server:
        for number in range(1, 11):
            server.commit(number)
        server.store.flush()
        server.until(lambda: server.store.listing.channel("trades").first_seq > 4)
        first = server.store.listing.channel("trades").first_seq
        consumer = server.consumer()
        assert consumer.subscribe(start="first").next_seq == first
        assert consumer.seqs(11 - first) == list(range(first, 11))


def test_delivery_skips_gaps_in_the_sequence(tmp_path: Path) -> None:
    """A consumer that waits while retention takes events goes on with what is left, and is told."""
    settings = {"max_msgs": 4, "file_slice_max_msgs": 2, "retention.mode": "limits"}
    with DeliveryServer(tmp_path, store=settings) as server:
        server.commit(1)
        consumer = server.consumer()
        consumer.subscribe(start="first", max_inflight=1)
        assert consumer.seqs(1) == [1]
        for number in range(2, 11):
            server.commit(number)
        server.store.flush()
        server.until(lambda: server.store.listing.channel("trades").first_seq > 4)
        first = server.store.listing.channel("trades").first_seq
        consumer.configure(max_inflight=100)
        assert consumer.event("gap").ranges == ((2, first - 1),)
        assert consumer.seqs(11 - first) == list(range(first, 11))


def test_tail_and_segments_meet_without_gap_or_repeat(server: DeliveryServer) -> None:
    consumer = server.consumer()
    consumer.subscribe(start="first", max_inflight=1_000_000, batch_rows=7)
    for number in range(0, 300, 3):
        server.store.commit("trades", pa.record_batch({"n": [number, number + 1, number + 2]}))
        if number % 60 == 0:
            server.store.flush()
    assert consumer.numbers(300) == list(range(300))
