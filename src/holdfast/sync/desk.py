"""What all sync connections share, on the event loop: the hub, the writer's thread, threads that read, the time.

Promises: the loop never waits for the disk: a commit runs on one thread, so that what arrives meanwhile shares the next
one; reads run on a few others. What they find comes back to the loop, and only there sessions change.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.config import MS
from holdfast.config.sync import SyncConfig
from holdfast.errors import HoldfastError, InvalidConfig
from holdfast.server.connection import Connection
from holdfast.server.door import Opening, Route, Upgrade
from holdfast.server.handshake import Refusal, check_role
from holdfast.server.state import Figure, ServerState
from holdfast.sync.access import SyncAccess, key_of
from holdfast.sync.chores import TreeHistory
from holdfast.sync.eventlog import EventLog
from holdfast.sync.hub import Hub, HubStatistics
from holdfast.sync.recent import Recent
from holdfast.sync.snapshots import Snapshots
from holdfast.sync.validation import AnyEvent, ModelValidator, Validator, read_schemas
from holdfast.sync.writer import Writer, Written
from holdfast.telemetry import event
from holdfast.wire.sync import Page, Read, Session, Terms

if TYPE_CHECKING:
    from holdfast.sync.handler import SyncHandler

PATH = "/v1/sync"
READERS = 2
"""Threads that read pages; more would only take turns."""
TICK_S = 1.0
LIVE = ("access", "jwt_key_file", "jwt_audience", "jwt_issuer", "schemas", "model_version")
"""What a running server takes from a file of settings that is read again."""
LOOK_S = 0.05
"""How often peers that did not read are looked at."""


@dataclass(frozen=True, slots=True)
class PreparedSync:
    """New settings that hold, with what was read for them."""

    config: SyncConfig
    key: str = field(repr=False)
    schemas: dict[tuple[str, int], Any]
    needs_restart: list[str]


class SyncDesk:
    """Made, used and closed on the event loop."""

    def __init__(self, state: ServerState, config: SyncConfig, *, on_failure: Callable[[HoldfastError], None]) -> None:
        """Reads the end of the log, before the server listens."""
        self.state = state
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.access = SyncAccess(config)
        self._on_failure = on_failure
        snapshots = Snapshots(state.store, config.snapshots_channel)
        self._log = EventLog(state.store, config.channel, snapshots)
        self._history = TreeHistory(config, self._log, snapshots) if config.validation == "tree" else None
        self.hub = Hub(Recent(self._log.last_committed_id(), bytes_max=config.recent_bytes))
        self._model = self._validator()
        self._writer = Writer(self._log, self._model, recent=self.hub.recent.find)
        self._writing = False
        self._write_pool = ThreadPoolExecutor(1, thread_name_prefix="holdfast-sync-writer")
        self._read_pool = ThreadPoolExecutor(READERS, thread_name_prefix="holdfast-sync-reader")
        self._handlers: dict[int, SyncHandler] = {}
        self._blocked: dict[int, SyncHandler] = {}
        self._waiting: dict[int, SyncHandler] = {}
        self._next_number = 1
        self._closed = False
        self.terms = Terms(
            message_bytes_max=min(config.message_bytes_max, state.config.ingest_batch_bytes_max),
            subscriptions_max=config.subscriptions_max,
            drafts_max=config.drafts_max,
            heartbeat_timeout_ms=config.heartbeat_timeout_ns // MS,
            cycle_timeout_ms=config.cycle_timeout_ns // MS,
            log_epoch=log_epoch(state),
            model_version=config.model_version if config.validation == "model" else 0,
        )
        state.more_figures.append(self._figures)
        self._timer = self.loop.call_later(TICK_S, self._tick)

    def _validator(self) -> Validator:
        if self._history is not None:
            return self._history.validator
        if self.config.validation == "model":
            return ModelValidator(read_schemas(Path(self.config.schemas)))
        return AnyEvent()

    def reload(self, config: SyncConfig) -> list[str]:
        """Take rules, keys, schemas and the version of the model from `config`; returns keys that need a restart.

        What does not hold raises, and everything stays as it was.
        """
        return self.take(self.prepare(config))

    def prepare(self, config: SyncConfig) -> PreparedSync:
        """Read the files that new settings name; raises if they do not hold. Changes nothing; on any thread."""
        old = self.config
        changed = [
            row.key
            for name, row in config.rows().items()
            if name not in LIVE and getattr(old, name) != getattr(config, name)
        ]
        try:
            new = replace(old, **{name: getattr(config, name) for name in LIVE})
        except InvalidConfig as error:  # they hold, but not together with what stays
            reason = f"{error.reason}; a restart is needed to change {', '.join(changed)}"
            raise InvalidConfig(key=error.key, reason=reason) from None
        schemas = read_schemas(Path(new.schemas)) if new.validation == "model" else {}
        return PreparedSync(new, key_of(new), schemas, changed)

    def take(self, new: PreparedSync) -> list[str]:
        """Use settings that hold; returns keys that need a restart."""
        old, self.config = self.config, new.config
        self.access.take(new.config, new.key)
        if isinstance(self._model, ModelValidator):
            self._model.schemas = new.schemas
            self._tell_version(old.model_version, new.config.model_version)
        self.hub.check_access(self.now_ms())
        return new.needs_restart

    def _tell_version(self, old: int, new: int) -> None:
        if old != new:
            self.terms = msgspec.structs.replace(self.terms, model_version=new)
            self.hub.tell_version(old, new, self.now_ms())

    def now_ms(self) -> int:
        """Wall time."""
        return self.state.clock.wall_ns() // MS

    def statistics(self) -> HubStatistics:
        """A picture."""
        return self.hub.statistics()

    def _figures(self) -> list[Figure]:
        found = self.hub.statistics()
        return [
            Figure("sync_sessions", "Sync connections.", found.sessions),
            Figure("sync_followers", "Sync connections that follow something.", found.live),
            Figure("sync_queued_bytes", "Submissions that wait for their commit, about.", found.queued_bytes),
            Figure("sync_recent_bytes", "Newest events kept in memory, about.", found.recent_bytes),
            Figure("sync_last_committed_id", "The newest event that was announced.", found.last_committed_id),
            Figure("sync_committed", "Events committed.", found.committed, is_counter=True),
            Figure("sync_repeats", "Events that were committed before.", found.repeats, is_counter=True),
            Figure("sync_refused", "Events refused, or not reached behind one.", found.refused, is_counter=True),
            Figure("sync_broadcasts", "Events told to others.", found.broadcasts, is_counter=True),
        ]

    def close(self) -> None:
        """No connection is left."""
        self._closed = True
        self._timer.cancel()
        self._write_pool.shutdown(wait=False)
        self._read_pool.shutdown(wait=False, cancel_futures=True)

    # -- connections ------------------------------------------------------------------------------------------------

    def attach(self, handler: SyncHandler) -> Session:
        """A session for a connection."""
        number = self._next_number
        self._next_number += 1
        access = self.access.for_connection(handler)
        session = Session(number, view=self.hub, access=access, terms=self.terms, now_ms=self.now_ms())
        self._handlers[number] = handler
        self.hub.open(session, handler)
        return session

    def detach(self, session: Session) -> None:
        """Its connection is gone."""
        self.hub.closed(session)
        self._handlers.pop(session.number, None)
        self._blocked.pop(session.number, None)
        self._waiting.pop(session.number, None)

    # -- commits ----------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Commit what waits, unless a commit is under way: then it shares the next one."""
        if self._writing or self._closed or not self.hub.has_work:
            return
        self._writing = True
        batch, now_ms = self.hub.take(), self.now_ms()
        self._in_thread(self._write_pool, lambda: self._writer.write(batch, now_ms), self._written)

    def _written(self, done: Future[Written]) -> None:
        self._writing = False
        written = done.result()
        self.hub.note_repeats(written.repeats)
        self.hub.settled(written.results, written.fresh, self.now_ms())
        if written.failure is not None:
            self._on_failure(written.failure)
        history = self._history
        if history is not None and history.is_due and not self._closed:
            self._do_chores(history)
        self._ease()
        self.pump()

    def _do_chores(self, history: TreeHistory) -> None:
        """Behind the commit that is next: the pool has one thread."""
        now_ms = self.now_ms()
        self._write_pool.submit(history.do, now_ms)

    # -- reads ------------------------------------------------------------------------------------------------------

    def read(self, session: Session, read: Read) -> None:
        """Look into the log for a session."""

        def done(page: Future[Page]) -> None:
            error = page.exception()
            if error is not None:
                event("sync.read.fail", level=logging.ERROR, error=type(error).__name__, reason=error)
                self.hub.fail(session, "the log cannot be read", self.now_ms())
            else:
                self.hub.page(session, read, page.result(), self.now_ms())
            self._ease()
            self.pump()

        self._in_thread(self._read_pool, lambda: self._log.read(read), done)

    def await_ease(self, handler: SyncHandler) -> None:
        """A connection is not read, or not closed, before less waits."""
        self._waiting[handler.session.number] = handler

    def _ease(self) -> None:
        for number, handler in list(self._waiting.items()):
            if handler.eased():
                self._waiting.pop(number, None)

    def _in_thread(self, pool: ThreadPoolExecutor, work: Callable[[], object], then: Callable[..., None]) -> None:
        def back(done: Future[object]) -> None:
            if not self._closed:
                self.loop.call_soon_threadsafe(then, done)

        if not self._closed:
            pool.submit(work).add_done_callback(back)

    # -- time -------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        self.hub.tick(self.now_ms())
        if self._history is not None and self.config.prune_age_ns and not self._writing:
            self._do_chores(self._history)
        self._timer = self.loop.call_later(TICK_S, self._tick)

    def watch(self, handler: SyncHandler) -> None:
        """A peer does not read; look whether it does again."""
        if not self._blocked:
            self.loop.call_later(LOOK_S, self._look)
        self._blocked[handler.session.number] = handler

    def _look(self) -> None:
        for number, handler in list(self._blocked.items()):
            if handler.look():
                self._blocked.pop(number, None)
        if self._blocked and not self._closed:
            self.loop.call_later(LOOK_S, self._look)


def log_epoch(state: ServerState) -> str:
    """Which history the numbers belong to. Noted beside the log, so that one that was restored or rebuilt has another,
    and clients find out that their cursors mean nothing there."""
    port = state.store.port
    known = port.noted("sync_epoch")
    if known is None:
        known = f"{state.started_at_ns:x}".encode()
        port.note(sync_epoch=known)
    return f"{state.store.listing.store_id.hex()[:16]}-{known.decode()}"


def sync_route(desk: SyncDesk, make: Callable[[SyncDesk, Connection], SyncHandler]) -> Route:
    """Everybody may open a connection; who it is, its first message says."""

    def open_sync(_upgrade: Upgrade) -> Opening | Refusal:
        refusal = check_role(desk.state.config.role)
        if refusal is not None:
            return refusal
        return Opening(
            "sync",
            lambda connection: make(desk, connection),
            speaks_text=True,
            parts_bytes_max=desk.terms.message_bytes_max,
        )

    return open_sync
