"""A whole system under a nemesis, for as long as one likes: nothing is lost or doubled, and nothing grows.

    producers ──► network (cuts, silences) ──► server (killed, paused) ──► consumer, which confirms
                                                   retention deletes what is confirmed

`HOLDFAST_SOAK_S` is how long; without it 5 s in the quick profile and an hour in the long one. The producers keep a
steady rate that a part of a machine can carry: this is about time and faults. What the consumer got, said and was told,
its marks, what retention took and who was killed is one history for the checker (`wholeframes.py`): every event comes,
in the order in which its producer sent it, from one place, and never again once it was told that its confirmation is
durable; marks never move back or pass what was not confirmed; only what is confirmed goes.

Memory, descriptors and disk of the server are looked at before every fault; the last third of the run may not need more
than the first two did. Events that the consumer still has to confirm are rightly on disk, and are taken off. When it
has confirmed all of them, the files of events are gone. Each look is a line of `timeline.tsv` in the test's folder,
with the disk by kind of file and what is owed, so that growth says where it comes from.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path

import numpy as np
import psutil
import pytest

from holdfast import Consumer, Sender
from holdfast.clock import NS_PER_S, Clock, SystemClock
from holdfast.consumer.adminclient import AdminClient, ServerAt
from holdfast.consumer.messages import Delivery
from holdfast.errors import HoldfastError
from holdfast.model.intervals import IntervalSet
from holdfast.sender import dialing
from holdfast.store.ground import ACK_DIR, CHANNELS_DIR, WAL_DIR
from tests.e2e.nursed import NursedServer
from tests.e2e.nursery import Child, Nursery
from tests.e2e.served import PATIENCE_S
from tests.faults import figures, killing, soak_producer
from tests.faults.wholeframes import UNKNOWN_SESSION, WholeFrames
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
EVENT_BYTES = 24
"""Of the columns of an event, the least that it takes on disk."""
LEFT_BYTES_MAX = 2 << 20
"""In the files of events when all are confirmed: two segments, one of which is not sealed."""
LIFE_EVENTS_MAX = 10_000_000
"""Tells the numbers of the processes of a producer apart."""
READER = "reader"
SETTLED_EVERY = 4
"""Of the deliveries, every so many are confirmed with `ack_sync`, which says when that is durable."""
GROWTH_AFTER_S = 120.0
"""Shorter runs are all beginning."""


class Faller:
    """A producer whose processes die and are followed by others on the same slot, which go on with the numbers."""

    def __init__(self, nursery: Nursery, conf: str, number: int) -> None:
        self.number = number
        self.published: list[tuple[int, int]] = []
        """First and last number of every life, as far as it said; the last is one less if it said nothing."""
        self._nursery, self._conf = nursery, conf
        self._lives = 0
        self.start()

    def start(self) -> None:
        self._first, self._lives = self._lives * LIFE_EVENTS_MAX, self._lives + 1
        target = "tests.faults.soak_producer:main"
        self._child: Child = self._nursery.start(target, self._conf, CHANNEL, self.number, self._first)
        self._last = self._first - 1
        self._thread = threading.Thread(target=self._listen, args=(self._child,))
        self._thread.start()

    def _listen(self, child: Child) -> None:
        for line in child.output:
            if line.endswith("\n"):
                self._last = int(line)

    def so_far(self) -> list[tuple[int, int]]:
        """First and last number of every life that has said something, and of the one of now."""
        lives = [*self.published, (self._first, self._last)] if self._child.status is None else self.published
        return [(first, last) for first, last in lives if first <= last]

    def kill(self) -> None:
        """What it said counts; the next life has numbers of its own, far above. What it did not say may come, too."""
        self._child.kill()
        self._thread.join(PATIENCE_S)
        self._child.output.close()
        self.published.append((self._first, self._last))


@dataclass
class Reader:
    """The consumer: what it saw, by producer, as intervals; what came again."""

    port: int
    seen: dict[int, IntervalSet] = field(default_factory=dict)
    again: int = 0
    seqs: IntervalSet = field(default_factory=IntervalSet)
    frames: WholeFrames = field(default_factory=lambda: WholeFrames(CHANNEL, READER, soak_producer.ROWS))
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, stop: threading.Event) -> None:
        conf = f"ws::addr=127.0.0.1:{self.port};"
        options = {
            "channel": CHANNEL,
            "durable": READER,
            "batch_rows": 8192,
            "max_inflight": 100_000,
            "ack_wait": 5.0,
        }
        with Consumer.from_conf(conf, **options) as consumer:
            deliveries, mark, number = self.deliveries(consumer, stop), 0, 0
            for number, (delivery, session) in enumerate(deliveries):
                if consumer.mark != mark:
                    mark = consumer.mark
                    self.frames.mark(mark)
                with self.lock:
                    self.take(delivery, session)
                self.answer(delivery, waits=number % SETTLED_EVERY == 0)

    @staticmethod
    def deliveries(consumer: Consumer, stop: threading.Event) -> Iterator[tuple[Delivery, int]]:
        """What comes, each with its connection, or -1 if it may be of one or the other."""
        while not stop.is_set():
            before = consumer.statistics().reconnects
            delivery = next(consumer.deliveries(timeout=0.5), None)
            if delivery is not None:
                yield delivery, before if consumer.statistics().reconnects == before else UNKNOWN_SESSION

    def answer(self, delivery: Delivery, *, waits: bool) -> None:
        """Done with."""
        self.frames.ack(delivery.ranges)
        with suppress(HoldfastError):  # it comes again
            if waits:
                delivery.ack_sync()
                self.frames.settle(delivery.ranges)
            else:
                delivery.ack()

    def take(self, delivery: Delivery, session: int) -> None:
        producers, numbers, checks = (np.asarray(delivery.batch.column(name)) for name in ("producer", "n", "check"))
        if not (numbers == checks).all():
            self.failures.append("a value is not what was sent")
        self.frames.deliver(producers, numbers, delivery.ranges, again=delivery.redelivered, session=session)
        for first, last in delivery.ranges:
            self.again += self.seqs.count(first, last)
            self.seqs.add(first, last)
        for producer in np.unique(producers):
            mine = np.unique(numbers[producers == producer])
            breaks = np.flatnonzero(np.diff(mine) != 1)
            starts, ends = np.append(0, breaks + 1), np.append(breaks, len(mine) - 1)
            found = self.seen.setdefault(int(producer), IntervalSet())
            for start, end in zip(starts, ends, strict=True):
                found.add(int(mine[start]), int(mine[end]))

    def distinct(self) -> int:
        """Different events that were seen."""
        with self.lock:
            return sum(last - first + 1 for found in self.seen.values() for first, last in found)

    def has(self, fallers: list[Faller]) -> bool:
        """Whether everything that was published has come."""
        return not self.missing(fallers)

    def missing(self, fallers: list[Faller]) -> list[tuple[int, int, int]]:
        """What was published and has not come: producer, first, last."""
        with self.lock:
            return [
                (faller.number, *gap)
                for faller in fallers
                for first, last in faller.so_far()
                for gap in self.seen.get(faller.number, IntervalSet()).missing(first, last)
            ]

    def owed(self, fallers: list[Faller]) -> int:
        """How many events that is."""
        return sum(last - first + 1 for _, first, last in self.missing(fallers))


def bytes_of(directory: Path) -> int:
    """What the files below a directory take on disk."""
    found = 0
    for path in directory.rglob("*"):
        with suppress(OSError):  # it went in the meantime
            found += path.stat().st_blocks * 512 if path.is_file() else 0
    return found


def first_seq_of(admin: AdminClient) -> int:
    """Where the channel begins; 0 before there is one."""
    found = [item for item in admin.pages("channels") if item["name"] == CHANNEL]
    return int(found[0]["first_seq"] or 0) if found else 0


def mark_of(admin: AdminClient) -> int:
    """How far all is confirmed."""
    return max(int(channel["mark"]) for item in admin.pages("subscribers") for channel in item["channels"])


@dataclass(frozen=True, slots=True)
class Look:
    """The system at one moment; names are those of the columns of the time line."""

    seconds: float
    faults: int
    published: int
    seen: int
    owed: int
    """Published and not yet come."""
    unconfirmed: int
    """The same as the server counts it: in the channel and not confirmed."""
    rss: int
    descriptors: int
    disk: int
    segments: int
    wal: int
    acks: int
    slots: int
    """Of the producers, on their own disk."""

    @property
    def kept(self) -> int:
        """What is on disk beyond the events that have to be there."""
        return self.disk - EVENT_BYTES * max(self.owed, self.unconfirmed)


class Watch:
    """Looks at the system, and writes down what it sees."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self.data = directory / "data"
        self.path = directory / "timeline.tsv"
        self.looks: list[Look] = []
        self._slots = directory / "sf"
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self._write(column.name for column in fields(Look))

    def look(self, server: NursedServer, reader: Reader, fallers: list[Faller], faults: int) -> None:
        """One line. The server is up, as each fault heals before it returns."""
        process, admin = psutil.Process(server.pid), AdminClient(ServerAt(server.admin), patience_s=PATIENCE_S)
        with reader.lock:
            reader.frames.evict(first_seq_of(admin))
        subscribers = admin.pages("subscribers")
        look = Look(
            seconds=round((self._clock.monotonic_ns() - self._started_ns) / NS_PER_S, 1),
            faults=faults,
            published=sum(last - first + 1 for faller in fallers for first, last in faller.so_far()),
            owed=reader.owed(fallers),
            seen=reader.distinct(),
            unconfirmed=sum(channel["events"] for item in subscribers for channel in item["channels"]),
            rss=process.memory_info().rss,
            descriptors=process.num_fds(),
            disk=bytes_of(self.data),
            segments=bytes_of(self.data / CHANNELS_DIR),
            wal=bytes_of(self.data / WAL_DIR),
            acks=bytes_of(self.data / ACK_DIR),
            slots=bytes_of(self._slots),
        )
        self.looks.append(look)
        self._write(map(str, astuple(look)))

    def _write(self, cells: Iterable[str]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write("\t".join(cells) + "\n")

    def peaks(self, what: Callable[[Look], int]) -> tuple[int, int]:
        """The most of the first two thirds, and of the last."""
        border = max(1, 2 * len(self.looks) // 3)
        return max(map(what, self.looks[:border])), max(map(what, self.looks[border:] or self.looks))

    def emptied(self) -> int:
        """What the files of events take when all are confirmed and retention had the time for them."""
        pause, folder = threading.Event(), self.data / CHANNELS_DIR
        give_up_ns = self._clock.monotonic_ns() + int(PATIENCE_S * NS_PER_S)
        while (left := bytes_of(folder)) > LEFT_BYTES_MAX and self._clock.monotonic_ns() < give_up_ns:
            pause.wait(0.2)
        return left


class Nemesis:
    """Hurts one part after the other, and lets it heal."""

    def __init__(
        self,
        server: NursedServer,
        networks: tuple[Proxy, Proxy],
        fallers: list[Faller],
        chance: random.Random,
        told: Callable[[str], None],
    ) -> None:
        """`told` hears who is killed."""
        self.server, self.networks, self.fallers, self.chance, self._told = server, networks, fallers, chance, told
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
        self._told("server")
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
        self._told(f"producer {faller.number}")
        faller.start()

    def _cut(self) -> None:
        for network in self.networks:
            network.cut()

    def _silence(self) -> None:
        self.chance.choice(self.networks).silence()


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as started:
        yield started


def conf_of(port: int, directory: Path, number: int) -> str:
    return f"ws::addr=127.0.0.1:{port};sf_dir={directory / 'sf'};sender_id=p{number};{FAST}"


@pytest.mark.guarantee("G1")
@pytest.mark.guarantee("G2")
@pytest.mark.guarantee("G7")
@pytest.mark.guarantee("G11")
@pytest.mark.parametrize(
    "profile",
    [
        pytest.param("quick", marks=killing.QUICK),
        pytest.param("long", marks=[pytest.mark.long, pytest.mark.timeout(3 * 3600)]),
    ],
)
def test_system_under_a_nemesis_loses_nothing_and_does_not_grow(
    nursery: Nursery, tmp_path: Path, profile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("IDLE_PING_S", "PONG_TIMEOUT_S"):  # of the consumer, which runs here
        monkeypatch.setattr(dialing, name, soak_producer.IMPATIENT_S)
    duration_s = float(os.environ.get("HOLDFAST_SOAK_S", DURATIONS_S[profile]))
    config, clock, chance = tmp_path / "holdfast.yaml", SystemClock(), random.Random(20261116)
    config.write_text(SETTINGS, encoding="utf-8")
    watch, stop, pause = Watch(tmp_path, clock), threading.Event(), threading.Event()
    with (
        NursedServer(nursery, tmp_path / "data", "--config", str(config)) as server,
        Proxy(server.port) as network,
        Proxy(server.port) as readers_network,
    ):
        reader = Reader(readers_network.port)
        reading = threading.Thread(target=reader.run, args=(stop,))
        reading.start()
        fallers = [Faller(nursery, conf_of(network.port, tmp_path, number), number) for number in range(PRODUCERS)]
        nemesis = Nemesis(server, (network, readers_network), fallers, chance, reader.frames.crash)
        try:
            end_ns = clock.monotonic_ns() + int(duration_s * NS_PER_S)
            while clock.monotonic_ns() < end_ns:
                pause.wait(chance.uniform(0.5, min(8.0, duration_s / 5)))
                watch.look(server, reader, fallers, nemesis.faults)
                nemesis.strike()
        finally:
            for faller in fallers:
                faller.kill()
            finish(reader, fallers, [conf_of(network.port, tmp_path, faller.number) for faller in fallers])
            left = watch.emptied()
            mark = final_mark(server, reader)
            stop.set()
            reading.join(PATIENCE_S)
        server.terminate()
    reader.frames.mark(mark)
    assert mark == reader.seqs.highest, "not all is confirmed"
    judge(reader, fallers)
    assert left <= LEFT_BYTES_MAX, f"all is confirmed, and {left} bytes of events are still there"
    if duration_s >= GROWTH_AFTER_S:
        judge_growth(watch)
    figures.note(
        AREA,
        "a system under a nemesis loses nothing, doubles nothing, and does not grow",
        profile=profile,
        seconds=round(duration_s),
        events=reader.distinct(),
        faults=nemesis.faults,
        redelivered=reader.again,
        happenings_judged=len(reader.frames.history),
        owed_at_most=max(look.owed for look in watch.looks),
        memory_MiB=told(watch.peaks(lambda look: look.rss >> 20)),
        descriptors=told(watch.peaks(lambda look: look.descriptors)),
        disk_MiB=told(watch.peaks(lambda look: look.disk >> 20)),
        left_KiB=left >> 10,
    )


def told(peaks: tuple[int, int]) -> str:
    return f"{peaks[0]} → {peaks[1]}"


def test_network_tells_one_side_that_the_other_was_reset() -> None:
    """A server that is killed before it has read all does that; a consumer that is not told waits for minutes."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listening,
        Proxy(listening.getsockname()[1]) as network,
        socket.create_connection(("127.0.0.1", network.port), PATIENCE_S) as client,
    ):
        client.sendall(b"not read")
        server, _ = listening.accept()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        server.close()
        assert client.recv(1) == b""


def finish(reader: Reader, fallers: list[Faller], confs: list[str]) -> None:
    """Everything in the slots is sent, and everything that was published has come."""
    for conf in confs:
        with Sender.from_conf(conf) as sender:
            sender.drain(PATIENCE_S)
    pause, clock = threading.Event(), SystemClock()
    give_up_ns = clock.monotonic_ns() + int(2 * PATIENCE_S * NS_PER_S)
    while not reader.has(fallers) and clock.monotonic_ns() < give_up_ns:
        pause.wait(0.2)


def final_mark(server: NursedServer, reader: Reader) -> int:
    """The mark when all that came is confirmed; what it is then if that does not happen."""
    admin = AdminClient(ServerAt(server.admin), patience_s=PATIENCE_S)
    pause, clock = threading.Event(), SystemClock()
    give_up_ns = clock.monotonic_ns() + int(PATIENCE_S * NS_PER_S)
    while (mark := mark_of(admin)) < (reader.seqs.highest or 0) and clock.monotonic_ns() < give_up_ns:
        pause.wait(0.2)
    return mark


def judge(reader: Reader, fallers: list[Faller]) -> None:
    assert reader.failures == []
    reader.frames.judge({faller.number: faller.published for faller in fallers}, LIFE_EVENTS_MAX)


def judge_growth(watch: Watch) -> None:
    rss, rss_late = watch.peaks(lambda look: look.rss)
    assert rss_late <= 1.25 * rss + (64 << 20), f"memory grows: {rss} → {rss_late}, see {watch.path}"
    fds, fds_late = watch.peaks(lambda look: look.descriptors)
    assert fds_late <= 1.25 * fds + 32, f"descriptors grow: {fds} → {fds_late}, see {watch.path}"
    kept, kept_late = watch.peaks(lambda look: look.kept)
    assert kept_late <= 1.5 * kept + (16 << 20), f"the disk fills: {kept} → {kept_late}, see {watch.path}"
