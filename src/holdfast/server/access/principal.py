"""Whoever a credential names: what they may do and how much of it.

A `Principal` stands for one authenticated connection or request. All of one name share an `Account`: their rights,
rates, connections and channels are counted together, whichever credential each of them showed.

What a connection does with it, in this order: `admit_connection` once; `bind_slot` before a slot's first frame; per
frame `publishing` with its channels, then `take` and wait that long before reading on; `release_connection` at the end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from types import TracebackType
from typing import Literal, Protocol, TypeVar

from holdfast.clock import Clock
from holdfast.config.passwords import PasswordHash
from holdfast.config.principals import AccessRule, PrincipalLimits
from holdfast.errors import Backpressure, Forbidden, HoldfastError, LimitReached, QuotaReached, StoreFailed
from holdfast.model.frame import Guid
from holdfast.server.access.audit import AuditLog
from holdfast.server.access.bucket import Bucket
from holdfast.server.access.quota import ChannelQuota
from holdfast.server.access.rules import Limits, is_allowed, limits_of

ANSWERS_MAX = 10_000
"""Answers kept per account: as many as a store has channels by default."""
CONNECTIONS_RETRY_S = 5.0
"""When one who has too many connections may try again: as soon as dead ones are found."""


_ASIDE = threading.Lock()
"""For claims that are put aside: a thread does so, and the loop ends connections."""
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Credential:
    """What was shown, without its secret."""

    kind: Literal["token", "user", "certificate", "none", "unknown"]
    token_id: str = ""
    password: PasswordHash | None = field(default=None, repr=False)
    """The hash that the password was right for."""
    expires_at_ns: int = 0
    """Wall time; 0 is never."""

    def __str__(self) -> str:
        return f"{self.kind} {self.token_id}".strip()


class Desk(Protocol):
    """What a principal needs of its gatekeeper."""

    clock: Clock
    audit: AuditLog
    reserved: set[str]
    check_channel: Callable[[str], None]
    quota: ChannelQuota

    def bind(self, slot_id: bytes, principal: str) -> str:
        """Who owns a slot; whoever asks first, durably."""

    def attend(self, principal: Principal) -> None:
        """Watch its credential until `dismiss`."""

    def dismiss(self, principal: Principal) -> None:
        """Stop watching."""


class Account:
    """What all principals of one name share."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.connections = 0
        self._clock = clock
        self._answers: dict[tuple[str, str], bool] = {}
        self.apply((), ())

    def apply(self, rules: Sequence[AccessRule], limits: Sequence[PrincipalLimits]) -> None:
        """Take new settings; forgets the answers given under the old ones."""
        self._rules = rules
        self.limits = limits_of(limits, self.name)
        self._answers.clear()
        self._frames = Bucket(self._clock, self.limits.frames_per_second)
        self._bytes = Bucket(self._clock, self.limits.bytes_per_second)

    def may(self, verb: str, channel: str) -> bool:
        """The rules' answer, remembered."""
        answer = self._answers.get((verb, channel))
        if answer is None:
            if len(self._answers) >= ANSWERS_MAX:
                self._answers.clear()
            answer = self._answers[verb, channel] = is_allowed(self._rules, self.name, verb, channel)
        return answer

    def take(self, frames: int, size_bytes: int) -> float:
        """Count what was sent; returns the seconds to wait."""
        return max(self._frames.take(frames), self._bytes.take(size_bytes))


