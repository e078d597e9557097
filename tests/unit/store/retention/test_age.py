"""By age: late rather than early, whatever the wall clock does."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.clock import NS_PER_S
from holdfast.store.retention.timekeeping import HOLD_NS, TrustedTime
from holdfast.testing import ManualClock
from tests.unit.store.subscribers.small_store import Bench, batch, lag

HOUR = 3600.0
YEAR = 365 * 24 * HOUR


def losses(bench: Bench) -> list[tuple[str, str, int, int]]:
    """(subscriber, reason, segments, events) of every loss."""
    return [(loss.subscriber, loss.reason, loss.segments, loss.events) for loss in bench.store.losses()]


@pytest.mark.guarantee("G6")
def test_segments_older_than_max_age_go_and_the_loss_is_told() -> None:
    bench = Bench(max_age="1h")
    reader = bench.store.subscriber("reader", ["trades"])
    bench.publish()
    bench.tick(1800)
    bench.publish()
    reader.ack("trades", 1, 3)
    bench.tick(1800)
    assert bench.segments() == [1, 11], "not before its last event is older than that"
    bench.tick(1)
    assert bench.segments() == [11]
    assert losses(bench) == [("", "age", 1, 7), ("reader", "age", 1, 7)]
    assert (lag(reader).mark, lag(reader).events) == (10, 10)


def test_retention_hours_hold_for_every_channel_and_the_shorter_age_wins() -> None:
    bench = Bench(
        retention__max_retain_after_ingestion_hours=2,
        channels={"short": {"max_age": "1h"}, "long": {"max_age": "100h"}},
    )
    for channel in ("plain", "short", "long"):
        bench.publish(channel)
    bench.tick(HOUR + 1)
    assert (bench.segments("plain"), bench.segments("short"), bench.segments("long")) == ([1], [], [1])
    bench.tick(HOUR)
    assert (bench.segments("plain"), bench.segments("long")) == ([], [])


def test_age_counts_for_confirmed_segments_in_a_limits_channel_without_a_loss() -> None:
    bench = Bench(channels={"trades": {"retention.mode": "limits", "max_age": "1h"}})
    bench.publish()
    bench.store.subscriber("reader", ["trades"]).ack("trades", 1, 10)
    bench.tick(HOUR + 1)
    assert (bench.segments(), losses(bench)) == ([], [])


def test_age_may_be_taken_from_event_time() -> None:
    bench = Bench(retention__time_basis="event", event_time="at", max_age="1h")
    start_s = bench.clock.wall_ns() // NS_PER_S
    for shift_s in (-7200, -1800, 0):
        times = pa.array([start_s + shift_s - 60, start_s + shift_s], pa.timestamp("s"))
        bench.store.commit("trades", pa.record_batch({"at": times}))
        bench.store.flush()
    bench.publish("untimed")
    bench.tick()
    assert bench.segments() == [3, 5], "the first is two hours old by its own account"
    bench.tick(1800)
    assert bench.segments() == [5]
    bench.tick(1801)
    assert (bench.segments(), bench.segments("untimed")) == ([], []), "without event times ingestion counts"


def test_segment_that_comes_in_late_with_old_events_goes_in_the_next_tick() -> None:
    bench = Bench(retention__time_basis="event", event_time="at", max_age="1h")
    now = bench.clock.wall_ns()
    for at in (now, now - 2 * 3600 * NS_PER_S):
        bench.store.commit("trades", pa.record_batch({"at": pa.array([at], pa.timestamp("ns"))}))
        bench.store.flush()
        bench.tick()
    bench.tick()
    assert bench.segments() == [1]


# -- clocks that jump -------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G6")
@pytest.mark.parametrize("jump_s", [10 * YEAR, -HOUR, -10 * YEAR, 90.0])
def test_jump_of_the_wall_clock_deletes_nothing_early(jump_s: float) -> None:
    bench = Bench(max_age="1h")
    bench.publish()
    bench.clock.jump_wall(jump_s)
    bench.publish()
    for _ in range(59):
        bench.tick(60)
        assert bench.segments() == [1, 11]
    assert bench.store.statistics().clock_jumps == 1, "the alarm"


def test_age_goes_on_by_the_monotonic_clock_while_the_wall_clock_is_wrong() -> None:
    bench = Bench(max_age="1h")
    bench.publish()
    bench.clock.jump_wall(-10 * YEAR)
    bench.tick(HOUR + 61)
    assert bench.segments() == []


@pytest.mark.guarantee("G6")
def test_events_that_come_in_while_the_clock_is_behind_are_not_taken_for_old() -> None:
    bench = Bench(max_age="30m")
    bench.publish()
    bench.clock.jump_wall(-HOUR)
    bench.publish()
    bench.tick()
    assert bench.segments() == [1, 11]
    bench.clock.jump_wall(HOUR)  # an operator sets it right again
    bench.publish()
    bench.tick()
    bench.reopen()
    bench.tick()
    assert bench.segments() == [1, 11, 21]
    bench.tick(1800)
    assert bench.segments() == []


@pytest.mark.guarantee("G6")
def test_events_stamped_by_a_clock_that_was_behind_at_start_survive_its_correction() -> None:
    """A machine without a battery: the clock is behind when the store starts, set later, right at the next start."""
    bench = Bench(max_age="30m")
    bench.publish()
    bench.tick()
    bench.store.close()
    bench.clock.jump_wall(-HOUR)
    bench.open()
    assert bench.store.statistics().clock_jumps == 1
    bench.publish()
    bench.clock.jump_wall(HOUR)
    bench.tick()
    bench.reopen()
    bench.tick()
    assert bench.segments() == [1, 11]


@pytest.mark.guarantee("G6")
def test_restart_after_a_jump_ahead_holds_for_an_hour_and_says_so() -> None:
    bench = Bench(max_age="1h")
    bench.publish(segments=3)
    bench.tick()
    bench.store.close()
    bench.clock.jump_wall(10 * YEAR)
    bench.open()
    assert bench.store.statistics().clock_jumps == 1, "the alarm"
    for _ in range(59):
        bench.tick(60)
        assert bench.segments() == [1, 11, 21]
    bench.clock.jump_wall(-10 * YEAR)  # somebody read the alarm
    bench.reopen()
    bench.tick()
    assert bench.segments() == [1, 11, 21]


@pytest.mark.guarantee("G6")
def test_process_that_restarts_again_and_again_does_not_come_to_believe_a_jump() -> None:
    bench = Bench(max_age="1h")
    bench.publish(segments=3)
    bench.tick()
    bench.store.close()
    bench.clock.jump_wall(10 * YEAR)
    for _ in range(5):
        bench.open()
        bench.tick(600)
        assert bench.segments() == [1, 11, 21]
        bench.store.close()


def test_machine_that_was_off_for_long_deletes_by_age_after_the_hour() -> None:
    bench = Bench(max_age="1h")
    bench.publish(segments=2)
    bench.tick()
    bench.store.close()
    bench.clock.advance(3 * 24 * HOUR)
    bench.open()
    bench.tick()
    assert bench.segments() == [1, 11]
    bench.tick(HOUR)
    assert bench.segments() == []


def test_machine_that_was_off_for_a_night_deletes_by_age_at_once() -> None:
    bench = Bench(max_age="1h")
    bench.publish()
    bench.tick()
    bench.store.close()
    bench.clock.advance(12 * HOUR)
    bench.open()
    assert bench.segments() == []


@pytest.mark.guarantee("G6")
def test_jump_ahead_between_runs_retires_no_channel_before_the_hour_is_over() -> None:
    bench = Bench(max_inactivity="24h")
    bench.publish()
    bench.tick()
    bench.store.close()
    bench.clock.jump_wall(10 * YEAR)
    bench.open()
    bench.tick(1800)
    assert bench.segments() == [1]


def test_trusted_time_follows_a_clock_that_is_slewed() -> None:
    clock = ManualClock()
    time = TrustedTime(clock, last_known_ns=0)
    for _ in range(100):
        clock.advance(60)
        clock.jump_wall(0.5)  # far more than NTP slews
        assert time.now_ns() == clock.wall_ns()
    assert time.jumps == 0


def test_trusted_time_never_goes_back_and_never_jumps_ahead() -> None:
    clock = ManualClock()
    time = TrustedTime(clock, last_known_ns=0)
    before = time.now_ns()
    for jump_s in (YEAR, -3 * YEAR, 2 * YEAR, -30, 30, -61):
        clock.jump_wall(jump_s)
        clock.advance(1)
        now = time.now_ns()
        assert before <= now <= before + 62 * NS_PER_S
        assert time.stamp_ns() >= now
        before = now


def test_first_start_ever_believes_the_clock_without_an_alarm() -> None:
    time = TrustedTime(ManualClock(), last_known_ns=0)
    assert (time.jumps, time.holding) == (0, False)


def test_hold_ends_by_the_monotonic_clock() -> None:
    clock = ManualClock()
    time = TrustedTime(clock, last_known_ns=clock.wall_ns() - 48 * 3600 * NS_PER_S)
    assert time.holding
    clock.jump_wall(10 * YEAR)
    assert time.holding
    clock.advance(HOLD_NS / NS_PER_S)
    assert not time.holding


def test_receipt_times_of_stored_events_never_go_back_with_the_clock() -> None:
    bench = Bench()
    bench.store.commit("trades", batch(1))
    bench.clock.jump_wall(-HOUR)
    bench.store.commit("trades", batch(1))
    first, second = [
        stamp for part in bench.store.read("trades", system=("_ingested_at",))
        for stamp in part.column("_ingested_at").to_pylist()
    ]  # fmt: skip
    assert second >= first
