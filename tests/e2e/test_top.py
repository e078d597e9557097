"""`holdfast top` in front of a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast import Sender
from holdfast.cli.main import app
from tests.e2e.served import PATIENCE_S, ServedProcess, free_port


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServedProcess]:
    found = ServedProcess(tmp_path / "data").start()
    with Sender(addr=f"127.0.0.1:{found.port}") as sender:
        sender.send("trades", [{"n": number} for number in range(7)])
        assert sender.drain(PATIENCE_S)
    yield found
    found.kill()


def test_one_picture_is_printed_where_there_is_no_terminal(server: ServedProcess) -> None:
    result = CliRunner().invoke(app, ["top", "--addr", server.admin])
    assert result.exit_code == 0, result.output
    assert "accepting" in result.output
    assert any(line.split()[:1] == ["trades"] and "7" in line.split() for line in result.output.splitlines())


def test_json_has_the_whole_picture(server: ServedProcess) -> None:
    result = CliRunner().invoke(app, ["top", "--addr", server.admin, "--json"])
    picture = json.loads(result.stdout)["result"]
    assert picture["store"]["events"] == 7
    assert picture["channels"]["trades"][:2] == [7, 7]


def test_address_without_a_server_is_an_error_that_names_it() -> None:
    for addr in (f"http://127.0.0.1:{free_port()}", "nonsense"):
        result = CliRunner().invoke(app, ["top", "--addr", addr])
        assert result.exit_code != 0
        assert addr in result.stderr
