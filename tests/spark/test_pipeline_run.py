"""Pipelines in a real Spark session."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from holdfast import Store
from holdfast.errors import InvalidConfig, QueryFailed
from holdfast.model.frame import Entry, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.spark.pipeline import OutputStatus, Pipeline
from holdfast.spark.pipeline.model import Select
from holdfast.spark.tables import read_manifest
from holdfast.testing import ManualClock
from holdfast.wire.otlp.decode import decode_rows
from holdfast.wire.otlp.raw import RawRequest, raw_rows
from holdfast.wire.otlp.signals import Signal
from tests.e2e.served import free_port
from tests.spark.stores import fill, made
from tests.tidy.tree import ROOT
from tests.unit.dataflow.flows import HttpServer
from tests.unit.dataflow.otlp_samples import logs_request
from tests.unit.server.admin.running import Running

PATIENCE_S = 60.0
pytestmark = pytest.mark.timeout(600)  # a timeout in the middle of a call leaves the session of all tests unusable


def build(tmp_path: Path, *outputs: tuple[str, Mapping[str, Any]], **settings: object) -> Pipeline:
    """Over the channel `t` of the store in `d`: a filter, a query in SQL, and these outputs of it."""
    builder = Pipeline.builder("p", checkpoint=str(tmp_path / "checkpoint"), **{"trigger": "available_now", **settings})
    builder = builder.source("t", channel="t", path=str(tmp_path / "d"))
    builder = builder.step("even", filter="n % 2 = 0").step("twice", sql="SELECT n, n * 2 AS m FROM even")
    for name, keys in outputs:
        builder = builder.output(name, **keys)
    return builder.build()


class Taken:
    """A function for `foreach_batch` that keeps what it gets."""

    def __init__(self, failures: int = 0) -> None:
        self.batches: dict[int, list[int]] = {}
        self._failures = failures

    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        rows = sorted(row["n"] for row in frame.collect())
        if self._failures:
            self._failures -= 1
            raise ValueError("three is odd")
        self.batches[batch_id] = rows

    @property
    def rows(self) -> list[int]:
        return [n for _, batch in sorted(self.batches.items()) for n in batch]


@pytest.mark.guarantee("G8")
def test_two_outputs_of_one_source_each_get_everything(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=3, events=10)
    taken = Taken()
    lake = {"format": "json", "path": str(tmp_path / "lake")}
    pipeline = build(tmp_path, ("lake", lake), ("mine", {"from_": "even", "foreach_batch": taken}))
    statuses = {status.output: status for status in pipeline.run(spark)}
    assert {name: status.state for name, status in statuses.items()} == {"lake": "done", "mine": "done"}
    assert {(status.rows, status.lag_events) for status in statuses.values()} == {(30, 0)}
    assert taken.rows == list(range(2, 31, 2))
    found = spark.read.json(str(tmp_path / "lake")).collect()
    assert sorted((row["n"], row["m"]) for row in found) == [(n, 2 * n) for n in range(2, 31, 2)]
    assert not spark.catalog.tableExists("even")


@pytest.mark.guarantee("G8")
def test_a_pipeline_at_a_server_confirms_with_a_subscriber_for_each_output(spark: SparkSession, tmp_path: Path) -> None:
    with Running(tmp_path / "d") as server:
        fill(server.store, "t", segments=2, events=10)
        builder = Pipeline.builder("p", checkpoint=str(tmp_path / "c"), trigger="available_now")
        builder = builder.source("t", channel="t", addr=f"http://127.0.0.1:{server.port}")
        builder = builder.output("a", format="parquet", path=str(tmp_path / "a"))
        builder.output("b", format="noop").build().run(spark)
        marks = {found.name: [lag.mark for lag in found.channels] for found in server.store.subscribers()}
    assert marks == {"p.t.a": [20], "p.t.b": [20]}
    assert sorted(
        ds.dataset(read_manifest(tmp_path / "a").files, format="parquet").to_table().column("n").to_pylist()
    ) == list(range(1, 21))


def test_otlp_leaves_as_requests_and_the_console_of_the_server_knows(spark: SparkSession, tmp_path: Path) -> None:
    bodies = [logs_request(count).SerializeToString() for count in (2, 3)]
    with Running(tmp_path / "d") as server, HttpServer() as collector:
        server.store.commit("otlp.logs", raw_rows(Signal.LOGS, [RawRequest(body, "grpc", 1) for body in bodies]))
        server.store.flush()
        pipeline = (
            Pipeline.builder("p", checkpoint=str(tmp_path / "c"))
            .source("raw", channel="otlp.logs", addr=f"http://127.0.0.1:{server.port}")
            .step("logs", decode="otlp.logs")
            .output("out", format="otlp", addr=f"http://127.0.0.1:{collector.port}")
            .build()
        )
        pipeline.plan(spark)

        def stop_once_known(_statuses: list[OutputStatus]) -> None:
            if server.state.queries.current():
                pipeline.stop()

        pipeline.run(spark, on_look=stop_once_known)
        (known,) = server.state.queries.current()
    assert (known.name, known.channels, known.batch, known.behind) == ("p.out", ("otlp.logs",), 0, 0)
    sent = decode_rows(Signal.LOGS, pa.array([body for _, _, body in collector.taken], pa.binary()))
    stored = decode_rows(Signal.LOGS, pa.array(bodies, pa.binary()))
    assert sent.column("body").to_pylist() == stored.column("body").to_pylist()
    keys = [headers["idempotency-key"].split("/")[1:] for _, headers, _ in collector.taken]
    assert keys == [["0", "0", "0"]]


def test_a_plan_refuses_otlp_of_rows_that_are_no_telemetry(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=1)
    with pytest.raises(InvalidConfig, match=r"outputs\.o.*no OTLP"):
        build(tmp_path, ("o", {"format": "otlp", "addr": "http://127.0.0.1:4318"})).plan(spark)


@pytest.mark.long
def test_steps_do_what_they_are_called(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=12)
    taken: list[tuple[int, int]] = []

    def keep(frame: DataFrame, _batch_id: int) -> None:
        taken.extend((row["third"], row["n"]) for row in frame.collect())

    def without_five(frame: DataFrame) -> DataFrame:
        return frame.where("n != 5")

    (
        Pipeline.builder("steps", checkpoint=str(tmp_path / "c"), trigger="once")
        .source("t", channel="t", path=str(tmp_path / "d"), options={"includeMetadata": True})
        .step("thirds", with_column={"third": "n % 3", "at": "_ingested_at"})
        .step("fewer", python=without_five)
        .step("chosen", select=["third", "n", "at"])
        .step("apart", deduplicate=["n"])
        .step("timed", watermark={"column": "at", "delay": "1m"})
        .step("counted", aggregate={"by": ["third"], "values": {"n": "count(*)"}})
        .output("mine", foreach_batch=keep, mode="complete")
        .build()
        .run(spark)
    )
    assert sorted(taken) == [(0, 4), (1, 4), (2, 3)]


@pytest.mark.long
def test_windows_count_events_by_their_time(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=10)
    taken: list[int] = []

    def keep(frame: DataFrame, _batch_id: int) -> None:
        taken.extend(row["n"] for row in frame.orderBy("window").collect())

    (
        Pipeline.builder("windows", checkpoint=str(tmp_path / "c"), trigger="available_now")
        .source("t", channel="t", path=str(tmp_path / "d"))
        .step("timed", with_column={"at": "timestamp_seconds(n * 30)"})
        .step("late", watermark={"column": "at", "delay": "10s"})
        .step("counted", window={"column": "at", "length": "1m"}, aggregate={"values": {"n": "count(*)"}})
        .output("mine", foreach_batch=keep, mode="update")
        .build()
        .run(spark)
    )
    assert taken == [1, 2, 2, 2, 2, 1]


def test_a_query_that_fails_is_started_again_from_its_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=3, events=10)
    taken = Taken(failures=2)
    pipeline = build(tmp_path, ("mine", {"foreach_batch": taken}), restart={"backoff": "1ms", "backoff_max": "1ms"})
    (status,) = pipeline.run(spark)
    assert (status.state, status.restarts) == ("done", 2)
    assert taken.rows == list(range(2, 31, 2))


def test_what_fails_in_the_jvm_while_a_query_is_planned_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=10)
    taken, calls = Taken(), []

    def planned(frame: DataFrame) -> DataFrame:
        calls.append(frame)
        if len(calls) == 1:
            jvm: Any = spark._jvm
            jvm.java.util.Optional.empty().get()  # raises there, and no error of Spark's
        return frame

    builder = Pipeline.builder("p", checkpoint=str(tmp_path / "checkpoint"), trigger="available_now",
                               restart={"backoff": "1ms", "backoff_max": "1ms"})  # fmt: skip
    builder = builder.source("t", channel="t", path=str(tmp_path / "d")).step("planned", python=planned)
    (status,) = builder.output("mine", foreach_batch=taken).build().run(spark)
    assert (status.state, status.restarts) == ("done", 1)
    assert taken.rows == list(range(1, 11))


@pytest.mark.long
def test_a_query_that_keeps_failing_ends_the_pipeline_and_stops_the_others(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=10)
    bad, good = {"foreach_batch": Taken(failures=100)}, {"format": "noop", "trigger": "1h"}
    policy = {"max": 1, "backoff": "1ms", "backoff_max": "1ms"}
    pipeline = build(tmp_path, ("bad", bad), ("good", good), restart=policy)
    with pytest.raises(QueryFailed, match=r"output 'bad' failed after 1 restarts: ValueError: three is odd"):
        pipeline.run(spark)
    assert {status.output: status.state for status in pipeline.board.statuses()} == {"bad": "failed", "good": "stopped"}
    assert spark.streams.active == []


@pytest.mark.long
def test_what_trying_again_does_not_mend_ends_at_once(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=10)
    options = {"startingOffsets": '{"t": 1}'}
    (tmp_path / "d" / "channels" / "t" / "seg-1.arrow").unlink()
    builder = Pipeline.builder("p", checkpoint=str(tmp_path / "c"), trigger="available_now")
    builder = builder.source("t", channel="t", path=str(tmp_path / "d"), options=options)
    with pytest.raises(QueryFailed, match=r"failed after 0 restarts: events 1\.\.10 of channel 't' are gone"):
        builder.output("o", format="noop").build().run(spark)


@pytest.mark.parametrize(
    ("step", "key", "reason"),
    [
        ({"filter": "absent > 1"}, "steps[2].filter", "absent"),
        ({"sql": "SELEC n FROM twice"}, "steps[2].sql", "SELEC"),
        ({"python": "no.such:function"}, "steps[2].python", "cannot be had"),
        ({"python": lambda _frame: 3}, "steps[2].python", "gave int, not a DataFrame"),
    ],
)
def test_the_plan_names_the_step_that_spark_does_not_like(
    spark: SparkSession, tmp_path: Path, step: dict[str, Any], key: str, reason: str
) -> None:
    made(tmp_path / "d", segments=1, events=1)
    builder = Pipeline.builder("p", checkpoint=str(tmp_path / "c")).source("t", channel="t", path=str(tmp_path / "d"))
    builder = builder.step("even", filter="n % 2 = 0").step("twice", sql="SELECT n FROM even")
    pipeline = builder.step("bad", **step).output("o", format="console").build()
    with pytest.raises(InvalidConfig) as caught:
        pipeline.plan(spark)
    assert caught.value.key == key
    assert reason in caught.value.reason


def test_the_plan_knows_what_a_stream_cannot_do(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=1)
    builder = Pipeline.builder("p", checkpoint=str(tmp_path / "c")).source("t", channel="t", path=str(tmp_path / "d"))
    builder = builder.step("counted", aggregate={"values": {"n": "count(*)"}})
    with pytest.raises(InvalidConfig, match=r"outputs\.o: .*[Aa]ppend") as caught:
        builder.output("o", format="console", mode="append").build().plan(spark)
    assert caught.value.key == "outputs.o"


def test_a_source_that_is_not_there_is_named_by_the_plan(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=1)
    pipeline = Pipeline.builder("p", checkpoint="c").source("t", channel="absent", path=str(tmp_path / "d"))
    with pytest.raises(InvalidConfig, match=r"sources\.t: no channel absent exists yet"):
        pipeline.output("o", format="console").build().plan(spark)


def run_until(pipeline: Pipeline, spark: SparkSession, done: Callable[[list[OutputStatus]], bool]) -> None:
    """Stop it gracefully once its outputs are so far."""
    watch = threading.Timer(PATIENCE_S, pipeline.stop)
    watch.start()

    def look(statuses: list[OutputStatus]) -> None:
        if done(statuses) and not pipeline.stopping.soon.is_set():
            pipeline.stop()

    pipeline.run(spark, on_look=look)
    watch.cancel()


def test_a_stop_finishes_the_batch_in_hand(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=10)
    taken, inside = Taken(), threading.Event()

    def slowly(frame: DataFrame, batch_id: int) -> None:
        inside.set()
        pipeline.stopping.soon.wait(PATIENCE_S)  # the batch is under way when the stop comes
        taken(frame, batch_id)

    pipeline = build(tmp_path, ("mine", {"foreach_batch": slowly}), trigger="0")
    run_until(pipeline, spark, lambda _statuses: inside.is_set())
    assert taken.rows == list(range(2, 11, 2))
    assert [path.name for path in (tmp_path / "checkpoint" / "mine" / "commits").glob("[0-9]*")] == ["0"]
    assert [status.state for status in pipeline.board.statuses()] == ["stopped"]


@pytest.mark.long
def test_metrics_are_served_while_a_pipeline_runs(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=10)
    port = free_port()
    pipeline = build(tmp_path, ("o", {"format": "noop"}), trigger="100ms", metrics=f"127.0.0.1:{port}")
    pages: list[str] = []

    def done(statuses: list[OutputStatus]) -> bool:
        if statuses[0].batches:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/metrics")
            pages.append(connection.getresponse().read().decode())
            connection.close()
        return bool(pages)

    run_until(pipeline, spark, done)
    assert 'holdfast_pipeline_rows_total{output="o",pipeline="p"} 10.0' in pages[0]
    assert 'holdfast_pipeline_up{output="o",pipeline="p"} 1.0' in pages[0]
    assert 'holdfast_pipeline_lag_events{output="o",pipeline="p"} 0.0' in pages[0]


@pytest.mark.long
def test_the_archive_example_runs_as_it_stands(spark: SparkSession, tmp_path: Path) -> None:
    text = (ROOT / "examples" / "pipelines" / "archive.yaml").read_text(encoding="utf-8")
    (tmp_path / "archive.yaml").write_text(text, encoding="utf-8")
    made(tmp_path / "data", segments=2, events=10)
    Pipeline.from_file(tmp_path / "archive.yaml").run(spark)
    table = DeltaTable(str(tmp_path / "archive")).to_pyarrow_table()
    assert sorted(table.column("n").to_pylist()) == list(range(1, 21))
    assert set(table.schema.names) == {"n", "day", "channel", "event"}


@pytest.mark.long
def test_the_trades_example_passes_the_analyser(spark: SparkSession) -> None:
    Pipeline.from_file(ROOT / "examples" / "pipelines" / "trades.yaml").plan(spark)


@pytest.mark.long
@pytest.mark.guarantee("G8")
def test_a_frame_that_reached_two_servers_stays_once_with_all_its_events(spark: SparkSession, tmp_path: Path) -> None:
    """A producer that failed over sent it to both."""
    frames = {fsn: [pa.record_batch({"n": [fsn, fsn]}), pa.record_batch({"n": [fsn, 7]})] for fsn in (1, 2, 3)}
    taken: list[int] = []

    def keep(frame: DataFrame, _batch_id: int) -> None:
        taken.extend(row["n"] for row in frame.collect())

    with Running(tmp_path / "a") as one, Running(tmp_path / "b") as two:
        for server, came in ((one, (1, 2)), (two, (2, 3))):
            for fsn in came:
                entries = [Entry("t", batch) for batch in frames[fsn]]
                server.store.commit_frame(entries, identity=SlotFrame(b"sixteen bytes ok", Fsn(fsn)))
                server.store.flush()
        both = ", ".join(f"http://127.0.0.1:{server.port}" for server in (one, two))
        (
            Pipeline.builder("both", checkpoint=str(tmp_path / "c"), trigger="available_now")
            .source("t", channel="t", addr=both, options={"includeMetadata": True})
            .step("once", deduplicate=["_slot_id", "_fsn"])
            .output("mine", foreach_batch=keep)
            .build()
            .run(spark)
        )
    assert sorted(taken) == [1, 1, 1, 2, 2, 2, 3, 3, 3, 7, 7, 7]


@pytest.mark.guarantee("G8")
def test_events_without_a_slot_are_repeats_of_none(spark: SparkSession, tmp_path: Path) -> None:
    """Neither of each other, nor of those of another batch or of a server that counts alike at the same time."""
    taken: list[tuple[int, bool]] = []

    def keep(frame: DataFrame, _batch_id: int) -> None:
        taken.extend((row["n"], row["_slot_id"] is None) for row in frame.collect())

    clock = ManualClock()
    with Running(tmp_path / "a", clock=clock) as one, Running(tmp_path / "b", clock=clock) as two:
        for server, n in ((one, 100), (two, 200)):
            for fsn in (1, 2):
                frame = [Entry("t", pa.record_batch({"n": [fsn]}))]
                server.store.commit_frame(frame, identity=SlotFrame(b"sixteen bytes ok", Fsn(fsn)))
                server.store.commit("t", pa.record_batch({"n": [n, n]}))
                server.store.flush()
        both = ", ".join(f"http://127.0.0.1:{server.port}" for server in (one, two))
        (
            Pipeline.builder("both", checkpoint=str(tmp_path / "c"), trigger="available_now")
            .source("t", channel="t", addr=both, options={"includeMetadata": True, "maxSegmentsPerTrigger": 3})
            .step("once", deduplicate=["_slot_id", "_fsn"])
            .output("mine", foreach_batch=keep)
            .build()
            .run(spark)
        )
    assert sorted(taken) == [(1, False), (2, False), *[(100, True)] * 4, *[(200, True)] * 4]


@pytest.mark.guarantee("G8")
def test_a_column_that_is_widened_in_mid_stream_starts_the_query_again(spark: SparkSession, tmp_path: Path) -> None:
    taken: list[int] = []

    def keep(frame: DataFrame, _batch_id: int) -> None:
        taken.extend(row["n"] for row in frame.collect())

    with Store.open(tmp_path / "d") as store:
        store.commit("t", pa.record_batch({"n": pa.array([1], pa.int32())}))
        store.flush()
        settings = {"trigger": "100ms", "restart": {"backoff": "100ms"}}
        pipeline = (
            Pipeline.builder("p", checkpoint=str(tmp_path / "c"), **settings)
            .source("t", channel="t", path=str(tmp_path / "d"))
            .output("mine", foreach_batch=keep)
            .build()
        )

        def done(_statuses: list[OutputStatus]) -> bool:
            if taken == [1] and store.listing.channel("t").next_seq == 2:
                store.commit("t", pa.record_batch({"n": pa.array([2**40], pa.int64())}))
                store.flush()
            return len(taken) > 1

        run_until(pipeline, spark, done)
    assert taken == [1, 2**40]
    (status,) = pipeline.board.statuses()
    assert (status.state, status.restarts) == ("stopped", 1)


@pytest.mark.long
def test_frames_are_not_taken_for_events_once_their_place_is_gone(spark: SparkSession, tmp_path: Path) -> None:
    made(tmp_path / "d", segments=1, events=2)
    pipeline = (
        Pipeline.builder("gone", checkpoint=str(tmp_path / "c"), trigger="available_now")
        .source("t", channel="t", path=str(tmp_path / "d"), options={"includeMetadata": True})
        .step("few", select=["n", "_slot_id", "_fsn"])
        .step("once", deduplicate=["_slot_id", "_fsn"])
        .output("out", format="console")
        .build()
    )
    with pytest.raises(InvalidConfig, match="_frame_index"):
        pipeline.plan(spark)
    (step,) = [step for step in pipeline.spec.steps if isinstance(step.verb, Select)]
    more = replace(step, verb=Select(("n", "_slot_id", "_fsn", "_frame_index")))
    pipeline.spec = replace(pipeline.spec, steps=(more, *pipeline.spec.steps[1:]))
    with pytest.raises(InvalidConfig, match="_committed_id tells events without a slot apart"):
        pipeline.plan(spark)
