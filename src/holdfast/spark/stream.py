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

A server or object store that is away does not end a query: `latestOffset` answers that there is nothing new, everything
else waits for as long as it takes (`waiting.py` says why that is safe). A run that ends by itself (`availableNow`,
`once`) takes that answer for its end, so there `latestOffset` waits too, for `RUN_PATIENCE_S`, and for each server that
it reached when it began. Without news `latestOffset` looks again for
`POLL_S` before it answers, because Spark asks a source that answers at once some ninety times in a second.

Spark makes this object in several processes; the constructor does nothing but keep its arguments.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
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

from holdfast.errors import UnknownChannel
from holdfast.spark.access import ChannelFacts, SegmentRef, StoreAccess
from holdfast.spark.admission import NO_LIMITS, Offsets, admit, canonical
from holdfast.spark.batch import read_task
from holdfast.spark.losses import Losses
from holdfast.spark.many import ManyServers, Subscriber
from holdfast.spark.options import SourceOptions
from holdfast.spark.planning import Task, pieces_of, segments_of, tasks_of
from holdfast.spark.reading import tell_lost
from holdfast.spark.resolving import (
    INTERACTIVE_PATIENCE_S,
    RUN_PATIENCE_S,
    STREAM_PATIENCE_S,
    open_access,
    open_subscriber,
    resolve,
)
from holdfast.spark.waiting import AWAY, Patience, PatientAccess, tell_away

