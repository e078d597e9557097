"""The producer's API: hand over events, and they are kept and sent in the background, in order, once.

    with Sender.from_conf("ws::addr=127.0.0.1:9000;sf_dir=/var/lib/app;sender_id=app-1;") as sender:
        sender.send("trades", {"symbol": "ABC", "price": 12.5})
        fsn = sender.flush()
        sender.await_acked(fsn, timeout=5.0)

    send ──► pending rows ── flush: by you, by rows, by bytes, by time ──► frame ──► ring ──► link ──► server

Promises:

1. No call waits for the network. `send` and `flush` wait only for room, when the slot or the memory for frames that no
   server has answered yet is at its cap, and then at most `sf_append_deadline_millis`.
2. A call that raises has taken nothing, and lost nothing: what `flush` cannot publish stays pending, in order, and the
   next `flush` tries again. `take_pending` gives it back.
3. When `flush` has returned, everything sent before is in frames: safe as the mode and `sf_durability` say, and sent in
   order. A frame is stored once, however often it is sent.
4. After an error that ends the sender, `send` and `flush` raise that error. Frames stay in the slot.

Thread-safe. A process that was forked gets an error: open a sender of its own there. At the end of the interpreter open
senders are closed.
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from holdfast.clock import Clock, SystemClock
from holdfast.disk.filesystem import Filesystem
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import (
    Backpressure,
    Closed,
    HoldfastError,
    InvalidBatch,
    InvalidConfig,
    InvalidName,
    RetryLater,
    again,
)
from holdfast.model.frame import Entry
from holdfast.model.names import check_channel_name
from holdfast.sender.ackbook import AckBook
from holdfast.sender.conf import SenderConfig, conf_of
from holdfast.sender.dialing import tls_context
from holdfast.sender.encoding import encoder_of, frames, refuse_second_time, time_us, to_batches, with_time
from holdfast.sender.errorinbox import Inbox, log_error
from holdfast.sender.flusher import Flusher
from holdfast.sender.happenings import ConnectionEvent, SenderError
from holdfast.sender.link import Link, Listeners, Wire
from holdfast.sender.opening import open_ring
from holdfast.sender.orphans import OrphanDrainers
from holdfast.sender.pending import Pending, Place
from holdfast.sender.policies import ErrorPolicy, Policy
from holdfast.sender.rows import AT_COLUMN, Row, load_conversions
from holdfast.sender.slot import slot_directory
from holdfast.sender.statistics import DrainerStatistics, SenderStatistics, collect
from holdfast.sender.substrate import Outage
from holdfast.sender.symboldict import read_symbols
from holdfast.telemetry import event

HANDLER_TIMEOUT_S = 1.0
"""How long `close` waits for handlers that are busy."""
LINK_TIMEOUT_S = 5.0
"""How long `close` waits for the I/O thread; it has nothing left to wait for."""
_SMALL_BYTES = 64 << 10
"""Pending data up to this most likely fit into one frame, so they are not measured."""
_CHANNELS_KNOWN_MAX = 10_000


ErrorHandler: TypeAlias = Callable[[SenderError], None]
"""Gets every refusal; without one they are logged. Handlers run one item after the other, on a thread of their own."""
ConnectionListener: TypeAlias = Callable[[ConnectionEvent], None]
ProgressHandler: TypeAlias = Callable[[int], None]
"""Gets the FSN up to which everything is answered; the latest one, if many come at once."""


class Sender:
    """Takes events and returns at once; keeps them and sends them in the background, in order, until they are accepted.

    >>> with Sender.from_conf("ws::addr=127.0.0.1:9000;") as sender:
    ...     sender.send("trades", [{"symbol": "ABC", "price": 12.5}, {"symbol": "XYZ", "price": 7.0}])
    ...     fsn = sender.flush()  # published: the frame is kept until it is answered
    ...     sender.await_acked(fsn, timeout=30)  # synced by the server; few programs need to wait
    True

    With `sf_dir` what is not answered yet is in files and survives the process. Thread-safe; a forked process opens a
    sender of its own.
    """

    def __init__(
        self,
        config: SenderConfig | None = None,
        *,
        error_handler: ErrorHandler | None = None,
        error_policy: ErrorPolicy | None = None,
        connection_listener: ConnectionListener | None = None,
        progress_handler: ProgressHandler | None = None,
        clock: Clock | None = None,
        chance: random.Random | None = None,
        filesystem: Filesystem | None = None,
        **keys: object,
    ) -> None:
        """Open the slot and connect as `initial_connect_retry` says.

        `keys` are those of the connect string, and `schema`, which is `ws` unless it is given.
        """
        config = _settings(config, keys)
        self._config = config
        self._clock = clock or SystemClock()
        self._pid = os.getpid()
        load_conversions()
        self._pending = Pending(name_bytes_max=config.max_name_len)
        # a signal handler may close the sender in the middle of a call of the same thread
        self._pending_lock = threading.RLock()
        self._publish_lock = threading.RLock()
        self._close_lock = threading.RLock()
        self._is_closed = False
        self._was_told = False  # somebody has heard of the error that ended the sender
        self._known: set[str] = set()
        self._book = AckBook()
        self._errors: Inbox[SenderError] = Inbox(
            error_handler or log_error, capacity=config.error_inbox_capacity, name="holdfast-errors"
        )
        self._events: Inbox[ConnectionEvent] | None = None
        if connection_listener is not None:
            self._events = Inbox(
                connection_listener, capacity=config.connection_listener_inbox_capacity, name="holdfast-events"
            )
        self._progress: Inbox[int] = Inbox(self._progressed, capacity=1, name="holdfast-progress")
        self._progress_handler = progress_handler
        self._has_error_handler = error_handler is not None
        self._flusher: Flusher | None = None
        if config.auto_flush and config.auto_flush_interval:
            self._flusher = Flusher(self.flush, interval_ms=config.auto_flush_interval, clock=self._clock)
        self._orphans: OrphanDrainers | None = None
        tls = tls_context(config)
        filesystem = filesystem or LocalFilesystem()
        self._ring = open_ring(config, filesystem=filesystem, clock=self._clock, link_state=self._outage)
        self._encoder = encoder_of(config.codec, self._ring.slot_id)
        listeners = Listeners(self._on_error, self._on_event, self._on_acked, self._on_halted, self._book.refusing)
        wire = Wire(config, tls, self._clock, chance or random.Random(), error_policy)
        self._link = Link(self._ring, wire, listeners, start=config.initial_connect_retry)
        try:
            self._begin(wire, filesystem)
        except BaseException:
            self._is_closed = True
            self._release()
            raise
        _OPEN.add(self)

    def _begin(self, wire: Wire, filesystem: Filesystem) -> None:
        """Start to connect, and wait for it if the start is to."""
        config = self._config
        self._link.symbols = _foreign_symbols(config, filesystem)
        self._link.start()
        if config.initial_connect_retry != "async":
            self._link.wait_started()
        if config.drain_orphans:
            self._orphans = OrphanDrainers(wire, self._errors.offer)
            self._orphans.start(self._link.core.hosts)

    @classmethod
    def from_conf(
        cls,
        conf: str,
        *,
        error_handler: ErrorHandler | None = None,
        error_policy: ErrorPolicy | None = None,
        connection_listener: ConnectionListener | None = None,
        progress_handler: ProgressHandler | None = None,
        **keys: object,
    ) -> Sender:
        """From a connect string; keyword arguments add keys that it does not have."""
        return cls(
            SenderConfig.from_conf(conf, **keys),
            error_handler=error_handler,
            error_policy=error_policy,
            connection_listener=connection_listener,
            progress_handler=progress_handler,
        )

    @classmethod
    def from_env(cls, **options: Any) -> Sender:
        """From the connect string in `HOLDFAST_CONF`; takes what `from_conf` takes."""
        return cls.from_conf(conf_of(os.environ), **options)

    # --- handing over ----------------------------------------------------------------------------------------------

    def send(
        self, channel: str, data: Any, *, partitions: Sequence[str] = (), at: datetime | int | None = None
    ) -> None:
        """Take events: a row (dict), a list of rows, a record batch, a table, a data frame, or other Arrow data.

        `at` is the time of these events, a datetime with a time zone or nanoseconds since 1970 UTC; it becomes the
        column `timestamp`, to the microsecond. Publishes when `auto_flush_…` says so. If there was no room for that,
        the next call tries again first, and raises `SlotFull` before it takes anything.
        """
        if self.is_due:
            self.flush()
        if self.offer(channel, data, partitions=partitions, at=at):
            self.flush_taken()

    @property
    def is_due(self) -> bool:
        """Whether what is pending should be in a frame by now, as `auto_flush_…` says."""
        config, pending = self._config, self._pending
        if not config.auto_flush:
            return False
        by_rows = 0 < config.auto_flush_rows <= pending.rows
        by_bytes = 0 < config.auto_flush_bytes <= pending.size_bytes
        return by_rows or by_bytes or pending.size_bytes >= config.max_buf_size

    def flush_taken(self) -> None:
        """Flush what a call has taken already: having no room is told by the next call, not by this one."""
        try:
            self.flush()
        except RetryLater as error:
            event("sender.flush.wait", level=logging.WARNING, rows_pending=self._pending.rows, reason=error)

    def offer(
        self, channel: str, data: Any, *, partitions: Sequence[str] = (), at: datetime | int | None = None
    ) -> bool:
        """Take events as `send` does but publish nothing; whether it is time to `flush`. Never waits for room."""
        self._check_running()
        if channel not in self._known:
            self._meet(channel)
        if isinstance(partitions, str):
            raise InvalidBatch(channel=channel, reason=f"partitions are a list of texts, not {partitions!r}")
        place: Place = (channel, tuple(partitions))
        at_us = None if at is None else time_us(at)
        rows = _rows_of(channel, data)
        if rows is not None:
            if at_us is not None:
                rows = [_with_time(channel, row, at_us) for row in rows]
            return self._take(place, lambda: self._pending.add_rows(place, rows, is_at=at_us is not None))
        batches = to_batches(channel, data)
        if at_us is not None:
            batches = [with_time(channel, batch, at_us) for batch in batches]
        return self._take(place, lambda: self._pending.add_batches(place, batches))

    def _meet(self, channel: str) -> None:
        check_channel_name(channel)
        if len(channel) > self._config.max_name_len:
            reason = f"it has {len(channel)} characters, max_name_len allows {self._config.max_name_len}"
            raise InvalidName(what="channel", name=channel, reason=reason)
        if len(self._known) >= _CHANNELS_KNOWN_MAX:
            self._known.clear()
        self._known.add(channel)

    def _take(self, place: Place, add: Callable[[], None]) -> bool:
        config, pending = self._config, self._pending
        with self._pending_lock:
            if self._is_closed:
                raise Closed(what="the sender")
            if not config.auto_flush and pending.size_bytes >= config.max_buf_size:
                raise Backpressure(
                    bound=f"max_buf_size, before {place[0]!r}",
                    used_bytes=pending.size_bytes,
                    cap_bytes=config.max_buf_size,
                    waited_s=0.0,
                )
            add()
            if self._flusher is not None and pending.rows:
                self._flusher.waiting()
            return self.is_due

    def flush(self) -> int:
        """Publish everything that is pending; the FSN of the last frame, -1 if there never was one.

        Frames are atomic, each on its own: what does not fit into one frame becomes several.
        """
        self._check_running()
        return self._flush()

    def _flush(self) -> int:
        try:
            with self._publish_lock:
                fsn = self._publish()
                if self._config.sf_durability == "flush":
                    self._ring.sync(fsn)
        except HoldfastError as error:
            self._tell(error)
            raise
        return fsn

    def _publish(self) -> int:
        with self._pending_lock:
            if not self._pending.rows:
                return self._ring.published_fsn
            entries = self._pending.entries()
            size_bytes = self._pending.size_bytes
            self._pending.clear()
            if self._flusher is not None:
                self._flusher.emptied()
        published_rows, fsn = 0, -1
        is_small = size_bytes <= _SMALL_BYTES
        try:
            for group, parts in frames(entries, self._encoder.encode, self._room_bytes, is_small=is_small):
                fsn = self._ring.append(parts, self._encoder.stamp)
                published_rows += sum([entry.batch.num_rows for entry in group])
        except BaseException:
            with self._pending_lock:
                self._pending.restore(_after(entries, published_rows))
                if self._flusher is not None:
                    self._flusher.waiting()
            raise
        return fsn

    @property
    def _room_bytes(self) -> int:
        limit = self._link.batch_bytes_max
        return self._ring.frame_bytes_max if limit is None else min(limit, self._ring.frame_bytes_max)

    def take_pending(self, channel: str) -> list[Any]:
        """Remove and return what was sent to a channel and is in no frame yet: rows, and record batches."""
        self._check()
        with self._pending_lock:
            return self._pending.take(channel)

    # --- waiting ---------------------------------------------------------------------------------------------------

    def await_acked(self, fsn: int, timeout: float | None = None) -> bool:
        """Whether the server accepted the frame and all before it, within that many seconds.

        With `request_durable_ack=on`: whether it has them in its object store. `FrameRefused` if the server refused
        this frame for good.
        """
        self._check()
        if not self._wait_acked(fsn, timeout):
            return False
        refusal = self._book.refusal_of(fsn)
        if refusal is not None:
            raise again(refusal)
        return True

    def when_acked(self, fsn: int) -> Future[int]:
        """A future that ends with the frame: its FSN, or `FrameRefused`, or the error that ended the sender."""
        self._check()
        future = self._book.future(fsn, self._ring.acked_fsn)
        self._link.hurry()
        self._on_acked(self._ring.acked_fsn)  # it may have moved between the two looks
        return future

    def drain(self, timeout: float | None = None) -> bool:
        """Publish what is pending, and wait until the server has answered for everything; False after the timeout."""
        return self._wait_acked(self.flush(), timeout)

    def _wait_acked(self, fsn: int, timeout_s: float | None) -> bool:
        if self._ring.acked_fsn < fsn:
            self._link.hurry()
        try:
            return self._ring.wait_acked(fsn, timeout_s)
        except HoldfastError as error:
            self._tell(error)
            raise

    @property
    def published_fsn(self) -> int:
        """The last frame; -1 before the first."""
        return self._ring.published_fsn

    @property
    def acked_fsn(self) -> int:
        """The server has answered for every frame up to this one; -1 before the first."""
        return self._ring.acked_fsn

    @property
    def pending_rows(self) -> int:
        """Rows that are in no frame yet."""
        return self._pending.rows

    def statistics(self) -> SenderStatistics:
        """The sender now."""
        return collect(
            self._link.core,
            self._ring.statistics(),
            self._orphans.statistics() if self._orphans is not None else DrainerStatistics(),
            pending_rows=self._pending.rows,
            delivered=self._errors.delivered,
            dropped=self._errors.dropped,
        )

    # --- closing ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Publish what is pending, wait up to `close_flush_timeout_millis` for answers, and release everything.

        What is unanswered by then is logged as a warning; with `sf_dir` it stays in the slot and the next sender with
        this `sender_id` sends it, without it is lost. An error that ended the sender is raised if no call and no
        handler was told of it. Idempotent; a forked process closes nothing.
        """
        if os.getpid() != self._pid:
            return
        with self._close_lock:
            if self._is_closed:
                return
            with self._pending_lock:
                self._is_closed = True  # nothing is taken from now on that the last flush would miss
            _OPEN.discard(self)
            try:
                failure = self._finish()
            finally:
                self._release()
        if failure is not None:
            raise failure

    def _finish(self) -> HoldfastError | None:
        """Publish and wait; what `close` is to raise."""
        timeout_s = self._config.close_flush_timeout_millis / 1000
        was_told = self._was_told
        failure: HoldfastError | None = None
        try:
            fsn = self._flush()
            if timeout_s > 0:
                self._wait_acked(fsn, timeout_s)
        except HoldfastError as error:
            failure = error
        unanswered = self._ring.published_fsn - self._ring.acked_fsn
        if unanswered or self._pending.rows:
            event(
                "sender.close.undelivered",
                level=logging.WARNING,
                frames=unanswered,
                rows_pending=self._pending.rows,
                fate="lost" if self._config.sf_dir is None else "kept in the slot",
                waited_s=f"{max(0.0, timeout_s):g}",
            )
        halted = self._link.core.halted
        failure = failure or halted
        return None if failure is halted and was_told else failure

    def _release(self) -> None:
        if self._flusher is not None:
            self._flusher.close()
        if self._orphans is not None:
            self._orphans.stop()
        self._link.stop(LINK_TIMEOUT_S)
        self._ring.close()
        if self._flusher is not None:
            self._flusher.join(HANDLER_TIMEOUT_S)
        self._book.failed(Closed(what="the sender"))
        self._errors.close(HANDLER_TIMEOUT_S)
        self._progress.close(HANDLER_TIMEOUT_S)
        if self._events is not None:
            self._events.close(HANDLER_TIMEOUT_S)

    def __enter__(self) -> Sender:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except HoldfastError as failure:
            if error is None:
                raise
            event("sender.close.fail", level=logging.ERROR, error=failure)  # the block's own error goes first

    # --- what the link tells ---------------------------------------------------------------------------------------

    def _outage(self) -> Outage | None:
        return self._link.core.outage

    def _on_error(self, error: SenderError) -> None:
        if error.policy is Policy.DROP:
            self._book.refused(error)
        elif error.policy is Policy.HALT and self._has_error_handler:
            self._was_told = True
        self._errors.offer(error)

    def _on_event(self, happened: ConnectionEvent) -> None:
        if self._events is not None:
            self._events.offer(happened)

    def _on_acked(self, fsn: int) -> None:
        if self._book.is_waited_for or self._progress_handler is not None:
            self._progress.offer(fsn)

    def _on_halted(self, error: HoldfastError) -> None:
        self._book.failed(error)

    def _progressed(self, _fsn: int) -> None:
        fsn = self._ring.acked_fsn  # what was offered may be older than what an offer pushed out
        self._book.acked(fsn)
        if self._progress_handler is not None:
            self._progress_handler(fsn)

    def _tell(self, error: HoldfastError) -> None:
        """Whoever calls is told of the error that ended the sender."""
        if error is self._link.core.halted:
            self._was_told = True

    def _check(self) -> None:
        if os.getpid() != self._pid:  # before any lock, which a thread of the parent may have held for ever
            raise Closed(what="a sender that was open when this process was forked")
        if self._is_closed:
            raise Closed(what="the sender")

    def _check_running(self) -> None:
        self._check()
        if self._link.core.halted is not None:
            self._was_told = True
            raise self._link.core.halted


