"""Settings taken while the server runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.config.server import ServerConfig
from holdfast.errors import HoldfastError, InvalidConfig
from tests.unit.server.harness import RunningServer, arrow_frame, open_client


def reload(running: RunningServer, config: ServerConfig) -> list[str] | HoldfastError:
    def act() -> list[str] | HoldfastError:
        try:
            return running.server.reload(config)
        except HoldfastError as error:
            return error

    return running.ask(act)


def test_new_limits_hold_for_those_who_come_later(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as before:
        assert reload(running, replace(running.config, ingest_batch_bytes_max=2048)) == []
        client, answer = open_client(running.port)
        with client:
            assert answer.headers["X-QWP-Max-Batch-Size"] == "2048"
            client.send(arrow_frame(1, pad_bytes=4000))
            assert client.closed() == 1009
        before.send(arrow_frame(1, pad_bytes=4000))
        before.acknowledged(0)


def test_primary_that_becomes_a_replica_answers_then_sends_its_producers_away(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running, running.client() as client:
        client.send(arrow_frame(1))
        client.acknowledged(0)
        assert reload(running, replace(running.config, role="replica")) == []
        assert client.closed() == 1001
        assert open_client(running.port)[1].status == 421


def test_what_needs_a_restart_is_named(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        changed = replace(running.config, listen="127.0.0.1:1", audit_path=str(tmp_path / "audit"))
        assert reload(running, changed) == ["server.listen", "audit.path"]


def test_settings_that_do_not_hold_change_nothing(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        (tmp_path / "bad.json").write_text("{")
        bad = replace(running.config, ingest_connections_max=1, auth_tokens=str(tmp_path / "bad.json"))
        assert isinstance(reload(running, bad), HoldfastError)
        assert running.ask(lambda: running.server.state.config) is running.config
        with running.client(), running.client():
            pass


def test_certificate_that_cannot_be_read_is_refused_by_its_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"tls\.cert"):
        RunningServer(tmp_path, {"tls.cert": str(tmp_path / "no"), "tls.key": str(tmp_path / "no")}, tls=True)
