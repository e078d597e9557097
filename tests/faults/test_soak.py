"""A whole system under a nemesis, for as long as one likes: nothing is lost or doubled, and nothing grows.

    producers ──► network (cuts, silences) ──► server (killed, paused) ──► consumer, which confirms
                                                   retention deletes what is confirmed

`HOLDFAST_SOAK_S` is how long; without it 5 s in the quick profile and an hour in the long one. Every event is counted
at the consumer, by producer and number: it comes at least once, and the store has it once. Memory, descriptors and disk
of the server are looked at all the time; the last third of the run may not need more than the first two did.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest

from holdfast import Consumer, Sender
from holdfast.clock import NS_PER_S, SystemClock
from holdfast.errors import HoldfastError
from holdfast.model.intervals import IntervalSet
from tests.e2e.nursed import NursedServer
from tests.e2e.nursery import Child, Nursery
from tests.e2e.served import PATIENCE_S
from tests.faults import figures
from tests.unit.sender.proxy import Proxy

AREA = "soak"
PRODUCERS = 3
DURATIONS_S = {"quick": 5.0, "long": 3600.0}
FAST = "reconnect_initial_backoff_millis=5;reconnect_max_backoff_millis=200;initial_connect_retry=async;"
SETTINGS = """
segment: {target_size: 1MiB, max_open_duration: 500ms}
wal: {rotation_size: 4MiB, max_size: 64MiB}
frame.max_size: 2MiB
ingest.max_batch_size: 2MiB
retention: {tick: 200ms}
"""
CHANNEL = "soak"
GROWTH_AFTER_S = 120.0
"""Shorter runs are all beginning."""


class Faller:
    """A producer whose processes die and are followed by others on the same slot, which go on with the numbers."""

    def __init__(self, nursery: Nursery, conf: str, number: int) -> None:
        self.number = number
        self.published: list[tuple[int, int]] = []
        """First and last number of every life, as far as it said."""
        self._nursery, self._conf = nursery, conf
        self._first = 0
        self.start()

    def start(self) -> None:
        target = "tests.faults.soak_producer:main"
        self._child: Child = self._nursery.start(target, self._conf, CHANNEL, self.number, self._first)
        self._last = self._first - 1
        self._thread = threading.Thread(target=self._listen, args=(self._child,))
        self._thread.start()

    def _listen(self, child: Child) -> None:
        for line in child.output:
            if line.endswith("\n"):
                self._last = int(line)

    def kill(self) -> None:
        """What it said counts; the next life has numbers of its own, far above."""
        self._child.kill()
        self._thread.join(PATIENCE_S)
        self._child.output.close()
        if self._last >= self._first:
            self.published.append((self._first, self._last))
        self._first = (self._last // 10_000_000 + 1) * 10_000_000


@dataclass
class Reader:
    """The consumer: what it saw, by producer, as intervals; what came again."""

    port: int
    seen: dict[int, IntervalSet] = field(default_factory=dict)
    events: int = 0
    again: int = 0
    seqs: IntervalSet = field(default_factory=IntervalSet)
    failures: list[str] = field(default_factory=list)

    def run(self, stop: threading.Event) -> None:
        conf = f"ws::addr=127.0.0.1:{self.port};"
        options = {
            "channel": CHANNEL,
            "durable": "reader",
            "batch_rows": 8192,
            "max_inflight": 100_000,
            "ack_wait": 5.0,
        }
        with Consumer.from_conf(conf, **options) as consumer:
            while not stop.is_set():
                for delivery in consumer.deliveries(timeout=0.5):
                    self.take(delivery.batch, delivery.ranges)
                    with suppress(HoldfastError):  # it comes again
                        delivery.ack()
                    if stop.is_set():
                        break

    def take(self, batch: object, ranges: tuple[tuple[int, int], ...]) -> None:
        producers, numbers, checks = (np.asarray(batch.column(name)) for name in ("producer", "n", "check"))  # type: ignore[attr-defined]
        if not (numbers == checks).all():
            self.failures.append("a value is not what was sent")
        fresh = sum(last - first + 1 for first, last in ranges if not self.seqs.covers(first, last))
        self.again += len(numbers) - fresh
        for first, last in ranges:
            self.seqs.add(first, last)
        for producer in np.unique(producers):
            mine = np.unique(numbers[producers == producer])
            breaks = np.flatnonzero(np.diff(mine) != 1)
            starts, ends = np.append(0, breaks + 1), np.append(breaks, len(mine) - 1)
            found = self.seen.setdefault(int(producer), IntervalSet())
            for start, end in zip(starts, ends, strict=True):
                found.add(int(mine[start]), int(mine[end]))
        self.events += len(numbers)

    def distinct(self) -> int:
        """Different events that were seen."""
        return sum(last - first + 1 for found in self.seen.values() for first, last in found)

    def has(self, fallers: list[Faller]) -> bool:
        """Whether everything that was published has come."""
        return not self.missing(fallers)

    def missing(self, fallers: list[Faller]) -> list[tuple[int, int, int]]:
        """What was published and has not come: producer, first, last."""
        return [
            (faller.number, *gap)
            for faller in fallers
            for first, last in faller.published
            for gap in self.seen.get(faller.number, IntervalSet()).missing(first, last)
        ]


@dataclass
class Watch:
    """The most that the server needed in each part of the run."""

    data: Path
    samples: list[tuple[int, int, int]] = field(default_factory=list)

    def look(self, pid: int) -> None:
        """Resident bytes, descriptors, bytes on disk."""
        with suppress(psutil.Error, OSError):
            process = psutil.Process(pid)
            disk = sum(path.stat().st_blocks * 512 for path in self.data.rglob("*") if path.is_file())
            self.samples.append((process.memory_info().rss, process.num_fds(), disk))

    def peaks(self) -> list[tuple[int, ...]]:
        """Of the first two thirds, and of the last."""
        border = 2 * len(self.samples) // 3
        return [tuple(map(max, zip(*part, strict=True))) for part in (self.samples[:border], self.samples[border:])]


class Nemesis:
    """Hurts one part after the other, and lets it heal."""

    def __init__(
        self, server: NursedServer, networks: tuple[Proxy, Proxy], fallers: list[Faller], chance: random.Random
    ) -> None:
        self.server, self.networks, self.fallers, self.chance = server, networks, fallers, chance
        self.faults = 0
        self._pause = threading.Event()

    def strike(self) -> None:
        """One fault of five kinds."""
        self.faults += 1
        what = self.chance.choice(
            [self._kill_server, self._pause_server, self._kill_producer, self._cut, self._silence]
        )
        what()

    def _kill_server(self) -> None:
        self.server.kill()
        port = self.server.start_elsewhere()
        for network in self.networks:
            network.lead_to(port)

    def _pause_server(self) -> None:
        os.kill(self.server.pid, signal.SIGSTOP)
        self._pause.wait(self.chance.uniform(0.1, 1.5))
        os.kill(self.server.pid, signal.SIGCONT)

    def _kill_producer(self) -> None:
        faller = self.chance.choice(self.fallers)
        faller.kill()
        faller.start()

    def _cut(self) -> None:
        for network in self.networks:
            network.cut()

    def _silence(self) -> None:
        self.networks[0].silence()  # the producers' one: they are impatient


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as started:
        yield started


def conf_of(port: int, directory: Path, number: int) -> str:
    return f"ws::addr=127.0.0.1:{port};sf_dir={directory / 'sf'};sender_id=p{number};{FAST}"


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G7")
@pytest.mark.guarantee("G8")
@pytest.mark.parametrize(
    "profile", ["quick", pytest.param("long", marks=[pytest.mark.long, pytest.mark.timeout(3 * 3600)])]
)
def test_system_under_a_nemesis_loses_nothing_and_does_not_grow(nursery: Nursery, tmp_path: Path, profile: str) -> None:
    duration_s = float(os.environ.get("HOLDFAST_SOAK_S", DURATIONS_S[profile]))
    config, clock, chance = tmp_path / "holdfast.yaml", SystemClock(), random.Random(20261116)
    config.write_text(SETTINGS, encoding="utf-8")
    watch, stop, pause = Watch(tmp_path / "data"), threading.Event(), threading.Event()
    with (
        NursedServer(nursery, tmp_path / "data", "--config", str(config)) as server,
        Proxy(server.port) as network,
        Proxy(server.port) as readers_network,
    ):
        reader = Reader(readers_network.port)
        reading = threading.Thread(target=reader.run, args=(stop,))
        reading.start()
        fallers = [Faller(nursery, conf_of(network.port, tmp_path, number), number) for number in range(PRODUCERS)]
        nemesis = Nemesis(server, (network, readers_network), fallers, chance)
        try:
            end_ns = clock.monotonic_ns() + int(duration_s * NS_PER_S)
            while clock.monotonic_ns() < end_ns:
                pause.wait(chance.uniform(0.5, min(8.0, duration_s / 5)))
                watch.look(server.pid)
                nemesis.strike()
        finally:
            for faller in fallers:
                faller.kill()
            finish(reader, fallers, [conf_of(network.port, tmp_path, faller.number) for faller in fallers])
            stop.set()
            reading.join(PATIENCE_S)
        server.terminate()
    judge(reader, fallers, watch, lasted_s=duration_s)
    before, after = watch.peaks()
    figures.note(
        AREA,
        "a system under a nemesis loses nothing, doubles nothing, and does not grow",
        profile=profile,
        seconds=round(duration_s),
        events=reader.distinct(),
        faults=nemesis.faults,
        redelivered=reader.again,
        memory_MiB=f"{before[0] >> 20} → {after[0] >> 20}",
        descriptors=f"{before[1]} → {after[1]}",
        disk_MiB=f"{before[2] >> 20} → {after[2] >> 20}",
    )


def finish(reader: Reader, fallers: list[Faller], confs: list[str]) -> None:
    """Everything in the slots is sent, and everything that was published has come."""
    for conf in confs:
        with Sender.from_conf(conf) as sender:
            sender.drain(PATIENCE_S)
    pause, clock = threading.Event(), SystemClock()
    give_up_ns = clock.monotonic_ns() + int(2 * PATIENCE_S * NS_PER_S)
    while not reader.has(fallers) and clock.monotonic_ns() < give_up_ns:
        pause.wait(0.2)


def judge(reader: Reader, fallers: list[Faller], watch: Watch, *, lasted_s: float) -> None:
    assert reader.failures == []
    assert reader.missing(fallers) == [], "published and never delivered"
    stored = sum(last - first + 1 for first, last in reader.seqs)
    assert stored == reader.distinct(), "an event has two places in the channel"
    if lasted_s >= GROWTH_AFTER_S:
        (rss, fds, disk), (rss_late, fds_late, disk_late) = watch.peaks()
        assert rss_late <= 1.25 * rss + (64 << 20), f"memory grows: {rss} → {rss_late}"
        assert fds_late <= 1.25 * fds + 32, f"descriptors grow: {fds} → {fds_late}"
        assert disk_late <= 1.5 * disk + (64 << 20), f"the disk fills: {disk} → {disk_late}"
