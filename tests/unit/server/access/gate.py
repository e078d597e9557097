"""A gatekeeper over files in memory, with its clock and its audit lines at hand."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.config.server import ServerConfig
from holdfast.disk.filesystem import Filesystem
from holdfast.server.access import AuditLog, Gatekeeper, Principal
from holdfast.server.access.tokens import TokenFile
from holdfast.testing import CrashFilesystem, ManualClock

DATA = Path("/data")


def disk() -> CrashFilesystem:
    """An empty disk."""
    return CrashFilesystem(seed=0)


@dataclass
class Gate:
    """What a test needs around a gatekeeper."""

    settings: dict[str, Any] = field(default_factory=dict)
    filesystem: Filesystem = field(default_factory=disk)
    clock: ManualClock = field(default_factory=ManualClock)
    lines: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tokens = TokenFile(self.filesystem, self.config().tokens_path)

    def config(self, **changes: Any) -> ServerConfig:
        """The settings, with some changed."""
        return ServerConfig.from_mapping({"data": str(DATA), **self.settings, **changes})

    def open(self) -> Gatekeeper:
        """A gatekeeper with those settings."""
        audit = AuditLog(self.lines.append, self.clock)
        return Gatekeeper(self.config(), self.clock, self.filesystem, audit=audit)

    def token(self, name: str, *, expires_s: float = 0) -> str:
        """A new token's secret."""
        now_ns = self.clock.wall_ns()
        return self.tokens.create(
            name, now_ns=now_ns, expires_at_ns=now_ns + round(expires_s * 1e9) if expires_s else 0
        )[1]

    def audited(self, *names: str) -> list[dict[str, Any]]:
        """The audit lines of those events."""
        found = [json.loads(line) for line in self.lines]
        return [line for line in found if not names or line["event"] in names]


def bearer(secret: str) -> dict[str, str]:
    """The header of a token."""
    return {"Authorization": f"Bearer {secret}"}


def basic(name: str, password: str) -> dict[str, str]:
    """The header of a password."""
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def certificate(name: str, **more: Any) -> dict[str, Any]:
    """What Python says of a verified client certificate."""
    return {"subject": ((("organizationName", "x"),), (("commonName", name),)), **more}


def admitted(gatekeeper: Gatekeeper, headers: dict[str, str]) -> Principal:
    """A principal with a connection."""
    principal = gatekeeper.authenticate(headers)
    principal.admit_connection("192.0.2.1:5")
    return principal
