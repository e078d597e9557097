"""The I/O thread of a sender: carries out what `core` decides, over WebSockets, for one ring.

    producers ──► ring ──► cursor ──► _pump ──► transport ──► server
                   ▲                                             │
                   └──── acknowledge, reject, halt ◄── core ◄────┘ answers

One thread with an event loop of its own. Producers never wait for it: a frame that is published while the loop sleeps
wakes it, and one wake-up sends all there is, up to what the transport takes. Frames go out in FSN order. What the core
asks for is done in order, at once. An error of the slot ends the thread, and the ring tells the producers why.

The loop also reminds a server of pending confirmations, asks a silent one whether it lives (`dialing`), and logs what
happens to the connection, attempts at most every few seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from picows import WSCloseCode, WSFrame, WSMsgType, WSTransport

from holdfast.clock import NS_PER_S, Clock
from holdfast.errors import Category, HoldfastError, SenderHalted
from holdfast.sender.conf import SenderConfig
from holdfast.sender.core import Acknowledge, CoreOptions, Dial, Effect, Halt, Hangup, LinkCore, Opening, Pause, Reject
from holdfast.sender.cursor import Cursor
from holdfast.sender.dialing import DialFailed, Listener, dial
from holdfast.sender.encoding import dictionary_of, is_empty_qwp
from holdfast.sender.errorinbox import log_event
from holdfast.sender.happenings import ConnectionEvent, EventKind, SenderError
from holdfast.sender.hosts import HostTable
from holdfast.sender.policies import ErrorPolicy, resolving
from holdfast.sender.ring import Ring
from holdfast.telemetry import event
from holdfast.wire import qwp

try:
    from uvloop import new_event_loop
except ModuleNotFoundError:  # there is none for Windows
    from asyncio import new_event_loop  # type: ignore[assignment]

TURN_BYTES_MAX = 1 << 20
"""What one turn of the loop sends before it looks at answers again."""
WRITE_BUFFER_BYTES_MAX = 1 << 20
"""What waits in the transport before sending pauses."""
CATCH_UP_BYTES_MAX = 1 << 20
"""A message with symbols for a server that names no limit."""
LINGER_S = 0.001
"""How long to wait for more frames after some were sent, unless somebody waits for an answer. A producer of many small
frames would otherwise pay for a wake-up with each."""
FAREWELL_S = 1.0
"""How long a connection may take to close."""
LOG_INTERVAL_NS = 5 * NS_PER_S
"""How often failed attempts are logged."""
_QWP_FIRST_BYTE = ord("Q")
_CHATTY = {EventKind.ENDPOINT_ATTEMPT_FAILED, EventKind.ALL_ENDPOINTS_UNREACHABLE}


class Listeners(NamedTuple):
    """Who is told what; called on the I/O thread, so they must not wait."""

    error: Callable[[SenderError], None]
    event: Callable[[ConnectionEvent], None]
    acked: Callable[[int], None]
    halted: Callable[[HoldfastError], None]
    refusing: Callable[[SenderError], None]
    """Frames will be set aside; `error` follows, with the place of their copy."""


class Wire(NamedTuple):
    """What every connection of a sender needs."""

    config: SenderConfig
    tls: ssl.SSLContext | None
    clock: Clock
    chance: random.Random
    error_policy: ErrorPolicy | None = None


def core_options(config: SenderConfig, *, start: str) -> CoreOptions:
    """What the connect string says about the connection loop."""
    return CoreOptions(
        addresses=tuple(map(str, config.addr)),
        initial_backoff_ms=config.reconnect_initial_backoff_millis,
        max_backoff_ms=config.reconnect_max_backoff_millis,
        start=start,
        start_ms_max=config.reconnect_max_duration_millis,
        keepalive_ms=config.durable_ack_keepalive_interval_millis,
        strikes_max=config.max_frame_rejections,
        poison_window_ms=config.poison_min_escalation_window_millis,
        gap_window_ms=config.catch_up_cap_gap_min_escalation_window_millis,
    )


class Link:
    """The connection of one ring. `start`, then `stop`."""

    def __init__(
        self,
        ring: Ring,
        wire: Wire,
        listeners: Listeners,
        *,
        start: str,
        hosts: HostTable | None = None,
    ) -> None:
        self.batch_bytes_max: int | None = None
        self.symbols: Sequence[str] = ()
        """Symbols by id, for frames of another client that name them by number."""
        self._ring = ring
        self._config = wire.config
        self._listeners = listeners
        self._clock = wire.clock
        self._tls = wire.tls
        self.core = LinkCore(
            core_options(wire.config, start=start),
            wire.config.policy,
            clock=wire.clock,
            chance=wire.chance,
            hosts=hosts,
            sent_before=ring.published_fsn,
            resolve=resolving(wire.error_policy) if wire.error_policy is not None else None,
        )
        self._started = threading.Event()  # connected for the first time, or never will be
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._session: _Session | None = None
        self._logged_at_ns = -LOG_INTERVAL_NS
        self._thread = threading.Thread(target=self._main, name="holdfast-link", daemon=True)

    # --- called by others ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect."""
        self._ring.on_published = self._wake
        self._thread.start()

    def wait_started(self) -> None:
        """Until the first connection stands; raises what made it impossible."""
        self._started.wait()
        if self.core.halted is not None:
            raise self.core.halted

    def stop(self, timeout_s: float) -> bool:
        """End the connection and the thread; False if it did not end in time."""
        self._ring.on_published = None
        self._stopping = True
        loop, task = self._loop, self._task
        if loop is not None and task is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended by itself
                loop.call_soon_threadsafe(task.cancel)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def hurry(self) -> None:
        """Somebody waits for an answer: send now, also if the loop lingers for more."""
        session = self._session
        if session is not None and session.is_lingering:
            self._wake()

    def _wake(self) -> None:
        """A frame was published while there was none to send; on a producer's thread."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._pump)

    # --- the thread ------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._run())
        except asyncio.CancelledError:
            pass
        except HoldfastError as error:
            self._fail(error)
        except Exception as error:
            event("sender.link.fail", level=logging.ERROR, error=repr(error), trace=traceback.format_exc())
            reason = f"an error of the sender itself, {error!r}; please report it"
            first, last = self._ring.acked_fsn + 1, self._ring.published_fsn
            self._fail(SenderHalted(category=Category.INTERNAL_ERROR, reason=reason, first_fsn=first, last_fsn=last))
        finally:
            self._loop = None
            self._started.set()

    def _fail(self, error: HoldfastError) -> None:
        self.core.halted = self.core.halted or error
        self._ring.halt(error)
        self._listeners.halted(error)

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        while not self._stopping and (step := self.core.next_step()) is not None:
            if isinstance(step, Pause):
                await asyncio.sleep(max(0.0, (step.until_ns - self._clock.monotonic_ns()) / NS_PER_S))
            else:
                await self._connect(step)

    async def _connect(self, step: Dial) -> None:
        address = self._config.addr[step.host]
        identity, limit_fsn, is_qwp = self._first_identity()
        session = _Session(self)
        try:
            transport, greeting = await dial(self._config, address, session, tls=self._tls, session=identity)
        except DialFailed as error:
            self._apply(self.core.dial_failed(step.host, error.failure))
            return
        try:
            catch_up = self._catch_up(greeting.batch_bytes_max) if is_qwp else []
        except ValueError as error:
            transport.disconnect(graceful=False)
            self._apply(self.core.cannot_begin(step.host, str(error)))
            return
        self.batch_bytes_max = greeting.batch_bytes_max
        session.has_identity = identity is not None
        session.batch_bytes_max = greeting.batch_bytes_max
        opening = Opening(
            self._ring.acked_fsn, self._ring.published_fsn, len(catch_up), limit_fsn, durable=greeting.durable
        )
        session.catch_up = catch_up
        session.is_durable = greeting.durable
        await self._hold(session, transport, opening, step.host)

    async def _hold(self, session: _Session, transport: WSTransport, opening: Opening, host: int) -> None:
        """Use a connection until it is gone."""
        with self._ring.cursor(opening.acked_fsn + 1) as cursor:
            session.begin(transport, cursor)
            self._session = session
            try:
                self._apply(self.core.opened(host, opening))
                self._started.set()
                for message in session.catch_up:
                    transport.send(WSMsgType.BINARY, message)
                session.replay_early()
                self._pump()
                await session.ended.wait()
            finally:
                self._session = None
                session.end(graceful=self._ring.acked_fsn >= self._ring.published_fsn)
                await session.gone()
            if session.violation:
                self._apply(self.core.violated(session.violation))
            self._apply(self.core.closed(session.close_code, session.close_reason))

    def _first_identity(self) -> tuple[tuple[bytes, int] | None, int | None, bool]:
        """What the upgrade request says of the next frame, where another id begins, and whether the frame is QWP."""
        fsn = self._ring.acked_fsn + 1
        with self._ring.cursor(fsn) as cursor:
            frame = cursor.next()
            is_qwp = self._config.codec == "qwp" if frame is None else frame.payload[0] == _QWP_FIRST_BYTE
            if not is_qwp:
                return None, None, False
            while frame is not None and is_empty_qwp(frame.payload, self.symbols):
                frame = cursor.next()  # a server takes it for symbols that go first, and starts to count behind it
            first_fsn = cursor.fsn if frame is None else frame.fsn
        slot_id, end = self._ring.session_of(fsn)
        return (slot_id, first_fsn if end is None else min(first_fsn, end)), end, True

    def _catch_up(self, batch_bytes_max: int | None) -> list[bytes]:
        """Messages that teach a new connection the symbols of another client's frames."""
        if not self.symbols:
            return []
        return qwp.catch_up(dictionary_of(self.symbols), batch_bytes_max or CATCH_UP_BYTES_MAX)

    # --- sending ---------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what there is and what the transport takes."""
        session = self._session
        if session is None or session.is_paused or session.is_over:
            return
        core, ring, cursor, transport = self.core, self._ring, session.cursor, session.transport
        left_bytes = TURN_BYTES_MAX
        while core.may_send(cursor.fsn) and left_bytes > 0 and not session.is_paused:
            if cursor.fsn > ring.published_fsn and left_bytes < TURN_BYTES_MAX:
                break
            frame = cursor.next()
            if frame is None or not self._can_take(session, frame.fsn, frame.payload):
                break
            transport.send(WSMsgType.BINARY, frame.payload)
            core.sent(frame.fsn)
            left_bytes -= len(frame.payload)
        if left_bytes < TURN_BYTES_MAX:
            core.totals.bytes_sent += TURN_BYTES_MAX - left_bytes
            self._pump_again(session, is_empty=left_bytes > 0)

    def _pump_again(self, session: _Session, *, is_empty: bool) -> None:
        """Something was sent, so more may come: look again soon, rather than being woken for each frame."""
        assert self._loop is not None
        if session.is_durable:
            self.core.spoke()
            self._arm_keepalive(session)
        if not is_empty:
            self._loop.call_soon(self._pump)
        elif not session.is_lingering:
            session.is_lingering = True
            self._loop.call_later(LINGER_S, self._linger_over, session)

    def _linger_over(self, session: _Session) -> None:
        session.is_lingering = False
        self._pump()

    def _can_take(self, session: _Session, fsn: int, payload: memoryview) -> bool:
        if payload[0] == _QWP_FIRST_BYTE and not session.has_identity:
            self._apply(self.core.limit(fsn))
            return False
        if session.batch_bytes_max is not None and len(payload) > session.batch_bytes_max:
            reason = f"frame {fsn} has {len(payload)} bytes, the server takes {session.batch_bytes_max}"
            self._apply(self.core.block(fsn, reason))
            return False
        return True

    def _arm_keepalive(self, session: _Session) -> None:
        due_ns = self.core.keepalive_at_ns
        if due_ns is None or session.timer is not None:
            return
        assert self._loop is not None
        delay_s = max(0.0, (due_ns - self._clock.monotonic_ns()) / NS_PER_S)
        session.timer = self._loop.call_later(delay_s, self._keepalive, session)

    def _keepalive(self, session: _Session) -> None:
        session.timer = None
        due_ns = self.core.keepalive_at_ns
        if due_ns is None or session.is_over:
            return
        if self._clock.monotonic_ns() >= due_ns:
            session.transport.send_ping()
            self.core.spoke()
        self._arm_keepalive(session)

    # --- answers ---------------------------------------------------------------------------------------------------

    def received(self, session: _Session, message: bytes) -> None:
        """A message of the server."""
        self._apply(self.core.received(message))
        if session.is_durable:
            self._arm_keepalive(session)

    def resumed(self) -> None:
        """The transport takes more."""
        self._pump()

    def _apply(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            try:
                self._do(effect)
            except HoldfastError as error:  # of the slot
                self._fail(error)
        if self.core.halted is not None:
            self._started.set()
            if self._session is not None:
                self._session.end(graceful=False)

    def _do(self, effect: Effect) -> None:
        if isinstance(effect, Acknowledge):
            self._ring.acknowledge(effect.fsn)
            self._listeners.acked(effect.fsn)
        elif isinstance(effect, Reject):
            self._listeners.refusing(effect.error)
            place = self._ring.reject(effect.rejection)
            self._listeners.error(msgspec.structs.replace(effect.error, kept_in=place))
            self._listeners.acked(effect.rejection.last_fsn)
        elif isinstance(effect, Halt):
            self._ring.halt(effect.error)
            self._listeners.halted(effect.error)
        elif isinstance(effect, Hangup):
            if self._session is not None:
                self._session.close_reason = effect.reason
                self._session.end(graceful=False)
        elif isinstance(effect, SenderError):
            self._listeners.error(effect)
        else:
            self._tell(effect)

    def _tell(self, happened: ConnectionEvent) -> None:
        now_ns = self._clock.monotonic_ns()
        if happened.kind not in _CHATTY or now_ns - self._logged_at_ns >= LOG_INTERVAL_NS:
            if happened.kind in _CHATTY:
                self._logged_at_ns = now_ns
            log_event(happened)
        self._listeners.event(happened)


class _Session(Listener):
    """One connection, as the transport sees it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._early: list[bytes] = []
        self._fragments: list[bytes] = []
        self._begun = False
        self.transport: WSTransport
        self.cursor: Cursor
        self.ended = asyncio.Event()
        self.is_over = False
        self.is_paused = False
        self.is_lingering = False
        self.has_identity = False
        self.is_durable = False
        self.catch_up: list[bytes] = []
        self.batch_bytes_max: int | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.close_code: int | None = None
        self.close_reason = "the connection was cut"
        self.violation = ""

    def begin(self, transport: WSTransport, cursor: Cursor) -> None:
        """The connection is used from now on."""
        self.transport, self.cursor = transport, cursor
        self._begun = True

    def replay_early(self) -> None:
        """Handle what came before anybody was ready."""
        early, self._early = self._early, []
        for message in early:
            self._link.received(self, message)

    def end(self, *, graceful: bool) -> None:
        """Close the socket; `ended` follows."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.is_over:
            return
        self.is_over = True
        self.transport.send_close(WSCloseCode.OK)
        self.transport.disconnect(graceful=graceful)

    async def gone(self) -> None:
        """Until the socket is closed; TLS says goodbye first, which a server may not answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self.ended.wait()
        self.transport.disconnect(graceful=False)
        await self.ended.wait()  # a turn of the loop closes it; a loop that ends before leaves it open

    # called by picows

    def on_ws_connected(self, transport: WSTransport) -> None:
        transport.underlying_transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES_MAX)

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind == WSMsgType.BINARY and frame.fin:
            self._message(frame.get_payload_as_bytes())
        elif kind == WSMsgType.CLOSE:
            self.close_code, self.close_reason = _close_of(frame)
            transport.disconnect()
        elif kind == WSMsgType.BINARY or (kind == WSMsgType.CONTINUATION and self._fragments):
            self._fragments.append(frame.get_payload_as_bytes())
            if frame.fin:
                whole, self._fragments = b"".join(self._fragments), []
                self._message(whole)
        elif kind not in {WSMsgType.PING, WSMsgType.PONG}:
            self.violation = f"the server sent a {kind.name} message; answers are binary"
            transport.disconnect(graceful=False)

    def _message(self, message: bytes) -> None:
        if self._begun:
            self._link.received(self, message)
        else:
            self._early.append(message)

    def on_ws_disconnected(self, _transport: WSTransport) -> None:
        self.is_over = True
        self.ended.set()

    def pause_writing(self) -> None:
        self.is_paused = True

    def resume_writing(self) -> None:
        self.is_paused = False
        self._link.resumed()


def _close_of(frame: WSFrame) -> tuple[int | None, str]:
    """Code and reason of a close frame; None for one without a code."""
    payload = frame.get_payload_as_bytes()
    if len(payload) < 2:
        return None, "the server closed without a reason"
    return int.from_bytes(payload[:2], "big"), payload[2:].decode(errors="replace")
