"""What is handed out, in which order, to whom, and what each answer does."""

from __future__ import annotations

import gc

import pyarrow as pa
import pytest

from holdfast.errors import BadRequest, Closed
from holdfast.model.frame import Entry, SlotFrame
from holdfast.model.positions import Fsn
from tests.unit.store.subscribers.small_store import STORE, Bench, batch, lag, seqs, spans, take

SLOT = b"slot of producer"


@pytest.fixture
def bench() -> Bench:
    return Bench(lease_timeout="30s")


# -- order ------------------------------------------------------------------------------------------------------------


def test_oldest_segment_of_all_channels_comes_first_by_default(bench: Bench) -> None:
    for channel in ("b", "a", "b"):
        bench.publish(channel)
    reader = bench.store.subscriber("reader", ["*"])
    assert [(lease.channel, lease.first_seq) for lease in list(reader.drain())] == [("b", 1), ("a", 1), ("b", 11)]


def test_newest_first_puts_fresh_data_before_the_backlog(bench: Bench) -> None:
    bench.publish(segments=3)
    reader = bench.store.subscriber("reader", ["trades"], newest_first=True)
    take(reader).ack()
    bench.publish()
    leases = list(reader.drain())
    assert spans(leases) == [(31, 40), (11, 20), (1, 10)]


def test_lease_names_its_segment_channel_events_and_file(bench: Bench) -> None:
    bench.publish()
    lease = take(bench.store.subscriber("reader", ["trades"]))
    assert (lease.channel, lease.first_seq, lease.last_seq) == ("trades", 1, 10)
    assert lease.path == STORE / "channels" / "trades" / f"seg-{lease.segment_seq}.arrow"
    with pa.ipc.open_file(pa.py_buffer(bench.disk.read_bytes(lease.path))) as file:
        assert file.read_all().num_rows == 10
    (part,) = lease.read(columns=["n"], system=("_seq", "_channel"))
    assert part.column("_channel").to_pylist() == ["trades"] * 10
    assert part.column("n").to_pylist() == list(range(10))


