"""The real demo, as a person runs it: server, producers, Spark, a consumer, real SIGKILLs. Process death only."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from holdfast import Sender
from holdfast.cli.demo.events import make_frame
from holdfast.disk.local import LocalFilesystem
from holdfast.store.inspect import inspect_path
from holdfast.store.inspect.directory import StoreView
from holdfast.store.verify import verify_store
from tests.e2e.served import PATIENCE_S, ServedProcess

HOLDFAST = Path(sys.executable).with_name("holdfast")


@pytest.mark.timeout(900)
@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G8")
def test_kills_of_producer_and_server_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    command = [str(HOLDFAST), "demo", "--seconds", "6", "--dir", str(tmp_path / "demo"), "--keep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        said = []
        for line in demo.stdout:
            said.append(line)
            if line.startswith("The server runs on"):
                address = line.split("Console: ")[1].split()[0]
                with urllib.request.urlopen(f"{address}api/v1/channels", timeout=PATIENCE_S) as answer:
                    names = [item["name"] for item in json.load(answer)["data"]]
                assert names == ["otlp.logs", "quotes", "trades"]
                demo.send_signal(signal.SIGINT)
    text = "".join(said)
    assert demo.returncode == 0, text
    assert "0 lost, 0 duplicated" in text
    for figure in ("sent", "accepted by the server", "in Spark", "in Parquet", "lost", "outage of the server, seconds"):
        assert re.search(rf"^ {figure} +[\d,.]+ *$", text, re.MULTILINE), figure
    assert text.count("SIGKILL") >= 3, "one line for each kill, and the announcement"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_event_that_is_there_twice_fails_the_demo(tmp_path: Path) -> None:
    command = [str(HOLDFAST), "demo", "--seconds", "4", "--dir", str(tmp_path / "demo")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as demo:
        assert demo.stdout is not None
        said = []
        for line in demo.stdout:
            said.append(line)
            if "Spark has written its first batch" in line:
                settings = (tmp_path / "demo" / "server.yaml").read_text(encoding="utf-8")
                found = re.search(r'listen: "([^"]+)"', settings)
                assert found is not None
                with Sender(addr=found[1]) as intruder:  # from another slot, so the server takes it for a new frame
                    intruder.send("trades", make_frame("trades", 0))
                    assert intruder.drain(PATIENCE_S)
    text = "".join(said)
    assert demo.returncode == 1, text
    assert "The promise did not hold: 0 lost, 200 duplicated" in text, "once in the store, once in Parquet"


def test_store_that_a_server_is_writing_can_be_verified_and_inspected(tmp_path: Path) -> None:
    server = ServedProcess(tmp_path / "data").start()
    try:
        with Sender(addr=f"127.0.0.1:{server.port}") as sender:
            for number in range(500):
                sender.send("trades", {"n": number})
                sender.flush()
                if number % 100 == 99:
                    report = verify_store(LocalFilesystem(), tmp_path / "data")
                    assert report.intact, report.findings
                    assert report.holder_pid == server.process.pid
                    view = inspect_path(LocalFilesystem(), tmp_path / "data")
                    assert isinstance(view, StoreView)
                    assert view.holder_pid == server.process.pid
            assert sender.drain(PATIENCE_S)
    finally:
        server.kill()
