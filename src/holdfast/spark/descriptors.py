"""`emit=segments`: what a task would read, described, instead of the events.

A row is a part of a segment. Whoever gets the rows reads the events where they are, without passing them through the
JVM; `holdfast.spark.land` does that.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from holdfast.spark.access import SegmentRef
from holdfast.spark.planning import Piece

DESCRIPTORS = StructType(
    [
        StructField("channel", StringType()),
        StructField("server", StringType()),
        StructField("segment", LongType()),
        StructField("first_seq", LongType()),
        StructField("last_seq", LongType()),
        StructField("events", LongType()),
        StructField("bytes", LongType()),
        StructField("crc32c", LongType()),
        StructField("object_key", StringType()),
        StructField("reference", StringType()),
    ]
)
"""`first_seq` to `last_seq`, both included, are the events; `bytes` and `crc32c` are of the whole segment. `reference`
is what our own tasks need to open it."""

_REFERENCE = msgspec.json.Decoder(SegmentRef)


def describe(pieces: Sequence[Piece], target: pa.Schema) -> pa.RecordBatch:
    """The rows for the pieces of a task."""
    columns = {
        "channel": [piece.segment.channel for piece in pieces],
        "server": [piece.segment.server for piece in pieces],
        "segment": [piece.segment.number for piece in pieces],
        "first_seq": [piece.first_seq for piece in pieces],
        "last_seq": [piece.last_seq for piece in pieces],
        "events": [piece.last_seq - piece.first_seq + 1 for piece in pieces],
        "bytes": [piece.segment.size_bytes for piece in pieces],
        "crc32c": [piece.segment.crc32c for piece in pieces],
        "object_key": [piece.segment.object_key for piece in pieces],
        "reference": [msgspec.json.encode(piece.segment).decode() for piece in pieces],
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in target], schema=target)


def pieces_in(batch: pa.RecordBatch) -> list[Piece]:
    """The pieces that rows describe."""
    columns = ("reference", "first_seq", "last_seq")
    rows = zip(*(batch.column(name).to_pylist() for name in columns), strict=True)
    return [Piece(_REFERENCE.decode(reference), first, last) for reference, first, last in rows]
