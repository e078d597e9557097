"""`holdfast send` and `holdfast slots` against the real server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import csv, feather, parquet
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.sender.sender import Sender
from tests.e2e.served import PATIENCE_S, ServedProcess, free_port
from tests.unit.sender.test_orphans import leave
from tests.unit.server.harness import RunningServer

TABLE = pa.table({"n": range(500), "s": [f"text {n}" for n in range(500)]})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with RunningServer(tmp_path_factory.mktemp("data")) as running:
        yield running


def conf(server: RunningServer, **keys: object) -> str:
    return f"ws::addr=127.0.0.1:{server.port};" + "".join(f"{key}={value};" for key, value in keys.items())


def run(*arguments: object, text: str | None = None, code: int = 0) -> str:
    """The command's output, after a look at its exit code."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=text)
    assert result.exit_code == code, result.output
    return result.stdout


def run_json(*arguments: object, code: int = 0) -> dict[str, Any]:
    document = json.loads(run(*arguments, "--json", code=code))
    assert document["ok"] is (code == 0)
    result = document["result"]
    assert isinstance(result, dict)
    return result


# --- send -----------------------------------------------------------------------------------------------------------


def written(folder: Path, kind: str) -> Path:
    """The table as a file."""
    path = folder / f"events.{kind}"
    if kind == "csv":
        csv.write_csv(TABLE, path)
    elif kind == "parquet":
        parquet.write_table(TABLE, path)
    elif kind == "arrow":
        feather.write_feather(TABLE, str(path), compression="uncompressed")
    elif kind == "arrows":
        with pa.ipc.new_stream(str(path), TABLE.schema) as writer:
            writer.write_table(TABLE)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()))
    return path


@pytest.mark.parametrize("kind", ["ndjson", "csv", "parquet", "arrow", "arrows"])
def test_files_of_every_format_are_sent_whole(server: RunningServer, tmp_path: Path, kind: str) -> None:
    channel = f"file-{kind}"
    output = run("send", channel, written(tmp_path, kind), "--conf", conf(server))
    assert "500 events" in output
    assert server.rows(channel) == list(range(500))
    assert server.rows(channel, "s") == TABLE.column("s").to_pylist()


