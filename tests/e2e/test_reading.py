"""`holdfast.read` and `holdfast query`: against a real server, and on a directory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.cli.main import app
from holdfast.errors import BadRequest, UnknownChannel
from tests.e2e.served import PATIENCE_S, ServedProcess


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServedProcess]:
    found = ServedProcess(tmp_path / "data").start()
    with holdfast.Sender(addr=f"127.0.0.1:{found.port}") as sender:
        sender.send("trades", [{"symbol": "ABC" if number % 2 else "XYZ", "qty": number} for number in range(10)])
        sender.send("logs.web", [{"line": "hello"}])
        assert sender.drain(PATIENCE_S)
    yield found
    found.kill()


def run(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return result.stdout if code == 0 else result.stderr


def test_events_come_as_arrow_pandas_and_polars(server: ServedProcess) -> None:
    events = holdfast.read("trades", addr=server.admin, columns=["qty"], start=3, end=5)
    assert events.table.to_pydict() == {"qty": [2, 3, 4]}
    assert len(events) == 3
    assert isinstance(events.to_pandas(), pd.DataFrame)
    assert isinstance(events.to_polars(), pl.DataFrame)
    assert pa.table(events).num_rows == 3
    assert holdfast.read("trades", addr=server.admin, system=["_seq"]).table.column("_seq").to_pylist()[-1] == 10


def test_directory_is_read_as_a_server_is(tmp_path: Path) -> None:
    with holdfast.Store.open(tmp_path / "data") as store:
        store.commit("trades", pa.record_batch({"qty": [1, 2, 3]}))
    assert holdfast.read("trades", path=tmp_path / "data", start=2).table.to_pydict() == {"qty": [2, 3]}
    with pytest.raises(UnknownChannel):
        holdfast.read("quotes", path=tmp_path / "data")
    with pytest.raises(BadRequest, match="two places"):
        holdfast.read("trades", path=tmp_path / "data", addr="http://127.0.0.1:1")


def test_commands_show_the_token_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secured = tmp_path / "secured"
    token = run("token", "create", "alice", "--data", secured).strip()
    server = ServedProcess(secured).start()
    try:
        commands = [("query", "select 1 as one"), ("subscribers", "ls"), ("top", "--once")]
        for command in commands:
            assert "HOLDFAST_TOKEN" in run(*command, "--addr", server.admin, code=3)
        monkeypatch.setenv("HOLDFAST_TOKEN", token)
        for command in commands:
            run(*command, "--addr", server.admin)
    finally:
        server.kill()


def test_query_sees_events_that_are_not_sealed_yet(server: ServedProcess) -> None:
    sql = "select symbol, sum(qty) as qty from trades group by symbol order by symbol"
    rows = json.loads(run("query", sql, "--addr", server.admin, "--json"))["result"]["rows"]
    assert rows == [{"symbol": "ABC", "qty": 25}, {"symbol": "XYZ", "qty": 20}]
    assert "hello" in run("query", 'select line from "logs.web"', "--addr", server.admin)


def test_query_writes_files_that_others_read(server: ServedProcess, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    run("query", "select qty, _seq from trades where qty >= 8 order by qty", "--addr", server.admin, "-o", out)
    assert pq.read_table(out).to_pydict() == {"qty": [8, 9], "_seq": [9, 10]}
    run("query", "select qty from trades limit 1", "--addr", server.admin, "-o", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == '"qty"'
    assert "neither" in run("query", "select 1", "--addr", server.admin, "-o", tmp_path / "out.txt", code=2)


def test_query_that_cannot_be_run_says_why_and_what_there_is(server: ServedProcess) -> None:
    said = run("query", "select * from quotes", "--addr", server.admin, code=2)
    assert "quotes" in said
    assert "trades" in said
