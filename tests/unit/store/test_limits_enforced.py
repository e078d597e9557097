"""The limits of channels as a store keeps them: at the limit, after it, across restarts, with thousands of channels."""

from __future__ import annotations

import threading
from pathlib import Path

import psutil
import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.errors import ChannelFull, CorruptData, InvalidConfig, LimitReached, UnknownChannel
from holdfast.model.frame import Entry, EventIds, Guid
from holdfast.store.catalog import Loss
from tests.unit.store.subscribers.small_store import SMALL, Bench, batch, lag, read_seqs, spans, take


def limited(**limits: object) -> Bench:
    """A store whose channel `trades` has these limits."""
    return Bench(channels={"trades": {key.replace("__", "."): value for key, value in limits.items()}})


def events(bench: Bench, count: int, *, size: int = 0) -> None:
    """So many frames of one event, without a flush."""
    for _ in range(count):
        bench.store.commit("trades", batch(1, size=size))


# -- how many channels ------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G11")
def test_one_channel_too_many_is_refused_and_the_others_go_on() -> None:
    bench = Bench(max_channels=2)
    bench.publish("a")
    bench.publish("b")
    with pytest.raises(LimitReached, match=r"channel 'c': max_channels is 2") as refusal:
        bench.store.commit("c", batch(1))
    assert (refusal.value.limit, refusal.value.allowed) == ("max_channels", 2)
    with pytest.raises(LimitReached):
        bench.store.commit_frame([Entry("a", batch(1)), Entry("c", batch(1))])
    assert bench.store.channels() == ["a", "b"]
    assert read_seqs(bench.store, "a") == list(range(1, 11)), "the frame was refused as a whole"
    bench.publish("a")


def test_store_with_more_channels_than_the_lowered_limit_opens_and_makes_no_more() -> None:
    bench = Bench()
    for channel in ("a", "b", "c"):
        bench.publish(channel)
    bench.reopen(max_channels=2)
    assert bench.store.channels() == ["a", "b", "c"]
    bench.publish("c")
    with pytest.raises(LimitReached):
        bench.store.commit("d", batch(1))


def test_unlimited_channels_are_asked_for_with_zero() -> None:
    bench = Bench(max_channels=0)
    for number in range(50):
        bench.store.commit(f"c{number}", batch(1))
    assert len(bench.store.channels()) == 50


# -- discard: old -----------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G6")
def test_oldest_events_go_at_max_msgs_and_the_publisher_is_accepted() -> None:
    bench = limited(max_msgs=10)
    reader = bench.store.subscriber("reader", ["trades"])
    for number in range(1, 41):
        assert bench.store.commit("trades", batch(1)).first_seq == number
        bench.tick()
        assert read_seqs(bench.store) == list(range(max(1, number - 9), number + 1))
    assert lag(reader).mark == 30
    assert bench.store.subscribers()[0].outcomes["dropped"] == 30
    assert [(loss.subscriber, loss.reason, loss.events) for loss in bench.store.losses()] == [
        ("", "limit", 30),
        ("reader", "limit", 30),
    ]


def test_floor_in_the_middle_of_a_segment_holds_for_readers_and_subscribers() -> None:
    bench = limited(max_msgs=14)
    reader = bench.store.subscriber("reader", ["trades"])
    bench.publish(events=10)
    bench.publish(events=10)
    bench.tick()
    assert bench.segments() == [1, 11], "a part of the first is left"
    assert read_seqs(bench.store) == list(range(7, 21))
    assert next(seq for _, part in bench.store.read_committed() for seq in part.column("n").to_pylist()) == 6
    assert spans(list(reader.drain())) == [(7, 10), (11, 20)]
    late = bench.store.subscriber("late", ["trades"])
    assert spans(list(late.drain())) == [(7, 10), (11, 20)]
    assert lag(late).events == 14


