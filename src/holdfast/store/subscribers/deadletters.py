"""Rejected events as the channel `<channel>.dead` keeps them: why, by whom, and where they were.

Promise: each letter has an id made of subscriber, channel and seq. The store keeps events with ids single, so burying
an event again, after a crash between burial and outcome, adds nothing while the letter is retained. The event itself is
the column `event`, a struct of its columns. Where its type does not fit the letters that are there (a channel of schema
mode `any`), it is kept whole in the column `event_ipc` instead, as an Arrow IPC stream of one row.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from holdfast.store.segments.runs import SYSTEM_COLUMNS

DEAD_ID = "dead_id"
ORIGIN_COLUMNS = ("_seq", "_committed_id", "_ingested_at")
"""System columns that `dead_letters` needs."""


def dead_letters(batch: pa.RecordBatch, channel: str, *, subscriber: str, reason: str, at_ns: int) -> pa.RecordBatch:
    """Letters for events read with `ORIGIN_COLUMNS`."""
    rows = batch.num_rows
    seqs = batch.column("_seq")
    columns = {
        DEAD_ID: pa.array([f"{subscriber}/{channel}/{seq}" for seq in seqs.to_pylist()], pa.string()),
        "reason": pa.repeat(pa.scalar(reason, pa.string()), rows),
        "subscriber": pa.repeat(pa.scalar(subscriber, pa.string()), rows),
        "channel": pa.repeat(pa.scalar(channel, pa.string()), rows),
        "seq": seqs,
        "committed_id": batch.column("_committed_id"),
        "ingested_at": batch.column("_ingested_at"),
        "rejected_at": pa.repeat(pa.scalar(at_ns // 1000, pa.timestamp("us", "UTC")), rows),
        "event": _events(batch).to_struct_array(),
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def with_opaque_events(letters: pa.RecordBatch) -> pa.RecordBatch:
    """The same letters, each with its event as bytes."""
    at = letters.schema.get_field_index("event")
    events = pa.RecordBatch.from_struct_array(letters.column(at))
    streams = [_as_stream(events.slice(row, 1)) for row in range(events.num_rows)]
    return letters.remove_column(at).append_column("event_ipc", pa.array(streams, pa.binary()))


def in_parts(batch: pa.RecordBatch, *, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """The batch in slices of about that many bytes, at least a row each: letters are larger than their events."""
    rows = max(1, batch.num_rows * bytes_max // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


def _events(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name not in SYSTEM_COLUMNS])


def _as_stream(event: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, event.schema) as stream:
        stream.write_batch(event)
    data: bytes = sink.getvalue().to_pybytes()
    return data
