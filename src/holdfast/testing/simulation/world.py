"""One run from one seed: who takes part, what goes wrong, and whether it may have come out as it did.

    seed ──► the cast and its habits ──► trouble for some virtual seconds ──► peace until everything has settled
                                                                                     │
                              the history, judged by the checker  ◄── what the store, the bucket and the marks say

Each seed brings only some kinds of faults (a "swarm"), so that runs differ more than by their order. In peace
everything must come to an end: slots empty, marks at the end of their channels. What does not is a finding too.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from holdfast.clock import NS_PER_S
from holdfast.disk.checksum import crc32c
from holdfast.store.verify import verify_store
from holdfast.testing.history import Bucket, Finding, HistoryBroken, Row, check
from holdfast.testing.simulation.producer import Habits, Producer
from holdfast.testing.simulation.reader import Reader, Taste
from holdfast.testing.simulation.scene import Machine, Scene
from holdfast.testing.simulation.serving import DATA, Server, Setup
from holdfast.tier.journal import Journal

CHANNELS = ("a", "b")
TINY: dict[str, object] = {
    "segment.target_size": "4KiB",
    "wal.rotation_size": "64KiB",
    "wal.max_size": "1MiB",
    "memory_limit": "64KiB",
    "frame.max_size": "32KiB",
    "retention.tick": "500ms",
}
TIER_FAULTS = frozenset({"trouble_tier", "tier_away", "wipe"})
TROUBLE_S = (3.0, 12.0)
PEACE_S = 300.0
"""How long everything may take to settle; back-offs and lost answers add up to less than a minute."""
VERIFIED_EVERY = 8
"""Of so many seeds one has the store's files verified in the end."""


class NotSettled(AssertionError):
    """In peace something did not come to an end."""


class Result(NamedTuple):
    """What came of a run."""

    seed: int
    trace_hash: str
    faults: Counter[str]
    happenings: int
    steps: int
    virtual_s: float


class World(Scene):
    """The cast of one seed."""

    def __init__(self, seed: int, *, tracing: bool = False, only: Sequence[str] = ()) -> None:
        """With `only`, nothing goes wrong but faults of these kinds; for hunts."""
        super().__init__(seed, tracing=tracing)
        chance = self.chance
        self.only = frozenset(only)
        self.has_tier = chance.random() < 0.4 or not self.only.isdisjoint(TIER_FAULTS)
        self.may_wipe = self.has_tier and (chance.random() < 0.4 or "wipe" in self.only)
        mode = chance.choice(("limits", "acked"))
        self.server = Server(self, Setup({**TINY, "retention.mode": mode}, self.has_tier))
        self.producers = [Producer(self, self.server, habits) for habits in self._habits()]
        self.readers = [Reader(self, self.server, taste) for taste in self._tastes()]
        self.nemesis = Nemesis(self)

    def _habits(self) -> list[Habits]:
        chance = self.chance
        durable_acks = self.may_wipe or (self.has_tier and chance.random() < 0.5)
        return [
            Habits(
                number,
                CHANNELS[: chance.randint(1, len(CHANNELS))],
                durability=chance.choice(("memory", "flush")),
                durable_acks=durable_acks,
                frames=chance.choice((5, 20, 40)),
                pause_s=chance.choice((0.05, 0.2)),
                spoils=chance.choice((0.0, 0.0, 0.05)),
            )
            for number in range(1, chance.choice((1, 2, 2)) + 1)
        ]

    def _tastes(self) -> list[Taste]:
        chance = self.chance
        tastes: list[Taste] = []
        for durable in range(chance.choice((0, 1, 1, 2))):
            group = chance.choice(("", f"g{durable}"))
            for _ in range(chance.randint(1, 2) if group else 1):
                tastes.append(
                    Taste(
                        len(tastes) + 1,
                        CHANNELS[durable % len(CHANNELS)],
                        f"d{durable}",
                        group,
                        max_inflight=chance.choice((3, 20, 100)),
                        batch_rows=chance.choice((1, 7)),
                    )
                )
        return tastes

    # --- running ---------------------------------------------------------------------------------------------------

    def run(self) -> Result:
        """The whole run; raises if anything is wrong."""
        machines: list[Machine] = [self.server, *self.producers, *self.readers]
        for machine in machines:
            machine.restart(self.chance.random() * 0.1)
        self.nemesis.begin()
        trouble_s = self.chance.uniform(*TROUBLE_S)
        self.nemesis.later(trouble_s, self.make_peace)  # at its time, also while somebody waits for the object store
        self.timeline.run(round(trouble_s * NS_PER_S))
        self.timeline.run(self.timeline.now_ns + round(PEACE_S * NS_PER_S), done=self._is_settled)
        self._judge()
        return Result(
            self.seed,
            self.trace_hash,
            self.faults,
            len(self.history),
            self.timeline.steps,
            self.timeline.now_ns / NS_PER_S,
        )

    def make_peace(self) -> None:
        """Nothing goes wrong any more."""
        self.note("world", "peace")
        self.trouble = False
        self.network.heal()
        server = self.server
        server.tier_trouble, server.tier_away_until_ns = 0.0, 0
        for machine in (server, *self.producers):
            machine.disk.stop_failing()
            machine.disk.cut_at(0)  # never
            machine.disk.capacity_bytes = None

    def _is_settled(self) -> bool:
        store = self.server.store
        if not self.server.alive or store is None or store.failure is not None:
            return False
        if not all(producer.is_done for producer in self.producers):
            return False
        for reader in self.readers:
            place = store.handing.join(reader.taste.durable, reader.taste.channel, start="first", others=0)
            if store.handing.mark(place) < store.handing.last_seq(reader.taste.channel):
                return False
        return True

    # --- judging ---------------------------------------------------------------------------------------------------

    def _judge(self) -> None:
        if not self._is_settled():
            raise NotSettled(self._report([], "nothing goes wrong any more, and it does not settle"))
        self.server.read_all(is_final=True)
        if self.has_tier:
            self.happened("bucket", Bucket(tuple(_listed(self.server))))
        findings = check(self.history)
        if findings:
            raise HistoryBroken(self.history, findings)
        if self.seed % VERIFIED_EVERY == 0:
            assert self.server.store is not None
            self.server.store.close()
            report = verify_store(self.server.disk, DATA, live=False)
            if not report.intact:
                raise NotSettled(self._report([], f"the store is not intact: {report}"))

    def _report(self, findings: list[Finding], text: str) -> str:
        state = [f"{producer.name}: {producer.is_done}" for producer in self.producers]
        state += [f"{reader.name}: {reader.core.state}" for reader in self.readers if reader.alive]
        return f"{text} ({', '.join(state)}; {len(findings)} findings)"


