"""The acknowledgement log: what it promises about outcomes, checkpoints, rotation, replay, damage and full disks."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.disk.appendlog import LogFile, log_numbers, log_path, read_log_file
from holdfast.errors import DiskFull, LimitReached, StoreFailed
from holdfast.store.subscribers import desk as desk_module
from holdfast.store.subscribers.acklog import OutcomeRecord, decode_outcomes
from holdfast.store.subscribers.progress import Outcome
from tests.unit.store.subscribers.small_store import SMALL, STORE, Bench, batch, lag, spans, take

ACKS = STORE / "ack"


def log_files(bench: Bench) -> list[LogFile]:
    """The files of the log, as they are on the disk."""
    numbers = log_numbers(bench.disk, ACKS, "ack")
    return [read_log_file(bench.disk, log_path(ACKS, "ack", number), last=number == numbers[-1]) for number in numbers]


def outcomes(bench: Bench) -> list[OutcomeRecord]:
    """All outcomes in the log, oldest first."""
    return [outcome for file in log_files(bench) for record in file.records for outcome in decode_outcomes(record)]


def replayed(bench: Bench) -> int:
    """Outcomes that a start would read again."""
    cursor = bench.store._catalog.cursor("ack") or 0
    records = [record for file in log_files(bench) for record in file.records if record.position >= cursor]
    return sum(len(decode_outcomes(record)) for record in records)


# -- what is written --------------------------------------------------------------------------------------------------


def test_log_holds_time_channel_subscriber_range_segment_and_outcome() -> None:
    bench = Bench()
    bench.publish("orders")
    bench.publish("trades")
    reader = bench.store.subscriber("reader", ["trades"])
    lease = take(reader)
    bench.clock.advance(5)
    lease.ack()
    (record,) = outcomes(bench)
    assert record == OutcomeRecord(bench.clock.wall_ns(), 1, 2, Outcome.ACK, lease.segment_seq, ((1, 10),))


def test_all_four_outcomes_stay_distinguishable_in_the_log() -> None:
    bench = Bench(channels={"trades": {"max_msgs": 60}})
    bench.publish(segments=4)
    reader = bench.store.subscriber("reader", ["trades"])
    leases = list(reader.drain())
    leases[0].ack()
    leases[1].nack(delay=9)
    leases[2].reject("no good")
    bench.publish(events=50)
    bench.tick()
    shown = [(Outcome(item.outcome).name, item.ranges, item.reason) for item in outcomes(bench) if item.subscriber_id]
    assert shown == [
        ("ACK", ((1, 10),), ""),
        ("NACK", ((11, 20),), ""),
        ("REJECTED", ((21, 30),), "no good"),
        ("DROPPED", ((11, 20),), "limit"),
    ]
    assert bench.store.subscribers()[0].outcomes == {"ack": 10, "nack": 10, "dropped": 10, "rejected": 10}


@pytest.mark.guarantee("G7")
def test_ack_is_on_disk_when_the_call_has_returned() -> None:
    bench = Bench()
    bench.publish(segments=3)
    reader = bench.store.subscriber("reader", ["trades"])
    for lease in list(reader.drain())[::2]:
        lease.ack()
    bench.lose_power(seed=0)  # nothing is left but what was synced
    again = bench.store.subscriber("reader", ["trades"])
    assert (lag(again).mark, lag(again).gaps) == (10, ((11, 20),))


def test_reason_of_a_rejection_is_cut_to_a_bound() -> None:
    bench = Bench()
    bench.publish()
    take(bench.store.subscriber("reader", ["trades"])).reject("é" * 5000)
    assert outcomes(bench)[-1].reason == "é" * 1000


def test_answer_with_very_many_ranges_is_split_into_bounded_records() -> None:
    bench = Bench(**{"frame.max_size": "32KiB"})
    for _ in range(21):
        bench.publish(events=1000)
    reader = bench.store.subscriber("reader", ["trades"])
    reader.ack_many("trades", [(seq, seq) for seq in range(1, 21_001, 2)])
    assert [len(item.ranges) for item in outcomes(bench)] == [10_000, 500]
    bench.lose_power()
    assert lag(bench.store.subscriber("reader", ["trades"])).events == 10_500


@pytest.mark.guarantee("G11")
def test_gap_set_is_bounded_and_filling_gaps_is_always_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(desk_module, "GAPS_MAX", 10)
    bench = Bench()
    bench.publish(events=100)
    reader = bench.store.subscriber("reader", ["trades"])
    reader.ack_many("trades", [(seq, seq) for seq in range(2, 22, 2)])
    with pytest.raises(LimitReached, match="10 ranges confirmed"):
        reader.ack("trades", 50)
    reader.ack("trades", 21)  # touches a range that is there
    reader.ack("trades", 3)  # joins two
    reader.ack("trades", 1)  # at the mark
    assert lag(reader).mark == 4
    reader.ack("trades", 5, 19)
    reader.ack("trades", 50)
    assert (lag(reader).mark, lag(reader).gaps) == (21, ((22, 49),))


# -- checkpoints and rotation -----------------------------------------------------------------------------------------


@pytest.mark.guarantee("G11")
def test_replay_is_bounded_by_the_number_of_records() -> None:
    bench = Bench(ack__checkpoint_records=7, ack__checkpoint_interval="1h")
    bench.publish(events=100)
    reader = bench.store.subscriber("reader", ["trades"])
    for seq in range(1, 100, 2):
        reader.ack("trades", seq)
        assert replayed(bench) <= 7
    expected = (lag(reader).mark, lag(reader).gaps)
    bench.lose_power()
    again = bench.store.subscriber("reader", ["trades"])
    assert (lag(again).mark, lag(again).gaps) == expected


def test_replay_is_bounded_by_time() -> None:
    bench = Bench(ack__checkpoint_interval="30s")
    bench.publish(events=100)
    reader = bench.store.subscriber("reader", ["trades"])
    reader.ack("trades", 1)
    bench.tick(29)
    assert replayed(bench) == 1
    bench.tick(1)
    assert replayed(bench) == 0


def test_orderly_close_leaves_nothing_to_replay() -> None:
    bench = Bench()
    bench.publish()
    take(bench.store.subscriber("reader", ["trades"])).ack()
    bench.reopen()
    assert replayed(bench) == 0
    assert bench.store.recovery.acks_cut is None


@pytest.mark.guarantee("G11")
def test_log_rotates_and_older_files_go_after_a_checkpoint() -> None:
    bench = Bench(ack__rotation_size="4KiB", ack__checkpoint_records=500, ack__checkpoint_interval="1h")
    bench.publish(events=1000)
    reader = bench.store.subscriber("reader", ["trades"])
    most = 0
    for seq in range(1, 1001):
        reader.ack("trades", seq)
        most = max(most, len(log_numbers(bench.disk, ACKS, "ack")))
    assert 2 < most < 20, "it rotates, and is trimmed at each checkpoint"
    bench.lose_power()
    assert lag(bench.store.subscriber("reader", ["trades"])).mark == 1000
    assert len(log_numbers(bench.disk, ACKS, "ack")) == 1


def test_group_of_answers_shares_one_sync(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", SMALL) as store:
        for _ in range(64):
            store.commit("trades", batch(1))
        store.flush()
        reader = store.subscriber("reader", ["trades"])
        gate = threading.Barrier(64)

        def ack(seq: int) -> None:
            gate.wait()
            reader.ack("trades", seq)

        threads = [threading.Thread(target=ack, args=(seq,)) for seq in range(1, 65)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statistics = store.statistics()
        assert statistics.ack_records == 64
        assert statistics.ack_syncs < 64
        assert store.subscribers()[0].channels[0].mark == 64


# -- disks that fail --------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G10")
def test_failed_sync_of_the_log_stops_the_store_and_nobody_is_told_yes() -> None:
    bench = Bench()
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    lease = take(reader)
    bench.disk.fail_when(lambda operation, path: errno.EIO if (operation, path.parent) == ("sync_data", ACKS) else None)
    with pytest.raises(StoreFailed):
        lease.ack()
    bench.disk.stop_failing()
    with pytest.raises(StoreFailed):
        reader.poll(0.0)
    with pytest.raises(StoreFailed):
        bench.store.commit("trades", batch(1))
    bench.lose_power()
    assert spans([take(bench.store.subscriber("reader", ["trades"]))]) == [(1, 10)]


def test_full_disk_refuses_the_ack_and_the_same_lease_can_be_acked_later() -> None:
    bench = Bench()
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    lease = take(reader)
    full = {("pwritev", ACKS), ("allocate", ACKS)}
    bench.disk.fail_when(lambda operation, path: errno.ENOSPC if (operation, path.parent) in full else None)
    for _ in range(3):
        with pytest.raises(DiskFull):
            lease.ack()
    assert lag(reader).mark == 0
    bench.disk.stop_failing()
    lease.ack()
    assert lag(reader).mark == 10
    bench.lose_power()
    assert lag(bench.store.subscriber("reader", ["trades"])).mark == 10


def test_full_disk_postpones_a_checkpoint_without_losing_it() -> None:
    bench = Bench(ack__checkpoint_records=1)
    bench.publish(segments=2)
    reader = bench.store.subscriber("reader", ["trades"])
    bench.disk.fail_when(lambda operation, _path: errno.ENOSPC if operation == "commit" else None)
    take(reader).ack()
    assert replayed(bench) == 1
    bench.disk.stop_failing()
    bench.clock.advance(1)
    take(reader).ack()
    assert replayed(bench) == 0
    bench.lose_power()
    assert lag(bench.store.subscriber("reader", ["trades"])).mark == 20


def test_catalog_that_fails_at_a_checkpoint_stops_the_store() -> None:
    bench = Bench(ack__checkpoint_records=1)
    bench.publish(segments=2)
    reader = bench.store.subscriber("reader", ["trades"])
    bench.disk.fail_when(lambda operation, _path: errno.EIO if operation == "commit" else None)
    take(reader).ack()  # this one was safe in the log before
    with pytest.raises(StoreFailed):
        reader.poll(0.0)
    bench.disk.stop_failing()
    bench.lose_power()
    assert lag(bench.store.subscriber("reader", ["trades"])).mark == 10


def test_registration_on_a_full_disk_is_refused_and_leaves_nothing() -> None:
    bench = Bench()
    bench.publish()
    bench.disk.fail_when(lambda operation, _path: errno.ENOSPC if operation == "commit" else None)
    with pytest.raises(DiskFull):
        bench.store.subscriber("reader", ["trades"])
    assert bench.store.subscribers() == []
    bench.disk.stop_failing()
    bench.store.subscriber("reader", ["trades"])
    bench.disk.fail_when(lambda operation, _path: errno.ENOSPC if operation == "commit" else None)
    with pytest.raises(DiskFull):
        bench.store.deregister("reader")
    assert [item.name for item in bench.store.subscribers()] == ["reader"]


# -- damage -----------------------------------------------------------------------------------------------------------


def damaged(bench: Bench) -> tuple[Path, bytes, int]:
    """The log file of a store that lost its power, its bytes, and how many of them were written."""
    (path,) = [path for path in bench.disk.paths() if path.parent == ACKS]
    data = bench.disk.read_bytes(path)
    return path, data, len(data.rstrip(b"\0"))


def test_damaged_log_is_set_aside_and_marks_survive_the_next_power_loss() -> None:
    bench = Bench()
    bench.publish(segments=3)
    reader = bench.store.subscriber("reader", ["trades"])
    for lease in reader.drain():
        lease.ack()
    bench.disk = bench.disk.after_power_cut(0)
    path, data, end = damaged(bench)
    flipped = bytearray(data)
    flipped[end - 100] ^= 1  # the last record but one
    bench.disk.write_bytes(path, bytes(flipped))
    bench.open()
    damage = bench.store.recovery.acks_damage
    assert damage is not None
    assert damage.file == path
    quarantined = [item for item in bench.disk.paths() if item.parent == STORE / "quarantine"]
    assert [bench.disk.read_bytes(item) for item in quarantined] == [bytes(flipped)]
    again = bench.store.subscriber("reader", ["trades"])
    mark = lag(again).mark
    assert mark < 30
    take(again).ack()
    bench.lose_power()
    assert bench.store.recovery.acks_damage is None
    assert lag(bench.store.subscriber("reader", ["trades"])).mark == mark + 10


def test_missing_log_costs_what_came_after_the_last_checkpoint() -> None:
    bench = Bench(ack__checkpoint_records=2)
    bench.publish(segments=5)
    reader = bench.store.subscriber("reader", ["trades"])
    for lease in reader.drain():
        lease.ack()
    bench.disk = bench.disk.after_power_cut(0)
    for path in [path for path in bench.disk.paths() if path.parent == ACKS]:
        bench.disk.unlink(path)
        bench.disk.sync_dir(ACKS)
    bench.open()
    assert bench.store.recovery.acks_damage is not None
    assert lag(bench.store.subscriber("reader", ["trades"])).mark == 40


def test_events_dropped_before_the_log_was_damaged_are_no_hole() -> None:
    bench = Bench(channels={"trades": {"max_msgs": 10}}, ack__checkpoint_interval="1h")
    bench.store.subscriber("reader", ["trades"])
    bench.publish(segments=3)
    bench.tick()
    assert bench.segments() == [21]
    bench.disk = bench.disk.after_power_cut(0)
    path, data, _ = damaged(bench)
    bench.disk.write_bytes(path, data[:200] + bytes([data[200] ^ 1]) + data[201:])
    bench.open()
    assert bench.store.recovery.acks_damage is not None
    reader = bench.store.subscriber("reader", ["trades"])
    assert (lag(reader).mark, lag(reader).events) == (20, 10)
    take(reader).ack()
    assert lag(reader).mark == 30
