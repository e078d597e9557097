"""What `holdfast inspect` and `holdfast verify` print, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from tests.unit.store.left_behind import flip, logs, make_store, picture, segments


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


def call(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "160"})
    assert result.exit_code == code, result.output
    return result.stdout


def call_json(*arguments: object, code: int = 0) -> dict[str, Any]:
    document = json.loads(call(*arguments, "--json", code=code))
    assert document["command"] == arguments[0]
    assert document["ok"] == (code == 0)
    result: dict[str, Any] = document["result"]
    return result


# --------------------------------------------------------------------------------------------------------------- verify


def test_intact_store_ends_with_that_verdict(store: Path) -> None:
    text = call("verify", store)
    assert text.splitlines()[-1] == f"intact: {store}"
    assert "6 segments" in text
    assert "1,551 events" in text


def test_damaged_store_ends_with_one_and_names_file_and_byte(store: Path) -> None:
    flip(logs(store)[0], 100)
    flip(segments(store)[1], 300)
    text = call("verify", store, code=1)
    assert "damage wal/wal-0000000001.log, byte 64: " in text
    assert "damage channels/trades/seg-2.arrow, byte 0: " in text
    assert f"damaged in 2 places: {store}" in text
    assert "0000000040  " in text, "the bytes of the bad record are shown"


def test_verify_as_json_carries_the_findings(store: Path) -> None:
    path = segments(store)[0]
    path.unlink()
    result = call_json("verify", store, code=1)
    assert not result["intact"]
    assert result["segments"] == 5
    assert result["findings"] == [
        {"severity": "damage", "file": str(path), "offset_bytes": 0, "reason": "is missing", "dump": ""}
    ]


def test_note_alone_does_not_make_the_answer_no(store: Path) -> None:
    (store / "readme.txt").write_text("mine")
    text = call("verify", store)
    assert "note readme.txt: is not a file of a store" in text
    assert text.splitlines()[-1].startswith("intact")


# -------------------------------------------------------------------------------------------------------------- inspect


def test_store_is_shown_with_channels_and_log_files(store: Path) -> None:
    text = call("inspect", store)
    assert "not open in any process" in text
    assert "trades" in text
    assert "wal/wal-0000000003.log" in text


def test_log_is_shown_record_by_record_with_identities(store: Path) -> None:
    text = call("inspect", logs(store)[0], "--limit", 0)
    assert "floors" in text
    assert "trades #1: id int64, text string" in text
    assert "trades 1..60, orders 1..2; 62 rows, committed_id 1; slot 736c6f74… fsn 1" in text


def test_long_table_shows_its_beginning_and_its_end(store: Path) -> None:
    text = call("inspect", logs(store)[0], "--limit", 4)
    assert "11 more records; --limit 0 shows all" in text
    assert "fsn 12" in text
    assert "fsn 6" not in text


def test_log_as_json_has_all_records_whatever_the_limit(store: Path) -> None:
    result = call_json("inspect", logs(store)[0], "--limit", 2)
    assert result["kind"] == "log"
    assert len(result["records"]) == 15
    assert result["records"][3]["content"]["identity"]["fsn"] == 1


def test_segment_is_shown_with_columns_and_ranges(store: Path) -> None:
    text = call("inspect", segments(store)[0])
    assert "channel 'trades'" in text
    assert "seq 1.." in text
    assert "int64" in text
    assert call_json("inspect", segments(store)[0])["channel"] == "trades"


def test_catalog_is_shown_with_channels_and_segments(store: Path) -> None:
    text = call("inspect", store / "catalog.db", "--limit", 3)
    assert "store_id: " in text
    assert "3 more; --limit 0 shows all" in text
    assert call_json("inspect", store / "catalog.db")["rows"]["segments"] == 6


@pytest.mark.parametrize("name", ["log", "segment", "catalog", "store"])
def test_damaged_file_is_shown_and_ends_with_one(store: Path, name: str) -> None:
    catalog = store / "catalog.db"
    flip(logs(store)[0], 100)
    flip(segments(store)[0], 300)
    flip(catalog, catalog.read_bytes().rfind(b"events"))
    path = {"log": logs(store)[0], "segment": segments(store)[0], "catalog": catalog, "store": store}[name]
    assert "damage " in call("inspect", path, code=1)
    call_json("inspect", path, code=1)


def test_torn_tail_is_explained_and_ends_with_zero(store: Path) -> None:
    path = logs(store)[-1]
    last = call_json("inspect", path)["records"][-1]
    path.write_bytes(path.read_bytes()[: last["offset_bytes"] + 20])
    text = call("inspect", path)
    assert f"torn tail byte {last['offset_bytes']}: " in text
    assert "the next start cuts it off" in text


def test_neither_command_changes_the_store(store: Path) -> None:
    before = picture(store)
    call("verify", store)
    call("inspect", store)
    call("inspect", store / "catalog.db")
    assert picture(store) == before