def test_lines_from_standard_input_are_sent_as_they_come(server: RunningServer) -> None:
    command = [sys.executable, "-m", "holdfast.cli.main", "send", "piped", "--conf", conf(server), "--json"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        process.stdin.write('{"n": 1}\n\n{"n": 2}\n')
        process.stdin.flush()
        server.until(lambda: server.rows("piped") == [1, 2])  # while the input is still open
        output, _ = process.communicate('{"n": 3}\n', timeout=PATIENCE_S)
    assert process.returncode == 0
    assert json.loads(output)["result"]["rows"] == 3
    assert server.rows("piped") == [1, 2, 3]


def test_send_takes_its_connect_string_from_the_environment(
    server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CONF", conf(server))
    result = run_json("send", "from-environment", written(tmp_path, "csv"))
    assert (result["rows"], result["refused"], result["answered"]) == (500, [], True)


def test_refused_events_make_the_answer_no(server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_text('{"n": 1}\n')
    (tmp_path / "b.ndjson").write_text('{"n": "text"}\n')
    run("send", "refusing", tmp_path / "a.ndjson", "--conf", conf(server))
    result = run_json("send", "refusing", tmp_path / "b.ndjson", "--conf", conf(server), code=1)
    assert "SCHEMA_MISMATCH" in result["refused"][0]


def test_admin_address_in_a_connect_string_is_told_apart(tmp_path: Path) -> None:
    served = ServedProcess(tmp_path / "data").start()
    try:
        admin = served.admin.removeprefix("http://")
        told = run("send", "a", written(tmp_path, "csv"), "--conf", f"ws::addr={admin};", "--json", code=4)
        assert "behind data=" in json.loads(told)["error"]["message"]
    finally:
        served.kill()


def test_unanswered_events_make_the_answer_no(tmp_path: Path) -> None:
    away = f"ws::addr=127.0.0.1:{free_port()};initial_connect_retry=async;sf_dir={tmp_path / 'sf'};"
    away += "close_flush_timeout_millis=0;"
    result = run_json("send", "t", written(tmp_path, "csv"), "--conf", away, "--timeout", 0.01, code=1)
    assert not result["answered"]
    assert run_json("slots", "ls", tmp_path / "sf")["slots"][0]["unacknowledged"] == result["frames"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("bad.ndjson", '{"n": 1}\nnot json\n', "line 2"),
        ("bad.ndjson", "[1]\n", "line 1"),
        ("bad.parquet", "not parquet", "parquet"),
        ("bad.unknown", "x", "--format"),
    ],
)
def test_files_that_cannot_be_read_are_bad_usage(
    server: RunningServer, tmp_path: Path, name: str, text: str, said: str
) -> None:
    (tmp_path / name).write_text(text)
    result = CliRunner().invoke(app, ["send", "t", str(tmp_path / name), "--conf", conf(server)])
    assert result.exit_code == 2
    assert said in result.output


def test_file_that_is_not_there_is_bad_usage(server: RunningServer, tmp_path: Path) -> None:
    run("send", "t", tmp_path / "none.csv", "--conf", conf(server), code=2)


def test_server_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    run("send", "t", written(tmp_path, "csv"), "--conf", f"ws::addr=127.0.0.1:{free_port()};", code=4)


# --- slots ----------------------------------------------------------------------------------------------------------


def test_list_shows_what_each_slot_holds(tmp_path: Path) -> None:
    leave(tmp_path / "sf", "one", 3)
    leave(tmp_path / "sf", "two", 5)
    (tmp_path / "sf" / "two" / ".failed").write_text("for a person")
    found = run_json("slots", "ls", tmp_path / "sf")["slots"]
    assert [(item["name"], item["frames"], item["unacknowledged"]) for item in found] == [("one", 3, 3), ("two", 5, 5)]
    output = run("slots", "ls", tmp_path / "sf")
    assert "2 slots, 8 frames to send" in output
    assert "failed: for a person" in output


def test_show_tells_the_channels_and_events_of_each_frame(tmp_path: Path) -> None:
    slot = leave(tmp_path / "sf", "one", 30)
    result = run_json("slots", "show", slot)
    assert len(result["frames"]) == 30
    assert result["frames"][0]["channels"] == {"t": 1}
    output = run("slots", "show", slot, "--limit", 4)
    assert "26 frames in the middle not shown" in output


def test_damaged_slot_makes_the_answer_no(tmp_path: Path) -> None:
    slot = leave(tmp_path / "sf", "one")
    (segment,) = slot.glob("*.sfa")
    gap = bytearray(segment.read_bytes())
    gap[8:16] = (99).to_bytes(8, "little")
    (slot / "sf-00000000000000ff.sfa").write_bytes(gap)
    assert "damaged" in run("slots", "ls", tmp_path / "sf", code=1)
    run("slots", "show", slot, code=1)


def test_dead_letter_that_does_not_say_why_is_shown_as_damage(tmp_path: Path) -> None:
    for name in ("one", "two"):
        leave(tmp_path / "sf", name, 3)
    span = tmp_path / "sf" / "one" / "rejected" / "0-fsn-1-1"
    span.mkdir(parents=True)
    (span / "rejection.json").write_bytes(b'{"first_fsn": 1, "\xff')
    found = run_json("slots", "ls", tmp_path / "sf", code=1)["slots"]
    assert [(item["name"], item["frames"], "rejection.json" in item["damage"]) for item in found] == [
        ("one", 0, True),
        ("two", 3, False),
    ]


def test_directories_that_are_no_slots_are_bad_usage(tmp_path: Path) -> None:
    run("slots", "ls", tmp_path / "none", code=2)
    run("slots", "show", tmp_path, code=2)
    run("slots", "drain", tmp_path / "none", code=2)


def test_drain_sends_all_slots_but_those_in_use_or_marked(server: RunningServer, tmp_path: Path) -> None:
    for name in ("one", "two", "marked"):
        leave(tmp_path / "sf", name, 4)
    (tmp_path / "sf" / "marked" / ".failed").write_text("for a person")
    with Sender(addr=f"127.0.0.1:{server.port}", sf_dir=str(tmp_path / "sf"), sender_id="busy"):
        result = run_json("slots", "drain", tmp_path / "sf", "--conf", conf(server), code=1)
    outcomes = {Path(item["slot"]).name: item["outcome"] for item in result["slots"]}
    assert outcomes == {"busy": "busy", "marked": "failed", "one": "emptied", "two": "emptied"}
    assert server.rows("t") == [0, 1, 2, 3] * 2


def test_refused_span_is_sent_again_by_draining_its_directory(tmp_path: Path) -> None:
    sf_dir = tmp_path / "sf"
    with RunningServer(tmp_path / "one") as refusing, Sender.from_conf(conf(refusing, sf_dir=sf_dir)) as sender:
        for value in (1, "text"):
            sender.send("t", pa.table({"n": [value]}))
            sender.flush()
        assert sender.drain(PATIENCE_S)
    (span,) = run_json("slots", "show", tmp_path / "sf" / "default")["slot"]["rejected"]
    with RunningServer(tmp_path / "two") as willing:
        output = run("slots", "drain", span["path"], "--conf", conf(willing))
        assert "emptied, 1 of 1 frame" in output
        assert willing.rows("t") == ["text"]


@pytest.mark.parametrize("codec", ["arrow", "qwp"])
def test_export_writes_what_a_slot_has_to_send(tmp_path: Path, codec: str) -> None:
    sender = Sender(
        addr=f"127.0.0.1:{free_port()}",
        sf_dir=str(tmp_path / "sf"),
        codec=codec,
        auto_flush=False,
        initial_connect_retry="async",
        close_flush_timeout_millis=0,
    )
    for data in (pa.table({"n": [1, 2]}), pa.table({"n": [3]}), pa.table({"n": [4], "more": ["x"]})):
        sender.send("t", data, at=1_700_000_000_000_000_000)
        sender.flush()
    sender.close()
    result = run_json("slots", "export", tmp_path / "sf" / "default", tmp_path / "out")
    assert (result["frames"], result["events"], len(result["files"])) == (3, 4, 2)
    tables = [feather.read_table(file) for file in result["files"]]
    assert [table.column("n").to_pylist() for table in tables] == [[1, 2, 3], [4]]
    run("slots", "export", tmp_path / "sf" / "default", tmp_path / "out", code=2)
