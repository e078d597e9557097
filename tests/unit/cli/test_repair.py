"""`holdfast repair`: what it says, what it does, and its exit codes."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast import Store
from holdfast.cli.main import app
from holdfast.disk.appendlog import read_log_file
from holdfast.disk.local import LocalFilesystem
from tests.unit.store.left_behind import flip, logs, make_store, picture, segments


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store")


@pytest.fixture
def damaged(store: Path) -> Path:
    """A store with a damaged record that held events 9 and 10 of `orders`."""
    path = logs(store)[0]
    found = read_log_file(LocalFilesystem(), path, last=False)
    flip(path, found.records[len(found.records) // 2].position - found.header.start_position + 60)
    return store


def call(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["repair", *map(str, arguments)])
    return done.exit_code, done.output


def document(*arguments: str | Path) -> tuple[int, dict[str, object]]:
    done = CliRunner().invoke(app, ["repair", *map(str, arguments), "--json"])
    return done.exit_code, json.loads(done.stdout)


def test_sound_store_has_nothing_to_repair(store: Path) -> None:
    code, text = call(store)
    assert code == 0
    assert "nothing to repair" in text


def test_dry_run_names_the_lost_seqs_and_changes_nothing(damaged: Path) -> None:
    before = {path: content for path, content in picture(damaged).items() if not path.endswith(("/lock", "/store"))}
    code, text = call(damaged)
    assert code == 1
    assert "wal/wal-0000000001.log" in text
    assert "Nothing was changed" in text
    row = next(line.split() for line in text.splitlines() if line.strip().startswith("orders") and "damage" in line)
    assert row == ["orders", "9", "10", "2", "damage"]
    after = {path: content for path, content in picture(damaged).items() if not path.endswith(("/lock", "/store"))}
    assert after == before


def test_apply_repairs_and_says_where_the_old_files_are(damaged: Path) -> None:
    code, text = call(damaged, "--apply")
    assert code == 0
    (quarantine,) = (damaged / "quarantine").iterdir()
    assert str(quarantine) in text
    assert (quarantine / "wal" / "wal-0000000001.log").exists()
    assert call(damaged)[0] == 0
    with Store.open(damaged) as opened:
        assert sum(batch.num_rows for batch in opened.read("orders")) == 49


def test_dry_run_as_json_is_one_document_that_says_no(damaged: Path) -> None:
    code, answer = document(damaged)
    assert (code, answer["command"], answer["ok"]) == (1, "repair", False)
    result = answer["result"]
    assert isinstance(result, dict)
    assert result["quarantine"] == ""
    assert result["plan"]["missing"] == [{"channel": "orders", "first_seq": 9, "last_seq": 10, "reason": "damage"}]


def test_applied_repair_as_json_is_one_document_that_says_yes(damaged: Path) -> None:
    code, answer = document(damaged, "--apply")
    assert (code, answer["ok"]) == (0, True)
    result = answer["result"]
    assert isinstance(result, dict)
    assert "wal/wal-0000000001.log" in result["quarantined"]
    report = json.loads((Path(result["quarantine"]) / "report.json").read_text())
    assert report == result["plan"]


def test_catalog_is_rebuilt_on_request_though_nothing_is_wrong(store: Path) -> None:
    code, text = call(store, "--rebuild-catalog")
    assert code == 1
    assert "write anew" in text
    assert call(store, "--rebuild-catalog", "--apply")[0] == 0
    assert (next((store / "quarantine").iterdir()) / "catalog.db").exists()
    assert call(store)[0] == 0


def test_apply_on_a_sound_store_does_nothing(store: Path) -> None:
    code, text = call(store, "--apply")
    assert code == 0
    assert "nothing to repair" in text
    assert not (store / "quarantine").exists()


def test_several_findings_are_repaired_at_once(damaged: Path) -> None:
    segments(damaged)[0].unlink()
    flip(segments(damaged)[1], 3000)
    code, text = call(damaged, "--apply")
    assert code == 0
    assert "were rescued" in text
    assert call(damaged)[0] == 0


@pytest.mark.parametrize("arguments", [["--unknown"], ["nowhere"]])
def test_wrong_usage_has_exit_code_two(tmp_path: Path, arguments: list[str]) -> None:
    assert CliRunner().invoke(app, ["repair", *arguments]).exit_code == 2
    assert call(tmp_path)[0] == 2, "a directory without a store"


def test_store_in_use_has_exit_code_three_and_names_the_process(damaged: Path) -> None:
    lock = LocalFilesystem().lock(damaged / "lock")
    try:
        done = CliRunner().invoke(app, ["repair", str(damaged), "--apply"])
    finally:
        lock.release()
    assert done.exit_code == 3
    assert "in use by process" in done.stderr


def test_failing_disk_has_exit_code_four(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_self: LocalFilesystem, path: Path) -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(LocalFilesystem, "makedir", fail)
    done = CliRunner().invoke(app, ["repair", str(damaged), "--apply"])
    assert done.exit_code == 4
    assert "Input/output error" in done.stderr


def test_what_cannot_be_known_is_said(store: Path) -> None:
    path = logs(store)[-1]
    found = read_log_file(LocalFilesystem(), path, last=True)
    flip(path, found.records[-1].position - found.header.start_position + 60)
    code, text = call(store)
    assert code == 1
    assert "unsure" in text
