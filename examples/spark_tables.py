"""A channel into a Parquet table that any program reads, and part of it into another channel, each event once.

    holdfast serve --data ./data &
    holdfast send readings readings.ndjson        {"sensor": "a", "value": 7.5}
    python examples/spark_tables.py http://127.0.0.1:9001 ./lake

Run it again whenever you like: it goes on where it was.
"""

from __future__ import annotations

import sys

import pyarrow.dataset as ds
from pyspark.sql import SparkSession

from holdfast.spark import land, session
from holdfast.spark.tables import read_manifest


def run(spark: SparkSession, addr: str, folder: str) -> int:
    """Take what is there; how many events the table has now."""
    source = {"addr": addr, "channel": "readings", "subscriber": "lake"}
    table = {"table": "parquet", "path": f"{folder}/readings"}
    copied = land(spark, source, table, checkpoint=f"{folder}/_checkpoints/land", trigger={"availableNow": True})

    readings = spark.readStream.format("holdfast").options(addr=addr, channel="readings", subscriber="alerts").load()
    alerts = readings.where("value > 90")
    to = {"addr": addr, "channel": "alerts", "checkpointLocation": f"{folder}/_checkpoints/alerts"}
    sent = alerts.writeStream.format("holdfast").options(**to).trigger(availableNow=True).start()

    copied.awaitTermination()
    sent.awaitTermination()
    found: int = ds.dataset(read_manifest(f"{folder}/readings").files).count_rows()
    return found


if __name__ == "__main__":
    sys.stdout.write(f"{run(session('readings'), sys.argv[1], sys.argv[2])} events in the table\n")
