"""One graph in several processes: the supervisor that starts them, keeps them alive, and ends when they have ended.

    supervisor ──┬── core 0 ── store core-0 ─┐
                 ├── core 1 ── store core-1 ─┼─ the same ports (SO_REUSEPORT), the same destinations
                 └── admin: all of them      ┘

A core is a process with a link to its supervisor: it says there when it is ready, and ends in order when the link
breaks, so that no core outlives its supervisor unseen.

Promises:

- Ready means that every core is. A core that does not come up the first time ends them all, with its exit code.
- A core that dies later is started again, after pauses that double up to `BACKOFF`; the others go on meanwhile.
- SIGTERM, SIGINT and SIGHUP end every core in order, after those who read from them; a second one kills those that are
  left, which loses nothing that was accepted. `run` returns the worst exit code.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress

import msgspec

from holdfast.clock import NS_PER_S, Clock, SystemClock
from holdfast.dataflow.places import Place
from holdfast.model.backoff import Backoff
from holdfast.telemetry import event

BACKOFF = Backoff(0.5, 30.0, spread=-0.5)
STEADY_NS = 60 * NS_PER_S
"""A core that ran so long died of something new: the pauses begin again."""
KILLED = 4
"""The exit code of a core that a signal ended: it failed."""


class CoreReady(msgspec.Struct, frozen=True):
    """What a core says when it is ready."""

    addresses: dict[str, str]
    admin: dict[int, str]
    """Where the admin HTTP of each of its stores is."""


class Core:
    """One core, through all its lives. `command` starts the one that is linked by a file descriptor."""

    def __init__(self, place: Place, command: Callable[[Place, int], Sequence[str]]) -> None:
        self.place = place
        self.ready: CoreReady | None = None
        """What it said; None while it is down."""
        self.restarts = 0
        self._command = command
        self._process: Process | None = None

    async def live(self, on_ready: Callable[[], None]) -> int:
        """One life, from start to end; the exit code."""
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                command = self._command(self.place, theirs.fileno())
                self._process = await asyncio.create_subprocess_exec(*command, pass_fds=(theirs.fileno(),))
            line = await _line(ours)
            if line:
                self.ready = msgspec.json.decode(line, type=CoreReady)
                on_ready()
            code = await self._process.wait()
            self.ready = None
            if code == -signal.SIGTERM:  # it was told to end before it had begun
                return 0
            return code if code >= 0 else KILLED

    def send(self, number: int) -> None:
        """Send a signal, if it lives."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)  # `send_signal` would look first, and take the exit code with it


class Supervisor:
    """All cores of a graph. Made and used on one event loop."""

    def __init__(
        self,
        cores: int,
        command: Callable[[Place, int], Sequence[str]],
        *,
        clock: Clock | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self.cores = [Core(Place(number, cores), command) for number in range(cores)]
        self._clock = clock or SystemClock()
        self._chance = chance or random.Random()
        self.before_end: Callable[[], Awaitable[None]] = _nothing
        self.at_once: Callable[[], None] = lambda: None
        self._asked = asyncio.Event()
        self._stopping = asyncio.Event()
        self._came_up: set[int] = set()
        self._did_not_come_up: int | None = None

    async def run(self, on_ready: Callable[[Mapping[str, str]], None]) -> int:
        """Run until a signal, or until a core does not come up; the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.stop)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._end_when_asked())
            lives = [tasks.create_task(self._keep(core, on_ready)) for core in self.cores]
        return self._did_not_come_up or max(life.result() for life in lives)

    def admin_urls(self) -> dict[int, str]:
        """Where the admin HTTP of each store is; those that a core adopted are there too."""
        found = (core.ready.admin for core in self.cores if core.ready is not None)
        return dict(sorted((number, url) for urls in found for number, url in urls.items()))

    def stop(self) -> None:
        """End every core in order; the second time, at once."""
        if self._asked.is_set():
            self._stopping.set()
            self.at_once()
            self._send(signal.SIGKILL)
        self._asked.set()

    async def _end_when_asked(self) -> None:
        await self._asked.wait()
        await self.before_end()
        self._stopping.set()
        self._send(signal.SIGTERM)

    def _send(self, number: int) -> None:
        for core in self.cores:
            core.send(number)

    async def _keep(self, core: Core, on_ready: Callable[[Mapping[str, str]], None]) -> int:
        failures, code = 0, 0
        while not self._stopping.is_set():
            started_ns = self._clock.monotonic_ns()
            code = await core.live(lambda: self._is_up(core, on_ready))
            if self._stopping.is_set():
                return code
            if core.place.core not in self._came_up:
                self._did_not_come_up = code or KILLED
                self.stop()
                return code
            failures = 1 if self._clock.monotonic_ns() - started_ns > STEADY_NS else failures + 1
            pause_s = BACKOFF.pause_s(failures, self._chance)
            core.restarts += 1
            number = core.place.core
            event("dataflow.core.restart", level=logging.ERROR, core=number, code=code, pause_s=f"{pause_s:.3f}")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)
        return code

    def _is_up(self, core: Core, on_ready: Callable[[Mapping[str, str]], None]) -> None:
        if self._stopping.is_set():  # it began to listen for signals after ours was sent
            core.send(signal.SIGTERM)
        was_all = len(self._came_up) == len(self.cores)
        self._came_up.add(core.place.core)
        if not was_all and len(self._came_up) == len(self.cores) and core.ready is not None:
            on_ready(core.ready.addresses)


async def _nothing() -> None:
    """Nobody else has to end first."""


async def _line(sock: socket.socket) -> bytes:
    """What comes until the end of a line; nothing if the other end is closed before."""
    loop, data = asyncio.get_running_loop(), b""
    while not data.endswith(b"\n"):
        try:
            part = await loop.sock_recv(sock, 65536)
        except ConnectionError:
            return b""
        if not part:
            return b""
        data += part
    return data


class Link:
    """A core's end of the link. Made and used on its event loop."""

    def __init__(self, descriptor: int, on_break: Callable[[], None]) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(False)
        self._on_break = on_break
        asyncio.get_running_loop().add_reader(self._socket, self._broken)

    def say_ready(self, ready: CoreReady) -> None:
        """Tell the supervisor."""
        with suppress(OSError):  # the supervisor is gone: the link has broken
            self._socket.send(msgspec.json.encode(ready) + b"\n")

    def _broken(self) -> None:
        """The supervisor says nothing: what can be read is the end."""
        self.close()
        self._on_break()

    def close(self) -> None:
        """Let go of it."""
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
