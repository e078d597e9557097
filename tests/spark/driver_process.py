"""A driver that is killed: it copies a channel three times, each copy a query of its own.

    python driver_process.py FOLDER MASTER CONF SOURCE SINK FIRST|available-now

    out/     Parquet by Spark itself, a folder per micro-batch
    table/   Parquet by our table sink, with a manifest
    copy     a channel by our sink

CONF, SOURCE and SINK are JSON: settings of the session, options of the source and of the channel. FIRST is the query
that starts before the others: one driver after the other is killed in it. A query that ends with an error is started
again from its checkpoint, as `holdfast pipeline run` does; nothing else is kept of it. With `available-now` that is
done a few times at most.
"""

from __future__ import annotations

import json
import sys
import threading

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has none
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.spark import session

COPIES = ("table", "copy", "lake")
EVENTS_PER_BATCH = "40"
STARTS_MAX = 5
"""Of a query that is to end: what fails every time is no accident."""


class Copies:
    """The three queries."""

    def __init__(self, spark: SparkSession, folder: str, source: dict[str, str], sink: dict[str, str]) -> None:
        self._spark = spark
        self._folder = folder
        self._source = source
        self._sink = sink

    def start(self, name: str, *, ends: bool) -> StreamingQuery:
        """Start one, or start it again."""
        reader = self._spark.readStream.format("holdfast").options(**self._source)
        reader = reader if ends else reader.option("maxEventsPerTrigger", EVENTS_PER_BATCH)
        reader = reader.option("subscriber", name) if "addr" in self._source else reader
        writer = reader.load().writeStream.queryName(name)
        if name == "lake":
            writer = writer.foreachBatch(self._land)
        else:
            table = {"table": "parquet", "path": f"{self._folder}/table"}
            writer = writer.format("holdfast").options(**(table if name == "table" else self._sink))
        writer = writer.option("checkpointLocation", f"{self._folder}/checkpoint-{name}")
        return (writer.trigger(availableNow=True) if ends else writer.trigger(processingTime="50 milliseconds")).start()

    def _land(self, frame: DataFrame, batch_id: int) -> None:
        frame.write.mode("overwrite").parquet(f"{self._folder}/out/batch={batch_id:06d}")

    def run_for_ever(self, first: str) -> None:
        """Whatever of it is killed."""
        pause = threading.Event()
        names = sorted(COPIES, key=lambda name: name != first)
        running: dict[str, StreamingQuery] = {}
        while True:
            for name in names:
                if name not in running or not running[name].isActive:
                    try:
                        running[name] = self.start(name, ends=False)
                    except (PySparkException, Py4JJavaError) as error:  # the worker it asked for columns is dead
                        sys.stderr.write(f"{name} did not start: {error}\n")
                        continue
                    wait_for_progress(running[name])
            pause.wait(0.1)

    def run_to_the_end(self) -> None:
        """One after the other."""
        for name in COPIES:
            for start in range(1, STARTS_MAX + 1):
                try:
                    self.start(name, ends=True).awaitTermination()
                    break
                except (PySparkException, Py4JJavaError) as error:
                    sys.stderr.write(f"{name} failed, start {start} of {STARTS_MAX}: {error}\n")
                    if start == STARTS_MAX:
                        raise


def wait_for_progress(query: StreamingQuery) -> None:
    """Spark gives a Python worker ten seconds to start; several at once may take longer on a busy machine."""
    pause = threading.Event()
    while query.isActive and query.lastProgress is None:
        pause.wait(0.1)


if __name__ == "__main__":
    target, master, conf, source_options, sink_options, mode = sys.argv[1:]
    started = session("copies", master=master, conf=json.loads(conf))
    copies = Copies(started, target, json.loads(source_options), json.loads(sink_options))
    if mode == "available-now":
        copies.run_to_the_end()
    else:
        copies.run_for_ever(mode)
    started.stop()
