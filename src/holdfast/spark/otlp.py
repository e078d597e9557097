"""OTLP requests that were kept as they came, opened by Spark: `decode(frame, "logs")`.

    raw = spark.read.format("holdfast").option("channel", "otlp.logs").load()
    logs = holdfast.spark.otlp.decode(raw, "logs")            # one row per record, on the executors

Promise: the columns are those of `docs/reference/otlp-schema.md`, in Spark's types. Work is done per Arrow batch: a
batch of requests is decoded as a whole, no Python runs per record. Other columns of the frame come along on request.
Executors need the extra `otlp`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.errors import BadRequest
from holdfast.spark.columns import conform, spark_schema
from holdfast.wire.otlp.decode import SCHEMAS
from holdfast.wire.otlp.decode import decode as decode_requests
from holdfast.wire.otlp.raw import REQUEST
from holdfast.wire.otlp.signals import Signal

OUT_ROWS_MAX = 65_536
"""Rows handed to Spark at a time: requests hold many records, and Spark copies each batch."""


def decode(frame: DataFrame, signal: str, *, keep: Sequence[str] = ()) -> DataFrame:
    """The records in the column `request`: `logs`, `traces` or `metrics`; `keep` are columns of `frame` to keep."""
    names = [item.value for item in Signal]
    if signal not in names:
        raise BadRequest(f"signal {signal!r} is not one of {', '.join(names)}")
    missing = [name for name in (REQUEST, *keep) if name not in frame.columns]
    if missing:
        raise BadRequest(f"the frame has no column {missing[0]!r}; it has {', '.join(frame.columns)}")
    schema = StructType([*spark_schema(SCHEMAS[Signal(signal)]).fields, *(frame.schema[name] for name in keep)])
    target = to_arrow_schema(schema, timezone="UTC")
    return frame.select(REQUEST, *keep).mapInArrow(partial(_decoded, signal, tuple(keep), target), schema)


def _decoded(
    signal: str, keep: Sequence[str], target: pa.Schema, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """On an executor: batches of requests to batches of records."""
    for batch in batches:
        found = decode_requests(Signal(signal), batch.column(0).cast(pa.binary()))
        rows = found.rows
        for name in keep:
            rows = rows.append_column(name, batch.column(batch.schema.get_field_index(name)).take(found.request))
        for start in range(0, rows.num_rows, OUT_ROWS_MAX):
            yield conform(rows.slice(start, OUT_ROWS_MAX), target, channel=f"otlp.{signal}")
