"""What everybody confirmed goes, at once and not only from the front; what somebody is owed stays."""

from __future__ import annotations

import errno

import pytest

from holdfast.errors import StoreFailed
from tests.unit.store.subscribers.small_store import STORE, Bench, batch, lag, read_seqs, spans, take


@pytest.mark.guarantee("G6")
def test_segment_goes_in_the_next_tick_once_the_last_subscriber_confirmed() -> None:
    bench = Bench()
    bench.publish(segments=2)
    one, two = (bench.store.subscriber(name, ["trades"]) for name in ("one", "two"))
    take(one).ack()
    bench.tick()
    assert bench.segments() == [1, 11]
    take(two).ack()
    assert bench.segments() == [1, 11]
    bench.tick()
    assert bench.segments() == [11]
    assert bench.store.statistics().retention.evictions == {"acked": 1}
    assert bench.store.losses() == []


@pytest.mark.guarantee("G6")
def test_segment_in_the_middle_goes_although_an_older_one_is_needed() -> None:
    bench = Bench()
    bench.publish(segments=5)
    readers = [bench.store.subscriber(name, ["trades"]) for name in ("one", "two")]
    for reader in readers:
        reader.ack_many("trades", [(11, 20), (31, 40)])
    bench.tick()
    assert bench.segments() == [1, 21, 41]
    assert read_seqs(bench.store) == [*range(1, 11), *range(21, 31), *range(41, 51)]
    assert lag(readers[0]).gaps == ((1, 10), (21, 30))
    bench.lose_power()
    assert spans(list(bench.store.subscriber("one", ["trades"]).drain())) == [(1, 10), (21, 30), (41, 50)]


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("reason", ["acked", "passed", "inactive"])
def test_segment_owed_to_one_who_just_came_stays_although_it_was_to_go(reason: str) -> None:
    bench = Bench()
    bench.publish(segments=3)
    channel = bench.store._channels.find("trades")
    found = list(bench.store._catalog.segments(channel.id))  # owed to nobody when they were found
    newcomer = bench.store.subscriber("newcomer", ["trades"], start=11)
    bench.store._evictor.evict(channel, found, reason=reason)
    assert bench.segments() == [11, 21]
    assert lag(newcomer).events == 20


def test_oldest_confirmed_segments_go_first() -> None:
    bench = Bench()
    bench.publish(segments=4)
    reader = bench.store.subscriber("reader", ["trades"])
    for lease in list(reader.drain())[::-1]:
        lease.ack()
    bench.disk.log.clear()
    bench.tick()
    deleted = [path.name for _, operation, path in bench.disk.log if operation == "unlink"]
    assert deleted == sorted(deleted, key=lambda name: int(name[4:-6]))
    assert len(deleted) == 4


@pytest.mark.guarantee("G6")
def test_channel_that_nobody_follows_keeps_its_segments() -> None:
    bench = Bench()
    bench.publish(segments=3)
    bench.store.subscriber("other", ["orders"])
    for _ in range(3):
        bench.tick(3600)
    bench.reopen()
    bench.tick()
    assert bench.segments() == [1, 11, 21]


def test_partly_confirmed_segment_stays_whole() -> None:
    bench = Bench()
    bench.publish(segments=2)
    reader = bench.store.subscriber("reader", ["trades"])
    reader.ack("trades", 1, 19)
    bench.tick()
    assert bench.segments() == [11]
    assert read_seqs(bench.store) == list(range(11, 21))


def test_events_before_the_start_of_all_subscribers_are_owed_to_nobody() -> None:
    bench = Bench()
    bench.publish(segments=3)
    reader = bench.store.subscriber("reader", ["trades"], start=15)
    bench.tick()
    assert bench.segments() == [11, 21]
    assert spans([take(reader)]) == [(15, 20)]


def test_leased_and_nacked_segments_are_pinned() -> None:
    bench = Bench(lease_timeout="30s")
    bench.publish(segments=2)
    reader = bench.store.subscriber("reader", ["trades"])
    held, nacked = take(reader), take(reader)
    nacked.nack(delay=5)
    bench.tick(100)
    assert bench.segments() == [1, 11]
    held.ack()
    bench.tick()
    assert bench.segments() == [11]


