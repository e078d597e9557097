"""In a `limits` channel an event goes when all the partitions it belongs to have advanced past it, or at a limit."""

from __future__ import annotations

import pytest

from holdfast.errors import UnknownChannel
from tests.unit.store.subscribers.small_store import Bench, batch


@pytest.fixture
def bench() -> Bench:
    """Three segments: two events in a, two in a and b, two in b and none."""
    made = Bench(channels={"events": {"retention.mode": "limits"}})
    for first, second in ((("a",), ("a",)), (("a", "b"), ("b", "a")), (("b",), ())):
        made.store.commit("events", batch(1), partitions=first)
        made.store.commit("events", batch(1), partitions=second)
        made.store.flush()
    return made


def left(bench: Bench) -> list[int]:
    """First seqs of the segments that are left after a tick."""
    bench.tick()
    return bench.segments("events")


def test_channel_keeps_everything_while_no_partition_advances(bench: Bench) -> None:
    assert left(bench) == [1, 3, 5]


def test_segment_goes_when_its_only_partition_has_passed_it(bench: Bench) -> None:
    bench.store.advance_partition("events", "a", 2)
    assert left(bench) == [1, 3, 5]
    bench.store.advance_partition("events", "a", 3)
    assert left(bench) == [3, 5]
    assert bench.store.statistics().retention.evictions == {"passed": 1}


@pytest.mark.guarantee("G6")
def test_event_of_two_partitions_goes_only_when_both_have_passed_it(bench: Bench) -> None:
    bench.store.advance_partition("events", "a", 100)
    assert left(bench) == [3, 5]
    bench.store.advance_partition("events", "b", 5)
    assert left(bench) == [5]
    assert bench.store.losses() == []


def test_event_without_a_partition_belongs_to_the_empty_one(bench: Bench) -> None:
    for partition in ("a", "b"):
        bench.store.advance_partition("events", partition, 100)
    assert left(bench) == [5]
    bench.store.advance_partition("events", "", 7)
    assert left(bench) == []


def test_segment_in_the_middle_goes_too(bench: Bench) -> None:
    bench.store.commit("events", batch(1), partitions=("c",))
    bench.store.flush()
    bench.store.advance_partition("events", "c", 8)
    assert left(bench) == [1, 3, 5]


def test_partitions_never_move_back_not_across_restarts_either(bench: Bench) -> None:
    bench.store.advance_partition("events", "a", 3)
    bench.store.advance_partition("events", "a", 1)
    bench.lose_power()
    bench.store.advance_partition("events", "a", 2)
    assert left(bench) == [3, 5]
    bench.store.advance_partition("events", "b", 100)
    bench.store.advance_partition("events", "a", 5)
    assert left(bench) == [5]


@pytest.mark.guarantee("G6")
def test_what_a_subscriber_is_owed_stays_whatever_partitions_say(bench: Bench) -> None:
    reader = bench.store.subscriber("reader", ["events"])
    for partition in ("a", "b", ""):
        bench.store.advance_partition("events", partition, 100)
    reader.ack("events", 3, 4)
    assert left(bench) == [1, 5]
    reader.ack("events", 1, 6)
    assert left(bench) == []


def test_limit_takes_events_that_partitions_still_need(bench: Bench) -> None:
    bench.reopen(channels={"events": {"retention.mode": "limits", "max_msgs": 3}})
    assert left(bench) == [3, 5]
    assert bench.store._channels.find("events").first_seq == 4


def test_partitions_of_an_acked_channel_delete_nothing() -> None:
    bench = Bench()
    bench.store.commit("events", batch(1), partitions=("a",))
    bench.store.flush()
    bench.store.advance_partition("events", "a", 100)
    assert left(bench) == [1]


def test_partition_of_an_unknown_channel_is_refused(bench: Bench) -> None:
    with pytest.raises(UnknownChannel):
        bench.store.advance_partition("nowhere", "a", 1)
