"""The connection loop of a sender, without the connection: what to do next, what each answer means, when to try again.

                     next_step                                opened                     received
    ┌─► pausing ──────────────► dialling ──┬───────────────────────────► online ───────────────────────┐
    │      ▲                               │ dial_failed                    │ closed                    │
    │      └───────────────────────────────┴────────────────────────────────┘                           ▼
    └──────────────────────────────────────────────────────────────────────────────────────────────  halted

Nothing here does I/O, starts a thread or reads a clock of its own: time is a `Clock`, chance a `random.Random`. Each
call returns `Effect`s for the shell to carry out, in order.

Promises:

1. A connection starts at `acked + 1`; `fsn = fsn_at_zero + wire_seq`, where messages that carry only symbols come
   before the first frame and count too.
2. `Acknowledge` never names a frame that was not fully sent on this connection and accepted by its server, however
   far a server's answer reaches, and it never moves back. With durable acknowledgements it waits for those.
3. A frame is passed over only by `Reject`, only if the policy of the refusal is to drop it, and only when everything
   before it is settled.
4. Every way to lose a connection that brought no progress is followed by a pause, which doubles up to its maximum:
   hosts that cannot be reached, servers that accept and hang up, frames that end connections.
5. After `Halt` nothing happens any more.

A running loop never gives up because of time. What halts it: 401 and 403, a server that will not confirm what was
asked for, a refusal with that policy, a close that says that we broke the protocol, a frame that ends connections.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.clock import NS_PER_S, Clock
from holdfast.errors import Category, HoldfastError, Incompatible, NotConnected, SenderHalted, WireError
from holdfast.model.backoff import Backoff
from holdfast.sender.durableacks import DurableLine
from holdfast.sender.happenings import ConnectionEvent, EventKind, SenderError
from holdfast.sender.hosts import HostTable
from holdfast.sender.poison import PoisonDetector
from holdfast.sender.policies import KEYS as CHOSEN
from holdfast.sender.policies import Policy
from holdfast.sender.rejected import Rejection
from holdfast.sender.substrate import Outage
from holdfast.wire import replies

_NS_PER_MS = NS_PER_S // 1000
TERMINAL_CLOSES = frozenset({1002, 1003, 1007, 1008, 1009, 1010})
"""Close codes by which a server says that what we sent can never be right."""
ORDERLY_CLOSES = frozenset({1000, 1001, 1012, 1013})
"""Close codes that speak of the server, not of what we sent."""


class Outcome(Enum):
    """What came of an attempt to connect."""

    REFUSED = "refused"  # 401, 403: for the whole list, whoever is asked
    ROLE = "role"  # 421: takes no writes
    ROLE_SOON = "role_soon"  # 421: will take writes
    INCOMPATIBLE = "incompatible"  # the server does not confirm what was asked for
    UNREACHABLE = "unreachable"  # everything else


class DialFailure(NamedTuple):
    """Why an attempt failed."""

    outcome: Outcome
    reason: str
    error: HoldfastError | None = None
    """What the producer is told if this ends the sender."""


class Opening(NamedTuple):
    """A connection stands; this is how it begins."""

    acked_fsn: int
    published_fsn: int
    catch_up: int = 0
    """Messages with symbols that go before the first frame."""
    limit_fsn: int | None = None
    """The first frame that must not be sent on this connection."""
    durable: bool = False


# --- steps and effects ----------------------------------------------------------------------------------------------


class Dial(NamedTuple):
    """Connect to this host of the list."""

    host: int


class Pause(NamedTuple):
    """Do nothing until then."""

    until_ns: int


class Acknowledge(NamedTuple):
    """The server has everything up to this frame."""

    fsn: int


class Reject(NamedTuple):
    """Keep a copy of the frames, go on behind them, and tell."""

    rejection: Rejection
    error: SenderError


class Halt(NamedTuple):
    """Nothing more is sent: the next call of a producer gets this error."""

    error: HoldfastError


class Hangup(NamedTuple):
    """End the connection and report it as `closed`."""

    reason: str


Effect: TypeAlias = Acknowledge | Reject | Halt | Hangup | SenderError | ConnectionEvent
Step: TypeAlias = Dial | Pause


class CoreOptions(NamedTuple):
    """What the connect string says about the loop."""

    addresses: tuple[str, ...]
    initial_backoff_ms: int = 100
    max_backoff_ms: int = 5_000
    start: str = "async"
    """What a start does that reaches no server: off (one round, then halt), on (so for a while), async (for ever)."""
    start_ms_max: int = 300_000
    keepalive_ms: int = 200
    strikes_max: int = 4
    poison_window_ms: int = 5_000
    gap_window_ms: int = 300_000


class Totals:
    """What happened since the start."""

    __slots__ = (
        *("acks", "attempts", "bytes_sent", "frames_rejected"),
        *("frames_replayed", "frames_sent", "reconnects", "server_errors"),
    )

    def __init__(self) -> None:
        self.acks = self.attempts = self.bytes_sent = self.frames_rejected = 0
        self.frames_replayed = self.frames_sent = self.reconnects = self.server_errors = 0


class LinkCore:
    """See the module. Not thread-safe; `outage` may be read by others."""

    def __init__(
        self,
        options: CoreOptions,
        policy_of: Callable[[Category], Policy],
        *,
        clock: Clock,
        chance: random.Random,
        hosts: HostTable | None = None,
        sent_before: int = -1,
        resolve: Callable[[SenderError], Policy] | None = None,
    ) -> None:
        self.options = options
        self.totals = Totals()
        self.halted: HoldfastError | None = None
        self.is_online = False
        self.was_connected = False
        self.hosts = hosts or HostTable(len(options.addresses))
        self._policy_of = policy_of
        self._resolve = resolve
        self._backoff = Backoff(options.initial_backoff_ms / 1000, options.max_backoff_ms / 1000)
        self._clock = clock
        self._chance = chance
        self._poison = PoisonDetector(strikes_max=options.strikes_max, window_ms=options.poison_window_ms)
        self._host = -1  # of the connection that stands, or stood last
        self._failures: list[str] = []
        self._rounds = 0  # exhausted since the last connection
        self._fruitless = 0  # connections in a row that brought nothing
        self._resume_at_ns = 0
        self._gap_since_ns: int | None = None
        self._sent_max = sent_before
        self._restore_fsn: int | None = None
        self.outage: Outage | None = Outage(clock.wall_ns(), 0)
        self._outage_at_ns = clock.monotonic_ns()
        self._begin(Opening(-1, -1))

    def _begin(self, opening: Opening) -> None:
        self._acked = self._settled_at_open = opening.acked_fsn
        self._fsn_at_zero = opening.acked_fsn + 1 - opening.catch_up
        self._sent = opening.acked_fsn
        self._accepted = opening.acked_fsn  # acknowledged, or on its way to be durable
        self._limit_fsn = opening.limit_fsn
        self._blocked = ""
        self._line = DurableLine() if opening.durable else None
        self._refused = False
        self._is_deliberate = False
        self._opened_at_ns = self._spoke_at_ns = self._clock.monotonic_ns()

    # --- connecting ------------------------------------------------------------------------------------------------

    def next_step(self) -> Step | None:
        """What to do while there is no connection; None when there is one, or never will be."""
        if self.is_online or self.halted is not None:
            return None
        if self._clock.monotonic_ns() < self._resume_at_ns:
            return Pause(self._resume_at_ns)
        host = self.hosts.pick()
        assert host is not None, "a round ends with its last failure"
        return Dial(host)

    def address(self, host: int) -> str:
        """A host by name."""
        return self.options.addresses[host] if host >= 0 else ""

    @property
    def connected_to(self) -> str:
        """The server of the connection that stands; empty without one."""
        return self.address(self._host) if self.is_online else ""

    def dial_failed(self, host: int, failure: DialFailure) -> list[Effect]:
        """The attempt came to nothing."""
        self._count_attempt(failure.reason)
        event = self._event(EventKind.ENDPOINT_ATTEMPT_FAILED, host, reason=failure.reason)
        if failure.outcome is Outcome.REFUSED:
            refused = self._event(EventKind.AUTH_FAILED, host, reason=failure.reason)
            return [event, refused, *self._halt(failure.error)]
        if failure.outcome is Outcome.INCOMPATIBLE:
            return [event, *self._halt(failure.error)]
        if failure.outcome is Outcome.UNREACHABLE:
            self.hosts.failed(host)
        else:
            self.hosts.rejected_role(host, transient=failure.outcome is Outcome.ROLE_SOON)
        self._failures.append(f"{self.address(host)}: {failure.reason}")
        return [event] if self.hosts.pick() is not None else [event, *self._end_round()]

    def _end_round(self) -> list[Effect]:
        failures, self._failures = self._failures, []
        effects: list[Effect] = [self._event(EventKind.ALL_ENDPOINTS_UNREACHABLE, -1, reason="; ".join(failures))]
        if self._is_start_over():
            return [*effects, *self._halt(NotConnected(failures=failures, waited_s=self._outage_s()))]
        if self.hosts.is_all_role_reject:
            self._rounds = 0
            self._pause(self._backoff.first_s)
        else:
            self._rounds += 1
            self._pause(self._backoff.pause_s(self._rounds, self._chance))
        self.hosts.begin_round(forget=True)
        return effects

    def _is_start_over(self) -> bool:
        if self.was_connected or self.options.start == "async":
            return False
        return self.options.start == "off" or self._outage_s() * 1000 >= self.options.start_ms_max

    def opened(self, host: int, opening: Opening) -> list[Effect]:
        """The server took the connection and confirmed what was asked for."""
        self._count_attempt("")
        outage_s, attempts = self._outage_s(), self.outage.attempts if self.outage else 0
        kind = EventKind.CONNECTED
        if self.was_connected:
            self.totals.reconnects += 1
            kind = EventKind.RECONNECTED if host == self._host else EventKind.FAILED_OVER
        event = self._event(kind, host, previous=self._host, attempts=attempts, outage_s=outage_s)
        self._begin(opening)
        self._gap_since_ns = None
        self._restore_fsn = min(self._sent_max, opening.published_fsn) if self.was_connected else None
        self.hosts.succeeded(host)
        self._host, self._rounds, self._failures = host, 0, []
        self.is_online = self.was_connected = True
        self.outage = None
        return [event, *self._restored()]

    def cannot_begin(self, host: int, reason: str) -> list[Effect]:
        """The server took the connection but not the symbols that must go first; for long enough that ends it."""
        now_ns = self._clock.monotonic_ns()
        self._gap_since_ns = now_ns if self._gap_since_ns is None else self._gap_since_ns
        if now_ns - self._gap_since_ns >= self.options.gap_window_ms * _NS_PER_MS > 0:
            error = SenderHalted(category=Category.DICTIONARY_GAP, reason=reason, first_fsn=0, last_fsn=0)
            return self._halt(error)
        self._fruitless += 1
        self._pause(self._backoff.pause_s(self._fruitless, self._chance))
        return self.dial_failed(host, DialFailure(Outcome.UNREACHABLE, reason))

    # --- sending ---------------------------------------------------------------------------------------------------

    def may_send(self, fsn: int) -> bool:
        """Whether this frame, the next one, may go out on this connection."""
        return self.is_online and not self._refused and (self._limit_fsn is None or fsn < self._limit_fsn)

    def sent(self, fsn: int) -> None:
        """The frame is fully handed to the transport."""
        assert fsn == self._sent + 1, f"frame {fsn} was sent after {self._sent}"
        self._sent = fsn
        self.totals.frames_sent += 1
        if fsn <= self._sent_max:
            self.totals.frames_replayed += 1
        else:
            self._sent_max = fsn

    def spoke(self) -> None:
        """Something went out: the keepalive can wait."""
        self._spoke_at_ns = self._clock.monotonic_ns()

    def limit(self, fsn: int) -> list[Effect]:
        """This frame needs another connection; it is made when all before it is settled."""
        self._limit_fsn = fsn
        return self._at_limit()

    def block(self, fsn: int, reason: str) -> list[Effect]:
        """This frame cannot go to this server. What came before it is settled first."""
        self._limit_fsn, self._blocked = fsn, reason
        return self._at_limit()

    def _at_limit(self) -> list[Effect]:
        if self._limit_fsn is None or self._acked < self._limit_fsn - 1 or self._is_deliberate:
            return []
        if self._blocked:
            return self._complain(Category.PROTOCOL_VIOLATION, self._blocked, fsn=self._limit_fsn)
        return [self._hang_up("the next frame belongs to another session")]

    # --- answers ---------------------------------------------------------------------------------------------------

    def received(self, message: bytes | memoryview) -> list[Effect]:
        """A binary message of the server."""
        if self._is_deliberate or not self.is_online:
            return []
        try:
            reply = replies.decode(message)
        except WireError as error:
            return self._complain(Category.PROTOCOL_VIOLATION, f"an answer that cannot be read: {error}")
        if isinstance(reply, replies.Ok):
            return self._on_ok(reply)
        if isinstance(reply, replies.DurableAck):
            if self._line is not None:
                self._line.durable(reply.channels)
            return self._settle_line()
        return self._on_refusal(reply)

    def _on_ok(self, reply: replies.Ok) -> list[Effect]:
        self.totals.acks += 1
        fsn = min(self._fsn_at_zero + reply.wire_seq, self._sent)
        if fsn > self._accepted:
            self._accepted = fsn
            self._poison.accepted(fsn)
        if self._line is not None:
            self._line.accepted(fsn, reply.channels)
            return self._settle_line()
        return self._acknowledge(fsn)

    def _acknowledge(self, fsn: int) -> list[Effect]:
        if fsn <= self._acked:
            return []
        self._acked = fsn
        effects: list[Effect] = [Acknowledge(fsn)]
        if self._restore_fsn is not None:
            effects += self._restored()
        if self._limit_fsn is not None:
            effects += self._at_limit()
        return effects

    def _settle_line(self) -> list[Effect]:
        effects: list[Effect] = []
        for settled in self._line.settle() if self._line is not None else ():
            effects += self._drop(settled.refusal) if settled.refusal else self._acknowledge(settled.fsn)
        return effects

    def _on_refusal(self, reply: replies.Refusal) -> list[Effect]:
        self.totals.server_errors += 1
        fsn = self._fsn_at_zero + reply.wire_seq
        is_known = self._accepted < fsn <= self._sent
        error = SenderError(
            category=reply.category,
            policy=self._policy_of(reply.category),
            message=reply.message,
            first_fsn=fsn if is_known else self._acked + 1,
            last_fsn=fsn if is_known else max(self._sent, self._acked + 1),
            status=reply.status,
            wire_seq=reply.wire_seq,
            address=self.address(self._host),
            detected_at_ns=self._clock.wall_ns(),
        )
        if self._resolve is not None and reply.category in CHOSEN:
            error = msgspec.structs.replace(error, policy=self._resolve(error))
        policy = error.policy
        if policy is Policy.HALT:
            return [*self._halt(_halted(error)), error]
        if policy is Policy.RETRY_OTHER:
            self.hosts.refused_writes(self._host)
            return [error, self._hang_up(f"refused: {reply.message}", deliberate=False)]
        if policy is Policy.DROP and is_known and self._accepted == fsn - 1:
            return self._give_up(error)
        return self._retry(error)

    def _give_up(self, error: SenderError) -> list[Effect]:
        self._refused = True  # the server consumes what comes after a refusal without an answer
        if self._line is None:
            return self._drop(error)
        self._line.refused(error)
        return self._settle_line()

    def _drop(self, error: SenderError) -> list[Effect]:
        self._acked = self._accepted = error.last_fsn
        self.totals.frames_rejected += error.last_fsn - error.first_fsn + 1
        self._poison.accepted(error.last_fsn)
        rejection = Rejection(
            first_fsn=error.first_fsn,
            last_fsn=error.last_fsn,
            category=error.category.name,
            message=error.message,
            policy=error.policy.value,
            status=error.status,
            detected_at_ns=error.detected_at_ns,
        )
        return [Reject(rejection, error), *self._restored(), self._hang_up("a frame was refused and set aside")]

    def _retry(self, error: SenderError) -> list[Effect]:
        """Connect again and send it again, unless this frame has done that too often."""
        self._refused = True
        if self._poison.strike(error.first_fsn, now_ns=self._clock.monotonic_ns()):
            return [*self._poisoned(error), error]
        return [error, self._hang_up(error.message, deliberate=False)]

    def _complain(self, category: Category, message: str, *, fsn: int | None = None) -> list[Effect]:
        """Something is wrong with this connection that another one may not have."""
        first = self._acked + 1 if fsn is None else fsn
        error = SenderError(
            category=category,
            policy=Policy.RETRY,
            message=message,
            first_fsn=first,
            last_fsn=max(self._sent, first) if fsn is None else fsn,
            address=self.address(self._host),
            detected_at_ns=self._clock.wall_ns(),
        )
        self.totals.server_errors += 1
        return self._retry(error)

    def _poisoned(self, error: SenderError) -> list[Effect]:
        reason = f"{self._poison.strikes} connections ended at this frame without progress; the last: {error.message}"
        halt = SenderHalted(
            category=Category.PROTOCOL_VIOLATION, reason=reason, first_fsn=error.first_fsn, last_fsn=error.last_fsn
        )
        return self._halt(halt)

    # --- the end of a connection -----------------------------------------------------------------------------------

    def violated(self, reason: str) -> list[Effect]:
        """The server sent what is no message of this protocol: nobody can say what it means."""
        return self._terminal(reason)

    def closed(self, code: int | None, reason: str) -> list[Effect]:
        """The connection is gone; `code` is what the server said last, None if it said nothing."""
        if not self.is_online:
            return []
        text = f"ws-close[{code}]: {reason}" if code is not None else reason
        effects: list[Effect] = []
        if not self._is_deliberate and not self._refused:
            effects = self._judge_close(code, text)
        self.is_online = False
        if self.halted is not None:
            return effects
        self.outage = Outage(self._clock.wall_ns(), 0, text)
        self._outage_at_ns = self._clock.monotonic_ns()
        if not self._is_deliberate and not self._refused:
            self.hosts.broke(self._host)
        self.hosts.begin_round(forget=False)
        self._pace()
        return [*effects, self._event(EventKind.DISCONNECTED, self._host, reason=text)]

    def _judge_close(self, code: int | None, text: str) -> list[Effect]:
        if code in TERMINAL_CLOSES:
            return self._terminal(text)
        if code is None or code in ORDERLY_CLOSES or self._sent <= self._acked:
            return []
        return [item for item in self._complain(Category.PROTOCOL_VIOLATION, text) if not isinstance(item, Hangup)]

    def _terminal(self, text: str) -> list[Effect]:
        self.totals.server_errors += 1
        error = SenderError(
            category=Category.PROTOCOL_VIOLATION,
            policy=Policy.HALT,
            message=text,
            first_fsn=self._acked + 1,
            last_fsn=max(self._sent, self._acked + 1),
            address=self.address(self._host),
            detected_at_ns=self._clock.wall_ns(),
        )
        return [*self._halt(_halted(error)), error]

    def _pace(self) -> None:
        """A pause, unless we ended the connection ourselves, or it lived for a while and brought something."""
        if self._is_deliberate:
            return
        if self._accepted <= self._settled_at_open:
            self._fruitless += 1
            self._pause(self._backoff.pause_s(max(self._fruitless, self._poison.strikes), self._chance))
            return
        self._fruitless = 0
        if self._clock.monotonic_ns() - self._opened_at_ns < self.options.initial_backoff_ms * _NS_PER_MS:
            self._pause(self._backoff.spread_s(self._backoff.first_s, self._chance))

    def _hang_up(self, reason: str, *, deliberate: bool = True) -> Hangup:
        self._is_deliberate = deliberate
        self._refused = True
        return Hangup(reason)

    # --- keepalive -------------------------------------------------------------------------------------------------

    @property
    def keepalive_at_ns(self) -> int | None:
        """When the server is to be reminded that confirmations are pending; None while none are."""
        if not self.is_online or not self._line or self.options.keepalive_ms <= 0:
            return None
        return self._spoke_at_ns + self.options.keepalive_ms * _NS_PER_MS

    # --- what they share -------------------------------------------------------------------------------------------

    def _restored(self) -> list[Effect]:
        if self._restore_fsn is None or self._acked < self._restore_fsn:
            return []
        self._restore_fsn = None
        return [self._event(EventKind.STATE_RESTORED, self._host)]

    def _halt(self, error: HoldfastError | None) -> list[Effect]:
        assert error is not None
        if self.halted is not None:
            return []
        self.halted = error
        return [Halt(error)]

    def _count_attempt(self, error: str) -> None:
        self.totals.attempts += 1
        if self.outage is not None:
            self.outage = self.outage._replace(
                attempts=self.outage.attempts + 1, last_error=error or self.outage.last_error
            )

    def _outage_s(self) -> float:
        return (self._clock.monotonic_ns() - self._outage_at_ns) / NS_PER_S

    def _pause(self, seconds: float) -> None:
        """Not before so long from now."""
        self._resume_at_ns = max(self._resume_at_ns, self._clock.monotonic_ns() + round(seconds * NS_PER_S))

    def _event(
        self,
        kind: EventKind,
        host: int,
        *,
        reason: str = "",
        previous: int = -1,
        attempts: int | None = None,
        outage_s: float = 0.0,
    ) -> ConnectionEvent:
        counted = self.outage.attempts if self.outage is not None else 0
        return ConnectionEvent(
            kind=kind,
            address=self.address(host),
            previous_address=self.address(previous),
            reason=reason,
            attempts=counted if attempts is None else attempts,
            outage_s=outage_s,
            at_ns=self._clock.wall_ns(),
        )


def _halted(error: SenderError) -> SenderHalted:
    return SenderHalted(
        category=error.category,
        reason=error.message,
        first_fsn=error.first_fsn,
        last_fsn=error.last_fsn,
        status=error.status,
    )


def unconfirmed(address: str) -> DialFailure:
    """The server does not confirm durable acknowledgements, which were asked for."""
    error = Incompatible(
        address=address,
        reason="it does not confirm request_durable_ack=on; use a server with an object store, or leave the key out",
    )
    return DialFailure(Outcome.INCOMPATIBLE, error.reason, error)
