"""`spark.read.format("holdfast")`: a range of channels, once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.spark.descriptors import describe
from holdfast.spark.options import SourceOptions
from holdfast.spark.planning import Task, pieces_of, tasks_of
from holdfast.spark.pruning import Bounds, bounds_of, check_event_time
from holdfast.spark.reading import read_pieces, tell_lost
from holdfast.spark.resolving import INTERACTIVE_PATIENCE_S, open_access, resolve
from holdfast.spark.worker import settle

TASK_PATIENCE_S = 60.0
"""How long a task of a batch waits for a server that is away, before Spark tries the task again."""


class BatchReader(DataSourceReader):
    """Made on the driver, sent to executors."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._options = options
        self._bounds = Bounds()

    def partitions(self) -> Sequence[InputPartition]:
        """The range as of now, in tasks."""
        options = self._options
        access = open_access(options, patience_s=INTERACTIVE_PATIENCE_S)
        channels = access.channels()
        start, end = resolve(access, channels, options.starting), resolve(access, channels, options.ending)
        reach = {facts.key: facts.end_seq for facts in channels}
        end = {name: min(seq, reach[name]) for name, seq in end.items()}
        pieces, lost = pieces_of(access, start, end, {facts.key: facts.first_seq for facts in channels})
        tell_lost(lost, fail=options.fail_on_data_loss)
        check_event_time(options.event_time, pieces)
        return tasks_of(self._bounds.cut(pieces), task_bytes=options.task_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of a task. Without tasks Spark asks once, with a partition that is none of ours."""
        if not isinstance(partition, Task):
            return iter(())
        return read_task(self._options, partition, self._schema)


class PruningReader(BatchReader):
    """The same with filters; Spark refuses a reader that takes them while its own setting for that is off."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep what they say of segments, and give all of them back."""
        self._bounds = bounds_of(filters, event_time=self._options.event_time)
        return filters


def read_task(
    options: SourceOptions, task: Task, schema: StructType, *, patience_s: float = TASK_PATIENCE_S
) -> Iterator[pa.RecordBatch]:
    """What a task yields: events, or descriptors of where they are."""
    settle()
    target = to_arrow_schema(schema, timezone="UTC")
    if options.emit == "segments":
        return iter([describe(task.pieces, target)])
    access = open_access(options, patience_s=patience_s)
    return read_pieces(access, task.pieces, target, fail_on_data_loss=options.fail_on_data_loss)