def test_losses_at_a_limit_are_counted_in_events_bytes_and_whole_segments() -> None:
    bench = limited(max_msgs=14)
    bench.store.subscriber("reader", ["trades"])
    bench.publish(events=10)
    bench.publish(events=10)
    sizes = [segment.size_bytes for segment in bench.store._catalog.segments(1)]
    bench.tick()
    (loss, _) = bench.store.losses()
    assert loss == Loss("trades", "", "limit", segments=0, events=6, bytes=sizes[0] * 6 // 10)
    bench.publish(events=10)
    bench.tick()
    (loss, _) = bench.store.losses()
    parts = sizes[0] * 6 // 10 + sizes[0] * 4 // 10 + sizes[1] * 6 // 10
    assert loss == Loss("trades", "", "limit", segments=1, events=16, bytes=parts)


def test_limit_takes_no_more_than_it_must_where_the_middle_is_gone() -> None:
    """Events 11..30 were confirmed and deleted; of the 30 that are left only five are too many."""
    bench = Bench()
    bench.publish(segments=5)
    reader = bench.store.subscriber("reader", ["trades"])
    reader.ack("trades", 11, 30)
    bench.tick()
    assert bench.segments() == [1, 31, 41]
    bench.reopen(channels={"trades": {"max_msgs": 25}})
    bench.tick()
    assert read_seqs(bench.store) == [*range(6, 11), *range(31, 51)]
    assert lag(bench.store.subscriber("reader", ["trades"])).mark == 5


def test_limit_counts_events_that_are_not_sealed_yet() -> None:
    bench = limited(max_msgs=10, file_slice_max_msgs=1000)
    events(bench, 25)
    bench.tick()
    assert read_seqs(bench.store) == list(range(16, 26))
    bench.store.flush()
    bench.tick()
    assert read_seqs(bench.store) == list(range(16, 26))
    events(bench, 4)
    bench.tick()
    assert read_seqs(bench.store) == list(range(20, 30))


def test_segments_that_were_in_memory_when_the_floor_passed_them_are_deleted_later() -> None:
    bench = limited(max_msgs=10, file_slice_max_msgs=5)
    bench.store._tail.cut_all()
    for _ in range(6):
        bench.store.commit("trades", batch(5))
    bench.tick()
    bench.tick()
    assert bench.segments() == [21, 26]


def test_batch_larger_than_the_limit_keeps_its_newest_events() -> None:
    bench = limited(max_msgs=10)
    bench.store.commit("trades", batch(1000))
    bench.tick()
    assert read_seqs(bench.store) == list(range(991, 1001))


def test_one_event_always_stays_at_max_bytes() -> None:
    bench = limited(max_bytes=100)
    for size in (5000, 6000):
        bench.store.commit("trades", batch(1, size=size))
        bench.store.flush()
        bench.tick()
    assert read_seqs(bench.store) == [2]


def test_oldest_segments_go_at_max_bytes() -> None:
    bench = limited(max_bytes="20KiB")
    for _ in range(20):
        bench.publish(events=1, size=2000)
        bench.tick()
    stored = bench.store.statistics().segment_bytes
    assert 12 << 10 < stored <= 20 << 10
    seqs = read_seqs(bench.store)
    assert seqs == list(range(seqs[0], 21))
    (loss,) = bench.store.losses()
    assert (loss.segments, loss.events) == (seqs[0] - 1, seqs[0] - 1)


def test_warning_is_logged_once_in_the_life_of_a_channel(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "holdfast")
    bench = limited(max_msgs=5)
    for _ in range(10):
        bench.publish(events=5)
        bench.tick()
    warnings = [record.getMessage() for record in caplog.records if "store.channel.limit" in record.getMessage()]
    assert len(warnings) == 1
    assert "channel=trades" in warnings[0]


@pytest.mark.guarantee("G6")
def test_lease_of_events_that_fall_below_the_limit_is_a_counted_loss() -> None:
    bench = limited(max_msgs=10)
    reader = bench.store.subscriber("reader", ["trades"])
    bench.publish(events=10)
    lease = take(reader)
    bench.publish(events=4)
    bench.tick()
    assert [seq for part in lease.read(system=("_seq",)) for seq in part.column("_seq").to_pylist()] == list(
        range(5, 11)
    )
    lease.ack()
    assert bench.store.subscribers()[0].outcomes == {"ack": 6, "nack": 0, "dropped": 4, "rejected": 0}


# -- discard: new -----------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G11")
def test_full_channel_that_discards_new_refuses_the_frame_as_a_whole() -> None:
    bench = limited(max_msgs=10, discard="new")
    bench.store.commit("trades", batch(8))
    with pytest.raises(ChannelFull, match="max_msgs=10") as refusal:
        bench.store.commit_frame([Entry("orders", batch(1)), Entry("trades", batch(3))])
    assert (refusal.value.channel, refusal.value.limit, refusal.value.allowed) == ("trades", "max_msgs", 10)
    assert read_seqs(bench.store) == list(range(1, 9))
    assert "orders" not in bench.store.channels() or read_seqs(bench.store, "orders") == []
    bench.store.commit("trades", batch(2))
    with pytest.raises(ChannelFull):
        bench.store.commit("trades", batch(1))
    assert bench.store.losses() == []


def test_full_channel_takes_events_again_when_confirmed_ones_are_gone() -> None:
    bench = limited(max_msgs=10, discard="new")
    reader = bench.store.subscriber("reader", ["trades"])
    bench.publish(events=10)
    with pytest.raises(ChannelFull):
        bench.store.commit("trades", batch(1))
    take(reader).ack()
    bench.tick()
    assert bench.store.commit("trades", batch(1)).first_seq == 11


def test_full_channel_counts_the_frames_of_one_group_together(tmp_path: Path) -> None:
    """Threads: many callers in one group must not pass the limit because none of them is stored yet."""
    settings = {**SMALL, "channels": {"trades": {"max_msgs": 10, "discard": "new"}}}
    with Store.open(tmp_path / "store", settings) as store:
        gate, answers = threading.Barrier(32), list[object]()

        def commit() -> None:
            gate.wait()
            try:
                answers.append(store.commit("trades", batch(1)))
            except ChannelFull as refusal:
                answers.append(refusal)

        threads = [threading.Thread(target=commit) for _ in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sum(isinstance(answer, ChannelFull) for answer in answers) == 22
        assert read_seqs(store) == list(range(1, 11))


def test_entries_of_one_frame_count_together() -> None:
    bench = limited(max_msgs=10, discard="new")
    with pytest.raises(ChannelFull):
        bench.store.commit_frame([Entry("trades", batch(6)), Entry("trades", batch(6))])
    bench.store.commit_frame([Entry("trades", batch(5)), Entry("trades", batch(5))])


def test_full_channel_refuses_by_bytes_too() -> None:
    bench = limited(max_bytes="10KiB", discard="new", file_slice_max_msgs=100)
    for _ in range(3):
        bench.store.commit("trades", batch(1, size=1000))
    with pytest.raises(ChannelFull, match="max_bytes=10240"):
        bench.store.commit("trades", batch(8, size=1000))
    bench.store.flush()
    with pytest.raises(ChannelFull, match="max_bytes=10240"):
        bench.store.commit("trades", batch(8, size=1000))
    assert read_seqs(bench.store) == [1, 2, 3]


@pytest.mark.guarantee("G3")
def test_full_channel_still_answers_repeats_of_what_it_has() -> None:
    bench = limited(max_msgs=3, discard="new")
    rows = pa.record_batch({"id": ["a", "b", "c"]})
    bench.store.commit("trades", rows, identity=EventIds("id"))
    again = bench.store.commit("trades", rows, identity=EventIds("id"))
    assert (again.duplicate, again.duplicate_events) == (True, 3)
    bench.reopen()
    assert bench.store.commit("trades", rows, identity=EventIds("id")).duplicate
    with pytest.raises(ChannelFull):
        bench.store.commit("trades", pa.record_batch({"id": ["c", "d"]}), identity=EventIds("id"))
    guid = Guid(b"g" * 16)
    with pytest.raises(ChannelFull):
        bench.store.commit(
            "trades", batch(1).rename_columns(["id"]).cast(pa.schema([("id", pa.string())])), identity=guid
        )


# -- what limits mean -------------------------------------------------------------------------------------------------


def test_explicit_zero_is_unlimited_and_what_is_omitted_is_inherited() -> None:
    bench = Bench(max_msgs=5, channels={"log.>": {"max_msgs": 0}, "log.eu": {"discard": "old"}, "few": {"max_msgs": 2}})
    for channel in ("plain", "log.us", "log.eu", "few"):
        bench.publish(channel, events=8)
    bench.tick()
    assert {channel: len(read_seqs(bench.store, channel)) for channel in bench.store.channels()} == {
        "plain": 5, "log.us": 8, "log.eu": 8, "few": 2,
    }  # fmt: skip


@pytest.mark.parametrize("key", ["max_msgs", "max_bytes", "max_age", "max_subs", "max_inactivity"])
def test_negative_limits_are_refused_with_their_place(key: str) -> None:
    with pytest.raises(InvalidConfig, match=key):
        Bench(**{key: -1})
    with pytest.raises(InvalidConfig, match=rf"channels\.trades\.{key}"):
        limited(**{key: -1})


@pytest.mark.guarantee("G6")
def test_lowered_limit_trims_at_start_and_a_raised_one_brings_nothing_back() -> None:
    bench = Bench()
    bench.store.subscriber("reader", ["trades"])
    bench.publish(segments=3)
    bench.reopen(channels={"trades": {"max_msgs": 12}})
    assert read_seqs(bench.store) == list(range(19, 31)), "retroactive, without waiting for a tick"
    assert bench.segments() == [11, 21], "the file still holds some that are gone"
    for settings in ({"max_msgs": 25}, {"max_msgs": 0}, {}):
        bench.reopen(channels={"trades": settings})
        bench.tick()
        assert read_seqs(bench.store) == list(range(19, 31))
        assert spans(list(bench.store.subscriber("reader", ["trades"]).drain())) == [(19, 20), (21, 30)]
    bench.lose_power()
    assert read_seqs(bench.store) == list(range(19, 31))
    assert [loss.events for loss in bench.store.losses()] == [18, 18]


def test_raised_limit_counts_only_what_can_still_be_seen() -> None:
    bench = limited(max_msgs=12)
    bench.publish(segments=3)
    bench.tick()
    bench.reopen(channels={"trades": {"max_msgs": 20}})
    bench.publish(events=8)
    bench.tick()
    assert read_seqs(bench.store) == list(range(19, 39)), "12 and 8 are 20: none of them has to go"
    bench.publish(events=1)
    bench.tick()
    assert read_seqs(bench.store) == list(range(20, 40))


def test_limits_of_a_weak_log_do_not_count_numbers_that_were_skipped() -> None:
    limits = {"max_msgs": 10, "file_slice_max_msgs": 1000}
    bench = Bench(wal__flush="interval", wal__flush_interval="1h", channels={"trades": limits})
    reader = bench.store.subscriber("reader", ["trades"])
    bench.publish(events=5)
    bench.store.commit("trades", batch(2))
    bench.lose_power()
    assert bench.store.recovery.skipped_numbers > 0
    reader = bench.store.subscriber("reader", ["trades"])
    assert lag(reader).events == 5, "numbers that were skipped are owed to nobody"
    first = bench.store.commit("trades", batch(1)).first_seq
    assert first > 1_000_000
    bench.tick(5)
    assert read_seqs(bench.store) == [1, 2, 3, 4, 5, first]
    for lease in reader.drain():
        lease.ack()
    assert (lag(reader).mark, lag(reader).gaps) == (first, ())


# -- slices -----------------------------------------------------------------------------------------------------------


def test_slices_are_cut_by_events() -> None:
    bench = limited(file_slice_max_msgs=4)
    events(bench, 10)
    assert bench.segments() == [1, 5]
    bench.store.flush()
    assert bench.segments() == [1, 5, 9]


def test_slices_are_cut_by_bytes() -> None:
    bench = Bench(segment__target_size="64KiB", channels={"trades": {"file_slice_max_bytes": "4KiB"}})
    events(bench, 9, size=1000)
    assert len(bench.segments()) >= 2
    bench.store.commit("plain", batch(9, size=1000))
    with pytest.raises(StopIteration):
        next(bench.store._catalog.segments(bench.store._channels.find("plain").id))


def test_slices_are_cut_by_age() -> None:
    bench = Bench(segment__max_open_duration="1h", channels={"trades": {"file_slice_max_age": "10s"}})
    events(bench, 3)
    bench.store.commit("plain", batch(1))
    bench.clock.advance(9.9)
    events(bench, 1)
    assert bench.segments() == []
    bench.clock.advance(0.1)
    events(bench, 1)
    assert bench.segments() == [1]
    assert bench.store.statistics().segments == 1, "the other channel waits for its own time"


def test_slices_are_a_quarter_of_the_limit_when_only_the_limit_is_set() -> None:
    bench = limited(max_msgs=40)
    events(bench, 40)
    assert bench.segments() == [1, 11, 21, 31]


# -- inactivity -------------------------------------------------------------------------------------------------------


def test_channel_that_nobody_writes_to_or_is_owed_is_retired() -> None:
    bench = limited(max_inactivity="1h")
    bench.publish()
    bench.publish("other")
    bench.tick(3599)
    assert bench.store.channels() == ["other", "trades"]
    bench.tick(1)
    assert bench.store.channels() == ["other"]
    with pytest.raises(UnknownChannel):
        bench.store.read("trades")
    assert not [path for path in bench.disk.paths() if path.parent.name == "trades"]


@pytest.mark.guarantee("G6")
def test_channel_with_a_durable_subscriber_that_is_owed_events_is_never_retired() -> None:
    bench = limited(max_inactivity="1h")
    bench.publish(segments=2)
    bench.store.subscriber("offline", ["trades"]).ack("trades", 1, 19)
    bench.reopen()
    bench.tick(100 * 3600)
    bench.tick(100 * 3600)
    assert read_seqs(bench.store)[-1] == 20
    bench.store.subscriber("offline", ["trades"]).ack("trades", 20)
    bench.tick()
    assert bench.store.channels() == []


def test_retired_channel_comes_back_with_its_numbers() -> None:
    bench = limited(max_inactivity="1h")
    reader = bench.store.subscriber("reader", ["*"])
    bench.publish()
    take(reader).ack()
    bench.tick(3600)
    assert bench.store.channels() == []
    late = bench.store.subscriber("late", ["trades"])
    assert bench.store.commit("trades", batch(2)).first_seq == 11
    bench.store.flush()
    assert read_seqs(bench.store) == [11, 12]
    for subscriber in (reader, late):
        assert spans([take(subscriber)]) == [(11, 12)]
    assert lag(late).mark == 10, "what was gone before it came is no hole"
    bench.tick(3600)
    bench.reopen()
    bench.tick(7200)
    bench.publish()
    assert read_seqs(bench.store)[-1] == 22


@pytest.mark.guarantee("G1")
def test_channel_with_an_event_on_its_way_to_the_log_is_not_retired() -> None:
    bench = limited(max_inactivity="1h")
    bench.publish()
    channel = bench.store._channels.find("trades")
    bench.clock.advance(3600)
    channel.next_seq += 1  # as the committer does before it writes, with a disk that takes very long
    bench.store._keeper.tick()
    assert read_seqs(bench.store) == list(range(1, 11))
    channel.next_seq -= 1
    bench.store._keeper.tick()
    assert bench.store.channels() == []


def test_channel_that_skipped_numbers_after_a_weak_log_is_retired_too() -> None:
    bench = limited(max_inactivity="1h")
    bench.reopen(wal__flush="interval")
    bench.publish()
    bench.lose_power()
    assert bench.store._channels.find("trades").next_seq > 11
    bench.tick(3600)
    bench.tick(1)
    assert bench.store.channels() == []


def test_retired_channel_stays_retired_after_a_restart() -> None:
    bench = limited(max_inactivity="1h")
    bench.publish()
    bench.tick(3600)
    for restart in (bench.reopen, bench.lose_power):
        assert restart().channels() == []
    assert bench.store.commit("trades", batch(1)).first_seq == 11


def test_retired_channel_does_not_count_against_max_channels() -> None:
    bench = Bench(max_channels=1, max_inactivity="1h")
    bench.publish("a")
    bench.tick(3600)
    bench.publish("b")
    with pytest.raises(LimitReached):
        bench.store.commit("a", batch(1))


@pytest.mark.guarantee("G6")
def test_fresh_events_found_in_the_log_at_start_count_as_activity() -> None:
    """Power loss right after a commit: the channel has no segment yet, and must not be taken for an old one."""
    bench = limited(max_inactivity="1h")
    bench.store.commit("trades", batch(5))
    bench.lose_power()
    bench.tick(10)
    assert read_seqs(bench.store) == [1, 2, 3, 4, 5]
    bench.tick(3600)
    assert bench.store.channels() == []


def test_deleted_events_of_an_inactive_channel_are_counted() -> None:
    bench = limited(max_inactivity="1h")
    bench.publish()
    bench.tick(3601)
    (loss,) = bench.store.losses()
    assert (loss.channel, loss.subscriber, loss.reason, loss.events) == ("trades", "", "inactive", 10)


# -- many channels ----------------------------------------------------------------------------------------------------


def write_and_read_many(directory: Path, channels: int, *, fds_limit: int) -> None:
    """Write to so many channels, read all of them back after a restart, and watch the descriptors."""
    process = psutil.Process()
    settings = {"fds_limit": fds_limit, "max_channels": 0, "segment.max_open_duration": "1h"}
    before = process.num_fds()
    most = before
    with Store.open(directory, settings) as store:
        for start in range(0, channels, 1000):
            for number in range(start, min(start + 1000, channels)):
                store.commit_async(f"channel-{number:05d}", batch(1)).add_done_callback(lambda done: done.result())
            most = max(most, process.num_fds())
        store.flush()
    with Store.open(directory, settings) as store:
        reader = store.subscriber("reader", ["*"])
        rows = 0
        for number, lease in enumerate(reader.drain()):
            rows += sum(part.num_rows for part in lease.read())
            if number % 500 == 0:
                most = max(most, process.num_fds())
        most = max(most, process.num_fds())
        assert (len(store.channels()), rows) == (channels, channels)
    assert most - before <= fds_limit + 32, "soft: the log, the catalog, the lock, and what is being opened"


@pytest.mark.guarantee("G11")
@pytest.mark.timeout(300)
def test_two_thousand_channels_work_with_few_descriptors(tmp_path: Path) -> None:
    write_and_read_many(tmp_path / "store", 2000, fds_limit=50)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.guarantee("G11")
def test_ten_thousand_channels_work_with_two_hundred_descriptors(tmp_path: Path) -> None:
    write_and_read_many(tmp_path / "store", 10_000, fds_limit=200)


# -- parallel recovery ------------------------------------------------------------------------------------------------


def many_channels(tmp_path: Path, channels: int = 40) -> Path:
    """A store of so many channels, closed."""
    with Store.open(tmp_path / "store", SMALL) as store:
        for number in range(channels):
            store.commit(f"channel-{number:02d}", batch(3))
        store.flush()
    return tmp_path / "store"


@pytest.mark.parametrize("workers", [1, 4, 64])
def test_channels_checked_in_parallel_give_the_same_store(tmp_path: Path, workers: int) -> None:
    directory = many_channels(tmp_path)
    leftover = directory / "channels" / "channel-07" / "seg-99.tmp"
    leftover.write_bytes(b"unfinished")
    with Store.open(directory, {**SMALL, "parallel_recovery": workers}) as store:
        assert store.recovery.removed == (leftover,)
        assert store.recovery.segments == 40
        assert all(read_seqs(store, channel) == [1, 2, 3] for channel in store.channels())


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("workers", [1, 8])
def test_first_damaged_channel_is_told_when_several_are_checked_at_once(tmp_path: Path, workers: int) -> None:
    directory = many_channels(tmp_path)
    for number in (31, 5, 17):
        (segment,) = (directory / "channels" / f"channel-{number:02d}").glob("*.arrow")
        segment.write_bytes(segment.read_bytes()[:-1])
    with pytest.raises(CorruptData, match="channel-05") as refusal:
        Store.open(directory, {**SMALL, "parallel_recovery": workers})
    assert "the catalog says" in refusal.value.reason