class Principal:
    """One authenticated connection or request. Used by one thread at a time."""

    __slots__ = (
        "_account",
        "_admitted",
        "_aside",
        "_channels",
        "_desk",
        "_left",
        "_peer",
        "_scope",
        "_slots",
        "credential",
        "revoked",
    )

    def __init__(self, desk: Desk, account: Account, credential: Credential) -> None:
        self._desk = desk
        self._account = account
        self._admitted = False
        self._peer = ""
        self._slots: set[bytes] = set()
        self._channels: set[str] = set()
        self._aside: Claim | None = None
        self._left = False
        self.credential = credential
        self._scope = sha256(account.name.encode()).digest() if self.is_known else b""
        self.revoked = False

    def __repr__(self) -> str:
        return f"Principal({self.name!r}, {str(self.credential)!r})"

    @property
    def name(self) -> str:
        """Who it is."""
        return self._account.name

    @property
    def is_known(self) -> bool:
        """Whether it showed a credential; where none is asked for, everybody is nobody."""
        return self.credential.kind != "none"

    @property
    def limits(self) -> Limits:
        """How much of everything the name may use."""
        return self._account.limits

    @property
    def is_valid(self) -> bool:
        """Whether the credential still holds: neither revoked nor expired."""
        end_ns = self.credential.expires_at_ns
        return not self.revoked and (not end_ns or self._desk.clock.wall_ns() < end_ns)

    def may(self, verb: str, channel: str = "") -> bool:
        """Whether it may `publish`, `consume`, `sync` or `admin` that channel; the empty one is the whole server."""
        if verb == "publish" and channel in self._desk.reserved:
            return False
        return self.is_valid and self._account.may(verb, channel)

    def needs_disk(self, channels: Iterable[str], slot_ids: Iterable[bytes]) -> bool:
        """Whether `require` of publishing there, or `bind_slot`, would look something up or note it on disk."""
        if self._account.limits.channels and not self._channels.issuperset(channels):
            return True
        return self.is_known and not self._slots.issuperset(slot_ids)

    def require(self, verb: str, channel: str = "") -> None:
        """Raise `Forbidden`, and say so in the audit log, unless it may. Publishing counts the channel
        (`LimitReached`); one that cannot be is `InvalidName`, and counts nothing."""
        self.require_right(verb, channel)
        if verb == "publish":
            self.claim((channel,)).accept()

    def require_right(self, verb: str, channel: str = "", *, called: str = "") -> None:
        """The same without counting anything. `called` is what the caller is told of a channel it did not name."""
        if not self.may(verb, channel):
            where = called or (f"channel {channel!r}" if channel else "the server")
            self._desk.audit.write("access.refused", principal=self.name, verb=verb, channel=channel, peer=self._peer)
            raise Forbidden(principal=self.name, action=f"{verb} {where}")

    def publishing(self, channels: Sequence[str]) -> Claim:
        """Before a frame for these channels is stored: `require` for all of them, or for none. The claim is to be told
        what becomes of the frame. One that was put aside is taken up again by the same channels, without the disk."""
        for channel in channels:
            self.require_right("publish", channel)
        return self.claim(channels)

    def claim(self, channels: Sequence[str]) -> Claim:
        """Count channels, all or none (`LimitReached`)."""
        allowed = self._account.limits.channels
        if not allowed or self._channels.issuperset(channels):
            return NOTHING
        aside = self._take_up()
        if aside is not None:
            if aside.channels == tuple(channels):
                return aside
            aside.refuse()
        found = self._desk.quota.claim(self.name, channels, allowed=allowed, check=self._desk.check_channel)
        if isinstance(found, str):
            self._desk.audit.write("limit.refused", principal=self.name, limit="channels", channel=found)
            raise LimitReached(what=f"channel {found!r} of principal {self.name!r}", limit="channels", allowed=allowed)
        self._channels.update(set(channels).difference(found))
        return Claim(self, tuple(channels), found)

    def put_aside(self, claim: Claim) -> None:
        """Its frame is tried again; if the connection ends before that, the claim is refused."""
        with _ASIDE:
            if not self._left:
                self._aside = claim
                return
        claim.refuse()

    def _take_up(self) -> Claim | None:
        with _ASIDE:
            claim, self._aside = self._aside, None
        return claim

    def settled(self, counted: Sequence[str], *, stored: bool) -> None:
        """What became of a frame for channels that did not count yet. On any thread."""
        if stored:
            self._desk.quota.accept(self.name, counted)
            self._channels.update(counted)
        else:
            self._desk.quota.refuse(self.name, counted)

    def bind_slot(self, slot_id: bytes) -> None:
        """Make the slot this principal's for ever, or raise `Forbidden` if it is another's. Where nobody is
        authenticated, slots belong to nobody."""
        if not self.is_known or slot_id in self._slots:
            return
        owner = self._desk.bind(slot_id, self.name)
        if owner != self.name:
            self._desk.audit.write("slot.refused", principal=self.name, slot=slot_id.hex(), owner=owner)
            raise Forbidden(principal=self.name, action=f"use slot {slot_id.hex()}: it belongs to another principal")
        self._slots.add(slot_id)

    def guid(self, value: bytes) -> Guid:
        """What the store knows a message id of this caller by: the same id of another principal is another one."""
        return Guid(blake2b(value, digest_size=16, key=self._scope).digest() if self._scope else value)

    def admit_connection(self, peer: str = "") -> None:
        """Count a connection and watch its credential, or raise `QuotaReached`."""
        allowed = self._account.limits.connections
        if allowed and self._account.connections >= allowed:
            self._desk.audit.write("limit.refused", principal=self.name, limit="connections", peer=peer)
            raise QuotaReached(
                principal=self.name, limit="connections", allowed=allowed, retry_after_s=CONNECTIONS_RETRY_S
            )
        self._account.connections += 1
        self._admitted, self._peer = True, peer
        self._desk.attend(self)
        self._desk.audit.write("connection.open", principal=self.name, credential=self.credential, peer=peer)

    def release_connection(self) -> None:
        """The connection is gone. Idempotent."""
        self._left = True
        aside = self._take_up()
        if aside is not None:
            aside.refuse()
        if self._admitted:
            self._admitted = False
            self._account.connections -= 1
            self._desk.dismiss(self)
            self._desk.audit.write("connection.close", principal=self.name, peer=self._peer)

    def take(self, frames: int, size_bytes: int) -> float:
        """Count what was sent; returns the seconds to wait before reading more."""
        return self._account.take(frames, size_bytes)


