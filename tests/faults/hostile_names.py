"""Names that are no names, on every door of a server that takes one."""

from __future__ import annotations

import http.client
import json
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import grpc  # type: ignore[import-untyped]

from holdfast.wire import consume
from tests.e2e.nursed import NursedServer
from tests.security.frames import raw_frame, raw_logs, raw_message
from tests.unit.server.harness import BINARY, PATIENCE_S, TEXT, open_client

EXPORT = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"


@dataclass(frozen=True, slots=True)
class Doors:
    """Where a server listens for OTLP, beside its data port and its admin port."""

    otlp_http: str
    otlp_grpc: str


def knock_everywhere(server: NursedServer, name: str, doors: Doors) -> dict[str, int]:
    """How many times at each door; the answers do not matter here, but at a door that takes any name."""
    return {
        "admin": _admin(server, name),
        "wires": _wires(server, name),
        "otlp_http": _otlp_http(doors.otlp_http, name),
        "otlp_grpc": _otlp_grpc(doors.otlp_grpc, name),
    }


def _admin(server: NursedServer, name: str) -> int:
    parts, quoted = urlsplit(server.admin), quote(name, safe="")
    requests: list[tuple[str, str, object]] = [
        ("GET", f"/api/v1/channels/{quoted}", None),
        ("GET", f"/api/v1/channels/{quoted}/segments/{quoted}/data", None),
        ("GET", f"/console/{quoted}", None),
        ("POST", f"/api/v1/channels/{quoted}/events", [{"n": 1}]),
        ("POST", f"/api/v1/subscribers/{quoted}", {"channels": [name]}),
        ("POST", "/api/v1/subscribers/s", {"channels": [name]}),
        ("DELETE", f"/api/v1/slots/{quoted}/owner", None),
    ]
    for method, path, body in requests:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        assert connection.getresponse().status < 500, (method, path)
        connection.close()
    return len(requests)


def _wires(server: NursedServer, name: str) -> int:
    messages = [
        *(
            (path, encode(name), BINARY)
            for path in ("/api/v4/write", "/write/v4")
            for encode in (raw_frame, raw_message)
        ),
        ("/v1/consume", consume.encode(consume.Subscribe(request=1, sub=1, channel=name, durable=name)), BINARY),
        ("/v1/sync", json.dumps({"type": "connect", "payload": {"token": name, "client_id": name}}).encode(), TEXT),
    ]
    for path, message, opcode in messages:
        client, answer = open_client(server.port, path)
        assert answer.status == 101
        with client, suppress(EOFError, ConnectionError):
            if path == "/v1/consume":
                client.send(consume.encode(consume.Hello()))
            client.send(message, opcode=opcode)
            client.receive()
    return len(messages)


def _otlp_http(address: str, name: str) -> int:
    quoted = quote(name, safe="")
    body, key = raw_logs(name), {"Idempotency-Key": quoted}
    kind = {"Content-Type": "application/x-protobuf"}
    requests: list[tuple[str, dict[str, str], bool]] = [
        ("/v1/logs", kind, True),
        ("/v1/logs", {**kind, **key}, False),
        ("/v1/logs", {**kind, "Content-Encoding": quoted}, False),
        (f"/v1/{quoted}", kind, False),
        (f"/{quoted}/v1/logs", kind, False),
    ]
    for path, headers, is_taken in requests:
        connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
        connection.request("POST", path, body, headers)
        status = connection.getresponse().status
        assert status == 200 if is_taken else status < 500, (path, headers, status)
        connection.close()
    return len(requests)


def _otlp_grpc(address: str, name: str) -> int:
    quoted, body = quote(name, safe=""), raw_logs(name)
    calls: list[tuple[str, list[tuple[str, str]]]] = [
        (EXPORT, []),
        (EXPORT, [("idempotency-key", quoted)]),
        (EXPORT.replace("Export", quoted), []),
        (f"/{quoted}/Export", []),
    ]
    with grpc.insecure_channel(address) as channel:
        for method, metadata in calls:
            with suppress(grpc.RpcError) if metadata or method != EXPORT else nullcontext():
                channel.unary_unary(method)(body, metadata=metadata, timeout=PATIENCE_S)
    return len(calls)
