"""Consumers are killed with SIGKILL; every event reaches each durable, and what was confirmed never comes again.

SIGKILL proves process death, not power loss. The processes come out of a nursery (`tests/e2e/nursery.py`), so that the
loop can be long; what they say is one history for the checker (`tests/e2e/chronicle.py`).
"""

from __future__ import annotations

import random
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast import Sender
from tests.e2e.chronicle import BUSY, BUSY_YAML, Chronicle, Reader
from tests.e2e.nursed import NursedServer
from tests.e2e.nursery import Nursery
from tests.e2e.producer_process import rows_at
from tests.e2e.served import PATIENCE_S
from tests.faults import figures
from tests.faults.killing import kill_counts, profile_of

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="fork and SIGKILL as on Linux")]
MOMENT_S = 0.3
"""The most that a consumer lives after the one before it was killed: time to connect, and to read what there is."""
SUBSCRIPTIONS = (("alone", ""), ("shared", "team"), ("shared", "team"))


class Feeder:
    """A producer that is not killed."""

    def __init__(self, sender: Sender, channel: str) -> None:
        self.run, self.published, self.answered = 0, -1, 0
        self._sender = sender
        self._channel = channel

    def feed(self, frames: int) -> None:
        for _ in range(frames):
            first = self.published + 1
            self._sender.send(self._channel, [{"run": 0, "n": first + place} for place in range(rows_at(first))])
            self._sender.flush()
            self.published += rows_at(first)

    def drain(self) -> None:
        assert self._sender.drain(PATIENCE_S)
        self.answered = self.published + 1


@pytest.mark.guarantee("G6")
@pytest.mark.guarantee("G7")
@kill_counts(20)
def test_killed_consumers_get_everything_in_order_and_nothing_confirmed_again(tmp_path: Path, kills: int) -> None:
    """Of a durable for one, and of one that two share; at any moment, from before they connect to amid their answers.

    The server lives, so it says of every event that comes again that it does.
    """
    chance = random.Random(kills)
    (settings := tmp_path / "serve.yaml").write_text(BUSY_YAML)
    chronicle = Chronicle(tmp_path / "data", "read", BUSY)
    with ExitStack() as stack:
        nursery = stack.enter_context(Nursery())
        server = stack.enter_context(NursedServer(nursery, tmp_path / "data", "--config", str(settings)))
        conf = f"ws::addr=127.0.0.1:{server.port};"
        feeder = Feeder(stack.enter_context(Sender.from_conf(conf)), "read")
        chronicle.producers.append(feeder)

        def start(durable: str, group: str) -> Reader:
            reader = Reader(nursery, conf, "read", durable, run=len(chronicle.readers), group=group)
            chronicle.readers.append(stack.enter_context(reader))
            return reader

        feeder.feed(1)
        feeder.drain()
        living = [start(*subscription) for subscription in SUBSCRIPTIONS]
        for _ in range(kills):
            feeder.feed(chance.randrange(1, 12))
            place = chance.randrange(len(living))
            victim = living[place]
            if place == 0 and chance.random() < 0.5:  # a machine that has much to do gives it nothing in its moment
                assert victim.until(1)
            victim.until(len(victim.lines) + chance.randrange(8), chance.random() * MOMENT_S)
            victim.kill()
            living[place] = start(*SUBSCRIPTIONS[place])
        feeder.drain()
        for reader in living:
            reader.kill()
        for reader in living[:2]:
            reader.finish(server.last_seq("read"))
        server.terminate()
    assert chronicle.look().rows.num_rows == feeder.answered
    chronicle.judge()
    assert chronicle.again > 0
    assert chronicle.untold == 0
    figures.note(
        "kills",
        "a killed consumer",
        profile=profile_of(kills, 20),
        kills=kills,
        events=feeder.answered,
        deliveries=chronicle.delivered,
        redelivered=chronicle.again,
    )
