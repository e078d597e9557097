"""The size cap: callers wait and resume, or the oldest go and are counted exactly; the disk stays within the bound."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.errors import Backpressure, LimitReached
from holdfast.model.frame import Entry
from holdfast.store.catalog import Loss
from holdfast.store.tail import Tail
from tests.unit.store.subscribers.small_store import SMALL, Bench, batch, lag, read_seqs, spans, take

CAP = 1200 << 10
EVENT = 3000
LONG_S = 60.0


def capped(policy: str = "backpressure", **settings: object) -> Bench:
    """A store with a cap of 1.2 MB, which does not wait."""
    return Bench(
        retention__size_cap=CAP,
        retention__size_cap_policy=policy,
        commit_timeout="0s",
        memory_limit="128KiB",
        **settings,
    )


def fill(bench: Bench, channel: str = "trades") -> int:
    """Commit until refused; returns how many frames were accepted."""
    frames = 0
    while True:
        try:
            bench.store.commit(channel, batch(5, size=EVENT))
        except Backpressure:
            return frames
        frames += 1


def disk_bytes(bench: Bench) -> int:
    """What the log and the segments take, as the disk says; without what a log file has reserved ahead."""
    size = bench.store._wal.log.size_bytes()
    return size + sum(len(bench.disk.read_bytes(path)) for path in bench.disk.paths() if path.suffix == ".arrow")


# -- backpressure -----------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G11")
def test_caller_at_the_cap_gets_an_error_with_used_cap_and_who_is_slowest() -> None:
    bench = capped()
    fast, slow = (bench.store.subscriber(name, ["*"]) for name in ("fast", "slow"))
    assert fill(bench) > 40
    bench.store.flush()
    for lease in fast.drain():
        lease.ack()
    take(slow).ack()
    fill(bench)
    with pytest.raises(Backpressure, match="subscriber 'slow' keeps the most") as refusal:
        bench.store.commit("trades", batch(5, size=EVENT))
    error = refusal.value
    assert (error.bound, error.cap_bytes, error.slowest) == ("retention.size_cap", CAP, "slow")
    assert CAP - 3 * 5 * EVENT < error.used_bytes <= CAP + 4096, "but for what a segment's file adds to its events"


@pytest.mark.guarantee("G6")
def test_backpressure_never_deletes_what_is_not_confirmed() -> None:
    bench = capped()
    bench.store.subscriber("reader", ["*"])
    frames = fill(bench)
    for _ in range(10):
        bench.tick()
        assert fill(bench) <= 1
    assert len(read_seqs(bench.store)) >= frames * 5
    assert bench.store.losses() == []
    assert bench.store.statistics().size_emergencies == 0


def test_intake_goes_on_when_subscribers_confirm() -> None:
    bench = capped()
    reader = bench.store.subscriber("reader", ["*"])
    for _ in range(5):
        assert fill(bench) > 5
        bench.store.flush()
        for lease in list(reader.drain())[:20]:
            lease.ack()
        bench.tick()


@pytest.mark.guarantee("G11")
def test_disk_stays_within_the_cap_whatever_is_written() -> None:
    bench = capped(channels={"wide": {"segment.compression": "zstd"}})
    reader = bench.store.subscriber("reader", ["*"])
    for turn in range(30):
        for channel in ("trades", "wide", f"small-{turn}"):
            fill(bench, channel)
            assert disk_bytes(bench) <= CAP + 8192, "but for the headers of a few small segments"
        bench.store.flush()
        for lease in reader.drain():
            lease.ack()
        bench.tick()


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("policy", ["backpressure", "drop_oldest"])
def test_room_is_made_for_a_frame_much_larger_than_an_ordinary_one(policy: str) -> None:
    """It needs more room than is kept free otherwise: of what is confirmed, or of the oldest."""
    bench = capped(policy, retention__steady_state_headroom="1MiB")
    reader = bench.store.subscriber("reader", ["*"])
    for _ in range(80):
        bench.store.commit("trades", batch(5, size=EVENT))
        for lease in list(reader.drain()) if policy == "backpressure" else ():
            lease.ack()
    bench.tick()
    kept = bench.store.statistics().segments
    large = [Entry("large", batch(80, size=EVENT))]
    receipt = bench.store.commit_frame_async(large, wait=False, bytes_max=1 << 20).result()
    assert receipt.entries[-1].last_seq == 80
    assert 0 < bench.store.statistics().segments < kept, "no more than it takes"


@pytest.mark.guarantee("G6")
def test_frame_that_an_empty_store_has_no_room_for_is_refused_before_anything_goes() -> None:
    bench = capped("drop_oldest")
    for _ in range(40):
        bench.store.commit("trades", batch(5, size=EVENT))
    before, losses = read_seqs(bench.store), bench.store.losses()
    too_large = [Entry("large", batch(200, size=EVENT))]
    with pytest.raises(LimitReached, match=rf"takes twice that beside a file of the log: retention.size_cap is {CAP}"):
        bench.store.commit_frame_async(too_large, bytes_max=1 << 20)
    assert bench.store.has_room(600_000), "nobody needs to wait for that answer"
    bench.tick()
    assert (read_seqs(bench.store), bench.store.losses()) == (before, losses)


def test_refused_frame_leaves_no_trace() -> None:
    bench = capped()
    fill(bench)
    bench.store.flush()
    before = read_seqs(bench.store)
    with pytest.raises(Backpressure):
        bench.store.commit("trades", batch(10, size=EVENT))
    assert read_seqs(bench.store) == before
    assert bench.store.statistics().tail.queued_bytes == 0


def test_headroom_is_given_up_at_the_cap() -> None:
    bench = capped(retention__steady_state_headroom="600KiB")
    reader = bench.store.subscriber("reader", ["*"])
    fill(bench)
    bench.store.flush()
    for lease in reader.drain():
        lease.ack()
    bench.tick()
    kept = bench.store.statistics().segment_bytes
    assert 500 << 10 < kept <= 600 << 10
    assert fill(bench) > 20, "room is made of it, oldest first"
    assert bench.store.statistics().segment_bytes > kept
    assert bench.store.losses() == []


def test_confirmed_segments_of_a_limits_channel_go_at_the_cap() -> None:
    bench = capped(channels={"trades": {"retention.mode": "limits"}})
    reader = bench.store.subscriber("reader", ["trades"])
    fill(bench)
    bench.store.flush()
    for lease in reader.drain():
        lease.ack()
    bench.tick(100)
    kept = bench.store.statistics().segments
    assert kept > 40, "at the soft mark only"
    assert fill(bench) > 5
    assert bench.store.losses() == []


def test_large_open_segments_are_sealed_early_at_the_cap() -> None:
    """What is sealed can be read, confirmed and deleted, so that intake goes on without waiting for its age."""
    bench = capped(segment__target_size="64KiB", segment__max_open_duration="1h")
    reader = bench.store.subscriber("reader", ["*"])
    fill(bench, "first")
    assert bench.store.statistics().tail.open_units <= 1
    for lease in reader.drain():
        lease.ack()
    bench.clock.advance(1)
    assert fill(bench, "second") > 20


@pytest.mark.guarantee("G11")
def test_no_deadlock_when_log_and_segment_are_both_charged() -> None:
    """The events of a full log are charged again as segments; sealing them must not wait for room."""
    bench = Bench(
        retention__size_cap="1152KiB", commit_timeout="0s", segment__target_size="64KiB", memory_limit="1MiB",
        segment__max_open_duration="1h",
    )  # fmt: skip
    reader = bench.store.subscriber("reader", ["*"])
    accepted = fill(bench)
    for _ in range(10):
        bench.store.flush()
        for lease in reader.drain():
            lease.ack()
        bench.tick()
        accepted += fill(bench)
    assert accepted > 200


@pytest.mark.guarantee("G11")
def test_no_deadlock_when_the_log_is_replayed_over_the_cap() -> None:
    """Power loss with a log full of unsealed events, in a store that was almost at its cap."""
    bench = capped(segment__max_open_duration="1h", segment__target_size="64KiB")
    reader = bench.store.subscriber("reader", ["*"])
    fill(bench)
    for seed in (0, 1, 2):
        bench.lose_power(seed=seed)
        assert fill(bench) < 10
    reader = bench.store.subscriber("reader", ["*"])
    bench.store.flush()
    for lease in reader.drain():
        lease.ack()
    bench.tick()
    assert fill(bench) > 20


def test_cap_that_is_lowered_holds_back_until_there_is_room_again() -> None:
    bench = Bench(retention__size_cap="4MiB", commit_timeout="0s", memory_limit="128KiB")
    reader = bench.store.subscriber("reader", ["*"])
    fill(bench)
    bench.reopen(retention__size_cap=CAP)
    assert fill(bench) == 0
    reader = bench.store.subscriber("reader", ["*"])
    for lease in reader.drain():
        lease.ack()
    bench.tick()
    assert fill(bench) > 10


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    settings = {"retention.size_cap": CAP, "memory_limit": "128KiB", "commit_timeout": "60s", "retention.tick": "10m"}
    with Store.open(tmp_path / "store", {**SMALL, **settings}) as opened:
        yield opened


@pytest.mark.guarantee("G11")
def test_waiting_caller_resumes_by_itself_when_a_subscriber_acks(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, the real disk, a tick that never comes by itself: the ack alone wakes what must be woken."""
    reader = store.subscriber("reader", ["*"])
    waits = threading.Event()
    wait_for_room = Tail._wait_for_room

    def announce(tail: Tail, size_bytes: int, *, wait: bool, capped: bool) -> None:
        if tail._over_cap(size_bytes) and tail._segment_bytes > CAP // 2:
            waits.set()
        wait_for_room(tail, size_bytes, wait=wait, capped=capped)

    monkeypatch.setattr(Tail, "_wait_for_room", announce)
    frames = 0

    def write() -> None:
        nonlocal frames
        for _ in range(200):
            store.commit("trades", batch(5, size=EVENT))
            frames += 1

    writer = threading.Thread(target=write)
    writer.start()
    assert waits.wait(LONG_S)
    assert frames < 200
    acked = 0
    while writer.is_alive():
        lease = reader.poll(0.2)
        if lease is not None:
            lease.ack()
            acked += 1
    writer.join(LONG_S)
    assert frames == 200
    assert store.statistics().tail.throttled > 0
    assert store.losses() == []