def test_poll_with_max_bytes_hands_out_parts_that_add_up(bench: Bench) -> None:
    bench.publish(events=10, size=300)
    (segment,) = bench.store._catalog.segments(1)
    reader = bench.store.subscriber("reader", ["trades"])
    leases = []
    while (lease := reader.poll(0.0, max_bytes=segment.size_bytes // 3)) is not None:
        leases.append(lease)
    assert [seq for lease in leases for seq in seqs(lease)] == list(range(1, 11))
    assert [lease.last_seq - lease.first_seq + 1 for lease in leases] == [3, 3, 3, 1]
    assert spans(bench.store.subscriber("whole", ["trades"]).drain()) == [(1, 10)]


def test_poll_with_max_bytes_counts_from_the_end_when_newest_comes_first(bench: Bench) -> None:
    bench.publish(events=10, size=300)
    (segment,) = bench.store._catalog.segments(1)
    reader = bench.store.subscriber("reader", ["trades"], newest_first=True)
    lease = reader.poll(0.0, max_bytes=segment.size_bytes // 3)
    assert lease is not None
    assert (lease.first_seq, lease.last_seq) == (8, 10)


def test_poll_with_max_bytes_always_gives_at_least_one_event(bench: Bench) -> None:
    bench.publish(size=300)
    reader = bench.store.subscriber("reader", ["trades"])
    lease = reader.poll(0.0, max_bytes=1)
    assert lease is not None
    assert seqs(lease) == [1]
    with pytest.raises(BadRequest, match="max_bytes"):
        reader.poll(0.0, max_bytes=0)


def test_unsealed_events_are_not_handed_out_before_their_segment(bench: Bench) -> None:
    reader = bench.store.subscriber("reader", ["*"])
    bench.store.commit("trades", batch(3))
    assert reader.poll(0.0) is None
    bench.store.flush()
    assert spans([take(reader)]) == [(1, 3)]


# -- answers ----------------------------------------------------------------------------------------------------------


def test_acked_lease_never_comes_back(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    take(reader).ack()
    assert reader.poll(0.0) is None
    assert lag(reader).mark == 10
    bench.lose_power()
    assert bench.store.subscriber("reader", ["trades"]).poll(0.0) is None


def test_nacked_lease_comes_again_not_before_its_delay(bench: Bench) -> None:
    bench.publish(segments=2)
    reader = bench.store.subscriber("reader", ["trades"])
    take(reader).nack(delay=10)
    assert spans(list(reader.drain())) == [(11, 20)]
    bench.clock.advance(9.9)
    assert spans(list(reader.drain())) == [(11, 20)], "thrown away, so it is free; the other one is not yet"
    bench.clock.advance(0.1)
    assert spans([take(reader)]) == [(1, 10)]


def test_nack_without_delay_gives_the_lease_back_at_once(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    lease = take(reader)
    lease.nack()
    assert spans([take(reader)]) == [(1, 10)]
    with pytest.raises(BadRequest, match="negative"):
        take(bench.store.subscriber("other", ["trades"])).nack(-1)


def test_nacked_events_never_move_the_mark(bench: Bench) -> None:
    bench.publish(segments=2)
    reader = bench.store.subscriber("reader", ["trades"])
    take(reader).nack(delay=5)
    take(reader).ack()
    assert (lag(reader).mark, lag(reader).gaps) == (0, ((1, 10),))


def test_lease_thrown_away_is_given_back_at_once(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    lease = take(reader)
    assert reader.poll(0.0) is None
    del lease
    gc.collect()
    assert spans([take(reader)]) == [(1, 10)]


def test_lease_thrown_away_inside_a_cycle_is_given_back_too(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    cycle: list[object] = [take(reader)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert reader.poll(0.0) is not None


def test_expired_lease_is_handed_out_again(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    lease = take(reader)
    bench.clock.advance(29.9)
    assert reader.poll(0.0) is None
    bench.clock.advance(0.1)
    again = take(reader)
    assert spans([again]) == [(1, 10)]
    lease.nack()  # too late to matter: the events are another lease's by now
    assert reader.poll(0.0) is None
    again.ack()
    assert lag(reader).mark == 10


def test_late_ack_of_an_expired_lease_still_counts(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    lease = take(reader)
    bench.clock.advance(60)
    again = take(reader)
    lease.ack()
    assert lag(reader).mark == 10
    again.nack()
    assert reader.poll(0.0) is None, "what is confirmed is not handed out, whatever the second lease said"


def test_extend_holds_a_lease_for_another_full_time(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    lease = take(reader)
    for _ in range(3):
        bench.clock.advance(29)
        lease.extend()
        assert reader.poll(0.0) is None
    bench.clock.advance(30)
    with pytest.raises(BadRequest, match="has expired"):
        lease.extend()
    assert reader.poll(0.0) is not None


def test_lease_is_answered_only_once(bench: Bench) -> None:
    bench.publish()
    lease = take(bench.store.subscriber("reader", ["trades"]))
    lease.ack()
    for answer in (lease.ack, lease.nack, lease.extend, lambda: lease.reject("x")):
        with pytest.raises(BadRequest, match="answered before"):
            answer()


def test_drain_visits_each_lease_once_even_if_it_is_given_back(bench: Bench) -> None:
    bench.publish(segments=3)
    reader = bench.store.subscriber("reader", ["trades"])
    seen = []
    for lease in reader.drain():
        seen.append(lease.first_seq)
        if lease.first_seq == 11:
            lease.nack()
    assert seen == [1, 11, 21]
    del lease
    assert spans(list(reader.drain())) == [(1, 10), (11, 20), (21, 30)]


def test_iteration_ends_when_the_handle_is_closed(bench: Bench) -> None:
    bench.publish(segments=2)
    reader = bench.store.subscriber("reader", ["trades"])
    for lease in reader:
        lease.ack()
        if lease.last_seq == 20:
            reader.close()
    with pytest.raises(Closed):
        reader.poll(0.0)
    with pytest.raises(Closed):
        reader.ack("trades", 1)
    assert lag(bench.store.subscriber("reader", ["trades"])).mark == 20, "the subscriber keeps its place"


# -- acks of other shapes ---------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G7")
def test_acks_out_of_order_leave_gaps_that_the_mark_does_not_pass(bench: Bench) -> None:
    bench.publish(segments=4)
    reader = bench.store.subscriber("reader", ["trades"])
    leases = list(reader.drain())
    leases[2].ack()
    assert (lag(reader).mark, lag(reader).gaps) == (0, ((1, 20),))
    leases[0].ack()
    assert (lag(reader).mark, lag(reader).gaps) == (10, ((11, 20),))
    leases[1].ack()
    assert (lag(reader).mark, lag(reader).gaps) == (30, ())


def test_acks_by_event_range_and_segment_add_up(bench: Bench) -> None:
    bench.publish(segments=3)
    reader = bench.store.subscriber("reader", ["trades"])
    reader.ack("trades", 5)
    reader.ack("trades", 7, 9)
    reader.ack_many("trades", [(1, 2), (10, 12), (11, 13)])
    assert (lag(reader).mark, lag(reader).gaps) == (2, ((3, 4), (6, 6)))
    reader.ack_segment(take(bench.store.subscriber("other", ["trades"], newest_first=True)).segment_seq)
    assert lag(reader).gaps == ((3, 4), (6, 6), (14, 20))
    assert spans(list(reader.drain())) == [(3, 4), (6, 6), (14, 20)]


def test_ack_many_costs_one_record_and_one_sync(bench: Bench) -> None:
    bench.publish(events=100)
    reader = bench.store.subscriber("reader", ["trades"])
    before = bench.store.statistics()
    reader.ack_many("trades", [(seq, seq) for seq in range(1, 101, 2)])
    after = bench.store.statistics()
    assert (after.ack_records - before.ack_records, after.ack_syncs - before.ack_syncs) == (1, 1)


def test_ack_by_frame_confirms_its_events_in_every_channel_followed(bench: Bench) -> None:
    for fsn in (1, 2, 3):
        entries = [Entry("trades", batch(2)), Entry("orders", batch(3)), Entry("other", batch(1))]
        bench.store.commit_frame(entries, identity=SlotFrame(SLOT, Fsn(fsn)))
    reader = bench.store.subscriber("reader", ["trades", "orders"])
    reader.ack_frame(SLOT, 2)  # not sealed yet
    bench.store.flush()
    reader.ack_frame(SLOT, 1)
    assert (lag(reader, "trades").mark, lag(reader, "orders").mark) == (4, 6)
    assert spans(list(reader.drain())) == [(5, 6), (7, 9)]


def test_ack_of_one_event_splits_what_is_handed_out(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    lease = take(reader)
    reader.ack("trades", 4)
    lease.nack()
    assert spans(list(reader.drain())) == [(1, 3), (5, 10)]


def test_events_acked_before_they_are_sealed_are_not_handed_out(bench: Bench) -> None:
    reader = bench.store.subscriber("reader", ["*"])
    bench.store.commit("trades", batch(10))
    reader.ack("trades", 1, 4)
    bench.store.flush()
    assert spans(list(reader.drain())) == [(5, 10)]


def test_acks_again_change_nothing_and_cost_nothing(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    reader.ack("trades", 1, 10)
    records = bench.store.statistics().ack_records
    reader.ack("trades", 3, 8)
    assert bench.store.statistics().ack_records == records
    assert bench.store.subscribers()[0].outcomes["ack"] == 10


# -- sharing ----------------------------------------------------------------------------------------------------------


def test_two_handles_of_one_name_share_the_work(bench: Bench) -> None:
    bench.publish(segments=4)
    one, two = (bench.store.subscriber("pool", ["trades"]) for _ in range(2))
    leases = [take(one), take(two), take(one), take(two)]
    assert spans(leases) == [(1, 10), (11, 20), (21, 30), (31, 40)]
    assert (one.poll(0.0), two.poll(0.0)) == (None, None)
    for lease in leases:
        lease.ack()
    assert lag(one).mark == lag(two).mark == 40


def test_two_names_each_get_everything(bench: Bench) -> None:
    bench.publish(segments=2)
    for name in ("a", "b"):
        assert spans(list(bench.store.subscriber(name, ["trades"]).drain())) == [(1, 10), (11, 20)]


def test_statistics_count_leases_waiting_and_outcomes_apart(bench: Bench) -> None:
    bench.publish(segments=4)
    reader = bench.store.subscriber("reader", ["trades"])
    leases = list(reader.drain())
    leases[0].ack()
    leases[1].nack(delay=100)
    leases[2].reject("bad")
    (shown,) = bench.store.subscribers()
    assert (shown.leases, shown.waiting) == (1, 1)
    assert shown.outcomes == {"ack": 10, "nack": 10, "dropped": 0, "rejected": 10}


# -- lag --------------------------------------------------------------------------------------------------------------


def test_lag_counts_what_is_owed_in_events_bytes_and_seconds(bench: Bench) -> None:
    bench.publish(segments=2)
    bench.clock.advance(60)
    bench.publish()
    sizes = [segment.size_bytes for segment in bench.store._catalog.segments(1)]
    reader = bench.store.subscriber("reader", ["trades"])
    bench.clock.advance(5)
    assert (lag(reader).events, lag(reader).bytes, lag(reader).seconds) == (30, sum(sizes), 65.0)
    reader.ack("trades", 11, 20)
    assert (lag(reader).events, lag(reader).bytes, lag(reader).seconds) == (20, sizes[0] + sizes[2], 65.0)
    reader.ack("trades", 1, 10)
    assert (lag(reader).events, lag(reader).bytes, lag(reader).seconds) == (10, sizes[2], 5.0)
    reader.ack("trades", 26, 30)
    assert (lag(reader).events, lag(reader).bytes) == (5, sizes[2] // 2)
    reader.ack("trades", 21, 25)
    assert (lag(reader).events, lag(reader).bytes, lag(reader).seconds) == (0, 0, 0.0)


def test_lag_counts_events_that_are_not_sealed_yet(bench: Bench) -> None:
    reader = bench.store.subscriber("reader", ["*"])
    bench.store.commit("trades", batch(10))
    bench.clock.advance(2)
    assert (lag(reader).events, lag(reader).seconds) == (10, 2.0)
    assert lag(reader).bytes == 0, "bytes are those of segments"


def test_lag_of_a_wall_clock_set_back_is_not_negative(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    bench.clock.jump_wall(-3600)
    assert lag(reader).seconds == 0.0