def test_headroom_keeps_the_newest_confirmed_segments_of_all_channels() -> None:
    bench = Bench()
    for channel in ("a", "b", "a", "b"):
        bench.publish(channel)
    size = next(bench.store._catalog.segments(1)).size_bytes
    bench.reopen(retention__steady_state_headroom=2 * size + size // 2)
    bench.publish("a")
    reader = bench.store.subscriber("reader", ["*"])
    for lease in reader.drain():
        lease.ack()
    bench.tick()
    assert (bench.segments("a"), bench.segments("b")) == ([21], [11])
    bench.publish("b")
    assert (bench.segments("a"), bench.segments("b")) == ([21], [11, 21]), "what is not confirmed takes no headroom"
    take(reader).ack()
    bench.tick()
    assert (bench.segments("a"), bench.segments("b")) == ([21], [21])


def test_grace_keeps_a_segment_for_a_time_after_it_was_confirmed() -> None:
    """For readers whose own checkpoint may be older than their acks; so the age of the events does not count."""
    bench = Bench(retention__grace="1h")
    bench.publish(segments=2)
    reader = bench.store.subscriber("reader", ["trades"])
    bench.tick(10 * 3600)
    take(reader).ack()
    bench.tick()
    for _ in range(59):
        bench.tick(60)
    assert bench.segments() == [1, 11]
    bench.tick(60)
    assert bench.segments() == [11]


def test_limits_mode_keeps_confirmed_segments_until_a_limit() -> None:
    bench = Bench(channels={"trades": {"retention.mode": "limits", "max_msgs": 15}})
    bench.publish()
    take(bench.store.subscriber("reader", ["trades"])).ack()
    bench.tick()
    assert bench.segments() == [1]
    bench.publish()
    bench.tick()
    assert read_seqs(bench.store) == list(range(6, 21))
    assert bench.store.losses() == [], "the limit took only what was confirmed"


def test_evicted_bytes_and_reasons_are_counted() -> None:
    bench = Bench()
    bench.publish(segments=2)
    sizes = [segment.size_bytes for segment in bench.store._catalog.segments(1)]
    bench.store.subscriber("reader", ["trades"]).ack("trades", 1, 20)
    bench.tick()
    retention = bench.store.statistics().retention
    assert (retention.evicted_bytes, retention.dropped_segments) == (sum(sizes), 0)
    assert bench.store.statistics().segment_bytes == 0


def test_acked_segments_found_at_start_go_in_the_first_tick() -> None:
    bench = Bench()
    bench.publish(segments=2)
    bench.store.subscriber("reader", ["trades"]).ack("trades", 1, 10)
    bench.lose_power()
    assert bench.segments() == [11]


def test_reader_that_was_there_before_reads_what_is_evicted_meanwhile() -> None:
    bench = Bench()
    bench.publish(segments=3)
    reading = bench.store.read("trades", system=("_seq",))
    first = next(reading).column("_seq").to_pylist()
    bench.store.subscriber("reader", ["trades"]).ack("trades", 1, 20)
    bench.tick()
    rest = [seq for part in reading for seq in part.column("_seq").to_pylist()]
    assert (first, rest) == (list(range(1, 11)), list(range(21, 31))), "what is gone is left out, without an error"


def test_lease_that_was_read_before_stays_readable_after_eviction() -> None:
    bench = Bench()
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    (part,) = take(reader).read()
    reader.ack("trades", 1, 10)
    bench.tick()
    assert bench.segments() == []
    assert part.column("n").to_pylist() == list(range(10))


def test_full_disk_only_delays_eviction() -> None:
    bench = Bench()
    bench.publish(segments=2)
    bench.store.subscriber("reader", ["trades"]).ack("trades", 1, 20)
    bench.disk.fail_when(lambda operation, _path: errno.ENOSPC if operation == "commit" else None)
    bench.tick()
    bench.disk.stop_failing()
    bench.tick()
    assert bench.segments() == []


@pytest.mark.guarantee("G10")
def test_file_that_cannot_be_deleted_stops_the_store() -> None:
    bench = Bench()
    bench.publish()
    bench.store.subscriber("reader", ["trades"]).ack("trades", 1, 10)
    bench.disk.fail_when(lambda operation, _path: errno.EIO if operation == "unlink" else None)
    bench.tick()
    with pytest.raises(StoreFailed, match="retention failed"):
        bench.store.commit("trades", batch(1))
    bench.disk.stop_failing()
    bench.lose_power()
    assert bench.segments() == []
    assert not [path for path in bench.disk.paths() if path.parent == STORE / "channels" / "trades"]


def test_eviction_of_many_segments_is_done_in_batches() -> None:
    bench = Bench()
    for _ in range(600):
        bench.store.commit("trades", batch(1))
        bench.store.flush()
    bench.store.subscriber("reader", ["trades"]).ack("trades", 1, 600)
    bench.disk.log.clear()
    bench.tick()
    assert bench.segments() == []
    commits = [operation for _, operation, _ in bench.disk.log if operation == "commit"]
    assert len(commits) < 10
