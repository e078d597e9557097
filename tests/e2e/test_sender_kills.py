"""Producers and servers are killed with SIGKILL; every event whose `flush()` returned is stored once, in order.

SIGKILL proves process death, not power loss.
"""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

import pytest

from holdfast import Sender, Store
from tests.e2e.served import PATIENCE_S, ServedProcess, free_port

FAST = "reconnect_initial_backoff_millis=5;reconnect_max_backoff_millis=50;initial_connect_retry=async;"


class Producer:
    """A producer process and the last event it published."""

    def __init__(self, conf: str, channel: str, run: int) -> None:
        self.run = run
        self.published = -1
        self._enough = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.producer_process", conf, channel, str(run)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.endswith("\n"):
                with self._enough:
                    self.published = int(line)
                    self._enough.notify_all()

    def until(self, number: int) -> None:
        with self._enough:
            assert self._enough.wait_for(lambda: self.published >= number, PATIENCE_S), "the producer is stuck"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._thread.join(PATIENCE_S)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill()


def check(data: Path, channel: str, producers: list[Producer]) -> None:
    """Every run is stored from 0 on, without a gap or a repeat, in order, and as far as it was published."""
    stored: dict[int, list[int]] = {}
    with Store.open(data) as store:
        for batch in store.read(channel, columns=["run", "n"]):
            for run, n in zip(batch.column("run").to_pylist(), batch.column("n").to_pylist(), strict=True):
                stored.setdefault(run, []).append(n)
    for producer in producers:
        found = stored.get(producer.run, [])
        assert found == list(range(len(found))), f"run {producer.run}: lost, doubled or out of order"
        assert len(found) > producer.published, f"run {producer.run}: published {producer.published}, lost"


def drain(conf: str) -> None:
    """A sender that sends what is in the slot, and ends."""
    with Sender.from_conf(conf) as sender:
        assert sender.drain(PATIENCE_S)


@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G1")
def test_server_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    chance = random.Random(5)
    with ServedProcess(tmp_path / "data", port=free_port()) as served:
        conf = f"ws::addr=127.0.0.1:{served.port};sf_dir={tmp_path / 'sf'};{FAST}"
        with Producer(conf, "kills", 0) as producer:
            for _ in range(3):
                producer.until(producer.published + chance.randrange(20, 400))
                served.kill()
                producer.until(producer.published + chance.randrange(20, 200))  # it goes on while nobody listens
                served.start()
            producer.until(producer.published + 50)
            producer.kill()
        drain(conf)
        assert served.terminate() == 0
    check(tmp_path / "data", "kills", [producer])


def kill_producers(directory: Path, runs: int) -> None:
    """One producer after the other on the same slot, each killed at a random moment."""
    chance = random.Random(runs)
    producers = []
    with ServedProcess(directory / "data") as served:
        conf = f"ws::addr=127.0.0.1:{served.port};sf_dir={directory / 'sf'};sender_id=app;{FAST}"
        for run in range(runs):
            with Producer(conf, "killed", run) as producer:
                producers.append(producer)
                producer.until(chance.randrange(1, 500))
                producer.kill()
        drain(conf)
        assert served.terminate() == 0
    check(directory / "data", "killed", producers)


@pytest.mark.guarantee("G2")
def test_producer_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    kill_producers(tmp_path, 4)


@pytest.mark.guarantee("G2")
@pytest.mark.long
@pytest.mark.timeout(3600)
def test_producer_killed_hundreds_of_times_loses_and_doubles_nothing(tmp_path: Path) -> None:
    kill_producers(tmp_path, 300)


@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G3")
def test_both_sides_killed_in_turns_lose_and_double_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    producers = []
    with ServedProcess(tmp_path / "data", port=free_port()) as served:
        conf = f"ws::addr=127.0.0.1:{served.port};sf_dir={tmp_path / 'sf'};codec=qwp;{FAST}"
        for run in range(2):
            with Producer(conf, "both", run) as producer:
                producers.append(producer)
                producer.until(chance.randrange(1, 300))
                served.kill()
                producer.until(producer.published + chance.randrange(1, 100))
                producer.kill()
            served.start()
        drain(conf)
        assert served.terminate() == 0
    check(tmp_path / "data", "both", producers)


def test_slots_of_dead_producers_are_drained_as_orphans(tmp_path: Path) -> None:
    producers = []
    port = free_port()
    for run in range(3):  # nobody listens, so everything stays in the slots
        conf = f"ws::addr=127.0.0.1:{port};sf_dir={tmp_path / 'sf'};sender_id=dead-{run};{FAST}"
        with Producer(conf, "orphans", run) as producer:
            producers.append(producer)
            producer.until(30)
            producer.kill()
    (tmp_path / "sf" / "dead-2" / ".failed").write_text("left to a person")
    with ServedProcess(tmp_path / "data", port=port) as served:
        conf = f"ws::addr=127.0.0.1:{port};sf_dir={tmp_path / 'sf'};sender_id=alive;drain_orphans=on;"
        with Sender.from_conf(conf) as sender:
            sender.send("orphans", {"run": 9, "n": 0, "pad": ""})
            assert sender.drain(PATIENCE_S)
            assert sender._orphans is not None
            for thread in sender._orphans._threads:
                thread.join(PATIENCE_S)
            statistics = sender.statistics()
            assert statistics.total_background_drainers_succeeded == 2
            assert statistics.total_background_drainers_failed == 0
            assert statistics.active_background_drainers == 0
        assert served.terminate() == 0
    check(tmp_path / "data", "orphans", producers[:2])
    for run, left in ((0, False), (1, False), (2, True)):
        assert bool(list((tmp_path / "sf" / f"dead-{run}").glob("*.sfa"))) is left


def test_second_server_takes_over_when_the_first_is_killed(tmp_path: Path) -> None:
    with ServedProcess(tmp_path / "one") as first, ServedProcess(tmp_path / "two") as second:
        conf = f"ws::addr=127.0.0.1:{first.port},127.0.0.1:{second.port};sf_dir={tmp_path / 'sf'};{FAST}"
        with Producer(conf, "over", 0) as producer:
            producer.until(200)
            first.kill()
            producer.until(producer.published + 200)
            producer.kill()
        with Sender.from_conf(conf) as sender:
            assert sender.drain(PATIENCE_S)
        second.kill()
    one, two = (sorted(int(str(n)) for n in served.rows("over", "n")) for served in (first, second))
    assert len(set(one)) == len(one)
    assert len(set(two)) == len(two)
    everything = set(one) | set(two)
    assert everything == set(range(len(everything)))
    assert len(everything) > producer.published
