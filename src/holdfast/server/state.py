"""What the parts of a running server share: the store, the settings of now, who is connected, and how it is going.

Promise: everything here is read and changed on the event loop only. The admin server reads it; nobody else's process
does. A `ConnectionInfo` is kept current by its connection and leaves the table when the connection ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from holdfast.clock import Clock
from holdfast.config.server import ServerConfig
from holdfast.errors import HoldfastError
from holdfast.server.access import Gatekeeper
from holdfast.server.latency import Latencies
from holdfast.server.queries import Queries
from holdfast.server.senders import Senders
from holdfast.server.troubles import Troubles
from holdfast.store.store import Store
from holdfast.tier import Tier


@dataclass(slots=True)
class ConnectionInfo:
    """One connection, for people and metrics."""

    id: int
    peer: str
    principal: str
    kind: str
    """Which protocol it speaks: `ingest`, later `consume` and `sync`."""
    opened_at_ns: int
    frames: int = 0
    bytes: int = 0
    wire_seq: int = -1
    """The last message that came; -1 before the first."""
    acknowledged: int = -1
    """The last message that was answered with OK."""
    inflight_bytes: int = 0
    paused: str = ""
    """Why nothing is read from it now; empty while it is read."""
    slot_id: str = ""
    last_error: str = ""
    goodbye: bool = False
    """Whether the peer said that it closes."""


@dataclass(slots=True)
class Totals:
    """Counters since the start."""

    connections: int = 0
    handshakes_refused: dict[int, int] = field(default_factory=dict)
    """By HTTP status."""
    frames: int = 0
    bytes: int = 0
    together: int = 0
    """Frames that went to the store as part of a train."""
    duplicates: int = 0
    refusals: dict[str, int] = field(default_factory=dict)
    """By category."""
    stalls: int = 0
    """How often a frame had to wait for a full store."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What a part above the server counts (`is_counter`) or measures."""

    name: str
    text: str
    value: float
    is_counter: bool = False
    label: tuple[str, str] | None = None
    """Name and value, where several figures share a name; these follow each other."""


@dataclass(slots=True)
class ServerState:
    """The running server as its parts see it."""

    store: Store
    config: ServerConfig
    gatekeeper: Gatekeeper
    clock: Clock
    started_at_ns: int
    insecure: bool = False
    draining: bool = False
    durable_acks: bool = False
    """Whether an object store is attached, so that producers may be told what is in it."""
    tier: Tier | None = None
    failure: HoldfastError | None = None
    """Why the store stopped; the process is about to end."""
    connections_by_id: dict[int, ConnectionInfo] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)
    more_figures: list[Callable[[], Sequence[Figure]]] = field(default_factory=list)
    """What parts above the server add to its metrics; asked on the loop."""
    vacating: list[Callable[[str, str | None], AbstractAsyncContextManager[None]]] = field(default_factory=list)
    """How parts above the server let go of a subscriber's place, in a channel or in all, while it is changed."""
    make_pool: Callable[[int, str], Executor] = ThreadPoolExecutor
    """Threads for what waits for a disk: how many, and their name. A simulation has none."""
    queries: Queries = field(init=False)
    """Spark queries that told how they are doing."""
    senders: Senders = field(init=False)
    """Who sends frames of slots, also while it is away."""
    troubles: Troubles = field(init=False)
    """The last refusals."""
    latencies: Latencies = field(default_factory=Latencies)
    """How long producers wait for their answer."""

    def __post_init__(self) -> None:
        self.queries = Queries(self.clock)
        self.senders = Senders(self.clock)
        self.troubles = Troubles(self.clock)

    @property
    def connections(self) -> list[ConnectionInfo]:
        """Who is connected, oldest first."""
        return list(self.connections_by_id.values())
