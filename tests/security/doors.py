"""One real server for the whole matrix, and a caller that knocks at each of its doors with any credential."""

from __future__ import annotations

import base64
import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]
import pyarrow as pa

from holdfast import Store
from holdfast.clock import NS_PER_S, SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import Category
from holdfast.model.frame import Entry
from holdfast.server.access.tokens import TokenFile
from holdfast.wire import consume, hfa, replies
from tests.e2e.served import ServedProcess
from tests.security.oracle import CHANNELS, PRINCIPALS, RESERVED, RULES, STRANGERS
from tests.unit.delivery.harness import Consumer
from tests.unit.server.harness import TEXT, RawClient, open_client

STATUS = {401: "refused", 403: "forbidden", 404: "hidden"}
CODES = {grpc.StatusCode.UNAUTHENTICATED: "refused", grpc.StatusCode.PERMISSION_DENIED: "forbidden"}
ALLOWED_ORIGIN = "https://app.example"


@dataclass
class Doors:
    """The server, its secrets, and the headers of every credential."""

    served: ServedProcess
    directory: Path
    headers: dict[str, dict[str, str]]
    secrets: list[str]
    segment: dict[str, int] = field(default_factory=dict)

    @property
    def audit(self) -> Path:
        return self.directory / "audit.log"

    # -- the doors --------------------------------------------------------------------------------------------------

    def ask(
        self, method: str, path: str, credential: str, *, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """A request to the admin server; the status and what came with it."""
        parts = urlsplit(self.served.admin)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        data = None if body is None else json.dumps(body).encode()
        named = {"Content-Type": "application/json"} if data is not None else {}
        try:
            connection.request(method, path, data, {**named, **self.headers[credential], **(headers or {})})
            answer = connection.getresponse()
            if answer.getheader("Content-Type", "").startswith("text/event-stream"):
                return answer.status, answer.fp.readline() + answer.fp.readline()
            return answer.status, answer.read()
        finally:
            connection.close()

    def upgrade(self, path: str, credential: str, **headers: str) -> tuple[RawClient, int]:
        """A WebSocket, or why there is none."""
        client, answer = open_client(self.served.port, path, {**self.headers[credential], **headers})
        return client, answer.status

    def export(self, credential: str, signal: str) -> str:
        """A request to the OTLP door that speaks HTTP."""
        connection = http.client.HTTPConnection(self._word("otlp_http"), timeout=30)
        kind = {"Content-Type": "application/x-protobuf"}
        try:
            connection.request("POST", f"/v1/{signal}", b"", {**kind, **self.headers[credential]})
            status = connection.getresponse().status
        finally:
            connection.close()
        return "done" if status == 200 else STATUS[status]

    def call(self, credential: str, signal: str) -> str:
        """The same at the one that speaks gRPC."""
        names = {
            "logs": "logs.v1.LogsService",
            "traces": "trace.v1.TraceService",
            "metrics": "metrics.v1.MetricsService",
        }
        shown = [(name.lower(), value) for name, value in self.headers[credential].items()]
        with grpc.insecure_channel(self._word("otlp_grpc")) as channel:
            export = channel.unary_unary(f"/opentelemetry.proto.collector.{names[signal]}/Export")
            try:
                export(b"", metadata=shown, timeout=30)
            except grpc.RpcError as error:
                found: str = CODES[error.code()]
                return found
        return "done"

    def _word(self, name: str) -> str:
        """An address of the line that says that the server is ready."""
        words = dict(word.split("=", 1) for word in self.served.ready_line.split()[2:])
        return words[name].rpartition("/")[2]

    # -- what is done there -----------------------------------------------------------------------------------------

    def publish(self, credential: str, channel: str) -> str:
        """One frame on the ingest wire."""
        client, status = self.upgrade("/api/v4/write", credential)
        if status != 101:
            return STATUS[status]
        with client:
            entry = Entry(channel, pa.record_batch({"n": pa.array([1], pa.int64())}))
            client.send(b"".join(hfa.encode([entry], slot_id=None, fsn=0, guid=None)))
            reply = client.reply()
        if isinstance(reply, replies.Refusal):
            assert reply.category is Category.SECURITY_ERROR, reply
            return "forbidden"
        return "done"

    def consume(self, credential: str, channel: str) -> str:
        """One subscription on the consume wire."""
        client, status = self.upgrade(consume.PATH, credential)
        if status != 101:
            return STATUS[status]
        with client:
            consumer = Consumer(client)
            consumer.send(consume.Hello())
            consumer.expect(consume.Welcome)
            consumer.send(consume.Subscribe(request=1, sub=1, channel=channel, start="first"))
            reply = consumer._until(lambda reply: isinstance(reply, consume.Subscribed | consume.Refused))
        if isinstance(reply, consume.Refused):
            assert reply.code == "forbidden", reply
            return "forbidden"
        return "done"

    def sync(self, credential: str) -> str:
        """The first message of the sync wire, which shows the token itself."""
        shown = self.headers[credential].get("Authorization", "").removeprefix("Bearer ")
        client, status = self.upgrade("/v1/sync", "none")
        assert status == 101
        with client:
            payload = {"token": shown, "client_id": credential, "last_committed_id": 0}
            message = {"type": "connect", "payload": payload, "msg_id": "1", "timestamp": 1, "protocol_version": "1.0"}
            client.send(json.dumps(message).encode(), opcode=TEXT)
            while True:
                opcode, answer = client.receive()
                if opcode == TEXT:
                    break
        told = json.loads(answer)
        if told["type"] == "connected":
            return "done"
        assert told["type"] == "error", told
        assert told["payload"]["code"] == "auth_failed", told
        return "forbidden" if "may not sync" in told["payload"]["message"] else "refused"


def _tokens(data: Path) -> tuple[dict[str, dict[str, str]], list[str]]:
    """The headers of every credential, and every secret there is."""
    clock, file = SystemClock(), TokenFile(LocalFilesystem(), data / "access" / "tokens.json")
    now_ns, secrets = clock.wall_ns(), []
    headers: dict[str, dict[str, str]] = {}
    for name in PRINCIPALS:
        secrets.append(file.create(name, now_ns=now_ns)[1])
        headers[name] = {"Authorization": f"Bearer {secrets[-1]}"}
    for name in ("expired", "revoked"):  # of someone who may do everything, had it not ended
        ends_ns = now_ns - NS_PER_S if name == "expired" else 0
        token, secret = file.create("boss", now_ns=now_ns - 3600 * NS_PER_S, expires_at_ns=ends_ns)
        secrets.append(secret)
        headers[name] = {"Authorization": f"Bearer {secret}"}
        if name == "revoked":
            file.revoke(token.id, now_ns=now_ns)
    wrong = secrets[0][:-1] + ("A" if secrets[0][-1] != "A" else "B")
    headers |= {
        "none": {},
        "wrong": {"Authorization": f"Bearer {wrong}"},
        "empty": {"Authorization": ""},
        "malformed": {"Authorization": "Basic " + base64.b64encode(b"no colon").decode()},
        "foreign scheme": {"Authorization": f"Digest {secrets[0]}"},
        "newline in it": {"Authorization": f"Bearer x\tforged: {secrets[0]}"},
    }
    assert set(headers) == {*PRINCIPALS, *STRANGERS}
    return headers, secrets


@contextmanager
def open_doors(directory: Path) -> Iterator[Doors]:
    """A server with every rule of the oracle, and one segment in every channel."""
    data, config = directory / "data", directory / "holdfast.yaml"
    with Store.open(data) as store:
        for channel in set(CHANNELS) - RESERVED:
            store.commit(channel, pa.record_batch({"n": pa.array([1, 2], pa.int64())}))
    headers, secrets = _tokens(data)
    rules = "\n".join(rule.as_yaml() for rule in RULES)
    origins = f'ingest:\n  origins: ["{ALLOWED_ORIGIN}"]\n'
    otlp = 'otlp: {listening_addr: "127.0.0.1:0", http_listening_addr: "127.0.0.1:0"}\n'
    audit = f"audit:\n  path: {directory / 'audit.log'}\n"
    config.write_text(f"access:\n{rules}\n{audit}{origins}{otlp}", encoding="utf-8")
    with ServedProcess(data, "--config", str(config)) as served:
        doors = Doors(served, directory, headers, secrets)
        for channel in set(CHANNELS) - RESERVED:
            status, body = doors.ask("GET", f"/api/v1/channels/{channel}/segments", "boss")
            assert status == 200, body
            doors.segment[channel] = json.loads(body)["data"][0]["segment"]
        yield doors
