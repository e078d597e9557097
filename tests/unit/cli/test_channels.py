"""What `holdfast channels` prints, and what it removes."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, Popen

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.config import StoreConfig
from holdfast.disk.local import LocalFilesystem
from holdfast.store.limits import LimitsTree
from holdfast.store.verify import verify_store
from holdfast.testing import CrashFilesystem
from tests.unit.cli.followed_store import CONFIG, call, call_json, make_store, refusal, trades
from tests.unit.store.left_behind import flip, picture

SETTINGS = """
max_msgs: 1000
channels:
  orders.>: {max_age: 72h}
  trades: {event_time: at, max_msgs: 0}
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "data")


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    path.write_text(SETTINGS)
    return path


def reopened(directory: Path) -> Store:
    return Store.open(directory, CONFIG, inline=True)


# ------------------------------------------------------------------------------------------------------------------- ls


def test_list_tells_what_each_channel_holds_and_who_follows_it(store: Path) -> None:
    orders, trades_row = call_json("channels", "ls", "--data", store)["channels"]
    assert (trades_row["name"], trades_row["events"]) == ("trades", 60)
    assert (trades_row["first_seq"], trades_row["last_seq"], trades_row["next_seq"]) == (1, 60, 61)
    files = list((store / "channels" / "trades").glob("*.arrow"))
    assert (trades_row["segments"], trades_row["segment_bytes"]) == (6, sum(path.stat().st_size for path in files))
    assert trades_row["followers"] == ["export", "lake"]
    assert orders["name"] == "orders.eu"


def test_events_that_are_only_in_the_log_count(store: Path) -> None:
    orders = call_json("channels", "ls", "--data", store)["channels"][0]
    assert (orders["events"], orders["unsealed_events"]) == (15, 3)
    assert (orders["first_seq"], orders["last_seq"], orders["next_seq"]) == (1, 15, 16)
    assert "In the log only, not in a segment yet: 3 events." in call("channels", "ls", "--data", store)


def test_channel_that_never_had_a_segment_is_listed(tmp_path: Path) -> None:
    disk = CrashFilesystem()
    made = Store.open("/data", CONFIG, filesystem=disk, inline=True)
    made.commit("fresh", pa.record_batch({"id": [1, 2]}))
    left = disk.after_kill()
    for path in left.paths():
        place = tmp_path / path.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(left.read_bytes(path))
    (row,) = call_json("channels", "ls", "--data", tmp_path / "data")["channels"]
    assert (row["name"], row["events"], row["next_seq"], row["segments"]) == ("fresh", 2, 3, 0)
    assert call_json("channels", "show", "fresh", "--data", tmp_path / "data")["columns"][0]["name"] == "id"


def test_events_below_the_floor_of_a_limit_do_not_count(store: Path) -> None:
    with Store.open(store, CONFIG | {"max_msgs": 25}, inline=True):
        pass
    row = call_json("channels", "ls", "--data", store)["channels"][1]
    assert (row["events"], row["first_seq"], row["last_seq"]) == (25, 36, 60)


@pytest.mark.parametrize("command", ["channels", "subscribers", "segments"])
def test_looking_at_a_store_changes_nothing(store: Path, command: str) -> None:
    before = picture(store)
    call(command, "ls", "--data", store)
    assert picture(store) == before


@pytest.mark.parametrize("command", ["channels", "subscribers", "segments"])
def test_list_fits_on_a_hundred_columns(store: Path, command: str) -> None:
    assert max(map(len, call(command, "ls", "--data", store).splitlines()[1:])) <= 100


@pytest.mark.parametrize("command", ["channels", "subscribers", "segments"])
def test_narrow_terminal_cuts_neither_names_nor_numbers(store: Path, command: str) -> None:
    wide = set(call(command, "ls", "--data", store, columns=120).split())
    narrow = set(call(command, "ls", "--data", store, columns=40).split())
    assert "orders.eu" in narrow
    assert {word for word in wide if "─" not in word} <= narrow


