"""The token of `--addr`: from the file that was named, or from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.jobs import _options
from holdfast.cli.jobsgroup import Place
from holdfast.cli.serverat import server_at

ADDR = "http://127.0.0.1:9001"


def test_environment_has_the_token_where_no_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "of the environment")
    assert server_at(ADDR, None).token == "of the environment"
    found = server_at(ADDR, Path("named"))
    assert (found.token, found.token_file) == ("", "named")


def test_jobs_of_a_server_take_the_token_of_the_environment_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "of the environment")
    assert _options(Place(None, ADDR, None), "trades").token == "of the environment"
    assert _options(Place(None, ADDR, Path("named")), "trades").token == ""
    assert _options(Place(tmp_path, None, None), "trades").token == ""
