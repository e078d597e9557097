"""A graph that runs: stores are opened, exporters begin, then receivers; the end goes the other way round.

    open stores ──► exporters ──► receivers ──► ready ──┬── stop ──────────┐
                                                        └── a store failed ┴──► receivers answer what came
                                                            exporters end after the parcel in hand; stores close

Promise: nothing is accepted before every part is there, and what was accepted is in a store, or at its destinations,
whatever ends the process. The event loop never waits for a disk: stores are opened and closed on threads. Stores that
more processes left behind are opened too: nothing is written to them, and their exporters go on (`places.py`).
"""

from __future__ import annotations

import asyncio
import logging
import random
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from holdfast.clock import NS_PER_S, Clock, SystemClock
from holdfast.dataflow.admin import Admin, Figures, StoresOnly
from holdfast.dataflow.cores import CoreReady, Link
from holdfast.dataflow.exporters.direct import DirectSink
from holdfast.dataflow.exporters.loop import ExportLoop
from holdfast.dataflow.exporters.parcels import Exporter, ExporterStatistics, together
from holdfast.dataflow.graph import Graph
from holdfast.dataflow.nodes import Node
from holdfast.dataflow.persistence import Settings as PersistenceSettings
from holdfast.dataflow.persistence import with_signals
from holdfast.dataflow.places import Place, admin_of_core
from holdfast.dataflow.plugins import NodeKind
from holdfast.dataflow.receivers.intake import IntakeStatistics
from holdfast.dataflow.receivers.settings import ReceiverSettings
from holdfast.dataflow.settings import ExporterSettings
from holdfast.dataflow.sinks import AllOf, OneOf, Sink, StoreSink
from holdfast.disk.filesystem import Filesystem
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import CannotListen, HoldfastError, InvalidConfig
from holdfast.server.interpreter import serve_many
from holdfast.store.retention.sharedroom import SharedRoom, prepare_room
from holdfast.store.store import Store
from holdfast.telemetry import event
from holdfast.wire.otlp.raw import is_raw

if sys.platform == "win32":
    new_event_loop = asyncio.new_event_loop
else:
    from uvloop import new_event_loop

WATCH_S = 0.5
"""How often a failed store is looked for."""


@dataclass(frozen=True, slots=True)
class Seams:
    """Time, disk and chance."""

    clock: Clock = field(default_factory=SystemClock)
    filesystem: Filesystem = field(default_factory=LocalFilesystem)
    chance: random.Random = field(default_factory=random.Random)


class ReadingProcesses(Protocol):
    """Processes of nodes that read the stores by themselves."""

    def start(self, tasks: asyncio.TaskGroup, addresses: Sequence[str]) -> None:
        """Begin; these are the admin addresses of all cores."""

    async def stop(self) -> None:
        """End in order."""

    def kill(self) -> None:
        """End at once."""


def read_by_spark(graph: Graph) -> ReadingProcesses:
    """Those of a graph; Spark is imported only for graphs that have such a node."""
    processes: ReadingProcesses = import_module("holdfast.dataflow.sparknode").SparkProcesses(graph)
    return processes