def test_long_list_shows_its_ends_and_how_much_is_between(store: Path) -> None:
    text = call("channels", "ls", "--data", store, "--limit", 1)
    assert "orders.eu" in text
    assert "1 row left out at …; --limit 0 shows all." in text
    assert len(call_json("channels", "ls", "--data", store, "--limit", 1)["channels"]) == 2


# ----------------------------------------------------------------------------------------------------------------- show


def test_channel_is_shown_with_its_columns(store: Path) -> None:
    found = call_json("channels", "show", "trades", "--data", store)
    assert [(column["name"], column["type"]) for column in found["columns"]] == [
        ("id", "int64"),
        ("price", "double"),
        ("at", "timestamp[ns, tz=UTC]"),
    ]
    text = call("channels", "show", "trades", "--data", store)
    assert "60 events, seq 1..60; the next one gets seq 61" in text
    assert "followed by export (up to date), lake (34 behind)" in text


def test_limits_say_where_each_of_them_comes_from(store: Path, settings: Path) -> None:
    limits = call_json("channels", "show", "trades", "--data", store, "-c", settings)["limits"]
    found = {row["key"]: (row["text"], row["inherited_from"]) for row in limits}
    assert found["max_msgs"] == ("unlimited", None)
    assert found["max_bytes"] == ("unlimited", "(default)")
    orders = call_json("channels", "show", "orders.eu", "--data", store, "-c", settings)["limits"]
    found = {row["key"]: (row["text"], row["inherited_from"]) for row in orders}
    assert found["max_msgs"] == ("1000", "(all channels)")
    assert found["max_age"] == ("3d", "orders.>")


def test_tree_of_limits_needs_no_store(settings: Path, tmp_path: Path) -> None:
    rows = call_json("channels", "show", "-c", settings, "--data", tmp_path / "nothing")["limits"]
    config = StoreConfig.from_mapping({
        "max_msgs": 1000,
        "channels": {"orders.>": {"max_age": "72h"}, "trades": {"event_time": "at", "max_msgs": 0}},
    })  # fmt: skip
    assert [(row["pattern"], row["key"], row["value"]) for row in rows] == [
        (row.pattern, row.key, row.value) for row in LimitsTree(config).tree()
    ]


def test_tree_for_people_shows_of_a_pattern_only_what_differs(settings: Path) -> None:
    words = [line.split() for line in call("channels", "show", "-c", settings).splitlines()]
    start = next(number for number, line in enumerate(words) if line[:1] == ["orders.>"])
    assert words[start] == ["orders.>", "max_age", "3d", "its", "own", "entry"]
    assert [line[0] for line in words[start + 1 : start + 3] if line] == ["file_slice_max_age"]
    assert ["all", "segment.compression", "none", "default"] in words


