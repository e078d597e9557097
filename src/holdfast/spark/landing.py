"""Channels into tables without passing the JVM.

Spark plans, schedules, retries and checkpoints; what goes through it are descriptors of segments. Python workers read
the segments and write Parquet. For copies without SQL that is several times cheaper than rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from holdfast.spark.landed import SCHEMA
from holdfast.spark.options import read_options
from holdfast.spark.resolving import infer_schema


def land(
    spark: SparkSession,
    source: Mapping[str, str],
    table: Mapping[str, str],
    *,
    checkpoint: str,
    trigger: Mapping[str, Any] | None = None,
    columns: StructType | None = None,
) -> StreamingQuery:
    """Start a query that copies what `source` reads into `table`, each event once.

        land(spark, {"addr": addr, "channel": "trades", "subscriber": "lake"},
             {"table": "delta", "path": "/lake/trades"}, checkpoint="/lake/ck", trigger={"availableNow": True})

    `source` are options of the source, `table` those of a table sink. `columns` are the channel's as of now unless they
    are given; new columns of the channel come with the next start. `trigger` is what `DataStreamWriter.trigger` takes.
    """
    read = read_options(source).check_stream()
    schema = columns if columns is not None else infer_schema(read)
    carried = {f"source.{name}": value for name, value in source.items()}
    frame = spark.readStream.format("holdfast").options(**source).option("emit", "segments").load()
    writer = frame.writeStream.format("holdfast").options(**table, **carried)
    writer = writer.option(f"source.{SCHEMA}", schema.json()).option("checkpointLocation", checkpoint)
    return (writer.trigger(**trigger) if trigger else writer).start()
