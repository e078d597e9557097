"""The rows of a task as frames for a server: cut by size, encoded, kept until the task has all of them.

Promise: the same rows in the same order give the same frames. Nothing is handed out before the last row has come, so a
task that fails while it computes has sent nothing. More than one frame waits in a temporary file, not in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple

import pyarrow as pa

FRAME_ROWS_MAX = 500_000
"""Half of what a server takes in one frame by default."""


class Frame(NamedTuple):
    """An Arrow stream."""

    data: bytes
    rows: int


def spooled(batches: Iterable[pa.RecordBatch], *, frame_bytes_max: int) -> Iterator[Frame]:
    """All rows, in order; the first frame comes after the last batch."""
    with tempfile.SpooledTemporaryFile(max_size=2 * frame_bytes_max, prefix="holdfast-frames-") as spool:
        marks = [
            (_append(spool, group), sum(batch.num_rows for batch in group))
            for group in _groups(batches, frame_bytes_max)
        ]
        spool.seek(0)
        for size_bytes, rows in marks:
            yield Frame(spool.read(size_bytes), rows)


def _append(spool: IO[bytes], group: list[pa.RecordBatch]) -> int:
    data = encode(group)
    spool.write(data)
    return len(data)


def encode(group: list[pa.RecordBatch]) -> pa.Buffer:
    """One stream with one batch."""
    sink = pa.BufferOutputStream()
    batch = pa.concat_batches(group)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def _groups(batches: Iterable[pa.RecordBatch], bytes_max: int) -> Iterator[list[pa.RecordBatch]]:
    """Neighbours that fit into one frame."""
    group: list[pa.RecordBatch] = []
    size_bytes = rows = 0
    for batch in batches:
        for part in _parts(in_utc(batch), bytes_max):
            if group and (size_bytes + part.nbytes > bytes_max or rows + part.num_rows > FRAME_ROWS_MAX):
                yield group
                group, size_bytes, rows = [], 0, 0
            group.append(part)
            size_bytes += part.nbytes
            rows += part.num_rows
    if group:
        yield group


def _parts(batch: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    if not batch.num_rows:
        return
    step = min(FRAME_ROWS_MAX, max(1, batch.num_rows * bytes_max // max(bytes_max, batch.nbytes)))
    for at in range(0, batch.num_rows, step):
        yield batch.slice(at, step)


def in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Times with a zone as UTC, whatever the zone of the session: the values are the same, the type is one."""
    fields = [pa.field(field.name, _utc_type(field.type), nullable=True) for field in batch.schema]
    columns = [column.cast(field.type) for column, field in zip(batch.columns, fields, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _utc_type(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz is not None else kind
