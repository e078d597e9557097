"""What an upgrade request gets, asked over a real socket."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import Category
from holdfast.server.ingest import IngestHandler
from holdfast.wire import qwp
from holdfast.wire.replies import DurableAck, Ok
from tests.unit.server.harness import PATIENCE_S, SLOT, Answer, RunningServer, arrow_frame, open_client

UUID = "01020304-0506-0708-090a-0b0c0d0e0f10"


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningServer]:
    settings = {"ingest.origins": ["https://app.example"], "ingest.max_batch_size": "1MiB"}
    with RunningServer(tmp_path, settings) as server:
        yield server


def ask(running: RunningServer, /, *, path: str = "/api/v4/write", **headers: str | None) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    client, answer = open_client(running.port, path, named)
    client.close()
    return answer


def test_upgrade_is_answered_with_version_batch_size_and_durability(running: RunningServer) -> None:
    answer = ask(running, X_QWP_Max_Version="1")
    assert answer.status == 101
    assert answer.headers["X-QWP-Version"] == "1"
    assert answer.headers["X-QWP-Max-Batch-Size"] == str(1 << 20)
    assert answer.headers["X-Holdfast-Durability"] == "synced"
    assert answer.headers["Sec-WebSocket-Accept"] == "ICX+Yqv66kxgM0FcWaLWlFLwTAI="


def test_durable_ack_is_not_promised_without_an_object_store(running: RunningServer) -> None:
    assert "X-QWP-Durable-Ack" not in ask(running, X_QWP_Request_Durable_Ack="true").headers


def test_durable_ack_is_promised_and_sent_with_an_object_store(running: RunningServer) -> None:
    running.ask(lambda: setattr(running.server.state, "durable_acks", True))
    assert "X-QWP-Durable-Ack" not in ask(running).headers
    client, answer = open_client(running.port, headers={"X-QWP-Request-Durable-Ack": "true"})
    with client:
        assert answer.headers["X-QWP-Durable-Ack"] == "enabled"
        client.send(arrow_frame(1, 2))
        assert client.reply() == Ok(0, (("trades", 2),))

        def tell() -> None:
            handler = running.server.door.connections[max(running.server.door.connections)].handler
            assert isinstance(handler, IngestHandler)
            handler.durable("trades", 2)

        running.ask(tell)
        assert client.reply() == DurableAck((("trades", 2),))


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"Origin": "https://evil.example"}, 400, "Origin"),
        ({"Upgrade": "h2c"}, 400, "Upgrade"),
        ({"Upgrade": None}, 400, "Upgrade"),
        ({"Connection": "keep-alive"}, 400, "Connection"),
        ({"Sec_WebSocket_Key": "short"}, 400, "Sec-WebSocket-Key"),
        ({"Sec_WebSocket_Key": None}, 400, "Sec-WebSocket-Key"),
        ({"X_Holdfast_Slot_Id": UUID}, 400, "X-Holdfast-First-Fsn"),
        ({"X_Holdfast_Slot_Id": "x", "X_Holdfast_First_Fsn": "1"}, 400, "UUID"),
        ({"X_Holdfast_Slot_Id": "0" * 32, "X_Holdfast_First_Fsn": "1"}, 400, "zeros"),
        ({"X_Holdfast_Slot_Id": UUID, "X_Holdfast_First_Fsn": "-1"}, 400, "2^63"),
        ({"X_Holdfast_Slot_Id": UUID, "X_Holdfast_First_Fsn": "9" * 25}, 400, "2^63"),
    ],
)
def test_bad_upgrade_is_refused_with_its_reason(
    running: RunningServer, headers: dict[str, str | None], status: int, words: str
) -> None:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    _, answer = open_client(running.port, headers=named)
    assert answer.status == status
    assert words in answer.body.decode()


@pytest.mark.parametrize("version", ["8", "12", "x", None])
def test_other_websocket_version_is_told_which_one(running: RunningServer, version: str | None) -> None:
    answer = ask(running, Sec_WebSocket_Version=version)
    assert answer.status == 426
    assert answer.headers["Sec-WebSocket-Version"] == "13"


def test_unknown_path_is_not_found(running: RunningServer) -> None:
    assert ask(running, path="/read/v1").status == 404


@pytest.mark.parametrize("headers", [{"Origin": "https://app.example"}, {"Connection": "keep-alive, Upgrade"}])
def test_listed_origins_and_header_lists_are_let_in(running: RunningServer, headers: dict[str, str]) -> None:
    assert ask(running, **headers).status == 101


@pytest.mark.parametrize("role", ["replica", "primary_catchup"])
def test_replica_sends_writers_elsewhere_and_names_its_role(tmp_path: Path, role: str) -> None:
    with RunningServer(tmp_path, {"server.role": role}) as running:
        answer = ask(running)
        assert answer.status == 421
        assert answer.headers["X-QuestDB-Role"] == role.upper()
        assert answer.headers["Connection"] == "close"
        assert answer.body == b""


@pytest.mark.guarantee("G12")
def test_stranger_is_unauthorized_and_counted(tmp_path: Path) -> None:
    with RunningServer(tmp_path, {"auth.required": True}) as running:
        answer = ask(running)
        assert answer.status == 401
        assert "Bearer" in (answer.headers.get_all("WWW-Authenticate") or [])
        assert running.ask(lambda: dict(running.server.state.totals.handshakes_refused)) == {401: 1}
        assert any(b"authentication.failed" in line for line in running.audit)


@pytest.mark.guarantee("G12")
def test_frame_for_a_channel_without_the_right_is_a_security_error(tmp_path: Path) -> None:
    rules = [{"principal": "*", "allow": ["publish"], "channels": ["open.*"]}]
    with RunningServer(tmp_path, {"access": rules}) as running, running.client() as client:
        client.send(arrow_frame(1, channel="open.a"))
        assert client.reply() == Ok(0, (("open.a", 1),))
        client.send(arrow_frame(1, channel="closed"))
        refusal = client.refusal()
        assert refusal.category is Category.SECURITY_ERROR
        assert "'closed'" in refusal.message
        assert running.store.channels() == ["open.a"]


def test_connections_beyond_the_limit_are_told_to_come_back(tmp_path: Path) -> None:
    settings = {"ingest.max_connections": 2}
    with RunningServer(tmp_path, settings) as running, running.client(), running.client() as second:
        answer = ask(running)
        assert answer.status == 503
        assert answer.headers["Retry-After"] == "1"
        second.send_close()
        running.until(lambda: len(running.server.state.connections) == 1)
        running.client().close()


def test_slot_of_the_upgrade_numbers_frames_that_carry_none(tmp_path: Path) -> None:
    headers = {"X_Holdfast_Slot_Id": UUID, "X_Holdfast_First_Fsn": "7"}
    with RunningServer(tmp_path) as running:
        for _ in range(2):
            with running.client(**headers) as client:
                client.send(qwp.encode([], None))  # catch-up: gets a number on the wire, none in the slot
                client.send(arrow_frame(1))
                client.send(arrow_frame(2))
                assert client.acknowledged(2) == {"trades": 2}
        with running.client() as client:
            client.send(arrow_frame(2, fsn=8, slot_id=SLOT))
            assert client.acknowledged(0) == {"trades": 2}
        assert running.rows("trades") == [1, 2]


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /api/v4/write HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /api/v4/write HTTP/1.0\r\nHost: x\r\n\r\n",
        b"GET  HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_what_is_no_upgrade_request_gets_an_error_and_no_more(running: RunningServer, request_bytes: bytes) -> None:
    with socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S) as raw:
        raw.sendall(request_bytes)
        received = b""
        while data := raw.recv(65536):
            received += data
    assert received.startswith(b"HTTP/1.1 400 ")
