"""The real demo, as a person runs it: real processes, a real SIGKILL, a real disk. Process death, not power loss."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.cli.demo.writer import Answered, Message
from holdfast.disk.local import LocalFilesystem
from holdfast.store.inspect import inspect_path
from holdfast.store.inspect.directory import StoreView
from holdfast.store.verify import verify_store

HOLDFAST = Path(sys.executable).with_name("holdfast")


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HOLDFAST, "demo", *arguments], capture_output=True, text=True, timeout=110, check=False)


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G4")
def test_killed_writer_loses_nothing_and_doubles_nothing() -> None:
    finished = demo("--seconds", "3", "--json")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    result: dict[str, Any] = json.loads(finished.stdout)["result"]
    assert result["held"]
    assert result["kills"] == 3
    assert (result["lost"], result["duplicated"], result["out_of_order"], result["changed"]) == (0, 0, 0, 0)
    assert result["accepted"] == result["stored"] == result["sent"] > 0
    assert [life["killed"] for life in result["lives"]] == [True, True, True, False]
    assert result["resent_frames"] == sum(life["unanswered_frames"] for life in result["lives"])
    assert result["verify"]["intact"]
    assert result["directory"] is None


def test_kept_store_can_be_verified_and_inspected_as_the_demo_says(tmp_path: Path) -> None:
    finished = demo("--seconds", "1", "--kills", "1", "--dir", str(tmp_path / "store"), "--keep")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert "0 lost, 0 duplicated, 0 out of order" in finished.stdout
    commands = [line.split() for line in finished.stdout.splitlines() if line.startswith("  holdfast ")]
    assert [command[1] for command in commands] == ["inspect", "inspect", "inspect", "verify"]
    for command in commands:
        tried = subprocess.run([HOLDFAST, *command[1:]], capture_output=True, text=True, check=False)
        assert tried.returncode == 0, tried.stdout + tried.stderr


def test_store_that_a_process_is_writing_can_be_verified_and_inspected(tmp_path: Path) -> None:
    store = tmp_path / "store"
    command = [sys.executable, "-m", "holdfast.cli.demo.writer", str(store), "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        answered = 0
        looks = 0
        for line in writer.stdout:
            message = msgspec.json.decode(line, type=Message)
            answered += isinstance(message, Answered)
            if isinstance(message, Answered) and answered % 400 == 1 and looks < 5:
                looks += 1
                report = verify_store(LocalFilesystem(), store)
                assert report.intact, report.findings
                assert report.holder_pid == writer.pid
                view = inspect_path(LocalFilesystem(), store)
                assert isinstance(view, StoreView)
                assert view.holder_pid == writer.pid
                if looks == 5:
                    writer.stdin.close()
    assert writer.returncode == 0
    assert looks == 5
    assert verify_store(LocalFilesystem(), store).findings == ()
