"""A real YARN on loopback: one resource manager and one node manager of Hadoop, whose containers are processes.

The jars are no part of the repository: `HOW_TO_GET` puts them into `build/peers/hadoop`. All that runs, containers too,
works in folders below the given one; that is how it is found again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from types import TracebackType
from xml.sax.saxutils import escape

import psutil

from tests.e2e.served import free_port
from tests.spark.cluster import (
    DAEMON_FLAGS,
    ON_WORKER,
    SETTINGS,
    SPARK_HOME,
    executors_among,
    living_in,
    wait_until,
)
from tests.spark.killed import shoot
from tests.tidy.tree import ROOT

JARS = ROOT / "build" / "peers" / "hadoop"
HOW_TO_GET = "mvn -q -f tests/spark/hadoop.xml dependency:copy-dependencies"
PATIENCE_S = 120.0
SERVERS = {"resource-manager": "resourcemanager.ResourceManager", "node-manager": "nodemanager.NodeManager"}
LOG = """log4j.rootLogger=INFO,out
log4j.appender.out=org.apache.log4j.ConsoleAppender
log4j.appender.out.layout=org.apache.log4j.PatternLayout
log4j.appender.out.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


def lacks() -> tuple[str, ...]:
    """What this machine lacks for it, and how to get it."""
    if not any(JARS.glob("hadoop-yarn-server-nodemanager-*.jar")):
        return "the jars of YARN", HOW_TO_GET
    return () if shutil.which("java") else ("Java",)


class Yarn:
    """Runs while the block does; drivers find it by `conf`, as HADOOP_CONF_DIR."""

    url = "yarn"

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "yarn"
        self.conf = self._folder / "conf"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Yarn:
        self.conf.mkdir(parents=True)
        (self.conf / "yarn-site.xml").write_text(_as_xml(self._site()))
        (self.conf / "log4j.properties").write_text(LOG)
        try:
            for name, server in SERVERS.items():
                self._start(name, f"org.apache.hadoop.yarn.server.{server}")
            log = self._folder / "resource-manager.log"
            wait_until(lambda: "registered with capability" in log.read_text(), "a node")
        except BaseException:
            self.close()
            raise
        return self

    def settings(self) -> dict[str, str]:
        """What a driver sets; executors, and the Python that plans on the driver, lack our package."""
        return SETTINGS | {
            "spark.executor.instances": "1",
            "spark.executor.memoryOverhead": "64m",
            "spark.yarn.am.memory": "128m",
            "spark.yarn.am.memoryOverhead": "64m",
            "spark.yarn.jars": f"local:{SPARK_HOME}/jars/*",
            "spark.yarn.stagingDir": (self._folder / "staging").as_uri(),
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": "127.0.0.1",
            "spark.executorEnv.SPARK_LOCAL_IP": "127.0.0.1",
            f"spark.executorEnv.{ON_WORKER}": "yes",
        }

    def _site(self) -> dict[str, str]:
        services = ("address", "scheduler.address", "resource-tracker.address", "admin.address", "webapp.address")
        return {
            **{f"yarn.resourcemanager.{service}": f"127.0.0.1:{free_port()}" for service in services},
            **{f"yarn.nodemanager.{service}address": "127.0.0.1:0" for service in ("", "localizer.", "webapp.")},
            "yarn.resourcemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.hostname": "127.0.0.1",
            "yarn.nodemanager.resource.memory-mb": "2048",
            "yarn.nodemanager.resource.cpu-vcores": "3",
            "yarn.nodemanager.vmem-check-enabled": "false",
            "yarn.nodemanager.pmem-check-enabled": "false",
            "yarn.nodemanager.disk-health-checker.enable": "false",  # it asks for a disk that is not nearly full
            "yarn.nodemanager.local-dirs": str(self._folder / "local"),
            "yarn.nodemanager.log-dirs": str(self._folder / "logs"),
            "yarn.scheduler.minimum-allocation-mb": "64",
            "yarn.scheduler.capacity.root.queues": "default",
            "yarn.scheduler.capacity.root.default.capacity": "100",
            "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
            "hadoop.tmp.dir": str(self._folder / "tmp"),
        }

    def _start(self, name: str, server: str) -> None:
        java = shutil.which("java")
        assert java is not None
        command = [java, "-Xmx256m", *DAEMON_FLAGS.split(), "-cp", f"{self.conf}:{JARS}/*", server]
        environment = {**os.environ, "JAVA_HOME": str(Path(java).resolve().parents[1])}
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self._folder, env=environment)
        self._processes.append(process)

    def executors(self) -> list[psutil.Process]:
        """The executor processes of now."""
        return executors_among(living_in(self._folder))

    def close(self) -> None:
        """End all that was started."""
        shoot(living_in(self._folder))
        for process in self._processes:
            process.wait(PATIENCE_S)

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()


def _as_xml(settings: dict[str, str]) -> str:
    lines = [
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    ]
    return "\n".join(("<configuration>", *lines, "</configuration>", ""))