class Flow:
    """A graph in one process. Made and run on one event loop."""

    def __init__(self, graph: Graph, seams: Seams | None = None, *, place: Place | None = None) -> None:
        """`place` is that of this process among those that share the graph and its ports."""
        self.graph = graph
        self.stores: dict[str, Store] = {}
        self.adopted: dict[int, dict[str, Store]] = {}
        self._seams = seams or Seams()
        self._place = place or Place()
        self._stop_sinks = threading.Event()
        self._stopping = asyncio.Event()
        self._receivers: dict[str, Any] = {}
        self._loops: dict[str, list[ExportLoop]] = {}
        self._direct: dict[str, DirectSink] = {}
        self._expected: set[str] = set()  # subscribers of nodes that read the stores by themselves
        self._readers: ReadingProcesses | None = None
        self._front: Admin | None = None
        self._admins: dict[int, Admin] = {}

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
                    self._start_readers(tasks)
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
        if self._front is not None:
            found["admin"] = f"http://{self.graph.admin_addr.rpartition(':')[0]}:{self._front.port}"
        return found

    def admin_urls(self) -> dict[int, str]:
        """Where the admin HTTP of each store of this process is, by core."""
        host = self.graph.admin_addr.rpartition(":")[0]
        return {core: f"http://{host}:{admin.port}" for core, admin in self._admins.items()}

    def receiver_statistics(self) -> Mapping[str, IntakeStatistics]:
        """By receiver."""
        return {name: receiver.statistics() for name, receiver in self._receivers.items()}

    def exporter_statistics(self) -> Mapping[str, ExporterStatistics]:
        """By exporter."""
        stored = {name: together([loop.statistics for loop in loops]) for name, loops in self._loops.items()}
        return {**stored, **{name: sink.statistics for name, sink in self._direct.items()}}

    # -- beginning --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        for node in self.graph.of_kind(NodeKind.PROCESSOR):
            self._open_stores(node)
        for node in self.graph.of_kind(NodeKind.RECEIVER):
            self._check_payload(node)
        for node in self.graph.of_kind(NodeKind.EXPORTER):
            self._add_exporter(node)
        for stores in (self.stores, *self.adopted.values()):
            for name, store in stores.items():
                self._tell_orphans(name, store)

    def _open_stores(self, node: Node) -> None:
        """The node's own store, and those that are left over."""
        settings, seams, place = node.settings, self._seams, self._place
        assert isinstance(settings, PersistenceSettings)
        config = with_signals(settings.store, self._channels_into(node))
        left = [core for core in settings.cores_there(seams.filesystem) if place.adopts(core)]
        is_divided = bool(config.retention_size_cap_bytes) and (place.is_shared or bool(left))
        if is_divided and not place.is_shared:
            prepare_room(seams.filesystem, settings.room_path, (place.core, *left))
        for core in (place.core, *left):
            store = Store.open(settings.core_path(core), config, filesystem=seams.filesystem, clock=seams.clock)
            (self.stores if core == place.core else self.adopted.setdefault(core, {}))[node.name] = store
            if is_divided:
                store.keeper.share(SharedRoom(seams.filesystem, settings.room_path, seams.clock, core=core))
            if core != place.core:
                event("dataflow.core.adopt", node=node.name, core=core, into=place.core)

    def _stores_of(self, node: str) -> dict[int, Store]:
        """All stores of a node in this process, by core."""
        adopted = {core: stores[node] for core, stores in self.adopted.items() if node in stores}
        return {self._place.core: self.stores[node], **adopted}

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
        feeding = self.graph.feeding(node.name)
        if settings.reads_stores:
            self._expect_reader(node, feeding[0].name)
            return
        if feeding[0].kind is NodeKind.RECEIVER:
            sink = DirectSink(node.name, self._exporter(node), self._seams.clock, core=self._place.core)
            self._direct[node.name] = sink
            return
        channels = settings.channels or tuple(dict.fromkeys(name for name, _ in self._channels_into(feeding[0])))
        for core, store in self._stores_of(feeding[0].name).items():
            loop = ExportLoop(
                node.name,
                store.subscriber(node.name, channels=channels),
                self._exporter(node),
                settings=settings,
                chance=random.Random(self._seams.chance.getrandbits(64)),
                core=core,
            )
            self._loops.setdefault(node.name, []).append(loop)
            loop.start()

    def _expect_reader(self, node: Node, persistence: str) -> None:
        """Its subscribers are there before it comes, so that nothing goes before it has read it."""
        for name, channels in getattr(node.settings, "subscribers", ()):
            self._expected.add(name)
            for store in self._stores_of(persistence).values():
                store.subscriber(name, channels=channels).close()

    def _exporter(self, node: Node) -> Exporter:
        made: Exporter = node.module.make(node.settings, filesystem=self._seams.filesystem, clock=self._seams.clock)
        return made

    def _channels_into(self, persistence: Node) -> list[tuple[str, str]]:
        """The channels that receivers write into a persistence node, each with its signal."""
        found = []
        for node in self.graph.feeding(persistence.name):
            settings = _receiver_settings(node)
            found += [(channel, signal) for signal, channel in settings.channels_by_signal().items()]
        return found

    def _tell_orphans(self, name: str, store: Store) -> None:
        """Subscribers whose exporter is not in the file any more keep data; only an operator knows if that is meant."""
        for subscriber in store.subscribers():
            if subscriber.name not in self._loops and subscriber.name not in self._expected:
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
            receiver = node.module.make(node.name, node.settings, self._sink(node), shared=self._place.is_shared)
            self._receivers[node.name] = receiver
            try:
                await receiver.start(tasks)
            except CannotListen as error:
                key = f"nodes.{node.name}.config.{error.key}"
                raise CannotListen(key=key, address=error.address, reason=error.reason) from None
        if self.graph.admin_addr:
            self._start_admins(tasks)

    def _start_admins(self, tasks: asyncio.TaskGroup) -> None:
        """One for each core: readers of segments know a store by its address."""
        seams, place = self._seams, self._place
        figures: dict[int, Figures] = {core: StoresOnly(stores) for core, stores in self.adopted.items()}
        addresses = {core: admin_of_core(self.graph.admin_addr, core) for core in (place.core, *figures)}
        if not place.is_shared:
            self._front = Admin(self.graph.admin_addr, self, clock=seams.clock, filesystem=seams.filesystem)
            tasks.create_task(self._front.serve())
            if not figures and not self._expected:
                return  # nobody asks for the store of one core
        for core, address in addresses.items():
            shown = figures.get(core, self)
            self._admins[core] = Admin(address, shown, clock=seams.clock, filesystem=seams.filesystem)
            tasks.create_task(self._admins[core].serve())

    def _start_readers(self, tasks: asyncio.TaskGroup) -> None:
        """Nodes that read stores run once for all cores; with several, the supervisor has them."""
        if self._expected and not self._place.is_shared:
            self._readers = read_by_spark(self.graph)
            self._readers.start(tasks, list(self.admin_urls().values()))

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
            for stores in (self.stores, *self.adopted.values()):
                for name, store in stores.items():
                    if store.failure is not None:
                        event("dataflow.store.fail", level=logging.ERROR, node=name, reason=store.failure)
                        return store.failure
        return None

    async def _end_listening(self) -> None:
        self._stop_sinks.set()
        for receiver in self._receivers.values():
            await receiver.stop()
        if self._readers is not None:
            await self._readers.stop()
        for admin in (self._front, *self._admins.values()):
            if admin is not None:
                admin.stop()

    def _close(self) -> None:
        loops = [loop for loops in self._loops.values() for loop in loops]
        for loop in loops:
            loop.stop()
        for loop in loops:
            loop.join()
        for sink in self._direct.values():
            sink.close()
        for stores in (self.stores, *self.adopted.values()):
            for store in stores.values():
                store.close()


def _receiver_settings(node: Node) -> ReceiverSettings:
    assert isinstance(node.settings, ReceiverSettings), node.name
    return node.settings


def run_graph(
    graph: Graph,
    on_ready: Callable[[Mapping[str, str]], None] = lambda _addresses: None,
    *,
    place: Place | None = None,
    supervisor: int | None = None,
) -> None:
    """Run a graph in this process until SIGTERM or SIGINT. `supervisor` is the descriptor of a link to one."""

    async def serve() -> None:
        flow = Flow(graph, place=place)
        if supervisor is not None:
            link = Link(supervisor, flow.stop)
            await run_flow(flow, lambda addresses: link.say_ready(CoreReady(dict(addresses), flow.admin_urls())))
            link.close()
        else:
            await run_flow(flow, on_ready)

    async def run_flow(flow: Flow, on_ready: Callable[[Mapping[str, str]], None]) -> None:
        loop = asyncio.get_running_loop()
        if sys.platform == "win32":
            signal.signal(signal.SIGINT, lambda *_: loop.call_soon_threadsafe(flow.stop))
        else:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, flow.stop)
        await flow.run(on_ready)

    serve_many()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())
