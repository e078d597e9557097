"""The I/O thread of a consumer: carries out what the core decides, over one WebSocket at a time.

One thread with an event loop of its own. The application never waits for it to receive: deliveries go into the hopper.
What the core asks for is done in order, at once. Handlers of the application run on threads of their own, so they may
call anything of the consumer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import ssl
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from picows import WSCloseCode, WSFrame, WSMsgType, WSTransport

from holdfast.clock import NS_PER_S, Clock
from holdfast.consumer.answers import LINGER_S, Answers
from holdfast.consumer.core import (
    Answered,
    ConsumerCore,
    Effect,
    Ended,
    Halt,
    Hand,
    Hangup,
    Notice,
    Ready,
    Restored,
    Send,
)
from holdfast.consumer.redialing import Redialing
from holdfast.errors import Closed, HoldfastError
from holdfast.sender.conf import SenderConfig
from holdfast.sender.dialing import DialFailed, Door, Listener, dial
from holdfast.sender.happenings import ConnectionEvent, EventKind
from holdfast.telemetry import event
from holdfast.wire import consume
from holdfast.wire.consume import Delivery, Reply

try:
    from uvloop import new_event_loop
except ModuleNotFoundError:  # there is none for Windows
    from asyncio import new_event_loop  # type: ignore[assignment]

DOOR = Door(consume.PATH, 1 << 30, "consume from")
FAREWELL_S = 1.0
"""How long a connection may take to close."""
LOG_INTERVAL_NS = 5 * NS_PER_S
"""How often failed attempts are logged."""
_CHATTY = {EventKind.ENDPOINT_ATTEMPT_FAILED, EventKind.ALL_ENDPOINTS_UNREACHABLE}
_CLOSED = "the consumer was closed"
_LOUD = {EventKind.DISCONNECTED, EventKind.ALL_ENDPOINTS_UNREACHABLE, EventKind.AUTH_FAILED}


class Wire(NamedTuple):
    """What every connection needs."""

    config: SenderConfig
    tls: ssl.SSLContext | None
    clock: Clock
    chance: random.Random


class Listeners(NamedTuple):
    """Who is told what; called on the I/O thread, so they must not wait."""

    delivered: Callable[[Delivery], None]
    lost: Callable[[], None]
    """The connection is gone, and what it brought with it."""
    event: Callable[[ConnectionEvent | Notice], None]
    ended: Callable[[HoldfastError | None], None]


class Link:
    """The connections of one consumer. `start`, then `stop`."""

    def __init__(self, core: ConsumerCore, wire: Wire, listeners: Listeners) -> None:
        self.core = core
        self.answers = Answers()
        self.started: Future[None] = Future()
        """The subscription stands for the first time, or never will."""
        self.reconnects = 0
        self._wire = wire
        self._listeners = listeners
        self._redialing = Redialing(wire.config, clock=wire.clock, chance=wire.chance)
        self._requests: dict[int, Future[Reply | None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._ready = threading.Event()
        self._session: _Session | None = None
        self._stopping = False
        self._logged_at_ns = -LOG_INTERVAL_NS
        self._thread = threading.Thread(target=self._main, name="holdfast-consumer", daemon=True)

    # --- called by others --------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to connect."""
        self._thread.start()
        self._ready.wait()

    @property
    def is_open(self) -> bool:
        """Whether answers can be sent now."""
        return self.core.state == "open"

    @property
    def connected_to(self) -> str:
        """The server of the connection that stands; empty without one."""
        return self._redialing.connected_to if self._redialing.is_online else ""

    def ask(self, make: Callable[[int], list[Effect]]) -> Future[Reply | None]:
        """Let the core handle a request with a number of its own; the future has what comes of it."""
        future: Future[Reply | None] = Future()
        if not self._call(self._ask, make, future):
            future.set_exception(Closed(what="the consumer"))
        return future

    def hurry_acks(self, *, linger: bool) -> None:
        """There are acks to send."""
        self._call(self._send_acks_soon if linger else self._send_acks)

    def stop(self, timeout_s: float) -> bool:
        """End the connection and the thread; False if it did not end in time."""
        self._stopping = True
        self._call(self._cancel)
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _call(self, act: Callable[..., None], *args: Any) -> bool:
        loop = self._loop
        if loop is None:
            return False
        try:
            loop.call_soon_threadsafe(act, *args)
        except RuntimeError:  # the loop has ended by itself
            return False
        return True

    # --- on the thread -----------------------------------------------------------------------------------------------

    def _main(self) -> None:
        error: HoldfastError | None = None
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                self._loop = runner.get_loop()
                self._ready.set()
                runner.run(self._run())
        except asyncio.CancelledError:
            pass
        except Exception as unforeseen:
            event("consumer.link.fail", level=logging.ERROR, error=repr(unforeseen), trace=traceback.format_exc())
            error = HoldfastError(f"an error of the consumer itself, {unforeseen!r}; please report it")
        finally:
            self._loop = None
            self._ready.set()
            self._finish(error)

    def _finish(self, error: HoldfastError | None) -> None:
        for future in list(self._requests.values()):
            future.set_exception(Closed(what="the consumer"))
        self._requests.clear()
        if not self.started.done():
            self.started.set_exception(error or Closed(what="the consumer"))
        self._listeners.ended(error)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _ask(self, make: Callable[[int], list[Effect]], future: Future[Reply | None]) -> None:
        number = self.core.number()
        self._requests[number] = future
        try:
            effects = make(number)
        except HoldfastError as error:
            self._apply([Answered(number, None, error)])
            return
        self._apply(effects)

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        while not self._stopping and self.core.state not in {"closed", "halted"}:
            host = self._redialing.next_host()
            if host is None:
                await asyncio.sleep(self._redialing.pause_s)
            else:
                await self._connect(host)

    async def _connect(self, host: int) -> None:
        wire, session = self._wire, _Session(self)
        try:
            transport, _ = await dial(wire.config, wire.config.addr[host], session, tls=wire.tls, door=DOOR)
        except DialFailed as failed:
            events, error = self._redialing.failed(host, failed.failure)
            for item in events:
                self._tell(item)
            if error is not None:
                self._apply(self.core.halt(error))
            return
        session.transport = transport
        self._session = session
        self._tell(self._redialing.opened(host))
        try:
            self._apply(self.core.opened())
            session.begin()
            await session.ended.wait()
        finally:
            self._session = None
            session.end(graceful=True)
            await session.gone()
            self._tell(self._redialing.closed(session.reason))
            self._listeners.lost()
            self._apply(self.core.lost(session.reason))

    def received(self, message: bytes) -> None:
        """A message of the connection that stands."""
        self._apply(self.core.received(message))

    # --- acks --------------------------------------------------------------------------------------------------------

    def _send_acks_soon(self) -> None:
        if self._loop is not None:
            self._loop.call_later(LINGER_S, self._send_acks)

    def _send_acks(self) -> None:
        for ranges in self.answers.take():
            self._apply(self.core.answer(consume.Ack(sub=1, ranges=ranges)))

    # --- effects -----------------------------------------------------------------------------------------------------

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                if self._session is not None:
                    self._session.transport.send(WSMsgType.BINARY, effect.message)
            elif isinstance(effect, Hand):
                self._listeners.delivered(effect.delivery)
            elif isinstance(effect, Answered):
                self._answer(effect)
            else:
                self._change(effect)

    def _answer(self, effect: Answered) -> None:
        future = self._requests.pop(effect.request, None)
        if future is None:
            return
        if effect.error is not None:
            future.set_exception(effect.error)
        else:
            future.set_result(effect.reply)

    def _change(self, effect: Effect) -> None:
        if isinstance(effect, Ready):
            self.started.set_result(None)
        elif isinstance(effect, Restored):
            self.reconnects += 1
            self._tell(self._redialing.restored())
        elif isinstance(effect, Notice):
            self._listeners.event(effect)
        elif isinstance(effect, Hangup):
            self._redialing.wait()
            self._hang_up(effect.reason)
        elif isinstance(effect, Halt):
            if not self.started.done():
                self.started.set_exception(effect.error)
            self._listeners.ended(effect.error)
            self._hang_up("the consumer has ended")
        elif isinstance(effect, Ended):
            self._listeners.ended(None)
            self._hang_up(_CLOSED)

    def _hang_up(self, reason: str) -> None:
        if self._session is not None:
            self._session.reason = reason
            self._session.end(graceful=True)

    def _tell(self, happened: ConnectionEvent) -> None:
        now_ns = self._wire.clock.monotonic_ns()
        if happened.kind not in _CHATTY or now_ns - self._logged_at_ns >= LOG_INTERVAL_NS:
            if happened.kind in _CHATTY:
                self._logged_at_ns = now_ns
            event(
                f"consumer.link.{happened.kind.value}",
                level=logging.WARNING if happened.kind in _LOUD and happened.reason != _CLOSED else logging.INFO,
                address=happened.address,
                reason=happened.reason,
                outage_s=f"{happened.outage_s:.3f}",
            )
        self._listeners.event(happened)


