"""The examples for Spark run as they stand."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.tidy.tree import ROOT
from tests.unit.server.admin.running import Running


@pytest.mark.timeout(300)
def test_notebook_quickstart_reads_nothing_twice(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "notebook_quickstart.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.endswith(" events")]
    assert told == ["first run: 1000 events", "second run: 500 events", "in the lake: 1500 events"]


def test_tables_example_copies_every_event_once(spark: SparkSession, tmp_path: Path) -> None:
    run = runpy.run_path(str(ROOT / "examples" / "spark_tables.py"))["run"]
    with Running(tmp_path / "d") as server:
        for first in (0, 50):
            values = [float(value) for value in range(first, first + 50)]
            server.store.commit("readings", pa.record_batch({"sensor": ["a"] * 50, "value": values}))
            server.store.flush()
            assert run(spark, f"http://127.0.0.1:{server.port}", str(tmp_path / "lake")) == first + 50
        alerts = [value for batch in server.store.read("alerts") for value in batch.column("value").to_pylist()]
    assert alerts == [float(value) for value in range(91, 100)]
