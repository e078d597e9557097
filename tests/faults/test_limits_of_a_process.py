"""A server with few descriptors or little memory: strangers are turned away, those who are there are served, nothing
that was answered is lost."""

from __future__ import annotations

import http.client
import resource
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast import Store
from holdfast.testing.history import Accepted, Crash, Happening, Restart, Row, Sent, Stored, require
from holdfast.wire import replies
from tests.e2e.served import ServedProcess
from tests.faults import figures
from tests.faults.needs import need
from tests.unit.server.harness import PATIENCE_S, RawClient, arrow_frame, open_client

AREA = "limits"
CHANNEL = "trades"
DESCRIPTORS = 120
FRAME_PAD_BYTES = 12 << 20


class Limited(ServedProcess):
    """A server under `prlimit`."""

    def __init__(self, directory: Path, *limits: str) -> None:
        super().__init__(directory)
        self._limits = limits

    def command(self, options: object = ()) -> list[str]:
        return ["prlimit", *self._limits, *super().command()]


def send(client: RawClient, number: int) -> list[Happening]:
    """Send one and wait for its answer."""
    client.send(arrow_frame(number, fsn=number, slot_id=b"limited slot id!"))
    client.acknowledged(client.sent - 1)
    return [Sent("the slot", CHANNEL, (number,)), Accepted(CHANNEL, (number,))]


@pytest.mark.guarantee("G11")
def test_server_without_descriptors_serves_those_who_are_there(tmp_path: Path) -> None:
    """Many more connections come than there are descriptors; when they go, newcomers are served again."""
    need(AREA, "Linux", "prlimit")
    with Limited(tmp_path / "data", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}") as served, ExitStack() as stack:
        client, answer = open_client(served.port)
        assert answer.status == 101
        stack.enter_context(client)
        history = send(client, 1)
        crowd = [
            socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) for _ in range(3 * DESCRIPTORS)
        ]
        for number in range(2, 40):
            history += send(client, number)
        for member in crowd:
            member.close()
        late = newcomer(served.port)
        stack.enter_context(late)
        history += send(late, 40)
        assert get_status(served.admin) == 200
        stack.close()
        assert served.terminate() == 0
    require([*history, stored(tmp_path / "data")])
    figures.note(
        AREA, "out of descriptors, those who are connected are served", descriptors=DESCRIPTORS, strangers=len(crowd)
    )


@dataclass(frozen=True)
class Pressure:
    """How little memory is left, and how many large frames come at once."""

    profile: str
    rounds: int
    connections: int
    left_bytes: int
    """Address space beyond what the server takes at rest: that differs from machine to machine, by gigabytes."""


PRESSURES = [
    Pressure("quick", rounds=2, connections=6, left_bytes=32 << 20),
    pytest.param(
        Pressure("long", rounds=6, connections=40, left_bytes=512 << 20),
        marks=[pytest.mark.long, pytest.mark.timeout(900)],
    ),
]


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("pressure", PRESSURES, ids=lambda pressure: pressure.profile)
def test_server_without_memory_loses_nothing_it_answered(tmp_path: Path, pressure: Pressure) -> None:
    """Frames that do not fit are refused, their connections are closed, or the process ends; the rest is kept. With
    memory it serves again, by itself or started again."""
    need(AREA, "Linux")
    flood, deaths = Flood(), 0
    with ServedProcess(tmp_path / "data") as served:
        for round_ in range(pressure.rounds):
            first = round_ * 1000
            assert flood.small(served.port, first)
            starve(served.process.pid, pressure.left_bytes)
            flood.large(served.port, range(first + 1, first + 1 + pressure.connections))
            starve(served.process.pid, None)
            if not flood.small(served.port, first + 999):
                deaths += 1
                assert served.wait() != 0, "it ended as if all were well"
                flood.history.append(Crash("server"))
                served.start()
                flood.history.append(Restart("server"))
                assert flood.small(served.port, first + 998)
        served.kill()
    require([*flood.history, stored(tmp_path / "data")])
    assert flood.answered >= 2 * pressure.rounds
    assert flood.refused + flood.closed + deaths > 0, "the limit was never felt"
    figures.note(
        AREA,
        "out of memory, nothing that was answered is lost",
        profile=pressure.profile,
        MiB_left=pressure.left_bytes >> 20,
        frames_of_12_MiB=pressure.rounds * pressure.connections,
        frames_answered=flood.answered,
        refused=flood.refused,
        connections_closed=flood.closed,
        ends_of_the_process=deaths,
    )


def starve(pid: int, left_bytes: int | None) -> None:
    """From now on its address space may grow by no more than that; `None` gives it back what it had. One that has just
    ended needs nothing."""
    with suppress(ProcessLookupError, FileNotFoundError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_AS)
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0])
        soft = hard if left_bytes is None else pages * resource.getpagesize() + left_bytes
        resource.prlimit(pid, resource.RLIMIT_AS, (soft, hard))


class Flood:
    """Frames from many connections, and how each was answered."""

    def __init__(self) -> None:
        self.history: list[Happening] = []
        self.answered = 0
        self.refused = 0
        self.closed = 0

    def small(self, port: int, number: int) -> bool:
        """Send one that needs no memory; whether the server took it."""
        with ExitStack() as stack:
            client = self._send(stack, port, number)
            return client is not None and self._hear(client, number)

    def large(self, port: int, sent: range) -> None:
        """Send many that do, all before an answer is read."""
        with ExitStack() as stack:
            clients = [self._send(stack, port, number, FRAME_PAD_BYTES) for number in sent]
            for number, client in zip(sent, clients, strict=True):
                if client is not None:
                    self._hear(client, number)

    def _send(self, stack: ExitStack, port: int, number: int, pad_bytes: int = 0) -> RawClient | None:
        try:
            client, answer = open_client(port)
        except (OSError, EOFError):
            self.closed += 1
            return None
        if answer.status != 101:
            self.refused += 1
            return None
        stack.enter_context(client)
        self.history.append(Sent(f"connection {number}", CHANNEL, (number,)))
        with suppress(OSError):  # it is being closed: what the server has said before is still there
            client.send(arrow_frame(number, pad_bytes=pad_bytes))
        return client

    def _hear(self, client: RawClient, number: int) -> bool:
        try:
            reply = client.reply()
        except (OSError, EOFError, AssertionError):  # the last one: closed, and the server said so
            self.closed += 1
            return False
        if isinstance(reply, replies.Ok):
            self.answered += 1
            self.history.append(Accepted(CHANNEL, (number,)))
        else:
            self.refused += 1
        return isinstance(reply, replies.Ok)


def newcomer(port: int) -> RawClient:
    """One that is let in, at the latest when the server has seen that the others are gone."""
    while True:
        with suppress(EOFError, ConnectionError):
            client, answer = open_client(port)
            if answer.status == 101:
                return client


def get_status(admin: str) -> int:
    parts = urlsplit(admin)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
    connection.request("GET", "/healthz")
    status = connection.getresponse().status
    connection.close()
    return status


def stored(data: Path) -> Stored:
    """What is there, and where."""
    with Store.open(data) as store:
        found = [batch.to_pydict() for batch in store.read(CHANNEL, columns=["n"], system=["_seq"])]
    return Stored(tuple(Row(CHANNEL, seq, n) for one in found for seq, n in zip(one["_seq"], one["n"], strict=True)))


def test_test_itself_may_open_a_crowd() -> None:
    """The test's own limit must be above what it opens."""
    need(AREA, "Linux")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 5 * DESCRIPTORS
