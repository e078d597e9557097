"""The server: the real store, tier, ingest and delivery, each connection a real one, over a simulated network.

    accept ──► the route of the path ──► Connection ──► handler ──► store, on a disk that fails
                                                              └──► feeds, settler: threads are a `ProcessPool`

What is real: `Store` and `Tier` without their threads, `IngestDesk`, `DeliveryDesk`, `Connection` and what is spoken on
it. What is not: the HTTP door, access control, the admin port.

After each start everything the store holds is read and goes into the history. Where retention takes what every reader
has confirmed, it is noted when it goes, since a lost disk tells nothing of it afterwards. What is missing at a start
without having been noted went just before the end; the checker looks whether everybody had confirmed it.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from picows import WSCloseCode, WSMsgType

from holdfast.clock import NS_PER_S
from holdfast.config import StoreConfig
from holdfast.config.server import ServerConfig
from holdfast.config.tier import TierConfig
from holdfast.delivery.consumer import consume_route
from holdfast.delivery.desk import DeliveryDesk
from holdfast.errors import DamagedObject, DiskFull, HoldfastError, StoreFailed, TierUnavailable
from holdfast.model.intervals import IntervalSet
from holdfast.server.access import AuditLog, Gatekeeper, Principal
from holdfast.server.connection import Connection
from holdfast.server.door import Route, Upgrade
from holdfast.server.handshake import Refusal
from holdfast.server.ingest import PATHS, ingest_route
from holdfast.server.ingestdesk import IngestDesk
from holdfast.server.state import ConnectionInfo, ServerState
from holdfast.store.catalog import PublishedSegment
from holdfast.store.store import Store
from holdfast.store.tiering import Slots
from holdfast.testing.clock import ManualClock
from holdfast.testing.crashdisk import CrashFilesystem
from holdfast.testing.history import Evicted, Mark, Row, Stored, Wiped
from holdfast.testing.objects import Fault, FaultyObjects, MemoryObjects
from holdfast.testing.simulation.network import PING, PONG, End
from holdfast.testing.simulation.scene import Machine, Scene
from holdfast.testing.simulation.timeline import ProcessLoop, ProcessPool
from holdfast.tier import Tier
from holdfast.wire import consume

DATA = Path("/disk/data")
SWEEP_S = 1.0
TURN_S = 0.2
CONFIG = ServerConfig.from_mapping(
    {"data": str(DATA), "server.listen": "127.0.0.1:0", "ingest.ping_interval": "2s", "ingest.idle_timeout": "6s"}
)


@cache
def _gatekeeper() -> Gatekeeper:
    """Lets everybody in. Making one takes as long as a whole run, so there is one."""
    clock = ManualClock()
    return Gatekeeper(CONFIG, clock, CrashFilesystem(), audit=AuditLog(lambda _line: None, clock))


@cache
def anybody() -> Principal:
    """Who may do everything."""
    return _gatekeeper().authenticate({})


class Setup(NamedTuple):
    """How a server is set up."""

    store: Mapping[str, object]
    has_tier: bool = False


class Server(Machine):
    """One store, life after life."""

    def __init__(self, scene: Scene, setup: Setup) -> None:
        super().__init__("server", scene)
        self.setup = setup
        self.bucket = MemoryObjects()
        self.objects = FaultyObjects(self.bucket, self._fault_of)
        self.tier_trouble = 0.0
        """How many requests to the object store fail."""
        self.tier_away_until_ns = 0
        self.failing = False
        """The disk was made to fail: the store may stop because of it."""
        self.store: Store | None = None
        self.tier: Tier | None = None
        self.connections: dict[int, Connection] = {}
        self._config = StoreConfig.from_mapping(setup.store)
        self._loop = ProcessLoop(self)
        self._next_id = 1

    @property
    def ailing(self) -> bool:
        """Whether disk or object store are made to fail, so that it may stop."""
        return self.failing or self.disk.capacity_bytes is not None or self.tier_is_ill

    @property
    def tier_is_ill(self) -> bool:
        """Whether requests to the object store fail."""
        return self.tier_trouble > 0 or self.timeline.now_ns < self.tier_away_until_ns

    # --- life ------------------------------------------------------------------------------------------------------

    def act(self, action: Callable[..., object], *args: Any) -> None:
        super().act(self._loop.run, action, *args)

    def start(self) -> None:
        try:
            self._open()
        except (StoreFailed, DiskFull, OSError, sqlite3.Error, TierUnavailable, DamagedObject) as error:
            if not self.ailing:
                raise
            self.exit(str(error))
            return
        self._serve()

    def _open(self) -> None:
        scene, disk = self.scene, self.disk
        if not disk.exists(DATA.parent):
            disk.makedir(DATA.parent)
            disk.sync_dir(DATA.parent.parent)
        if self.setup.has_tier:
            self.tier = Tier(
                TierConfig.from_mapping({"tier": {"url": "file:///unused", "max_delay": "300ms"}}),
                self.objects,
                filesystem=disk,
                clock=scene.clock,
                chance=random.Random(self.chance.random()),
                pause=self._pause,
                inline=True,
            )
            self.tier.load()
            self.tier.restore_if_empty(DATA)
        self.store = Store.open(DATA, self._config, filesystem=disk, clock=scene.clock, inline=True, source=self.tier)
        self.read_all()
        if self._config.retention_mode == "acked":
            self.store.port.on_evict(self._note_evicted)
        if self.tier is not None:
            self.tier.attach(self.store.port, threads=False)

    def _note_evicted(self, segment: PublishedSegment, _slots: Slots) -> None:
        meta = segment.meta
        self.scene.happened(self.name, Evicted(meta.channel, meta.first_seq, meta.last_seq, confirmed=True))

    def _serve(self) -> None:
        assert self.store is not None
        clock = self.scene.clock
        state = ServerState(
            self.store,
            CONFIG,
            _gatekeeper(),
            clock,
            started_at_ns=clock.wall_ns(),
            durable_acks=self.tier is not None,
            tier=self.tier,
            make_pool=lambda _count, _name: ProcessPool(self, self.chance),
        )
        ingest = IngestDesk(state, on_failure=self._failed)
        delivery = DeliveryDesk(state, on_failure=self._failed)
        self._routes: dict[str, Route] = {consume.PATH: consume_route(delivery)}
        self._routes[PATHS[0]] = ingest_route(ingest)
        self.started()
        self.later(SWEEP_S, self._sweep)
        self.later(TURN_S, self._turn)

    def forget(self) -> None:
        self.store, self.tier = None, None
        self.connections = {}

    def _failed(self, error: HoldfastError) -> None:
        """The store stopped: the connections are told, then the process ends."""
        self.scene.note(self.name, f"fails: {error}")
        assert self.ailing, f"the store failed on a disk that did not: {error}"
        for connection in list(self.connections.values()):
            connection.close(WSCloseCode.INTERNAL_ERROR, "the server stops")
        self.later(0.01, self.exit, str(error))

    def exit(self, reason: str) -> None:
        """End, and be started again."""
        self.scene.note(self.name, f"exits: {reason}")
        self.failing = False
        self.kill()

    def wipe(self) -> None:
        """The disk is lost, and an empty one is in its place."""
        self.lose_power()
        self.disk = CrashFilesystem(seed=self.chance.randrange(1 << 30))
        self.scene.happened(self.name, Wiped(self.name))

    # --- connections -----------------------------------------------------------------------------------------------

    def accept(self, end: End, path: str, headers: Mapping[str, str]) -> Mapping[str, str] | str:
        """Let a client in."""
        opening = self._routes[path](Upgrade(path, headers, end.other.process.name, anybody()))
        if isinstance(opening, Refusal):
            return opening.reason
        info = ConnectionInfo(
            self._next_id, end.other.process.name, "anybody", opening.kind, self.scene.clock.monotonic_ns()
        )
        self._next_id += 1
        connection = Connection(info, anybody(), speaks_text=False, on_close=self._closed)
        connection.handler = opening.handler(connection)
        self.connections[info.id] = connection
        transport: Any = Transport(end, connection)
        connection.on_ws_connected(transport)
        return dict(opening.headers)

    def _closed(self, connection: Connection) -> None:
        self.connections.pop(connection.info.id, None)

    def _sweep(self) -> None:
        for connection in list(self.connections.values()):
            connection.sweep(self.scene.clock.monotonic_ns(), CONFIG)
        assert self.store is not None
        try:
            self.store.flush()
        except DiskFull as error:
            if not self.ailing:
                raise
            self.scene.note(self.name, f"cannot seal: {error}")
        except StoreFailed as error:
            self._failed(error)
            return
        self.later(SWEEP_S * (0.5 + self.chance.random()), self._sweep)

    # --- the tier --------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """What the tier's thread does; while it waits, others go on."""
        tier = self.tier
        if tier is None:
            return
        try:
            tier.turn()
        except (StoreFailed, DiskFull, OSError, sqlite3.Error) as error:
            if not self.ailing:
                raise
            self.exit(str(error))
            return
        self.later(TURN_S * (0.5 + self.chance.random()), self._turn)

    def _pause(self, seconds: float) -> bool:
        """Wait, while everything else goes on; True if this life is over then."""
        life = self.life
        self.timeline.run(self.timeline.now_ns + round(seconds * NS_PER_S))
        return self.life != life

    def _fault_of(self, _number: int) -> Fault | None:
        if self.timeline.now_ns < self.tier_away_until_ns:
            return Fault.BEFORE
        if self.chance.random() >= self.tier_trouble:
            return None
        self.scene.faults["object store"] += 1
        return self.chance.choice(list(Fault))

    # --- looking ---------------------------------------------------------------------------------------------------

    def read_all(self, *, is_final: bool = False) -> None:
        """Everything that is there, into the history."""
        assert self.store is not None
        rows: list[Row] = []
        for channel in sorted(self.store.channels()):
            here = list(_rows(self.store, channel))
            if self._config.retention_mode == "acked":
                present = IntervalSet((row.seq, row.seq) for row in here)
                for first, last in present.missing(1, self.store.handing.last_seq(channel)):
                    self.scene.happened(self.name, Evicted(channel, first, last, confirmed=True))
            rows += here
        self.scene.happened(self.name, Stored(tuple(rows), is_final))
        for subscriber in self.store.subscribers():
            for lag in subscriber.channels:
                self.scene.happened(self.name, Mark(subscriber.name, lag.channel, lag.mark))


