"""The course of a demo: start everything, kill a producer and the server, start them again, drain, compare.

Promise: nobody is warned, and the moments of the kills are drawn from the seed before anything starts. Everything that
was started is ended, whatever happens. The directory is removed unless it is to be kept, or the demo failed. Nothing
leaves loopback.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np

from holdfast.cli.answer import ExitCode, answer_json
from holdfast.cli.demo.check import Comparison, Found, compare
from holdfast.cli.demo.events import LOGS, QUOTES, ROWS, TRADES, ids_of
from holdfast.cli.demo.processes import PipelineProcess, Producer, ServerProcess
from holdfast.cli.demo.producer import Acked, Closed, Message, Opened, Published
from holdfast.cli.demo.show import Show
from holdfast.cli.demo.watching import Listener, different_rows, table_events, table_rows
from holdfast.cli.demo.windows import check_volumes
from holdfast.clock import NS_PER_S, Clock, SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import BadRequest
from holdfast.spark.java import provide_java
from holdfast.spark.tables import read_manifest
from holdfast.store.store import Store
from holdfast.store.verify import verify_store

TICK_S = 0.25
OUTAGE_S = 3.0
"""How long the server stays dead: long enough to see producers go on without it."""
DRAIN_S_MAX = 300.0
"""How long Spark and the consumer may take to get everything; a busy machine takes minutes."""
FRAMES_PER_SECOND = 20.0
REQUESTS_PER_SECOND = 15.0
SF, MEMORY, OTLP = "sf-1", "memory-1", "otlp-1"
CHANNELS = {SF: TRADES, MEMORY: QUOTES, OTLP: LOGS}
STORE, SPARK, CONSUMER = "store", "Parquet", "consumer"

SERVER_YAML = """data: {data}
server: {{listen: "127.0.0.1:{port}", admin: "127.0.0.1:{admin}"}}
otlp: {{http_listening_addr: "127.0.0.1:{otlp}", payload: columns}}
segment: {{max_open_duration: 500ms}}
retention: {{mode: limits}}  # nothing is deleted because the consumer has confirmed it before Spark was there
event_time: ts
"""
PIPELINE_YAML = """name: demo
checkpoint: checkpoint
trigger: 500ms
master: local[2,4]
conf:
  spark.driver.memory: 1g
  spark.ui.enabled: "false"
  spark.sql.shuffle.partitions: "2"
  spark.log.level: ERROR
  spark.python.authenticate.socketTimeout: 120s  # a busy machine takes longer than 15 s to start Python
sources:
  exchange:
    channel: [trades, quotes, otlp.logs]
    addr: http://127.0.0.1:{admin}
    schema: >-
      id bigint, ts timestamp, symbol string, price double, qty int, side string, bid double, ask double, size int,
      time timestamp, severity_number int, severity_text string, body string, service_name string,
      _channel string, _seq bigint
    options: {{startingOffsets: earliest, includeMetadata: "true", maxEventsPerTrigger: "100000"}}
steps:
  - {{name: deals, from: exchange, filter: price is not null}}  # of one sender, so in order: none is ever late
  - {{name: on_time, from: deals, watermark: {{column: ts, delay: 1s}}}}
  - name: volumes
    from: on_time
    window: {{column: ts, length: 10s}}
    aggregate: {{by: [symbol], values: {{trades: count(price), volume: sum(price * qty)}}}}
outputs:
  events: {{from: exchange, format: parquet, path: events}}
  volumes: {{from: volumes, format: parquet, path: volumes}}
"""


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What happened, and whether the promise held. Counts are events."""

    held: bool
    seed: int
    directory: str | None
    console: str
    seconds: float
    outage_seconds: float
    sent: int
    accepted: int
    in_spark: int
    in_parquet: int
    at_consumer: int
    lost: int
    duplicated: int
    redelivered: int
    recovered_frames: int
    intact: bool
    places: tuple[Comparison, ...]
    windows: int
    wrong_windows: int
    volumes: tuple[tuple[str, int, float], ...]


