"""What else would keep messages of 1 KiB, in turns with ours: embedded ones, and servers on this machine.

Embedded: a commit after each message, and one for a thousand. Servers: each message answered for itself with 1,024 on
the way, and messages in batches of the client's own making. Every peer runs twice where it has the choice: synced
before it answers, which is what an answer of ours means, and as it comes, when an answer means the system's memory.

| peer | where from | measured in |
|---|---|---|
| SQLite | Python; `journal_mode=WAL`, `synchronous=FULL` | here |
| persist-queue | the dependency group `bench`; its own queue on SQLite, as it comes | here |
| Redis Streams | Debian's `redis-server`; `XADD` in pipelines | here |
| Kafka | Maven Central, jars of `kafka_2.13` and `kafka-tools` in `build/peers/kafka` (see below), and Java | here |
| RabbitMQ | Debian's `rabbitmq-server`; a quorum queue syncs before it confirms, a stream does not | here |
| NATS JetStream | the dependency group `bench` | `ingest.py`, with targets; `consume.py` |
| QuestDB's client, with its store-and-forward | the dependency group `dev` | `sender.py` |
| Spark's Parquet source and sink | the extra `spark` | `spark.py` |

One that is not there is left out; `python -m bench` begins with a line that says so (`absent`). The jars of Kafka, in
the version that `kafka.pom.xml` names, are fetched once, in the root of the working copy, by

    mvn -q -f bench/kafka.pom.xml dependency:copy-dependencies -DoutputDirectory="$PWD/build/peers/kafka"

Kafka is loaded by its own generator. Its client makes a batch of what waits, at most as large as one of ours: Kafka
syncs each batch for itself, and with the 16 KiB that are its default each sync would be for 15 messages. A request for
each message is left out: of those Kafka's client keeps 5 on the way, and the server takes one after the other. What
Java does before it is warm is not counted.
"""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
import struct
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import pyarrow as pa

from bench import jetstream, questdb_client
from bench.figures import Result
from bench.served import serving
from bench.workload import ROOT, Bench, Budget, Timing, in_turns, one_caller, rate
from holdfast import Sender, Store

MESSAGE = os.urandom(1024)
BATCH = 1000
"""Messages of a commit of many, and what a Sender makes one frame of."""
WINDOW = 1024
EACH = f"server, each message answered, {WINDOW} on the way"
BATCHES = "server, batches of the client's making"
KAFKA = ROOT / "build" / "peers" / "kafka"
KAFKA_FETCH = f"mvn -q -f {ROOT / 'bench' / 'kafka.pom.xml'} dependency:copy-dependencies -DoutputDirectory={KAFKA}"
RABBITMQ = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Not the one on the path, which is for the system's own user only."""
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
    if not jetstream.has_client():
        yield "NATS JetStream (the dependency group `bench`)"
    if find_spec("persistqueue") is None:
        yield "persist-queue (the dependency group `bench`)"
    if not _has_redis():
        yield "Redis (Debian's `redis-server`, and the dependency group `bench`)"
    if not _has_kafka():
        yield f"Kafka (Java, and its jars, fetched by: {KAFKA_FETCH})"
    if not RABBITMQ.exists():
        yield "RabbitMQ (Debian's `rabbitmq-server`)"
    if not questdb_client.is_installed():
        yield "QuestDB's client (the dependency group `dev`)"


def _has_redis() -> bool:
    return shutil.which("redis-server") is not None and find_spec("redis") is not None


def _has_kafka() -> bool:
    return any(KAFKA.glob("kafka-tools-*.jar")) and shutil.which("java") is not None


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
        if RABBITMQ.exists():
            yield from [_beside_rabbitmq(bench, singly, synced=synced) for synced in (True, False)]
        if _has_kafka():
            yield from [_beside_kafka(bench, EACH, singly, synced=synced) for synced in (True, False)]
            yield from [_beside_kafka(bench, BATCHES, in_batches, synced=synced) for synced in (True, False)]


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
def _running(command: list[str], port: int, folder: Path, more: dict[str, str] | None = None) -> Iterator[None]:
    """A peer's server, with more in its environment, until the block ends; its folder goes with it."""
    log, environment = folder / "output.log", {**os.environ, **(more or {})}
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, env=environment) as process,
    ):
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
    return _result(EACH, timings["ours"], timings["peer"], f"Redis Streams, appendfsync {policy}")


def _xadd(client: object, seconds: float) -> Timing:
    def call() -> None:
        pipeline = client.pipeline(transaction=False)  # type: ignore[attr-defined]
        for _ in range(WINDOW):
            pipeline.xadd("bench", {"body": MESSAGE})
        pipeline.execute()

    timing = one_caller(call, Budget(seconds))
    return Timing(timing.calls * WINDOW, timing.seconds)


# --- Kafka ----------------------------------------------------------------------------------------------------------


