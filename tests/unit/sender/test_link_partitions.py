"""Connections that are cut or go silent in the middle: everything arrives once, and silence is noticed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from holdfast.sender import dialing
from holdfast.sender.sender import Sender
from tests.unit.sender.proxy import PATIENCE_S, Proxy
from tests.unit.server.harness import RunningServer

FAST = "reconnect_initial_backoff_millis=2;reconnect_max_backoff_millis=20;auto_flush=off;"


@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G4")
@pytest.mark.parametrize("codec", ["arrow", "qwp"])
def test_connections_cut_at_random_moments_lose_and_double_nothing(tmp_path: Path, codec: str) -> None:
    chance = random.Random(8)
    with RunningServer(tmp_path / "data") as server, Proxy(server.port) as proxy:
        with Sender.from_conf(f"ws::addr=127.0.0.1:{proxy.port};codec={codec};{FAST}") as sender:
            for n in range(1500):
                sender.send("t", {"n": n, "pad": "x" * chance.randrange(2000)})
                sender.flush()
                if chance.random() < 0.01:
                    proxy.cut()
            assert sender.drain(PATIENCE_S)
            assert sender.statistics().total_reconnects_succeeded >= 1
        assert server.rows("t") == list(range(1500))


def test_connection_that_goes_silent_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialing, "IDLE_PING_S", 0.05)
    monkeypatch.setattr(dialing, "PONG_TIMEOUT_S", 0.05)
    with RunningServer(tmp_path / "data") as server, Proxy(server.port) as proxy:
        with Sender.from_conf(f"ws::addr=127.0.0.1:{proxy.port};{FAST}") as sender:
            sender.send("t", {"n": 0})
            assert sender.drain(PATIENCE_S)
            proxy.silence()
            sender.send("t", {"n": 1})
            assert sender.drain(PATIENCE_S)
            assert proxy.connections >= 2
        assert server.rows("t") == [0, 1]
