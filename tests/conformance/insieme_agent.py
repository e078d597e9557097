"""Genuine clients of the npm package `insieme`, under Node, driven by a test."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

HERE = Path(__file__).parent / "node"
BUILD = Path(__file__).parents[2] / "build"
FILES = ("package.json", "package-lock.json", "agent.mjs")
PACKAGES = ("insieme-2", "insieme-1")
PATIENCE_MS = 60_000

needs_node = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="Node and npm are not installed"
)


def installed() -> Path:
    """The folder with the clients, installed once for each state of the lock."""
    digest = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in FILES)).hexdigest()[:16]
    folder = BUILD / f"insieme-clients-{digest}"
    if folder.is_dir():
        return folder
    making = BUILD / f"insieme-clients-{digest}.{os.getpid()}"
    making.mkdir(parents=True)
    for name in FILES:
        shutil.copy(HERE / name, making / name)
    subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=making, check=True, capture_output=True
    )
    try:
        making.rename(folder)
    except OSError:  # another process was faster
        shutil.rmtree(making)
    return folder


class Agent:
    """A Node process with clients of one version of the package."""

    def __init__(self, package: str, port: int) -> None:
        self.package = package
        self.has_projects = package == "insieme-2"
        self.scope = "shared"
        self._number = 0
        self._process = subprocess.Popen(
            ["node", "agent.mjs", package, f"ws://127.0.0.1:{port}/v1/sync"],
            cwd=installed(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Agent:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()

    def do(self, command: str, **values: Any) -> Any:
        """What the command gives, or `AssertionError` with why it failed."""
        self._number += 1
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"number": self._number, "command": command, **values}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert answer["number"] == self._number
        assert "error" not in answer, answer
        return answer["result"]

    def client(self, name: str, scope: str = "", **options: Any) -> Client:
        """A client, connected and synced; of the agent's scope if none is named."""
        scope = scope or self.scope
        self.do("open", name=name, scope=scope, **options)
        client = Client(self, name, scope)
        client.start()
        return client


class Client:
    """One genuine client."""

    def __init__(self, agent: Agent, name: str, scope: str) -> None:
        self.agent = agent
        self.name = name
        self.scope = scope

    def start(self) -> None:
        self.agent.do("start", name=self.name)
        self.until(connected=True)

    def stop(self) -> None:
        self.agent.do("stop", name=self.name)

    def sync(self, since: int | None = None) -> None:
        """Ask for pages again."""
        self.agent.do("sync", name=self.name, since=since)

    def event(self, event_id: str, *, kind: str = "item.created", **payload: Any) -> dict[str, Any]:
        """What an application hands to the client; its id is unique over scopes."""
        event = {"id": f"{self.scope}/{event_id}", "type": kind, "payload": {"n": 1, **payload}}
        if self.agent.has_projects:
            return {**event, "partition": "tab", "schemaVersion": 1}
        return {**event, "partitions": [self.scope]}

    def submit(self, *events: dict[str, Any]) -> list[str]:
        ids: list[str] = self.agent.do("submit", name=self.name, events=list(events))
        return ids

    def until(self, **what: Any) -> None:
        """Wait until the client's store has so many committed events, or so few drafts."""
        done = self.agent.do("until", name=self.name, what=what, timeoutMs=PATIENCE_MS)
        assert done, (what, {key: self.state()[key] for key in ("status", "cursor")})

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.agent.do("state", name=self.name)
        return found

    def committed(self) -> dict[str, int]:
        """Ids, without their scope, and numbers of what the client holds, in its order."""
        return {plain(event): event["committedId"] for event in self.state()["committed"]}

    def seen(self, kind: str) -> list[Any]:
        """What the client told its application."""
        return [payload for found, payload in self.state()["seen"] if found == kind]

    def received(self, kind: str) -> list[Any]:
        """Payloads of messages of a type that came over the wire."""
        return [entry[2] for entry in self.state()["wire"] if entry[0] == "in" and entry[1] == kind]


def plain(event: dict[str, Any]) -> str:
    """The id of an event without its scope."""
    return str(event["id"]).rpartition("/")[2]
