"""A server is killed and its disk is wiped, again and again: what was told as durable is there, once.

Real processes: SIGKILL of `holdfast serve`, then its data directory is removed. A folder is the object store. Senders
wait for durable acknowledgements and repeat what was not durable. SIGKILL proves process death; the wipe, loss of the
disk. After each, and before the server starts again, a store is restored from the object store alone, and what it holds
is part of the history that the checker judges.
"""

from __future__ import annotations

import random
import shutil
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Store
from holdfast.clock import SystemClock
from holdfast.config.tier import TierConfig
from holdfast.disk.local import LocalFilesystem
from holdfast.sender.sender import Sender
from holdfast.testing.history import Accepted, Bucket, Crash, Durable, Happening, Row, Sent, Stored, Wiped, require
from holdfast.tier import Tier
from tests.e2e.served import ServedProcess, free_port
from tests.faults import figures

AREA = "wipe"
CHANNELS = ("a", "b")
COLUMNS = ("value", "_seq", "_committed_id")
SENDERS = 2
FRAMES_PER_ROUND = 12
LONG_ROUNDS = 100


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
        self.news: list[Happening] = []
        """What was sent since somebody asked."""
        self._unsure: list[tuple[int, int]] = []

    def send(self) -> int:
        """A frame of two channels; its number in the slot."""
        value = self.name * 1_000_000 + self.sent
        self.sent += 1
        for channel in CHANNELS:
            self.sender.send(channel, pa.record_batch({"value": [value]}))
            self.news.append(Sent(f"sender {self.name}", channel, (f"{channel} {value}",), f"frame {value}"))
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


def restored(directory: Path, bucket: Path) -> tuple[Row, ...]:
    """What a server with nothing but the object store would have."""
    config = TierConfig(url=f"file://{bucket}")
    tier = Tier.connect(config, filesystem=LocalFilesystem(), clock=SystemClock(), chance=random.Random(1))
    with closing(tier), Store.open(directory, source=tier) as store:
        return tuple(
            Row(channel, seq, f"{channel} {value}", committed_id)
            for channel in store.channels()
            for batch in store.read(channel, columns=["value"], system=["_seq", "_committed_id"])
            for value, seq, committed_id in zip(*(batch.column(name).to_pylist() for name in COLUMNS), strict=True)
        )


class Wipes:
    """A history of senders, of wipes, and of what could be restored after each."""

    def __init__(self, producers: list[Producer], data: Path, bucket: Path) -> None:
        self.history: list[Happening] = []
        self.rows: tuple[Row, ...] = ()
        self._producers, self._data, self._bucket = producers, data, bucket

    def wipe(self) -> None:
        """The server is dead; its disk goes."""
        for producer in self._producers:
            self.history += producer.news
            producer.news.clear()
        shutil.rmtree(self._data)
        self.history += [Crash("server"), Wiped("server")]

    def look(self, *, is_final: bool = False) -> None:
        """Restore a store; all that was told as durable is there, and all that is there stays from now on."""
        for producer in self._producers:
            self.history += [Accepted(channel, _ids(channel, producer.durable)) for channel in CHANNELS]
        self.rows = restored(self._data, self._bucket)
        self.history += [Bucket(self.rows), Stored(self.rows, is_final=is_final)]
        last = {row.channel: row.seq for row in self.rows}
        self.history += [Durable(channel, seq) for channel, seq in last.items()]


def _ids(channel: str, values: list[int]) -> tuple[str, ...]:
    return tuple(f"{channel} {value}" for value in values)


def wipe_rounds(tmp_path: Path, *, rounds: int, seed: int, retention: str = "") -> None:
    chance = random.Random(seed)
    bucket, data, port = tmp_path / "bucket", tmp_path / "data", free_port()
    bucket.mkdir()
    settings = tmp_path / "holdfast.yaml"
    settings.write_text(f"tier:\n  url: file://{bucket}\n  max_delay: 50ms\n{retention}")
    server = ServedProcess(data, "-c", str(settings), port=port)
    with server.start():
        producers = [Producer(number, port, tmp_path / "slots") for number in range(SENDERS)]
        wipes = Wipes(producers, data, bucket)
        try:
            for _ in range(rounds):
                last = [producer.send() for producer in producers for _ in range(FRAMES_PER_ROUND)]
                for producer, fsn in zip(producers, last[FRAMES_PER_ROUND - 1 :: FRAMES_PER_ROUND], strict=True):
                    producer.wait(fsn - chance.randrange(FRAMES_PER_ROUND), chance.uniform(0.0, 0.4))
                server.kill()
                wipes.wipe()
                wipes.look()
                wipes.wipe()
                start(server)
            for producer in producers:
                assert producer.wait(producer.send(), 60.0)
                assert len(producer.durable) == producer.sent
        finally:
            for producer in producers:
                producer.sender.close()
        server.kill()
    wipes.wipe()
    start(server)
    assert server.terminate() == 0
    wipes.look(is_final=True)
    require(wipes.history)
    assert len(wipes.rows) == len(CHANNELS) * sum(producer.sent for producer in producers)
    figures.note(
        AREA,
        "wiped disks lose and double nothing that was durable" + (", though little is kept" if retention else ""),
        profile="quick" if rounds < LONG_ROUNDS else "long",
        wipes=rounds + 1,
        events=len(wipes.rows),
        happenings_judged=len(wipes.history),
    )


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
    wipe_rounds(tmp_path, rounds=LONG_ROUNDS, seed=7)