def _listed(server: Server) -> list[Row]:
    """What the bucket holds and its manifest lists, read without our reader."""
    rows: list[Row] = []
    state = Journal(server.bucket, nonce="", readers=0).load()
    for note in state.segments.values():
        data = server.bucket.objects.get(note.key, b"")
        assert (len(data), crc32c(data)) == (note.size_bytes, note.crc32c), f"{note.key} is not what is listed"
        with pa.ipc.open_file(pa.py_buffer(data)) as file:
            numbers = [number for batch in _batches(file) for number in batch.column("n").to_pylist()]
        rows += [Row(note.meta.channel, note.meta.first_seq + offset, one) for offset, one in enumerate(numbers)]
    return sorted(rows)


def _batches(file: pa.ipc.RecordBatchFileReader) -> list[pa.RecordBatch]:
    return [file.get_batch(number) for number in range(file.num_record_batches)]


class Nemesis(Machine):
    """What goes wrong, at random moments, of the kinds that this seed brings."""

    def __init__(self, world: World) -> None:
        super().__init__("nemesis", world)
        self._world = world
        self._pause_s = self.chance.choice((0.3, 1.0, 3.0))
        kinds = self.kinds()
        self.chosen = [kind for kind in kinds if kind.__name__.strip("_") in world.only]
        if not world.only:
            self.chosen = self.chance.sample(kinds, self.chance.randint(1, len(kinds)))

    def kinds(self) -> list[Callable[[], None]]:
        """All that may go wrong with this cast."""
        kinds = [
            self._kill_server,
            self._cut_power,
            self._cut_power_soon,
            self._fail_disk,
            self._fill_disk,
            self._kill_producer,
            self._fail_producers_disk,
            self._cut_connection,
            self._silence,
            self._part,
            self._slow_network,
            self._jump_clock,
        ]
        if self._world.readers:
            kinds.append(self._kill_reader)
        if self._world.has_tier:
            kinds += [self._trouble_tier, self._tier_away]
        if self._world.may_wipe:
            kinds.append(self._wipe)
        return kinds

    def begin(self) -> None:
        """From now on."""
        self.alive = True
        self.later(self._pause_s * self.chance.random(), self._strike)

    def _strike(self) -> None:
        if self._world.trouble and self.chosen:
            self.chance.choice(self.chosen)()
            self.later(self._pause_s * self.chance.expovariate(1.0), self._strike)

    def _count(self, kind: str, who: str, detail: str = "") -> None:
        self._world.injected(kind, who, detail)

    # --- processes -------------------------------------------------------------------------------------------------

    def _kill_server(self) -> None:
        server = self._world.server
        if server.alive:
            self._count("server killed", server.name)
            server.kill()

    def _cut_power(self) -> None:
        server = self._world.server
        if server.alive:
            self._count("server lost power", server.name)
            server.lose_power()

    def _cut_power_soon(self) -> None:
        """In the middle of a call of the disk, also while a start recovers."""
        server = self._world.server
        call = server.disk.calls + self.chance.randint(1, 60)
        self._count("server lost power at a disk call", server.name, str(call))
        server.disk.cut_at(call)

    def _kill_producer(self) -> None:
        producer = self.chance.choice(self._world.producers)
        if not producer.alive:
            return
        if producer.habits.durability == "flush" and self.chance.random() < 0.5:
            self._count("producer lost power", producer.name)
            producer.lose_power()
        else:
            self._count("producer killed", producer.name)
            producer.kill()

    def _kill_reader(self) -> None:
        reader = self.chance.choice(self._world.readers)
        if reader.alive:
            self._count("consumer killed", reader.name)
            reader.kill()

    def _wipe(self) -> None:
        if self._world.faults["disk wiped"] == 0:
            self._count("disk wiped", "server")
            self._world.server.wipe()

    # --- disks -----------------------------------------------------------------------------------------------------

    def _fail_disk(self) -> None:
        server = self._world.server
        server.failing = True
        self._fail_once("I/O error", server, self.chance.randint(1, 30))

    def _fill_disk(self) -> None:
        server = self._world.server
        server.failing = True
        server.disk.capacity_bytes = server.disk.used_bytes + self.chance.choice((0, 1000, 100_000))
        self._count("disk full", server.name, str(server.disk.capacity_bytes))
        self.later(self.chance.random() * 3, self._empty_disk)

    def _empty_disk(self) -> None:
        self._world.server.disk.capacity_bytes = None

    def _fail_producers_disk(self) -> None:
        producer = self.chance.choice(self._world.producers)
        self._fail_once("I/O error of a producer", producer, self.chance.randint(1, 10))

    def _fail_once(self, kind: str, machine: Machine, calls: int) -> None:
        """The n-th call of its disk fails. Not the sync of a directory: no journaling file system survives that."""
        left = count(calls, -1)
        self._count(kind, machine.name, str(machine.disk.calls + calls))

        def fails(operation: str, _path: Path) -> int | None:
            return errno.EIO if operation != "sync_dir" and next(left) == 1 else None

        machine.disk.fail_when(fails)

    # --- the network, the clock, the object store ------------------------------------------------------------------

    def _cut_connection(self) -> None:
        live = self._world.network.live()
        if live:
            end = self.chance.choice(live)
            self._count("connection cut", end.process.name)
            end.cut()

    def _silence(self) -> None:
        live = self._world.network.live()
        if live:
            end = self.chance.choice(live)
            self._count("half-open connection", end.process.name)
            for one in self.chance.choice(([end], [end.other], [end, end.other])):
                one.deaf = True

    def _part(self) -> None:
        seconds = self.chance.choice((0.3, 2.0, 8.0))
        self._count("partition", "network", f"{seconds} s")
        self._world.network.part(seconds)

    def _slow_network(self) -> None:
        self._world.network.slow_s = self.chance.choice((0.0005, 0.002, 0.05, 0.3))
        self._count("latency changed", "network", f"{self._world.network.slow_s} s")

    def _jump_clock(self) -> None:
        seconds = self.chance.choice((-86_400.0, -3_600.0, -1.0, 5.0, 3_600.0))
        self._count("wall clock set", "clock", f"{seconds:+} s")
        self._world.clock.jump_wall(seconds)

    def _trouble_tier(self) -> None:
        self._world.server.tier_trouble = self.chance.choice((0.0, 0.05, 0.3))
        self._count("object store unreliable", "tier", str(self._world.server.tier_trouble))

    def _tier_away(self) -> None:
        seconds = self.chance.choice((1.0, 5.0))
        self._count("object store away", "tier", f"{seconds} s")
        self._world.server.tier_away_until_ns = self.timeline.now_ns + round(seconds * NS_PER_S)


def simulate(seed: int, *, only: Sequence[str] = ()) -> Result:
    """Run one seed; raises what is wrong."""
    return World(seed, only=only).run()
