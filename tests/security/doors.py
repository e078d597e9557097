"""One real server for the whole matrix, and a caller that knocks at each of its doors with any credential."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import grpc  # type: ignore[import-untyped]
import pyarrow as pa

from holdfast import Store
from holdfast.errors import Category
from holdfast.model.frame import Entry
from holdfast.wire import consume, hfa, qwp, replies
from tests.e2e.served import ServedProcess
from tests.security.credentials import Credentials, make_credentials
from tests.security.oracle import CHANNELS, RESERVED, RULES, SIGNED_IN
from tests.unit.delivery.harness import Consumer
from tests.unit.server.harness import TEXT, RawClient, open_client

STATUS = {401: "refused", 403: "forbidden", 404: "hidden", 429: "later", 503: "later"}
CODES = {
    grpc.StatusCode.UNAUTHENTICATED: "refused",
    grpc.StatusCode.PERMISSION_DENIED: "forbidden",
    grpc.StatusCode.UNAVAILABLE: "later",
}
WRITE_PATHS = ("/api/v4/write", "/write/v4")
ALLOWED_ORIGIN = "https://app.example"


@dataclass
class Doors:
    """The server, which speaks TLS and asks for a certificate, and every credential."""

    served: ServedProcess
    directory: Path
    credentials: Credentials
    segment: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._without_certificate = self.credentials.authority.client()

    @property
    def headers(self) -> dict[str, dict[str, str]]:
        return self.credentials.headers

    @property
    def secrets(self) -> list[str]:
        return self.credentials.secrets

    def context(self, credential: str) -> ssl.SSLContext:
        """How it shakes hands: with its certificate, if it has one."""
        return self.credentials.contexts.get(credential, self._without_certificate)

    @property
    def audit(self) -> Path:
        return self.directory / "audit.log"

    # -- the doors --------------------------------------------------------------------------------------------------

    def ask(
        self, method: str, path: str, credential: str, *, body: object = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """A request to the admin server; the status and what came with it."""
        parts = urlsplit(self.served.admin)
        context = self.context(credential)
        connection = http.client.HTTPSConnection("localhost", parts.port, timeout=30, context=context)
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
        shown = {**self.headers[credential], **headers}
        client, answer = open_client(self.served.port, path, shown, context=self.context(credential))
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

    def shown_at_the_door(self, credential: str) -> bool:
        """Whether it is no token, and so has no place in a message."""
        return (
            credential in self.credentials.contexts or self.headers[credential].get("Authorization", "")[:5] == "Basic"
        )

    def _word(self, name: str) -> str:
        """An address of the line that says that the server is ready."""
        words = dict(word.split("=", 1) for word in self.served.ready_line.split()[2:])
        return words[name].rpartition("/")[2]

    # -- what is done there -----------------------------------------------------------------------------------------

    def publish(self, credential: str, channel: str, *, path: str = WRITE_PATHS[0], codec: str = "HFA1") -> str:
        """One frame on the ingest wire."""
        client, status = self.upgrade(path, credential)
        if status != 101:
            return STATUS[status]
        with client:
            entry = Entry(channel, pa.record_batch({"n": pa.array([1], pa.int64())}))
            if codec == "QWP1":
                client.send(qwp.encode([entry], None))
            else:
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
        """The first message of the sync wire, which shows a token itself; what is no token is shown before."""
        shown = self.headers[credential].get("Authorization", "").removeprefix("Bearer ")
        at_the_door = self.shown_at_the_door(credential)
        client, status = self.upgrade("/v1/sync", credential if at_the_door else "none")
        if at_the_door and status != 101:
            return STATUS[status]
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


@contextmanager
def open_doors(directory: Path) -> Iterator[Doors]:
    """A server with every rule of the oracle, and one segment in every channel."""
    data, config = directory / "data", directory / "holdfast.yaml"
    with Store.open(data) as store:
        for channel in set(CHANNELS) - RESERVED:
            store.commit(channel, pa.record_batch({"n": pa.array([1, 2], pa.int64())}))
    credentials = make_credentials(directory / "tls", data)
    rules = "\n".join(rule.as_yaml() for rule in RULES)
    origins = f'ingest:\n  origins: ["{ALLOWED_ORIGIN}"]\n'
    otlp = 'otlp: {listening_addr: "127.0.0.1:0", http_listening_addr: "127.0.0.1:0"}\n'
    audit = f"audit:\n  path: {directory / 'audit.log'}\n"
    people = credentials.users_yaml() + credentials.authority.as_yaml()
    config.write_text(f"access:\n{rules}\n{audit}{origins}{otlp}{people}", encoding="utf-8")
    with ServedProcess(data, "--config", str(config)) as served:
        doors = Doors(served, directory, credentials)
        for name in SIGNED_IN:  # once they are known, wrong passwords of others do not hold them up
            assert doors.ask("GET", "/api/v1/channels", name)[0] == 200
        for place, channel in enumerate(CHANNELS):
            if channel not in RESERVED:
                status, body = doors.ask("GET", f"/api/v1/channels/{channel}/segments", "boss")
                assert status == 200, body
                doors.segment[channel] = json.loads(body)["data"][0]["segment"]
                status, body = doors.ask(
                    "POST", f"/api/v1/subscribers/kept-{place}", "boss", body={"channels": [channel]}
                )
                assert status == 200, body
        yield doors
