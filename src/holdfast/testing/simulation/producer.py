"""A producer: a real slot and ring on its own disk, the real connection loop, and a shell without threads.

    work ──► ring.append (and sync) ──► cursor ──► the network ──► answers ──► LinkCore ──► acknowledge, reject, trim

What is real: `Slot`, `Ring`, `Cursor`, `LinkCore`, the codec. What is not: `Sender` (batching, threads) and `Link`
(asyncio, sockets), for which this shell stands.

The history gets what a program outside could see: what was handed over, what the slot promised, which frames the server
said it has, and what it said of the object store.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from holdfast.clock import NS_PER_S
from holdfast.errors import Category, Closed, HoldfastError, RetryLater, SlotFailed
from holdfast.model.frame import Entry
from holdfast.sender.core import (
    Acknowledge,
    CoreOptions,
    Dial,
    DialFailure,
    Effect,
    Halt,
    Hangup,
    LinkCore,
    Opening,
    Outcome,
    Pause,
    Reject,
)
from holdfast.sender.cursor import Cursor
from holdfast.sender.encoding import ArrowEncoder
from holdfast.sender.policies import Policy
from holdfast.sender.ring import Ring
from holdfast.sender.slot import Slot
from holdfast.sender.substrate import RingOptions
from holdfast.server.ingest import PATHS
from holdfast.testing.history import Accepted, Durable, Kept, Refused, Sent
from holdfast.testing.simulation.network import PING, Call, End, Host
from holdfast.testing.simulation.scene import Client, Scene
from holdfast.wire import replies

SLOT = Path("/sf/app")
IDS_PER_PRODUCER = 1_000_000


class Habits(NamedTuple):
    """What a producer does."""

    number: int
    channels: tuple[str, ...]
    durability: str = "memory"
    durable_acks: bool = False
    frames: int = 30
    pause_s: float = 0.2
    spoils: float = 0.0
    """How many of its frames no server takes."""


class Producer(Client):
    """One slot."""

    def __init__(self, scene: Scene, server: Host, habits: Habits) -> None:
        super().__init__(f"producer-{habits.number}", scene)
        self.habits = habits
        self.handed_over = 0
        self.frames: dict[int, dict[str, tuple[int, ...]]] = {}
        """FSN to its events."""
        self._server = server
        self._next_id = habits.number * IDS_PER_PRODUCER + 1
        self._pending: dict[int, dict[str, tuple[int, ...]]] = {}
        self.ring: Ring | None = None
        self.core: LinkCore
        self._cursor: Cursor | None = None
        self._sent: list[int] = []
        self._accepted = -1
        self._known: set[str] = set()
        """Channels that have events, so that their type is known."""

    @property
    def is_done(self) -> bool:
        """Whether everything was handed over and the server has it."""
        ring = self.ring
        return self.handed_over >= self.habits.frames and ring is not None and ring.acked_fsn >= ring.published_fsn

    # --- life ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        habits = self.habits
        try:
            if not self.disk.exists(SLOT.parent):
                self.disk.makedir(SLOT.parent)
                self.disk.sync_dir(Path("/"))
            slot = Slot.open(
                SLOT,
                filesystem=self.disk,
                clock=self.scene.clock,
                durable=habits.durability != "memory",
                new_id=self.chance.randbytes,
            )
            options = RingOptions(4096, 64 << 10, append_deadline_ms=0, durability=habits.durability)
            self.ring = Ring(slot, options, clock=self.scene.clock, threaded=False)
        except (SlotFailed, RetryLater, OSError) as error:
            self._exit(str(error))
            return
        self._encoder = ArrowEncoder(self.ring.slot_id)
        self.core = LinkCore(
            CoreOptions(("server",), initial_backoff_ms=50, max_backoff_ms=1000),
            lambda category: Policy.DROP if category is Category.SCHEMA_MISMATCH else Policy.RETRY,
            clock=self.scene.clock,
            chance=self.chance,
            sent_before=self.ring.published_fsn,
        )
        self.frames = {
            fsn: events for fsn, events in self._pending.items() if self.ring.acked_fsn < fsn <= self.ring.published_fsn
        }
        self.started()
        self.later(0.0, self._step)
        self.later(self.chance.random() * habits.pause_s, self._work)

    def forget(self) -> None:
        super().forget()
        self.ring, self._cursor, self._sent = None, None, []
        self._accepted = -1

    def _exit(self, reason: str) -> None:
        """As a program does whose sender has failed: end, and be started again."""
        self.scene.note(self.name, f"exits: {reason}")
        self.kill()

    # --- handing over ----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        ring, habits = self.ring, self.habits
        assert ring is not None
        if not self._maintain(ring) or self.handed_over >= habits.frames:
            return
        events = self._events()
        spoilt = self._known.issuperset(events) and self.chance.random() < habits.spoils
        fsn = ring.published_fsn + 1
        self.handed_over += 1
        self._pending[fsn] = events
        frame = f"{self.name} {self._next_id}"
        for channel, ids in events.items():
            self.scene.happened(self.name, Sent(self.name, channel, ids, frame))
        try:
            parts = self._encoder.encode([Entry(channel, _batch(ids, spoilt)) for channel, ids in events.items()])
            assert ring.append(parts, self._encoder.stamp) == fsn
            self.frames[fsn] = events
            if habits.durability == "flush":
                ring.sync(fsn)
        except SlotFailed as error:
            self._exit(str(error))
            return
        except RetryLater as error:  # full: the program drops its data, and says so
            self.scene.note(self.name, f"could not hand over: {error}")
        else:
            self.scene.happened(self.name, Kept(_ids(events)))
        self._pump()
        self.later(habits.pause_s * self.chance.expovariate(1.0), self._work)

    def _maintain(self, ring: Ring) -> bool:
        """What a thread of the ring does; False if the slot has failed."""
        try:
            while ring.step():
                pass
        except SlotFailed as error:
            self._exit(str(error))
        return self.ring is ring

    def _events(self) -> dict[str, tuple[int, ...]]:
        events = {}
        names = self.habits.channels
        for channel in self.chance.sample(names, self.chance.randint(1, min(2, len(names)))):
            rows = self.chance.choice((1, 1, 2, 5))
            events[channel] = tuple(range(self._next_id, self._next_id + rows))
            self._next_id += rows
        return events

    # --- the connection --------------------------------------------------------------------------------------------

    def _step(self) -> None:
        step = self.core.next_step()
        if isinstance(step, Pause):
            self.later((step.until_ns - self.timeline.now_ns) / NS_PER_S, self._step)
        elif isinstance(step, Dial):
            headers = {"X-QWP-Request-Durable-Ack": "true"} if self.habits.durable_acks else {}
            self.scene.network.dial(self, self._server, Call(PATHS[0], headers, self._opened, self._failed))

    def _failed(self, reason: str) -> None:
        self._apply(self.core.dial_failed(0, DialFailure(Outcome.UNREACHABLE, reason)))
        self.later(0.0, self._step)

    def _opened(self, end: End, headers: Mapping[str, str]) -> None:
        ring = self.ring
        assert ring is not None
        self.hold(end)
        durable = headers.get("X-QWP-Durable-Ack") == "enabled"
        self._cursor = ring.cursor(ring.acked_fsn + 1)
        self._sent, self._accepted = [], ring.acked_fsn
        self.scene.note(self.name, f"connected at {ring.acked_fsn + 1} of {ring.published_fsn}")
        self._apply(self.core.opened(0, Opening(ring.acked_fsn, ring.published_fsn, durable=durable)))
        self._pump()
        if durable:
            self.later(0.1, self._keepalive, end)

    def _keepalive(self, end: End) -> None:
        if end is self.end:
            due_ns = self.core.keepalive_at_ns
            if due_ns is not None and self.timeline.now_ns >= due_ns:
                end.send(PING)
                self.core.spoke()
            self.later(0.1, self._keepalive, end)

    def _pump(self) -> None:
        """Send some, and look again soon if there is more."""
        cursor, end = self._cursor, self.end
        if cursor is None or end is None:
            return
        for _ in range(self.chance.randint(1, 4)):
            frame = cursor.next() if self.core.may_send(cursor.fsn) else None
            if frame is None:
                return
            end.send(bytes(frame.payload))
            self.core.sent(frame.fsn)
            self._sent.append(frame.fsn)
        self.later(0.001, self._pump_again, end)

    def _pump_again(self, end: End) -> None:
        if end is self.end:
            self._pump()

    def lost(self, code: int | None, reason: str) -> None:
        self._let_go()
        self._apply(self.core.closed(code, reason))
        self.later(0.0, self._step)

    def _let_go(self) -> None:
        if self._cursor is not None:
            self._cursor.close()
            self._cursor = None

    # --- answers ---------------------------------------------------------------------------------------------------

    def received(self, message: bytes) -> None:
        reply = replies.decode(message)
        if isinstance(reply, replies.Ok):
            self._note_accepted(self._sent[min(reply.wire_seq, len(self._sent) - 1)], dict(reply.channels))
        elif isinstance(reply, replies.DurableAck):
            self.scene.happened(self.name, *(Durable(*mark) for mark in sorted(reply.channels)))
        else:
            self.scene.note(self.name, f"refused: {reply.category.name} {reply.wire_seq} {reply.message}")
        self._apply(self.core.received(message))

    def _note_accepted(self, fsn: int, marks: dict[str, int]) -> None:
        """Every frame up to `fsn` is accepted; `marks` say where the last event of each channel is."""
        last: dict[str, int] = {}
        for number in range(self._accepted + 1, fsn + 1):
            for channel, ids in self.frames[number].items():
                self.scene.happened(self.name, Accepted(channel, ids, sent_at=self.said_at))
                last[channel] = ids[-1]
                self._known.add(channel)
        self._accepted = max(self._accepted, fsn)
        for channel, seq in sorted(marks.items()):
            if channel in last and seq:
                self.scene.happened(self.name, Accepted(channel, (last[channel],), seq, sent_at=self.said_at))

    def _apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            try:
                self._do(effect)
            except Closed:
                raise
            except HoldfastError as error:
                self._exit(str(error))
                return
            if self.ring is None:
                return

    def _do(self, effect: Effect) -> None:
        ring = self.ring
        assert ring is not None
        if isinstance(effect, Acknowledge):
            self.scene.note(self.name, f"acknowledged {effect.fsn}")
            ring.acknowledge(effect.fsn)
        elif isinstance(effect, Reject):
            first, last = effect.rejection.first_fsn, effect.rejection.last_fsn
            for fsn in range(first, last + 1):
                self.scene.happened(self.name, Refused(_ids(self.frames[fsn])))
            ring.reject(effect.rejection)
        elif isinstance(effect, Halt):
            self._exit(f"halted: {effect.error}")
        elif isinstance(effect, Hangup):
            self.hang_up(effect.reason)


def _ids(events: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(one for ids in events.values() for one in ids)


def _batch(ids: tuple[int, ...], spoilt: bool) -> pa.RecordBatch:
    """Events whose other column follows from the id; a spoilt one has a type that no channel takes."""
    numbers = pa.array([[one] for one in ids]) if spoilt else pa.array(ids, pa.int64())
    return pa.record_batch({"n": numbers, "text": pa.array([f"event {one}" for one in ids])})