class _Session(Listener):
    """One connection, as the transport sees it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._early: list[bytes] | None = []
        self.transport: WSTransport
        self.ended = asyncio.Event()
        self.is_over = False
        self.reason = "the connection was cut"

    def begin(self) -> None:
        """Handle what came before anybody was ready, and all that follows."""
        early, self._early = self._early or [], None
        for message in early:
            self._link.received(message)

    def end(self, *, graceful: bool) -> None:
        """Close the socket; `ended` follows."""
        if not self.is_over:
            self.is_over = True
            self.transport.send_close(WSCloseCode.OK)
            self.transport.disconnect(graceful=graceful)

    async def gone(self) -> None:
        """Until the socket is closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_S):
                await self.ended.wait()
        self.transport.disconnect(graceful=False)
        await self.ended.wait()  # a turn of the loop closes it; a loop that ends before leaves it open

    # called by picows

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        kind = frame.msg_type
        if kind == WSMsgType.BINARY and frame.fin:
            if self.is_over:
                return
            if self._early is not None:
                self._early.append(frame.get_payload_as_bytes())
            else:
                self._link.received(frame.get_payload_as_bytes())
        elif kind == WSMsgType.CLOSE:
            payload = frame.get_payload_as_bytes()
            code = int.from_bytes(payload[:2], "big") if len(payload) >= 2 else 1005
            self.reason = f"ws-close[{code}]: {payload[2:].decode(errors='replace')}"
            transport.disconnect()
        elif kind not in {WSMsgType.PING, WSMsgType.PONG}:
            self.reason = f"the server sent a {kind.name} message; a message is one binary frame"
            transport.disconnect(graceful=False)

    def on_ws_disconnected(self, _transport: WSTransport) -> None:
        self.is_over = True
        self.ended.set()
