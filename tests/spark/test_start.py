"""How `holdfast pipeline run` ends when Spark does not start: soon, with one line that says why."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.served import free_port
from tests.spark.killed import family, shoot
from tests.spark.test_pipeline_command import FILE

pytestmark = pytest.mark.timeout(600)  # above all patience of one test, so that it ends by itself and says why
PATIENCE_S = 240.0
CLUSTERS = FILE.replace("master: local[2,4]\n", "")
ASKED = {"HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_PYTHON"}


@contextmanager
def started(folder: Path, master: str, **environ: str) -> Iterator[subprocess.Popen[str]]:
    """A pipeline on a cluster; at the end nothing is left of it, nor of what it started."""
    (folder / "p.yaml").write_text(CLUSTERS)
    command = [sys.executable, "-m", "holdfast.cli.main", "pipeline", "run", "p.yaml", "--master", master]
    environment: Mapping[str, str] = {name: value for name, value in os.environ.items() if name not in ASKED} | environ
    process = subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        shoot(family(process.pid))
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Its exit code, and the last line that it printed as an error."""
    watch = threading.Timer(PATIENCE_S, lambda: shoot(family(process.pid)))
    watch.start()
    try:
        _, errors = process.communicate()
    finally:
        watch.cancel()
    return process.returncode, ([line for line in errors.splitlines() if line.startswith("holdfast: ")] or [errors])[-1]


def test_a_python_of_executors_that_is_not_here_is_refused_before_spark_starts(tmp_path: Path) -> None:
    with started(tmp_path, "yarn", PYSPARK_PYTHON="./env/bin/python") as process:
        code, line = ended(process)
    assert code == 2
    assert line.startswith("holdfast: PYSPARK_PYTHON './env/bin/python': there is none here, and Spark runs it on the")


def test_yarn_without_its_configuration_is_told_what_it_needs(tmp_path: Path) -> None:
    with started(tmp_path, "yarn") as process:
        code, line = ended(process)
    assert code == 4
    assert line.startswith(
        "holdfast: Spark did not start with master 'yarn': it needs HADOOP_CONF_DIR or YARN_CONF_DIR"
    )


@pytest.mark.long
def test_a_kubernetes_that_is_away_is_told_with_its_address(tmp_path: Path) -> None:
    port = free_port()
    with started(tmp_path, f"k8s://https://127.0.0.1:{port}", SPARK_LOCAL_IP="127.0.0.1") as process:
        code, line = ended(process)
    assert code == 4
    assert line.startswith(f"holdfast: Spark did not start with master 'k8s://https://127.0.0.1:{port}'")
    assert f"Connection refused: /127.0.0.1:{port}" in line


def test_a_signal_ends_a_pipeline_that_waits_for_its_cluster(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as resource_manager:
        resource_manager.settimeout(PATIENCE_S)
        address = f"127.0.0.1:{resource_manager.getsockname()[1]}"
        site = f"<property><name>yarn.resourcemanager.address</name><value>{address}</value></property>"
        (tmp_path / "yarn-site.xml").write_text(f"<configuration>{site}</configuration>")
        with started(tmp_path, "yarn", HADOOP_CONF_DIR=str(tmp_path), SPARK_LOCAL_IP="127.0.0.1") as process:
            asked, _ = resource_manager.accept()
            with asked:
                process.send_signal(signal.SIGTERM)
                assert ended(process)[0] == 0
