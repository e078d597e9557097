"""Rows as Parquet files.

Promise: a file is on the disk as a whole, synced, before its name is told. Its name is new. Rows are never touched one
by one. One file at a time is in memory, `file_bytes_max` of it at most and the batch that made it full.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.spark.tables.commits import DataFile, create_in_turn
from holdfast.tier.objects import Objects

ROW_GROUP_BYTES = 32 << 20
"""As Arrow in memory: large enough to compress well, small enough to skip."""


def write_files(
    objects: Objects, folder: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch], *, file_bytes_max: int
) -> list[DataFile]:
    """The rows in as many files as are needed; none without rows."""
    found = []
    for data, rows in _encoded(schema, batches, file_bytes_max):
        key = f"{folder}/{uuid.uuid4().hex}.parquet"
        create_in_turn(objects, key, data)
        found.append(DataFile(key, rows, data.size))
    return found


def _encoded(
    schema: pa.Schema, batches: Iterable[pa.RecordBatch], file_bytes_max: int
) -> Iterator[tuple[pa.Buffer, int]]:
    sink, rows = pa.BufferOutputStream(), 0
    writer = pq.ParquetWriter(sink, schema, compression="zstd")
    for group in _row_groups(schema, batches):
        writer.write_table(group, row_group_size=group.num_rows)
        rows += group.num_rows
        if sink.tell() >= file_bytes_max:
            writer.close()
            yield sink.getvalue(), rows
            sink, rows = pa.BufferOutputStream(), 0
            writer = pq.ParquetWriter(sink, schema, compression="zstd")
    writer.close()
    if rows:
        yield sink.getvalue(), rows


def _row_groups(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    group: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if not batch.num_rows:
            continue
        group.append(batch)
        size_bytes += batch.nbytes
        if size_bytes >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(group, schema)
            group, size_bytes = [], 0
    if group:
        yield pa.Table.from_batches(group, schema)
