"""What is sent of an event is sent after the disk has it: shown by the system calls of a real server."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.served import PATIENCE_S
from tests.unit.server.harness import open_client
from tests.unit.sync.served import PATH, Talker
from tests.unit.sync.world import seed, seed_event, sync

EVENTS = 20

pytestmark = [
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
    pytest.mark.timeout(300),
]


class Traced:
    """A server under strace, with one client that writes and one that listens."""

    def __init__(self, directory: Path) -> None:
        self.trace = directory / "trace"
        calls = "trace=fdatasync,fsync,write,writev,sendto,sendmsg"
        self.process = subprocess.Popen(
            [
                *("strace", "-f", "-qq", "-s", "256", "-e", calls, "-o", str(self.trace)),
                *(sys.executable, "-m", "holdfast.cli.main", "serve", "--data", str(directory / "data")),
                *("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            reason = self.process.stderr.read()
            self.end()
            pytest.skip(f"strace may not trace here: {reason.strip()[:200]}")
        self.port = int(line.split()[2].rpartition(":")[2])

    def end(self) -> list[str]:
        """Stop the server; the lines of the trace."""
        lines = self.trace.read_text(errors="replace").splitlines() if self.trace.exists() else []
        if self.process.poll() is None and lines:
            os.kill(int(lines[0].split()[0]), signal.SIGTERM)  # strace itself does not listen while it traces
        self.process.wait(PATIENCE_S)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return self.trace.read_text(errors="replace").splitlines() if self.trace.exists() else []


@pytest.fixture
def traced(tmp_path: Path) -> Iterator[Traced]:
    server = Traced(tmp_path)
    yield server
    if server.process.poll() is None:
        server.end()


def talk(port: int, client_id: str) -> Talker:
    client, answer = open_client(port, PATH, {})
    assert answer.status == 101
    talker = Talker(client)
    talker.ask(seed("connect", token="t", client_id=client_id, last_committed_id=0))
    return talker


@pytest.mark.guarantee("G1")
def test_every_reply_and_broadcast_follows_a_sync_of_its_own(traced: Traced) -> None:
    with talk(traced.port, "A") as origin, talk(traced.port, "B") as peer:
        peer.ask(sync(["P1"]))
        for number in range(EVENTS):
            assert origin.ask(seed("submit_event", **seed_event(f"e{number}")))["type"] == "event_committed"
            assert peer.hear()["type"] == "event_broadcast"
    story = "".join(filter(None, map(_mark, traced.end())))
    first = story.index("C")
    assert story.count("C") == story.count("B") == EVENTS
    assert "S" in story[:first]
    for told in re.split("S+", story[first:].rstrip("S")):
        assert told in {"CB", ""}, f"one sync, then the origin, then the other: {story}"


def _mark(line: str) -> str:
    """S where a sync has ended well, C where the origin is answered, B where another is told."""
    if re.search(r"(fdatasync|fsync)(\(| resumed).*= 0", line):
        return "S"
    if "event_committed" in line:
        return "C"
    return "B" if "event_broadcast" in line else ""
