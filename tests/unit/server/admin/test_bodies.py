"""Bodies of requests: bounded one by one, and all together."""

from __future__ import annotations

import select
import socket
from pathlib import Path

import pytest

from holdfast.errors import Backpressure
from holdfast.server.admin.jsonrows import BODY_BYTES_MAX
from holdfast.server.admin.room import BodyRoom
from tests.unit.server.admin.running import ARROW, NDJSON, WAIT_S, Running, batch, stream

SMALL = {"ingest.total_inflight": "1MiB", "ingest.connection_inflight": "64KiB", "ingest.max_batch_size": "512KiB"}
POST = "POST /api/v1/channels/t/events"


def answer_of(peer: socket.socket) -> bytes:
    """What comes until the end, or until there is a whole error."""
    found = b""
    while not found.endswith(b"}}"):
        piece = peer.recv(65536)
        if not piece:
            break
        found += piece
    return found


@pytest.mark.guarantee("G11")
def test_half_sent_bodies_are_bounded_together(tmp_path: Path) -> None:
    with Running(tmp_path, SMALL) as server:
        head = {**ARROW, "Content-Length": str(512 << 10)}
        peers = [server.open(POST, head, bytes(400 << 10)) for _ in range(3)]
        refused, _, _ = select.select(peers, [], [], WAIT_S)
        answer = answer_of(refused[0])
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 1" in answer.lower()
        assert b'"code":"backpressure"' in answer
        assert b"ingest.total_inflight" in answer
        assert select.select([peer for peer in peers if peer is not refused[0]], [], [], 0)[0] == []
        for peer in peers:
            peer.close()
        body = stream(batch(50_000))
        while server.post("t", body, ARROW).status == 503:  # until the server saw that they left
            pass
        assert server.store.statistics().events == 50_000


@pytest.mark.guarantee("G11")
def test_what_is_answered_takes_no_room(tmp_path: Path) -> None:
    with Running(tmp_path, SMALL) as server:
        for _ in range(8):
            assert server.post("t", stream(batch(50_000)), ARROW).status == 200
            assert server.post("t", bytes(400 << 10), ARROW).status == 400
        assert server.store.statistics().events == 400_000


@pytest.mark.guarantee("G11")
def test_json_is_refused_while_it_comes(tmp_path: Path) -> None:
    with Running(tmp_path) as server:
        piece = b'{"a": "%s"}\n' % (b"x" * (1 << 20))
        chunk = b"%x\r\n%s\r\n" % (len(piece), piece)
        chunks = BODY_BYTES_MAX // len(piece) + 1
        with server.open(POST, {**NDJSON, "Transfer-Encoding": "chunked"}, chunk * chunks) as peer:
            answer = answer_of(peer)  # there is more to come, as far as the server knows
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"send more as an Arrow stream" in answer


def test_room_is_taken_and_given_back() -> None:
    room = BodyRoom(lambda: 10)
    with room.hold() as one:
        one.add(6)
        with room.hold() as other:
            other.add(4)
            with pytest.raises(Backpressure, match=r"ingest\.total_inflight"):
                other.add(1)
        assert room.held_bytes == 6
        one.add(4)
    assert room.held_bytes == 0
