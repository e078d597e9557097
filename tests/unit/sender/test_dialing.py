"""What an attempt to connect leaves behind when a server does not take it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from pathlib import Path

import pytest
from picows import WSListener

from holdfast.sender.conf import SenderConfig
from holdfast.sender.dialing import DialFailed, dial, tls_context
from tests.unit.server.access.authority import Authority, settings

PATIENCE_S = 30.0
NO = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"


class Unhelpful:
    """A TLS server that answers one request and then does nothing until its peer is gone."""

    def __init__(self, certificate: Path, key: Path, answer: bytes) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(certificate, key)
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.peer_is_gone = threading.Event()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def _serve(self) -> None:
        with self._listener.accept()[0] as plain:
            plain.settimeout(PATIENCE_S)
            try:
                with self._context.wrap_socket(plain, server_side=True, suppress_ragged_eofs=True) as secured:
                    secured.recv(65536)
                    secured.sendall(self._answer)
                    if secured.recv(1) == b"":
                        self.peer_is_gone.set()
            except (
                ssl.SSLError,
                ConnectionResetError,
            ):  # the peer's time was over before this thread came to the handshake
                self.peer_is_gone.set()

    def __enter__(self) -> Unhelpful:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(PATIENCE_S)
        self._listener.close()


@pytest.mark.parametrize("answer", [NO, b"no http\r\n\r\n", b""])
def test_attempt_that_failed_leaves_no_connection_open(tmp_path: Path, answer: bytes) -> None:
    """TLS says goodbye before it closes; the loop that would wait for the answer ends with a sender that gives up."""
    authority = Authority(tmp_path)
    files = settings(authority.issue("localhost"))
    with Unhelpful(Path(files.tls_cert), Path(files.tls_key), answer) as server:
        patience_ms = 500 if not answer else 20_000
        roots = f"tls_roots={authority.pem};auth_timeout_ms={patience_ms};"
        config = SenderConfig.from_conf(f"wss::addr=localhost:{server.port};{roots}")

        async def attempt() -> None:
            with pytest.raises(DialFailed):
                await dial(config, config.addr[0], WSListener(), tls=tls_context(config))

        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(attempt())
        finally:
            loop.close()
        assert server.peer_is_gone.wait(PATIENCE_S)
