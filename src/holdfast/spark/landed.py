"""The events of described segments, in the task that writes them: Arrow from the segment to the file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql.types import StructType

from holdfast.spark.descriptors import pieces_in
from holdfast.spark.options import read_options
from holdfast.spark.reading import read_pieces
from holdfast.spark.resolving import STREAM_PATIENCE_S, open_access
from holdfast.spark.sinkoptions import SinkOptions

SCHEMA = "schema"
"""Among what `land` says of its source: the columns to write, as Spark's JSON."""


def landed_schema(options: SinkOptions) -> StructType:
    """The columns of the table."""
    return StructType.fromJson(json.loads(dict(options.source)[SCHEMA]))


def landed_batches(
    options: SinkOptions, descriptors: Iterable[pa.RecordBatch], target: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """All events, in the order of the descriptors."""
    source = read_options({name: value for name, value in options.source if name != SCHEMA})
    access = open_access(source, patience_s=STREAM_PATIENCE_S)
    for batch in descriptors:
        yield from read_pieces(access, pieces_in(batch), target, fail_on_data_loss=source.fail_on_data_loss)
