"""A graph that runs: stores are opened, exporters begin, then receivers; the end goes the other way round.

    open stores ──► exporters ──► receivers ──► ready ──┬── stop ──────────┐
                                                        └── a store failed ┴──► receivers answer what came
                                                            exporters end after the parcel in hand; stores close

Promise: nothing is accepted before every part is there, and what was accepted is in a store, or at its destinations,
whatever ends the process. The event loop never waits for a disk: stores are opened and closed on threads.
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from holdfast.clock import NS_PER_S, Clock, SystemClock
from holdfast.dataflow.admin import Admin
from holdfast.dataflow.exporters.direct import DirectSink
from holdfast.dataflow.exporters.loop import ExportLoop
from holdfast.dataflow.exporters.parcels import Exporter, ExporterStatistics
from holdfast.dataflow.graph import Graph
from holdfast.dataflow.nodes import Node
from holdfast.dataflow.persistence import Settings as PersistenceSettings
from holdfast.dataflow.persistence import with_signals
from holdfast.dataflow.plugins import NodeKind
from holdfast.dataflow.receivers.intake import IntakeStatistics
from holdfast.dataflow.receivers.settings import ReceiverSettings
from holdfast.dataflow.settings import ExporterSettings
from holdfast.dataflow.sinks import AllOf, OneOf, Sink, StoreSink
from holdfast.disk.filesystem import Filesystem
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import CannotListen, HoldfastError, InvalidConfig
from holdfast.store.store import Store
from holdfast.telemetry import event
from holdfast.wire.otlp.raw import is_raw

if sys.platform == "win32":
    new_event_loop = asyncio.new_event_loop
else:
    from uvloop import new_event_loop

SWITCH_INTERVAL_S = 0.0005
"""How long one thread may keep the others from running Python: loop, intake and committer wait for each other."""
WATCH_S = 0.5
"""How often a failed store is looked for."""


@dataclass(frozen=True, slots=True)
class Seams:
    """Time, disk and chance."""

    clock: Clock = field(default_factory=SystemClock)
    filesystem: Filesystem = field(default_factory=LocalFilesystem)
    chance: random.Random = field(default_factory=random.Random)


class Flow:
    """A graph in one process. Made and run on one event loop."""

    def __init__(self, graph: Graph, seams: Seams | None = None, *, core: int = 0, shared: bool = False) -> None:
        """`core` is the number of this process among those that share the graph; `shared` lets them share ports."""
        self.graph = graph
        self.stores: dict[str, Store] = {}
        self._seams = seams or Seams()
        self._core = core
        self._shared = shared
        self._stop_sinks = threading.Event()
        self._stopping = asyncio.Event()
        self._receivers: dict[str, Any] = {}
        self._loops: dict[str, ExportLoop] = {}
        self._direct: dict[str, DirectSink] = {}
        self._admin: Admin | None = None

    def stop(self) -> None:
        """End in order. On the loop."""
        self._stopping.set()

    async def run(self, on_ready: Callable[[Mapping[str, str]], None] = lambda _addresses: None) -> None:
        """Run until `stop`; raises the reason if a store failed. `on_ready` is told where what listens."""
        try:
            await asyncio.to_thread(self._open)
            async with asyncio.TaskGroup() as tasks:
                try:
                    await self._start(tasks)
                    on_ready(self.addresses())
                    failure = await self._stopped_or_failed()
                finally:
                    await self._end_listening()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        finally:
            await asyncio.to_thread(self._close)
        if failure is not None:
            raise failure

    def addresses(self) -> dict[str, str]:
        """Where the graph listens: `<node>.<protocol>` to `host:port`; `admin` to a URL."""
        found = {}
        for name, receiver in self._receivers.items():
            doors = _receiver_settings(self.graph.nodes[name]).doors()
            hosts = {"grpc": doors.get("listening_addr", ""), "http": doors.get("http_listening_addr", "")}
            for protocol, port in receiver.ports.items():
                found[f"{name}.{protocol}"] = f"{hosts[protocol].rpartition(':')[0]}:{port}"
        if self._admin is not None:
            found["admin"] = f"http://{self.graph.admin_addr.rpartition(':')[0]}:{self._admin.port}"
        return found

    def receiver_statistics(self) -> Mapping[str, IntakeStatistics]:
        """By receiver."""
        return {name: receiver.statistics() for name, receiver in self._receivers.items()}

    def exporter_statistics(self) -> Mapping[str, ExporterStatistics]:
        """By exporter."""
        parts: dict[str, ExportLoop | DirectSink] = {**self._loops, **self._direct}
        return {name: part.statistics for name, part in parts.items()}

    # -- beginning --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        seams = self._seams
        for node in self.graph.of_kind(NodeKind.PROCESSOR):
            settings = node.settings
            assert isinstance(settings, PersistenceSettings)
            self.stores[node.name] = Store.open(
                settings.core_path(self._core),
                with_signals(settings.store, self._channels_into(node)),
                filesystem=seams.filesystem,
                clock=seams.clock,
            )
        for node in self.graph.of_kind(NodeKind.RECEIVER):
            self._check_payload(node)
        for node in self.graph.of_kind(NodeKind.EXPORTER):
            self._add_exporter(node)
        for name in self.stores:
            self._tell_orphans(name)

    def _check_payload(self, node: Node) -> None:
        """A channel has requests or columns, not both."""
        settings = _receiver_settings(node)
        for name in node.destinations:
            store = self.stores.get(name)
            if store is None:
                continue
            for channel in settings.channels_by_signal().values():
                if channel in store.channels() and is_raw(store.schema(channel)) != (settings.payload == "raw"):
                    key = f"nodes.{node.name}.config.payload"
                    kept = "columns" if settings.payload == "raw" else "raw requests"
                    reason = f"channel {channel!r} holds {kept}; choose other channels, or the other payload"
                    raise InvalidConfig(key=key, reason=reason, file=self.graph.file, line=self.graph.lines.get(key, 0))

    def _add_exporter(self, node: Node) -> None:
        settings = node.settings
        assert isinstance(settings, ExporterSettings)
        exporter: Exporter = node.module.make(settings, filesystem=self._seams.filesystem, clock=self._seams.clock)
        feeding = self.graph.feeding(node.name)
        if feeding[0].kind is NodeKind.RECEIVER:
            self._direct[node.name] = DirectSink(node.name, exporter, self._seams.clock)
            return
        store = self.stores[feeding[0].name]
        channels = settings.channels or tuple(dict.fromkeys(name for name, _ in self._channels_into(feeding[0])))
        loop = ExportLoop(
            node.name,
            store.subscriber(node.name, channels=channels),
            exporter,
            settings=settings,
            chance=random.Random(self._seams.chance.getrandbits(64)),
        )
        self._loops[node.name] = loop
        loop.start()

    def _channels_into(self, persistence: Node) -> list[tuple[str, str]]:
        """The channels that receivers write into a persistence node, each with its signal."""
        found = []
        for node in self.graph.feeding(persistence.name):
            settings = _receiver_settings(node)
            found += [(channel, signal) for signal, channel in settings.channels_by_signal().items()]
        return found

    def _tell_orphans(self, name: str) -> None:
        """Subscribers whose exporter is not in the file any more keep data; only an operator knows if that is meant."""
        for subscriber in self.stores[name].subscribers():
            if subscriber.name not in self._loops:
                owed = sum(lag.events for lag in subscriber.channels)
                event(
                    "dataflow.subscriber.orphan",
                    level=logging.WARNING,
                    node=name,
                    subscriber=subscriber.name,
                    owed=owed,
                    remedy=f"holdfast subscribers rm {subscriber.name}",
                )

    async def _start(self, tasks: asyncio.TaskGroup) -> None:
        for node in self.graph.of_kind(NodeKind.RECEIVER):
            receiver = node.module.make(node.name, node.settings, self._sink(node), shared=self._shared)
            self._receivers[node.name] = receiver
            try:
                await receiver.start(tasks)
            except CannotListen as error:
                key = f"nodes.{node.name}.config.{error.key}"
                raise CannotListen(key=key, address=error.address, reason=error.reason) from None
        if self.graph.admin_addr:
            self._admin = Admin(self.graph.admin_addr, self, clock=self._seams.clock, filesystem=self._seams.filesystem)
            tasks.create_task(self._admin.serve())

    def _sink(self, node: Node) -> Sink:
        sinks = [self._sink_to(name, node) for name in node.destinations]
        if len(sinks) == 1:
            return sinks[0]
        if node.strategy == "broadcast":
            return AllOf(sinks)
        return OneOf(sinks, chance=self._seams.chance if node.strategy == "random" else None)

    def _sink_to(self, name: str, node: Node) -> Sink:
        if name in self._direct:
            return self._direct[name]
        wait_s = _receiver_settings(node).wait_ns / NS_PER_S
        return StoreSink(self.stores[name], wait_s=wait_s, stopping=self._stop_sinks)

    # -- ending -----------------------------------------------------------------------------------------------------

    async def _stopped_or_failed(self) -> HoldfastError | None:
        while not self._stopping.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), WATCH_S)
            for name, store in self.stores.items():
                if store.failure is not None:
                    event("dataflow.store.fail", level=logging.ERROR, node=name, reason=store.failure)
                    return store.failure
        return None

    async def _end_listening(self) -> None:
        self._stop_sinks.set()
        for receiver in self._receivers.values():
            await receiver.stop()
        if self._admin is not None:
            self._admin.stop()

    def _close(self) -> None:
        for loop in self._loops.values():
            loop.stop()
        for loop in self._loops.values():
            loop.join()
        for sink in self._direct.values():
            sink.close()
        for store in self.stores.values():
            store.close()


def _receiver_settings(node: Node) -> ReceiverSettings:
    assert isinstance(node.settings, ReceiverSettings), node.name
    return node.settings


def run_graph(graph: Graph, on_ready: Callable[[Mapping[str, str]], None] = lambda _addresses: None) -> None:
    """Run a graph in this process until SIGTERM or SIGINT."""

    async def serve() -> None:
        flow = Flow(graph)
        loop = asyncio.get_running_loop()
        if sys.platform == "win32":
            signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(flow.stop))
        else:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, flow.stop)
        await flow.run(on_ready)

    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())
