"""Many senders in one process: none waits for another, nothing is lost, and what they used is given back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.sender.sender import Sender
from tests.unit.sender.proxy import PATIENCE_S
from tests.unit.server.harness import RunningServer

LONG = [pytest.mark.long, pytest.mark.timeout(600)]


def threads() -> set[str]:
    """Of senders; the server in the same process has its own."""
    kinds = ("link", "ring", "flusher", "errors", "events", "progress", "drainer")
    names = tuple(f"holdfast-{kind}" for kind in kinds)
    return {thread.name for thread in threading.enumerate() if thread.name.startswith(names)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with RunningServer(tmp_path / "data") as running:
        yield running


@pytest.mark.parametrize(
    ("count", "mode"),
    [(100, "memory"), (30, "slot"), pytest.param(2000, "memory", marks=LONG), pytest.param(500, "slot", marks=LONG)],
)
def test_many_senders_in_one_process_deliver_and_leave_no_thread(
    server: RunningServer, tmp_path: Path, count: int, mode: str
) -> None:
    before = threads()
    keys = {"addr": f"127.0.0.1:{server.port}", "initial_connect_retry": "async"}
    if mode == "slot":
        keys |= {"sf_dir": str(tmp_path / "sf"), "sf_max_segment_bytes": "64k"}
    senders = [
        Sender(**keys, **({"sender_id": f"s-{number}"} if mode == "slot" else {}))  # type: ignore[arg-type]
        for number in range(count)
    ]
    for number, sender in enumerate(senders):
        sender.send("many", [{"n": number}, {"n": number + count}])
    for sender in senders:
        assert sender.drain(PATIENCE_S)
    for sender in senders:
        sender.close()
    assert sorted(map(int, map(str, server.rows("many")))) == list(range(2 * count))
    assert threads() <= before
    assert not list((tmp_path / "sf").glob("*/*.sfa"))


def test_many_senders_without_a_server_close_at_once_and_keep_their_frames(tmp_path: Path) -> None:
    before = threads()
    senders = [
        Sender(
            addr="127.0.0.1:1", initial_connect_retry="async", close_flush_timeout_millis=0,
            sf_dir=str(tmp_path / "sf"), sender_id=f"s-{number}", sf_max_segment_bytes="64k",
        )
        for number in range(30)
    ]  # fmt: skip
    for number, sender in enumerate(senders):
        sender.send("many", {"n": number})
    for sender in senders:
        sender.close()
    assert threads() <= before
    assert len({path.parent for path in (tmp_path / "sf").glob("*/*.sfa")}) == 30
