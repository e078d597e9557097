"""Metrics and health of a running graph, and the admin HTTP of its store, through which Spark and people read.

    /metrics              receivers, exporters and the first persistence node
    /metrics/<node>       another persistence node
    /healthz              200 while every store works
    everything else       the admin HTTP of the first persistence node's store

Only on a loopback address: nobody has to authenticate here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from holdfast.clock import Clock
from holdfast.config.server import ServerConfig
from holdfast.dataflow.exporters.parcels import ExporterStatistics
from holdfast.dataflow.metrics import render
from holdfast.dataflow.receivers.intake import IntakeStatistics
from holdfast.disk.filesystem import Filesystem
from holdfast.server.access import Gatekeeper
from holdfast.server.admin import build, serve_admin
from holdfast.server.admin.metrics import MEDIA_TYPE
from holdfast.server.admin.serving import AdminServer
from holdfast.server.state import ServerState
from holdfast.store.store import Store


class Figures(Protocol):
    """What a running graph shows."""

    @property
    def stores(self) -> Mapping[str, Store]:
        """By persistence node."""

    def receiver_statistics(self) -> Mapping[str, IntakeStatistics]:
        """By receiver."""

    def exporter_statistics(self) -> Mapping[str, ExporterStatistics]:
        """By exporter."""


@dataclass(frozen=True, slots=True)
class StoresOnly:
    """Stores that another process left behind; what runs beside them is counted elsewhere."""

    stores: Mapping[str, Store]

    def receiver_statistics(self) -> Mapping[str, IntakeStatistics]:
        """None."""
        return {}

    def exporter_statistics(self) -> Mapping[str, ExporterStatistics]:
        """None."""
        return {}


class Admin:
    """The admin server of a graph. Made and used on one event loop."""

    def __init__(self, address: str, figures: Figures, *, clock: Clock, filesystem: Filesystem) -> None:
        self._figures = figures
        first = next(iter(figures.stores.values()), None)
        config = ServerConfig(admin=address, data=str(first.path) if first is not None else "data")
        self._gatekeeper = Gatekeeper(config, clock, filesystem)
        app = Starlette()
        if first is not None:
            app = build(ServerState(first, config, self._gatekeeper, clock, started_at_ns=clock.wall_ns()))
        app.router.routes[:0] = [
            Route("/metrics", self._metrics, methods=["GET"]),
            Route("/metrics/{node}", self._metrics, methods=["GET"]),
            Route("/healthz", self._healthz, methods=["GET"]),
        ]
        self._server: AdminServer = serve_admin(app, config)
        self.port = self._server.port

    async def serve(self) -> None:
        """Serve until `stop`."""
        try:
            await self._server.serve()
        finally:
            self._gatekeeper.close()

    def stop(self) -> None:
        """End when what is under way is answered."""
        self._server.stop()

    async def _metrics(self, request: Request) -> Response:
        stores = self._figures.stores
        node = request.path_params.get("node") or next(iter(stores), "")
        if "node" in request.path_params and node not in stores:
            names = ", ".join(stores)
            return JSONResponse({"error": f"{node} is not a persistence node; there are {names}"}, 404)
        receivers, exporters = self._figures.receiver_statistics(), self._figures.exporter_statistics()
        text = await asyncio.to_thread(render, receivers, exporters, stores.get(node))
        return Response(text, media_type=MEDIA_TYPE)

    async def _healthz(self, _request: Request) -> Response:
        failed = {name: str(store.failure) for name, store in self._figures.stores.items() if store.failure}
        return JSONResponse({"status": "failed" if failed else "ok", "failed": failed}, 503 if failed else 200)
