"""How commands end: the exit code, one line on standard error, one JSON document."""

from __future__ import annotations

import errno
import json
import sqlite3
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import holdfast
from holdfast.cli.answer import ExitCode, answering, exit_code
from holdfast.cli.main import app
from holdfast.errors import (
    Backpressure,
    Category,
    CorruptData,
    DiskFull,
    HoldfastError,
    InvalidConfig,
    Locked,
    SenderHalted,
    StoreFailed,
    UnknownChannel,
    UnsupportedFormat,
)

FILE = Path("store/wal/wal-0000000001.log")

ERRORS: list[tuple[Exception, ExitCode]] = [
    (InvalidConfig(key="wal.flush", reason="unknown"), ExitCode.USAGE),
    (UnknownChannel(channel="trades"), ExitCode.USAGE),
    (Locked(file=FILE, holder_pid=12), ExitCode.REFUSED),
    (CorruptData(file=FILE, offset_bytes=64, reason="checksum", dump="00 11 22"), ExitCode.REFUSED),
    (UnsupportedFormat(file=FILE, found=9, supported=1), ExitCode.REFUSED),
    (StoreFailed(file=FILE, reason="sync failed"), ExitCode.FAILED),
    (DiskFull(file=FILE, reason="no space"), ExitCode.FAILED),
    (Backpressure(bound="memory_limit", used_bytes=2, cap_bytes=1, waited_s=1.0), ExitCode.FAILED),
    (OSError(errno.EIO, "Input/output error", str(FILE)), ExitCode.FAILED),
    (PermissionError(errno.EACCES, "Permission denied", str(FILE)), ExitCode.FAILED),
    (ChildProcessError("the writer ended"), ExitCode.FAILED),
    (SenderHalted(category=Category.SECURITY_ERROR, reason="may not", first_fsn=1, last_fsn=1), ExitCode.NO),
]


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda item: type(item).__name__)
def test_every_kind_of_error_has_its_exit_code(error: Exception, code: ExitCode) -> None:
    assert exit_code(error) is code


@pytest.mark.parametrize(("error", "code"), ERRORS, ids=lambda item: type(item).__name__)
def test_error_is_one_line_and_names_the_matter(
    error: Exception, code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as caught, answering("verify", as_json=False):
        raise error
    printed = capsys.readouterr()
    assert caught.value.exit_code == code
    assert printed.out == ""
    assert printed.err.startswith("holdfast: ")
    assert printed.err.count("\n") == 1
    if isinstance(error, HoldfastError):
        assert str(error).partition("\n")[0] in printed.err
    if isinstance(error, OSError) and error.filename:
        assert error.filename in printed.err


def test_error_as_json_is_one_document_with_its_type(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), answering("verify", as_json=True):
        raise Locked(file=FILE, holder_pid=12)
    document = json.loads(capsys.readouterr().out)
    assert (document["command"], document["ok"]) == ("verify", False)
    assert document["error"]["type"] == "Locked"
    assert "process 12" in document["error"]["message"]


def test_mistake_of_the_program_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), answering("verify", as_json=False):
        raise ZeroDivisionError


# --------------------------------------------------------------------------------------------------------- the commands


def test_version_option_prints_the_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"holdfast {holdfast.__version__}\n")


def test_call_without_a_command_shows_the_help() -> None:
    result = CliRunner().invoke(app, [])
    assert result.exit_code == 2
    assert {"demo", "inspect", "verify"} <= set(result.output.split())


@pytest.mark.parametrize("command", ["demo", "inspect", "verify"])
def test_every_command_takes_json(command: str) -> None:
    assert "--json" in CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), sqlite3.OperationalError("database or disk is full")]
)
def test_full_disk_is_told_with_the_way_out(error: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit), answering("serve", as_json=False):
        raise error
    assert "no space left on the disk of the store" in (printed := capsys.readouterr().err)
    assert "free space, then repeat" in printed


def test_file_in_place_of_a_data_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "file")])
    assert result.exit_code == 2
    assert "file is a file; give a directory" in result.stderr


@pytest.mark.parametrize("arguments", [["inspect"], ["verify", "--nothing"], ["demo", "--seconds", "never"], ["sing"]])
def test_bad_usage_ends_with_two(arguments: list[str]) -> None:
    assert CliRunner().invoke(app, arguments).exit_code == 2


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_path_that_is_not_there_ends_with_two_and_says_so(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [command, str(tmp_path / "nothing")])
    assert result.exit_code == 2
    assert "nothing does not exist" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_directory_that_is_no_store_ends_with_two(command: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [command, "--json", str(tmp_path)])
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["type"] == "BadRequest"


def test_file_that_cannot_be_opened_ends_with_four(tmp_path: Path) -> None:
    (tmp_path / "real.log").write_bytes(b"")
    (tmp_path / "wal-0000000001.log").symlink_to(tmp_path / "real.log")  # links are refused
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "wal-0000000001.log")])
    assert result.exit_code == 4
    assert "wal-0000000001.log" in result.stderr
    assert result.stderr.count("\n") == 1


def test_demo_refuses_a_directory_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    result = CliRunner().invoke(app, ["demo", "--dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "is not an empty directory" in result.stderr
    assert (tmp_path / "precious.txt").read_text() == "mine"


def test_demo_without_java_says_so_before_it_starts_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("holdfast.spark.java.find_spec", lambda _name: None)
    result = CliRunner().invoke(app, ["demo", "--dir", str(tmp_path / "demo")])
    assert result.exit_code == 2
    assert 'pip install "holdfast[jre]"' in result.stderr
    assert not (tmp_path / "demo").exists()


def test_demo_in_a_place_that_cannot_be_made_ends_with_four(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(app, ["demo", "--dir", str(tmp_path / "file" / "store")])
    assert result.exit_code == 4
    assert result.stderr.count("\n") == 1
