"""Sender and server on two sides of a network that loses, delays, doubles, reorders and swallows real packets."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

import pytest

from tests.e2e.nursed import check
from tests.e2e.served import PATIENCE_S, ServedProcess
from tests.faults import figures, killing
from tests.faults.badnetwork import FINE, PARTED, BadNetwork, Weather
from tests.faults.needs import need

AREA = "network"
ROOT = Path(__file__).parents[2]
STORMS = (
    Weather(lost=0.2),
    Weather(lost=0.05, doubled=0.1, delay_s=0.02, jitter_s=0.05),
    Weather(deaf=(0,)),
    Weather(deaf=(1,)),
    PARTED,
)
PROFILES = pytest.mark.parametrize(
    "profile",
    [
        pytest.param("quick", marks=killing.QUICK),
        pytest.param("long", marks=[pytest.mark.long, pytest.mark.timeout(3600)]),
    ],
)
ROUNDS = {"quick": 1, "long": 40}
STORMS_OF_A_ROUND = {"quick": 2, "long": len(STORMS)}
FAST = "reconnect_initial_backoff_millis=5;reconnect_max_backoff_millis=50;initial_connect_retry=async;"


class FarServer(ServedProcess):
    """A server in a namespace of its own."""

    def __init__(self, directory: Path, network: BadNetwork) -> None:
        super().__init__(directory, "--insecure")
        self._network = network

    def command(self, options: object = ()) -> list[str]:
        serve = [sys.executable, "-m", "holdfast.cli.main", "serve", "--data", str(self.directory)]
        listen = ["--listen", f"{self._network.addresses[1]}:9000", "--admin", "127.0.0.1:9001", "--insecure"]
        return [*self._network.enter(1), *serve, *listen]


class FarProducer:
    """A producer in the other namespace that says what it published."""

    def __init__(self, network: BadNetwork, conf: str, channel: str) -> None:
        self.run, self.published = 0, -1
        program = f"from tests.e2e.producer_process import impatient; impatient({conf!r}, {channel!r}, 0)"
        self._changed = threading.Condition()
        self._process = subprocess.Popen(
            [*network.enter(0), sys.executable, "-c", program],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                with self._changed:
                    self.published = int(line)
                    self._changed.notify_all()

    def more(self, events: int) -> None:
        """Wait until so many more are published."""
        with self._changed:
            goal = self.published + events
            assert self._changed.wait_for(lambda: self.published >= goal, PATIENCE_S), "the producer is stuck"

    def __enter__(self) -> FarProducer:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def drain_from(network: BadNetwork, conf: str) -> None:
    """A sender on the near side sends what is left."""
    program = f"from tests.e2e.nursed import drain; drain({conf!r})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [*network.enter(0), sys.executable, "-c", program]
    subprocess.run(command, check=True, cwd=ROOT, env=environment, timeout=2 * PATIENCE_S)


@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G3")
@PROFILES
def test_packets_lost_doubled_delayed_and_swallowed_cost_no_event(tmp_path: Path, profile: str) -> None:
    """The producer goes on in every weather; in fair weather everything arrives, once and in order."""
    need(AREA, "Linux", "root", "network namespaces", "nsenter", "TUN devices")
    chance = random.Random(20261116)
    with BadNetwork(f"hf{os.getpid() % 10000}", chance) as network, FarServer(tmp_path / "data", network) as server:
        conf = f"ws::addr={network.addresses[1]}:9000;sf_dir={tmp_path / 'sf'};sender_id=app;{FAST}"
        with FarProducer(network, conf, "storm") as producer:
            producer.more(50)
            for _ in range(ROUNDS[profile]):
                for weather in chance.sample(STORMS, STORMS_OF_A_ROUND[profile]):
                    network.weather = weather
                    producer.more(chance.randrange(20, 200))
                    network.weather = FINE
                    producer.more(chance.randrange(5, 50))
        drain_from(network, conf)
        assert server.terminate() == 0
        stored = check(tmp_path / "data", "storm", [producer])
        assert network.lost > 0
    figures.note(
        AREA,
        "packets lost, doubled, delayed, reordered and swallowed cost no event, and double none",
        profile=profile,
        storms=ROUNDS[profile] * STORMS_OF_A_ROUND[profile],
        packets=network.packets,
        packets_lost=network.lost,
        events=stored,
    )
