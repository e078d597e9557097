"""Slots of senders that died: found at the start, sent in the background, emptied.

A candidate is a directory beside our own slot that holds a segment and is not marked `.failed`. Whether somebody owns
it shows when its lock is tried: then it is passed over. Each is drained with a connection of its own, so many at once;
the others wait. A slot is drained when everything that was in it at the start is acknowledged.

`.failed` is written only for what can never succeed here: files that are damaged or of a later format. Whatever else
ends an attempt (a server that refuses, credentials) goes to `.last_error`, and a later start tries again.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from holdfast.disk.filesystem import Filesystem
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import DamagedData, HoldfastError, Locked
from holdfast.sender.happenings import SenderError
from holdfast.sender.hosts import HostTable
from holdfast.sender.link import Link, Listeners, Wire
from holdfast.sender.opening import ring_options
from holdfast.sender.recovery import SUFFIX
from holdfast.sender.ring import Ring
from holdfast.sender.slot import FAILED, Slot, mark_failed
from holdfast.sender.statistics import DrainerStatistics
from holdfast.telemetry import event

POLITE_S = 3.0
"""How long a stop waits for drainers to end by themselves."""
_LINK_TIMEOUT_S = 1.0
_LOOK_S = 0.1
"""How often a drainer looks whether it is to stop."""


def find_orphans(filesystem: Filesystem, sf_dir: Path, *, own: str) -> list[Path]:
    """Slot directories beside our own that hold segments and may be tried."""
    if not filesystem.exists(sf_dir):
        return []
    found = []
    for entry in filesystem.listdir(sf_dir):
        if entry.is_dir and entry.name != own:
            names = {item.name for item in filesystem.listdir(sf_dir / entry.name)}
            if FAILED not in names and any(name.endswith(SUFFIX) for name in names):
                found.append(sf_dir / entry.name)
    return sorted(found)


def errors_only(on_error: Callable[[SenderError], None]) -> Listeners:
    """Listeners for a slot that is not the sender's own: its numbers mean nothing to the sender's callers."""
    return Listeners(on_error, _ignore, _ignore, _ignore, _ignore)


def _ignore(_news: object) -> None:
    """Nobody wants to know."""


class Drained:
    """How draining one slot ended."""

    EMPTIED = "emptied"
    STOPPED = "stopped"
    BUSY = "busy"
    FAILED = "failed"


class SlotDrainer:
    """Sends what one slot holds, and empties it."""

    def __init__(
        self,
        directory: Path,
        wire: Wire,
        listeners: Listeners,
        *,
        hosts: HostTable | None = None,
        start: str = "async",
        filesystem: Filesystem | None = None,
    ) -> None:
        self.directory = directory
        self.error: HoldfastError | None = None
        self.frames = 0
        self._wire = wire
        self._listeners = listeners
        self._hosts = hosts
        self._start = start
        self._filesystem = filesystem or LocalFilesystem()
        self._ring: Ring | None = None

    @property
    def progress(self) -> tuple[int, int]:
        """Frames answered, and frames in all."""
        ring = self._ring
        left = ring.published_fsn - ring.acked_fsn if ring is not None else self.frames
        return self.frames - left, self.frames

    def run(self, stop: threading.Event) -> str:
        """Drain; one of `Drained`. `error` says what went wrong."""
        try:
            slot = Slot.open(self.directory, filesystem=self._filesystem, clock=self._wire.clock, writing=False)
        except Locked as error:
            self.error = error
            return Drained.BUSY
        except DamagedData as error:
            self.error = error
            with suppress(HoldfastError):
                mark_failed(self._filesystem, self.directory, str(error))
            return Drained.FAILED
        except HoldfastError as error:
            self.error = error
            return Drained.FAILED
        return self._drain(slot, stop)

    def _drain(self, slot: Slot, stop: threading.Event) -> str:
        options = ring_options(self._wire.config)._replace(durability="memory")
        ring = Ring(slot, options, clock=self._wire.clock)
        self.frames = ring.published_fsn - ring.acked_fsn
        self._ring = ring
        try:
            return self._send(ring, slot, stop)
        except HoldfastError as error:
            self.error = error
            with suppress(HoldfastError):
                slot.note_error(str(error))
            return Drained.FAILED
        finally:
            with suppress(HoldfastError):
                ring.close()

    def _send(self, ring: Ring, slot: Slot, stop: threading.Event) -> str:
        target = ring.published_fsn
        if ring.acked_fsn >= target:
            return Drained.EMPTIED
        hosts = self._hosts.copy() if self._hosts is not None else None
        link = Link(ring, self._wire, self._listeners, start=self._start, hosts=hosts)
        link.symbols = slot.symbols()
        link.start()
        try:
            while not ring.wait_acked(target, _LOOK_S):
                if stop.is_set():
                    return Drained.STOPPED
        finally:
            link.stop(_LINK_TIMEOUT_S)
        return Drained.EMPTIED


class OrphanDrainers:
    """Drains the orphans of one `sf_dir`, so many at a time."""

    def __init__(self, wire: Wire, on_error: Callable[[SenderError], None]) -> None:
        assert wire.config.sf_dir is not None
        self._wire = wire
        self._listeners = errors_only(on_error)
        self._sf_dir = Path(wire.config.sf_dir)
        self._lock = threading.Lock()
        self._queue: deque[Path] = deque()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._active = self._succeeded = self._failed = 0

    def start(self, hosts: HostTable) -> None:
        """Look for orphans and begin."""
        self._queue.extend(find_orphans(LocalFilesystem(), self._sf_dir, own=self._wire.config.sender_id))
        for number in range(min(self._wire.config.max_background_drainers, len(self._queue))):
            thread = threading.Thread(
                target=self._work, args=(hosts.copy(),), name=f"holdfast-drainer-{number}", daemon=True
            )
            self._threads.append(thread)
            thread.start()

    def _work(self, hosts: HostTable) -> None:
        while not self._stop.is_set():
            with self._lock:
                if not self._queue:
                    return
                directory = self._queue.popleft()
                self._active += 1
                wire = self._wire._replace(chance=random.Random(self._wire.chance.random()))
            drainer = SlotDrainer(directory, wire, self._listeners, hosts=hosts)
            ended = Drained.FAILED
            try:
                ended = drainer.run(self._stop)
            finally:
                with self._lock:
                    self._active -= 1
                    self._succeeded += ended == Drained.EMPTIED
                    self._failed += ended == Drained.FAILED
                _report(drainer, ended)

    def statistics(self) -> DrainerStatistics:
        """The drainers now."""
        with self._lock:
            return DrainerStatistics(
                active=self._active, waiting=len(self._queue), succeeded=self._succeeded, failed=self._failed
            )

    def stop(self) -> None:
        """Ask all to end, wait a moment, and leave those that do not."""
        self._stop.set()
        for thread in self._threads:
            thread.join(POLITE_S)


def _report(drainer: SlotDrainer, ended: str) -> None:
    event(
        f"sender.orphan.{ended}",
        level=logging.WARNING if ended == Drained.FAILED else logging.INFO,
        slot=drainer.directory,
        frames=drainer.frames,
        reason=drainer.error or "",
    )
