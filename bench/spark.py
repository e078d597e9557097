"""Spark: our source beside its own Parquet reader and plain pyarrow; a backlog drained; tables and channels written;
what a micro-batch costs that has almost nothing in it.

The limits hold the same rows in Parquet files and never see our source: Spark reads them, streams them, and writes them
to Parquet again. A rate is of the bytes of our segments, whoever moves the rows, so that rates compare as times do.

Figures are in CPU seconds of everything that took part, Spark's JVM and its Python workers, because they depend less on
what else the machine does than seconds of a clock. Each case runs once to warm up and is then measured. A streaming
query starts a Python that plans for it, whatever there is to read: that is the row of a query that lands nothing.
"""

from __future__ import annotations

import os
import queue
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from bench.figures import Result, Target
from bench.read import _mapped
from bench.served import serving
from bench.workload import CHANNEL, GB, MB, Bench, events, touch
from holdfast import Sender
from holdfast.spark import land, session
from holdfast.store.store import Store

ROWS = 8192
DIFFERENT = 64
"""Batches that are not alike, so that Parquet finds no repetition inside a group of rows."""
READER, STREAM, COPY = "Spark's Parquet reader", "Spark's Parquet stream", "Spark, Parquet to Parquet"
Place = tuple[str, dict[str, str]]
"""A format and its options."""
PATIENCE_S = 60.0
TRIGGERS = 50
"""Micro-batches of one event."""
FRESH_EVENTS = 20


@dataclass(frozen=True)
class Cost:
    """What a case took."""

    cpu_s: float
    wall_s: float


@dataclass
class Case:
    """What every case needs."""

    spark: SparkSession
    directory: Path
    size_bytes: int
    rows: int
    made: int = 0

    def fresh(self, name: str) -> str:
        """A folder that does not exist yet."""
        self.made += 1
        return str(self.directory / f"{name}-{self.made}")

    @property
    def source(self) -> dict[str, str]:
        """The channel, from its directory."""
        return {"path": str(self.directory / "store"), "channel": CHANNEL}

    @property
    def parquet(self) -> str:
        """The same rows in Parquet files."""
        return str(self.directory / "parquet")


