"""The server is killed with SIGKILL while a durable group consumes, and consumers die too, again and again.

Process death on a real file system, not power loss. What is checked after each kill, from the store itself:

- at least once: every accepted event reaches a consumer;
- the mark never moves back and never passes a hole; what was answered with SETTLED is confirmed, and comes no more;
  nothing is confirmed that no consumer has acknowledged;
- within one life of the server, exactly one member holds a message;
- what a member had when it was told that an answer is durable, and did not confirm, comes again as redelivered: the
  delivery was written with that answer.
"""

from __future__ import annotations

import random
import select
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from holdfast import Store
from holdfast.wire import consume
from tests.e2e.nursed import NursedServer
from tests.e2e.nursery import Nursery
from tests.faults import figures
from tests.faults.killing import kill_counts, profile_of
from tests.unit.delivery.harness import Consumer
from tests.unit.server.harness import RawClient, arrow_frame, open_client

MEMBERS = 2
ROWS = 5


@dataclass
class Ledger:
    """What the producer and the consumers were told, over all lives of the server."""

    chance: random.Random
    next_fsn: int = 1
    accepted: set[int] = field(default_factory=set)
    received: dict[int, int] = field(default_factory=dict)  # seq -> number
    acked: set[int] = field(default_factory=set)
    settled: set[int] = field(default_factory=set)
    surely_handed: set[int] = field(default_factory=set)
    """Delivered before the sync of a later answer."""
    marked: int = 0
    """Of these, how many came again after a crash, and said so."""
    mark: int = 0


class Life:
    """One life of the server, with its producer and its group."""

    def __init__(self, port: int, ledger: Ledger) -> None:
        self.port = port
        self.ledger = ledger
        self.producer, answer = open_client(port)
        assert answer.status == 101
        self.sent = 0
        self.members = [self.join() for _ in range(MEMBERS)]
        self.held: dict[int, Consumer] = {}

    def join(self) -> Consumer:
        raw, answer = open_client(self.port, consume.PATH)
        assert answer.status == 101
        member = Consumer(raw)
        member.send(consume.Hello())
        member.expect(consume.Welcome)
        member.subscribe(durable="d", group="g", max_inflight=20, batch_rows=3)
        return member

    def close(self) -> None:
        self.producer.close()
        for member in self.members:
            member.drop()

    def produce(self) -> None:
        """One frame, answered; a frame that was not is sent again in the next life, under the same number."""
        fsn = self.ledger.next_fsn
        numbers = range(fsn * ROWS, fsn * ROWS + ROWS)
        self.producer.send(arrow_frame(*numbers, fsn=fsn))
        self.producer.acknowledged(self.sent)
        self.sent += 1
        self.ledger.next_fsn += 1
        self.ledger.accepted |= set(numbers)

    def receive(self, member: Consumer, *, wait_s: float = 0.0) -> bool:
        """Take one reply if there is one; whether there was."""
        if not member.kept and not is_readable(member.raw, wait_s):
            return False
        reply = member.next()
        if isinstance(reply, consume.Delivery):
            self.take(member, reply)
        return True

    def take(self, member: Consumer, delivery: consume.Delivery) -> None:
        seqs = [seq for first, last in delivery.head.ranges for seq in range(first, last + 1)]
        known = self.ledger.surely_handed.intersection(seqs)
        assert delivery.head.redelivered or not known, f"{known} came before, and nothing tells"
        self.ledger.marked += len(known)
        for seq, number in zip(seqs, delivery.batch().column("n").to_pylist(), strict=True):
            assert seq not in self.ledger.settled, f"{seq} was settled and came again"
            assert self.ledger.received.setdefault(seq, number) == number, f"{seq} changed its meaning"
            assert self.held.get(seq) is None, f"{seq} is held by two members"
            self.held[seq] = member

    def answer(self, member: Consumer, seqs: list[int], *, wait: bool) -> None:
        """Confirm, and wait for SETTLED or not."""
        self.ledger.acked |= set(seqs)
        for seq in seqs:
            del self.held[seq]
        if wait:
            held = set(self.held)
            settled = member.ack(*seqs)
            self.ledger.surely_handed |= held
            assert (settled.settled, settled.stale) == (len(seqs), 0)
            self.ledger.settled |= set(seqs)
        else:
            member.send(consume.Ack(sub=1, ranges=tuple((seq, seq) for seq in seqs)))

    def lose(self, place: int) -> None:
        """A consumer dies with what it holds, and another takes its place."""
        member = self.members[place]
        member.drop()
        self.held = {seq: holder for seq, holder in self.held.items() if holder is not member}
        self.members[place] = self.join()

    def hurry(self) -> None:
        """Say something more, and do not wait for what comes of it."""
        fsn = self.ledger.next_fsn
        self.producer.send(arrow_frame(*range(fsn * ROWS, fsn * ROWS + ROWS), fsn=fsn))
        for member in self.members:
            mine = [seq for seq, holder in self.held.items() if holder is member]
            if mine:
                self.answer(member, mine[::2], wait=False)

    def step(self) -> None:
        chance = self.ledger.chance
        place = chance.randrange(MEMBERS)
        member = self.members[place]
        what = chance.random()
        if what < 0.4:
            self.produce()
        elif what < 0.7:
            self.receive(member)
        elif what < 0.97:
            mine = sorted(seq for seq, holder in self.held.items() if holder is member)
            some = [seq for seq in mine if chance.random() < 0.6]
            if some:
                self.answer(member, some, wait=chance.random() < 0.5)
        else:
            self.lose(place)


