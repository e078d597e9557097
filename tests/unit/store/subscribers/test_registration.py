"""Who is a subscriber, from where on, of what, and what is left when it goes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast.errors import BadRequest, Closed, InvalidName, LimitReached, UnknownChannel
from holdfast.store.repair import repair_store
from holdfast.testing.clock import START_WALL_NS
from tests.unit.store.subscribers.small_store import STORE, Bench, lag, read_seqs, seqs, spans, take

START = datetime.fromtimestamp(START_WALL_NS // 10**9, UTC)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_start_first_gives_everything_that_is_there(bench: Bench) -> None:
    bench.publish(segments=2)
    assert spans(bench.store.subscriber("reader", ["trades"]).drain()) == [(1, 10), (11, 20)]


def test_start_new_gives_only_what_comes_later(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"], start="new")
    assert reader.poll(0.0) is None
    bench.publish()
    assert spans(reader.drain()) == [(11, 20)]


def test_start_new_counts_events_that_are_not_sealed_as_old(bench: Bench) -> None:
    bench.publish()
    bench.store.commit("trades", next(bench.store.read("trades")))
    reader = bench.store.subscriber("reader", ["trades"], start="new")
    bench.store.flush()
    assert reader.poll(0.0) is None


def test_start_last_gives_the_last_event_and_what_follows(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"], start="last")
    bench.publish()
    assert spans(reader.drain()) == [(10, 10), (11, 20)]


@pytest.mark.parametrize(("start", "first"), [(0, 1), (1, 1), (7, 7), (10, 10), (11, 11), (10**12, 11)])
def test_start_seq_is_clamped_to_what_exists(bench: Bench, start: int, first: int) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"], start=start)
    bench.publish()
    assert take(reader).first_seq == first


@pytest.mark.parametrize(("after_s", "first"), [(-3600, 1), (0, 1), (1, 11), (60, 11), (61, 21), (10**9, 21)])
def test_start_time_gives_what_came_in_from_then_on(bench: Bench, after_s: int, first: int) -> None:
    bench.publish()
    bench.clock.advance(60)
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"], start=START + timedelta(seconds=after_s))
    bench.publish()
    assert take(reader).first_seq == first


def test_start_time_finds_events_that_are_not_sealed(bench: Bench) -> None:
    bench.publish()
    bench.clock.advance(60)
    bench.store.commit("trades", next(bench.store.read("trades")))
    reader = bench.store.subscriber("reader", ["trades"], start=START + timedelta(seconds=30))
    bench.store.flush()
    assert spans(reader.drain()) == [(11, 20)]


@pytest.mark.parametrize("start", ["latest", "", True, -1, datetime(2023, 1, 1), b"first"])
def test_start_that_is_no_position_registers_nobody(bench: Bench, start: object) -> None:
    with pytest.raises(BadRequest, match="is no position"):
        bench.store.subscriber("reader", ["trades"], start=start)  # type: ignore[arg-type]
    assert bench.store.subscribers() == []


def test_start_counts_only_for_channels_not_followed_yet(bench: Bench) -> None:
    bench.publish()
    bench.publish("orders")
    bench.store.subscriber("reader", ["trades"], start=3)
    reader = bench.store.subscriber("reader", ["trades", "orders"], start="new")
    assert [(lease.channel, lease.first_seq) for lease in reader.drain()] == [("trades", 3)]


def test_glob_follows_channels_that_exist_and_those_that_come(bench: Bench) -> None:
    bench.publish("log.eu")
    bench.publish("trades")
    reader = bench.store.subscriber("reader", ["log.*"], start="new")
    bench.publish("log.us")
    bench.publish("metrics")
    assert [(lease.channel, *spans([lease])) for lease in reader.drain()] == [("log.us", (1, 10))]


def test_channel_that_joins_by_a_glob_is_followed_from_its_first_event(bench: Bench) -> None:
    reader = bench.store.subscriber("reader", ["*"], start="new")
    bench.publish("late", segments=2)
    reader.close()
    bench.reopen()
    assert spans(bench.store.subscriber("reader", ["*"]).drain()) == [(1, 10), (11, 20)]


@pytest.mark.parametrize(
    ("pattern", "channels"),
    [
        ("a", ["a"]),
        ("a*", ["a", "a.b", "ab"]),
        ("?b", ["ab"]),
        ("[ab]", ["a", "b"]),
        ("[!a]", ["b"]),
        ("*.dead", ["x.dead"]),
        ("*", ["a", "a.b", "ab", "b"]),
    ],
)
def test_globs_match_whole_names_and_dead_letters_only_by_name(bench: Bench, pattern: str, channels: list[str]) -> None:
    for channel in ("a", "ab", "a.b", "b", "x.dead"):
        bench.publish(channel, events=1)
    reader = bench.store.subscriber("reader", [pattern])
    assert sorted(lease.channel for lease in list(reader.drain())) == channels


def test_single_channel_may_be_given_as_a_text(bench: Bench) -> None:
    bench.publish()
    assert bench.store.subscriber("reader", "trades").poll(0.0) is not None


@pytest.mark.parametrize("name", ["", "../up", "a/b", "a b", ".hidden", "-x", "ü", "x" * 129, "a\n", "a\0b", "*"])
def test_subscriber_names_are_confined_to_a_small_alphabet(bench: Bench, name: str) -> None:
    with pytest.raises(InvalidName, match="subscriber name"):
        bench.store.subscriber(name, ["trades"])
    assert bench.store.subscribers() == []


@pytest.mark.parametrize("patterns", [[], [""], ["a/b"], ["../x"], ["x" * 257], ["a b"], ["*"] * 1001])
def test_patterns_that_match_no_channel_name_are_refused(bench: Bench, patterns: list[str]) -> None:
    with pytest.raises(BadRequest):
        bench.store.subscriber("reader", patterns)


def test_subscriber_names_never_become_file_names(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("con.an-odd_name", ["trades"])
    take(reader).ack()
    bench.reopen()
    assert not [path for path in bench.disk.paths() if "odd" in path.name]


def test_list_shows_every_subscriber_by_name(bench: Bench) -> None:
    bench.publish()
    bench.store.subscriber("b", ["trades"], newest_first=True)
    bench.store.subscriber("a", ["tr*", "orders"])
    shown = bench.store.subscribers()
    assert [(item.name, item.patterns, item.newest_first) for item in shown] == [
        ("a", ("tr*", "orders"), False),
        ("b", ("trades",), True),
    ]
    assert shown[0].created_at_ns == bench.clock.wall_ns()
    assert [item.channel for item in shown[0].channels] == ["trades"]


def test_same_registration_again_keeps_the_place(bench: Bench) -> None:
    bench.publish(segments=2)
    take(bench.store.subscriber("reader", ["trades"])).ack()
    again = bench.store.subscriber("reader", ["trades"], start="first")
    assert spans(again.drain()) == [(11, 20)]


def test_registration_survives_a_restart_with_place_and_order(bench: Bench) -> None:
    bench.publish(segments=3)
    take(bench.store.subscriber("reader", ["trades"], newest_first=True)).ack()
    bench.reopen()
    assert [item.newest_first for item in bench.store.subscribers()] == [True]
    again = bench.store.subscriber("reader", ["trades"], newest_first=True)
    assert spans(again.drain()) == [(11, 20), (1, 10)]


def test_changed_patterns_let_go_of_channels_at_once(bench: Bench) -> None:
    bench.publish("trades")
    bench.publish("orders")
    bench.store.subscriber("other", ["*"])
    reader = bench.store.subscriber("reader", ["trades", "orders"])
    held = [take(reader), take(reader)]
    bench.store.subscriber("reader", ["orders"])
    assert [item.channel for item in reader.lag()] == ["orders"]
    del held
    for lease in bench.store.subscriber("other", ["*"]).drain():
        lease.ack()
    bench.tick()
    assert (bench.segments("trades"), bench.segments("orders")) == ([], [1])
    bench.reopen()
    assert [item.channel for item in bench.store.subscribers()[1].channels] == ["orders"]


@pytest.mark.guarantee("G7")
@pytest.mark.parametrize("repaired", [False, True], ids=["power loss", "and a repair of the catalog"])
def test_channel_joined_again_from_its_first_event_is_owed_again(bench: Bench, *, repaired: bool) -> None:
    bench.publish("trades")
    reader = bench.store.subscriber("reader", ["trades"])
    take(reader).ack()  # in the log, and in no checkpoint yet
    bench.store.subscriber("reader", ["orders"])
    bench.store.subscriber("reader", ["trades"], start="first")
    bench.disk = bench.disk.after_power_cut(0)
    if repaired:
        repair_store(bench.disk, STORE, rebuild_catalog=True, clock=bench.clock)
    store = bench.open()
    assert lag(store.subscriber("reader", ["trades"])).events == 10


def test_change_that_is_refused_leaves_the_subscriber_and_the_store_as_they_were() -> None:
    bench = Bench(channels={"trades": {"max_subs": 1}})
    bench.publish("trades")
    bench.publish("orders")
    bench.store.subscriber("first", ["trades"])
    reader = bench.store.subscriber("second", ["orders"])
    with pytest.raises(LimitReached):
        bench.store.subscriber("second", ["orders", "trades"])
    assert [item.patterns for item in bench.store.subscribers()] == [("trades",), ("orders",)]
    take(reader).ack()


def test_losses_in_a_channel_that_was_left_are_counted_once_after_power_loss() -> None:
    bench = Bench(channels={"trades": {"max_msgs": 10}})
    reader = bench.store.subscriber("reader", ["trades"])
    bench.publish(segments=2)
    bench.tick()
    assert lag(reader).mark == 10
    bench.store.subscriber("reader", ["orders"])
    before = bench.store.losses()
    assert sorted((loss.subscriber, loss.events) for loss in before) == [("", 10), ("reader", 10)]
    assert bench.lose_power().losses() == before


def test_deregister_reports_what_was_owed_and_releases_it(bench: Bench) -> None:
    bench.publish(segments=3)
    bench.store.subscriber("done", ["trades"]).ack("trades", 1, 30)
    lazy = bench.store.subscriber("lazy", ["trades"])
    lazy.ack("trades", 5)
    bench.tick()
    assert bench.segments() == [1, 11, 21]
    assert bench.store.deregister("lazy") == 29
    bench.tick()
    assert bench.segments() == []
    bench.reopen()
    assert [item.name for item in bench.store.subscribers()] == ["done"]


def test_handle_and_lease_of_a_removed_subscriber_are_closed(bench: Bench) -> None:
    bench.publish(segments=2)
    reader = bench.store.subscriber("reader", ["trades"])
    lease = take(reader)
    bench.store.deregister("reader")
    with pytest.raises(Closed):
        reader.poll(0.0)
    with pytest.raises(Closed):
        lease.ack()
    assert list(reader) == []


def test_name_that_comes_back_is_a_new_subscriber(bench: Bench) -> None:
    bench.publish()
    reader = bench.store.subscriber("reader", ["trades"])
    take(reader).ack()
    bench.store.deregister("reader")
    assert spans(bench.store.subscriber("reader", ["trades"]).drain()) == [(1, 10)]


def test_removed_subscriber_stays_removed_after_power_loss(bench: Bench) -> None:
    bench = Bench(ack__rotation_size="4KiB", ack__checkpoint_interval="1h")
    bench.publish(segments=200, events=1)
    reader, other = bench.store.subscriber("reader", ["trades"]), bench.store.subscriber("other", ["trades"])
    for seq in range(1, 200, 2):  # gaps make the snapshots that open log files large, so that the log rotates
        reader.ack("trades", seq)
        other.ack("trades", seq)
    bench.store.deregister("reader")
    other.ack("trades", 200)
    bench.lose_power()
    assert [item.name for item in bench.store.subscribers()] == ["other"]


@pytest.mark.parametrize("crash", ["kill", "power cut"])
def test_removed_subscriber_stays_removed_when_the_log_has_rotated(crash: str) -> None:
    bench = Bench(ack__rotation_size="4KiB", ack__checkpoint_records=10_000)
    bench.publish(events=200)
    gone, other = (bench.store.subscriber(name, ["trades"]) for name in ("gone", "other"))
    gone.ack("trades", 1, 50)
    bench.store.deregister("gone")
    files = bench.store._desk.writer.log.number
    for seq in range(1, 200, 2):
        other.ack("trades", seq)
    assert bench.store._desk.writer.log.number > files
    bench.disk = bench.disk.after_kill() if crash == "kill" else bench.disk.after_power_cut(1)
    store = bench.open()
    assert [item.name for item in store.subscribers()] == ["other"]
    assert lag(store.subscriber("gone", ["trades"])).events == 200


def test_unknown_subscriber_cannot_be_removed(bench: Bench) -> None:
    bench.store.subscriber("reader", ["trades"])
    with pytest.raises(BadRequest, match="there are: reader"):
        bench.store.deregister("stranger")


@pytest.mark.guarantee("G7")
def test_events_gone_before_a_subscriber_comes_are_no_hole_for_it(bench: Bench) -> None:
    bench.publish(segments=3)
    first = bench.store.subscriber("first", ["trades"])
    first.ack("trades", 11, 20)
    bench.tick()
    assert bench.segments() == [1, 21], "the middle one went"
    late = bench.store.subscriber("late", ["trades"])
    leases = list(late.drain())
    assert spans(leases) == [(1, 10), (21, 30)]
    for lease in leases:
        lease.ack()
    assert (lag(late).mark, lag(late).gaps, lag(late).events) == (30, (), 0)
    bench.lose_power()
    assert lag(bench.store.subscriber("late", ["trades"])).mark == 30


def test_subscriber_of_an_emptied_channel_starts_with_what_comes(bench: Bench) -> None:
    bench.publish()
    bench.store.subscriber("first", ["trades"]).ack("trades", 1, 10)
    bench.tick()
    assert bench.segments() == []
    late = bench.store.subscriber("late", ["trades"])
    assert (lag(late).mark, lag(late).events) == (10, 0)
    bench.publish()
    assert spans(late.drain()) == [(11, 20)]


def test_channels_that_do_not_exist_yet_may_be_named(bench: Bench) -> None:
    reader = bench.store.subscriber("reader", ["later"])
    assert reader.lag() == []
    with pytest.raises(UnknownChannel):
        reader.ack("later", 1)
    bench.publish("later")
    assert spans(reader.drain()) == [(1, 10)]


def test_acks_outside_the_channel_are_refused(bench: Bench) -> None:
    bench.publish()
    bench.publish("orders")
    reader = bench.store.subscriber("reader", ["trades"])
    for first, last in [(0, 1), (5, 4), (1, 11), (11, 11)]:
        with pytest.raises(BadRequest, match=r"has events 1\.\.10"):
            reader.ack("trades", first, last)
    with pytest.raises(BadRequest, match="does not follow"):
        reader.ack("orders", 1)
    with pytest.raises(BadRequest, match="no segment"):
        reader.ack_segment(99)
    with pytest.raises(BadRequest, match="no event of frame"):
        reader.ack_frame(b"x" * 16, 1)
    assert lag(reader).mark == 0


@pytest.mark.guarantee("G11")
def test_max_subs_refuses_one_too_many_and_changes_nothing() -> None:
    bench = Bench(max_subs=2, channels={"free": {"max_subs": 0}})
    bench.publish()
    bench.publish("free")
    for name in ("a", "b"):
        bench.store.subscriber(name, ["trades"])
    with pytest.raises(LimitReached, match=r"channel 'trades': max_subs is 2") as refusal:
        bench.store.subscriber("c", ["*"])
    assert (refusal.value.limit, refusal.value.allowed) == ("max_subs", 2)
    assert [item.name for item in bench.store.subscribers()] == ["a", "b"]
    bench.store.subscriber("c", ["free"])
    bench.store.deregister("a")
    assert bench.store.subscriber("c", ["free", "trades"]).poll(0.0) is not None


def test_subscriber_expires_only_after_it_was_not_seen_for_so_long() -> None:
    bench = Bench(subscriber_expiry="1h")
    bench.publish(segments=2)
    idle, busy = (bench.store.subscriber(name, ["trades"]) for name in ("idle", "busy"))
    lease = take(idle)
    for _ in range(5):
        bench.tick(900)
        busy.poll(0.0)
    assert [item.name for item in bench.store.subscribers()] == ["busy"]
    with pytest.raises(Closed):
        lease.ack()


def test_fresh_subscriber_is_not_expired_by_the_first_tick() -> None:
    bench = Bench(subscriber_expiry="1h")
    bench.publish()
    bench.clock.advance(100_000)  # the process runs for long
    bench.store.subscriber("fresh", ["trades"])
    bench.tick()
    assert [item.name for item in bench.store.subscribers()] == ["fresh"]


def test_restart_does_not_expire_subscribers_at_once() -> None:
    bench = Bench(subscriber_expiry="1h")
    bench.publish()
    bench.clock.advance(100_000)  # the machine runs for long
    bench.store.subscriber("reader", ["trades"])
    bench.reopen()
    bench.tick()
    assert [item.name for item in bench.store.subscribers()] == ["reader"]
    bench.tick(3601)
    assert bench.store.subscribers() == []


def test_reading_with_a_subscriber_leaves_plain_readers_alone(bench: Bench) -> None:
    bench.publish()
    lease = take(bench.store.subscriber("reader", ["trades"]))
    assert seqs(lease) == read_seqs(bench.store) == list(range(1, 11))
