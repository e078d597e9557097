"""The OTLP receiver: its doors, and the intake behind them.

Promise: between `start` and `stop` the doors are open. `stop` closes them, and returns when everything that came in is
answered.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from holdfast.dataflow.receivers.grpcdoor import GrpcDoor, otlp_services
from holdfast.dataflow.receivers.guards import Guard, by_token
from holdfast.dataflow.receivers.httpdoor import HttpDoor
from holdfast.dataflow.receivers.intake import Intake, IntakeStatistics
from holdfast.dataflow.receivers.settings import OtlpSettings, read_settings
from holdfast.dataflow.sinks import Sink
from holdfast.errors import InvalidConfig

__all__ = ["OtlpReceiver", "make", "read_settings"]

GRACE_S = 5.0
"""How long a stopping receiver waits for what it has begun to read."""


class OtlpReceiver:
    """One receiver. Made and used on one event loop."""

    def __init__(
        self, name: str, settings: OtlpSettings, sink: Sink, *, shared: bool = False, guard: Guard | None = None
    ) -> None:
        """`guard` judges callers in place of the token of the settings."""
        self.name = name
        self.ports: dict[str, int] = {}
        self._settings = settings
        self._shared = shared
        self._guard = guard or by_token(read_token(settings.token_file))
        self._intake = Intake(name, settings, sink)
        self._grpc: GrpcDoor | None = None
        self._http: HttpDoor | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Open the doors; what was opened when this raises is closed by `stop`."""
        doors = self._settings.doors()
        if "listening_addr" in doors:
            self._grpc = GrpcDoor(self._settings, otlp_services(self._intake, self._guard), shared=self._shared)
            await self._grpc.start()
            self.ports["grpc"] = self._grpc.port
        if "http_listening_addr" in doors:
            self._http = HttpDoor(self._settings, self._intake, guard=self._guard, shared=self._shared)
            self.ports["http"] = self._http.port
            self._serving = tasks.create_task(self._http.serve())

    async def stop(self) -> None:
        """Close the doors; everything that came in is answered when this returns."""
        if self._http is not None:
            self._http.stop()
        if self._grpc is not None:
            await self._grpc.stop(GRACE_S)
        if self._serving is not None:
            await self._serving
        await self._intake.close()

    def statistics(self) -> IntakeStatistics:
        """What it has done so far."""
        return self._intake.statistics


def make(name: str, settings: OtlpSettings, sink: Sink, *, shared: bool = False) -> OtlpReceiver:
    """The receiver of a node; `shared` lets other processes listen on the same ports."""
    return OtlpReceiver(name, settings, sink, shared=shared)


def read_token(file: str) -> str:
    """The token in a file; none without a file."""
    if not file:
        return ""
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(key="token_file", reason=f"cannot be read: {error}") from None
    if not token:
        raise InvalidConfig(key="token_file", reason="is empty")
    return token
