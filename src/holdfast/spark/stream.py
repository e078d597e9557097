"""`spark.readStream.format("holdfast")`: channels as an endless table.

Offsets are `{channel: seq}`, the first seq that is not read yet, sorted by channel. A micro-batch is the range between
two of them, so it is the same rows however often it is run.

The order in which Spark calls, and what is sure at that point:

    latestOffset(start, limit)   `start` is in Spark's commit log: the subscriber confirms everything below it
    (Spark logs the end)
    commit(end of the last)      the same again, one batch late; never for the last batch
    partitions(start, end)       the plan; what is gone of the range is an error or is counted
    read(task)                   on executors

So the subscriber's mark never passes what is surely in the output (G8), and `latestOffset` is asked once more after
the last batch of a query that ends. A new channel under a glob is read from its first event.

A server that is away does not end a query: `latestOffset` answers that there is nothing new, everything else waits for
`DRIVER_PATIENCE_S`. Without news `latestOffset` looks again for `POLL_S` before it answers, because Spark asks a source
that answers at once some ninety times in a second.

Spark makes this object in several processes; the constructor does nothing but keep its arguments.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import cast

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from holdfast.errors import ServerAway
from holdfast.spark.access import ChannelFacts, SegmentRef, StoreAccess
from holdfast.spark.admission import NO_LIMITS, Offsets, admit, canonical
from holdfast.spark.batch import read_task
from holdfast.spark.many import Subscriber
from holdfast.spark.options import SourceOptions
from holdfast.spark.planning import Task, pieces_of, tasks_of
from holdfast.spark.reading import tell_lost
from holdfast.spark.resolving import open_access, open_subscriber, resolve
from holdfast.telemetry import event

POLL_S = 0.5
"""How long `latestOffset` waits for news; stopping a query interrupts it."""
LOOK_EVERY_S = 0.1
DRIVER_PATIENCE_S = 600.0
"""How long planning waits for a server that is away; a restart with a long recovery fits in."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's source."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._options = options
        self._target: Offsets | None = None

    def __getstate__(self) -> dict[str, object]:
        return {"_schema": self._schema, "_options": self._options, "_target": None}

    @cached_property
    def _patient(self) -> StoreAccess:
        """For calls that must succeed."""
        return open_access(self._options, patience_s=DRIVER_PATIENCE_S)

    @cached_property
    def _hasty(self) -> StoreAccess:
        """For calls that may be answered with "nothing new"."""
        return open_access(self._options, patience_s=0.0)

    @cached_property
    def _confirming(self) -> Subscriber | None:
        return open_subscriber(self._options, patience_s=0.0)

    # -- where ------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offsets:
        """Where a new query starts. With a subscriber the server keeps it, so that it is the same when asked again."""
        subscriber = open_subscriber(self._options, patience_s=DRIVER_PATIENCE_S)
        if subscriber is not None:
            return canonical(subscriber.start())
        return resolve(self._patient, self._patient.channels(), self._options.starting)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Only the first limit fits in here; `latestOffset` keeps all of them."""
        limits = self._options.limits
        if limits.events:
            return ReadMaxRows(limits.events)
        return ReadMaxFiles(limits.segments) if limits.segments else ReadMaxBytes(limits.size_bytes)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is what this run reads."""
        self._target = _ends(self._patient.channels())

    def reportLatestOffset(self) -> Offsets | None:
        """How far the channels reach, for progress reports."""
        try:
            return canonical(_ends(self._hasty.channels()))
        except ServerAway:
            return None

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> Offsets:
        """The end of the next batch; `start` itself if there is nothing to read."""
        try:
            self._confirm(start)
            return self._next(canonical(start), limit)
        except ServerAway as away:
            event("spark.server.away", level=logging.WARNING, addr=away.addr, reason=away.reason)
            threading.Event().wait(POLL_S)
            return canonical(start)

    def _next(self, start: Offsets, limit: ReadLimit) -> Offsets:
        everything = isinstance(limit, ReadAllAvailable)
        limits = NO_LIMITS if everything else self._options.limits
        looks = 1 if everything or self._target is not None else round(POLL_S / LOOK_EVERY_S)
        for look in range(looks):
            if look:
                threading.Event().wait(LOOK_EVERY_S)
            targets = self._target if self._target is not None else self._ends_now()
            ahead = {name: seq for name, seq in targets.items() if seq > start.get(name, 1)}
            if ahead:
                return admit(start, ahead, limits, segments=self._segments)
        return start

    def _ends_now(self) -> Offsets:
        """How far the channels reach; what they have beyond that is sealed for the next look, if that was asked for."""
        channels = self._hasty.channels()
        if self._options.tail_latency == "low":
            for facts in channels:
                if facts.unsealed:
                    self._hasty.seal(facts.key)
        return _ends(channels)

    def _segments(self, channel: str, from_seq: int) -> Iterator[SegmentRef]:
        return self._hasty.segments(channel, from_seq=from_seq)

    # -- what -------------------------------------------------------------------------------------------------------

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        floors = {facts.key: facts.first_seq for facts in self._patient.channels()}
        pieces, lost = pieces_of(self._patient, start, end, floors)
        tell_lost(lost, fail=self._options.fail_on_data_loss)
        return tasks_of(pieces)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of a task."""
        return read_task(self._options, cast(Task, partition), self._schema)

    # -- done -------------------------------------------------------------------------------------------------------

    def commit(self, end: Mapping[str, int]) -> None:
        """Spark has committed everything below `end`."""
        try:
            self._confirm(end)
        except ServerAway as away:  # the next `latestOffset` says it again
            event("spark.server.away", level=logging.WARNING, addr=away.addr, reason=away.reason)

    def _confirm(self, offsets: Mapping[str, int]) -> None:
        if self._confirming is not None:
            self._confirming.confirm(offsets)


def _ends(channels: Sequence[ChannelFacts]) -> Offsets:
    return {facts.key: facts.end_seq for facts in channels}
