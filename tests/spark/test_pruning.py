"""Filters leave segments out, and never an event that may pass."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructField, StructType, TimestampType

from holdfast import Store
from holdfast.clock import NS_PER_S
from holdfast.errors import InvalidConfig
from holdfast.spark.batch import PruningReader
from holdfast.spark.options import read_options
from holdfast.spark.planning import Task
from holdfast.spark.resolving import infer_schema
from holdfast.store.compaction import compact
from holdfast.testing import ManualClock
from tests.unit.server.admin.running import Running

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def options(tmp_path: Path) -> Iterator[dict[str, str]]:
    """Three segments of ten events, a minute apart; `at` is an hour apart."""
    clock = ManualClock()
    with Store.open(tmp_path, {"channels": {"t": {"event_time": "at"}}}, clock=clock) as store:
        for part in range(3):
            clock.advance(60)
            times = [EPOCH + timedelta(hours=part, seconds=second) for second in range(10)]
            at = pa.array(times, pa.timestamp("us", "UTC"))
            store.commit("t", pa.record_batch({"n": list(range(1 + part * 10, 11 + part * 10)), "at": at}))
            store.flush()
        options = {"path": str(tmp_path), "channel": "t", "includeMetadata": "true", "pushdown": "true"}
        yield {**options, "eventTime": "at", "ingested": str(clock.wall_ns() // NS_PER_S)}


def seqs(options: dict[str, str], *filters: Filter) -> list[int]:
    """The seqs that are read under filters."""
    read = read_options({name: value for name, value in options.items() if name != "ingested"}).check_batch()
    reader = PruningReader(infer_schema(read), read)
    assert list(reader.pushFilters(list(filters))) == list(filters), "Spark applies all of them again"
    tasks = [task for task in reader.partitions() if isinstance(task, Task)]
    return [seq for task in tasks for batch in reader.read(task) for seq in batch.column("_seq").to_pylist()]


FIRST, SECOND, THIRD = list(range(1, 11)), list(range(11, 21)), list(range(21, 31))


@pytest.mark.parametrize(
    ("item", "left"),
    [
        (GreaterThan(("_seq",), 25), [26, 27, 28, 29, 30]),
        (GreaterThanOrEqual(("_seq",), 25), [25, 26, 27, 28, 29, 30]),
        (LessThan(("_seq",), 3), [1, 2]),
        (LessThanOrEqual(("_seq",), 3), [1, 2, 3]),
        (EqualTo(("_seq",), 15), [15]),
        (In(("_seq",), (12, 14)), [12, 13, 14]),
        (EqualTo(("_committed_id",), 15), SECOND),
        (GreaterThan(("at",), EPOCH + timedelta(hours=1, seconds=9)), THIRD),
        (GreaterThanOrEqual(("at",), EPOCH + timedelta(hours=1, seconds=9)), SECOND + THIRD),
        (LessThan(("at",), EPOCH + timedelta(hours=1)), FIRST + SECOND),
        (EqualTo(("at",), EPOCH + timedelta(hours=5)), []),
        (IsNotNull(("at",)), FIRST + SECOND + THIRD),
        (EqualTo(("n",), 15), FIRST + SECOND + THIRD),
        (EqualTo(("at", "inner"), 15), FIRST + SECOND + THIRD),
    ],
)
def test_only_segments_that_cannot_pass_are_left_out(options: dict[str, str], item: Filter, left: list[int]) -> None:
    assert seqs(options, item) == left


def opened_with(directory: Path, **columns: str) -> Store:
    """A store whose channels have these event times."""
    return Store.open(directory, {"channels": {name: {"event_time": column} for name, column in columns.items()}})


def two_times(*hours: int) -> pa.RecordBatch:
    """Events with two times: `made` is a day after `at`."""
    at = [EPOCH + timedelta(hours=hour) for hour in hours]
    made = [time + timedelta(days=1) for time in at]
    return pa.record_batch(
        {name: pa.array(times, pa.timestamp("us", "UTC")) for name, times in (("at", at), ("made", made))}
    )


def read(directory: Path, channel: str, event_time: str, *filters: Filter) -> int:
    """How many rows come under filters."""
    given = {"path": str(directory), "channel": channel, "includeMetadata": "true", "pushdown": "true"}
    return len(seqs({**given, "eventTime": event_time}, *filters))


def test_a_column_whose_times_no_segment_notes_is_refused(tmp_path: Path) -> None:
    with opened_with(tmp_path, t="at") as store:
        store.commit("t", two_times(0, 1))
        store.flush()
    after = GreaterThan(("made",), EPOCH + timedelta(hours=12))
    with pytest.raises(InvalidConfig, match="eventTime: is 'made', and segments note the times of 'at' in 't'"):
        read(tmp_path, "t", "made", after)


def test_times_of_one_column_leave_out_nothing_of_another(tmp_path: Path) -> None:
    """The channels of a glob have different ones, and one has had another before."""
    with opened_with(tmp_path, t="at", u="made") as store:
        for channel in ("t", "u", "v"):
            store.commit(channel, two_times(0, 1))
            store.flush()
    with opened_with(tmp_path, t="made") as store:
        store.commit("t", two_times(0, 1))
        store.flush()
    after = GreaterThan(("made",), EPOCH + timedelta(hours=12))
    assert read(tmp_path, "*", "made", after) == 8
    assert read(tmp_path, "*", "made", GreaterThan(("made",), EPOCH + timedelta(days=2))) == 4, "of `t` of old, and `v`"
    assert read(tmp_path, "v", "made", after) == 2, "nothing is known of its times"


def test_segments_that_are_joined_say_whose_times_they_note_only_if_all_did(tmp_path: Path) -> None:
    with opened_with(tmp_path) as store:
        store.commit("t", two_times(0))
        store.flush()
    with opened_with(tmp_path, t="at") as store:
        for hour in (30, 31):
            store.commit("t", two_times(hour))
            store.flush()
        assert compact(store, "t").segments_after == 1
    assert read(tmp_path, "t", "at", LessThan(("at",), EPOCH + timedelta(hours=5))) == 3, "the first has no times"


def test_whole_numbers_that_count_as_event_times_leave_nothing_out(tmp_path: Path) -> None:
    with opened_with(tmp_path, t="at") as store:
        store.commit("t", pa.record_batch({"at": pa.array([1_000_000], pa.int64())}))
        store.flush()
    given = {"path": str(tmp_path), "channel": "t", "pushdown": "true", "eventTime": "at"}
    options = read_options(given).check_batch()
    reader = PruningReader(StructType([StructField("at", TimestampType())]), options)
    reader.pushFilters([EqualTo(("at",), datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))])
    assert [batch.num_rows for task in reader.partitions() for batch in reader.read(task)] == [1]


def test_a_server_says_whose_times_its_segments_note(tmp_path: Path) -> None:
    with Running(tmp_path, store={"channels": {"t": {"event_time": "at"}}}) as running:
        running.store.commit("t", two_times(0, 1))
        running.store.flush()
        given = {"addr": f"http://127.0.0.1:{running.port}", "channel": "t", "includeMetadata": "true"}
        options = {**given, "pushdown": "true", "eventTime": "at"}
        assert seqs(options, GreaterThan(("at",), EPOCH + timedelta(hours=2))) == []
        with pytest.raises(InvalidConfig, match="is 'made'"):
            seqs({**options, "eventTime": "made"})


def test_ingestion_times_leave_segments_out(options: dict[str, str]) -> None:
    last = datetime.fromtimestamp(int(options["ingested"]), UTC)
    assert seqs(options, GreaterThanOrEqual(("_ingested_at",), last - timedelta(seconds=1))) == THIRD
    assert seqs(options, LessThanOrEqual(("_ingested_at",), last - timedelta(seconds=61))) == FIRST


def test_filters_together_leave_out_what_any_of_them_does(options: dict[str, str]) -> None:
    assert seqs(options, GreaterThan(("_seq",), 8), LessThan(("_committed_id",), 11)) == [9, 10]


def test_spark_pushes_filters_when_both_ask_for_it(spark: SparkSession, options: dict[str, str]) -> None:
    chosen = {name: value for name, value in options.items() if name != "ingested"}
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = spark.read.format("holdfast").options(**chosen).load()
        found = frame.where("_seq > 18 and at < timestamp'2026-01-01T02:00:03Z'")
        assert sorted(row.n for row in found.collect()) == [19, 20, 21, 22, 23]
        assert found.rdd.getNumPartitions() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
