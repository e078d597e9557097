"""OpenTelemetry at the doors of a real server: kept in its store, judged by its credentials."""

from __future__ import annotations

import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.e2e.served import PATIENCE_S, ServedProcess, free_port

SECTION = """
otlp: {{payload: columns, http_listening_addr: "127.0.0.1:{port}"}}
"""


def logs(*bodies: str) -> bytes:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for body in bodies:
        scope.log_records.add().body.string_value = body
    data: bytes = request.SerializeToString()
    return data


def post(port: int, body: bytes, **headers: str) -> int:
    """The status of the answer."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/logs",
        body,
        {"Content-Type": "application/x-protobuf", **{name.replace("_", "-"): text for name, text in headers.items()}},
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "holdfast.yaml"


@pytest.fixture
def served(tmp_path: Path, config: Path) -> Iterator[tuple[ServedProcess, int]]:
    port = free_port()
    config.write_text(SECTION.format(port=port), encoding="utf-8")
    server = ServedProcess(tmp_path / "data", "-c", str(config))
    with server:
        yield server, port


@pytest.mark.guarantee("G1")
def test_logs_that_are_answered_outlast_a_kill_and_a_repeat_adds_nothing(served: tuple[ServedProcess, int]) -> None:
    server, port = served
    assert f"otlp_http=127.0.0.1:{port}" in server.ready_line
    assert post(port, logs("one", "two"), idempotency_key="a") == 200
    server.kill()
    server.start()
    assert post(port, logs("one", "two"), idempotency_key="a") == 200
    assert post(port, logs("three"), idempotency_key="b") == 200
    server.kill()
    assert server.rows("otlp.logs", "body") == ["one", "two", "three"]


def test_credentials_and_rights_are_those_of_the_server(served: tuple[ServedProcess, int], config: Path) -> None:
    earlier, port = served
    earlier.kill()
    users = """
auth:
  users: {writer: {password: "${PASSWORD}"}, reader: {password: "${PASSWORD}"}}
access:
  - {principal: writer, allow: publish, channels: [otlp.logs]}
  - {principal: reader, allow: consume, channels: [otlp.logs]}
"""
    config.write_text(config.read_text(encoding="utf-8") + users, encoding="utf-8")
    with ServedProcess(earlier.directory, "-c", str(config), environment={"PASSWORD": "of both"}):
        assert post(port, logs("one")) == 401
        assert post(port, logs("one"), authorization="Basic cmVhZGVyOm9mIGJvdGg=") == 403
        assert post(port, logs("one"), authorization="Basic d3JpdGVyOm9mIGJvdGg=") == 200


@pytest.mark.parametrize(
    ("section", "code", "says"),
    [
        ("otlp: {payload: colums}", 2, "holdfast.yaml:1: otlp.payload: 'colums' is not one of raw, columns"),
        ("otlp: {token_file: x}", 2, "otlp.token_file: is not for a server"),
        ("otlp: {listening_addr: '0.0.0.0:0'}", 2, "otlp.listening_addr: 0.0.0.0:0 can be reached"),
        ("otlp: {http_listening_addr: '192.0.2.1:9', insecure: true}", 3, "otlp.http_listening_addr"),
    ],
)
def test_section_that_cannot_be_used_is_refused_at_the_start(
    tmp_path: Path, config: Path, section: str, code: int, says: str
) -> None:
    config.write_text(section + "\n", encoding="utf-8")
    server = ServedProcess(tmp_path / "data", "-c", str(config))
    ended = subprocess.run(server.command(), capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert says in ended.stderr
