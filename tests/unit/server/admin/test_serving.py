"""The admin server as such: health, metrics, TLS, slow peers, ending."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast.config.passwords import hash_password
from holdfast.config.server import ServerConfig
from holdfast.errors import CannotListen, StoreFailed
from holdfast.server.admin import bind_admin, serving
from holdfast.server.state import ConnectionInfo
from tests.unit.server.access.authority import Authority
from tests.unit.server.access.gate import basic
from tests.unit.server.admin.running import WAIT_S, Running, batch

PASSWORD = "correct horse"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path) as running:
        yield running


# -- health -----------------------------------------------------------------------------------------------------------


def test_health_tells_durability_and_whether_it_is_insecure(tmp_path: Path) -> None:
    for flush, insecure, durability in (("commit", False, "synced"), ("interval", True, "written")):
        with Running(tmp_path, store={"wal.flush": flush}, insecure=insecure) as server:
            found = server.get("/healthz")
            assert found.status == 200
            assert (found.json["status"], found.json["durability"], found.json["insecure"]) == (
                "ok",
                durability,
                insecure,
            )


@pytest.mark.guarantee("G12")
def test_health_is_open_but_gives_detail_to_administrators_only(tmp_path: Path) -> None:
    with Running(tmp_path, {"access": [{"principal": "root", "allow": "admin"}]}) as server:
        root, other = server.token("root"), server.token("other")
        for headers in ({}, other, {"Authorization": "Bearer hf_wrong"}):
            assert set(server.get("/healthz", headers).json) == {"status", "durability", "insecure"}
        detail = server.get("/healthz", root).json
        assert (detail["failure"], detail["authentication"], detail["role"]) == (None, True, "primary")
        assert server.get("/readyz").json == {"status": "ready"}


@pytest.mark.guarantee("G10")
def test_a_failed_store_is_neither_healthy_nor_ready(server: Running) -> None:
    server.state.failure = StoreFailed(file=Path("wal-1.log"), reason="I/O error")
    health = server.get("/healthz")
    assert (health.status, health.json["status"]) == (503, "failed")
    assert "wal-1.log" in health.json["failure"]
    assert server.get("/readyz").status == 503


def test_a_server_that_drains_is_alive_but_not_ready(server: Running) -> None:
    server.state.draining = True
    assert (server.get("/healthz").status, server.get("/readyz").status) == (200, 503)


# -- metrics ----------------------------------------------------------------------------------------------------------


def test_metrics_have_the_promised_names_and_values(server: Running) -> None:
    server.store.commit("t", batch(5))
    server.store.flush()
    server.store.subscriber("s", ["t"]).close()
    server.state.connections_by_id[1] = ConnectionInfo(1, "p", "a", "ingest", opened_at_ns=1, paused="full")
    server.state.totals.refusals["PARSE_ERROR"] = 3
    server.state.totals.handshakes_refused[401] = 2
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.body.decode())}
    assert all(name.startswith("holdfast_") for name in families)
    assert all(family.documentation for family in families.values())
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    for name in (
        "holdfast_ingest_throttle_total",
        "holdfast_subscriber_dropped_segments_total",
        "holdfast_segment_dropped_total",
        "holdfast_retention_size_emergency_total",
        "holdfast_core_cap_fraction",
        "holdfast_store_failed",
    ):
        assert samples[name,] == 0
    assert samples["holdfast_core_bytes", "0"] > 0
    assert samples["holdfast_commit_events_total",] == 5
    assert samples["holdfast_subscriber_lag_events", "s"] == 5
    assert samples["holdfast_connections", "ingest"] == 1
    assert samples["holdfast_ingest_paused_connections",] == 1
    assert samples["holdfast_ingest_refusals_total", "PARSE_ERROR"] == 3
    assert samples["holdfast_handshakes_refused_total", "401"] == 2
    assert "holdfast_gc_evictions" in families


# -- transport --------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G12")
def test_certificates_passwords_and_tokens_work_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    cert, key = authority.issue("localhost")
    settings = {
        "tls": {"cert": str(cert), "key": str(key), "client_ca": str(authority.pem)},
        "auth.users": {"alice": {"password_hash": hash_password(PASSWORD).text}},
        "access": [{"principal": "*", "allow": "admin"}],
    }
    with Running(tmp_path / "data", settings) as server:
        plain, own = authority.client(), authority.client(authority.issue("x", common_name="app-1"))
        path = "/api/v1/connections"
        assert server.ask("GET", path, tls=plain).status == 401
        assert server.ask("GET", path, tls=own).status == 200
        assert server.ask("GET", path, headers=basic("alice", PASSWORD), tls=plain).status == 200
        assert server.ask("GET", path, headers=basic("alice", "wrong"), tls=own).status == 401
        assert server.ask("GET", path, headers=server.token("app-2"), tls=plain).status == 200
        assert server.ask("GET", "/healthz", tls=plain).status == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            server.ask("GET", "/healthz")
        with pytest.raises(ssl.SSLError):
            server.ask("GET", "/healthz", tls=ssl.create_default_context())


@pytest.mark.guarantee("G12")
def test_no_secret_reaches_a_log_or_an_answer(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    with Running(tmp_path) as server:
        token = server.token("app")["Authorization"]
        secrets = [token.removeprefix("Bearer "), "wr0ng-secret"]
        seen = []
        for headers in ({"Authorization": token}, {"Authorization": "Bearer wr0ng-secret"}, basic("u", "wr0ng-secret")):
            for path in ("/api/v1/channels", "/metrics", "/healthz", "/api/v1/nothing"):
                seen.append(server.get(path, headers).body.decode())
        seen += [caplog.text, b"".join(server.audit_lines).decode()]
        assert not [secret for secret in secrets for text in seen if secret in text]


@pytest.mark.guarantee("G11")
def test_a_peer_that_does_not_finish_its_request_is_cut(tmp_path: Path) -> None:
    with Running(tmp_path, {"ingest.handshake_timeout": "50ms"}) as server:
        peers = [socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) for _ in range(20)]
        for number, peer in enumerate(peers):
            peer.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Slow: "[: number * 2 + 1])
        for peer in peers:
            with peer:
                try:
                    assert peer.recv(1) == b""
                except ConnectionResetError:
                    continue
        assert server.get("/healthz").status == 200


@pytest.mark.guarantee("G11")
def test_peers_that_ask_nothing_keep_nobody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "CONNECTIONS_MAX", 16)
    monkeypatch.setattr(serving, "RESTING_MAX", 8)
    with Running(tmp_path, {"ingest.handshake_timeout": "1m"}) as server:
        peers = []
        for _ in range(10):
            peers.append(server.open("GET /readyz"))
            assert peers[-1].recv(12) == b"HTTP/1.1 200"  # and it stays
        for _ in range(20):
            peers.append(socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S))
            peers[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n")
            assert server.get("/healthz").status == 200
        for peer in peers:
            peer.close()


def test_a_connection_may_be_used_again(server: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_S)
    for _ in range(3):
        connection.request("GET", "/readyz")
        assert json.loads(connection.getresponse().read()) == {"status": "ready"}
    connection.close()


@pytest.mark.parametrize(
    "sent", [b"\x00\x01\x02\r\n\r\n", b"GET\r\n\r\n", b"GET /" + b"x" * 100_000, b"\x16\x03\x01\x02\x00"]
)
def test_bytes_that_are_no_http_do_no_harm(server: Running, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as peer:
        peer.sendall(sent)
        peer.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert peer.recv(65536)[:12] in (b"", b"HTTP/1.1 400")
    assert server.get("/healthz").status == 200


def test_an_address_that_is_taken_is_told(server: Running) -> None:
    with pytest.raises(CannotListen, match=f"127.0.0.1:{server.port}"):
        bind_admin(ServerConfig(admin=f"127.0.0.1:{server.port}"))


def test_serving_leaves_signals_and_logging_alone(tmp_path: Path) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with Running(tmp_path) as server:
        assert server.get("/readyz").status == 200
        assert {number: signal.getsignal(number) for number in before} == before
    assert not [thread for thread in threading.enumerate() if thread.name == "admin"]
