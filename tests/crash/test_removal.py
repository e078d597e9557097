"""Power loss at every disk call while a channel is removed: what is gone stays gone, is told once, and counts once.

These tests prove power loss: the crash disk drops, tears and reorders whatever was not synced.
"""

from __future__ import annotations

import pytest

from holdfast.errors import UnknownChannel
from holdfast.testing import CrashFilesystem, PowerCut
from tests.unit.store.subscribers.small_store import Bench, batch, lag, read_seqs

ACKED = 5
EVENTS = 32


def full() -> Bench:
    """A channel in segments and in the log, of which a subscriber has confirmed a part."""
    bench = Bench()
    bench.publish(segments=3)
    bench.store.subscriber("reader", ["*"]).ack("trades", 1, ACKED)
    bench.publish("orders")
    bench.store.commit("trades", batch(2))
    return bench


def left(bench: Bench) -> list[int]:
    """The events of the channel that are there."""
    try:
        return read_seqs(bench.store)
    except UnknownChannel:
        return []


def cut_at(call: int) -> Bench:
    """What is left of a store whose power went at that call of a removal."""
    bench = full()
    bench.disk.cut_at(bench.disk.calls + call)
    with pytest.raises(PowerCut):
        bench.store.remove_channel("trades")
    return bench


def calls() -> int:
    """How many calls an undisturbed removal makes."""
    bench = full()
    before = bench.disk.calls
    assert bench.store.remove_channel("trades") == EVENTS
    return bench.disk.calls - before


def check(bench: Bench) -> None:
    """Finish what was begun, and compare with the outside."""
    there = left(bench)
    assert there == list(range(EVENTS - len(there) + 1, EVENTS + 1)), "the oldest go first"
    if there or "trades" in bench.store.channels():
        bench.store.remove_channel("trades")
    assert left(bench) == []
    lost = {(loss.channel, loss.subscriber): loss.events for loss in bench.store.losses()}
    assert lost == {("trades", "reader"): EVENTS - ACKED, ("trades", ""): EVENTS - ACKED}
    assert read_seqs(bench.store, "orders") == list(range(1, 11))
    assert bench.store.commit("trades", batch(1)).first_seq == EVENTS + 1
    assert lag(bench.store.subscriber("reader", ["*"])).mark == EVENTS


def reopened(disk: CrashFilesystem, bench: Bench) -> Bench:
    """The same store on another disk."""
    other = Bench.__new__(Bench)
    other.disk, other.clock, other.settings = disk, bench.clock, bench.settings
    other.open()
    return other


@pytest.mark.guarantee("G4")
@pytest.mark.guarantee("G6")
def test_power_cut_while_a_channel_is_removed_counts_each_loss_once_and_brings_nothing_back() -> None:
    for call in range(1, calls() + 1):
        dead = cut_at(call)
        for seed in range(2):
            bench = reopened(dead.disk.after_power_cut(seed), dead)
            there = left(bench)
            again = reopened(bench.disk.after_power_cut(seed), bench)
            assert set(left(again)) <= set(there), "what was gone came back"
            check(again)