def run(bench: Bench) -> list[Result]:
    """All of them over one store."""
    store, parquet = bench.directory / "store", bench.directory / "parquet"
    parquet.mkdir()
    different = [events(ROWS + number) for number in range(DIFFERENT)]
    calls = int(bench.scale(1 * GB, 0.1 * GB)) // len(different[0].serialize())
    batches = [different[number % DIFFERENT] for number in range(calls)]
    with Store.open(store) as opened:
        for batch in batches:
            opened.commit(CHANNEL, batch)
    files = sorted((store / "channels" / CHANNEL).glob("*.arrow"))
    for number in range(4):
        part = pa.Table.from_batches(batches[number::4])
        pq.write_table(part, parquet / f"{number}.parquet", compression="zstd", row_group_size=DIFFERENT // 4 * ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        spark = session("bench", master="local[2,4]", conf={"spark.driver.memory": "2g", "spark.log.level": "ERROR"})
    case = Case(spark, bench.directory, sum(file.stat().st_size for file in files),
                sum(batch.num_rows for batch in batches))  # fmt: skip
    try:
        return [*_reading(case, files), *_writing(case), *_triggers(case), _freshness(case)]
    finally:
        spark.stop()


def _reading(case: Case, files: list[Path]) -> list[Result]:
    spark = case.spark
    ours = measured(lambda: _drop(spark.read.format("holdfast").options(**case.source).load()))
    theirs = measured(lambda: _drop(spark.read.parquet(case.parquet)))
    bare = measured(lambda: _touched(files))
    few = "id long, value double"
    narrow = measured(lambda: _sum(spark.read.format("holdfast").options(**case.source).schema(few).load()))
    narrow_theirs = measured(lambda: _sum(spark.read.parquet(case.parquet)))
    ours_again = spark.readStream.format("holdfast").options(**case.source)
    drained = measured(lambda: _to_its_end(case, ours_again.load()))
    schema = spark.read.parquet(case.parquet).schema  # a stream of files wants to be told; finding out is not its cost
    drained_theirs = measured(lambda: _to_its_end(case, spark.readStream.schema(schema).parquet(case.parquet)))
    return [
        _result(case, "whole rows", ours, theirs, limit_is=READER, target=Target(0.9, of_ratio=True)),
        _result(case, "whole rows, plain pyarrow", bare),
        _result(case, "2 of 5 columns, a sum", narrow, narrow_theirs, limit_is=READER),
        _result(case, "stream drained, availableNow", drained, drained_theirs, limit_is=STREAM),
    ]


def _writing(case: Case) -> list[Result]:
    rows = measured(lambda: _to_table(case))
    copied = measured(lambda: _copy(case))
    landed = measured(lambda: _landed(case))
    nothing = measured(lambda: _landed(case, startingOffsets="latest"))
    with serving(case.directory / "server") as server:
        sent = measured(lambda: _to_channel(case, server.admin))
    return [
        _result(case, "to a Parquet table, rows", rows, copied, limit_is=COPY),
        _result(case, "to a Parquet table, landed", landed, copied, limit_is=COPY, target=Target(2, of_ratio=True)),
        Result("spark", "a query that lands nothing", nothing.cpu_s, "CPU s", also={"s": nothing.wall_s}),
        _result(case, "to a channel", sent),
    ]


def _triggers(case: Case) -> list[Result]:
    with serving(case.directory / "triggers") as server:
        with Sender(addr=server.address) as sender:
            for _ in range(2 * TRIGGERS):
                sender.send(CHANNEL, events(1))
            sender.drain(PATIENCE_S)
        ours = {"addr": server.admin, "channel": CHANNEL, "maxEventsPerTrigger": "1", "tailLatency": "low"}
        source: Place = ("holdfast", ours)
        nowhere: Place = ("noop", {})
        bare = measured(lambda: _one_by_one(case, ("rate-micro-batch", {"rowsPerBatch": "1"}), nowhere))
        sinks: dict[str, Callable[[], Place]] = {
            "nowhere": lambda: nowhere,
            "to a channel": lambda: ("holdfast", {"addr": server.admin, "channel": "copy"}),
            "to a Parquet table": lambda: ("holdfast", {"table": "parquet", "path": case.fresh("table")}),
        }
        costs = {name: measured(lambda to=to: _one_by_one(case, source, to())) for name, to in sinks.items()}
    return [
        Result("spark", f"a micro-batch of one event, {name}", cost.cpu_s / TRIGGERS * 1e3, "CPU ms",
               bare.cpu_s / TRIGGERS * 1e3, "Spark's own rate source, nowhere",
               also={"ms": cost.wall_s / TRIGGERS * 1e3, "rate source ms": bare.wall_s / TRIGGERS * 1e3})
        for name, cost in costs.items()
    ]  # fmt: skip


def _freshness(case: Case) -> Result:
    """From `send` of one event to a `foreachBatch` that has it; the query is there already, and nothing else to do."""
    arrived: queue.SimpleQueue[int] = queue.SimpleQueue()

    def take(frame: DataFrame, _: int) -> None:
        for row in frame.collect():
            arrived.put(row.n)

    with serving(case.directory / "freshness") as server, Sender(addr=server.address) as sender:
        sender.send(CHANNEL, {"n": 0})
        sender.drain(PATIENCE_S)
        options = {"addr": server.admin, "channel": CHANNEL, "tailLatency": "low"}
        stream = case.spark.readStream.format("holdfast").options(**options).load()
        writer = stream.writeStream.foreachBatch(take)
        query = writer.option("checkpointLocation", case.fresh("checkpoint")).start()
        took_s = []
        for number in range(FRESH_EVENTS + 1):
            started = time.perf_counter()
            if number:
                sender.send(CHANNEL, {"n": number})
                sender.flush()
            while arrived.get(timeout=PATIENCE_S) != number:
                pass
            took_s.append(time.perf_counter() - started)
        query.stop()
    also: dict[str, float | str] = {"s at most": max(took_s[1:]), "events": FRESH_EVENTS}
    return Result("spark", "from send to foreachBatch, one event, tailLatency=low", median(took_s[1:]), "s (p50)",
                  target=Target(1, at_least=False), also=also)  # fmt: skip


def _result(
    case: Case, name: str, cost: Cost, limit: Cost | None = None, *, limit_is: str = "", target: Target | None = None
) -> Result:
    size = case.size_bytes / MB
    also: dict[str, float | str] = {"CPU s": cost.cpu_s, "MB/s": size / cost.wall_s, "rows/s": case.rows / cost.wall_s}
    beside = size / limit.cpu_s if limit is not None else None
    return Result("spark", name, size / cost.cpu_s, "MB/CPU s", beside, limit_is, target, also)


def measured(work: Callable[[], object]) -> Cost:
    """Once to warm up, once with a watch."""
    work()
    cpu_s, started = _cpu_s(), time.perf_counter()
    work()
    return Cost(max(0.001, _cpu_s() - cpu_s), time.perf_counter() - started)


def _cpu_s() -> float:
    """Of this process and all it has started, also of those that have ended."""
    own = psutil.Process(os.getpid())
    total = 0.0
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


# --------------------------------------------------------------------------------------------------------- what is done


def _touched(files: list[Path]) -> None:
    for batch in _mapped(files):
        touch(batch)


def _drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _sum(frame: DataFrame) -> None:
    frame.selectExpr("sum(id)", "sum(value)").collect()


def _to_its_end(case: Case, stream: DataFrame) -> None:
    """All there is, in one go, from a new checkpoint to nowhere."""
    writer = stream.writeStream.format("noop").option("checkpointLocation", case.fresh("checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def _to_table(case: Case) -> None:
    frame = case.spark.read.format("holdfast").options(**case.source).load()
    frame.write.format("holdfast").options(table="parquet", path=case.fresh("table")).mode("append").save()


def _copy(case: Case) -> None:
    """Spark's own Parquet to Parquet, with the compression that ours has."""
    case.spark.read.parquet(case.parquet).write.option("compression", "zstd").parquet(case.fresh("copied"))


def _landed(case: Case, **options: str) -> None:
    source, to = {**case.source, **options}, {"table": "parquet", "path": case.fresh("landed")}
    query = land(case.spark, source, to, checkpoint=case.fresh("checkpoint"), trigger={"availableNow": True})
    query.awaitTermination()


def _to_channel(case: Case, admin: str) -> None:
    frame = case.spark.read.format("holdfast").options(**case.source).load()
    frame.write.format("holdfast").options(addr=admin, channel="copy").mode("append").save()


def _one_by_one(case: Case, source: Place, sink: Place) -> None:
    """Micro-batches as fast as they go."""
    (format_in, options_in), (format_out, options_out) = source, sink
    stream = case.spark.readStream.format(format_in).options(**options_in).load()
    writer = stream.writeStream.format(format_out).options(**options_out)
    writer = writer.option("checkpointLocation", case.fresh("checkpoint"))
    query = writer.trigger(processingTime="0 seconds").start()
    while (query.lastProgress or {"batchId": -1})["batchId"] < TRIGGERS - 1:
        if not query.isActive:
            raise RuntimeError(f"the query ended: {query.exception()}")
        time.sleep(0.01)
    query.stop()
