"""What `holdfast segments` prints."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.cli.segments import period
from holdfast.testing.clock import START_WALL_NS
from tests.unit.cli.followed_store import CONFIG, EVENT_TIME_NS, call, call_json, make_store, refusal


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "data")


def test_list_has_every_segment_with_its_events(store: Path) -> None:
    found = call_json("segments", "ls", "--data", store)["segments"]
    assert [(item["channel"], item["first_seq"], item["last_seq"], item["rows"]) for item in found] == [
        *[("orders.eu", 2 * n + 1, 2 * n + 2, 2) for n in range(6)],
        *[("trades", 10 * n + 1, 10 * n + 10, 10) for n in range(6)],
    ]
    assert [Path(item["file"]).stat().st_size for item in found] == [item["size_bytes"] for item in found]
    assert [Path(item["file"]).name for item in found] == [f"seg-{item['segment_seq']}.arrow" for item in found]


def test_list_tells_when_events_came_in_and_happened(store: Path) -> None:
    orders, *_, last = call_json("segments", "ls", "--data", store)["segments"]
    assert last["first_ingested_at_ns"] == last["last_ingested_at_ns"] == START_WALL_NS + 6 * 10**9
    assert (last["first_event_time_ns"], last["last_event_time_ns"]) == (
        EVENT_TIME_NS + 50 * 10**9,
        EVENT_TIME_NS + 59 * 10**9,
    )
    assert orders["first_event_time_ns"] is None


def test_segment_is_needed_until_all_of_it_is_confirmed(store: Path) -> None:
    found = call_json("segments", "ls", "trades", "--data", store)["segments"]
    needs = [[(need["subscriber"], need["events"]) for need in item["needed_by"]] for item in found]
    assert needs == [[], [("lake", 5)], [("lake", 9)], [], [("lake", 10)], [("lake", 10)]]


def test_late_subscriber_needs_no_earlier_segment(store: Path) -> None:
    with Store.open(store, CONFIG, inline=True) as again:
        again.subscriber("late", ["trades"], start="new")
        again.commit("trades", pa.record_batch({"id": [1]}))
    *earlier, last = call_json("segments", "ls", "trades", "--data", store)["segments"]
    assert [need["subscriber"] for need in last["needed_by"]] == ["export", "lake", "late"]
    assert all(need["subscriber"] != "late" for item in earlier for need in item["needed_by"])


def test_list_of_one_channel_has_only_its_segments(store: Path) -> None:
    text = call("segments", "ls", "orders.eu", "--data", store)
    assert "channel orders.eu: 6 segments, 12 events" in text
    assert "trades" not in text
    assert "there are: orders.eu, trades" in refusal("segments", "ls", "zzz", "--data", store)


def test_second_period_is_shown_where_there_is_room(store: Path) -> None:
    wide = call("segments", "ls", "--data", store, columns=160)
    assert "happened" in wide
    assert period(EVENT_TIME_NS, EVENT_TIME_NS + 9 * 10**9) in wide
    narrow = call("segments", "ls", "--data", store, columns=100)
    assert "When the events happened is in `segments show N`" in narrow
    assert "happened" not in call("segments", "ls", "orders.eu", "--data", store, columns=160)


def test_long_list_is_shortened_in_the_middle(store: Path) -> None:
    text = call("segments", "ls", "--data", store, "--limit", 2)
    assert "10 rows left out at …; --limit 0 shows all." in text


def test_segment_is_shown_with_what_each_subscriber_misses(store: Path) -> None:
    number = call_json("segments", "ls", "trades", "--data", store)["segments"][2]["segment_seq"]
    facts = call_json("segments", "show", number, "--data", store)
    assert facts["needed_by"] == [{"subscriber": "lake", "events": 9, "ranges": [[22, 30]]}]
    text = call("segments", "show", number, "--data", store)
    assert f"segment {number} of {store}" in text
    assert "10 events, seq 21..30" in text
    assert "22..30" in text
    assert facts["file"] in text


def test_segment_that_nobody_needs_says_why(store: Path) -> None:
    number = call_json("segments", "ls", "trades", "--data", store)["segments"][0]["segment_seq"]
    text = call("segments", "show", number, "--data", store)
    assert "needed by nobody: all who follow the channel have confirmed it" in text
    for name in ("lake", "export"):
        call("subscribers", "rm", name, "--data", store)
    assert "needed by nobody: nobody follows it" in call("segments", "show", number, "--data", store)


def test_unknown_segment_ends_with_two_and_a_hint(store: Path) -> None:
    assert "`holdfast segments ls` shows those there are" in refusal("segments", "show", 999, "--data", store)