POLL_S = 0.5
"""How long `latestOffset` waits for news; stopping a query interrupts it."""
LOOK_EVERY_S = 0.1
SEAL_PATIENCE_S = 10.0
"""How long a run that ends by itself waits for what it has asked to be sealed."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One query's source."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._options = options
        self._begin()

    def _begin(self) -> None:
        self._target: Offsets | None = None
        """Where a run with `availableNow` ends."""
        self._reached: frozenset[str] = frozenset()
        """The servers that a run which ends by itself began with."""
        self._floors: dict[str, int] = {}
        """By channel the first event that was left at the last look."""
        self._losses = Losses()

    def __getstate__(self) -> dict[str, object]:
        return {"_schema": self._schema, "_options": self._options}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._begin()

    @cached_property
    def _patient(self) -> StoreAccess:
        """For calls that must succeed."""
        return open_access(self._options, patience_s=STREAM_PATIENCE_S)

    @cached_property
    def _looking(self) -> StoreAccess:
        """For a run that ends by itself, and looks for its end."""
        return open_access(self._options, patience_s=RUN_PATIENCE_S)

    @cached_property
    def _hasty(self) -> StoreAccess:
        """For calls that may be answered with "nothing new"."""
        return open_access(self._options, patience_s=0.0, lenient=True)

    @cached_property
    def _reaching(self) -> StoreAccess:
        """For what a run that ends by itself begins with: any server has some seconds to answer."""
        return open_access(self._options, patience_s=INTERACTIVE_PATIENCE_S, lenient=True)

    @cached_property
    def _confirming(self) -> Subscriber | None:
        return open_subscriber(self._options, patience_s=0.0, lenient=True)

    @cached_property
    def _insisting(self) -> Subscriber | None:
        """For confirmations that must succeed."""
        return open_subscriber(self._options, patience_s=RUN_PATIENCE_S, only=self._reached)

    # -- where ------------------------------------------------------------------------------------------------------

    def initialOffset(self) -> Offsets:
        """Where a new query starts. With a subscriber the server keeps it, so that it is the same when asked again."""
        subscriber = open_subscriber(self._options, patience_s=STREAM_PATIENCE_S)
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
        self._target = self._reach()

    def reportLatestOffset(self) -> dict[str, object] | None:
        """How far the channels reach, and what was lost, for progress reports."""
        try:
            return self._losses.shown_with(canonical(_ends(self._hasty.channels())))
        except AWAY:
            return None

    def latestOffset(self, start: Mapping[str, int], limit: ReadLimit) -> Offsets:
        """The end of the next batch; `start` itself if there is nothing to read."""
        if self._target is not None or isinstance(limit, ReadAllAvailable):
            return self._towards_the_end(canonical(start), limit)
        try:
            _confirm(self._confirming, start)
            return self._news(canonical(start))
        except AWAY as away:
            tell_away(away)
            threading.Event().wait(POLL_S)
            return canonical(start)

    def _news(self, start: Offsets) -> Offsets:
        """Of a run that goes on: what there is within `POLL_S`."""
        for look in range(round(POLL_S / LOOK_EVERY_S)):
            if look:
                threading.Event().wait(LOOK_EVERY_S)
            ahead = _ahead(start, self._ends_now())
            if ahead:
                end = admit(start, ahead, self._options.limits, segments=_segments(self._hasty))
                self._foresee(self._hasty, start, end)
                return end
        return start

    def _towards_the_end(self, start: Offsets, limit: ReadLimit) -> Offsets:
        """Of a run that ends by itself, which takes `start` for its end: whatever is away is waited for."""
        targets = self._target if self._target is not None else self._reach()
        _confirm(self._insisting, start)
        ahead = _ahead(start, targets)
        if not ahead:
            return start
        access = _holding(self._looking, ahead)
        limits = NO_LIMITS if isinstance(limit, ReadAllAvailable) else self._options.limits
        end = admit(start, ahead, limits, segments=_segments(access))
        self._foresee(access, start, end)
        return end

    def _ends_now(self) -> Offsets:
        """How far the channels reach; what they have beyond that is sealed for the next look, if that was asked for."""
        channels = self._hasty.channels()
        if self._options.tail_latency == "low":
            for facts in channels:
                if facts.unsealed:
                    _seal(self._hasty, facts.key)
        return self._noted(channels)

    def _reach(self) -> Offsets:
        """How far a run goes that ends by itself: to what there is now, at the servers that answer if one does."""
        look = self._all_sealed if self._options.tail_latency == "low" else self._reaching.channels
        channels = Patience(RUN_PATIENCE_S).spend(look)
        self._reached = frozenset(facts.server for facts in channels)
        return self._noted(channels)

    def _all_sealed(self) -> list[ChannelFacts]:
        """The channels, once everything that they have now is in segments, or `SEAL_PATIENCE_S` are over."""
        channels = self._reaching.channels()
        wanted = {facts.key: facts.next_seq for facts in channels}
        for _ in range(round(SEAL_PATIENCE_S / LOOK_EVERY_S)):
            behind = [facts for facts in channels if facts.end_seq < wanted.get(facts.key, 0)]
            if not behind:
                break
            for facts in behind:
                _seal(self._reaching, facts.key)
            threading.Event().wait(LOOK_EVERY_S)
            channels = self._reaching.channels()
        return channels

    def _noted(self, channels: Sequence[ChannelFacts]) -> Offsets:
        self._floors.update((facts.key, facts.first_seq) for facts in channels)
        return _ends(channels)

    def _foresee(self, access: StoreAccess, start: Offsets, end: Offsets) -> None:
        """Count what is gone at the beginning of a batch now, so that the report of this batch has it."""
        if self._options.fail_on_data_loss:
            return
        floors = {key: floor for key, floor in self._floors.items() if start.get(key, 1) < min(floor, end.get(key, 1))}
        if floors:
            self._losses.add(pieces_of(access, start, {key: min(floors[key], end[key]) for key in floors}, floors)[1])

    # -- what -------------------------------------------------------------------------------------------------------

    def partitions(self, start: Mapping[str, int], end: Mapping[str, int]) -> Sequence[InputPartition]:
        """The tasks of a batch."""
        access = _holding(self._patient, _ahead(start, end))
        floors = {facts.key: facts.first_seq for facts in access.channels()}
        pieces, lost = pieces_of(access, start, end, floors)
        tell_lost(lost, fail=self._options.fail_on_data_loss)
        self._losses.add(lost)
        return tasks_of(pieces, task_bytes=self._options.task_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of a task."""
        return read_task(self._options, cast(Task, partition), self._schema, patience_s=STREAM_PATIENCE_S)

    # -- done -------------------------------------------------------------------------------------------------------

    def commit(self, end: Mapping[str, int]) -> None:
        """Spark has committed everything below `end`."""
        try:
            _confirm(self._confirming, end)
        except AWAY as away:  # the next `latestOffset` says it again
            tell_away(away)


def _confirm(subscriber: Subscriber | None, offsets: Mapping[str, int]) -> None:
    if subscriber is not None:
        subscriber.confirm(offsets)


def _holding(access: StoreAccess, channels: Iterable[str]) -> StoreAccess:
    """Where these channels are; a server that has none of them need not answer."""
    return access.holding(channels) if isinstance(access, ManyServers | PatientAccess) else access


def _seal(access: StoreAccess, channel: str) -> None:
    with suppress(UnknownChannel):  # removed meanwhile
        access.seal(channel)


def _ahead(start: Mapping[str, int], ends: Mapping[str, int]) -> Offsets:
    """The channels that go on behind `start`, with their ends."""
    return {key: seq for key, seq in ends.items() if seq > start.get(key, 1)}


def _segments(access: StoreAccess) -> Callable[[str, int], Iterable[SegmentRef]]:
    return lambda channel, from_seq: segments_of(access, channel, from_seq)


def _ends(channels: Sequence[ChannelFacts]) -> Offsets:
    return {facts.key: facts.end_seq for facts in channels}
