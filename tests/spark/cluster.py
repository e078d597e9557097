"""A real standalone cluster on loopback: one master, two workers of one core, started from pyspark's own scripts."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Protocol

import psutil
import pyspark

from holdfast.clock import NS_PER_S, SystemClock
from tests.e2e.served import free_port
from tests.spark.killed import family, quick_python, shoot

PATIENCE_S = 120.0
SPARK_HOME = Path(pyspark.__file__).parent
MEMORY = "512m"
EXECUTORS = ("CoarseGrainedExecutorBackend", "KubernetesExecutorBackend")
ON_WORKER = "HOLDFAST_TEST_ON_WORKER"
DAEMON_FLAGS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SETTINGS = {
    "spark.executor.memory": "490m",
    "spark.executor.cores": "1",
    "spark.driver.memory": "600m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "8",
    "spark.python.authenticate.socketTimeout": "120s",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""For drivers."""


def wait_until(done: Callable[[], bool], what: str) -> None:
    clock, pause = SystemClock(), threading.Event()
    end_ns = clock.monotonic_ns() + round(PATIENCE_S * NS_PER_S)
    while not done():
        assert clock.monotonic_ns() < end_ns, f"{what} did not happen in {PATIENCE_S} s"
        pause.wait(0.1)


def python_without_us(folder: Path) -> Path:
    """An interpreter for drivers that on executors of the cluster has all that is installed but our own package."""
    path = folder / "python-of-cluster"
    site = sysconfig.get_paths()["purelib"]
    path.write_text(
        f"""#!/bin/sh
[ -n "${ON_WORKER}" ] || exec {quick_python(folder)} "$@"
PYTHONPATH="{site}" exec {sys.executable} -S "$@"
"""
    )
    path.chmod(0o700)
    return path


def living_in(folder: Path) -> list[psutil.Process]:
    """Every process that works in a folder or below it; a container leads a session of its own, and is found so."""
    found = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()).is_relative_to(folder):
                found.append(process)
        except psutil.Error:  # of another user, or gone by now
            continue
    return found


def executors_among(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """The JVMs that run tasks, without the shells that wait for them."""
    found = []
    for process in processes:
        try:
            if process.name() == "java" and any(word.endswith(EXECUTORS) for word in process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


class RunsExecutors(Protocol):
    """A cluster, of whatever kind."""

    url: str

    def executors(self) -> list[psutil.Process]:
        """The executor processes of now."""
        ...


def kill_executor(cluster: RunsExecutors) -> None:
    """SIGKILL to one executor, as soon as there is one."""
    wait_until(lambda: bool(cluster.executors()), "an executor")
    cluster.executors()[0].kill()


class Cluster:
    """Runs while the block does."""

    def __init__(self, folder: Path, *, workers: int = 2) -> None:
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self.url = ""

    def __enter__(self) -> Cluster:
        port = free_port()
        self.url = f"spark://127.0.0.1:{port}"
        try:
            self._start("master.Master", "--port", str(port), "--webui-port", "0")
            self._wait_for("master.Master.log", "Starting Spark master")
            for number in range(self._workers):
                work = str(self._folder / f"work-{number}")
                options = ("--cores", "1", "--memory", MEMORY, "--work-dir", work, "--webui-port", "0")
                self._start("worker.Worker", *options, self.url, name=f"worker-{number}")
            for number in range(self._workers):
                self._wait_for(f"worker-{number}.log", "Successfully registered")
        except BaseException:
            self.close()
            raise
        return self

    def _start(self, kind: str, *options: str, name: str = "") -> None:
        command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1"]
        environment = {
            **os.environ,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "128m",
            ON_WORKER: "yes",
            "SPARK_DAEMON_JAVA_OPTS": f"{DAEMON_FLAGS} -Dspark.deploy.maxExecutorRetries=-1",  # however many are killed
        }
        with (self._folder / f"{name or kind}.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, *options], stdout=log, stderr=log, env=environment, start_new_session=True
            )
        self._processes.append(process)

    def _wait_for(self, log: str, text: str) -> None:
        wait_until(lambda: text in (self._folder / log).read_text(), f"{text!r} in {log}")

    def family(self) -> list[psutil.Process]:
        """Every process of it."""
        return [member for process in self._processes for member in family(process.pid)]

    def executors(self) -> list[psutil.Process]:
        """The executor processes of now."""
        return executors_among(self.family())

    def close(self) -> None:
        """End all that was started."""
        shoot(self.family())
        for process in self._processes:
            process.wait(PATIENCE_S)

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
