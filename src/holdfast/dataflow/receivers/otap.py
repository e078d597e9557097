"""The OTAP receiver: a gRPC server with streams, and the intake behind them.

Promise: between `start` and `stop` the door is open. `stop` closes it, and returns when everything that came in is
answered.
"""

from __future__ import annotations

import asyncio

from holdfast.dataflow.receivers.grpcdoor import GrpcDoor
from holdfast.dataflow.receivers.guards import by_token
from holdfast.dataflow.receivers.intake import Intake, IntakeStatistics
from holdfast.dataflow.receivers.otapstreams import OtapStreams
from holdfast.dataflow.receivers.otlp import GRACE_S, read_token
from holdfast.dataflow.receivers.settings import OtapSettings, read_otap_settings
from holdfast.dataflow.sinks import Sink

__all__ = ["OtapReceiver", "make", "read_settings"]

read_settings = read_otap_settings


class OtapReceiver:
    """One receiver. Made and used on one event loop."""

    def __init__(self, name: str, settings: OtapSettings, sink: Sink, *, shared: bool = False) -> None:
        self.name = name
        self.ports: dict[str, int] = {}
        self._intake = Intake(name, settings, sink)
        self._streams = OtapStreams(settings, self._intake, by_token(read_token(settings.token_file)))
        self._grpc = GrpcDoor(settings, self._streams.services(), shared=shared)

    async def start(self, _tasks: asyncio.TaskGroup) -> None:
        """Open the door; what was opened when this raises is closed by `stop`."""
        await self._grpc.start()
        self.ports["grpc"] = self._grpc.port

    async def stop(self) -> None:
        """Close the door; everything that came in is answered when this returns."""
        self._streams.stop()
        await self._grpc.stop(GRACE_S)
        await self._intake.close()

    def statistics(self) -> IntakeStatistics:
        """What it has done so far."""
        return self._intake.statistics


def make(name: str, settings: OtapSettings, sink: Sink, *, shared: bool = False) -> OtapReceiver:
    """The receiver of a node; `shared` lets other processes listen on the same ports."""
    return OtapReceiver(name, settings, sink, shared=shared)
