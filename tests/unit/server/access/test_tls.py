"""TLS 1.2 or newer, client certificates, and new certificates without a restart. Real sockets on loopback."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization as form

from holdfast.errors import InvalidConfig
from holdfast.server.access import ReloadableTls, ssl_context
from tests.unit.server.access.authority import Authority, settings

WAIT_S = 30.0


@contextmanager
def listening(context: ssl.SSLContext) -> Iterator[int]:
    """A server that answers each handshake with the name in the client's certificate."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(WAIT_S)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(WAIT_S)
                    try:
                        with context.wrap_socket(connection, server_side=True) as secured:
                            secured.sendall(repr(secured.getpeercert()).encode())
                    except (ssl.SSLError, OSError):
                        continue

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
            thread.join()


def connect(port: int, context: ssl.SSLContext, *, name: str = "server.example") -> tuple[str, dict[str, Any], str]:
    """TLS version, the server's certificate, and what it said of ours."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as plain,
        context.wrap_socket(plain, server_hostname=name) as secured,
    ):
        answer = secured.recv(65536).decode()
        return str(secured.version()), secured.getpeercert() or {}, answer


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_old_versions_of_tls_are_refused(authority: Authority) -> None:
    context = ssl_context(settings(authority.issue("server.example")))
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    with listening(context) as port:
        assert connect(port, authority.client())[0] == "TLSv1.3"
        modern = authority.client()
        modern.maximum_version = ssl.TLSVersion.TLSv1_2
        assert connect(port, modern)[0] == "TLSv1.2"


def test_a_client_certificate_is_told_if_there_is_one(authority: Authority) -> None:
    config = settings(authority.issue("server.example"), tls_client_ca=str(authority.pem))
    with listening(ssl_context(config)) as port:
        assert "app-1" in connect(port, authority.client(authority.issue("x", common_name="app-1")))[2]
        assert connect(port, authority.client())[2] in ("None", "{}")


@pytest.mark.guarantee("G12")
def test_a_certificate_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    config = settings(authority.issue("server.example"), tls_client_ca=str(authority.pem))
    stranger = Authority(tmp_path / "other").issue("x", common_name="app-1")
    with listening(ssl_context(config)) as port, pytest.raises((ssl.SSLError, OSError)):
        connect(port, authority.client(stranger))


@pytest.mark.guarantee("G12")
def test_a_required_certificate_is_required(authority: Authority) -> None:
    pair = authority.issue("server.example")
    config = settings(pair, tls_client_ca=str(authority.pem), tls_client_cert="required")
    with listening(ssl_context(config)) as port:
        assert "app-1" in connect(port, authority.client(authority.issue("x", common_name="app-1")))[2]
        with pytest.raises((ssl.SSLError, OSError)):
            connect(port, authority.client())


def test_new_handshakes_get_the_new_certificate(authority: Authority, tmp_path: Path) -> None:
    tls = ReloadableTls(settings(authority.issue("server.example")))
    newer = Authority(tmp_path / "newer")
    with listening(tls.context) as port:
        connect(port, authority.client())
        tls.reload(settings(newer.issue("server.example")))
        connect(port, newer.client())
        with pytest.raises(ssl.SSLCertVerificationError):
            connect(port, authority.client())


@pytest.mark.guarantee("G12")
def test_client_authorities_come_and_go_without_a_restart(authority: Authority, tmp_path: Path) -> None:
    pair, one, two = authority.issue("server.example"), Authority(tmp_path / "1"), Authority(tmp_path / "2")
    first, second = (authority.client(ca.issue("x", common_name=f"by-{ca.directory.name}")) for ca in (one, two))
    tls = ReloadableTls(settings(pair))
    with listening(tls.context) as port:
        assert connect(port, first)[2] in ("None", "{}")
        tls.reload(settings(pair, tls_client_ca=str(one.pem)))
        assert "by-1" in connect(port, first)[2]
        with pytest.raises((ssl.SSLError, OSError)):
            connect(port, second)
        tls.reload(settings(pair, tls_client_ca=str(two.pem)))
        assert "by-2" in connect(port, second)[2]
        with pytest.raises((ssl.SSLError, OSError)):
            connect(port, first)


def test_files_that_do_not_hold_name_their_setting_and_change_nothing(authority: Authority, tmp_path: Path) -> None:
    pair, other = authority.issue("server.example"), authority.issue("other.example")
    (tmp_path / "junk").write_text("junk")
    tls = ReloadableTls(settings(pair))
    for config, key in (
        (settings((tmp_path / "missing", pair[1])), "tls.cert"),
        (settings((tmp_path / "junk", pair[1])), "tls.cert"),
        (settings((pair[0], other[1])), "tls.cert"),
        (settings(pair, tls_client_ca=str(tmp_path / "missing")), "tls.client_ca"),
        (settings(pair, tls_client_ca=str(tmp_path / "junk")), "tls.client_ca"),
    ):
        with pytest.raises(InvalidConfig) as caught:
            tls.reload(config)
        assert caught.value.key == key
    with listening(tls.context) as port:
        connect(port, authority.client())


def test_a_key_with_a_passphrase_is_refused_without_asking(authority: Authority, tmp_path: Path) -> None:
    cert, key = authority.issue("server.example")
    loaded = form.load_pem_private_key(key.read_bytes(), None)
    locked = loaded.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b"sesame"))
    (tmp_path / "locked.key").write_bytes(locked)
    with pytest.raises(InvalidConfig, match="the key is encrypted"):
        ssl_context(settings((cert, tmp_path / "locked.key")))