def _rows(store: Store, channel: str) -> Iterator[Row]:
    for batch in store.read(channel, system=["_seq", "_committed_id"]):
        columns = [batch.column(name).to_pylist() for name in ("n", "text", "_seq", "_committed_id")]
        for number, text, seq, committed_id in zip(*columns, strict=True):
            assert text == f"event {number}", f"{channel} {seq} holds {text!r} beside {number}"
            yield Row(channel, seq, number, committed_id)


class _Frame(NamedTuple):
    """A WebSocket frame as `Connection` looks at one."""

    msg_type: WSMsgType
    payload: bytes
    fin: bool = True
    rsv1: bool = False
    rsv2: bool = False
    rsv3: bool = False
    tail_size: int = 0

    def get_payload_as_bytes(self) -> bytes:
        """All of it."""
        return self.payload


class Transport:
    """The socket of a connection: a simulated one, with as much of picows as `Connection` and the handlers use."""

    def __init__(self, end: End, connection: Connection) -> None:
        self.underlying_transport = self
        self._end = end
        self._connection: Any = connection
        self._over = False
        end.received = self._received
        end.ended = self._ended

    def _received(self, message: bytes) -> None:
        kind = {id(PING): WSMsgType.PING, id(PONG): WSMsgType.PONG}.get(id(message), WSMsgType.BINARY)
        self._connection.on_ws_frame(self, _Frame(kind, message))

    def _ended(self, _code: int | None, _reason: str) -> None:
        if not self._over:
            self._over = True
            self._connection.on_ws_disconnected(self)

    def send(self, _kind: WSMsgType, message: bytes) -> None:
        """To the client."""
        self._end.send(bytes(message))

    def send_reuse_external_bytearray(self, _kind: WSMsgType, message: bytearray, offset: int) -> None:
        """The same for a long one, which begins behind the room for its header."""
        self._end.send(bytes(message[offset:]))

    def send_ping(self) -> None:
        """Ask whether the client lives."""
        self._end.send(PING)

    def send_pong(self, message: bytes = b"") -> None:
        """Answer a ping: the network has done so."""

    def get_extra_info(self, _name: str) -> None:
        """There is no socket."""

    def send_close(self, code: WSCloseCode, reason: str = "") -> None:
        """Say why; the socket goes with `disconnect`."""
        self._end.close(code.value, reason)

    def disconnect(self, graceful: bool = True) -> None:
        """The socket goes, and the connection hears of it; without grace what is on its way goes too."""
        if not graceful:
            self._end.other.deaf = True
        self._end.close()
        self._end.process.later(0.0, self._ended, None, "")

    def pause_reading(self) -> None:
        """Nothing more, for a while."""
        self._end.pause()

    def resume_reading(self) -> None:
        """Go on."""
        self._end.resume()

    def set_write_buffer_limits(self, high: int) -> None:
        """There is no buffer: the network takes everything."""

    def get_write_buffer_size(self) -> int:
        """Nothing waits here."""
        return 0
