"""One connection that consumes, on the server's side, without the connection: what may come when, and what is refused.

    nothing ──HELLO──► welcomed ──► per subscription:

    free ──SUBSCRIBE──► opening ──opened──► open ──CLOSE, UNSUBSCRIBE──► closing ──closed──► free
                           └──refused──► free │ ▲                           └──refused──► open
                                              └─┴──ended by the server──► free

`receive` turns a message into a request that the shell carries out, or into the reply that is all there is to it. It
checks every value against its bound, so that whoever carries requests out may rely on them. Rules that need the store
or other connections (access, `max_subs`, a durable in use) are the shell's.

Promises: pure. A message that no consumer may send raises `WireError`, and the connection ends with 1002. A request
with a value out of bounds, or for a subscription that is not open, is refused and changes nothing. Answers (ACK, NACK,
REJECT, EXTEND) for a subscription that is not open any more are stale and ignored, unless they ask for an answer. Their
ranges are ascending and apart when they leave here, however they came.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum

from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.model.intervals import IntervalSet
from holdfast.model.names import SUBSCRIBER_NAME, check_channel_name
from holdfast.model.schema import SYSTEM_COLUMNS
from holdfast.wire import consume
from holdfast.wire.consume import Refused, Reply, Request, violation

SUBS_MAX = 1000
"""Subscriptions of one connection."""
SUB_MAX = 2**32 - 1
NUMBER_MAX = 2**63 - 1
START_WORDS = ("first", "new", "last")

_Answer = consume.Ack | consume.Nack | consume.Reject | consume.Extend
_NAME = re.compile(SUBSCRIBER_NAME, re.ASCII)
_BOUNDS = {
    "ack_wait_ms": (consume.ACK_WAIT_MS_MIN, consume.ACK_WAIT_MS_MAX),
    "max_inflight": (0, consume.INFLIGHT_MAX),
    "max_inflight_bytes": (1, consume.INFLIGHT_BYTES_MAX),
    "batch_rows": (1, consume.BATCH_ROWS_MAX),
    "priority": (-consume.PRIORITY_MAX, consume.PRIORITY_MAX),
    "max_deliver": (0, consume.DELIVER_MAX),
    "upto": (0, NUMBER_MAX),
    "delay_ms": (0, consume.DELAY_MS_MAX),
}


class SubState(Enum):
    """Where a subscription of the connection is."""

    OPENING = "is being opened"
    OPEN = "is open"
    CLOSING = "is being closed"


class ConsumeSession:
    """The order of one connection's messages."""

    def __init__(self, welcome: consume.Welcome) -> None:
        self._welcome = welcome
        self._welcomed = False
        self._subs: dict[int, SubState] = {}

    @property
    def subs(self) -> dict[int, SubState]:
        """The numbers in use."""
        return dict(self._subs)

    def receive(self, message: bytes) -> Request | Reply | None:
        """A request to carry out, or the reply to it; None if there is nothing to do. `WireError` ends it all."""
        request = consume.decode_request(message)
        if isinstance(request, consume.Hello):
            return self._greet(request)
        if not self._welcomed:
            raise violation(type(request).__name__.upper(), "HELLO must come first")
        sub, number = getattr(request, "sub", 0), getattr(request, "request", None)
        if not 0 < sub <= SUB_MAX or (number is not None and not 0 < number <= NUMBER_MAX):
            raise violation(type(request).__name__.upper(), "sub is 1 to 2^32-1, request 1 to 2^63-1")
        if isinstance(request, consume.Subscribe):
            return self._subscribe(request)
        return self._act_on(request, sub, number)

    def _act_on(self, request: Request, sub: int, number: int | None) -> Request | Reply | None:
        if isinstance(request, _Answer):
            consume.check_ranges(type(request).__name__.upper(), request.ranges)
            request = replace(request, ranges=tuple(IntervalSet(request.ranges)))  # each seq once
        reason = objection(request)
        if reason is not None and (number is None or isinstance(request, _Answer)):
            raise violation(type(request).__name__.upper(), reason)
        if self._subs.get(sub) is not SubState.OPEN:
            return None if number is None else self._unknown(number, sub)
        if reason is not None and number is not None:
            return Refused(request=number, sub=sub, code="bad_request", reason=reason)
        if isinstance(request, consume.Close | consume.Unsubscribe):
            self._subs[sub] = SubState.CLOSING
        return request

    def _greet(self, hello: consume.Hello) -> Reply:
        if self._welcomed or len(hello.client) > consume.NAME_CHARS_MAX:
            raise violation("HELLO", f"it comes once, with a name of at most {consume.NAME_CHARS_MAX} characters")
        self._welcomed = True
        return self._welcome

    def _subscribe(self, request: consume.Subscribe) -> Request | Reply:
        taken = self._subs.get(request.sub)
        if taken is not None:
            reason = f"subscription {request.sub} {taken.value}; choose another number"
            return Refused(request=request.request, sub=request.sub, code="bad_request", reason=reason)
        if len(self._subs) >= self._welcome.subs_max:
            reason = f"a connection has at most {self._welcome.subs_max} subscriptions"
            return Refused(request=request.request, sub=request.sub, code="limit_reached", reason=reason)
        reason_or_none = objection(request)
        if reason_or_none is not None:
            return Refused(request=request.request, sub=request.sub, code="bad_request", reason=reason_or_none)
        self._subs[request.sub] = SubState.OPENING
        return request

    def _unknown(self, request: int, sub: int) -> Refused:
        state = self._subs.get(sub)
        reason = f"subscription {sub} {state.value if state is not None else 'is not open'}"
        return Refused(request=request, sub=sub, code="unknown_subscription", reason=reason)

    # -- said by the shell ------------------------------------------------------------------------------------------

    def opened(self, sub: int) -> None:
        """The subscription stands."""
        assert self._subs[sub] is SubState.OPENING
        self._subs[sub] = SubState.OPEN

    def kept(self, sub: int) -> None:
        """The subscription could not be closed, and goes on."""
        assert self._subs[sub] is SubState.CLOSING
        self._subs[sub] = SubState.OPEN

    def freed(self, sub: int) -> None:
        """The subscription was refused, closed, or ended by the server."""
        self._subs.pop(sub, None)

    def is_open(self, sub: int) -> bool:
        """Whether messages may be delivered on it."""
        return self._subs.get(sub) is SubState.OPEN


