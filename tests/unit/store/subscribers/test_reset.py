"""A subscriber is put at another place: what a crash leaves, what a lease is worth then, what is still there."""

from __future__ import annotations

import pytest

from holdfast.errors import BadRequest
from holdfast.store.repair import apply_repair, plan_repair
from holdfast.testing import PowerCut
from tests.unit.store.subscribers.small_store import STORE, Bench, lag, spans, take


def acked_bench() -> Bench:
    """Three segments of ten, of which two are confirmed; the second of them by the log only."""
    bench = Bench(retention__mode="limits")
    subscriber = bench.store.subscriber("lake", ["trades"])
    bench.publish(segments=3)
    subscriber.ack("trades", 1, 10)
    bench.reopen().subscriber("lake", ["trades"]).ack("trades", 11, 20)
    return bench


def mark(bench: Bench) -> int:
    (found,) = bench.store.subscribers()
    return found.channels[0].mark


def test_reset_is_whole_or_nothing_at_every_power_cut() -> None:
    probe = acked_bench()
    before = probe.disk.calls
    probe.store.handing.reset("lake", "trades", to=6)
    calls = probe.disk.calls - before
    marks = []
    for cut in range(1, calls + 1):
        bench = acked_bench()
        bench.disk.cut_at(bench.disk.calls + cut)
        with pytest.raises(PowerCut):
            bench.store.handing.reset("lake", "trades", to=6)
        bench.lose_power(cut)
        marks.append(mark(bench))
        found = bench.store.subscriber("lake", ["trades"])
        found.ack("trades", 1, 30)
        assert lag(found).mark == 30
    assert set(marks) == {5, 20}
    assert marks == sorted(marks, reverse=True), "once it counts, no later cut takes it back"


def test_a_reset_that_returned_survives_a_power_cut() -> None:
    bench = acked_bench()
    (move,) = bench.store.handing.reset("lake", "trades", to=6)
    assert (move.mark_before, move.mark, move.again, move.skipped, move.owed) == (20, 5, 15, 0, 25)
    bench.lose_power()
    assert mark(bench) == 5


def test_acks_from_before_a_reset_do_not_count_after_it() -> None:
    bench = acked_bench()
    bench.store.handing.reset("lake", None, to="first")
    bench.store.subscriber("lake", ["trades"]).ack("trades", 11, 12)
    bench.lose_power()
    found = lag(bench.store.subscriber("lake", ["trades"]))
    assert (found.mark, found.gaps, found.events) == (0, ((1, 10),), 28)


def test_a_plan_tells_the_same_and_changes_nothing() -> None:
    bench = acked_bench()
    planned = bench.store.handing.plan_reset("lake", "trades", to="new")
    assert mark(bench) == 20
    assert bench.store.handing.reset("lake", "trades", to="new") == planned
    assert mark(bench) == 30


def test_a_lease_from_before_a_reset_is_taken_back() -> None:
    bench = acked_bench()
    subscriber = bench.store.subscriber("lake", ["trades"])
    held = take(subscriber)
    bench.store.handing.reset("lake", "trades", to=11)
    assert spans(list(subscriber.drain())) == [(11, 20), (21, 30)]
    with pytest.raises(BadRequest, match="expired"):
        held.extend()


def test_reset_counts_attempts_anew() -> None:
    bench = acked_bench()
    subscriber = bench.store.subscriber("lake", ["trades"])
    take(subscriber).nack()
    bench.store.handing.reset("lake", "trades", to=21)
    place = bench.store.handing.join("lake", "trades", start="first", others=0)
    assert bench.store.handing.owed(place, 1, 30) == [(21, 30, 0)]


def test_reset_brings_back_only_what_is_still_there() -> None:
    bench = Bench()
    subscriber = bench.store.subscriber("lake", ["trades"])
    bench.publish(segments=3)
    subscriber.ack("trades", 1, 20)
    bench.tick()
    assert bench.segments() == [21]
    (move,) = bench.store.handing.reset("lake", "trades", to="first")
    assert (move.again, move.owed, move.mark) == (0, 10, 20)
    assert bench.store.losses() == []


def test_reset_in_a_channel_that_is_not_followed_is_refused() -> None:
    bench = acked_bench()
    bench.publish("orders")
    with pytest.raises(BadRequest, match="does not follow channel 'orders'"):
        bench.store.handing.reset("lake", "orders", to="first")
    bench.publish()
    assert mark(bench) == 20


def test_a_repair_without_the_catalog_knows_the_new_place() -> None:
    bench = acked_bench()
    bench.store.handing.reset("lake", "trades", to=6)
    disk = bench.disk.after_kill()
    apply_repair(disk, plan_repair(disk, STORE, rebuild_catalog=True), clock=bench.clock)
    bench.disk = disk
    bench.open()
    assert mark(bench) == 5
