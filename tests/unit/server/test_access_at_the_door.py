"""Tokens, certificates, slots and rates as a producer meets them: over a real socket."""

from __future__ import annotations

import base64
import errno
import ssl
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.config.passwords import hash_password
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import Category
from holdfast.model.frame import Entry
from holdfast.server.access.gatekeeper import POLL_INTERVAL_S
from holdfast.server.access.tokens import TokenFile
from holdfast.testing import CrashFilesystem
from holdfast.wire import hfa
from tests.conformance.certificates import OPENSSL, Certificates, make_certificates, make_client_certificate
from tests.unit.server.harness import SLOT, RawClient, RunningServer, arrow_frame, open_client

REVOKED_S = 5
"""What the reference promises: see the HTTP API."""
UUID = "01020304-0506-0708-090a-0b0c0d0e0f10"


def token(running: RunningServer, name: str) -> str:
    """A new token, known to the server."""
    _, secret = TokenFile(LocalFilesystem(), running.config.tokens_path).create(name, now_ns=running.clock.wall_ns())
    running.ask(running.gatekeeper.poll)
    return secret


def let_in(running: RunningServer, secret: str, **headers: str) -> RawClient:
    return running.client(Authorization=f"Bearer {secret}", **headers)


@pytest.mark.guarantee("G12")
def test_token_lets_its_owner_in_and_nobody_else(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        secret = token(running, "app-1")
        assert open_client(running.port)[1].status == 401
        assert open_client(running.port, headers={"Authorization": "Bearer wrong"})[1].status == 401
        with let_in(running, secret) as client:
            client.send(arrow_frame(1))
            client.acknowledged(0)
            assert running.ask(lambda: running.server.state.connections[0].principal) == "app-1"


@pytest.mark.guarantee("G12")
def test_revoked_token_closes_its_live_connections_within_five_seconds(tmp_path: Path) -> None:
    """By construction: a look that has just begun misses it, the next one finds it."""
    assert 2 * POLL_INTERVAL_S < REVOKED_S
    with RunningServer(tmp_path) as running:
        kept, lost = token(running, "kept"), token(running, "lost")
        with let_in(running, kept) as stays, let_in(running, lost) as goes:
            TokenFile(LocalFilesystem(), running.config.tokens_path).revoke("lost", now_ns=running.clock.wall_ns())
            assert goes.closed() == 1008  # found by the watch of the server
            stays.send(arrow_frame(1))
            stays.acknowledged(0)


def test_slot_that_cannot_be_looked_up_is_answered_at_once_and_taken_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    disk = CrashFilesystem()
    who = base64.b64encode(b"a:a long password").decode()
    slot = {"Authorization": f"Basic {who}", "X-Holdfast-Slot-Id": UUID, "X-Holdfast-First-Fsn": "0"}
    users = {"a": {"password_hash": hash_password("a long password").text}}
    settings = {"ingest.handshake_timeout": "10m", "auth.users": users}
    with RunningServer(tmp_path, settings, access_filesystem=disk) as running:
        disk.fail_when(lambda _operation, path: errno.EIO if "bindings" in path.name else None)
        _, answer = open_client(running.port, headers=slot)
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert running.ask(lambda: dict(running.server.state.totals.handshakes_refused)) == {503: 1}
        assert "server.handshake.fail" in caplog.text
        disk.stop_failing()
        client, answer = open_client(running.port, headers=slot)
        client.close()
        assert answer.status == 101


@pytest.mark.guarantee("G12")
def test_slot_of_one_principal_is_closed_to_others(tmp_path: Path) -> None:
    slot = {"X_Holdfast_Slot_Id": UUID, "X_Holdfast_First_Fsn": "0"}
    with RunningServer(tmp_path) as running:
        owner, other = token(running, "owner"), token(running, "other")
        with let_in(running, owner, **slot) as client:
            client.send(arrow_frame(1))
            client.acknowledged(0)
        headers = {"X-Holdfast-Slot-Id": UUID, "X-Holdfast-First-Fsn": "0", "Authorization": f"Bearer {other}"}
        assert open_client(running.port, headers=headers)[1].status == 403
        with let_in(running, other) as client:
            client.send(arrow_frame(2, fsn=0))
            assert client.refusal().category is Category.SECURITY_ERROR
        assert running.rows("trades") == [1]


@pytest.mark.guarantee("G12")
def test_message_id_of_one_principal_hides_no_message_of_another(tmp_path: Path) -> None:
    with RunningServer(tmp_path) as running:
        for n, name in enumerate(("owner", "other")):
            with let_in(running, token(running, name)) as client:
                for wire_seq in range(2):
                    client.send(arrow_frame(n, guid=SLOT))
                    client.acknowledged(wire_seq)
        assert running.rows("trades") == [0, 1]


def test_principal_with_too_many_connections_is_told_when_to_come_back(tmp_path: Path) -> None:
    limits = {"app-*": {"connections": 1}}
    with RunningServer(tmp_path, {"limits": limits}) as running:
        secret = token(running, "app-1")
        with let_in(running, secret):
            _, answer = open_client(running.port, headers={"Authorization": f"Bearer {secret}"})
            assert answer.status == 429
            assert int(answer.headers["Retry-After"]) >= 1
        running.until(lambda: not running.server.state.connections)
        let_in(running, secret).close()


def test_principal_above_its_rate_is_read_more_slowly_but_loses_nothing(tmp_path: Path) -> None:
    limits = {"*": {"frames_per_second": 100}}
    with RunningServer(tmp_path, {"limits": limits}) as running, running.client() as client:
        for fsn in range(130):
            client.send(arrow_frame(fsn, fsn=fsn))
        running.until(lambda: running.server.state.connections[0].paused == "quota")
        assert client.acknowledged(129) == {"trades": 130}


@pytest.mark.guarantee("G12")
@pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command to make an authority")
def test_client_certificate_names_the_principal(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls")
    cert, key = make_client_certificate(tmp_path / "tls", name="app-7")
    settings = {
        "tls.cert": str(files.cert),
        "tls.key": str(files.key),
        "tls.client_ca": str(files.authority),
    }
    with RunningServer(tmp_path / "data", settings, tls=True) as running:
        context = ssl.create_default_context(cafile=str(files.authority))
        assert open_client(running.port, context=context)[1].status == 401
        context.load_cert_chain(cert, key)
        client, answer = open_client(running.port, context=context)
        with client:
            assert answer.status == 101
            client.send(arrow_frame(1))
            client.acknowledged(0)
            assert running.ask(lambda: running.server.state.connections[0].principal) == "app-7"


@pytest.mark.skipif(OPENSSL is None, reason="needs the openssl command to make an authority")
def test_certificates_are_replaced_without_a_restart(tmp_path: Path) -> None:
    old, new = make_certificates(tmp_path / "old"), make_certificates(tmp_path / "new")
    settings = {"tls.cert": str(tmp_path / "cert.pem"), "tls.key": str(tmp_path / "key.pem")}

    def install(files: Certificates) -> None:
        (tmp_path / "cert.pem").write_bytes(files.cert.read_bytes())
        (tmp_path / "key.pem").write_bytes(files.key.read_bytes())

    install(old)
    with RunningServer(tmp_path / "data", settings, tls=True) as running:
        before, _ = open_client(running.port, context=ssl.create_default_context(cafile=str(old.authority)))
        install(new)
        assert running.ask(lambda: running.server.reload(running.config)) == []
        after, answer = open_client(running.port, context=ssl.create_default_context(cafile=str(new.authority)))
        with before, after:
            assert answer.status == 101
            before.send(arrow_frame(1))
            before.acknowledged(0)


@pytest.mark.guarantee("G12")
def test_channels_of_a_frame_that_is_refused_do_not_count(tmp_path: Path) -> None:
    settings = {"limits": {"app": {"channels": 3}}}
    number, text = pa.record_batch({"n": pa.array([1])}), pa.record_batch({"n": pa.array(["x"])})
    with RunningServer(tmp_path, settings) as running:
        secret = token(running, "app")
        for entries, is_stored in (
            ([("trades", number)], True),
            ([("a", number), ("b", number), ("c", number)], False),  # one channel too many
            ([("d", number), ("trades", text)], False),  # a schema that does not fit
            ([("e", number), ("f", number)], True),
            ([("g", number)], False),
        ):
            with let_in(running, secret) as client:
                client.send(b"".join(hfa.encode([Entry(channel, rows) for channel, rows in entries])))
                if is_stored:
                    client.acknowledged(0)
                else:
                    client.refusal()
        assert running.gatekeeper.bindings.channels_of("app") == {"trades", "e", "f"}


@pytest.mark.guarantee("G12")
def test_channel_that_the_store_refuses_does_not_count_for_its_principal(tmp_path: Path) -> None:
    settings = {"limits": {"app": {"channels": 2}}}
    with RunningServer(tmp_path, settings, store={"max_channels": 2}) as running:
        secret = token(running, "app")
        for channel, is_stored in (("trades", True), ("Trades", False), ("quotes", True), ("third", False)):
            with let_in(running, secret) as client:
                client.send(arrow_frame(1, channel=channel))
                if is_stored:
                    client.acknowledged(0)
                else:
                    client.refusal()
        assert running.gatekeeper.bindings.channels_of("app") == {"trades", "quotes"}
