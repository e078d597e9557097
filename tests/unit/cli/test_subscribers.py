"""What `holdfast subscribers` prints, and what it removes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast import Store
from holdfast.cli.channels import lasting
from holdfast.cli.subscribers import ranges
from tests.unit.cli.followed_store import CONFIG, call, call_json, make_store, own_figures, refusal
from tests.unit.cli.test_channels import typed
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


# ---------------------------------------------------------------------------------------------------------------- reset


def reset(store: Path, *arguments: object) -> dict[str, dict[str, Any]]:
    result = call_json("subscribers", "reset", "lake", *arguments, "--yes", "--data", store)
    return {move["channel"]: move for move in result["channels"]}


@pytest.mark.parametrize(
    ("to", "again", "skipped", "mark"),
    [
        ("first", 26, 0, 0),
        ("new", 0, 34, 60),
        ("last", 0, 33, 59),
        ("seq:31", 10, 14, 30),
        ("seq:99999", 0, 34, 60),
        ("time:2000-01-01T00:00:00Z", 26, 0, 0),
    ],
)
def test_reset_says_what_comes_again_and_what_is_skipped(
    store: Path, to: str, again: int, skipped: int, mark: int
) -> None:
    (move,) = reset(store, "--channel", "trades", "--to", to).values()
    assert (move["mark_before"], move["mark"]) == (15, mark)
    assert (move["again"], move["skipped"], move["owed"]) == (again, skipped, 34 + again - skipped)
    shown = {lag["channel"]: lag for lag in listed(store)["lake"]["channels"]}
    assert (shown["trades"]["mark"], shown["trades"]["events"]) == (mark, move["owed"])
    assert shown["orders.eu"]["events"] == 15, "the other channel stays as it was"


def test_reset_without_a_channel_moves_all_of_them(store: Path) -> None:
    text = call("subscribers", "reset", "lake", "--to", "new", "--yes", "--data", store)
    assert "trades: mark 15 to 60, 34 events skipped" in text
    assert "orders.eu: mark 0 to 15, 15 events skipped" in text
    assert listed(store)["lake"]["events"] == 0
    assert call_json("subscribers", "show", "lake", "--data", store)["losses"] == []


def test_after_a_reset_the_subscriber_gets_exactly_what_was_announced(store: Path) -> None:
    reset(store, "--channel", "trades", "--to", "seq:8")
    with Store.open(store, CONFIG, inline=True) as opened, opened.subscriber("lake", ["trades", "orders*"]) as lake:
        leases = list(lake.drain())
        seqs = [
            seq for lease in leases if lease.channel == "trades" for seq in range(lease.first_seq, lease.last_seq + 1)
        ]
        assert sorted(seqs) == list(range(8, 61))
        lake.ack("trades", 8, 20)
    assert {lag["channel"]: lag["mark"] for lag in listed(store)["lake"]["channels"]}["trades"] == 20


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("lake", "--to", "first"), "add --yes"),
        (("lake", "--to", "yesterday", "--yes"), "--to 'yesterday' is no position"),
        (("lake", "--to", "first", "--channel", "invoices", "--yes"), "invoices"),
        (("lak", "--to", "first", "--yes"), "did you mean 'lake'?"),
    ],
)
def test_reset_that_is_not_meant_so_changes_nothing(store: Path, arguments: tuple[str, ...], reason: str) -> None:
    assert reason in refusal("subscribers", "reset", *arguments, "--data", store)
    assert listed(store)["lake"]["events"] == 49


def test_reset_on_a_terminal_shows_what_would_change_and_asks(store: Path) -> None:
    arguments = ("subscribers", "reset", "lake", "--to", "seq:8", "--channel", "trades", "--data", store)
    code, said = typed("n", *arguments)
    assert (code, listed(store)["lake"]["events"]) == (1, 49)
    assert "Nothing was changed." in said
    assert "mark 15 to 7" in said
    code, said = typed("y", *arguments)
    assert (code, listed(store)["lake"]["events"]) == (0, 53 + 15)


def test_reset_waits_for_no_store_that_is_in_use(store: Path) -> None:
    with Store.open(store, CONFIG, inline=True):
        refusal("subscribers", "reset", "lake", "--to", "first", "--yes", "--data", store, code=3)


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
