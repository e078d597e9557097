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
from tests.faults import killing
from tests.unit.dataflow.flows import until
from tests.unit.sender.proxy import Proxy

pytest.importorskip("questdb")
pytestmark = killing.QUICK

ROOT = Path(__file__).parents[2]


class Writer:
    """The client in a process of its own."""

    def __init__(
        self, address: str, directory: Path, sender_id: str, numbers: range, options: str = "", *, pause: int = 0
    ) -> None:
        arguments = [address, str(directory), sender_id, str(numbers.start), str(len(numbers)), options, str(pause)]
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
        while (line := self.process.stdout.readline()) != "published\n":
            assert line.strip().isdigit(), line

    def paused(self) -> None:
        """Wait until it has published the rows before its pause."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "paused\n"

    def go_on(self, rows: int) -> None:
        """End the pause, and wait until it has published so many."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        while int(self.process.stdout.readline()) < rows:
            pass

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
    """Killed when it has taken some frames and others were sent and lost: it gets all that it had not answered."""
    numbers, before = range(2000), 500
    with (
        ServedProcess(tmp_path / "data", port=free_port()) as served,
        Proxy(served.port) as network,
        Writer(f"127.0.0.1:{network.port}", tmp_path / "slots", "w1", numbers, pause=before) as writer,
    ):
        writer.paused()
        until(lambda: last_seq(served.admin) == before, patience_s=PATIENCE_S)
        network.silence()  # what it sends from now on gets lost under way
        writer.go_on(2 * before)
        taken = last_seq(served.admin)
        served.kill()
        network.cut()  # a proxy that is silent would hide that the server is gone
        served.start()
        assert last_seq(served.admin) == taken, "what was taken is there, and what was lost is not"
        writer.published()
        writer.drain()
        assert 0 < taken < len(numbers)
        assert network.connections >= 2
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
    taken, held = 500, 2_000
    with ServedProcess(tmp_path / "data", port=free_port()) as served:
        with (
            Proxy(served.port) as network,
            Writer(f"127.0.0.1:{network.port}", slots, "w1", range(20_000), pause=taken) as writer,
        ):
            writer.paused()
            until(lambda: last_seq(served.admin) == taken, patience_s=PATIENCE_S)
            network.lead_to(free_port())
            network.silence()  # what it sends from now on gets lost under way, and nobody is told
            writer.go_on(held)
            writer.kill()
        assert last_seq(served.admin) == taken, "all else that it published is in its slot only"
        with Writer(f"127.0.0.1:{served.port}", slots, "w1", more) as writer:
            writer.published()
            writer.drain()
        assert served.terminate() == 0
        rows = firsts(served.rows("trades", "n"))
    assert rows == [*range(len(rows) - len(more)), *more]
    assert len(rows) - len(more) >= held


def last_seq(admin: str) -> int:
    """Of the last event that the server has taken."""
    with urlopen(f"{admin}/api/v1/channels") as answer:
        channels = json.load(answer)["data"]
    return int(channels[0]["last_seq"]) if channels else 0


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
