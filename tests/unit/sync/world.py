"""A whole sync service in memory, moved by hand: the real hub, sessions and writer over a log that is a list.

What a server's threads do happens when a test says so, in any order: a commit begins and ends, a read is answered, a
message travels. `kill` loses everything but the log.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.sync.eventlog import New, as_committed
from holdfast.sync.hub import Hub
from holdfast.sync.recent import Recent
from holdfast.sync.validation import AnyEvent, Validator
from holdfast.sync.writer import Writer, Written
from holdfast.wire.sync import Committed, Greeting, Identity, Page, Read, ReadKind, Session, Submit, Terms

NOW_MS = 1_700_000_000_000


class MemoryLog:
    """Keeps events in a list; other channels take some numbers in between."""

    def __init__(self, *, step: int = 1) -> None:
        self.events: list[Committed] = []
        self.step = step
        self.floor = 0
        self.refuses: Exception | None = None

    @property
    def last_committed_id(self) -> int:
        return self.events[-1].committed_id if self.events else 0

    def append(self, new: Sequence[New], now_ms: int) -> list[Committed]:
        if self.refuses is not None:
            raise self.refuses
        made = []
        for item, submit in new:
            event = as_committed(item, submit, self.last_committed_id + self.step, now_ms)
            self.events.append(event)
            made.append(event)
        return made

    def find(self, ids: Sequence[str]) -> dict[str, Committed]:
        return {event.id: event for event in self.events if event.id in set(ids)}

    def read(self, read: Read) -> Page:
        mine = [event for event in self.events if not read.scopes.isdisjoint(event.scopes)]
        if read.kind is ReadKind.LAST:
            return Page(last_committed_id=mine[-1].committed_id if mine else 0)
        found = [event for event in mine if read.since < event.committed_id <= read.upto]
        pruned_to = self.floor if read.kind is ReadKind.PAGE and read.since < self.floor else 0
        return Page(found[: read.limit], has_more=len(found) > read.limit, pruned_to=pruned_to)


class OpenAccess:
    """Lets everybody in, unless told otherwise."""

    def __init__(self) -> None:
        self.allowed: Callable[[str, str, Sequence[str]], bool] = lambda _client, _verb, _scopes: True
        self.identity: dict[str, Any] = {}

    def authenticate(self, greeting: Greeting, *, now_ms: int) -> Identity:
        return Identity(greeting.client_id, **self.identity)

    def may(self, identity: Identity, verb: str, scopes: Sequence[str]) -> bool:
        return self.allowed(identity.client_id, verb, scopes)


class Wire:
    """The sink of a session: what it was sent, and what it waits for."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sent: deque[dict[str, Any]] = deque()
        self.texts: list[bytes] = []
        self.closed = ""
        self.session: Session

    def send(self, text: bytes) -> None:
        self.texts.append(text)
        self.sent.append(json.loads(text))

    def close(self, reason: str) -> None:
        self.closed = reason or "closed"

    def read(self, read: Read) -> None:
        self._world.reads.append((self.session, read))

    def take(self) -> list[dict[str, Any]]:
        """What was sent since the last look."""
        found = list(self.sent)
        self.sent.clear()
        return found


