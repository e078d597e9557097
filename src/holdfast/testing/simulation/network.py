"""A network of one server and its clients: connections that are slow, cut, silent, or half there.

    client ── dial ──► Pipe ──► server          each direction: in order, each message after a delay of its own

| trouble | what happens |
|---|---|
| cut | what is on its way is lost; each end learns of it, at its own time |
| silence | nothing arrives any more, in one direction or both, and nobody is told |
| partition | nothing arrives for a while; what was on its way comes afterwards, unless an end gave up |
| a killed process | its connections end in order: what it had sent arrives |
| a machine without power | silence, until the other end gives up |

Connections share nothing, so what was sent on an old one may arrive after what was sent on a new one.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from holdfast.clock import NS_PER_S
from holdfast.testing.simulation.timeline import Process, Timeline

DIAL_TIMEOUT_S = 2.0
PING, PONG = b"ping", b"pong"
"""Control messages, told from others by identity."""

Received = Callable[[bytes], None]
Ended = Callable[["int | None", str], None]


class Call(NamedTuple):
    """An attempt to connect."""

    path: str
    headers: Mapping[str, str]
    opened: Callable[[End, Mapping[str, str]], None]
    """With the client's end and the headers of the answer."""
    failed: Callable[[str], None]


class Host(Protocol):
    """A server that can be dialled."""

    alive: bool

    def accept(self, end: End, path: str, headers: Mapping[str, str]) -> Mapping[str, str] | str:
        """Take a connection: the headers of the answer, or why not."""


class End:
    """One end of a connection, as the process there sees it."""

    def __init__(self, process: Process, network: Network) -> None:
        self.process = process
        self.life = process.life
        self.other: End
        self.open = True
        self.deaf = False
        """Nothing arrives here any more."""
        self.received: Received = lambda _message: None
        self.ended: Ended = lambda _code, _reason: None
        self._network = network
        self._arrive_at_ns = 0
        self._paused = False
        self._inbox: deque[tuple[bytes, int]] = deque()
        self.sent_at = 0
        """What `Network.mark` said when the message was sent that is being received."""
        self.transit: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        """What is on its way here."""

    def send(self, message: bytes) -> None:
        """To the other end, after what was sent before."""
        if self.open:
            self._network.carry(self.other, self.other._arrive, message, self._network.mark())

    def close(self, code: int | None = None, reason: str = "") -> None:
        """End it; the other end learns of it when all before has arrived."""
        if self.open:
            self.open = False
            self._network.carry(self.other, self.other._end, code, reason)

    def cut(self) -> None:
        """The connection is gone, and what is on its way with it."""
        for end in (self, self.other):
            if end.open and not end.deaf:
                end.deaf = True
                delay_s = self._network.chance.random() * 0.05
                end.process.timeline.call_at(
                    end.process.timeline.now_ns + round(delay_s * NS_PER_S), end.process, end._lost
                )

    def _lost(self) -> None:
        self.deaf = False
        self._end(None, "the connection was cut")

    def pause(self) -> None:
        """What arrives waits."""
        self._paused = True

    def resume(self) -> None:
        """Take what waits, and what comes."""
        self._paused = False
        self.process.later(0.0, self._drain)

    def _arrive(self, message: bytes, sent_at: int) -> None:
        if not self.open or self.deaf:
            return
        self._inbox.append((message, sent_at))
        self._drain()

    def _drain(self) -> None:
        while self._inbox and not self._paused and self.open:
            message, self.sent_at = self._inbox.popleft()
            if message is PING:
                self.send(PONG)
            self.received(message)

    def _end(self, code: int | None, reason: str) -> None:
        if self.open and not self.deaf:
            self._paused = False
            self._drain()
            self.open = False
            self.ended(code, reason)


class Network:
    """All connections."""

    def __init__(self, timeline: Timeline, chance: random.Random) -> None:
        self.chance = chance
        self.slow_s = 0.002
        """How long a message takes, about."""
        self.mark: Callable[[], int] = lambda: 0
        """Says when a message is sent, in the scene's own measure."""
        self.ends: list[End] = []
        """The clients' ends of connections that stood once."""
        self._timeline = timeline
        self._closed_until_ns = 0

    @property
    def is_parted(self) -> bool:
        """Whether nothing arrives now."""
        return self._timeline.now_ns < self._closed_until_ns

    def part(self, seconds: float) -> None:
        """Nothing arrives for so long."""
        self._closed_until_ns = self._timeline.now_ns + round(seconds * NS_PER_S)

    def heal(self) -> None:
        """Everything works from now on, as far as connections still stand."""
        self._closed_until_ns = 0
        self.slow_s = 0.001

    def live(self) -> list[End]:
        """The clients' ends of connections that stand."""
        self.ends = [end for end in self.ends if end.open or end.other.open]
        return self.ends

    def carry(self, end: End, action: Callable[..., None], *args: object) -> None:
        """Bring something to an end, in order; if its process is gone then, nobody hears it."""
        delay_ns = round(self.slow_s * self.chance.expovariate(1.0) * NS_PER_S)
        end._arrive_at_ns = max(end._arrive_at_ns + 1, self._timeline.now_ns + delay_ns)
        self._at(end._arrive_at_ns, end, action, *args)

    def _at(self, at_ns: int, end: End, action: Callable[..., None], *args: object) -> None:
        if end.process.life == end.life:
            end.transit.append((action, args))
            self._timeline.call_at(at_ns, end.process, self._bring, end)

    def _bring(self, end: End) -> None:
        """What was sent first comes first, whenever that is."""
        if self.is_parted:
            self._timeline.call_at(self._closed_until_ns, end.process, self._bring, end)
        else:
            action, args = end.transit.popleft()
            action(*args)

    def dial(self, client: Process, host: Host, call: Call) -> None:
        """Connect: `opened` or `failed` is called later."""
        if self.is_parted:
            client.later(DIAL_TIMEOUT_S, call.failed, "no answer")
        else:
            client.later(self.slow_s * self.chance.expovariate(0.5), self._knock, client, host, call)

    def _knock(self, client: Process, host: Host, call: Call) -> None:
        assert isinstance(host, Process)
        if not host.alive:
            call.failed("connection refused")
            return
        mine, theirs = End(client, self), End(host, self)
        mine.other, theirs.other = theirs, mine
        answers: list[Mapping[str, str] | str] = []
        host.act(lambda: answers.append(host.accept(theirs, call.path, call.headers)))
        if not answers or isinstance(answers[0], str):
            call.failed(str(answers[0]) if answers else "the server died")
            return
        self.ends.append(mine)
        mine._arrive_at_ns = self._timeline.now_ns + round(self.slow_s * NS_PER_S)
        self._at(mine._arrive_at_ns, mine, call.opened, mine, answers[0])

    def died(self, process: Process, *, silently: bool) -> None:
        """A process is gone: its connections end, or just fall silent."""
        for client in list(self.ends):
            for end in (client, client.other):
                if end.process is process and end.open:
                    if silently:
                        end.open, end.other.deaf = False, True
                    else:
                        end.close(None, "the process was killed")
