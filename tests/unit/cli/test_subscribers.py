"""What `holdfast subscribers` prints, and what it removes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Store
from holdfast.cli.channels import lasting
from holdfast.cli.subscribers import ranges
from tests.unit.cli.followed_store import CONFIG, call, call_json, make_store, own_figures, refusal
from tests.unit.store.left_behind import flip


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "data")


def listed(directory: Path) -> dict[str, dict[str, Any]]:
    return {item["name"]: item for item in call_json("subscribers", "ls", "--data", directory)["subscribers"]}


# ------------------------------------------------------------------------------------------------------------------- ls


def test_figures_are_those_of_the_store_itself(store: Path) -> None:
    found = listed(store)
    assert sorted(found) == [figures.name for figures in own_figures()]
    for figures in own_figures():
        lags = {lag["channel"]: lag for lag in found[figures.name]["channels"]}
        assert sorted(lags) == sorted(lag.channel for lag in figures.channels)
        for lag in figures.channels:
            seen = lags[lag.channel]
            assert (seen["mark"], seen["events"], seen["bytes"]) == (lag.mark, lag.events, lag.bytes)
            assert [tuple(gap) for gap in seen["gaps"]] == list(lag.gaps)


def test_confirmations_count_before_any_checkpoint(store: Path) -> None:
    lake = {lag["channel"]: lag for lag in listed(store)["lake"]["channels"]}
    assert lake["trades"]["mark"] == 15
    assert lake["trades"]["gaps"] == [[16, 20], [22, 30]]
    assert lake["trades"]["events"] == 34
    assert lake["trades"]["seconds"] > 0


def test_marks_of_a_store_that_was_closed_are_the_same(store: Path) -> None:
    before = listed(store)
    with Store.open(store, CONFIG, inline=True):
        pass
    after = listed(store)
    for name in ("lake", "export"):
        marks = [
            [(lag["mark"], lag["gaps"], lag["events"]) for lag in item[name]["channels"]] for item in (before, after)
        ]
        assert marks[0] == marks[1]


def test_subscriber_without_a_channel_is_listed(store: Path) -> None:
    assert listed(store)["billing"]["channels"] == []
    assert "(none)" in call("subscribers", "ls", "--data", store)


def test_list_names_each_subscriber_once(store: Path) -> None:
    lines = call("subscribers", "ls", "--data", store).splitlines()
    assert "3 subscribers, 2 behind" in lines[0]
    rows = [line.split() for line in lines]
    assert ["trades", "15", "34"] in [row[:3] for row in rows]
    assert sum("lake" in row for row in rows) == 1


def test_damage_to_the_acknowledgement_log_costs_only_marks(store: Path) -> None:
    (log,) = (store / "ack").glob("*.log")
    flip(log, len(log.read_bytes().rstrip(b"\0")) - 30)
    lags = {lag["channel"]: lag["mark"] for lag in listed(store)["export"]["channels"]}
    assert lags == {"orders.eu": 0, "trades": 60}


# ----------------------------------------------------------------------------------------------------------------- show


def test_subscriber_is_shown_with_all_its_gaps(store: Path) -> None:
    text = call("subscribers", "show", "lake", "--data", store)
    assert "follows trades, orders*; oldest first" in text
    assert "49 events owed" in text
    assert "16..20, 22..30" in text
    assert "lost" not in text


def test_losses_are_shown_with_channel_and_reason(store: Path) -> None:
    call("channels", "rm", "trades", "--yes", "--data", store)
    found = call_json("subscribers", "show", "lake", "--data", store)
    (loss,) = found["losses"]
    assert (loss["channel"], loss["reason"], loss["events"], loss["segments"]) == ("trades", "removed", 34, 4)
    rows = [line.split()[:3] for line in call("subscribers", "show", "lake", "--data", store).splitlines()]
    assert ["trades", "removed", "34"] in rows
    assert call_json("subscribers", "show", "export", "--data", store)["losses"] == []


@pytest.mark.parametrize("action", ["show", "rm"])
def test_unknown_subscriber_ends_with_two_and_a_hint(store: Path, action: str) -> None:
    assert "did you mean 'lake'?" in refusal("subscribers", action, "lak", "--data", store)
    assert "there are: billing, export, lake" in refusal("subscribers", action, "zzz", "--data", store)


# ------------------------------------------------------------------------------------------------------------------- rm


def test_removing_says_what_was_still_owed(store: Path) -> None:
    result = call_json("subscribers", "rm", "lake", "--data", store)
    assert (result["subscriber"], result["owed_events"]) == ("lake", 49)
    assert result["owed_by_channel"] == {"orders.eu": 15, "trades": 34}
    text = call("subscribers", "rm", "billing", "--data", store)
    assert text == "removed subscriber billing; nothing was owed to it\n"


def test_removed_subscriber_is_gone_and_others_keep_their_marks(store: Path) -> None:
    text = call("subscribers", "rm", "lake", "--data", store)
    assert "49 events were still owed to it: orders.eu 15, trades 34" in text
    found = listed(store)
    assert sorted(found) == ["billing", "export"]
    assert {lag["channel"]: lag["mark"] for lag in found["export"]["channels"]} == {"orders.eu": 12, "trades": 60}


def test_removing_a_subscriber_deletes_no_events(store: Path) -> None:
    call("subscribers", "rm", "lake", "--data", store)  # by the default settings, trades might go now
    assert [row["events"] for row in call_json("channels", "ls", "--data", store)["channels"]] == [15, 60]


# ---------------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0.0 s"), (1.94, "1.9 s"), (2.0, "2 s"), (119.0, "119 s"), (150.0, "2 min"), (7300.0, "2 h"), (1e6, "12 d")],
)
def test_time_is_told_in_the_unit_that_fits(seconds: float, text: str) -> None:
    assert lasting(seconds) == text


def test_long_lists_of_ranges_are_shortened() -> None:
    assert ranges([]) == "–"
    assert ranges([(1, 1), (1000, 2000)]) == "1, 1,000..2,000"
    assert ranges([(1, 2), (4, 4), (6, 9)], limit=1) == "1..2, … 2 more"
