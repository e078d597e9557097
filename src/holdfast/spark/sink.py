"""`df.write.format("holdfast")` and `df.writeStream` to a channel.

Promise: an event is stored once, however often its task or its micro-batch runs. What a task writes is cut into frames,
and frame `chunk` of a task is frame number `batch` of the slot that is named by (identity, channel, partition, chunk).
Servers know the frames of a slot for ever, so a repeat stores nothing, however late it comes; and since the batches of
a query count without gaps, a server keeps a range for each slot, not a number for each batch.

It relies on repeats that are alike. Spark runs a micro-batch again with the same rows in the same partitions. Within a
partition the order must be the same too if the partition is more than one frame; without a shuffle it is. What a
server answers to a repeat is compared with what was sent: another number of events is `ReplayDiffers`.

A task sends nothing before it has all of its rows, so what fails while it computes leaves nothing behind. Each frame is
stored as a whole or not at all. A reader that looks while a task sends may see its first frames before its last.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from holdfast.consumer.adminclient import AdminClient
from holdfast.errors import BadRequest, InvalidConfig, ReplayDiffers
from holdfast.model.schema import SYSTEM_COLUMNS
from holdfast.spark.frames import spooled
from holdfast.spark.sinkoptions import SinkOptions
from holdfast.spark.worker import settle
from holdfast.telemetry import event

SEND_PATIENCE_S = 300.0
"""How long a task waits for a server that is away or full, before Spark tries the task again."""
NAMESPACE = uuid.UUID("5f0c7a52-6d0e-5d4b-9a53-8f2f6f0b1c11")
"""Slots of Spark tasks; a new one would make every replay a new event."""


@dataclass(frozen=True)
class Origin:
    """Which task of which batch writes."""

    identity: str
    batch: int
    partition: int

    def slot(self, channel: str, chunk: int) -> uuid.UUID:
        """The slot of the task's frames with this place in the task."""
        return uuid.uuid5(NAMESPACE, "\0".join((self.identity, channel, str(self.partition), str(chunk))))


@dataclass
class Sent(WriterCommitMessage):
    """What a task stored; `repeated` of it was there already."""

    events: int = 0
    repeated: int = 0


def task_origin(options: SinkOptions, *, streaming: bool) -> Origin:
    """Who the running task is."""
    task = TaskContext.get()
    assert task is not None, "writers run in tasks"
    if not streaming:
        return Origin(options.identity, options.batch, task.partitionId())
    batch = task.getLocalProperty("streaming.sql.batchId")
    identity = task.getLocalProperty("sql.streaming.queryId")
    if batch is None or identity is None:
        raise BadRequest("Spark does not say which query and batch this task belongs to; write in foreachBatch instead")
    return Origin(identity, int(batch), task.partitionId())


def send_rows(options: SinkOptions, batches: Iterable[pa.RecordBatch], origin: Origin) -> Sent:
    """Store the rows of a task."""
    settle()
    client = AdminClient(options, patience_s=SEND_PATIENCE_S)
    sent = Sent()
    for chunk, frame in enumerate(spooled(batches, frame_bytes_max=options.frame_bytes_max)):
        slot = origin.slot(options.channel, chunk)
        answer = client.send_frame(options.channel, frame.data, slot_id=slot.hex, fsn=origin.batch)
        if answer["duplicate"]:
            if answer["events"] not in (0, frame.rows):  # 0: they are evicted by now
                raise ReplayDiffers(
                    channel=options.channel,
                    batch=origin.batch,
                    partition=origin.partition,
                    stored=answer["events"],
                    sent=frame.rows,
                )
            sent.repeated += frame.rows
        sent.events += frame.rows
    return sent


def check_columns(schema: StructType) -> None:
    """A channel gives its system columns itself."""
    taken = [name for name in schema.names if name.lower() in SYSTEM_COLUMNS]
    if taken:
        reason = f"has {', '.join(taken)}, which every channel adds by itself; drop or rename them before writing"
        raise InvalidConfig(key="schema", reason=reason)


class ChannelStreamWriter(DataSourceStreamArrowWriter):
    """Of one query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: everything is stored when this returns."""
        return send_rows(self._options, iterator, task_origin(self._options, streaming=True))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """The tasks have stored everything already."""
        _tell(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """What was stored stays; the batch runs again and adds what is missing."""


class ChannelBatchWriter(DataSourceArrowWriter):
    """Of one job."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: everything is stored when this returns."""
        return send_rows(self._options, iterator, task_origin(self._options, streaming=False))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The tasks have stored everything already."""
        _tell(self._options, messages, self._options.batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What was stored stays; a job with the same identity adds what is missing."""


def _tell(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
    found = [message for message in messages if isinstance(message, Sent)]
    event(
        "spark.sink.batch",
        channel=options.channel,
        batch=batch,
        events=sum(message.events for message in found),
        repeated=sum(message.repeated for message in found),
    )


Part: TypeAlias = "DataFrame | Callable[[DataFrame], DataFrame]"


def write_batch(frame: DataFrame, batch_id: int, parts: Mapping[str, Part], **options: str) -> None:
    """In `foreachBatch`: rows to several channels, each once however often the batch runs.

        def out(frame, batch_id):
            write_batch(frame, batch_id, {"alerts": lambda f: f.where("value > 9"), "all": frame}, addr=addr)

    `options` are those of the sink. The identity is the query's id, so a channel may be written by one call in a query.
    """
    identity = options.pop("identity", "") or frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not identity:
        raise BadRequest("write_batch is for foreachBatch; elsewhere give identity, the same for every repeat")
    frame.persist()
    try:
        for channel, part in parts.items():
            rows = part(frame) if callable(part) else part
            chosen = {**options, "channel": channel, "identity": identity, "batch": str(batch_id)}
            rows.write.format("holdfast").options(**chosen).mode("append").save()
    finally:
        frame.unpersist()
