"""Names that are no names, on every door of a server that takes one."""

from __future__ import annotations

import http.client
import json
from contextlib import suppress
from urllib.parse import quote, urlsplit

from holdfast.wire import consume
from tests.e2e.nursed import NursedServer
from tests.security.frames import raw_frame
from tests.unit.server.harness import BINARY, TEXT, open_client


def knock_everywhere(server: NursedServer, name: str) -> int:
    """How many times; the answers do not matter here."""
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
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        assert connection.getresponse().status < 500, (method, path)
        connection.close()
    messages = [
        ("/api/v4/write", raw_frame(name), BINARY),
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
    return len(requests) + len(messages)