def _beside_kafka(bench: Bench, case: str, ours: Way, *, synced: bool) -> Result:
    folder, port, controller = _folder(bench, "kafka", synced=synced), _free_port(), _free_port()
    properties = folder / "server.properties"
    properties.write_text(_kafka_properties(folder, port, controller, synced=synced), encoding="utf-8")
    _java("kafka.tools.StorageTool", "format", "-t", _kafka_id(), "-c", str(properties))
    settings = ["acks=all", f"batch.size={BATCH * len(MESSAGE)}"]
    if case == EACH:
        settings.append(f"buffer.memory={int(WINDOW * len(MESSAGE) * 1.1)}")  # a record has a head too
    message = folder / "message"
    message.write_text(os.urandom(len(MESSAGE) // 2).hex(), encoding="ascii")  # text, says its generator
    generator = ["org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", f"127.0.0.1:{port}",
                 "--topic", "bench", "--payload-file", str(message), "--num-records", str(10**9), "--throughput", "-1",
                 "--reporting-interval", "1000", "--command-property", *settings]  # fmt: skip
    peer = partial(_kafka_load, _java_command(*generator), int(bench.scale(4, 1)), int(bench.scale(4, 1)))
    with _running(_java_command("kafka.Kafka", str(properties)), port, folder):
        if not bench.quick:
            peer()  # makes the topic, and warms the server
        timings = in_turns({"peer": peer, "ours": ours}, rounds=bench.rounds(3))
    mode = "flush.messages=1" if synced else "answers before it syncs"
    return _result(case, timings["ours"], timings["peer"], f"Kafka, acks=all, {mode}")


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


def _kafka_load(command: list[str], warm_s: int, seconds: int) -> Timing:
    """By Kafka's own generator, which tells each second how many were answered; its first ones are not counted."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        too_late = threading.Timer(PATIENCE_S, process.kill)
        too_late.start()
        try:
            told = (int(line.split()[0]) for line in process.stdout if " records sent, " in line)
            list(islice(told, warm_s))
            started = time.perf_counter()
            counts = list(islice(told, seconds))
            timing = Timing(sum(counts), time.perf_counter() - started)
        finally:
            too_late.cancel()
            process.terminate()
    if len(counts) < seconds:
        raise RuntimeError(f"{process.args!r} ended too early")
    return timing


# --- RabbitMQ -------------------------------------------------------------------------------------------------------


def _beside_rabbitmq(bench: Bench, ours: Way, *, synced: bool) -> Result:
    folder, port, names_port = _folder(bench, "rabbitmq", synced=synced), _free_port(), _free_port()
    node = folder / "node"
    node.mkdir()
    environment = {
        "HOME": str(node),  # for its cookie
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(names_port),
        "RABBITMQ_NODENAME": "bench@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(_free_port()),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_MNESIA_BASE": str(node),
        "RABBITMQ_LOG_BASE": str(node),
        "RABBITMQ_CONF_ENV_FILE": str(node / "none"),
        "RABBITMQ_CONFIG_FILE": str(node / "none"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(node / "none"),
        "RUNNING_UNDER_SYSTEMD": "1",  # the script becomes the server, so that a signal reaches it
    }
    names = ["epmd", "-address", "127.0.0.1", "-port", str(names_port)]  # the server would leave one behind
    with _running(names, names_port, folder), _running([str(RABBITMQ)], port, node, environment):
        kind = b"quorum" if synced else b"stream"
        peer = partial(_confirmed, port, kind, bench.scale(4, 1))
        timings = in_turns({"peer": peer, "ours": ours}, rounds=bench.rounds(3))
    mode = "quorum queue" if synced else "stream, answers before it syncs"
    return _result(EACH, timings["ours"], timings["peer"], f"RabbitMQ, {mode}")


def _confirmed(port: int, kind: bytes, seconds: float) -> Timing:
    """Over one raw socket, as to JetStream; ends when all are confirmed."""
    publish = _amqp_method(1, 60, 40, b"\0\0\0" + _amqp_short(b"bench") + b"\0")
    durable = _amqp_frame(2, 1, struct.pack(">HHQHB", 60, 0, len(MESSAGE), 1 << 12, 2))
    burst, some = 64, (publish + durable + _amqp_frame(3, 1, MESSAGE)) * 64
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as link, link.makefile("rb") as answers:
        for step in _amqp_opening(kind):
            link.sendall(step)
            answers.read(_AMQP_HEAD.unpack(answers.read(_AMQP_HEAD.size))[2] + 1)
        sent = confirmed = 0
        started = time.perf_counter()
        while (more := time.perf_counter() < started + seconds) or confirmed < sent:
            if more and sent + burst <= confirmed + WINDOW:
                link.sendall(some)
                sent += burst
            else:
                *_, method, confirmed, _multiple, _end = _AMQP_ACK.unpack(answers.read(_AMQP_ACK.size))
                assert method == 80, f"not an ack: {method}"
        return Timing(sent, time.perf_counter() - started)


_AMQP_HEAD = struct.Struct(">BHI")
_AMQP_ACK = struct.Struct(">BHIHHQBB")
"""Tags come in order, so the last is how many are confirmed."""


def _amqp_opening(kind: bytes) -> list[bytes]:
    """What to say to have a queue of this kind and confirms; each step is answered by one frame."""
    login = _amqp_long(b"") + _amqp_short(b"PLAIN") + _amqp_long(b"\0guest\0guest") + _amqp_short(b"en_US")
    options = _amqp_long(_amqp_short(b"x-queue-type") + b"S" + _amqp_long(kind))
    return [
        b"AMQP\0\0\x09\x01",
        _amqp_method(0, 10, 11, login),
        _amqp_method(0, 10, 31, struct.pack(">HIH", 1, 1 << 17, 0)) + _amqp_method(0, 10, 40, b"\1/\0\0"),
        _amqp_method(1, 20, 10, b"\0"),
        _amqp_method(1, 50, 10, b"\0\0" + _amqp_short(b"bench") + b"\2" + options),
        _amqp_method(1, 85, 10, b"\0"),
    ]


def _amqp_frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _AMQP_HEAD.pack(kind, channel, len(payload)) + payload + b"\xce"


def _amqp_method(channel: int, group: int, method: int, arguments: bytes) -> bytes:
    return _amqp_frame(1, channel, struct.pack(">HH", group, method) + arguments)


def _amqp_short(text: bytes) -> bytes:
    return bytes([len(text)]) + text


def _amqp_long(text: bytes) -> bytes:
    return struct.pack(">I", len(text)) + text
