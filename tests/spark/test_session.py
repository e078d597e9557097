"""A real Spark session: what a user types."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from holdfast import Store
from holdfast.spark import report
from holdfast.spark.starting import package_zip
from tests.spark.stores import fill, made
from tests.spark.test_columns import COLUMNS, everything
from tests.tidy.tree import ROOT
from tests.unit.dataflow.flows import until
from tests.unit.server.admin.running import Running


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("store")
    made(found, "t")
    with Store.open(found) as store:
        store.commit("types", everything())
    return found


def test_every_type_reaches_a_dataframe(spark: SparkSession, directory: Path) -> None:
    read = spark.read.format("holdfast").option("path", str(directory))
    frame = read.option("channel", "types").load()
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == {
        name: spark_type for name, (_, spark_type, _) in COLUMNS.items()
    }
    (row,) = frame.drop("struct", "map", "at_ns").collect()
    for name, value in row.asDict().items():
        assert value == COLUMNS[name][2], name


def test_a_view_in_sql_reads_a_channel(spark: SparkSession, directory: Path) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW t USING holdfast OPTIONS (path '{directory}', channel 't')")
    assert spark.sql("SELECT count(*), sum(n) FROM t").collect() == [(30, 465)]


def test_columns_are_chosen_by_a_schema(spark: SparkSession, directory: Path) -> None:
    read = spark.read.format("holdfast").option("path", str(directory)).option("channel", "t")
    assert read.schema("_seq long, absent string").load().tail(1) == [(30, None)]


def test_an_unknown_option_is_an_error_that_names_it(spark: SparkSession, directory: Path) -> None:
    read = spark.read.format("holdfast").option("path", str(directory)).option("channel", "t")
    with pytest.raises(PySparkException, match="bogus: is no option of holdfast"):
        read.option("bogus", "1").load()


@pytest.mark.guarantee("G8")
def test_available_now_reads_all_in_limited_batches_and_confirms_the_last(spark: SparkSession, tmp_path: Path) -> None:
    with Running(tmp_path / "d") as server:
        fill(server.store, "t", segments=3, events=10)
        stream = spark.readStream.format("holdfast").option("addr", f"http://127.0.0.1:{server.port}")
        stream = stream.option("channel", "t").option("subscriber", "lake").option("maxEventsPerTrigger", "12")
        for added, sizes in ((0, [12, 12, 6]), (5, [5]), (0, [])):
            if added:
                fill(server.store, "t", segments=1, events=added)
            write = stream.load().writeStream.format("parquet").option("path", str(tmp_path / "out"))
            query = write.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
            query.awaitTermination()
            assert [step["numInputRows"] for step in query.recentProgress if step["numInputRows"]] == sizes
        (lag,) = server.store.subscribers()[0].channels
        assert (lag.mark, lag.gaps) == (35, ())
    found = spark.read.parquet(str(tmp_path / "out"))
    assert sorted(row["n"] for row in found.collect()) == list(range(1, 36))


def test_queries_of_a_session_are_told_to_the_console_while_it_reports(spark: SparkSession, tmp_path: Path) -> None:
    with Running(tmp_path / "d") as server:
        fill(server.store, "t", segments=1, events=10)
        addr = f"http://127.0.0.1:{server.port}"
        stream = spark.readStream.format("holdfast").option("addr", addr).option("channel", "t").load()
        with report(spark, addr=addr):
            query = stream.writeStream.format("noop").queryName("mine").start()
            try:
                query.processAllAvailable()
                until(lambda: bool(server.state.queries.current()))
            finally:
                query.stop()
        (known,) = server.state.queries.current()
        assert (known.name, known.channels, known.rows, known.behind) == ("mine", ("t",), 10, 0)


WORKERS = """
import os, sys
from holdfast.errors import BadRequest
from holdfast.spark import session
from tests.spark.conftest import SMALL

def python_of(**conf):
    spark = session(master="local[1]", conf={**SMALL, **conf})
    found = spark.sparkContext.pythonExec
    spark.stop()
    return found

for conf in ({}, {"spark.pyspark.python": sys.argv[1]}, {}):
    print(python_of(**conf), os.environ["PYSPARK_PYTHON"])
try:
    session(conf={"spark.pyspark.python": "./env/bin/python"})
except BadRequest as error:
    print(error)
print(os.environ["PYSPARK_PYTHON"])
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("own", ["", "own-python"])
def test_a_python_that_one_session_asks_for_is_not_that_of_the_next(tmp_path: Path, own: str) -> None:
    for name in ("own-python", "asked-for"):
        (tmp_path / name).symlink_to(sys.executable)
    asked, usual = str(tmp_path / "asked-for"), str(tmp_path / own) if own else sys.executable
    environment = {name: value for name, value in os.environ.items() if name != "PYSPARK_PYTHON"}
    environment |= {"PYSPARK_PYTHON": usual} if own else {}
    command = [sys.executable, "-c", WORKERS, asked]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment, timeout=500)
    assert done.returncode == 0, done.stderr
    *sessions, refused, left = done.stdout.splitlines()
    assert sessions == [f"{usual} {usual}", f"{asked} {usual}", f"{usual} {usual}"]
    assert refused.startswith("PYSPARK_PYTHON './env/bin/python': there is none here")
    assert left == usual


def test_what_is_sent_to_executors_can_be_imported_by_itself(tmp_path: Path) -> None:
    target = package_zip(tmp_path)
    code = f"import sys; sys.path.insert(0, {str(target)!r}); import pyspark_holdfast as p; print(p.__file__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith(str(target))