# -- drop_oldest ------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G6")
def test_drop_oldest_keeps_intake_going_and_counts_each_loss_exactly() -> None:
    bench = capped("drop_oldest")
    eager, lazy = (bench.store.subscriber(name, ["trades"]) for name in ("eager", "lazy"))
    sizes: dict[int, int] = {}
    for frame in range(200):
        bench.store.commit("trades", batch(5, size=EVENT))
        bench.store.flush()
        sizes |= {item.meta.last_seq: item.size_bytes for item in bench.store._catalog.segments(1)}
        if frame == 20:
            for lease in list(eager.drain())[:10]:
                lease.ack()
    bench.tick()  # now it is at the soft mark, and a restart has no reason to drop more
    (first, *_), last = read_seqs(bench.store), 1000
    gone = range(1, first)
    assert 500 < len(gone) < 1000
    lost_bytes = sum(size for end, size in sizes.items() if end < first)
    acked_bytes = sum(size for end, size in sizes.items() if end <= 50)
    reason = "size"
    everything = Loss("trades", "", reason, segments=len(gone) // 5, events=len(gone), bytes=lost_bytes)
    assert bench.store.losses() == [
        everything,
        Loss("trades", "eager", reason, len(gone) // 5 - 10, len(gone) - 50, lost_bytes - acked_bytes),
        Loss("trades", "lazy", reason, len(gone) // 5, len(gone), lost_bytes),
    ]
    retention = bench.store.statistics().retention
    assert retention.evictions == {"size": len(gone) // 5}
    assert retention.dropped_segments == len(gone) // 5
    assert retention.subscriber_dropped_segments == 2 * (len(gone) // 5) - 10
    assert bench.store.statistics().size_emergencies > 0
    assert (lag(lazy).mark, lag(lazy).events) == (len(gone), last - len(gone))
    bench.lose_power()
    assert bench.store.losses()[0] == everything, "the totals survive"


@pytest.mark.guarantee("G6")
def test_confirmed_segments_go_before_unconfirmed_ones_and_are_no_loss() -> None:
    bench = capped("drop_oldest")
    reader = bench.store.subscriber("reader", ["*"])
    for _ in range(25):
        bench.store.commit("old", batch(5, size=EVENT))
        bench.store.commit("done", batch(5, size=EVENT))
        bench.store.flush()
    reader.ack("done", 1, 125)
    assert bench.store.losses() == []
    for _ in range(20):
        bench.store.commit("new", batch(5, size=EVENT))
    assert bench.store.losses() == []
    assert bench.segments("done") == []
    assert len(bench.segments("old")) == 25


@pytest.mark.guarantee("G6")
def test_dropped_outcome_is_synced_before_the_segment_is_deleted() -> None:
    bench = capped("drop_oldest")
    bench.store.subscriber("reader", ["*"])
    for _ in range(120):
        bench.store.commit("trades", batch(5, size=EVENT))
    calls = [(operation, path.parent.name, path.suffix) for _, operation, path in bench.disk.log]
    deletions = [n for n, (operation, _, suffix) in enumerate(calls) if (operation, suffix) == ("unlink", ".arrow")]
    assert len(deletions) > 20
    for at in deletions:
        before = calls[:at]
        told = max(n for n, (operation, folder, _) in enumerate(before) if (operation, folder) == ("sync_data", "ack"))
        forgotten = max(n for n, (operation, _, _) in enumerate(before) if operation == "commit")
        assert told < forgotten < at, "told and synced, then forgotten by the catalog, then deleted"


@pytest.mark.guarantee("G6")
def test_segment_that_was_dropped_never_comes_back_after_power_loss() -> None:
    bench = capped("drop_oldest")
    reader = bench.store.subscriber("reader", ["*"])
    for _ in range(150):
        bench.store.commit("trades", batch(5, size=EVENT))
    first = read_seqs(bench.store)[0]
    assert first > 1
    mark = lag(reader).mark
    for seed in range(6):
        bench.lose_power(seed=seed)
        assert read_seqs(bench.store)[0] >= first
        reader = bench.store.subscriber("reader", ["*"])
        assert lag(reader).mark >= mark
        assert take(reader).first_seq >= first


@pytest.mark.guarantee("G7")
def test_dropping_a_gap_moves_the_mark_over_it() -> None:
    """The seed's case: a subscriber acked later segments but not this one; dropping it must not freeze its mark."""
    bench = capped("drop_oldest")
    reader = bench.store.subscriber("reader", ["*"])
    for _ in range(30):
        bench.store.commit("trades", batch(5, size=EVENT))
    bench.store.flush()
    leases = list(reader.drain())
    for lease in leases[1:]:
        lease.ack()
    assert (lag(reader).mark, lag(reader).gaps) == (0, ((1, 5),))
    while bench.segments()[0] == 1:
        bench.store.commit("trades", batch(5, size=EVENT))
    lost = 5 + lag(reader).mark - 150  # and what came after the confirmed ones, if more had to go
    assert lag(reader).gaps == ()
    assert bench.store.subscribers()[0].outcomes["dropped"] == lost
    assert [(loss.subscriber, loss.events) for loss in bench.store.losses()] == [("", lost), ("reader", lost)]
    leases[0].ack()  # too late: the loss is counted, and stays
    assert bench.store.subscribers()[0].outcomes["dropped"] == lost


def test_lease_whose_events_were_dropped_reads_what_is_left() -> None:
    bench = capped("drop_oldest")
    reader = bench.store.subscriber("reader", ["*"])
    bench.store.commit("trades", batch(5, size=EVENT))
    bench.store.flush()
    lease = take(reader)
    while bench.segments()[0] == 1:
        bench.store.commit("trades", batch(5, size=EVENT))
    assert list(lease.read()) == []
    before = bench.store.losses()
    lease.ack()
    assert bench.store.losses() == before, "it was told as lost, and is not taken back"


@pytest.mark.guarantee("G6")
def test_events_dropped_before_anybody_subscribed_are_a_loss_of_the_channel() -> None:
    bench = capped("drop_oldest")
    for _ in range(150):
        bench.store.commit("trades", batch(5, size=EVENT))
    gone = read_seqs(bench.store)[0] - 1
    (loss,) = bench.store.losses()
    assert (loss.channel, loss.subscriber, loss.reason, loss.events) == ("trades", "", "size", gone)
    reader = bench.store.subscriber("reader", ["trades"])
    bench.store.flush()
    assert spans([take(reader)])[0][0] == gone + 1


def test_oldest_segment_of_all_channels_is_dropped_first() -> None:
    bench = capped("drop_oldest")
    bench.store.subscriber("reader", ["*"])
    for _ in range(60):
        for channel in ("a", "b"):
            bench.store.commit(channel, batch(5, size=EVENT))
            bench.store.flush()
    firsts = [bench.segments(channel)[0] for channel in ("a", "b")]
    assert firsts[0] > 50
    assert abs(firsts[0] - firsts[1]) <= 5


@pytest.mark.guarantee("G6")
def test_losses_of_a_removed_subscriber_stay_counted_once() -> None:
    bench = capped("drop_oldest", ack__checkpoint_interval="1h")
    bench.store.subscriber("reader", ["*"])
    for _ in range(150):
        bench.store.commit("trades", batch(5, size=EVENT))
    before = bench.store.losses()
    bench.store.deregister("reader")
    assert bench.store.losses() == before
    bench.lose_power()
    assert bench.store.losses() == before
    bench.reopen()
    assert bench.store.losses() == before
