"""A driver that is killed: it copies a channel three times, each copy a query of its own.

    python driver_process.py ADDR FOLDER [tier=URL] [available-now]

    out/     Parquet by Spark itself, a folder per micro-batch
    table/   Parquet by our table sink, with a manifest
    copy     a channel by our sink

It says `batch` on its output when one of the first kind is written. It registers nothing: Spark finds the source by the
name of our module.
"""

from __future__ import annotations

import os
import sys
import threading

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery


def wait_for_progress(query: StreamingQuery) -> None:
    """Spark gives a Python worker ten seconds to start; several at once may take longer on a busy machine."""
    pause = threading.Event()
    while query.isActive and query.lastProgress is None:
        pause.wait(0.1)


def start(addr: str, folder: str, *, tier: str, ends: bool) -> list[StreamingQuery]:
    """The three queries."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.Builder().master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.driver.memory", "600m").config("spark.log.level", "ERROR")
    builder = builder.config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
    builder = builder.config("spark.sql.warehouse.dir", f"{folder}/warehouse")
    spark = builder.getOrCreate()
    trigger = {"availableNow": True} if ends else {"processingTime": "100 milliseconds"}

    def land(frame: DataFrame, batch_id: int) -> None:
        frame.write.mode("overwrite").parquet(f"{folder}/out/batch={batch_id}")
        sys.stdout.write(f"batch {batch_id}\n")
        sys.stdout.flush()

    def source(subscriber: str) -> DataFrame:
        stream = spark.readStream.format("holdfast").option("addr", addr).option("channel", "events")
        stream = stream.option("tier", tier) if tier else stream
        limited = stream if ends else stream.option("maxEventsPerTrigger", "40")
        return limited.option("subscriber", subscriber).load()

    def queries() -> list[StreamingQuery]:
        table = {"table": "parquet", "path": f"{folder}/table"}
        copy = {"addr": addr, "channel": "copy", "maxFrameBytes": "64"}
        writers = {
            "table": source("table").writeStream.format("holdfast").options(**table),
            "copy": source("copy").writeStream.format("holdfast").options(**copy),
            "lake": source("lake").writeStream.foreachBatch(land),
        }
        started = []
        for name, writer in writers.items():
            located = writer.option("checkpointLocation", f"{folder}/checkpoint-{name}")
            started.append(located.trigger(**trigger).start())
            wait_for_progress(started[-1])
        return started

    return queries()


if __name__ == "__main__":
    options = sys.argv[3:]
    url = next((option.removeprefix("tier=") for option in options if option.startswith("tier=")), "")
    running = start(sys.argv[1], sys.argv[2], tier=url, ends="available-now" in options)
    if "available-now" not in options:  # one that ends because its planning was hit ends the driver
        SparkSession.active().streams.awaitAnyTermination()
    for query in running:
        query.awaitTermination()
