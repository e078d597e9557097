"""The connection loop against servers that misbehave, in virtual time, from one seed: nothing is lost or reordered.

The model holds what a server may rely on and what a producer may: a ring of numbers, servers that keep frames by
number, and every way a connection can go wrong. After the trouble the servers become good, and everything must arrive.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import Category
from holdfast.sender.core import (
    Acknowledge,
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
from holdfast.sender.policies import Policy
from holdfast.testing import ManualClock
from holdfast.wire import replies
from tests.unit.sender.cores import NS, make_core

BAD_FRAMES = (7, 8, 30)
"""Frames that every server refuses, always."""


@dataclass
class Server:
    """Keeps frames in the order they first came; answers as the wire demands, unless it is in a mood."""

    kept: list[int] = field(default_factory=list)
    refused: set[int] = field(default_factory=set)


@dataclass
class World:
    """One sender, its ring, and the servers."""

    chance: random.Random
    trouble: bool = True
    durable: bool = False
    hosts: int = 2
    clock: ManualClock = field(default_factory=ManualClock)
    store: Server = field(default_factory=Server)  # shared: the hosts are one cluster
    published: int = -1
    acked: int = -1
    rejected: list[int] = field(default_factory=list)
    safe: int = -1
    """The servers said that their object store has everything up to this frame."""
    dials: int = 0
    halted: bool = False

    def __post_init__(self) -> None:
        self.core: LinkCore = make_core(hosts=self.hosts, clock=self.clock, policy_of=self._policy)
        self.hung_up = False

    def _policy(self, category: Category) -> Policy:
        return {Category.SCHEMA_MISMATCH: Policy.DROP, Category.NOT_WRITABLE: Policy.RETRY_OTHER}.get(
            category, Policy.RETRY
        )

    def apply(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Acknowledge):
                assert self.acked < effect.fsn <= self.sent, "acknowledged what was not sent, or moved back"
                known = set(self.store.kept) | set(self.rejected)
                missing = [fsn for fsn in range(effect.fsn + 1) if fsn not in known]
                assert not missing, f"acknowledged {effect.fsn}, but the servers never took {missing}"
                assert not self.durable or effect.fsn <= max(self.safe, *self.rejected, -1), "not safe yet"
                self.acked = effect.fsn
            elif isinstance(effect, Reject):
                assert effect.rejection.first_fsn == effect.rejection.last_fsn == self.acked + 1
                assert effect.rejection.last_fsn in self.store.refused
                self.acked = effect.rejection.last_fsn
                self.rejected.append(self.acked)
            elif isinstance(effect, Hangup):
                self.hung_up = True
            elif isinstance(effect, Halt):
                self.halted = True

    def run_step(self) -> None:
        """Pause, fail to connect, or live through one connection."""
        step = self.core.next_step()
        if isinstance(step, Pause):
            self.clock.advance(max(0, step.until_ns - self.clock.monotonic_ns()) / NS)
            return
        assert isinstance(step, Dial)
        self.dials += 1
        if self.trouble and self.chance.random() < 0.3:
            outcome = self.chance.choice([Outcome.UNREACHABLE, Outcome.ROLE, Outcome.ROLE_SOON])
            self.apply(self.core.dial_failed(step.host, DialFailure(outcome, "no")))
            return
        self.sent = self.acked
        self.apply(self.core.opened(step.host, Opening(self.acked, self.published, durable=self.durable)))
        self._live()

    def _live(self) -> None:
        self.hung_up = False
        at_zero, answered, dead = self.acked + 1, self.acked, False
        for _ in range(self.chance.randrange(1, 12) if self.trouble else 1000):
            for _ in range(self.chance.randrange(4)):
                if self.core.may_send(self.sent + 1) and self.sent < self.published:
                    self.sent += 1
                    self.core.sent(self.sent)
                    dead = self._take(self.sent, at_zero, dead)
            if not dead and self.chance.random() < 0.6:
                answered = self._answer(answered, at_zero)
            if self.hung_up or self.halted or self.acked == self.published:
                break
            self.clock.advance(self.chance.choice([0, 0.001, 0.05]))
        if self.trouble and self.chance.random() < 0.2:
            self.apply(self.core.received(self.chance.randbytes(self.chance.randrange(12))))
        self.apply(self.core.closed(self.chance.choice([None, 1000, 1001, 1011]) if self.trouble else None, "end"))

    def _take(self, fsn: int, at_zero: int, dead: bool) -> bool:
        """A frame arrives; True when the server refuses it, and consumes all that follows."""
        if dead:
            return True
        if self.trouble and self.chance.random() < 0.05:
            category = self.chance.choice([Category.WRITE_ERROR, Category.NOT_WRITABLE])
            self._answer_up_to(fsn - 1, at_zero)
            self.apply(self.core.received(replies.encode_refusal(category, fsn - at_zero, "later")))
            return True
        if fsn in BAD_FRAMES:
            self.store.refused.add(fsn)
            if not self.trouble or self.chance.random() < 0.8:  # a server that forgets what it owes
                self._answer_up_to(fsn - 1, at_zero)
            self.apply(self.core.received(replies.encode_refusal(Category.SCHEMA_MISMATCH, fsn - at_zero, "never")))
            return True
        if fsn not in self.store.kept:
            self.store.kept.append(fsn)
        return False

    def _answer(self, answered: int, at_zero: int) -> int:
        up_to = self.chance.randint(answered, self.sent) if self.trouble else self.sent
        self._answer_up_to(up_to, at_zero)
        return up_to

    def _answer_up_to(self, fsn: int, at_zero: int) -> None:
        if fsn < at_zero:
            return
        beyond = 100 if self.trouble and fsn == self.sent and self.chance.random() < 0.1 else 0
        self.apply(self.core.received(replies.encode_ok(fsn - at_zero + beyond, [("c", fsn + 1)])))
        if self.durable and (not self.trouble or self.chance.random() < 0.7):
            self.safe = max(self.safe, fsn)
            self.apply(self.core.received(replies.encode_durable_ack([("c", fsn + 1)])))


@pytest.mark.guarantee("G4")
@given(seed=st.integers(0, 2**32), durable=st.booleans(), hosts=st.integers(1, 4))
def test_every_frame_arrives_once_and_in_order_after_any_trouble(seed: int, durable: bool, hosts: int) -> None:
    world = World(random.Random(seed), durable=durable, hosts=hosts)
    for _ in range(80):
        world.published += world.chance.randrange(3)
        world.run_step()
        if world.halted:
            break
    if world.halted:  # by too many strikes of one frame: then everything is still there
        assert world.acked <= world.published
        return
    world.trouble = False
    for _ in range(200):
        if world.acked == world.published:
            break
        world.run_step()
    assert world.acked == world.published
    everything = sorted(world.store.kept + world.rejected)
    assert everything == list(range(world.published + 1))
    assert world.store.kept == sorted(world.store.kept)
    assert set(world.rejected) <= set(BAD_FRAMES)


@given(seed=st.integers(0, 2**32))
def test_connections_per_second_are_bounded_whatever_servers_do(seed: int) -> None:
    world = World(random.Random(seed), hosts=1)
    world.published = 3
    started_ns = world.clock.monotonic_ns()
    while world.dials < 60 and not world.halted and world.acked < world.published:
        world.run_step()
    seconds = (world.clock.monotonic_ns() - started_ns) / NS
    deliberate = len(world.rejected)
    assert world.dials - deliberate <= 12 + 10 * seconds
