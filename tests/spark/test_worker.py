"""What a Python worker of Spark looks at for garbage after each task."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark.stores import made

COUNTS = """
import gc
from holdfast.spark.worker import settle
for _ in range(4):
    settle()
    kept = [[] for _ in range(1000)]
    print(gc.get_freeze_count())
"""


def frozen(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"id": pa.array([gc.get_freeze_count()], pa.int64())})


def test_worker_that_has_read_does_not_look_again_at_what_it_has_loaded(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=5)
    assert spark.read.format("holdfast").options(path=str(tmp_path / "d"), channel="t").load().count() == 5
    found = spark.range(1).mapInArrow(frozen, "id long").collect()
    assert found[0]["id"] > 10_000, "an idle worker is used before a new one is made"


def test_only_what_the_first_two_tasks_load_is_kept_for_good() -> None:
    told = subprocess.run([sys.executable, "-c", COUNTS], capture_output=True, text=True, check=True).stdout.split()
    first, second, third, fourth = map(int, told)
    assert first < second
    assert second == third == fourth
