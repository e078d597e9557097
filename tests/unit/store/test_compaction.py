"""Small segments become large ones, and nobody notices."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.errors import UnknownChannel
from holdfast.model.frame import SlotFrame
from holdfast.model.positions import Fsn
from holdfast.store.catalog import PublishedSegment
from holdfast.store.compaction import CompactionPolicy, compact, joined_meta, plan
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.verify import verify_store
from tests.unit.store.subscribers.small_store import STORE, Bench, read_seqs, seqs, take

SYSTEM = ("_seq", "_committed_id", "_ingested_at", "_channel", "_slot_id", "_fsn", "_frame_index")
SLOT = b"s" * 16


def segment(number: int, first_seq: int, *, rows: int = 10, size: int = 100, **facts: object) -> PublishedSegment:
    """A row of a catalog."""
    values: dict[str, object] = {
        "store_id": "00",
        "channel": "t",
        "segment_seq": number,
        "first_seq": first_seq,
        "last_seq": first_seq + rows - 1,
        "first_committed_id": first_seq,
        "last_committed_id": first_seq + rows - 1,
        "first_ingested_at_ns": number,
        "last_ingested_at_ns": number,
        "first_event_time_ns": None,
        "last_event_time_ns": None,
        "schema_hash": "h",
        "rows": rows,
        **facts,
    }
    return PublishedSegment(1, SegmentMeta(**values), False, size, 0)  # type: ignore[arg-type]  # by name


def groups(*segments: PublishedSegment, **policy: int) -> list[list[int]]:
    found = plan(segments, CompactionPolicy(**{"target_bytes": 1000, **policy}))
    return [[item.meta.segment_seq for item in group] for group in found]


def everything(store: Store, channel: str = "trades") -> pa.Table:
    """All rows with all that the store knows of them."""
    return pa.Table.from_batches(list(store.read(channel, system=SYSTEM))).combine_chunks()


def test_neighbours_are_put_together_up_to_the_target() -> None:
    assert groups(*(segment(n, 1 + 10 * n, size=300) for n in range(7))) == [[0, 1, 2], [3, 4, 5]]


def test_large_segments_gaps_and_other_schemas_are_borders() -> None:
    assert groups(segment(1, 1), segment(2, 11, size=500), segment(3, 21), segment(4, 31)) == [[3, 4]]
    assert groups(segment(1, 1), segment(2, 12), segment(3, 22)) == [[2, 3]]
    assert groups(segment(1, 1), segment(2, 11, schema_hash="x"), segment(3, 21, schema_hash="x")) == [[2, 3]]
    assert groups(segment(1, 1)) == []


def test_event_times_are_kept_together_if_asked() -> None:
    parts = [segment(n, 1 + 10 * n, first_event_time_ns=60 * n, last_event_time_ns=60 * n + 50) for n in range(4)]
    assert groups(*parts, event_span_ns=120) == [[0, 1], [2, 3]]
    assert groups(*parts) == [[0, 1, 2, 3]]


def test_the_new_segment_says_of_itself_what_the_old_ones_did() -> None:
    old = [segment(4, 1, first_event_time_ns=7, last_event_time_ns=9), segment(2, 11)]
    meta = joined_meta([item.meta for item in old], 9)
    assert (meta.segment_seq, meta.first_seq, meta.last_seq, meta.rows) == (9, 1, 20, 20)
    assert (meta.first_ingested_at_ns, meta.last_ingested_at_ns) == (2, 4)
    assert (meta.first_event_time_ns, meta.last_event_time_ns) == (7, 9)


@pytest.mark.guarantee("G4")
def test_no_event_number_or_mark_changes() -> None:
    bench = Bench()
    subscriber = bench.store.subscriber("s", ["trades"])
    frames = [pa.record_batch({"n": pa.array(range(10 * n, 10 * n + 10), pa.int64())}) for n in range(5)]
    for fsn, frame in enumerate(frames):
        bench.store.commit("trades", frame, identity=SlotFrame(SLOT, Fsn(fsn)))
        bench.store.flush()
    subscriber.ack("trades", 3, 14)
    before = everything(bench.store)
    done = compact(bench.store, "trades")
    assert (done.segments_before, done.segments_after, done.events) == (5, 1, 50)
    assert bench.segments() == [1]
    assert everything(bench.store).equals(before)
    assert [lag.gaps for lag in subscriber.lag()] == [((1, 2),)]
    bench.reopen()
    assert everything(bench.store).equals(before)
    assert bench.store.commit("trades", frames[3], identity=SlotFrame(SLOT, Fsn(3))).first_seq == 31
    assert verify_store(bench.disk, STORE).intact


def test_a_second_time_there_is_nothing_left_to_do() -> None:
    bench = Bench()
    bench.publish(segments=4)
    compact(bench.store, "trades")
    again = compact(bench.store, "trades")
    assert (again.segments_before, again.more) == (0, False)
    bench.publish(segments=2)
    assert compact(bench.store, "trades").segments_before == 3


def test_work_is_done_in_steps_if_asked() -> None:
    bench = Bench()
    bench.publish(segments=6, size=1000)
    size = next(iter(bench.store._catalog.all_segments())).size_bytes
    policy = CompactionPolicy(target_bytes=7 * size // 2)
    first = compact(bench.store, "trades", policy, groups_max=1)
    assert (first.segments_before, first.more) == (3, True)
    assert compact(bench.store, "trades", policy, groups_max=1).segments_before == 3
    assert bench.segments() == [1, 31]


def test_what_is_handed_out_stays_until_it_is_answered() -> None:
    bench = Bench()
    subscriber = bench.store.subscriber("s", ["trades"])
    bench.publish(segments=3)
    lease = take(subscriber)
    done = compact(bench.store, "trades")
    assert (done.segments_before, done.left) == (0, 1)
    assert bench.segments() == [1, 11, 21]
    assert lease.path.name in {path.name for path in bench.disk.paths()}
    lease.ack()
    assert compact(bench.store, "trades").segments_before == 3
    rest = take(subscriber)
    assert seqs(rest) == list(range(11, 31))


def test_a_reader_that_began_before_reads_on_without_a_gap_or_repeat() -> None:
    bench = Bench()
    bench.publish(segments=6)
    parts = bench.store.read("trades", system=("_seq",))
    found = next(parts).column("_seq").to_pylist()
    compact(bench.store, "trades")
    found += [seq for part in parts for seq in part.column("_seq").to_pylist()]
    assert found == list(range(1, 61))


def test_events_below_the_floor_are_not_brought_back() -> None:
    bench = Bench(channels={"trades": {"max_msgs": 25, "file_slice_max_msgs": 1000}})
    bench.publish(segments=4)
    bench.tick()
    there = read_seqs(bench.store)
    assert there == list(range(16, 41))
    compact(bench.store, "trades")
    assert read_seqs(bench.store) == there
    bench.reopen()
    assert read_seqs(bench.store) == there


def test_retention_counts_the_bytes_that_are_there() -> None:
    bench = Bench()
    bench.publish(segments=6)
    compact(bench.store, "trades")
    assert bench.store._tail.segment_bytes == bench.store.statistics().segment_bytes
    bench.store.subscriber("s", ["trades"]).ack("trades", 1, 60)
    bench.tick(7200)
    assert bench.segments() == []
    assert bench.store._tail.segment_bytes == 0


def test_an_unknown_channel_is_told() -> None:
    with pytest.raises(UnknownChannel):
        compact(Bench().store, "absent")


def test_commits_reads_and_compaction_go_on_at_the_same_time(tmp_path: Path) -> None:
    """Threads: what a reader sees is always the whole beginning of the channel."""
    with Store.open(tmp_path / "d", {"segment.target_size": "64KiB"}) as store:
        store.commit("t", pa.record_batch({"n": pa.array([1], pa.int64())}))
        end = threading.Event()
        seen: list[int] = []

        def read() -> None:
            while not end.is_set():
                found = [seq for part in store.read("t", system=("_seq",)) for seq in part.column("_seq").to_pylist()]
                assert found == list(range(1, len(found) + 1))
                seen.append(len(found))

        reader = threading.Thread(target=read)
        reader.start()
        for n in range(2, 62):
            store.commit("t", pa.record_batch({"n": pa.array([n], pa.int64())}))
            store.flush()
            if n % 10 == 0:
                compact(store, "t", CompactionPolicy(target_bytes=200_000))
        end.set()
        reader.join()
        assert seen == sorted(seen)
        values = [n for part in store.read("t") for n in part.column("n").to_pylist()]
        assert values == list(range(1, 62))
        assert store.statistics().segments < 30


def test_a_reader_by_partition_reads_on_without_a_gap_or_repeat() -> None:
    bench = Bench()
    for n in range(6):
        partition = ("even", "odd")[n % 2]
        bench.store.commit("trades", pa.record_batch({"n": pa.array([n, n], pa.int64())}), partitions=[partition])
        bench.store.flush()
    bench.store.commit("trades", pa.record_batch({"n": pa.array([6], pa.int64())}), partitions=["even"])
    parts = bench.store.listing.partition_reader().read("trades", frozenset({"even"}), first=1, last=100, rows_max=50)
    found = [next(parts)]
    assert compact(bench.store, "trades").segments_before == 6
    found += list(parts)
    assert [seq for ids, _ in found for seq in ids.tolist()] == [1, 2, 5, 6, 9, 10, 13]
    assert [n for _, batch in found for n in batch.column("n").to_pylist()] == [0, 0, 2, 2, 4, 4, 6]
