"""A pipeline on a real standalone cluster whose executors lack our package and are killed with SIGKILL."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pytest

from holdfast.spark.tables import read_manifest
from tests.spark.cluster import SETTINGS, Cluster, RunsExecutors, kill_executor, python_without_us
from tests.spark.stores import made

PATIENCE_S = 500.0


def pipeline(folder: Path, *, batch: int, conf: Mapping[str, str] = SETTINGS) -> None:
    """A channel of the store in `d` to a Parquet table, so many events at a time."""
    file = {
        "name": "numbers",
        "sources": {"t": {"channel": "t", "path": "d", "options": {"maxEventsPerTrigger": batch}}},
        "steps": [{"name": "doubled", "with_column": {"m": "n * 2"}}],
        "outputs": {"lake": {"from": "doubled", "format": "parquet", "path": "lake"}},
        "checkpoint": "checkpoint",
        "trigger": "available_now",
        "restart": {"backoff": "100ms"},
        "conf": conf,
    }
    (folder / "p.yaml").write_text(json.dumps(file))  # JSON is YAML


def run(cluster: RunsExecutors, folder: Path, *, kills: int) -> int:
    """Run it, and kill an executor after each of the first batches; the exit code."""
    command = [sys.executable, "-m", "holdfast.cli.main", "pipeline", "run", "p.yaml", "--master", cluster.url]
    environment = {**os.environ, "PYSPARK_PYTHON": str(python_without_us(folder)), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYSPARK_DRIVER_PYTHON"] = sys.executable
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        watch = threading.Timer(PATIENCE_S, process.kill)
        watch.start()
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "batch" in line and kills:
                    kill_executor(cluster)
                    kills -= 1
            code = process.wait(PATIENCE_S)
        finally:
            watch.cancel()
            process.kill()
    assert not kills, "it ended before all kills"
    return code


def check(folder: Path, events: int) -> None:
    table = ds.dataset(read_manifest(folder / "lake").files, format="parquet").to_table()
    assert sorted(table.column("n").to_pylist()) == list(range(1, events + 1))
    assert table.column("m").to_pylist() == [2 * n for n in table.column("n").to_pylist()]


@pytest.mark.guarantee("G8")
@pytest.mark.timeout(600)
@pytest.mark.long
def test_an_executor_is_killed_and_the_output_has_every_event_once(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=4, events=10)
    pipeline(tmp_path, batch=10)
    with Cluster(tmp_path) as cluster:
        assert run(cluster, tmp_path, kills=1) == 0, (tmp_path / "errors").read_text()
    check(tmp_path, 40)
    assert not [child for child in psutil.Process().children() if child.status() == psutil.STATUS_RUNNING]


@pytest.mark.long
@pytest.mark.guarantee("G8")
@pytest.mark.timeout(3600)
def test_executors_are_killed_in_a_loop_and_the_output_has_every_event_once(tmp_path: Path) -> None:
    made(tmp_path / "d", segments=30, events=10)
    pipeline(tmp_path, batch=10)
    with Cluster(tmp_path) as cluster:
        assert run(cluster, tmp_path, kills=20) == 0, (tmp_path / "errors").read_text()
    check(tmp_path, 300)
