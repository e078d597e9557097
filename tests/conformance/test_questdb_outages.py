"""The real PyPI client `questdb` while servers and clients are killed: nothing that it published is lost.

SIGKILL proves process death, not power loss. This client sends no identity, so a repeat may be stored twice; what must
hold is that every row is there, and that rows first come in the order they were published.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.e2e.served import PATIENCE_S, ServedProcess, free_port

pytest.importorskip("questdb")

ROOT = Path(__file__).parents[2]


class Writer:
    """The client in a process of its own."""

    def __init__(self, address: str, directory: Path, sender_id: str, numbers: range, options: str = "") -> None:
        arguments = [address, str(directory), sender_id, str(numbers.start), str(len(numbers)), options]
        self.process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tests.conformance.questdb_writer", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=ROOT,
        )

    def published(self) -> None:
        """Wait until everything is in the slot."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "published\n"

    def drain(self) -> None:
        """Let it send what is left and end."""
        output, _ = self.process.communicate(timeout=PATIENCE_S)
        assert output == "drained\n"
        assert self.process.returncode == 0

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.communicate()

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def firsts(rows: Sequence[object]) -> list[object]:
    """Each row where it comes first."""
    return list(dict.fromkeys(rows))


@pytest.mark.guarantee("G1")
def test_killed_server_gets_everything_again(tmp_path: Path) -> None:
    numbers = range(2000)
    with (
        ServedProcess(tmp_path / "data", port=free_port()) as served,
        Writer(f"127.0.0.1:{served.port}", tmp_path / "slots", "w1", numbers) as writer,
    ):
        served.kill()
        served.start()
        writer.published()
        served.kill()
        served.start()
        writer.drain()
        assert served.terminate() == 0
        assert firsts(served.rows("trades", "n")) == list(numbers)


def test_killed_client_goes_on_from_its_slot(tmp_path: Path) -> None:
    port, slots = free_port(), tmp_path / "slots"
    with Writer(f"127.0.0.1:{port}", slots, "w1", range(300)) as writer:  # no server yet: all of it stays in the slot
        writer.published()
        writer.kill()
    with (
        ServedProcess(tmp_path / "data", port=port) as served,
        Writer(f"127.0.0.1:{port}", slots, "w1", range(300, 400)) as writer,
    ):
        writer.published()
        writer.drain()
        assert served.terminate() == 0
        assert firsts(served.rows("trades", "n")) == list(range(400))
        assert set(served.rows("trades", "pair")) == {f"pair-{n}" for n in range(5)}


def test_client_killed_while_it_sends_leaves_no_gap_and_goes_on_from_its_slot(tmp_path: Path) -> None:
    slots, more = tmp_path / "slots", range(10_000_000, 10_000_010)
    with ServedProcess(tmp_path / "data", port=free_port()) as served:
        address = f"127.0.0.1:{served.port}"
        with Writer(address, slots, "w1", range(20_000)) as writer:
            wait_for_rows(served.admin)
            writer.kill()
        with Writer(address, slots, "w1", more) as writer:
            writer.published()
            writer.drain()
        assert served.terminate() == 0
        rows = firsts(served.rows("trades", "n"))
    assert rows == [*range(len(rows) - len(more)), *more]


def wait_for_rows(admin: str) -> None:
    """Until the server has taken the first."""
    waiting = threading.Event()
    for _ in range(int(PATIENCE_S / 0.01)):
        with urlopen(f"{admin}/api/v1/channels") as answer:
            if json.load(answer)["data"]:
                return
        waiting.wait(0.01)
    raise AssertionError("nothing came")


def test_orphaned_slot_is_drained_by_another_sender(tmp_path: Path) -> None:
    port, slots = free_port(), tmp_path / "slots"
    with Writer(f"127.0.0.1:{port}", slots, "dead", range(200)) as writer:
        writer.published()
        writer.kill()
    with (
        ServedProcess(tmp_path / "data", port=port) as served,
        Writer(f"127.0.0.1:{port}", slots, "alive", range(200, 210), "drain_orphans=on;") as writer,
    ):
        writer.published()
        wait_until_empty(slots / "dead")
        writer.drain()
        assert served.terminate() == 0
        rows = served.rows("trades", "n")
        assert {*rows} == {*range(210)}
        assert firsts([row for row in rows if isinstance(row, int) and row < 200]) == list(range(200))


def wait_until_empty(slot: Path) -> None:
    """Until the slot holds no frames any more."""
    waiting = threading.Event()
    for _ in range(int(PATIENCE_S / 0.05)):
        if not list(slot.glob("*.sfa")):
            return
        waiting.wait(0.05)
    raise AssertionError(f"{slot} was not drained")
