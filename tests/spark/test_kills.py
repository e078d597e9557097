"""Exactly once while driver, Python workers, executors and server are killed with SIGKILL.

Process death, not power loss. A micro-batch is several tasks, one for each segment, so that sinks are killed while some
of them write and others are done. `HOLDFAST_SPARK_KILLS` and `HOLDFAST_SPARK_SECONDS` are other bounds for the long
loops; a loop ends at the first of them, between two kills.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
import pytest

from holdfast import Store
from holdfast.clock import SystemClock
from holdfast.consumer.adminclient import AdminClient
from holdfast.errors import BadRequest
from holdfast.spark.options import read_options
from holdfast.spark.resolving import open_access
from holdfast.spark.tables import read_manifest
from holdfast.testing.history import HistoryBroken, Kept, Kind, Row, Sent, Stored, require
from tests.e2e.served import ServedProcess, free_port
from tests.faults import figures
from tests.spark.cluster import SETTINGS, Cluster, python_without_us
from tests.spark.driver_process import COPIES
from tests.spark.killed import (
    FLAGS,
    PATIENCE_S,
    SHORT_LIVED,
    Checkpoints,
    Driver,
    Feeder,
    Plan,
    Tally,
    family,
    python_workers,
    quick_python,
    shoot,
    wait_for,
)
from tests.tidy.tree import ROOT

KILLS_QUICK = 5
KILLS_LONG = int(os.environ.get("HOLDFAST_SPARK_KILLS", "100"))
SECONDS_MAX = float(os.environ.get("HOLDFAST_SPARK_SECONDS", "inf"))
log = logging.getLogger(__name__)
LONG = [pytest.mark.long, pytest.mark.timeout(4 * 3600)]
KILLS_OF_A_KIND = int(os.environ.get("HOLDFAST_SPARK_KILLS", "1000"))
LONGER = [pytest.mark.long, pytest.mark.timeout(24 * 3600)]
WORKER_KILLS_LONG = int(os.environ.get("HOLDFAST_KILLS", "2000"))
KINDS = {
    "local": ("worker", "planning", "driver", "server", "worker"),
    "cluster": ("executor", "worker", "driver", "server", "planning"),
    "workers": ("worker",),
    "drivers": ("driver",),
    "executors": ("executor",),
}
"""What is killed in turn, by the name of a loop. Workers come back in no time."""
ON_CLUSTER = ("cluster", "executors")
"""The others are local."""


class Loop:
    """Kills one thing after the other; whatever died is started again."""

    def __init__(self, plan: Plan, served: ServedProcess, cluster: Cluster | None) -> None:
        self._plan = plan
        self._served = served
        self._cluster = cluster
        self._checkpoints = Checkpoints(plan.folder)
        self._chance = random.Random(7)
        self._hit = dict.fromkeys(COPIES, -1)
        self._driver = Driver(plan, COPIES[0])
        self.tally = Tally()
        self.drivers_ended = 0

    def kill(self, number: int, kind: str) -> None:
        """In turn each query is hit in a batch that it has not been hit in, so that all of them go on in between."""
        name = COPIES[number % len(COPIES)]
        assert wait_for(lambda: self._is_running(name)), f"{name} does not go on:\n{self._errors()}"
        threading.Event().wait(self._chance.choice([0, 0.01, 0.05, 0.2]))
        before = {name: self._checkpoints.running(name) for name in COPIES}
        processes = self._kill(kind)
        in_batch = any(batch is not None and batch == self._checkpoints.running(name) for name, batch in before.items())
        self._hit[name] = self._checkpoints.last(name, "offsets")
        self.tally.count(kind, processes=processes, in_batch=in_batch)
        log.info("kill %d: %s, %d processes, in a batch: %s", number, kind, processes, in_batch)
        if kind == "server":
            self._served.start()

    def _is_running(self, name: str) -> bool:
        if not self._driver.is_alive():
            self.drivers_ended += self._driver.process.returncode >= 0
            self._driver.kill()  # its JVM may be there yet
            self._driver = Driver(self._plan, name)
        batch = self._checkpoints.running(name)
        return batch is not None and batch > self._hit[name]

    def _kill(self, kind: str) -> int:
        if kind == "driver":
            return self._driver.kill()
        if kind == "server":
            self._served.kill()
            return 1
        victims: list[psutil.Process] = []

        def found() -> bool:
            victims[:] = self._victims(kind)
            return bool(victims)

        assert wait_for(found), f"there is no {kind} to kill:\n{self._errors()}"
        return shoot(victims if self._chance.random() < 0.5 else [self._chance.choice(victims)])

    def _victims(self, kind: str) -> list[psutil.Process]:
        if kind == "executor":
            assert self._cluster is not None
            return self._cluster.executors()[:1]
        if kind == "planning" or self._cluster is None:
            return self._driver.workers(tasks=kind == "worker")
        return python_workers(self._cluster.family(), tasks=True)

    def _errors(self) -> str:
        return (self._plan.folder / "driver.stderr").read_text()[-20_000:]

    def finish(self) -> None:
        """The last death, and a driver that reads all there is and ends."""
        self._driver.kill()
        last = Driver(self._plan, "available-now")
        try:
            assert last.wait() == 0, self._errors()
        finally:
            last.kill()

    def close(self) -> None:
        """Nothing is left running."""
        self._driver.kill()


@contextmanager
def looping(plan: Plan, served: ServedProcess, cluster: Cluster | None) -> Iterator[Loop]:
    loop = Loop(plan, served, cluster)
    try:
        yield loop
    finally:
        loop.close()


def reaches(source: Mapping[str, str], events: int) -> bool:
    """Whether the source shows so many events."""
    try:
        channels = open_access(read_options(source), patience_s=PATIENCE_S).channels()
    except BadRequest:  # a tier that no server has used yet
        return False
    return any(facts.end_seq > events for facts in channels)


def with_shared_classes(plan: Plan) -> Plan:
    """The same with JVMs that take their classes from a file, ready to use: a start costs less than half.

    The file is of the classes that a driver used which ran to its end. A JVM that it does not fit goes without.
    """
    file = ROOT / "build" / f"spark-{pyspark.__version__}.jsa"
    if not file.exists():
        made = plan.folder / file.name
        conf = {"spark.driver.extraJavaOptions": f"{FLAGS} -XX:ArchiveClassesAtExit={made}"}
        driver = Driver(replace(plan, master="local[2]"), "available-now", conf=conf)
        assert driver.wait() == 0
        assert wait_for(lambda: not family(driver.process.pid)), "the JVM, which writes the file, does not end"
        file.parent.mkdir(exist_ok=True)
        shutil.move(made, file)
    flags = f"{FLAGS} -XX:SharedArchiveFile={file}"
    names = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
    return replace(plan, conf={**plan.conf, **dict.fromkeys(names, flags)})


def check_copies(folder: Path, events: int) -> tuple[int, int]:
    """Every event once, in order; in how many batches and tasks Spark's own Parquet was written.

    Each copy is a store of its own for the checker of histories: what the feeder sent is kept and must be there.
    """
    table = read_manifest(folder / "table").files
    batches = sorted((folder / "out").iterdir())
    lake = [str(file) for batch in batches for file in sorted(batch.glob("*.parquet"))]
    for files in (table, lake):
        numbers = [n for file in files for n in pq.read_table(file, columns=["n"])["n"].to_pylist()]
        judge({"the feeder": list(range(1, events + 1))}, enumerate(numbers, start=1), events)
    with Store.open(folder / "data") as store:
        copies = pa.Table.from_batches(store.read("copy", system=["_seq", "_slot_id"]))
    judge(
        places_of_tasks(copies, events), zip(copies["_seq"].to_pylist(), copies["n"].to_pylist(), strict=True), events
    )
    return len(batches), len(lake)


def places_of_tasks(copies: pa.Table, events: int) -> dict[str, list[int]]:
    """What came through each slot, the place of a task: tasks write at the same time, and each keeps the order."""
    slots = copies.group_by("_slot_id", use_threads=False).aggregate([("n", "list")])
    return {
        f"slot {slot}": sorted({n for n in numbers if 0 < n <= events})
        for slot, numbers in zip(slots["_slot_id"].to_pylist(), slots["n_list"].to_pylist(), strict=True)
    }


def judge(sent: Mapping[str, list[int]], found: Iterable[tuple[int, int]], events: int) -> None:
    """Raise what is wrong with a copy that was sent so and has these numbers at these places."""
    sendings = [Sent(source, "copy", tuple(numbers)) for source, numbers in sent.items()]
    kept = Kept(tuple(range(1, events + 1)))
    require([*sendings, kept, Stored(tuple(Row("copy", seq, n) for seq, n in found), is_final=True)])


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (lambda copy: copy.slice(1), Kind.LOST),
        (lambda copy: pa.concat_tables([copy, copy.slice(5, 1)]), Kind.DUPLICATE),
        (lambda copy: copy.take([1, 0, *range(2, len(copy))]), Kind.REORDER),
        (lambda copy: pa.concat_tables([copy, copy.slice(5, 1).set_column(1, "n", pa.array([21]))]), Kind.PHANTOM),
    ],
    ids=["lost", "duplicate", "reorder", "phantom"],
)
def test_copy_that_is_not_what_was_sent_is_found(spoil: Callable[[pa.Table], pa.Table], kind: Kind) -> None:
    copy = pa.table({"_slot_id": [b"a"] * 10 + [b"b"] * 10, "n": [*range(11, 21), *range(1, 11)]})
    judge(places_of_tasks(copy, 20), enumerate(copy["n"].to_pylist(), start=1), 20)
    spoilt = spoil(copy)
    with pytest.raises(HistoryBroken) as broken:
        judge(places_of_tasks(spoilt, 20), enumerate(spoilt["n"].to_pylist(), start=1), 20)
    assert {finding.kind for finding in broken.value.findings} >= {kind}


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize(
    ("kills", "loop_name", "storage"),
    [
        pytest.param(KILLS_QUICK, "local", "server", marks=pytest.mark.timeout(1800)),
        pytest.param(KILLS_LONG, "local", "server", marks=LONG),
        pytest.param(KILLS_LONG, "local", "tier", marks=LONG),
        pytest.param(KILLS_LONG, "cluster", "server", marks=LONG),
        pytest.param(KILLS_LONG, "cluster", "tier", marks=LONG),
        pytest.param(WORKER_KILLS_LONG, "workers", "tier", marks=LONG),
        pytest.param(KILLS_OF_A_KIND, "drivers", "tier", marks=LONGER),
        pytest.param(KILLS_OF_A_KIND, "executors", "server", marks=LONGER),
    ],
)
def test_every_copy_holds_every_event_once_whatever_is_killed(
    tmp_path: Path, kills: int, loop_name: str, storage: str
) -> None:
    """A single sender writes all, so events have one order. `tier`: objects are all Spark sees."""
    clock = SystemClock()
    began_ns = clock.monotonic_ns()
    tier = f"file://{tmp_path}/bucket"
    (tmp_path / "bucket").mkdir()
    config = tmp_path / "serve.yaml"
    config.write_text("segment.max_open_duration: 200ms\n" + (f"tier.url: {tier}\n" if storage == "tier" else ""))
    admin, port = f"127.0.0.1:{free_port()}", free_port()
    place = {"tier": tier} if storage == "tier" else {"addr": f"http://{admin}"}
    with (
        Cluster(tmp_path) if loop_name in ON_CLUSTER else nullcontext() as cluster,
        ServedProcess(tmp_path / "data", "-c", str(config), "--admin", admin, port=port) as served,
    ):
        plan = Plan(
            folder=tmp_path,
            master=cluster.url if cluster else "local[2,100]",
            source={**place, "channel": "events", "taskBytes": "1"},
            sink={"addr": served.admin, "channel": "copy", "maxFrameBytes": "64"},
            conf={**SETTINGS, **SHORT_LIVED},
            python=python_without_us(tmp_path) if cluster else quick_python(tmp_path),
        )
        with Feeder(served.port, tmp_path, Checkpoints(tmp_path).reached) as feeder:
            assert wait_for(lambda: reaches(plan.source, 1))
            plan = with_shared_classes(plan) if kills > KILLS_QUICK else plan
            with looping(plan, served, cluster) as loop:
                for number, kind in enumerate(islice(cycle(KINDS[loop_name]), kills)):
                    if (clock.monotonic_ns() - began_ns) / 1e9 > SECONDS_MAX:
                        break
                    loop.kill(number, kind)
        assert wait_for(lambda: reaches(plan.source, feeder.events))
        loop.finish()
        if storage == "server":
            client = AdminClient(read_options({**plan.source, "subscriber": "any"}), patience_s=PATIENCE_S)
            subscribers = client.get("subscribers")
            marks = {item["name"]: [lag["mark"] for lag in item["channels"]] for item in subscribers}
            assert marks == {name: [feeder.events] for name in COPIES}
    batches, tasks = check_copies(tmp_path, feeder.events)
    tally = loop.tally
    done = sum(tally.kills.values())
    assert batches > done // len(COPIES)
    assert tasks > 1.5 * batches, "several tasks were killed together"
    assert tally.in_batch >= done * 9 // 10, "the others were killed between batches"
    figures.note(
        "spark",
        f"Spark, loop {loop_name}, reads a {storage}: three copies hold every event once, in order",
        profile="quick" if kills == KILLS_QUICK else "long",
        kills=done,
        **{f"of_{kind}": count for kind, count in tally.kills.items()},
        processes=tally.processes,
        in_a_batch=tally.in_batch,
        drivers_that_ended_by_themselves=loop.drivers_ended,
        batches=batches,
        tasks=tasks,
        events=feeder.events,
        seconds=round((clock.monotonic_ns() - began_ns) / 1e9),
    )
