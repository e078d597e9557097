"""What Spark does with our package in a session that nobody has told of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.spark.java import provide_java
from tests.spark.conftest import SMALL
from tests.spark.stores import made

IMPORTS = """
import sys
import pyspark.sql.datasource, pyspark.sql.types
before = set(sys.modules)
import pyspark_holdfast
assert pyspark_holdfast.DefaultSource.name() == "holdfast"
print(*sorted(name for name in set(sys.modules) - before if name.split(".")[0] not in sys.stdlib_module_names))
"""
READS = """
import sys
from pyspark.sql import SparkSession
builder = SparkSession.builder.master("local[1]")
for key, value in {conf!r}.items():
    builder = builder.config(key, value)
frame = builder.getOrCreate().read.format("holdfast").options(**{options!r}).load()
print("rows", sorted(row.n for row in frame.collect()))
print("imported", any(name.startswith("holdfast") for name in sys.modules))
"""


def told_by(script: str, environ: dict[str, str]) -> list[str]:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_finding_our_source_costs_a_session_that_does_not_use_it_four_small_modules() -> None:
    ours = ["holdfast", "holdfast.spark", "holdfast.spark.source", "holdfast.spark.worker", "pyspark_holdfast"]
    assert told_by(IMPORTS, dict(os.environ))[-1].split() == ours


@pytest.mark.timeout(600)
def test_a_plain_session_of_spark_finds_the_format_by_itself(tmp_path: Path) -> None:
    options = made(tmp_path / "d", segments=1, events=3)
    local = {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    environ = {**os.environ, **local}
    provide_java(environ)
    conf = {**SMALL, "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    told = told_by(READS.format(conf=conf, options=options), environ)
    assert told[-2:] == ["rows [1, 2, 3]", "imported False"]