# ---------------------------------------------------------------------------------------------------------- objections


def objection(request: Request) -> str | None:
    """Why the values of a request are not allowed; None if they are."""
    return next(_objections(request), None)


def _objections(request: Request) -> Iterator[str]:
    for field, (low, high) in _BOUNDS.items():
        value = getattr(request, field, None)
        if value is not None and not low <= value <= high:
            yield f"{field}={value} is not allowed: {low} to {high} is"
    backoff = getattr(request, "backoff_ms", None) or ()
    if len(backoff) > consume.BACKOFF_MAX or any(not 1 <= ms <= consume.ACK_WAIT_MS_MAX for ms in backoff):
        yield f"backoff_ms has at most {consume.BACKOFF_MAX} times of 1 to {consume.ACK_WAIT_MS_MAX}"
    if len(getattr(request, "reason", "")) > consume.REASON_CHARS_MAX:
        yield f"the reason has more than {consume.REASON_CHARS_MAX} characters"
    if isinstance(request, consume.Subscribe):
        yield from _objections_to_names(request)
        yield from _objections_to_mode(request)
        yield from _objections_to_start(request)
        yield from _objections_to_content(request)


def _objections_to_names(request: consume.Subscribe) -> Iterator[str]:
    try:
        check_channel_name(request.channel)
    except HoldfastError as error:
        yield str(error)
    for field in ("durable", "group"):
        name = getattr(request, field)
        if name and _NAME.fullmatch(name) is None:
            yield f"{field}={name[:200]!r} is no name: 1 to 128 letters, digits, '.', '_' and '-', no sign first"


def _objections_to_mode(request: consume.Subscribe) -> Iterator[str]:
    if request.mode == "priority" and not request.group:
        yield "mode priority needs a group: priorities are among its members"
    if request.priority and request.mode != "priority":
        yield f"priority={request.priority} counts only in mode priority"
    if request.mode == "broadcast" and (request.durable or request.group or request.max_deliver or request.backoff_ms):
        yield "mode broadcast delivers at most once: no durable, group, max_deliver or backoff_ms"
    if request.replace and (not request.durable or request.group):
        yield "replace is for a durable without a group"


def _objections_to_start(request: consume.Subscribe) -> Iterator[str]:
    start = request.start
    if start is not None and request.start_time_ns is not None:
        yield "start and start_time_ns exclude each other"
    if isinstance(start, str) and start not in START_WORDS:
        yield f"start={start[:80]!r} is no position: first, new, last or a seq"
    for field in ("start", "start_time_ns", "credit"):
        value = getattr(request, field)
        if isinstance(value, int) and not 0 <= value <= NUMBER_MAX:
            yield f"{field}={value} is not allowed: 0 to 2^63-1 is"


def _objections_to_content(request: consume.Subscribe) -> Iterator[str]:
    if len(request.filter) > consume.FILTER_CHARS_MAX:
        yield f"the filter has {len(request.filter)} characters, at most {consume.FILTER_CHARS_MAX} are allowed"
    if len(request.partitions) > consume.PARTITIONS_MAX:
        yield f"{len(request.partitions)} partitions, at most {consume.PARTITIONS_MAX} are allowed"
    unknown = [name for name in request.system if name not in SYSTEM_COLUMNS]
    if unknown:
        yield f"{unknown[0]!r} is no system column; there are {', '.join(SYSTEM_COLUMNS)}"
