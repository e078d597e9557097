"""What is killed in the kill loops, a driver with its JVM and Python workers; who writes, and what tells when to kill.

A checkpoint tells from outside whether a micro-batch runs: its number is among the offsets and not among the commits.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from holdfast import Sender
from holdfast.clock import NS_PER_S, SystemClock
from tests.spark.driver_process import COPIES
from tests.tidy.tree import ROOT

PATIENCE_S = 900.0
"""A driver may take minutes to start on a machine that does much else."""
EVENTS_PER_SEND = 10
KEYS = 7
AHEAD_MAX = 400
"""So many events the slowest copy may be behind before the feeder waits: there is always work, and the end is near."""
LOOK_EVERY_S = 0.005
TASKS = "pyspark.worker"
FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SHORT_LIVED = {
    "spark.task.maxFailures": "100",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""For JVMs that are killed often: no time goes into code that would be fast later."""


def wait_for(done: Callable[[], bool]) -> bool:
    """Whether it happened in time."""
    clock, pause = SystemClock(), threading.Event()
    end_ns = clock.monotonic_ns() + round(PATIENCE_S * NS_PER_S)
    while not done():
        if clock.monotonic_ns() > end_ns:
            return False
        pause.wait(LOOK_EVERY_S)
    return True


def shoot(victims: Iterable[psutil.Process]) -> int:
    """SIGKILL; how many were there to be hit."""
    hit = 0
    for process in victims:
        try:
            process.kill()
            hit += 1
        except psutil.NoSuchProcess:
            continue
    return hit


def family(leader: int) -> list[psutil.Process]:
    """A process that leads a session, and all that was started below it, even where a parent is dead by now.

    A Python worker outlives the daemon that forked it: the JVM goes on with those it has.
    """
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == leader:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


def python_workers(processes: Iterable[psutil.Process], *, tasks: bool) -> list[psutil.Process]:
    """Python processes of JVMs that run tasks, or those that plan, commit and ask for columns."""
    found = []
    for process in processes:
        try:
            words = process.cmdline()
        except psutil.NoSuchProcess:
            continue
        modules = [word for word in words if word.startswith("pyspark.")]
        if modules and (modules[-1] == TASKS) is tasks:
            found.append(process)
    return found


class Checkpoints:
    """How far the queries are, as Spark wrote it down."""

    def __init__(self, folder: Path) -> None:
        self._folders = {name: folder / f"checkpoint-{name}" for name in COPIES}

    def last(self, name: str, kind: str) -> int:
        """The number of the last batch that was begun (`offsets`) or ended (`commits`); -1 before the first."""
        try:
            return max(
                (int(file.name) for file in (self._folders[name] / kind).iterdir() if file.name.isdigit()), default=-1
            )
        except FileNotFoundError:
            return -1

    def running(self, name: str) -> int | None:
        """The number of the batch that runs."""
        ended = self.last(name, "commits")
        begun = self.last(name, "offsets")
        return begun if begun > ended else None

    def reached(self) -> int:
        """The event that the slowest of the queries has begun."""
        return min(self._end_of(name) for name in COPIES)

    def _end_of(self, name: str) -> int:
        last = self.last(name, "offsets")
        try:
            text = (self._folders[name] / "offsets" / str(last)).read_text()
            return int(json.loads(text.splitlines()[-1])["events"])
        except (FileNotFoundError, ValueError, IndexError):  # none yet, or it is being written
            return 0


class Feeder:
    """A `Sender` with a slot that sends until told to stop, whatever happens to the server."""

    def __init__(self, port: int, folder: Path, reached: Callable[[], int]) -> None:
        fast = "reconnect_initial_backoff_millis=50;reconnect_max_backoff_millis=500;initial_connect_retry=async;"
        self._sender = Sender.from_conf(f"ws::addr=127.0.0.1:{port};sf_dir={folder / 'sf'};sender_id=feeder;{fast}")
        self._reached = reached
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="feeder")
        self.events = 0

    def _run(self) -> None:
        while not self._end.wait(0.1):
            if self.events - self._reached() < AHEAD_MAX:
                self._send()

    def _send(self) -> None:
        numbers = range(self.events + 1, self.events + EVENTS_PER_SEND + 1)
        self._sender.send("events", [{"key": n % KEYS, "n": n} for n in numbers])
        self._sender.flush()
        self.events += EVENTS_PER_SEND

    def __enter__(self) -> Feeder:
        self._send()
        assert self._sender.drain(PATIENCE_S)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(PATIENCE_S)
        assert self._sender.drain(PATIENCE_S), "the server has not answered for all"
        self._sender.close()


@dataclass(frozen=True)
class Plan:
    """What a driver is started with; the same for all of a loop."""

    folder: Path
    master: str
    source: Mapping[str, str]
    sink: Mapping[str, str]
    conf: Mapping[str, str]
    python: Path
    """For Python workers."""

    def command(self, mode: str, conf: Mapping[str, str]) -> list[str]:
        """The command line; `mode` as tests/spark/driver_process.py has it."""
        options = [json.dumps(dict(part)) for part in ({**self.conf, **conf}, self.source, self.sink)]
        return [sys.executable, "-m", "tests.spark.driver_process", str(self.folder), self.master, *options, mode]


class Driver:
    """One driver process with all that it starts."""

    def __init__(self, plan: Plan, mode: str, *, conf: Mapping[str, str] | None = None) -> None:
        environment = {**os.environ, "PYSPARK_PYTHON": str(plan.python), "PYSPARK_DRIVER_PYTHON": sys.executable}
        environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYTHONPATH": ":".join([str(ROOT), *python_path()])}
        environment |= {"SPARK_LAUNCHER_OPTS": FLAGS}
        with (plan.folder / "driver.stderr").open("ab") as errors:
            self.process = subprocess.Popen(
                plan.command(mode, conf or {}), stdout=errors, stderr=errors, cwd=plan.folder, env=environment,
                start_new_session=True,
            )  # fmt: skip

    def is_alive(self) -> bool:
        """False after it ended by itself, too."""
        return self.process.poll() is None

    def kill(self) -> int:
        """SIGKILL to the driver, its JVM and its Python workers, at once."""
        hit = shoot(family(self.process.pid))
        self.process.wait(PATIENCE_S)
        return hit

    def workers(self, *, tasks: bool) -> list[psutil.Process]:
        """Its Python workers that run tasks, or those that plan, commit and ask for columns."""
        return python_workers(family(self.process.pid), tasks=tasks)

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE_S * 4)


def python_path() -> list[str]:
    """Where this process was told to look for modules."""
    return [place for place in os.environ.get("PYTHONPATH", "").split(":") if place]


def quick_python(folder: Path) -> Path:
    """An interpreter for Python workers that finds pyspark installed, not in Spark's archive of sources.

    Spark puts the archive first, and each worker that starts would compile what it imports from it.
    """
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nPYTHONPATH="{":".join(python_path())}" exec {sys.executable} "$@"\n')
    path.chmod(0o700)
    return path


@dataclass
class Tally:
    """What a loop has done."""

    kills: dict[str, int] = field(default_factory=dict)
    processes: int = 0
    in_batch: int = 0

    def count(self, kind: str, *, processes: int, in_batch: bool) -> None:
        """One kill."""
        self.kills[kind] = self.kills.get(kind, 0) + 1
        self.processes += processes
        self.in_batch += in_batch
