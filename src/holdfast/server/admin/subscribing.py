"""A program registers a subscriber, looks at it, confirms ranges of events, puts it elsewhere or removes it, over HTTP.

Promise: all calls may be repeated. Registering again answers with the marks of now, so a reader that lost its place
finds it. What `acks` names, and where `reset` puts it, is durable when the answer comes. A caller needs `consume` of
every channel that is named, and of every one that a glob matches now. Who consumes by a name that is put elsewhere is
told, and comes back at the new place; nothing it answered before counts after. A removal that is repeated answers 404.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AsyncExitStack
from dataclasses import asdict
from datetime import datetime
from fnmatch import fnmatchcase

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from holdfast.config.values import DAY, parse_time
from holdfast.errors import BadRequest
from holdfast.server.access import Principal
from holdfast.server.admin.bodies import json_body
from holdfast.server.admin.caller import caller_of, on_thread, server_of
from holdfast.server.admin.envelope import Refused, answer
from holdfast.server.admin.events import check_open
from holdfast.server.admin.views import sees, subscriber_facts
from holdfast.server.state import ServerState
from holdfast.store.reading import Position
from holdfast.store.store import Store
from holdfast.store.subscribers.subscriber import SubscriberStatistics

BODY_BYTES_MAX = 1 << 18
"""Room for the longest list of patterns or ranges that is allowed."""
ACKS_MAX = 1000
GRACE_MAX_NS = 365 * DAY


class Registration(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /api/v1/subscribers/{subscriber}`."""

    channels: list[str]
    start: int | str = "first"
    grace: str | None = None
    """How long what it confirms is kept; as it was, if it is not given."""


class Ack(msgspec.Struct, forbid_unknown_fields=True):
    """A range of events, both ends included."""

    channel: str
    first_seq: int
    last_seq: int


