"""Where sessions meet: submissions queue up for one commit, what was committed is answered and told to others. Pure.

    message ─► Session ─► Submit ─► queue ─► take ─► (a thread: validate, assign, commit) ─► settled
                  │                                                                           │ 1. answer the origin
                  └─► Read ─► (a thread) ─► page                                              │ 2. tell the others
                                                                                              ▼
                                                                                            sinks

Promises:

- Nothing is sent of an event before `settled` says that it is durable. Its origin is answered first, then others are
  told, in the order of committed_ids. Nobody is told of what was refused, or of a repeat.
- An event goes to each live session that follows one of its scopes, once, and not to the session it came from.
- What waits for a commit is bounded: `is_full` says when to stop reading from everybody.
- Of clients whose dialect says so there is one live connection; the older one ends.

Everything happens on one thread. I/O is in the sinks and in whoever takes submissions and reads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from holdfast.sync.recent import Recent
from holdfast.wire.sync import Close, Committed, Effect, Outcome, Page, Phase, Read, Send, Session, Submit

BATCH_ITEMS_MAX = 1000
"""Items of one commit; a store's frame has at most 1024 parts."""
BATCH_BYTES_MAX = 8 << 20
QUEUE_BYTES_MAX = 64 << 20
"""What may wait for a commit, of all sessions."""


class Sink(Protocol):
    """The connection of a session."""

    def send(self, text: bytes) -> None:
        """Queue a message for the peer."""

    def close(self, reason: str) -> None:
        """End the connection after what was sent."""

    def read(self, read: Read) -> None:
        """Look into the log; the answer comes back by `Hub.page`."""


class Overloaded(msgspec.Struct, frozen=True):
    """Why nothing of a submission was taken, although nothing is wrong with it."""

    reason: str


class Failed(msgspec.Struct, frozen=True):
    """Something of ours went wrong with a submission."""

    reason: str


Settled = tuple[Submit, Sequence[Outcome] | Overloaded | Failed]


class HubStatistics(msgspec.Struct, frozen=True):
    """A picture for people, metrics and tests."""

    sessions: int
    live: int
    queued: int
    queued_bytes: int
    committed: int
    repeats: int
    refused: int
    broadcasts: int
    recent_events: int
    recent_bytes: int
    last_committed_id: int


