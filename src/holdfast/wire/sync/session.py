"""One sync connection without the connection: messages and news in, effects out. No I/O, no clock, any dialect.

    NEW ──connect──► (CONNECTING) ──► SILENT ──sync──► PAGING ──last page──► LIVE
                                                  ▲       │                  │  ▲
                                                  │       │ much happened    │  │ nothing is missing any more
                                          sync ───┤       ▼                  ▼  │
                                                  └──── TAILING ◄── the peer does not read

Promises:

1. A cycle of pages has one watermark. What is committed meanwhile is held back, and follows the last page as
   broadcasts, in order, without a gap or a repeat; then the session is live. Nothing is buffered for that: the session
   keeps one position, and reads again from there.
2. A peer that does not take its messages is not sent more. When it does again, it gets what it missed, in order.
3. A cycle that its client abandons ends after `cycle_timeout`; the client gets broadcasts again, its cursor is its own.
4. Every submission and every `sync` is answered, in a way its dialect survives: clients of the npm package stop for
   ever on an error there, so an overload ends their connection, and they come back.
5. Messages behind one that must be waited for are kept in order; `is_full` says when to stop reading.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from holdfast.wire.sync.camel import Camel
from holdfast.wire.sync.dialect import BadMessage, Greeting, Message, SyncRequest, Welcome, open_envelope
from holdfast.wire.sync.messages import (
    PROJECT_PREFIX,
    Close,
    Code,
    Committed,
    Effect,
    Identity,
    Outcome,
    Page,
    Read,
    ReadKind,
    Refusal,
    Send,
    Snapshot,
    Submit,
)
from holdfast.wire.sync.snake import Snake

TAIL_ROWS = 500
"""Events that are read at a time for a session that catches up."""
TAIL_BYTES = 1 << 20
"""What is sent from memory at once; more is read a page at a time, so that a peer can stop us in between."""
HELD_MAX = 16
"""Messages kept behind one that is waited for; more are not read from the socket."""
RETRY_AFTER_MS = 1000
"""When a client may try again what an overloaded server did not take."""

SEED, OLD_SNAKE, PARTITIONED, PROJECT = Snake("seed"), Snake("1s"), Camel("1c"), Camel("2x")
DIALECTS: dict[str, Snake | Camel] = {dialect.family: dialect for dialect in (SEED, OLD_SNAKE, PARTITIONED, PROJECT)}


class AuthFailed(Exception):
    """A token does not name the client that shows it. The text never repeats the token."""


class Access(Protocol):
    """Who a client is, and what it may."""

    def authenticate(self, greeting: Greeting, *, now_ms: int) -> Identity:
        """Whom the token names; `AuthFailed` if it is not the client."""

    def may(self, identity: Identity, verb: str, scopes: Sequence[str]) -> bool:
        """Whether it may `read` or `write` all of these."""


class View(Protocol):
    """The log as far as it is announced."""

    @property
    def last_committed_id(self) -> int:
        """Everything up to here is durable, and was offered to every live session."""

    def recent_since(self, committed_id: int) -> Sequence[Committed] | None:
        """What was announced after `committed_id`, if all of it is still in memory."""


class Terms(msgspec.Struct, frozen=True):
    """Bounds of one session, and what it tells of the log."""

    message_bytes_max: int = 256 << 10
    subscriptions_max: int = 1024
    drafts_max: int = 1000
    handshake_timeout_ms: int = 10_000
    heartbeat_timeout_ms: int = 90_000
    cycle_timeout_ms: int = 60_000
    log_epoch: str = ""
    model_version: int = 0


class Mode(enum.Enum):
    """What the session does with an event that it follows."""

    SILENT = "silent"  # follows nothing
    PAGING = "paging"  # holds it back until the last page
    TAILING = "tailing"  # holds it back until what came before is read
    BLOCKED = "blocked"  # holds it back until the peer reads
    LIVE = "live"  # sends it


class Phase(enum.Enum):
    """How far the connection is."""

    NEW = "new"
    CONNECTING = "connecting"
    ACTIVE = "active"
    CLOSED = "closed"


class _Cycle(msgspec.Struct):
    scopes: frozenset[str]
    watermark: int
    next_since: int
    asked_at_ms: int


class Session:
    """One connection. `number` tells sessions apart; 0 is none."""

    def __init__(self, number: int, *, view: View, access: Access, terms: Terms, now_ms: int) -> None:
        self.number = number
        self.phase = Phase.NEW
        self.mode = Mode.SILENT
        self.dialect: Snake | Camel = OLD_SNAKE
        self.identity = Identity("")
        self.project_id = ""
        self.subscription: frozenset[str] = frozenset()
        self.drafts = 0
        """Items that wait for their commit."""
        self._view = view
        self._access = access
        self._terms = terms
        self._opened_at_ms = now_ms
        self._heartbeat_at_ms = 0
        self._reading: Read | None = None
        self._cycle: _Cycle | None = None
        self._held_from = 0
        """Up to here the client has, or gets by pages, what it follows; counts while not LIVE."""
        self._subscribes = False
        self._writable = True
        self._held: deque[bytes] = deque()
        self._connect_id = ""

    # -- what the owner looks at ------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be read from the socket for now."""
        return len(self._held) >= HELD_MAX or self.drafts >= self._terms.drafts_max

    @property
    def is_idle(self) -> bool:
        """Whether nothing of the client is waited for."""
        return not (self._held or self.drafts or (self._reading is not None and self._reading.kind is ReadKind.PAGE))

    def wants(self, event: Committed) -> bool:
        """Whether to send it now; it is one of the subscription."""
        return self.mode is Mode.LIVE and event.origin != self.number

    # -- messages ---------------------------------------------------------------------------------------------------

    def receive(self, data: bytes, now_ms: int) -> list[Effect]:
        """A message of the client."""
        if self.phase is Phase.CLOSED:
            return []
        if self._held or self.phase is Phase.CONNECTING:
            self._held.append(data)
            return []
        return self._take(data, now_ms)

    def _take(self, data: bytes, now_ms: int) -> list[Effect]:
        value: dict[str, Any] = {}
        try:
            if len(data) > self._terms.message_bytes_max:
                raise BadMessage(
                    f"the message has {len(data)} bytes, at most {self._terms.message_bytes_max} are allowed",
                    closes=True,
                    max_message_bytes=self._terms.message_bytes_max,
                )
            value, text = open_envelope(data)
            if self.phase is Phase.NEW:
                self.dialect = _dialect_of(value)
            return self._handle(self.dialect.message(value, text), data, now_ms)
        except BadMessage as bad:
            if self.phase is Phase.NEW and not value and b'"protocolVersion"' in data:
                self.dialect = PARTITIONED
            return self._complain(bad, now_ms)

    def _handle(self, message: Message, data: bytes, now_ms: int) -> list[Effect]:
        if message.type == "heartbeat" and self.dialect.takes_seed_messages:
            self._heartbeat_at_ms = now_ms
            return [self._plain("heartbeat_ack", message, now_ms)]
        if self.phase is Phase.NEW:
            if message.type != "connect":
                raise BadMessage("connect comes first", msg_id=message.msg_id)
            return self._connect(message, now_ms)
        expired = self._expired(now_ms, message.msg_id)
        if expired:
            return expired
        if message.type == "disconnect" and self.dialect.takes_seed_messages:
            return self._close("the client disconnects")
        if message.type == "submit_events" or (message.type == "submit_event" and self.dialect.takes_seed_messages):
            return self._submit(message)
        if message.type == "sync":
            return self._sync(message, data, now_ms)
        raise BadMessage(f"unknown message type {message.type[:64]!r}", msg_id=message.msg_id)

    def _connect(self, message: Message, now_ms: int) -> list[Effect]:
        greeting = self.dialect.greeting(message)
        try:
            identity = self._access.authenticate(greeting, now_ms=now_ms)
        except AuthFailed as error:
            raise BadMessage(str(error), code=Code.AUTH_FAILED, msg_id=message.msg_id, closes=True) from None
        scopes = (PROJECT_PREFIX + greeting.project_id,) if greeting.project_id else ()
        if scopes and not self._access.may(identity, "read", scopes):
            raise BadMessage("project access denied", code=Code.FORBIDDEN, msg_id=message.msg_id, closes=True)
        self.identity, self.project_id, self._connect_id = identity, greeting.project_id, message.msg_id
        if not scopes:
            return self._welcome(self._view.last_committed_id, now_ms)
        self.phase = Phase.CONNECTING
        return [self._read(ReadKind.LAST, frozenset(scopes), 0, limit=1)]

    def _welcome(self, last_committed_id: int, now_ms: int) -> list[Effect]:
        self.phase = Phase.ACTIVE
        terms = self._terms
        welcome = Welcome(
            self.identity.client_id,
            self.project_id,
            last_committed_id,
            terms.log_epoch,
            {
                "max_message_bytes": terms.message_bytes_max,
                "max_in_flight_drafts": terms.drafts_max,
                "max_subscriptions": terms.subscriptions_max,
            },
            terms.model_version,
        )
        sent = Send(self.dialect.connected(welcome, msg_id=self._connect_id, now_ms=now_ms))
        return [sent, *self._go_on(now_ms)]

    def _go_on(self, now_ms: int) -> list[Effect]:
        """Take the messages that had to wait, until one has to again."""
        effects: list[Effect] = []
        while self._held and self.phase is Phase.ACTIVE and not self._must_wait():
            effects += self._take(self._held.popleft(), now_ms)
        return effects

    def _must_wait(self) -> bool:
        return not self.dialect.survives_errors and self._reading is not None and self._reading.kind is ReadKind.PAGE

    # -- submitting -------------------------------------------------------------------------------------------------

    def _submit(self, message: Message) -> list[Effect]:
        dialect, identity = self.dialect, self.identity
        items = dialect.submission(message, client_id=identity.client_id, project_id=self.project_id)
        for item in items:
            if item.refusal is None and identity.user_id and item.user_id not in {"", identity.user_id}:
                item.refusal = Refusal(Code.FORBIDDEN, "userId is not the authenticated user", "userId")
            if item.refusal is None and not self._access.may(identity, "write", item.scopes):
                what = "project" if self.project_id else "partition"
                item.refusal = Refusal(Code.FORBIDDEN, f"{what} access denied", f"{what}s")
        self.drafts += len(items)
        return [
            Submit(
                self.number,
                identity.client_id,
                dialect.family,
                items,
                dialect.stops_at_refusal,
                single=message.type == "submit_event",
                msg_id=message.msg_id,
            )
        ]

    def submitted(self, submit: Submit, outcomes: Sequence[Outcome], now_ms: int) -> list[Effect]:
        """What became of a submission; it is durable."""
        self.drafts -= len(submit.items)
        if self.phase is not Phase.ACTIVE:
            return []
        return [Send(self.dialect.results(submit, outcomes, now_ms=now_ms))]

    def overloaded(self, submit: Submit, reason: str, now_ms: int) -> list[Effect]:
        """Nothing of a submission was taken; the client may try again."""
        self.drafts -= len(submit.items)
        if self.phase is not Phase.ACTIVE:
            return []
        if not self.dialect.survives_errors:
            return self.fail(reason, now_ms, msg_id=submit.msg_id)
        details = {"retry_after_ms": RETRY_AFTER_MS, "ids": [item.id for item in submit.items]}
        return [
            Send(self.dialect.error(Code.RATE_LIMITED, reason, msg_id=submit.msg_id, now_ms=now_ms, details=details))
        ]

    # -- catching up ------------------------------------------------------------------------------------------------

    def _sync(self, message: Message, data: bytes, now_ms: int) -> list[Effect]:
        if self._reading is not None and self._reading.kind is ReadKind.PAGE:
            if self.dialect.survives_errors:
                raise BadMessage("a sync is under way; wait for its response", msg_id=message.msg_id)
            self._held.append(data)
            return []
        request = self.dialect.sync_request(message)
        self._check_sync(request, message.msg_id)
        subscription = self._subscription(request)
        cycle = self._cycle_of(request, subscription, now_ms)
        self._cycle, self.subscription, self.mode = cycle, subscription, Mode.PAGING
        read = self._read(
            ReadKind.PAGE,
            request.scopes,
            request.since,
            upto=cycle.watermark,
            limit=request.limit,
            wants_snapshots=request.wants_snapshots,
            msg_id=message.msg_id,
        )
        if request.since >= cycle.watermark:
            return self.page(read, Page(), now_ms)
        return [read]

    def _check_sync(self, request: SyncRequest, msg_id: str) -> None:
        if request.project_id != self.project_id:
            raise BadMessage("project access denied", code=Code.FORBIDDEN, msg_id=msg_id)
        wanted = request.scopes | (request.subscription or frozenset())
        if not self._access.may(self.identity, "read", sorted(wanted)):
            raise BadMessage("partition access denied", code=Code.FORBIDDEN, msg_id=msg_id)
        if len(wanted) > self._terms.subscriptions_max:
            raise BadMessage(
                f"{len(wanted)} partitions, at most {self._terms.subscriptions_max} are allowed", msg_id=msg_id
            )

    def _subscription(self, request: SyncRequest) -> frozenset[str]:
        """What is followed from now on; without a word about it, what is synced."""
        if request.subscription is not None:
            self._subscribes = True
            return request.subscription
        return self.subscription if self._subscribes else request.scopes

    def _cycle_of(self, request: SyncRequest, subscription: frozenset[str], now_ms: int) -> _Cycle:
        cycle, last = self._cycle, self._view.last_committed_id
        if cycle is not None and (cycle.scopes, cycle.next_since) == (request.scopes, request.since):
            cycle.asked_at_ms = now_ms
            return cycle
        covers = subscription <= request.scopes and request.since <= self._held_from
        if self.mode in {Mode.LIVE, Mode.SILENT} or covers:
            self._held_from = last
        return _Cycle(request.scopes, last, request.since, now_ms)

    def _read(
        self,
        kind: ReadKind,
        scopes: frozenset[str],
        since: int,
        *,
        upto: int = 0,
        limit: int,
        wants_snapshots: bool = False,
        msg_id: str = "",
    ) -> Read:
        self._reading = Read(
            kind,
            scopes,
            since,
            upto or self._view.last_committed_id,
            limit,
            wants_snapshots=wants_snapshots,
            msg_id=msg_id,
        )
        return self._reading

    def page(self, read: Read, page: Page, now_ms: int) -> list[Effect]:
        """What a read found."""
        if read is not self._reading or self.phase is Phase.CLOSED:
            return []
        self._reading = None
        if read.kind is ReadKind.LAST:
            return self._welcome(page.last_committed_id, now_ms)
        if read.kind is ReadKind.TAIL:
            return self._tail(read, page)
        effects = self._respond(read, page, now_ms)
        return [*effects, *self._go_on(now_ms)]

    def _respond(self, read: Read, page: Page, now_ms: int) -> list[Effect]:
        cycle = self._cycle
        assert cycle is not None
        if page.pruned_to and self.dialect.survives_errors and not (read.wants_snapshots and page.snapshots):
            self._cycle = None
            details = {
                "pruned_to_committed_id": page.pruned_to,
                "partitions": sorted(read.scopes),
                "snapshots": [_shown(found) for found in page.snapshots],
            }
            text = f"events up to {page.pruned_to} are gone; start from a copy of the state, or sync from there"
            error = self.dialect.error(Code.CURSOR_PRUNED, text, msg_id=read.msg_id, now_ms=now_ms, details=details)
            return [Send(error), *self._go_live()]
        next_since = page.events[-1].committed_id if page.events else read.since
        if page.snapshots and not page.events:
            next_since = max(next_since, min(found.committed_id for found in page.snapshots))
        terms = {
            "next_since": next_since,
            "subscription": sorted(self.subscription),
            "project_id": self.project_id,
            "model_version": self._terms.model_version,
        }
        response = Send(self.dialect.sync_response(read, page, terms, now_ms=now_ms))
        cycle.next_since, cycle.asked_at_ms = next_since, now_ms
        if page.has_more:
            return [response]
        self._cycle = None
        return [response, *self._go_live()]

    def _go_live(self) -> list[Effect]:
        """Send what was held back; live when nothing is missing any more."""
        if not self.subscription:
            self.mode = Mode.SILENT
            return []
        if not self._writable:
            self.mode = Mode.BLOCKED
            return []
        missed = self._view.recent_since(self._held_from)
        if missed is None or len(missed) > TAIL_ROWS or sum(event.size_bytes for event in missed) > TAIL_BYTES:
            self.mode = Mode.TAILING
            return [self._read(ReadKind.TAIL, self.subscription, self._held_from, limit=TAIL_ROWS)]
        self.mode = Mode.LIVE
        return [Send(self.dialect.broadcast(event)) for event in missed if self._follows(event) and self.wants(event)]

    def _tail(self, read: Read, page: Page) -> list[Effect]:
        if self.mode is not Mode.TAILING or read.scopes != self.subscription:
            return []  # a sync came in between
        if not self._writable:
            self.mode = Mode.BLOCKED  # it is read again when the peer takes it
            return []
        self._held_from = page.events[-1].committed_id if page.has_more else read.upto
        return [*[Send(self.dialect.broadcast(event)) for event in page.events], *self._go_live()]

    def _follows(self, event: Committed) -> bool:
        return not self.subscription.isdisjoint(event.scopes)

    # -- the peer and the time --------------------------------------------------------------------------------------

    def blocked(self) -> None:
        """The peer does not take what is sent."""
        self._writable = False
        if self.mode is Mode.LIVE:
            self.mode, self._held_from = Mode.BLOCKED, self._view.last_committed_id

    def unblocked(self) -> list[Effect]:
        """It does again."""
        self._writable = True
        return self._go_live() if self.mode is Mode.BLOCKED else []

    def tick(self, now_ms: int) -> list[Effect]:
        """Some time has passed."""
        terms = self._terms
        if self.phase is Phase.CLOSED:
            return []
        if self.phase is Phase.NEW and now_ms - self._opened_at_ms > terms.handshake_timeout_ms:
            return self._close("no connect came")
        if self._heartbeat_at_ms and now_ms - self._heartbeat_at_ms > terms.heartbeat_timeout_ms:
            return self._close("heartbeats stopped")
        expired = self._expired(now_ms, "")
        if expired:
            return expired
        cycle = self._cycle
        if cycle is not None and self._reading is None and now_ms - cycle.asked_at_ms > terms.cycle_timeout_ms:
            self._cycle = None
            return self._go_live()
        return []

    def _expired(self, now_ms: int, msg_id: str) -> list[Effect]:
        end_ms = self.identity.expires_at_ms
        if not end_ms or now_ms < end_ms:
            return []
        return self._complain(
            BadMessage("the token has expired", code=Code.AUTH_FAILED, msg_id=msg_id, closes=True), now_ms
        )

    def fail(self, reason: str, now_ms: int, *, msg_id: str = "") -> list[Effect]:
        """Something of ours went wrong; clients of every dialect come back after this."""
        return self._complain(BadMessage(reason, code=Code.SERVER_ERROR, msg_id=msg_id, closes=True), now_ms)

    def tell_version(self, old: int, new: int, now_ms: int) -> list[Effect]:
        """The model changed: clients that know the word drop what they derived."""
        self._terms = msgspec.structs.replace(self._terms, model_version=new)
        if self.phase is not Phase.ACTIVE or not isinstance(self.dialect, Snake):
            return []
        payload = {"old_model_version": old, "new_model_version": new}
        return [Send(self.dialect.plain("version_changed", payload, msg_id="", now_ms=now_ms))]

    def check_access(self, now_ms: int) -> list[Effect]:
        """The rules changed: who follows what it may no longer read is sent away, and learns why when it is back."""
        if self.phase is not Phase.ACTIVE or self._access.may(self.identity, "read", sorted(self.subscription)):
            return []
        return self.fail("the rules have changed", now_ms)

    def replaced(self, now_ms: int) -> list[Effect]:
        """The same client connected again."""
        return self._complain(
            BadMessage("the client has connected again; this connection ends", code=Code.AUTH_FAILED, closes=True),
            now_ms,
        )

    def closed(self) -> None:
        """The connection is gone."""
        self.phase = Phase.CLOSED
        self._held.clear()

    def _close(self, reason: str) -> list[Effect]:
        self.closed()
        return [Close(reason)]

    def _complain(self, bad: BadMessage, now_ms: int) -> list[Effect]:
        text = self.dialect.error(bad.code, bad.message, msg_id=bad.msg_id, now_ms=now_ms, details=bad.details)
        return [Send(text), *(self._close(bad.message) if bad.closes else ())]

    def _plain(self, kind: str, message: Message, now_ms: int) -> Send:
        assert isinstance(self.dialect, Snake)
        return Send(self.dialect.plain(kind, {}, msg_id=message.msg_id, now_ms=now_ms))


def _shown(found: Snapshot) -> dict[str, object]:
    return {
        "partition": found.partition,
        "committed_id": found.committed_id,
        "state": msgspec.Raw(found.state),
        "model_version": found.model_version,
    }


def _dialect_of(value: dict[str, Any]) -> Snake | Camel:
    """Told apart by field names; only a `connect` says all."""
    found = value.get("payload")
    payload = found if isinstance(found, dict) else {}
    if "protocolVersion" in value or ("msgId" in value and "protocol_version" not in value):
        return PROJECT if "projectId" in payload else PARTITIONED
    return SEED if "last_committed_id" in payload else OLD_SNAKE