class Acks(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /api/v1/subscribers/{subscriber}/acks`."""

    acks: list[Ack]


class Reset(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /api/v1/subscribers/{subscriber}/reset`."""

    to: int | str
    channel: str | None = None
    """None: all it follows."""
    plan: bool = False
    """Only say what would change."""


async def register(request: Request) -> Response:
    """`POST /api/v1/subscribers/{subscriber}`: made, changed, or as it is."""
    state, caller, name = server_of(request), caller_of(request), request.path_params["subscriber"]
    check_open(state)
    asked = await json_body(request, Registration, bytes_max=BODY_BYTES_MAX)
    start = _position(asked.start)
    before = await on_thread(_find, state.store, name)
    # who changes a subscriber may let go of what it follows; so that, too, must be the caller's to consume
    patterns = {*asked.channels, *(before.patterns if before is not None else ())}
    _require_all(state, caller, patterns, named=asked.channels)
    grace_ns = None if asked.grace is None else _duration(asked.grace)
    await on_thread(_register, state, caller, (name, asked.channels, start, grace_ns))
    return await _shown(state, caller, name)


async def acknowledge(request: Request) -> Response:
    """`POST /api/v1/subscribers/{subscriber}/acks`: done with these events."""
    state, caller, name = server_of(request), caller_of(request), request.path_params["subscriber"]
    check_open(state)
    asked = await json_body(request, Acks, bytes_max=BODY_BYTES_MAX)
    if not 0 < len(asked.acks) <= ACKS_MAX:
        raise BadRequest(f"acks has {len(asked.acks)} ranges; 1 to {ACKS_MAX} are allowed")
    for ack in asked.acks:  # of names the caller gave, so that a refusal says nothing of the subscriber
        caller.require("consume", ack.channel)
    await _visible(state, caller, name)
    await on_thread(_acknowledge, state.store, name, asked.acks)
    return await _shown(state, caller, name)


async def show(request: Request) -> Response:
    """`GET /api/v1/subscribers/{subscriber}`: one, as in the list, and what it lost without having confirmed it."""
    state, caller, name = server_of(request), caller_of(request), request.path_params["subscriber"]
    facts = subscriber_facts(await _visible(state, caller, name), caller)
    losses = await on_thread(state.store.losses)
    mine = [asdict(loss) for loss in losses if loss.subscriber == name and sees(caller, loss.channel)]
    return answer({**(facts or {}), "losses": mine})


async def remove(request: Request) -> Response:
    """`DELETE /api/v1/subscribers/{subscriber}`: it is owed nothing any more, and keeps nothing."""
    state, caller, name = server_of(request), caller_of(request), request.path_params["subscriber"]
    check_open(state)
    found = await _visible(state, caller, name)
    _require_all(state, caller, found.patterns)
    async with AsyncExitStack() as empty:
        for vacate in state.vacating:
            await empty.enter_async_context(vacate(name, None))
        owed = await on_thread(state.store.deregister, name)
    audit = state.gatekeeper.audit
    audit.write("admin.changed", principal=caller.name, change="subscriber removed", subscriber=name, owed=owed)
    return answer({"subscriber": name, "owed_events": owed})


async def reset(request: Request) -> Response:
    """`POST /api/v1/subscribers/{subscriber}/reset`: at another place, back or on."""
    state, caller, name = server_of(request), caller_of(request), request.path_params["subscriber"]
    check_open(state)
    asked = await json_body(request, Reset, bytes_max=BODY_BYTES_MAX)
    to, port = _position(asked.to), state.store.handing
    found = await _visible(state, caller, name)
    named = () if asked.channel is None else (asked.channel,)
    _require_all(state, caller, named or found.patterns, named=named)
    if asked.plan:
        moves = await on_thread(port.plan_reset, name, asked.channel, to=to)
    else:
        async with AsyncExitStack() as empty:
            for vacate in state.vacating:
                await empty.enter_async_context(vacate(name, asked.channel))
            moves = await on_thread(port.reset, name, asked.channel, to=to)
        change, channels = f"subscriber reset to {asked.to}", ", ".join(move.channel for move in moves)
        audit = state.gatekeeper.audit
        audit.write("admin.changed", principal=caller.name, change=change, subscriber=name, channels=channels)
    return answer({"subscriber": name, "applied": not asked.plan, "channels": [asdict(move) for move in moves]})


def _require_all(
    state: ServerState, caller: Principal, patterns: Collection[str], *, named: Collection[str] = ()
) -> None:
    """Whoever may not see one of these learns no name that it did not give itself."""
    matched = [name for name in state.store.channels() if any(fnmatchcase(name, pattern) for pattern in patterns)]
    for channel in [*sorted(patterns), *matched]:
        caller.require_right("consume", channel, called="" if channel in named else "all that it follows")


def _position(start: int | str) -> Position:
    if isinstance(start, int) or start in ("first", "new", "last"):
        return start
    try:
        return datetime.fromisoformat(start)
    except ValueError:
        reason = f"{start[:80]!r} is no position: first, new, last, a seq, or a time with its zone"
        raise BadRequest(reason) from None


def _duration(text: str) -> int:
    try:
        found = parse_time(text)
    except ValueError as error:
        raise BadRequest(f"grace: {error}") from None
    if not 0 <= found <= GRACE_MAX_NS:
        raise BadRequest(f"grace {text!r} is outside of 0 to 365d")
    return found


def _register(state: ServerState, caller: Principal, asked: tuple[str, list[str], Position, int | None]) -> None:
    name, channels, start, grace_ns = asked
    before = _find(state.store, name)
    with state.store.subscriber(name, channels, start=start) as subscriber:
        if grace_ns is not None:
            subscriber.keep_confirmed(grace_ns)
    if before is None or before.patterns != tuple(channels):
        change = "subscriber registered" if before is None else "subscriber changed"
        audit = state.gatekeeper.audit
        audit.write("admin.changed", principal=caller.name, change=change, subscriber=name, channels=channels)


def _acknowledge(store: Store, name: str, acks: list[Ack]) -> None:
    found = _find(store, name)
    if found is None:
        raise _unknown(name)
    with store.subscriber(name, found.patterns, newest_first=found.newest_first) as subscriber:
        for ack in acks:
            subscriber.ack(ack.channel, ack.first_seq, ack.last_seq)


def _find(store: Store, name: str) -> SubscriberStatistics | None:
    return next((item for item in store.subscribers() if item.name == name), None)


async def _visible(state: ServerState, caller: Principal, name: str) -> SubscriberStatistics:
    found = await on_thread(_find, state.store, name)
    if found is None or subscriber_facts(found, caller) is None:
        raise _unknown(name)
    return found


async def _shown(state: ServerState, caller: Principal, name: str) -> Response:
    return answer(subscriber_facts(await _visible(state, caller, name), caller))


def _unknown(name: str) -> Refused:
    return Refused(404, "not_found", f"there is no subscriber {name!r}", where={"subscriber": name})