def test_settings_are_the_same_from_json_and_yaml(settings: Path, tmp_path: Path) -> None:
    other = tmp_path / "settings.json"
    channels = {"orders.>": {"max_age": "72h"}, "trades": {"event_time": "at", "max_msgs": 0}}
    other.write_text(json.dumps({"max_msgs": 1000, "channels": channels}))
    assert call_json("channels", "show", "-c", other) == call_json("channels", "show", "-c", settings)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "max_msgs: [", "is not YAML that can be read"),
        ("a.yaml", "\nmax_mgs: 1", "a.yaml:2: max_mgs: unknown setting; did you mean max_msgs?"),
        ("a.json", "[]", "is not a mapping of keys to values"),
    ],
)
def test_bad_settings_end_with_two_and_say_what_is_wrong(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    assert message in refusal("channels", "show", "-c", tmp_path / name)


def test_settings_that_do_not_exist_end_with_two(tmp_path: Path) -> None:
    assert "No such file" in refusal("channels", "show", "-c", tmp_path / "none.yaml")


# -------------------------------------------------------------------------------------------------------------- options


@pytest.mark.parametrize(
    "command",
    ["channels ls", "channels show", "channels rm", "subscribers ls", "subscribers show", "subscribers rm",
     "segments ls", "segments show"],
)  # fmt: skip
def test_every_command_takes_data_config_and_json(command: str) -> None:
    text = call(*command.split(), "--help", columns=200)
    assert all(option in text for option in ("--data", "--config", "-c", "--json"))


def test_help_does_not_wait_for_arrow() -> None:
    program = "import sys, holdfast.cli.main; sys.exit('pyarrow' in sys.modules or 'rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


# --------------------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("action", ["show", "rm"])
def test_unknown_channel_ends_with_two_and_a_hint(store: Path, action: str) -> None:
    assert "did you mean 'trades'?" in refusal("channels", action, "trade", "--data", store)
    assert "there are: orders.eu, trades" in refusal("channels", action, "zzz", "--data", store)


def test_place_without_a_store_ends_with_two(tmp_path: Path) -> None:
    assert "--data" in refusal("channels", "ls", "--data", tmp_path / "nothing")
    assert "is not a store" in refusal("channels", "ls", "--data", tmp_path)
    refusal("channels", "rm", "trades", "--yes", "--data", tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_damaged_catalog_ends_with_three_and_names_it(store: Path) -> None:
    path = store / "catalog.db"
    path.write_bytes(path.read_bytes()[:4096] + b"\xff" * (path.stat().st_size - 4096))
    text = refusal("channels", "ls", "--data", store, code=3)
    assert str(store / "catalog.db") in text
    assert "holdfast verify" in text


def test_damaged_log_ends_with_three_and_names_it(store: Path) -> None:
    (log,) = (store / "wal").glob("*.log")
    flip(log, 120)
    assert str(log) in refusal("channels", "ls", "--data", store, code=3)


def test_torn_tail_of_the_log_is_no_error(store: Path) -> None:
    (log,) = (store / "wal").glob("*.log")
    data = log.read_bytes()
    log.write_bytes(data[: len(data.rstrip(b"\0")) - 20])
    orders = call_json("channels", "ls", "--data", store)["channels"][0]
    assert (orders["events"], orders["unsealed_events"]) == (12, 0)


# ------------------------------------------------------------------------------------------------------------------- rm


def test_removed_channel_is_not_shown_and_its_numbers_go_on(store: Path) -> None:
    result = call_json("channels", "rm", "trades", "--yes", "--data", store)
    assert (result["channel"], result["events"], result["segments"], result["next_seq"]) == ("trades", 60, 6, 61)
    assert result["lost"] == [{"subscriber": "lake", "events": 34}]
    assert list((store / "channels" / "trades").glob("*.arrow")) == []
    with reopened(store) as again:
        assert "trades" not in again.channels()
        assert again.commit("trades", trades(0)).first_seq == 61
    assert verify_store(LocalFilesystem(), store).intact


def test_removing_tells_and_counts_what_subscribers_lose(store: Path) -> None:
    text = call("channels", "rm", "trades", "--yes", "--data", store)
    assert "removed 60 events (6 segments" in text
    assert "subscriber lake lost 34 events that it had not confirmed" in text
    assert "its next event gets seq 61" in text
    with reopened(store) as again:
        lost = {(loss.subscriber, loss.reason): loss.events for loss in again.losses()}
    assert lost == {("lake", "removed"): 34, ("", "removed"): 34}


def test_removing_takes_what_is_only_in_the_log_too(store: Path) -> None:
    result = call_json("channels", "rm", "orders.eu", "--yes", "--data", store)
    assert (result["events"], result["next_seq"]) == (15, 16)
    assert result["lost"] == [{"subscriber": "export", "events": 3}, {"subscriber": "lake", "events": 15}]


def test_removing_without_settings_deletes_nothing_else(store: Path) -> None:
    with reopened(store) as other:
        other.deregister("lake")  # so that export has confirmed all of trades, which may go by the default settings
    call("channels", "rm", "orders.eu", "--yes", "--data", store)
    assert call_json("channels", "ls", "--data", store)["channels"][0]["events"] == 60


def test_removing_hands_segments_to_the_archive_script_of_the_settings(store: Path, tmp_path: Path) -> None:
    script, settings = tmp_path / "archive.sh", tmp_path / "settings.json"
    script.write_text(f'#!/bin/sh\nmv "$2" "{tmp_path}/$1-$(basename "$2")"\nrm "$3"\n')
    script.chmod(0o700)
    settings.write_text(json.dumps({"archive_script": str(script), "retention.mode": "limits"}))
    call("channels", "rm", "trades", "--yes", "--data", store, "-c", settings)
    assert len(list(tmp_path.glob("trades-seg-*.arrow.bak"))) == 6


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_removing_where_nobody_can_answer_needs_yes(store: Path, options: list[str]) -> None:
    before = picture(store)
    if options:
        call("channels", "rm", "trades", "--data", store, *options, code=2)
    else:
        assert "deletes 60 events; add --yes" in refusal("channels", "rm", "trades", "--data", store)
    assert picture(store) == before


def typed(answer: str, *arguments: object) -> tuple[int, str]:
    """Exit code and output of a command on a terminal where a person types `answer`."""
    mine, theirs = pty.openpty()
    command = [sys.executable, "-m", "holdfast.cli.main", *map(str, arguments)]
    with Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True) as process:
        os.close(theirs)
        os.write(mine, f"{answer}\n".encode())
        said = bytearray()
        with suppress(OSError):  # how Linux tells the end of a terminal
            while piece := os.read(mine, 4096):
                said += piece
        os.close(mine)
    return process.returncode, said.decode()


def test_person_who_says_no_keeps_the_channel(store: Path) -> None:
    code, text = typed("n", "channels", "rm", "trades", "--data", store)
    assert code == 1
    assert "subscriber lake has not confirmed 34 events" in text
    assert "Nothing was removed." in text
    assert call_json("channels", "ls", "--data", store)["channels"][1]["events"] == 60


def test_person_who_says_yes_removes_the_channel(store: Path) -> None:
    code, text = typed("y", "channels", "rm", "trades", "--data", store)
    assert code == 0
    assert "removed 60 events" in text
    assert [row["name"] for row in call_json("channels", "ls", "--data", store)["channels"]] == ["orders.eu"]


# ------------------------------------------------------------------------------------------------------ a store in use

OWNER = """
import sys
from holdfast import Store
with Store.open(sys.argv[1], {"segment.max_open_duration": "1h", "retention.mode": "limits"}) as store:
    with store.subscriber("lake", ["trades", "orders*"]) as lake:
        lake.ack("trades", 16, 20)
        print("ready", flush=True)
        sys.stdin.readline()
"""


@pytest.fixture
def owner(store: Path) -> Iterator[int]:
    """The pid of a process that has the store open."""
    with subprocess.Popen([sys.executable, "-c", OWNER, store], stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.stdin.write("\n")


def test_store_in_use_is_looked_at_without_disturbing_it(store: Path, owner: int) -> None:
    found = call_json("channels", "ls", "--data", store)
    assert found["holder_pid"] == owner
    assert [channel["events"] for channel in found["channels"]] == [15, 60]
    assert f"open in process {owner}" in call("segments", "ls", "--data", store)
    lake = call_json("subscribers", "show", "lake", "--data", store)["subscriber"]
    assert {lag["channel"]: lag["mark"] for lag in lake["channels"]}["trades"] == 21


@pytest.mark.parametrize("arguments", [["channels", "rm", "trades", "--yes"], ["subscribers", "rm", "lake"]])
def test_nothing_is_removed_from_a_store_in_use(store: Path, owner: int, arguments: list[str]) -> None:
    assert f"in use by process {owner}" in refusal(*arguments, "--data", store, code=3)
    assert [row["events"] for row in call_json("channels", "ls", "--data", store)["channels"]] == [15, 60]
    assert len(call_json("subscribers", "ls", "--data", store)["subscribers"]) == 3