def _settings(config: SenderConfig | None, keys: Mapping[str, Any]) -> SenderConfig:
    if config is None:
        return SenderConfig.from_keywords(**keys)
    if keys:
        raise InvalidConfig(key=next(iter(keys)), reason="stands beside a whole SenderConfig; give one or the other")
    return config


# --- data -----------------------------------------------------------------------------------------------------------


def _rows_of(channel: str, data: Any) -> Sequence[Row] | None:
    """The rows, if data are rows."""
    if type(data) is dict:
        return (data,)
    if isinstance(data, list | tuple):
        for place, row in enumerate(data):
            if not isinstance(row, Mapping):
                reason = f"a list holds rows, which are dicts; item {place} is a {type(row).__name__}"
                raise InvalidBatch(channel=channel, reason=reason)
        return data
    return (data,) if isinstance(data, Mapping) else None


def _with_time(channel: str, row: Row, at_us: int) -> Row:
    refuse_second_time(channel, list(row))
    return {**row, AT_COLUMN: at_us}


def _foreign_symbols(config: SenderConfig, filesystem: Filesystem) -> list[str]:
    """Symbols that another client left in our slot, for frames of its."""
    if config.sf_dir is None:
        return []
    return read_symbols(filesystem, slot_directory(Path(config.sf_dir), config.sender_id))


def _after(entries: Sequence[Entry], rows: int) -> list[Entry]:
    """The entries without their first `rows` events."""
    left: list[Entry] = []
    for entry in entries:
        skipped = min(rows, entry.batch.num_rows)
        rows -= skipped
        if skipped < entry.batch.num_rows:
            left.append(Entry(entry.channel, entry.batch.slice(skipped), entry.partitions))
    return left


# --- the end of the interpreter -------------------------------------------------------------------------------------

_OPEN: weakref.WeakSet[Sender] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for sender in list(_OPEN):
        try:
            sender.close()
        except HoldfastError as error:
            event("sender.close.fail", level=logging.ERROR, error=error)
