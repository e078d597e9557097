"""The server: one process, one event loop, one store.

    start ──► serving ──┬── stop() ──────────► drain: no new connections, answer what came, close 1001 ──► ended
                        ├── stop() again ────► the same without waiting
                        └── the store failed ► refuse, close 1011 ───────────────────────────────────────► ended

Promise: `run` returns when everything that came in before `stop` is answered or given up, and no connection is left;
with the reason, if the store failed. It never seals or closes the store: that is its owner's.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from picows import WSCloseCode

from holdfast.clock import NS_PER_S, Clock
from holdfast.config.server import ServerConfig
from holdfast.errors import CannotListen, HoldfastError
from holdfast.server.access import Gatekeeper, PreparedAccess, Principal, ReloadableTls, ssl_context
from holdfast.server.connection import Connection
from holdfast.server.door import Door
from holdfast.server.ingest import PATHS, ingest_route
from holdfast.server.ingestdesk import IngestDesk
from holdfast.server.state import ServerState
from holdfast.store.store import Store
from holdfast.telemetry import event
from holdfast.tier import Tier

BACKLOG = 1024
"""Sockets the system holds until they are accepted; a crowd that reconnects at once fits."""
SWEEP_S_MAX = 1.0
"""How often connections are looked at, at least; half a ping interval if that is shorter."""
NEED_RESTART = ("data", "listen", "admin", "audit_path")
"""Settings that are fixed while a server runs."""
FAREWELL_S = 2.0
"""How long a failed server gives its refusals to go out."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What a server is made of; its owner opens and closes them."""

    store: Store
    gatekeeper: Gatekeeper
    clock: Clock
    tls: ReloadableTls | None = None
    insecure: bool = False
    tier: Tier | None = None
    """Attached to the store already."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """New settings that hold, with what was read for them."""

    access: PreparedAccess
    context: ssl.SSLContext | None


class Server:
    """Listens on the data port. Made, started and run on one event loop."""

    def __init__(self, config: ServerConfig, parts: Parts) -> None:
        self.state = ServerState(
            parts.store,
            config,
            parts.gatekeeper,
            parts.clock,
            started_at_ns=parts.clock.wall_ns(),
            insecure=parts.insecure,
            durable_acks=parts.tier is not None,
            tier=parts.tier,
        )
        self.door = Door(self.state)
        self.desk = IngestDesk(self.state, on_failure=self.fail)
        self._tls = parts.tls
        self._listener: asyncio.AbstractServer | None = None
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._empty = asyncio.Event()
        self.door.on_close = self._closed
        parts.gatekeeper.on_revoked = self._revoked
        parts.gatekeeper.check_channel = parts.store.listing.check_channel
        for path in PATHS:
            self.door.routes[path] = ingest_route(self.desk)

    # -- life -------------------------------------------------------------------------------------------------------

    async def start(self) -> tuple[str, int]:
        """Listen; returns host and port, which the system chose if the settings say 0."""
        host, port = self.state.config.listen_address
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self.door.protocol,
                host,
                port,
                backlog=BACKLOG,
                ssl=self._tls.context if self._tls else None,
                ssl_handshake_timeout=self.state.config.ingest_handshake_timeout_ns / NS_PER_S if self._tls else None,
            )
        except OSError as error:
            raise CannotListen(key="server.listen", address=self.state.config.listen, reason=str(error)) from error
        bound = self._listener.sockets[0].getsockname()
        return host, int(bound[1])

    async def run(self, *, on_ready: Callable[[], None] = lambda: None) -> HoldfastError | None:
        """Serve until stopped; returns why, if the store failed."""
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(self._sweep()), tasks.create_task(self.state.gatekeeper.watch())]
                on_ready()
                await self._stopping.wait()
                await self._drain()
                for task in running:
                    task.cancel()
        finally:
            self.desk.close()
        return self.state.failure

    def stop(self) -> None:
        """End in order; called again, end now."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    def fail(self, error: HoldfastError) -> None:
        """The store stopped: refuse everything and end."""
        if self.state.failure is None:
            self.state.failure = error
            event("server.store.fail", level=logging.ERROR, reason=error)
        self._stopping.set()

    def reload(self, config: ServerConfig) -> list[str]:
        """Take limits, users, rules, tokens and certificates from `config`; returns keys that need a restart.

        What does not hold raises, and everything stays as it was.
        """
        return self.take(self.prepare(config))

    def prepare(self, config: ServerConfig) -> Prepared:
        """Read the files that new settings name; raises if they do not hold. Changes nothing; on any thread."""
        context = ssl_context(config) if self._tls is not None and config.has_tls else None
        return Prepared(self.state.gatekeeper.prepare(config), context)

    def take(self, new: Prepared) -> list[str]:
        """Use settings that hold; returns keys that need a restart."""
        old, config = self.state.config, new.access.config
        self.state.gatekeeper.take(new.access)
        if self._tls is not None and new.context is not None:
            self._tls.take(new.context)
        self.state.config = config
        if old.role == "primary" != config.role:
            self._finish("ingest")
        changed = [name for name in NEED_RESTART if getattr(old, name) != getattr(config, name)]
        if old.has_tls != config.has_tls:
            changed.append("tls_cert")
        return [ServerConfig.rows()[name].key for name in changed]

    def _finish(self, kind: str = "") -> None:
        """Let connections answer what came and close them; all of them, or those of one kind."""
        for connection in list(self.door.connections.values()):
            if not kind or connection.info.kind == kind:
                connection.handler.finish()

    # -- ending -----------------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        self.state.draining = True
        if self._listener is not None:
            self._listener.close()
        event("server.drain", connections=len(self.door.connections))
        self._finish()
        limit_s = FAREWELL_S if self.state.failure is not None else self.state.config.shutdown_timeout_ns / NS_PER_S
        if self.door.connections:
            await self._emptied(limit_s)
        for connection in list(self.door.connections.values()):
            connection.abort("the server stops")
        await asyncio.sleep(0)

    async def _emptied(self, limit_s: float) -> None:
        """Until the last connection is gone, somebody hurries, or the time is up."""
        waits = [asyncio.Event.wait(self._empty), asyncio.Event.wait(self._hurry)]
        async with asyncio.TaskGroup() as tasks:
            running = {tasks.create_task(wait) for wait in waits}
            await asyncio.wait(running, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            for task in running:
                task.cancel()

    # -- connections ------------------------------------------------------------------------------------------------

    def _closed(self, _connection: Connection) -> None:
        if self.state.draining and not self.door.connections:
            self._empty.set()

    def _revoked(self, principal: Principal) -> None:
        for connection in list(self.door.connections.values()):
            if connection.principal is principal:
                connection.close(WSCloseCode.POLICY_VIOLATION, "the credential was revoked or has expired")

    async def _sweep(self) -> None:
        """Look after connections and the store, for ever."""
        while True:
            period_s = min(SWEEP_S_MAX, self.state.config.ingest_ping_interval_ns / NS_PER_S / 2)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), period_s)
                return
            now_ns = self.state.clock.monotonic_ns()
            for connection in list(self.door.connections.values()):
                connection.sweep(now_ns, self.state.config)
            self.door.unfinished.sweep(now_ns, self.state.config.ingest_idle_timeout_ns)
            tier = self.state.tier
            failure = self.state.store.failure or (tier.failure if tier is not None else None)
            if failure is not None:
                self.fail(failure)
