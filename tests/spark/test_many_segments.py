"""A first batch of ten thousand segments."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

from holdfast import Store
from holdfast.spark.planning import Task
from tests.spark.stores import between, fill, numbers, stream_of
from tests.unit.server.admin.running import Running

SEGMENTS = 10_000


def filled(directory: Path) -> None:
    with Store.open(directory) as store:
        for number in range(SEGMENTS):
            store.commit("t", numbers(1 + number, 1))
            store.seal("t")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_ten_thousand_segments_fit_into_the_first_batch(spark: SparkSession, tmp_path: Path) -> None:
    filled(tmp_path / "d")
    options = {"path": str(tmp_path / "d"), "channel": "t"}
    reader = stream_of(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {"t": SEGMENTS + 1}
    tasks = reader.partitions(start, end)
    assert sum(len(task.pieces) for task in tasks if isinstance(task, Task)) == SEGMENTS
    assert between(reader, start, end) == list(range(1, SEGMENTS + 1))
    with Running(tmp_path / "d") as server:
        over_http = {"addr": f"http://127.0.0.1:{server.port}", "path": str(tmp_path / "d"), "channel": "t"}
        frame = spark.readStream.format("holdfast").options(**over_http).load()
        to = {"table": "parquet", "path": str(tmp_path / "t"), "checkpointLocation": str(tmp_path / "ck")}
        query = frame.writeStream.format("holdfast").options(**to).trigger(availableNow=True).start()
        query.awaitTermination()
        assert [progress.numInputRows for progress in query.recentProgress if progress.numInputRows] == [SEGMENTS]


def test_many_small_segments_are_read_by_one_task(tmp_path: Path) -> None:
    with Store.open(tmp_path) as store:
        fill(store, "t", segments=1, events=1)
        for number in range(200):
            store.commit("t", numbers(2 + number, 1))
            store.seal("t")
    reader = stream_of({"path": str(tmp_path), "channel": "t"})
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    (task,) = reader.partitions(start, end)
    assert isinstance(task, Task)
    assert len(task.pieces) > 100
    assert between(reader, start, end) == list(range(1, 202))
