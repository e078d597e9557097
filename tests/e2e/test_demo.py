"""The real demo, as a person runs it: server, producers, Spark, a consumer, real SIGKILLs. Process death only."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from holdfast import Sender
from holdfast.disk.local import LocalFilesystem
from holdfast.store.inspect import inspect_path
from holdfast.store.inspect.directory import StoreView
from holdfast.store.verify import verify_store
from tests.e2e.served import PATIENCE_S, ServedProcess

HOLDFAST = Path(sys.executable).with_name("holdfast")


@pytest.mark.timeout(400)
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
                assert names == ["quotes", "trades"]
                demo.send_signal(signal.SIGINT)
    text = "".join(said)
    assert demo.returncode == 0, text
    assert "0 lost, 0 duplicated" in text
    assert text.count("SIGKILL") >= 3, "one line for each kill, and the announcement"


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