def is_readable(raw: RawClient, wait_s: float) -> bool:
    return bool(raw.pending) or bool(select.select([raw.socket], [], [], wait_s)[0])


def check(directory: Path, ledger: Ledger) -> None:
    """Compare the store with what consumers said and were told."""
    with Store.open(directory) as store:
        (found,) = store.subscribers()
        (lag,) = [lag for lag in found.channels if lag.channel == "trades"]
        highest = max([lag.mark, *(last for _, last in lag.gaps)])
        place = store.handing.join("d", "trades", start="first", others=0)
        last_seq = store.handing.last_seq("trades")
        owed = {seq for first, last, _ in store.handing.owed(place, 1, last_seq) for seq in range(first, last + 1)}
    confirmed = set(range(1, last_seq + 1)) - owed
    assert lag.mark >= ledger.mark, "the mark moved back"
    assert set(range(1, lag.mark + 1)) <= confirmed, "the mark passed a hole"
    assert confirmed <= ledger.acked, f"confirmed by nobody: {confirmed - ledger.acked}"
    assert ledger.settled <= confirmed, f"settled and lost: {ledger.settled - confirmed}"
    assert highest >= lag.mark
    ledger.mark = lag.mark


def finish(life: Life) -> None:
    """Consume until nothing is owed: the server says so when the durable is opened again."""
    ledger = life.ledger
    while True:
        for member in life.members:
            while life.receive(member, wait_s=0.01):
                pass
            mine = sorted(seq for seq, holder in life.held.items() if holder is member)
            if mine:
                life.answer(member, mine, wait=True)
        for member in life.members:
            member.close_sub()
            while member.kept:
                life.receive(member)
            life.held = {seq: holder for seq, holder in life.held.items() if holder is not member}
        opened = [member.subscribe(durable="d", group="g", max_inflight=20) for member in life.members]
        if opened[0].next_seq == len(ledger.accepted) + 1:
            return


@pytest.mark.guarantee("G7")
@kill_counts(5)
def test_kills_of_server_and_consumers_lose_nothing_and_move_no_mark_back(tmp_path: Path, kills: int) -> None:
    """Process death."""
    ledger = Ledger(random.Random(kills))
    with Nursery() as nursery, NursedServer(nursery, tmp_path / "data") as server:
        for kill in range(kills):
            life = Life(server.port, ledger)
            for _ in range(ledger.chance.randint(10, 60)):
                life.step()
            life.hurry()
            server.kill()
            life.close()
            if kill % max(1, kills // 100) == 0:  # a look into the store costs more with every event
                check(tmp_path / "data", ledger)
            server.start()
        life = Life(server.port, ledger)
        finish(life)
        life.close()
        server.terminate()
    check(tmp_path / "data", ledger)
    assert ledger.mark == len(ledger.accepted) > 0
    assert set(ledger.received.values()) == ledger.accepted
    assert ledger.marked > 0
    events = len(ledger.accepted)
    figures.note("kills", "killed consumers and their server", profile=profile_of(kills, 5), kills=kills, events=events)
