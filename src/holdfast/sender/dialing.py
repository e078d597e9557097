"""Getting a connection: the request, TLS, the deadlines, and what each answer of a server means.

| answer | outcome |
|---|---|
| 101 | the connection stands, if the server speaks our version and confirms what was asked for |
| 401, 403 | refused, for the whole list |
| 421 with a role | takes no writes; `PRIMARY_CATCHUP` will soon |
| anything else, no answer in time, no TCP or TLS connection | unreachable: another host, or later |
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import ssl
from collections.abc import Mapping
from typing import Any, NamedTuple

from picows import WSError, WSHandshakeError, WSListener, WSTransport, ws_connect

from holdfast.errors import Forbidden, HoldfastError, InvalidConfig, Unauthenticated
from holdfast.sender.conf import SenderConfig
from holdfast.sender.core import DialFailure, Outcome, unconfirmed
from holdfast.sender.keys import Address
from holdfast.traffic import Traffic, traffic_of

VERSION = 1
REPLY_BYTES_MAX = 1 << 20
"""The largest message a server may send: an answer that names ten thousand channels fits."""
IDLE_PING_S = 45.0
"""A connection on which nothing comes in is asked this often whether it still is one."""
PONG_TIMEOUT_S = 45.0
"""How long the answer may take: longer than a server reads nothing because its store is full."""
ABANDON_S = 1.0
"""How long an attempt may take to end that failed, or is not wanted any more."""
LOOK_EVERY_S = 0.005
_READABLE_TEXT_MAX = 200


class Listener(WSListener):
    """What a connection is used by. An answer to a ping that is late is waited for as long as anything moves: it stands
    behind a large message, or the ping does, on a slow line."""

    def send_user_specific_ping(self, transport: WSTransport) -> None:
        """picows asks whether the server lives, and looks for the answer after `PONG_TIMEOUT_S`."""
        before = traffic_of(transport.underlying_transport)
        asyncio.get_running_loop().call_later(PONG_TIMEOUT_S, self._look, transport, before)  # before picows looks
        transport.send_ping()

    def _look(self, transport: WSTransport, before: Traffic) -> None:
        if traffic_of(transport.underlying_transport).has_moved_since(before):
            transport.notify_user_specific_pong_received()  # it is asked anew


class Door(NamedTuple):
    """What is wanted of a server: where it is spoken, how large its messages get, and the word for it."""

    path: str
    reply_bytes_max: int
    action: str


INGEST = Door("/api/v4/write", REPLY_BYTES_MAX, "write to")


class Greeting(NamedTuple):
    """What the server said when it took the connection."""

    batch_bytes_max: int | None
    durable: bool


class DialFailed(Exception):
    """Carries a `DialFailure`."""

    def __init__(self, failure: DialFailure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def tls_context(config: SenderConfig) -> ssl.SSLContext | None:
    """How servers are verified; None without TLS."""
    if not config.tls:
        return None
    try:
        context = ssl.create_default_context(cafile=config.tls_roots)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfig(key="tls_roots", reason=f"{config.tls_roots} cannot be read: {error}") from error
    if config.tls_verify == "unsafe_off":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def request_headers(config: SenderConfig, session: tuple[bytes, int] | None) -> list[tuple[str, str]]:
    """The headers of our own in the upgrade request; `session` is for frames that do not carry their identity."""
    headers = [("X-QWP-Max-Version", str(VERSION))]
    if config.request_durable_ack:
        headers.append(("X-QWP-Request-Durable-Ack", "true"))
    if config.client_id is not None:
        headers.append(("X-QWP-Client-Id", config.client_id))
    if config.token is not None:
        headers.append(("Authorization", f"Bearer {config.token}"))
    elif config.username is not None:
        pair = base64.b64encode(f"{config.username}:{config.password}".encode()).decode()
        headers.append(("Authorization", f"Basic {pair}"))
    if session is not None:
        headers += [("X-Holdfast-Slot-Id", session[0].hex()), ("X-Holdfast-First-Fsn", str(session[1]))]
    return headers


async def dial(
    config: SenderConfig,
    address: Address,
    listener: WSListener,
    *,
    tls: ssl.SSLContext | None,
    session: tuple[bytes, int] | None = None,
    door: Door = INGEST,
) -> tuple[WSTransport, Greeting]:
    """A connection that a server took, or `DialFailed`; then nothing is left open."""
    sockets: list[socket.socket] = []
    try:
        return await _dial(config, address, listener, tls=tls, session=session, door=door, sockets=sockets)
    except DialFailed:
        await _closed(sockets)
        raise


async def _dial(
    config: SenderConfig,
    address: Address,
    listener: WSListener,
    *,
    tls: ssl.SSLContext | None,
    session: tuple[bytes, int] | None,
    door: Door,
    sockets: list[socket.socket],
) -> tuple[WSTransport, Greeting]:
    where = str(address)
    headers = request_headers(config, session)
    upgrading = asyncio.get_running_loop().create_task(
        _upgrade(config, address, listener, tls=tls, headers=headers, door=door, sockets=sockets)
    )
    try:
        transport = await asyncio.shield(upgrading)
    except asyncio.CancelledError:
        await _abandon(upgrading, sockets)
        raise
    except WSHandshakeError as error:
        raise DialFailed(_refused(error, f"{door.action} {where}", config)) from error
    except TimeoutError as error:
        text = str(error) if "TCP" in str(error) else f"no answer to the upgrade within {config.auth_timeout_ms} ms"
        raise DialFailed(_unreachable(text)) from error
    except (OSError, WSError, EOFError, ValueError, RuntimeError) as error:  # the last one: the interpreter ends
        raise DialFailed(_unreachable(_text(error))) from error
    response: Any = transport.response
    if response is None:  # what a connection gets that is cut in between, without an error
        raise DialFailed(_unreachable("the connection was cut during the upgrade"))
    greeting = _greeting(response.headers, where, wants_durable=config.request_durable_ack)
    if isinstance(greeting, DialFailure):
        transport.disconnect(graceful=False)
        raise DialFailed(greeting)
    return transport, greeting


async def _upgrade(
    config: SenderConfig,
    address: Address,
    listener: WSListener,
    *,
    tls: ssl.SSLContext | None,
    headers: list[tuple[str, str]],
    door: Door,
    sockets: list[socket.socket],
) -> WSTransport:
    host = f"[{address.host}]" if ":" in address.host else address.host
    answer_s = config.auth_timeout_ms / 1000

    async def connected(_url: object) -> socket.socket:
        sockets.append(await _connect(address, config.connect_timeout / 1000))
        return sockets[-1]

    options: dict[str, Any] = {"ssl_handshake_timeout": answer_s} if tls is not None else {}
    transport, _ = await ws_connect(
        lambda: listener,
        f"{'wss' if tls else 'ws'}://{host}:{address.port}{door.path}",
        ssl_context=tls,
        websocket_handshake_timeout=answer_s,
        logger_name="holdfast",
        enable_auto_ping=True,
        auto_ping_idle_timeout=IDLE_PING_S,
        auto_ping_reply_timeout=PONG_TIMEOUT_S,
        max_frame_size=door.reply_bytes_max,
        extra_headers=headers,
        max_redirects=0,
        socket_factory=connected,
        **options,
    )
    return transport


async def _abandon(upgrading: asyncio.Task[WSTransport], sockets: list[socket.socket]) -> None:
    """End an attempt halfway. A task that is cancelled leaves its transport open; one whose socket ends does not."""
    _shut(sockets)
    if not sockets:
        upgrading.cancel()
    await asyncio.wait([upgrading], timeout=ABANDON_S)
    if not upgrading.done():
        upgrading.cancel()
    elif not upgrading.cancelled() and upgrading.exception() is None:
        upgrading.result().disconnect(graceful=False)
    await _closed(sockets)


async def _closed(sockets: list[socket.socket]) -> None:
    """Until transports have closed what they were given; TLS waits for a farewell, which a server may owe for ever."""
    _shut(sockets)
    for _ in range(round(ABANDON_S / LOOK_EVERY_S)):
        if all(connection.fileno() < 0 for connection in sockets):
            return
        await asyncio.sleep(LOOK_EVERY_S)
    for connection in sockets:
        connection.close()


def _shut(sockets: list[socket.socket]) -> None:
    for connection in sockets:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


async def _connect(address: Address, timeout_s: float) -> socket.socket:
    """A TCP connection to the first address of the name that takes one."""
    loop = asyncio.get_running_loop()
    failure: OSError | None = None
    try:
        async with asyncio.timeout(timeout_s):
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
            for family, kind, protocol, _, target in found:
                connection = socket.socket(family, kind, protocol)
                try:
                    connection.setblocking(False)
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    await loop.sock_connect(connection, target)
                except OSError as error:
                    connection.close()
                    failure = error
                except BaseException:
                    connection.close()
                    raise
                else:
                    return connection
    except TimeoutError:
        raise TimeoutError(f"no TCP connection within {timeout_s:g} s") from None
    raise failure or OSError(f"{address.host} has no address")


def _greeting(headers: Mapping[str, str], where: str, *, wants_durable: bool) -> Greeting | DialFailure:
    version = headers.get("X-QWP-Version", str(VERSION)).strip()
    if version != str(VERSION):
        return _unreachable(f"unsupported X-QWP-Version: {version[:_READABLE_TEXT_MAX]!r}; we speak {VERSION}")
    durable = headers.get("X-QWP-Durable-Ack", "").strip().lower() == "enabled"
    if wants_durable and not durable:
        return unconfirmed(where)
    limit: int | None = None
    with contextlib.suppress(ValueError):
        limit = int(headers.get("X-QWP-Max-Batch-Size", ""))
    return Greeting(limit if limit is not None and limit > 0 else None, durable and wants_durable)


def _refused(error: WSHandshakeError, action: str, config: SenderConfig) -> DialFailure:
    if error.response is None:
        return _unreachable(_text(error))
    status = int(error.response.status)
    said = (error.raw_body or error.response.body or b"")[:_READABLE_TEXT_MAX].decode(errors="replace").strip()
    reason = f"answered {status}" + (f": {said}" if said else "")
    if status == 404:
        reason = "answered 404: events do not go there; `holdfast serve` prints the address behind data="
    if status in (401, 403):
        return DialFailure(Outcome.REFUSED, reason, _access_error(status, reason, action, config))
    role = error.response.headers.get("X-QuestDB-Role")
    if status == 421 and role is not None:
        outcome = Outcome.ROLE_SOON if role.strip().upper() == "PRIMARY_CATCHUP" else Outcome.ROLE
        return DialFailure(outcome, f"takes no writes, its role is {role[:_READABLE_TEXT_MAX]}")
    return _unreachable(reason)


def _access_error(status: int, reason: str, action: str, config: SenderConfig) -> HoldfastError:
    if status == 401:
        return Unauthenticated(reason=f"to {action}: {reason}; check token, or username and password")
    return Forbidden(principal=config.username or "(the token's)", action=action)


def _unreachable(reason: str) -> DialFailure:
    return DialFailure(Outcome.UNREACHABLE, reason)


def _text(error: BaseException) -> str:
    text = " ".join(str(error).split())[:_READABLE_TEXT_MAX]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
