"""A server with few descriptors or little memory: strangers are turned away, those who are there are served, nothing
that was answered is lost."""

from __future__ import annotations

import http.client
import resource
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast import Store
from tests.e2e.served import ServedProcess
from tests.faults import figures
from tests.faults.needs import need
from tests.unit.server.harness import PATIENCE_S, RawClient, arrow_frame, open_client

AREA = "limits"
DESCRIPTORS = 120
ADDRESS_SPACE_BYTES = 3 << 30


class Limited(ServedProcess):
    """A server under `prlimit`."""

    def __init__(self, directory: Path, *limits: str) -> None:
        super().__init__(directory)
        self._limits = limits

    def command(self, options: object = ()) -> list[str]:
        return ["prlimit", *self._limits, *super().command()]


def send(client: RawClient, number: int) -> None:
    client.send(arrow_frame(number, fsn=number, slot_id=b"limited slot id!"))
    client.acknowledged(client.sent - 1)


@pytest.mark.guarantee("G8")
def test_server_without_descriptors_serves_those_who_are_there(tmp_path: Path) -> None:
    """Many more connections come than there are descriptors; when they go, newcomers are served again."""
    need(AREA, "Linux", "prlimit")
    with Limited(tmp_path / "data", f"--nofile={DESCRIPTORS}:{DESCRIPTORS}") as served, ExitStack() as stack:
        client, answer = open_client(served.port)
        assert answer.status == 101
        stack.enter_context(client)
        send(client, 1)
        crowd = [
            socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S) for _ in range(3 * DESCRIPTORS)
        ]
        for number in range(2, 40):
            send(client, number)
        for member in crowd:
            member.close()
        late = newcomer(served.port)
        stack.enter_context(late)
        send(late, 40)
        assert get_status(served.admin) == 200
        stack.close()
        assert served.terminate() == 0
    assert numbers(tmp_path / "data") == list(range(1, 41))
    figures.note(
        AREA, "out of descriptors, those who are connected are served", descriptors=DESCRIPTORS, strangers=len(crowd)
    )


@pytest.mark.guarantee("G8")
@pytest.mark.long
@pytest.mark.timeout(900)
def test_server_without_memory_loses_nothing_it_answered(tmp_path: Path) -> None:
    """The address space is bounded; frames that do not fit are refused or end the process, the rest is kept."""
    need(AREA, "Linux", "prlimit")
    answered: list[int] = []
    limit = f"--as={ADDRESS_SPACE_BYTES}:{ADDRESS_SPACE_BYTES}"
    with Limited(tmp_path / "data", limit) as served:
        for round_ in range(3):
            with suppress(OSError, EOFError, AssertionError):
                flood(served.port, round_ * 1000, answered)
            if served.process.poll() is not None:
                served.wait()
                served.start()
        served.kill()
    assert set(answered) <= set(numbers(tmp_path / "data"))
    figures.note(
        AREA, "out of memory, nothing that was answered is lost", profile="long", frames_answered=len(answered)
    )


def flood(port: int, start: int, answered: list[int]) -> None:
    """Large frames on many connections at once."""
    with ExitStack() as stack:
        clients = []
        for place in range(40):
            client, answer = open_client(port)
            assert answer.status == 101
            clients.append(stack.enter_context(client))
            client.send(arrow_frame(start + place, pad_bytes=12 << 20))
        for place, client in enumerate(clients):
            with suppress(AssertionError):
                client.acknowledged(0)
                answered.append(start + place)


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


def numbers(data: Path) -> list[int]:
    with Store.open(data) as store:
        return [n for batch in store.read("trades", columns=["n"]) for n in batch.column(0).to_pylist()]


def test_test_itself_may_open_a_crowd() -> None:
    """The test's own limit must be above what it opens."""
    need(AREA, "Linux")
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft > 5 * DESCRIPTORS
