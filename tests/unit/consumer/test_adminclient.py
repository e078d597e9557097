"""The client of the admin HTTP: repeats what may be repeated, and takes a broken transfer up where it broke."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from holdfast.consumer.adminclient import AdminClient, ServerAt
from holdfast.errors import AccessRefused, BadRequest, ServerAway
from holdfast.spark.options import read_options

DATA = bytes(range(256)) * 40


class Script:
    """What the server answers, one entry per request: status, headers, body, and how much of it is sent."""

    def __init__(self, *answers: tuple[int, bytes, int | None]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str | None]] = []


@contextmanager
def serving(script: Script) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            script.asked.append((self.path, self.headers.get("Range")))
            status, body, sent = script.answers.pop(0)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:sent])

        def log_message(self, format: str, *args: object) -> None:
            """Nothing is printed."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="scripted")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def client(addr: str, *, patience_s: float = 30.0) -> AdminClient:
    return AdminClient(read_options({"addr": addr, "channel": "t"}), patience_s=patience_s)


def test_a_broken_transfer_goes_on_where_it_broke(tmp_path: Path) -> None:
    script = Script((200, DATA, 5000), (503, b"{}", None), (206, DATA[5000:], 100), (206, DATA[5100:], None))
    with serving(script) as addr:
        client(addr).download(tmp_path / "f", "data", etag='"e"', size_bytes=len(DATA))
    assert (tmp_path / "f").read_bytes() == DATA
    assert [asked for _, asked in script.asked] == [None, "bytes=5000-", "bytes=5000-", "bytes=5100-"]


def test_a_file_that_is_another_one_by_now_is_taken_from_its_start(tmp_path: Path) -> None:
    script = Script((200, DATA, 5000), (200, DATA, None))
    with serving(script) as addr:
        client(addr).download(tmp_path / "f", "data", etag='"e"', size_bytes=len(DATA))
    assert (tmp_path / "f").read_bytes() == DATA


def test_an_answer_of_later_is_asked_for_again() -> None:
    script = Script((503, b"", None), (429, b"", None), (200, b'{"data": [1], "next": null}', None))
    with serving(script) as addr:
        assert client(addr).get("channels") == [1]


def test_without_patience_the_first_failure_is_told() -> None:
    with serving(Script((503, b"", None))) as addr, pytest.raises(ServerAway, match="503"):
        client(addr, patience_s=0.0).get("channels")


def test_a_refusal_is_told_at_once_in_the_words_of_the_server() -> None:
    error = b'{"error": {"code": "forbidden", "message": "no", "where": null}}'
    with serving(Script((403, error, None), (400, error, None))) as addr:
        with pytest.raises(AccessRefused, match="no"):
            client(addr).get("channels")
        with pytest.raises(BadRequest, match="no"):
            client(addr).get("channels")


def test_names_cannot_leave_their_place_in_a_path() -> None:
    script = Script((200, b'{"data": 1, "next": null}', None))
    with serving(script) as addr:
        client(addr).get("channels", "../slots?x#y")
    assert script.asked[0][0] == "/api/v1/channels/..%2Fslots%3Fx%23y"


@pytest.mark.parametrize("addr", ["127.0.0.1:9001", "ws://127.0.0.1:9001", "http://", ""])
def test_address_without_its_scheme_is_refused_before_anything_is_asked(addr: str) -> None:
    with pytest.raises(BadRequest, match=r"it looks like http://127\.0\.0\.1:9001"):
        AdminClient(ServerAt(addr), patience_s=0)


def test_answer_of_another_server_says_where_the_address_is_printed() -> None:
    with serving(Script((404, b"not found", None))) as addr, pytest.raises(BadRequest, match="behind admin="):
        client(addr).get("channels")


def test_token_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    server = ServerAt("http://127.0.0.1:1", token_file=str(tmp_path / "lost"))
    with pytest.raises(BadRequest, match=r"token file .*lost cannot be read"):
        AdminClient(server, patience_s=0).get("channels")
