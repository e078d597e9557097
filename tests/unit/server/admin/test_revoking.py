"""A credential that ends, ends what it is used for at that moment."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from tests.unit.server.admin.running import ARROW, Running

ROWS_BYTES = 32 << 20
"""More than the buffers of two sockets hold."""


def fill(server: Running) -> None:
    for _ in range(ROWS_BYTES >> 23):
        server.store.commit("t", pa.record_batch({"pad": pa.array([os.urandom(1 << 20)] * 8, pa.binary())}))
    server.store.flush()


def received(peer: socket.socket) -> bytes:
    """What still comes before the connection ends."""
    pieces = []
    with suppress(ConnectionResetError):
        while piece := peer.recv(1 << 20):
            pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("path", ["events", "segments/{}/data"])
def test_revoked_reader_gets_no_more_of_what_is_being_sent(tmp_path: Path, path: str) -> None:
    with Running(tmp_path) as server:
        fill(server)
        found = max(server.store.listing.segments("t", from_seq=1, limit=9), key=lambda segment: segment.size_bytes)
        path = path.format(found.meta.segment_seq)
        headers = {**server.token("app"), "Accept": ARROW["Content-Type"]}
        with server.open(f"GET /api/v1/channels/t/{path}", headers) as peer:
            assert peer.recv(12) == b"HTTP/1.1 200"
            server.revoke("app")
            assert len(received(peer)) < found.size_bytes // 2
        assert server.gatekeeper.statistics().requests == 0


@pytest.mark.guarantee("G12")
def test_revoked_watcher_of_the_console_is_cut(tmp_path: Path) -> None:
    with Running(tmp_path, console=True) as server, server.open("GET /api/v1/live", server.token("app")) as peer:
        assert peer.recv(12) == b"HTTP/1.1 200"
        server.revoke("app")
        assert received(peer).count(b"data: ") <= 2  # one a second, so it took less than two
        assert server.gatekeeper.statistics().revoked == 1


@pytest.mark.guarantee("G12")
def test_revoked_sender_of_a_body_is_cut(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        headers = {**server.token("app"), **ARROW, "Content-Length": "1000"}
        with server.open("POST /api/v1/channels/t/events", headers, bytes(10)) as peer:
            while not server.gatekeeper.statistics().requests:
                pass
            server.revoke("app")
            assert received(peer) == b""


def test_requests_that_are_answered_are_not_watched(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        headers = server.token("app")
        for path in ("/api/v1/channels", "/healthz", "/api/v1/nothing"):
            server.get(path, headers)
        assert server.gatekeeper.statistics().requests == 0
