"""A `LinkCore` in virtual time, and servers it can talk to without a network."""

from __future__ import annotations

import random
from collections.abc import Callable

from holdfast.errors import Category
from holdfast.sender import policies
from holdfast.sender.core import (
    Acknowledge,
    CoreOptions,
    Dial,
    Effect,
    Halt,
    Hangup,
    LinkCore,
    Opening,
    Pause,
    Reject,
)
from holdfast.sender.happenings import ConnectionEvent, EventKind, SenderError
from holdfast.sender.policies import Policy
from holdfast.testing import ManualClock
from holdfast.wire import replies

NS = 1_000_000_000


def make_core(
    *, hosts: int = 1, policy_of: Callable[[Category], Policy] | None = None, clock: ManualClock, **options: object
) -> LinkCore:
    """A core over so many hosts, `h0`, `h1`, …"""
    named = CoreOptions(addresses=tuple(f"h{n}" for n in range(hosts)))._replace(**options)  # type: ignore[arg-type]
    return LinkCore(
        named, policy_of or policies.DEFAULTS.__getitem__, clock=clock, chance=random.Random(1), sent_before=-1
    )


def online(core: LinkCore, *, acked: int = -1, published: int = 100, durable: bool = False) -> list[Effect]:
    """Dial and open."""
    step = core.next_step()
    assert isinstance(step, Dial)
    return core.opened(step.host, Opening(acked, published, durable=durable))


def send(core: LinkCore, first: int, last: int) -> None:
    for fsn in range(first, last + 1):
        assert core.may_send(fsn)
        core.sent(fsn)


def ok(wire_seq: int, **marks: int) -> bytes:
    return replies.encode_ok(wire_seq, list(marks.items()))


def refuse(wire_seq: int, category: Category = Category.SCHEMA_MISMATCH, text: str = "no") -> bytes:
    return replies.encode_refusal(category, wire_seq, text)


def acked(effects: list[Effect]) -> list[int]:
    return [effect.fsn for effect in effects if isinstance(effect, Acknowledge)]


def kinds(effects: list[Effect]) -> list[EventKind]:
    return [effect.kind for effect in effects if isinstance(effect, ConnectionEvent)]


def errors(effects: list[Effect]) -> list[SenderError]:
    return [effect for effect in effects if isinstance(effect, SenderError)]


def halts(effects: list[Effect]) -> list[Halt]:
    return [effect for effect in effects if isinstance(effect, Halt)]


def rejects(effects: list[Effect]) -> list[Reject]:
    return [effect for effect in effects if isinstance(effect, Reject)]


def hangups(effects: list[Effect]) -> list[Hangup]:
    return [effect for effect in effects if isinstance(effect, Hangup)]


def pause_s(core: LinkCore, clock: ManualClock) -> float:
    """How long the core wants to wait now."""
    step = core.next_step()
    if not isinstance(step, Pause):
        return 0.0
    return (step.until_ns - clock.monotonic_ns()) / NS


def wait(core: LinkCore, clock: ManualClock) -> float:
    """Let that time pass."""
    seconds = pause_s(core, clock)
    clock.advance(seconds)
    return seconds
