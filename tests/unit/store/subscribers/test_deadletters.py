"""Rejected events are kept in `<channel>.dead`, once, with why, by whom and where they were."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.errors import Backpressure, InvalidName
from holdfast.testing import PowerCut
from tests.unit.store.subscribers.small_store import Bench, batch, lag, spans, take


def letters(bench: Bench, channel: str = "trades.dead") -> list[dict[str, object]]:
    """All dead letters, as rows."""
    return [row for part in bench.store.read(channel) for row in part.to_pylist()]


def test_rejected_events_are_kept_with_reason_subscriber_and_original_ids() -> None:
    bench = Bench()
    bench.publish("other", events=2)
    bench.publish(events=3)
    reader = bench.store.subscriber("reader", ["trades"])
    bench.clock.advance(60)
    take(reader).reject("schema of the target")
    rows = letters(bench)
    assert [row["seq"] for row in rows] == [1, 2, 3]
    assert [row["committed_id"] for row in rows] == [3, 4, 5]
    assert [row["event"] for row in rows] == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert {row["reason"] for row in rows} == {"schema of the target"}
    assert {(row["subscriber"], row["channel"]) for row in rows} == {("reader", "trades")}
    assert [row["dead_id"] for row in rows] == ["reader/trades/1", "reader/trades/2", "reader/trades/3"]
    (late,) = {row["rejected_at"] - row["ingested_at"] for row in rows}  # type: ignore[operator]
    assert late.total_seconds() == 60


def test_rejected_events_count_as_done_and_are_never_handed_out_again() -> None:
    bench = Bench()
    bench.publish(segments=2)
    reader = bench.store.subscriber("reader", ["trades"])
    take(reader).reject("bad")
    assert lag(reader).mark == 10
    assert spans(list(reader.drain())) == [(11, 20)]
    bench.tick()
    assert bench.segments() == [11], "its segment may go"


def test_only_events_still_owed_are_buried() -> None:
    bench = Bench()
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    lease = take(reader)
    reader.ack("trades", 3, 8)
    lease.reject("bad")
    assert [row["seq"] for row in letters(bench)] == [1, 2, 9, 10]


@pytest.mark.guarantee("G3")
def test_crash_between_burial_and_outcome_leaves_each_letter_once() -> None:
    """Power loss at every call of a rejection; then it is rejected again."""
    for call in range(1, 1000):
        bench = Bench()
        bench.publish(events=5)
        lease = take(bench.store.subscriber("reader", ["trades"]))
        bench.disk.cut_at(bench.disk.calls + call)
        try:
            lease.reject("bad")
            break  # the power went after the last call
        except PowerCut:
            pass
        for seed in (0, 1, call):
            left = Bench.__new__(Bench)
            left.clock, left.settings, left.disk = bench.clock, bench.settings, bench.disk.after_power_cut(seed)
            left.open()
            for again in left.store.subscriber("reader", ["trades"]).drain():
                again.reject("bad")
            assert [row["seq"] for row in letters(left)] == [1, 2, 3, 4, 5], f"cut at call {call}, state {seed}"
    assert call > 4, "a burial and an outcome are at least two writes and two syncs"


def test_two_subscribers_that_reject_one_event_leave_two_letters() -> None:
    bench = Bench()
    bench.publish(events=1)
    for name in ("a", "b"):
        take(bench.store.subscriber(name, ["trades"])).reject("bad")
    assert [row["dead_id"] for row in letters(bench)] == ["a/trades/1", "b/trades/1"]


def test_dead_letters_are_read_by_a_subscriber_that_names_them() -> None:
    bench = Bench()
    bench.publish()
    everyone = bench.store.subscriber("everyone", ["*"])
    morgue = bench.store.subscriber("morgue", ["*.dead"])
    take(everyone).reject("bad")
    bench.store.flush()
    assert list(everyone.drain()) == []
    assert [lease.channel for lease in list(morgue.drain())] == ["trades.dead"]


def test_rejected_dead_letters_are_not_buried_again() -> None:
    bench = Bench()
    bench.publish()
    take(bench.store.subscriber("reader", ["trades"])).reject("bad")
    bench.store.flush()
    morgue = bench.store.subscriber("morgue", ["*.dead"])
    take(morgue).reject("worse")
    assert lag(morgue, "trades.dead").mark == 10
    assert bench.store.channels() == ["trades", "trades.dead"]


def test_events_of_many_types_are_all_buried() -> None:
    """A channel that keeps any schema: what does not fit the letters that are there is kept as Arrow bytes."""
    bench = Bench(channels={"trades": {"schema": "any"}})
    for column in (pa.array([1, 2]), pa.array(["a", "b"]), pa.array([{"x": 1}, {"x": 2}])):
        bench.store.commit("trades", pa.record_batch({"value": column}))
        bench.store.flush()
    for lease in bench.store.subscriber("reader", ["trades"]).drain():
        lease.reject("bad")
    found: list[object] = []
    for row in letters(bench):
        if row["event_ipc"] is None:
            found.append(row["event"]["value"])  # type: ignore[index]
        else:
            with pa.ipc.open_stream(row["event_ipc"]) as stream:
                found += stream.read_all().column("value").to_pylist()
    assert found == [1, 2, "a", "b", {"x": 1}, {"x": 2}]


def test_columns_that_begin_with_an_underscore_are_buried_too() -> None:
    bench = Bench()
    bench.store.commit("trades", pa.record_batch({"_id": pa.array([7]), "n": pa.array([1])}))
    bench.store.flush()
    take(bench.store.subscriber("reader", ["trades"])).reject("bad")
    assert [row["event"] for row in letters(bench)] == [{"_id": 7, "n": 1}]


def test_lease_larger_than_a_frame_is_buried_in_parts() -> None:
    bench = Bench(**{"segment__target_size": "64KiB", "memory_limit": "1MiB"})
    for _ in range(3):
        bench.store.commit("trades", batch(25, size=1000))
    bench.store.flush()
    lease = take(bench.store.subscriber("reader", ["trades"]))
    assert (lease.first_seq, lease.last_seq) == (1, 75)
    lease.reject("bad")
    assert [row["seq"] for row in letters(bench)] == list(range(1, 76))


@pytest.mark.guarantee("G11")
def test_rejecting_at_the_size_cap_makes_room_instead_of_waiting_for_it() -> None:
    """The letters are stored beyond the cap: the events they stand for can go only after them."""
    bench = Bench(retention__size_cap="1152KiB", commit_timeout="0s", memory_limit="128KiB")
    reader = bench.store.subscriber("reader", ["*"])
    while True:
        try:
            bench.store.commit("trades", batch(10, size=3000))
        except Backpressure:
            break
    bench.store.flush()
    used = bench.store._tail.charged_bytes()
    for number, lease in enumerate(reader.drain()):
        lease.reject("bad") if number < 3 else lease.ack()
    bench.tick()
    assert bench.store._tail.charged_bytes() < used // 2
    bench.store.commit("trades", batch(10, size=3000))
    assert len(letters(bench)) == 30


def test_channel_whose_dead_name_would_be_too_long_says_so() -> None:
    bench = Bench()
    name = "c" * 128
    bench.publish(name)
    lease = take(bench.store.subscriber("reader", [name]))
    with pytest.raises(InvalidName, match="133 characters"):
        lease.reject("bad")
    lease.ack()


def test_rejection_without_rows_left_changes_nothing() -> None:
    bench = Bench()
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    lease = take(reader)
    reader.ack("trades", 1, 10)
    lease.reject("bad")
    assert bench.store.channels() == ["trades"]