class Claim:
    """The channels of one frame of a principal that has a limit of them, until it is known whether the frame is stored.

    Only a definite refusal gives channels back: after `StoreFailed` or an error that nobody foresaw the frame may be
    stored. As a context: what is raised decides, except `Backpressure`, after which the frame is tried again. It is one
    thread's at a time.
    """

    __slots__ = ("_counted", "_principal", "channels")

    def __init__(self, principal: Principal | None, channels: tuple[str, ...], counted: Sequence[str]) -> None:
        """`counted` are those that are given back if the frame is refused."""
        self._principal = principal
        self._counted = counted
        self.channels = channels

    def __enter__(self) -> Claim:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if isinstance(error, Backpressure) and self._principal is not None:
            self._principal.put_aside(self)
        elif error is not None:
            self.settle(error)

    def settled_by(self, answer: Future[_Answer]) -> Future[_Answer]:
        """The store has the frame; its answer decides."""
        principal = self._principal
        if principal is not None:
            self._principal = None
            counted = self._counted
            answer.add_done_callback(lambda done: principal.settled(counted, stored=not _is_refusal(done.exception())))
        return answer

    def settle(self, error: BaseException | None) -> None:
        """What the store said: nothing, or why it did not say that the frame is stored. Idempotent."""
        self._settle(stored=not _is_refusal(error))

    def accept(self) -> None:
        """The channels count from now on, whatever becomes of the frame."""
        self._settle(stored=True)

    def refuse(self) -> None:
        """The frame will not be stored. Idempotent."""
        self._settle(stored=False)

    def _settle(self, *, stored: bool) -> None:
        principal, self._principal = self._principal, None
        if principal is not None:
            principal.settled(self._counted, stored=stored)


def _is_refusal(error: BaseException | None) -> bool:
    """Whether it says that nothing of a frame is stored, nor will be."""
    return isinstance(error, HoldfastError) and not isinstance(error, StoreFailed)


NOTHING = Claim(None, (), ())
"""Of a frame whose channels all count already, or of a principal without a limit."""