class Hub:
    """All sessions of a server."""

    def __init__(self, recent: Recent) -> None:
        self.recent = recent
        self._sessions: dict[int, tuple[Session, Sink]] = {}
        self._followers: dict[str, dict[int, Session]] = {}
        self._indexed: dict[int, frozenset[str]] = {}
        self._clients: dict[str, int] = {}
        self._queue: deque[Submit] = deque()
        self._queue_bytes = 0
        self._committed = self._repeats = self._refused = self._broadcasts = 0

    # -- what sessions look at --------------------------------------------------------------------------------------

    @property
    def last_committed_id(self) -> int:
        """Everything up to here is durable and announced."""
        return self.recent.last_committed_id

    def recent_since(self, committed_id: int) -> Sequence[Committed] | None:
        """What was announced after a position, if it is in memory."""
        return self.recent.since(committed_id)

    # -- connections ------------------------------------------------------------------------------------------------

    def open(self, session: Session, sink: Sink) -> None:
        """A connection was made."""
        self._sessions[session.number] = (session, sink)

    def closed(self, session: Session) -> None:
        """It is gone. What it handed in goes on."""
        session.closed()
        self._sessions.pop(session.number, None)
        self._index(session, frozenset())
        if self._clients.get(session.identity.client_id) == session.number:
            del self._clients[session.identity.client_id]

    def message(self, session: Session, data: bytes, now_ms: int) -> None:
        """A message came."""
        was = session.phase
        self._perform(session, session.receive(data, now_ms))
        if was is Phase.NEW and session.phase is Phase.ACTIVE and session.dialect.takes_seed_messages:
            self._replace_older(session, now_ms)

    def page(self, session: Session, read: Read, page: Page, now_ms: int) -> None:
        """A read is done."""
        self._perform(session, session.page(read, page, now_ms))

    def blocked(self, session: Session) -> None:
        """The peer does not take what is sent."""
        session.blocked()

    def unblocked(self, session: Session) -> None:
        """It does again."""
        self._perform(session, session.unblocked())

    def tick(self, now_ms: int) -> None:
        """Some time has passed."""
        for session, _ in list(self._sessions.values()):
            self._perform(session, session.tick(now_ms))

    def tell_version(self, old: int, new: int, now_ms: int) -> None:
        """The model changed."""
        for session, _ in list(self._sessions.values()):
            self._perform(session, session.tell_version(old, new, now_ms))

    def check_access(self, now_ms: int) -> None:
        """The rules changed."""
        for session, _ in list(self._sessions.values()):
            self._perform(session, session.check_access(now_ms))

    def fail(self, session: Session, reason: str, now_ms: int) -> None:
        """End one connection; its client comes back."""
        self._perform(session, session.fail(reason, now_ms))

    def _replace_older(self, session: Session, now_ms: int) -> None:
        older = self._sessions.get(self._clients.get(session.identity.client_id, 0))
        self._clients[session.identity.client_id] = session.number
        if older is not None:
            self._perform(older[0], older[0].replaced(now_ms))

    # -- effects ----------------------------------------------------------------------------------------------------

    def _perform(self, session: Session, effects: Iterable[Effect]) -> None:
        if self._indexed.get(session.number, frozenset()) != session.subscription and session.phase is Phase.ACTIVE:
            self._index(session, session.subscription)
        entry = self._sessions.get(session.number)
        if entry is None:
            return
        sink = entry[1]
        for effect in effects:
            if isinstance(effect, Send):
                sink.send(effect.text)
            elif isinstance(effect, Submit):
                self._queue.append(effect)
                self._queue_bytes += effect.size_bytes
            elif isinstance(effect, Read):
                sink.read(effect)
            elif isinstance(effect, Close):
                self._index(session, frozenset())
                sink.close(effect.reason)

    def _index(self, session: Session, scopes: frozenset[str]) -> None:
        before = self._indexed.pop(session.number, frozenset())
        for scope in before - scopes:
            followers = self._followers[scope]
            del followers[session.number]
            if not followers:
                del self._followers[scope]
        for scope in scopes - before:
            self._followers.setdefault(scope, {})[session.number] = session
        if scopes:
            self._indexed[session.number] = scopes

    # -- commits ----------------------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether so much waits that nothing more should be read from anybody."""
        return self._queue_bytes >= QUEUE_BYTES_MAX

    @property
    def has_work(self) -> bool:
        """Whether submissions wait."""
        return bool(self._queue)

    def take(self) -> list[Submit]:
        """What is to be committed next, in order of arrival; whole submissions, at least one."""
        batch: list[Submit] = []
        items = size_bytes = 0
        while self._queue:
            submit = self._queue[0]
            items += len(submit.items)
            size_bytes += submit.size_bytes
            if batch and (items > BATCH_ITEMS_MAX or size_bytes > BATCH_BYTES_MAX):
                break
            batch.append(self._queue.popleft())
            self._queue_bytes -= submit.size_bytes
        return batch

    def settled(self, results: Sequence[Settled], fresh: Sequence[Committed], now_ms: int) -> None:
        """What became of submissions; `fresh` are the events that are new, in order, and durable."""
        for submit, outcomes in results:
            self._answer(submit, outcomes, now_ms)
        for event in fresh:
            self.recent.add(event)
            self._tell(event)
        self._committed += len(fresh)

    def _answer(self, submit: Submit, outcomes: Sequence[Outcome] | Overloaded | Failed, now_ms: int) -> None:
        entry = self._sessions.get(submit.session)
        if entry is None:
            return
        session = entry[0]
        if isinstance(outcomes, Overloaded):
            self._perform(session, session.overloaded(submit, outcomes.reason, now_ms))
        elif isinstance(outcomes, Failed):
            session.drafts -= len(submit.items)
            self._perform(session, session.fail(outcomes.reason, now_ms, msg_id=submit.msg_id))
        else:
            self._refused += sum(not isinstance(outcome, Committed) for outcome in outcomes)
            self._perform(session, session.submitted(submit, outcomes, now_ms))

    def _tell(self, event: Committed) -> None:
        texts: dict[str, bytes] = {}
        for session in self._followers_of(event):
            if not session.wants(event):
                continue
            family = session.dialect.family
            text = texts.get(family)
            if text is None:
                text = texts[family] = session.dialect.broadcast(event)
            self._broadcasts += 1
            self._sessions[session.number][1].send(text)

    def _followers_of(self, event: Committed) -> list[Session]:
        if len(event.scopes) == 1:
            return list(self._followers.get(event.scopes[0], {}).values())
        found: dict[int, Session] = {}
        for scope in event.scopes:
            found.update(self._followers.get(scope, {}))
        return [found[number] for number in sorted(found)]

    def note_repeats(self, count: int) -> None:
        """Items that were committed before."""
        self._repeats += count

    def statistics(self) -> HubStatistics:
        """A picture."""
        return HubStatistics(
            sessions=len(self._sessions),
            live=len(self._indexed),
            queued=len(self._queue),
            queued_bytes=self._queue_bytes,
            committed=self._committed,
            repeats=self._repeats,
            refused=self._refused,
            broadcasts=self._broadcasts,
            recent_events=len(self.recent),
            recent_bytes=self.recent.size_bytes,
            last_committed_id=self.last_committed_id,
        )