class World:
    """One server over a log that survives it."""

    def __init__(
        self,
        *,
        validator: Validator | None = None,
        terms: Terms | None = None,
        recent_bytes: int = 1 << 20,
        step: int = 1,
    ) -> None:
        self.log = MemoryLog(step=step)
        self.now_ms = NOW_MS
        self.access = OpenAccess()
        self._validator = validator or AnyEvent()
        self._terms = terms or Terms(log_epoch="epoch-1")
        self._recent_bytes = recent_bytes
        self._next_number = 1
        self.start()

    def start(self) -> None:
        """A process begins."""
        self.hub = Hub(Recent(self.log.last_committed_id, bytes_max=self._recent_bytes))
        self.writer = Writer(self.log, self._validator, recent=self.hub.recent.find)
        self.reads: deque[tuple[Session, Read]] = deque()
        self.taken: list[Submit] | None = None
        self.wires: list[Wire] = []

    def kill(self, *, commits: bool) -> None:
        """A process ends; what it was committing is in the log, or not."""
        if self.taken is not None and commits:
            self.writer.write(self.taken, self.now_ms)
        for wire in self.wires:
            wire.closed = "killed"
        self.start()

    def connect(self) -> Wire:
        """A new connection."""
        wire = Wire(self)
        wire.session = Session(
            self._next_number, view=self.hub, access=self.access, terms=self._terms, now_ms=self.now_ms
        )
        self._next_number += 1
        self.hub.open(wire.session, wire)
        self.wires.append(wire)
        return wire

    def say(self, wire: Wire, message: dict[str, Any] | bytes) -> None:
        """A message of a client arrives."""
        data = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.hub.message(wire.session, data, self.now_ms)

    def hang_up(self, wire: Wire) -> None:
        """A connection breaks."""
        wire.closed = wire.closed or "gone"
        self.hub.closed(wire.session)

    def begin_commit(self) -> bool:
        """A thread takes what waits."""
        if self.taken is not None or not self.hub.has_work:
            return False
        self.taken = self.hub.take()
        return True

    def end_commit(self) -> Written:
        """It is durable, and told."""
        assert self.taken is not None
        written = self.writer.write(self.taken, self.now_ms)
        self.taken = None
        self.hub.settled(written.results, written.fresh, self.now_ms)
        return written

    def answer_read(self) -> bool:
        """The oldest read is done."""
        if not self.reads:
            return False
        session, read = self.reads.popleft()
        self.hub.page(session, read, self.log.read(read), self.now_ms)
        return True

    def settle(self) -> None:
        """Everything that waits happens."""
        while True:
            if self.taken is None:
                self.begin_commit()
            if self.taken is not None:
                self.end_commit()
            elif not self.answer_read():
                return

    def ask(self, wire: Wire, message: dict[str, Any] | bytes) -> list[dict[str, Any]]:
        """Say something, let it happen, and look at what came back."""
        wire.take()
        self.say(wire, message)
        self.settle()
        return wire.take()


def seed(kind: str, **payload: Any) -> dict[str, Any]:
    """A message as the protocol is written down."""
    return {"type": kind, "msg_id": f"m-{kind}", "timestamp": 1, "protocol_version": "1.0", "payload": payload}


def camel(kind: str, **payload: Any) -> dict[str, Any]:
    """A message with camelCase names."""
    return {"type": kind, "msgId": f"m-{kind}", "timestamp": 1, "protocolVersion": "1.0", "payload": payload}


def seed_event(event_id: str, *partitions: str, kind: str = "note", **payload: Any) -> dict[str, Any]:
    """An item as the protocol is written down."""
    return {"id": event_id, "partitions": list(partitions or ("P1",)), "event": {"type": kind, "payload": payload}}


def project_event(event_id: str, *, client: str = "A", project: str = "p", **changes: Any) -> dict[str, Any]:
    """An item of a project."""
    return {
        "id": event_id,
        "partition": "P1",
        "projectId": project,
        "type": "note",
        "schemaVersion": 1,
        "payload": {"n": event_id},
        "meta": {"clientId": client, "clientTs": 1.5},
        **changes,
    }


def seed_client(world: World, client_id: str = "A", **more: Any) -> Wire:
    """A connection of the dialect that is written down, past its handshake."""
    wire = world.connect()
    world.say(wire, seed("connect", token="t", client_id=client_id, last_committed_id=0, **more))
    assert wire.take()[0]["type"] == "connected"
    return wire


def project_client(world: World, client_id: str = "A", project: str = "p") -> Wire:
    """A connection of a project, past its handshake."""
    wire = world.connect()
    world.say(wire, camel("connect", token="t", clientId=client_id, projectId=project))
    world.settle()
    assert wire.take()[0]["type"] == "connected"
    return wire


def sync(partitions: list[str], since: int = 0, **more: Any) -> dict[str, Any]:
    return seed("sync", partitions=partitions, since_committed_id=since, limit=50, **more)


def fill(world: World, count: int, *partitions: str, start: int = 0) -> None:
    """Commit events by a client of their own."""
    wire = seed_client(world, "filler")
    for at in range(start, start + count, 100):
        events = [seed_event(f"e{number}", *partitions) for number in range(at, min(at + 100, start + count))]
        (result,) = world.ask(wire, seed("submit_events", events=events))
        assert {one["status"] for one in result["payload"]["results"]} == {"committed"}
    world.hang_up(wire)
