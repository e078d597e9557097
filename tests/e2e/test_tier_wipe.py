"""A server is killed and its disk is wiped, again and again: what was told as durable is there, once.

Real processes: SIGKILL of `holdfast serve`, then its data directory is removed. A folder is the object store. Senders
wait for durable acknowledgements and repeat what was not durable. SIGKILL proves process death; the wipe, loss of the
disk.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.clock import SystemClock
from holdfast.config.tier import TierConfig
from holdfast.disk.local import LocalFilesystem
from holdfast.sender.sender import Sender
from holdfast.tier import Tier
from tests.e2e.served import ServedProcess, free_port

CHANNELS = ("a", "b")
SENDERS = 2
FRAMES_PER_ROUND = 12


class Producer:
    """A Sender that numbers its events and knows which of them are durable."""

    def __init__(self, name: int, port: int, directory: Path) -> None:
        self.name = name
        self.sent = 0
        self.sender = Sender.from_conf(
            f"ws::addr=127.0.0.1:{port};sf_dir={directory};sender_id=p{name};request_durable_ack=on;"
            "reconnect_initial_backoff_millis=20;reconnect_max_backoff_millis=200;"
        )
        self.durable: list[int] = []
        self._unsure: list[tuple[int, int]] = []

    def send(self) -> int:
        """A frame of two channels; its number in the slot."""
        value = self.name * 1_000_000 + self.sent
        self.sent += 1
        for channel in CHANNELS:
            self.sender.send(channel, pa.record_batch({"value": [value]}))
        fsn = self.sender.flush()
        self._unsure.append((fsn, value))
        return fsn

    def wait(self, fsn: int, timeout_s: float) -> bool:
        """Whether the frame is durable by then."""
        done = self.sender.await_acked(fsn, timeout=timeout_s)
        if done:
            self.durable += [value for number, value in self._unsure if number <= fsn]
            self._unsure = [item for item in self._unsure if item[0] > fsn]
        return done


def start(server: ServedProcess) -> None:
    """Start it again; a process that ends instead says how."""
    try:
        server.start()
    except AssertionError as error:
        error.add_note(f"exit code {server.process.wait(10)}")
        raise


def restored_values(directory: Path, bucket: Path) -> dict[str, Counter[int]]:
    """What a server with nothing but the object store would have."""
    config = TierConfig(url=f"file://{bucket}")
    tier = Tier.connect(config, filesystem=LocalFilesystem(), clock=SystemClock(), chance=random.Random(1))
    with closing(tier), Store.open(directory, source=tier) as store:
        return {
            channel: Counter(value for batch in store.read(channel) for value in batch.column("value").to_pylist())
            for channel in store.channels()
        }


def wipe_rounds(tmp_path: Path, *, rounds: int, seed: int, retention: str = "") -> None:
    chance = random.Random(seed)
    bucket, data, port = tmp_path / "bucket", tmp_path / "data", free_port()
    bucket.mkdir()
    settings = tmp_path / "holdfast.yaml"
    settings.write_text(f"tier:\n  url: file://{bucket}\n  max_delay: 50ms\n{retention}")
    server = ServedProcess(data, "-c", str(settings), port=port)
    with server.start():
        producers = [Producer(number, port, tmp_path / "slots") for number in range(SENDERS)]
        try:
            for _ in range(rounds):
                last = [producer.send() for producer in producers for _ in range(FRAMES_PER_ROUND)]
                for producer, fsn in zip(producers, last[FRAMES_PER_ROUND - 1 :: FRAMES_PER_ROUND], strict=True):
                    producer.wait(fsn - chance.randrange(FRAMES_PER_ROUND), chance.uniform(0.0, 0.4))
                server.kill()
                shutil.rmtree(data)
                start(server)
            for producer in producers:
                assert producer.wait(producer.send(), 60.0)
        finally:
            for producer in producers:
                producer.sender.close()
        server.kill()
    shutil.rmtree(data)
    start(server)
    assert server.terminate() == 0
    found = restored_values(data, bucket)
    for channel in CHANNELS:
        for producer in producers:
            durable = set(producer.durable)
            assert len(durable) == producer.sent
            assert {value for value in durable if found[channel][value] != 1} == set()
        assert sum(found[channel].values()) == sum(producer.sent for producer in producers)


@pytest.mark.timeout(300)
@pytest.mark.guarantee("G5")
def test_ten_wipes_lose_and_double_nothing_that_is_durable(tmp_path: Path) -> None:
    wipe_rounds(tmp_path, rounds=10, seed=6)


@pytest.mark.timeout(300)
@pytest.mark.guarantee("G5")
def test_wipes_of_a_server_that_keeps_almost_nothing_lose_and_double_nothing(tmp_path: Path) -> None:
    wipe_rounds(tmp_path, rounds=4, seed=8, retention="retention:\n  local: 8KiB\n  tick: 20ms\n")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.guarantee("G5")
def test_a_hundred_wipes_lose_and_double_nothing_that_is_durable(tmp_path: Path) -> None:
    wipe_rounds(tmp_path, rounds=100, seed=7)
