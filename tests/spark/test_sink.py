"""Rows into channels on a real Spark, with a real server: once, whatever runs again."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from holdfast.errors import AccessRefused, ReplayDiffers
from holdfast.spark import write_batch
from holdfast.spark.sink import Origin, send_rows
from holdfast.spark.sinkoptions import read_sink_options
from holdfast.spark.source import HoldfastSource
from tests.spark.stores import fill, numbers
from tests.unit.server.admin.running import Running


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path / "d") as running:
        yield running


def addr(server: Running) -> str:
    return f"http://127.0.0.1:{server.port}"


def stored(server: Running, channel: str) -> list[int]:
    server.store.flush()
    return [n for batch in server.store.read(channel) for n in batch.column("n").to_pylist()]


def drain(frame: DataFrame, checkpoint: Path, **options: str) -> None:
    """One run of a query that takes what is there."""
    writer = frame.writeStream.format(options.pop("format", "holdfast")).options(**options)
    query = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    query.awaitTermination()


# -- without Spark ----------------------------------------------------------------------------------------------------


def test_a_task_that_runs_again_stores_nothing_twice(server: Running) -> None:
    options = read_sink_options({"addr": addr(server), "channel": "out", "maxFrameBytes": "80"})
    rows = [numbers(1, 25), numbers(26, 5)]
    first = send_rows(options, rows, Origin("query", 7, 0))
    again = send_rows(options, rows, Origin("query", 7, 0))
    assert (first.events, first.repeated, again.events, again.repeated) == (30, 0, 30, 30)
    assert stored(server, "out") == list(range(1, 31))


def test_a_task_that_was_cut_off_is_completed_by_the_next_attempt(server: Running) -> None:
    options = read_sink_options({"addr": addr(server), "channel": "out", "maxFrameBytes": "80"})
    send_rows(options, [numbers(1, 10)], Origin("query", 0, 0))  # the first frame of three
    found = send_rows(options, [numbers(1, 30)], Origin("query", 0, 0))
    assert (found.events, found.repeated) == (30, 10)
    assert stored(server, "out") == list(range(1, 31))


@pytest.mark.parametrize("other", [Origin("query", 8, 0), Origin("query", 7, 1), Origin("another", 7, 0)])
def test_another_batch_partition_or_query_is_stored_beside(server: Running, other: Origin) -> None:
    options = read_sink_options({"addr": addr(server), "channel": "out"})
    send_rows(options, [numbers(1, 5)], Origin("query", 7, 0))
    assert send_rows(options, [numbers(6, 5)], other).repeated == 0
    assert stored(server, "out") == list(range(1, 11))


def test_a_repeat_with_other_rows_is_an_error_not_a_silence(server: Running) -> None:
    options = read_sink_options({"addr": addr(server), "channel": "out"})
    send_rows(options, [numbers(1, 5)], Origin("query", 7, 0))
    with pytest.raises(ReplayDiffers, match=r"has 5 events of batch 7, partition 0.* brought 6"):
        send_rows(options, [numbers(1, 6)], Origin("query", 7, 0))
    assert stored(server, "out") == [1, 2, 3, 4, 5]


def test_batches_of_a_query_are_one_range_for_the_server(server: Running) -> None:
    options = read_sink_options({"addr": addr(server), "channel": "out"})
    for batch in range(20):
        send_rows(options, [numbers(batch, 1)], Origin("query", batch, 0))
    server.store.flush()
    assert [ranges for _, ranges in server.store.listing.slots(after=b"", limit=10)] == [[(0, 19)]]


@pytest.mark.guarantee("G12")
def test_a_writer_needs_the_right_to_publish_and_owns_its_slots(tmp_path: Path) -> None:
    rules = [{"principal": name, "allow": "publish", "channels": "out"} for name in ("writer", "other")]
    with Running(tmp_path / "d", {"access": rules}) as running:
        tokens = {name: running.token(name)["Authorization"].removeprefix("Bearer ") for name in ("writer", "other")}
        base = {"addr": addr(running), "channel": "out"}
        origin = Origin("query", 0, 0)
        assert send_rows(read_sink_options({**base, "token": tokens["writer"]}), [numbers(1, 5)], origin).events == 5
        for wrong in ({}, {"token": tokens["other"]}, {"token": tokens["writer"], "channel": "else"}):
            with pytest.raises(AccessRefused):
                send_rows(read_sink_options({**base, **wrong}), [numbers(1, 5)], origin)


# -- with Spark -------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G8")
def test_a_replayed_micro_batch_stores_nothing_twice(spark: SparkSession, server: Running, tmp_path: Path) -> None:
    fill(server.store, "in", segments=3, events=10)
    source = {"addr": addr(server), "channel": "in", "maxEventsPerTrigger": "10"}
    frame = spark.readStream.format("holdfast").options(**source).load()
    sink = {"addr": addr(server), "channel": "out", "maxFrameBytes": "24"}
    drain(frame, tmp_path / "ck", **sink)
    assert stored(server, "out") == list(range(1, 31))
    for name in ("2", ".2.crc"):  # as after a crash between the last write and Spark's own commit
        (tmp_path / "ck" / "commits" / name).unlink(missing_ok=True)
    fill(server.store, "in", segments=1, events=5)
    drain(frame, tmp_path / "ck", **sink)
    assert stored(server, "out") == list(range(1, 36))


class FailsAfterItsWrite(DataSourceStreamArrowWriter):
    """The first attempt of each task fails when everything is stored."""

    def __init__(self, inner: DataSourceStreamArrowWriter) -> None:
        self._inner = inner

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        message = self._inner.write(iterator)
        task = TaskContext.get()
        if task is not None and task.attemptNumber() == 0:
            raise RuntimeError("killed after its write")
        return message

    def commit(self, messages: Any, batchId: int) -> None:
        self._inner.commit(messages, batchId)


class FailingSink(HoldfastSource):
    """Our sink, in tasks that fail."""

    @classmethod
    def name(cls) -> str:
        return "failing_holdfast"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        return FailsAfterItsWrite(super().streamWriter(schema, overwrite))


@pytest.mark.guarantee("G8")
def test_a_task_that_fails_after_its_write_stores_nothing_twice(
    spark: SparkSession, server: Running, tmp_path: Path
) -> None:
    spark.dataSource.register(FailingSink)
    fill(server.store, "in", segments=2, events=10)
    frame = spark.readStream.format("holdfast").option("addr", addr(server)).option("channel", "in").load()
    drain(frame, tmp_path / "ck", format="failing_holdfast", addr=addr(server), channel="out")
    assert stored(server, "out") == list(range(1, 21))


def test_a_batch_is_written_once_under_its_identity(spark: SparkSession, server: Running) -> None:
    frame = spark.range(1, 21).withColumnRenamed("id", "n").coalesce(1)
    for _ in range(2):
        to = {"addr": addr(server), "channel": "out", "identity": "nightly-1"}
        frame.write.format("holdfast").options(**to).mode("append").save()
    assert stored(server, "out") == list(range(1, 21))
    frame.write.format("holdfast").option("addr", addr(server)).option("channel", "out").mode("append").save()
    assert len(stored(server, "out")) == 40


def test_overwriting_a_channel_is_refused(spark: SparkSession, server: Running) -> None:
    with pytest.raises(PySparkException, match="overwrite is not possible"):
        spark.range(1).write.format("holdfast").options(addr=addr(server), channel="out").mode("overwrite").save()


def test_the_columns_of_the_system_are_not_written(spark: SparkSession, server: Running) -> None:
    writer = spark.range(1).withColumnRenamed("id", "_seq").write.format("holdfast").mode("append")
    with pytest.raises(PySparkException, match="_seq"):
        writer.options(addr=addr(server), channel="out").save()


def test_one_micro_batch_goes_to_several_channels_once(spark: SparkSession, server: Running, tmp_path: Path) -> None:
    fill(server.store, "in", segments=1, events=20)
    frame = spark.readStream.format("holdfast").option("addr", addr(server)).option("channel", "in").load()
    to = addr(server)

    def out(rows: DataFrame, batch_id: int) -> None:
        write_batch(rows, batch_id, {"all": rows, "large": lambda every: every.where("n > 15")}, addr=to)

    for run in range(2):
        query = frame.writeStream.foreachBatch(out).option("checkpointLocation", str(tmp_path / "ck"))
        query.trigger(availableNow=True).start().awaitTermination()
        if not run:
            shutil.rmtree(tmp_path / "ck" / "commits")
    assert stored(server, "all") == list(range(1, 21))
    assert stored(server, "large") == [16, 17, 18, 19, 20]
