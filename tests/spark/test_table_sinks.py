"""Tables written by a real Spark: rows, and segments that do not pass the JVM."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from holdfast import Store
from holdfast.spark import land
from tests.spark.stores import fill, made
from tests.spark.test_tables import KINDS, content, files_of

QUICK_AND_LONG = [KINDS[0], *(pytest.param(kind, marks=pytest.mark.long) for kind in KINDS[1:])]
"""A query takes seconds; what differs between kinds of tables is tested without Spark too."""


def forget_last_commit(checkpoint: Path) -> None:
    """As after a crash between the table's commit and Spark's own."""
    commits = [path for path in (checkpoint / "commits").iterdir() if path.name.isdigit()]
    last = max(commits, key=lambda path: int(path.name))
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("kind", QUICK_AND_LONG)
def test_a_replayed_micro_batch_changes_nothing_in_a_table(spark: SparkSession, kind: str, tmp_path: Path) -> None:
    source = {**made(tmp_path / "d", segments=2, events=10), "maxEventsPerTrigger": "10"}

    def drain() -> None:
        frame = spark.readStream.format("holdfast").options(**source).load()
        to = {"table": kind, "path": str(tmp_path / "t"), "checkpointLocation": str(tmp_path / "ck")}
        frame.writeStream.format("holdfast").options(**to).trigger(availableNow=True).start().awaitTermination()

    drain()
    assert sorted(content(kind, tmp_path / "t")["n"].to_pylist()) == list(range(1, 21))
    forget_last_commit(tmp_path / "ck")
    with Store.open(tmp_path / "d") as store:
        fill(store, "t", segments=1, events=5)
    drain()
    assert sorted(content(kind, tmp_path / "t")["n"].to_pylist()) == list(range(1, 26))
    assert len(files_of(tmp_path / "t")) == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_appended_once_under_its_identity(spark: SparkSession, kind: str, tmp_path: Path) -> None:
    frame = spark.range(10).withColumnRenamed("id", "n").repartition(3)
    to = {"table": kind, "path": str(tmp_path / "t"), "identity": "nightly"}
    for _ in range(2):
        frame.write.format("holdfast").options(**to).mode("append").save()
    assert sorted(content(kind, tmp_path / "t")["n"].to_pylist()) == list(range(10))


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("kind", QUICK_AND_LONG)
def test_segments_land_in_a_table_once_without_passing_the_jvm(spark: SparkSession, kind: str, tmp_path: Path) -> None:
    source = {**made(tmp_path / "d", segments=3, events=10), "includeMetadata": "true", "maxEventsPerTrigger": "25"}

    def run() -> None:
        to = {"table": kind, "path": str(tmp_path / "t")}
        query = land(spark, source, to, checkpoint=str(tmp_path / "ck"), trigger={"availableNow": True})
        query.awaitTermination()
        assert sum(progress.numInputRows for progress in query.recentProgress) <= 4, "descriptors, not events"

    run()
    forget_last_commit(tmp_path / "ck")
    run()
    found = content(kind, tmp_path / "t").sort_by("n")
    assert found["n"].to_pylist() == found["_seq"].to_pylist() == list(range(1, 31))


def test_descriptors_name_every_part_of_a_range_once(spark: SparkSession, tmp_path: Path) -> None:
    options = {**made(tmp_path / "d", segments=3, events=10), "startingOffsets": '{"t": 5}', "emit": "segments"}
    rows = spark.read.format("holdfast").options(**options).load().orderBy("first_seq").collect()
    assert [(row.channel, row.first_seq, row.last_seq, row.events) for row in rows] == [
        ("t", 5, 10, 6),
        ("t", 11, 20, 10),
        ("t", 21, 30, 10),
    ]