def run(*, seconds: float, directory: Path | None, keep: bool, seed: int | None, as_json: bool) -> ExitCode:
    """Run the demo and show it; NO if anything promised is not there once, in order, as it was sent."""
    provide_java(os.environ)  # says what is missing before anything is started
    seed = int.from_bytes(os.urandom(2), "little") if seed is None else seed
    show = Show(quiet=as_json)
    with _place(directory, keep=keep) as place, ExitStack() as open_parts:
        demo = _Demo(place, show, open_parts, clock=SystemClock())
        show.begin(place, seconds=seconds, seed=seed, console=demo.console)
        with show.moving():
            demo.play(seconds, Random(seed))
        result = demo.result(seed=seed, kept=keep)
        show.result(result)
        if as_json:
            answer_json("demo", result, ok=result.held)
        if keep:
            demo.stay()
    return ExitCode.DONE if result.held else ExitCode.NO


@contextmanager
def _place(directory: Path | None, *, keep: bool) -> Iterator[Path]:
    """A directory that was not there or was empty."""
    if directory is None:
        place = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    else:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise BadRequest(f"{directory} is not an empty directory; give another --dir")
        directory.mkdir(parents=True, exist_ok=True)
        place = directory.absolute()
    yield place  # a demo that fails leaves its files behind, to be looked into
    if not keep:
        shutil.rmtree(place, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    """Ports on which a server can be started again and again."""
    with ExitStack() as probes:
        found = [probes.enter_context(socket.socket()) for _ in range(count)]
        for probe in found:
            probe.bind(("127.0.0.1", 0))
        return [int(probe.getsockname()[1]) for probe in found]


class _Ledger:
    """What the producers said: which frames are promised, which are accepted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._published = dict.fromkeys(CHANNELS, -1)
        self._acked = dict.fromkeys(CHANNELS, -1)

    def note(self, producer: str, message: Message) -> None:
        with self._lock:
            if isinstance(message, Opened):
                self._published[producer] = max(self._published[producer], message.published_fsn)
            elif isinstance(message, Published):
                self._published[producer] = max(self._published[producer], message.fsn)
            else:
                assert isinstance(message, Acked | Closed)
                fsn = message.fsn if isinstance(message, Acked) else message.acked_fsn
                self._acked[producer] = max(self._acked[producer], fsn)

    def promised(self, producer: str) -> int:
        """Events whose flush returned, or that a restart found in the slot."""
        with self._lock:
            return (self._published[producer] + 1) * ROWS[CHANNELS[producer]]

    def accepted(self, producer: str) -> int:
        """Events that the server confirmed."""
        with self._lock:
            return (self._acked[producer] + 1) * ROWS[CHANNELS[producer]]

    def totals(self) -> tuple[int, int]:
        return sum(map(self.promised, CHANNELS)), sum(map(self.accepted, CHANNELS))


class _Demo:
    """The parent of all processes."""

    def __init__(self, place: Path, show: Show, open_parts: ExitStack, *, clock: Clock) -> None:
        self._place = place
        self._show = show
        self._open_parts = open_parts
        self._clock = clock
        self._started_ns = clock.monotonic_ns()
        self._port, self._admin, self._otlp = _free_ports(3)
        self._ledger = _Ledger()
        self._server: ServerProcess | None = None
        self._pipeline: PipelineProcess | None = None
        self._producers: dict[str, Producer] = {}
        self._listeners: list[Listener] = []
        self._heard: dict[str, Found] = {}
        self._outage_s = 0.0
        self._recovered_frames = 0
        self._pause = threading.Event()

    @property
    def console(self) -> str:
        """Where to look at it in a browser."""
        return f"http://127.0.0.1:{self._admin}/"

    # -- the course ---------------------------------------------------------------------------------------------------

    def play(self, seconds: float, chance: Random) -> None:
        """All of it, until everything has arrived everywhere."""
        self._start()
        first, second = sorted(chance.uniform(0.2, 0.7) for _ in range(2))
        producer_first = chance.random() < 0.5
        self._watch_for(seconds * first)
        (self._kill_producer if producer_first else self._kill_server)()
        self._watch_for(seconds * (second - first))
        (self._kill_server if producer_first else self._kill_producer)()
        self._watch_for(seconds * (1 - second))
        for producer in self._producers.values():
            producer.finish()
        self._say(f"producers closed: every one of {self._ledger.totals()[0]:,} events is answered")
        self._watch_until(self._has_all_arrived)
        self._say("everything has arrived at Spark and at the consumer")
        self._stop()

    def _start(self) -> None:
        (self._place / "server.yaml").write_text(
            SERVER_YAML.format(data=self._place / "data", port=self._port, admin=self._admin, otlp=self._otlp),
            encoding="utf-8",
        )
        (self._place / "pipeline.yaml").write_text(PIPELINE_YAML.format(admin=self._admin), encoding="utf-8")
        self._start_server()
        self._say(f"server started (pid {self._serving.pid})")
        self._pipeline = PipelineProcess(self._place / "pipeline.yaml", self._place / "pipeline.log")
        self._open_parts.callback(self._pipeline.destroy)
        self._say(f"Spark starts (pid {self._pipeline.pid}): every event to Parquet, and volumes per 10 s window")
        for name in CHANNELS:
            self._start_producer(name)
        self._say(
            "two Senders: trades through a slot on disk, quotes from memory; an OpenTelemetry client exports logs"
        )
        conf = f"ws::addr=127.0.0.1:{self._port};reconnect_max_backoff_millis=500;"
        self._listeners = [Listener(conf, channel) for channel in CHANNELS.values()]
        for listener in self._listeners:
            self._open_parts.callback(listener.close)
        self._say("a consumer listens to all channels")
        self._watch_until(lambda: table_rows(self._place / "events") > 0)
        self._say("Spark has written its first batch")

    @property
    def _serving(self) -> ServerProcess:
        assert self._server is not None
        return self._server

    def _start_server(self) -> None:
        self._server = ServerProcess(self._place / "server.yaml", self._place / "server.log")
        self._open_parts.callback(self._server.destroy)

    def _start_producer(self, name: str) -> Opened:
        producer = Producer(name, self._arguments(name), self._place / f"{name}.log", note=self._ledger.note)
        self._producers[name] = producer
        self._open_parts.callback(producer.destroy)
        return producer.wait_until_sending()

    def _arguments(self, name: str) -> list[str]:
        if name == OTLP:
            url = f"http://127.0.0.1:{self._otlp}"
            return ["holdfast.cli.demo.otlpsource", url, str(REQUESTS_PER_SECOND)]
        conf = f"ws::addr=127.0.0.1:{self._port};reconnect_max_backoff_millis=500;initial_connect_retry=async;"
        if name == SF:
            conf += f"sf_dir={self._place / 'slots'};sender_id={SF};"
        return ["holdfast.cli.demo.producer", conf, CHANNELS[name], str(FRAMES_PER_SECOND)]

    def _kill_producer(self) -> None:
        self._producers[SF].kill()
        self._say(f"[bold red]SIGKILL[/] of the producer {SF}")
        opened = self._start_producer(SF)
        self._recovered_frames += opened.published_fsn - opened.acked_fsn
        self._say(f"it is back: {opened.published_fsn - opened.acked_fsn} frames were in its slot, and go out first")

    def _kill_server(self) -> None:
        killed_ns = self._clock.monotonic_ns()
        self._serving.kill()
        self._server = None
        self._say("[bold red]SIGKILL[/] of the server; the producers go on")
        self._watch_for(OUTAGE_S)
        self._start_server()
        self._outage_s += (self._clock.monotonic_ns() - killed_ns) / NS_PER_S
        self._say(f"it is back after {self._outage_s:.1f} s; producers send what it has not confirmed")

    def _has_all_arrived(self) -> bool:
        promised = self._ledger.totals()[0]
        listened = sum(listener.count for listener in self._listeners)
        return table_rows(self._place / "events") >= promised and listened >= promised

    def _stop(self) -> None:
        self._heard = {listener.channel: listener.close() for listener in self._listeners}
        assert self._pipeline is not None
        self._pipeline.terminate()
        self._serving.terminate()

    def stay(self) -> None:
        """Keep the server running until an interrupt."""
        self._start_server()
        self._show.staying(self.console, self._place)
        try:
            self._serving.process.wait()
        except KeyboardInterrupt:
            self._serving.terminate()

    # -- waiting ------------------------------------------------------------------------------------------------------

    def _watch_for(self, seconds: float) -> None:
        until_ns = self._clock.monotonic_ns() + int(seconds * NS_PER_S)
        self._watch(lambda: self._clock.monotonic_ns() >= until_ns, seconds + DRAIN_S_MAX)

    def _watch_until(self, done: Callable[[], bool]) -> None:
        self._watch(done, DRAIN_S_MAX)

    def _watch(self, done: Callable[[], bool], seconds_max: float) -> None:
        until_ns = self._clock.monotonic_ns() + int(seconds_max * NS_PER_S)
        while not done():
            for process in (self._server, self._pipeline):
                if process is not None:
                    process.check()
            for listener in self._listeners:
                if listener.failure is not None:
                    raise listener.failure
            promised, accepted = self._ledger.totals()
            consumed = sum(listener.count for listener in self._listeners)
            landed = table_rows(self._place / "events")
            if self._clock.monotonic_ns() >= until_ns:
                raise ChildProcessError(
                    f"the demo waited {seconds_max:.0f} s in vain: {promised:,} events sent, {accepted:,} accepted, "
                    f"{landed:,} in Parquet, {consumed:,} at the consumer; look into {self._place}"
                )
            self._show.progress(self._seconds(), promised, accepted, landed, consumed)
            self._pause.wait(TICK_S)

    def _seconds(self) -> float:
        return (self._clock.monotonic_ns() - self._started_ns) / NS_PER_S

    def _say(self, text: str) -> None:
        self._show.say(self._seconds(), text)

    # -- comparing ----------------------------------------------------------------------------------------------------

    def result(self, *, seed: int, kept: bool) -> DemoResult:
        """Verify every byte of the store, then compare every event in every place."""
        seconds = self._seconds()
        report = verify_store(LocalFilesystem(), self._place / "data")
        landed = table_events(self._place / "events")
        places: list[Comparison] = []
        with Store.open(self._place / "data") as store:
            for name, channel in CHANNELS.items():
                promised = self._ledger.promised(name)
                for place, found in (
                    (STORE, _stored(store, channel)),
                    (SPARK, landed.get(channel, Found(np.array([], np.int64)))),
                    (CONSUMER, self._heard[channel]),
                ):
                    places.append(compare(channel, place, promised=promised, sent=promised, found=found))
        promised, accepted = self._ledger.totals()
        volumes = check_volumes(self._place / "volumes", trades=self._ledger.promised(SF))
        flaws = sum(item.flaws(may_repeat=item.place == CONSUMER) for item in places)
        return DemoResult(
            held=report.intact and promised > 0 and accepted == promised and flaws == 0 and not volumes.wrong,
            seed=seed,
            directory=str(self._place) if kept else None,
            console=self.console,
            seconds=round(seconds, 1),
            outage_seconds=round(self._outage_s, 1),
            sent=promised,
            accepted=accepted,
            in_spark=read_manifest(self._place / "events").rows,
            in_parquet=sum(item.found for item in places if item.place == SPARK),
            at_consumer=sum(item.found for item in places if item.place == CONSUMER),
            lost=sum(item.lost for item in places),
            duplicated=sum(item.duplicated for item in places if item.place != CONSUMER),
            redelivered=sum(item.duplicated for item in places if item.place == CONSUMER),
            recovered_frames=self._recovered_frames,
            intact=report.intact,
            places=tuple(places),
            windows=volumes.windows,
            wrong_windows=volumes.wrong,
            volumes=volumes.busiest,
        )


def _stored(store: Store, channel: str) -> Found:
    ids, altered = [np.array([], np.int64)], 0
    for batch in store.read(channel):
        ids.append(ids_of(channel, batch))
        altered += different_rows(channel, batch)
    return Found(np.concatenate(ids), altered)
