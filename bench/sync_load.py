"""The clients of the sync benchmark, in a process of their own: a `Load` as JSON in, `Figures` as JSON out.

Each connection has one batch in flight, as the npm package's clients do: submit, wait for the results, submit again.
"""

from __future__ import annotations

import asyncio
import sys
import time

import msgspec
import uvloop
from picows import WSFrame, WSListener, WSMsgType, WSTransport, ws_connect

PAYLOAD = {"title": "a note of the usual size", "text": "x" * 100, "done": False, "position": 12.5}


class Load(msgspec.Struct, frozen=True):
    """What to do where."""

    url: str
    connections: int
    batch: int
    one_project: bool
    seconds: float
    seed: int


class Figures(msgspec.Struct, frozen=True):
    """What all connections together reached."""

    events: int
    seconds: float
    p50_ms: float
    p99_ms: float
    broadcasts: int


class Client(WSListener):
    """One connection of one project."""

    def __init__(self, name: str, project: str, load: Load) -> None:
        self._name, self._project, self._load = name, project, load
        self._number = 0
        self._sent_at = self._until = 0.0
        self.transport: WSTransport
        self.ready, self.done = asyncio.Event(), asyncio.Event()
        self.latencies_s: list[float] = []
        self.broadcasts = 0

    def pause_writing(self) -> None:
        """One batch is in flight at most."""

    def resume_writing(self) -> None:
        """Nothing waited."""

    def on_ws_connected(self, transport: WSTransport) -> None:
        """Introduce ourselves."""
        self.transport = transport
        self._say("connect", token="t", clientId=self._name, projectId=self._project)

    def on_ws_frame(self, _transport: WSTransport, frame: WSFrame) -> None:
        """What the server says."""
        if frame.msg_type != WSMsgType.TEXT:
            return
        text = frame.get_payload_as_bytes()
        if text.startswith(b'{"type":"event_broadcast"'):
            self.broadcasts += 1
        elif b'"submit_events_result"' in text[:60]:
            if b'"rejected"' in text:
                raise SystemExit(f"refused: {text[:300]!r}")
            self.latencies_s.append(time.perf_counter() - self._sent_at)
            self.next()
        elif b'"connected"' in text[:60]:
            self._say("sync", projectId=self._project, sinceCommittedId=2**40, limit=1)
        elif b'"sync_response"' in text[:60]:
            self.ready.set()
        else:
            raise SystemExit(f"unexpected: {text[:300]!r}")

    def begin(self, until: float) -> None:
        """Submit until the time is up."""
        self._until = until
        self.next()

    def next(self) -> None:
        """The next batch, or the end."""
        now = time.perf_counter()
        if now >= self._until:
            self.done.set()
            return
        self._sent_at = now
        self._say("submit_events", events=[self._event() for _ in range(self._load.batch)])

    def _event(self) -> dict[str, object]:
        self._number += 1
        return {
            "id": f"{self._load.seed}-{self._name}-{self._number}",
            "partition": "notes",
            "projectId": self._project,
            "type": "note.created",
            "schemaVersion": 1,
            "payload": PAYLOAD,
            "meta": {"clientId": self._name, "clientTs": self._number},
        }

    def _say(self, kind: str, **payload: object) -> None:
        message = {"type": kind, "protocolVersion": "1.0", "msgId": "m", "payload": payload}
        self.transport.send(WSMsgType.TEXT, msgspec.json.encode(message))


async def produce(load: Load) -> Figures:
    """Connect, submit, measure."""
    clients: list[Client] = []
    for number in range(load.connections):
        project = f"{load.seed}-all" if load.one_project else f"{load.seed}-{number}"
        client = Client(f"c{number}", project, load)
        clients.append(client)
        await ws_connect(lambda client=client: client, load.url)
        await client.ready.wait()
    started = time.perf_counter()
    for client in clients:
        client.begin(started + load.seconds)
    for client in clients:
        await client.done.wait()
    took = time.perf_counter() - started
    latencies = sorted(latency for client in clients for latency in client.latencies_s)
    for client in clients:
        client.transport.disconnect()
    middle, high = latencies[len(latencies) // 2], latencies[len(latencies) * 99 // 100]
    broadcasts = sum(client.broadcasts for client in clients)
    return Figures(len(latencies) * load.batch, took, middle * 1e3, high * 1e3, broadcasts)


if __name__ == "__main__":
    print(msgspec.json.encode(uvloop.run(produce(msgspec.json.decode(sys.argv[1], type=Load)))).decode())
