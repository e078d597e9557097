"""Stores in directories for the source to read, and ways to call the source without a Spark session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from holdfast import Store
from holdfast.spark.batch import BatchReader
from holdfast.spark.options import read_options
from holdfast.spark.resolving import infer_schema
from holdfast.spark.stream import StreamReader


def numbers(first: int, count: int) -> pa.RecordBatch:
    """Events that name their own seq, if that of the first is `first`."""
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})


def fill(store: Store, channel: str, *, segments: int, events: int) -> None:
    """Segments of so many events each; `n` is the seq."""
    first = store.listing.channel(channel).next_seq if channel in store.channels() else 1
    for at in range(segments):
        store.commit(channel, numbers(first + at * events, events))
        store.flush()


def made(directory: Path, channel: str = "t", *, segments: int = 3, events: int = 10) -> dict[str, str]:
    """A closed store, as options of the source."""
    with Store.open(directory) as store:
        fill(store, channel, segments=segments, events=events)
    return {"path": str(directory), "channel": channel}


def stream_of(options: Mapping[str, str], schema: StructType | None = None) -> StreamReader:
    """As Spark would make it."""
    read = read_options(options).check_stream()
    return StreamReader(schema or infer_schema(read), read)


def batch_of(options: Mapping[str, str], schema: StructType | None = None) -> BatchReader:
    """As Spark would make it."""
    read = read_options(options).check_batch()
    return BatchReader(schema or infer_schema(read), read)


def rows_of(reader: BatchReader) -> pa.Table:
    """Everything a batch reads; every part must have the schema that Spark compares."""
    target = to_arrow_schema(reader._schema, timezone="UTC")
    batches = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert all(batch.schema.equals(target) for batch in batches)
    return pa.Table.from_batches(batches, target)


def between(reader: StreamReader, start: Mapping[str, int], end: Mapping[str, int]) -> list[int]:
    """The column `n` of a micro-batch."""
    tasks = reader.partitions(start, end)
    return [n for task in tasks for batch in reader.read(task) for n in batch.column("n").to_pylist()]


def micro_batches(reader: StreamReader, limit: ReadLimit | None = None) -> Iterator[list[int]]:
    """What a query would read, batch by batch, until there is nothing new."""
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, limit or reader.getDefaultReadLimit())) != start:
        yield between(reader, start, end)
        start = end
