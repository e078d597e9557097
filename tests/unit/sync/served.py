"""A real server that speaks sync, inside the test's process, and a client of text messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from holdfast.clock import Clock
from holdfast.config import StoreConfig
from holdfast.config.sync import SyncConfig
from holdfast.server.server import Parts, Server
from holdfast.sync import SyncDesk, attach
from tests.unit.server.harness import CLOSE, TEXT, RawClient, RunningServer
from tests.unit.sync.world import camel, seed

PATH = "/v1/sync"


class SyncServer(RunningServer):
    """A server with sync on its data port."""

    def __init__(
        self,
        directory: Path,
        sync: Mapping[str, object] | None = None,
        *,
        settings: Mapping[str, object] | None = None,
        store: Mapping[str, object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.sync_config = SyncConfig.from_mapping(dict(sync or {}))
        kept = self.sync_config.keeping(StoreConfig())
        channels = {override.pattern.text: dict(override.values) for override in kept.channels}
        super().__init__(directory, settings, store={"channels": channels, **(store or {})}, clock=clock)
        self.desk: SyncDesk

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = Server(self.config, Parts(self.store, self.gatekeeper, self.clock, self.tls))
        self.desk = attach(self.server, self.sync_config)
        _, self.port = await self.server.start()
        try:
            self.failure = await self.server.run(on_ready=self._ready.set)
        finally:
            self.desk.close()

    def __enter__(self) -> SyncServer:
        super().__enter__()
        return self

    def talk(self, **headers: str) -> Talker:
        """A connection that has not said anything yet."""
        return Talker(self.client(PATH, **headers))

    def seed_client(self, client_id: str = "A", token: str = "t") -> Talker:
        """A connection of the dialect that is written down, past its handshake."""
        talker = self.talk()
        answer = talker.ask(seed("connect", token=token, client_id=client_id, last_committed_id=0))
        assert answer["type"] == "connected", answer
        return talker

    def project_client(self, client_id: str = "A", project: str = "p", token: str = "t") -> Talker:
        """A connection of a project, past its handshake."""
        talker = self.talk()
        answer = talker.ask(camel("connect", token=token, clientId=client_id, projectId=project))
        assert answer["type"] == "connected", answer
        return talker


class Talker:
    """Messages as JSON over a raw WebSocket."""

    def __init__(self, client: RawClient) -> None:
        self.client = client

    def say(self, message: dict[str, Any] | bytes) -> None:
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.client.send(data, opcode=TEXT)

    def hear(self) -> dict[str, Any]:
        """The next message."""
        while True:
            opcode, payload = self.client.receive()
            if opcode == TEXT:
                found: dict[str, Any] = json.loads(payload)
                return found
            if opcode == CLOSE:
                return {"type": "closed", "code": int.from_bytes(payload[:2], "big"), "reason": payload[2:].decode()}

    def ask(self, message: dict[str, Any] | bytes) -> dict[str, Any]:
        self.say(message)
        return self.hear()

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> Talker:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
