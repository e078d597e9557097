"""Removing a channel, while others write, read and evict: all of it goes, is told, and no number comes back."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import LimitReached, UnknownChannel
from holdfast.store.verify import verify_store
from tests.unit.store.retention.threads import together
from tests.unit.store.subscribers.small_store import SMALL, Bench, batch, lag, read_seqs

BUSY: dict[str, object] = {**SMALL, "retention.tick": "1ms"}


def lost(store: Store, channel: str = "trades") -> dict[tuple[str, str], int]:
    """Events that went unconfirmed, by subscriber and reason."""
    return {(loss.subscriber, loss.reason): loss.events for loss in store.losses() if loss.channel == channel}


@pytest.mark.guarantee("G6")
def test_removed_channel_is_gone_told_and_counted() -> None:
    bench = Bench()
    bench.publish(segments=3)
    reader = bench.store.subscriber("reader", ["trades"])
    reader.ack("trades", 1, 5)
    bench.store.commit("trades", batch(2))  # only in the log yet
    assert bench.store.remove_channel("trades") == 32
    assert bench.store.channels() == []
    with pytest.raises(UnknownChannel):
        bench.store.read("trades")
    assert lost(bench.store) == {("reader", "removed"): 27, ("", "removed"): 27}


@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("restart", ["none", "reopen", "lose_power"])
def test_removed_channel_that_is_written_to_again_goes_on_with_its_numbers(restart: str) -> None:
    bench = Bench()
    bench.publish(segments=2)
    reader = bench.store.subscriber("reader", ["trades"])
    bench.store.remove_channel("trades")
    if restart != "none":
        store = getattr(bench, restart)()
        assert store.channels() == []
        reader = store.subscriber("reader", ["trades"])
    assert bench.store.commit("trades", batch(3)).first_seq == 21
    bench.store.flush()
    assert read_seqs(bench.store) == [21, 22, 23]
    assert [(lease.first_seq, lease.last_seq) for lease in reader.drain()] == [(21, 23)]
    assert (lag(reader).mark, lag(reader).events) == (20, 3)


def test_removed_channel_makes_room_for_another_name_also_after_a_restart() -> None:
    bench = Bench(max_channels=1)
    bench.publish("old")
    with pytest.raises(LimitReached):
        bench.store.commit("new", batch(1))
    bench.store.remove_channel("old")
    bench.reopen()
    assert bench.store.commit("new", batch(1)).first_seq == 1
    assert bench.store.channels() == ["new"]


def test_channel_with_an_event_on_its_way_to_the_log_is_not_taken_for_empty() -> None:
    bench = Bench()
    bench.publish()
    channel, keeper = bench.store._channels.find("trades"), bench.store._keeper
    keeper.remove(channel, last_seq=10)
    channel.next_seq += 1  # as the committer does before it writes
    keeper.retire_if_empty(channel)
    assert bench.store.channels() == ["trades"]
    channel.next_seq -= 1
    keeper.retire_if_empty(channel)
    assert bench.store.channels() == []


def test_channel_removed_twice_has_nothing_more_to_remove() -> None:
    bench = Bench()
    bench.publish()
    bench.store.remove_channel("trades")
    with pytest.raises(UnknownChannel):
        bench.store.remove_channel("trades")


@pytest.mark.guarantee("G6")
def test_channel_is_removed_beside_commits_to_another_one(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", BUSY) as store:
        for _ in range(40):
            store.commit("trades", batch(5))
        reader = store.subscriber("reader", ["*"])
        removed: list[int] = []

        def write() -> None:
            for _ in range(150):
                store.commit("orders", batch(3))

        together(write, lambda: removed.append(store.remove_channel("trades")))
        assert removed == [200]
        assert store.channels() == ["orders"]
        assert lost(store) == {("reader", "removed"): 200, ("", "removed"): 200}
        assert read_seqs(store, "orders") == list(range(1, 451))
        assert lag(reader, "orders").events == 450
        assert store.losses() == [loss for loss in store.losses() if loss.channel == "trades"]
    assert verify_store(LocalFilesystem(), tmp_path / "store").intact


@pytest.mark.guarantee("G4")
@pytest.mark.guarantee("G6")
def test_channel_removed_beside_its_own_writer_loses_a_prefix_and_reuses_no_number(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", BUSY) as store:
        store.subscriber("reader", ["trades"])
        store.commit("trades", batch(1))
        done = threading.Event()
        seqs: list[int] = []
        removed: list[int] = []

        def write() -> None:
            for _ in range(200):
                seqs.append(store.commit("trades", batch(2)).first_seq)
            done.set()

        def remove() -> None:
            while not done.is_set():
                try:
                    removed.append(store.remove_channel("trades"))
                except UnknownChannel:
                    continue  # removed before, and not written to since

        together(write, remove)
        assert seqs == list(range(2, 402, 2))
        store.flush()
        gone = sum(removed)
        left = read_seqs(store) if "trades" in store.channels() else []
        assert left == list(range(gone + 1, 402))
        assert lost(store) == {("reader", "removed"): gone, ("", "removed"): gone}
    with Store.open(tmp_path / "store", BUSY) as store:
        assert store.commit("trades", batch(1)).first_seq == 402


@pytest.mark.guarantee("G6")
def test_channel_removed_while_its_confirmed_segments_go_counts_none_of_them(tmp_path: Path) -> None:
    with Store.open(tmp_path / "store", BUSY) as store:
        for _ in range(30):
            store.commit("trades", batch(5))
        store.flush()
        reader = store.subscriber("reader", ["trades"])
        taken: list[int] = []

        def read() -> None:
            for lease in reader.drain():
                taken.append(lease.last_seq - lease.first_seq + 1)
                lease.ack()

        together(read, lambda: store.remove_channel("trades"))
        (shown,) = store.subscribers()
        assert shown.outcomes["ack"] + shown.outcomes["dropped"] == 150
        assert lost(store).get(("reader", "removed"), 0) == shown.outcomes["dropped"]
        assert sum(taken) >= shown.outcomes["ack"]
