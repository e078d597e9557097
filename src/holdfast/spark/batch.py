"""`spark.read.format("holdfast")`: a range of channels, once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.spark.options import SourceOptions
from holdfast.spark.planning import Task, pieces_of, tasks_of
from holdfast.spark.reading import read_pieces, tell_lost
from holdfast.spark.resolving import INTERACTIVE_PATIENCE_S, open_access, resolve

TASK_PATIENCE_S = 60.0
"""How long a task waits for a server that is away, before Spark tries the task again."""


class BatchReader(DataSourceReader):
    """Made on the driver, sent to executors."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """The range as of now, in tasks."""
        options = self._options
        access = open_access(options, patience_s=INTERACTIVE_PATIENCE_S)
        channels = access.channels()
        start, end = resolve(access, channels, options.starting), resolve(access, channels, options.ending)
        reach = {facts.name: facts.end_seq for facts in channels}
        end = {name: min(seq, reach[name]) for name, seq in end.items()}
        pieces, lost = pieces_of(access, start, end, {facts.name: facts.first_seq for facts in channels})
        tell_lost(lost, fail=options.fail_on_data_loss)
        return tasks_of(pieces)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The events of a task. Without tasks Spark asks once, with a partition that is none of ours."""
        if not isinstance(partition, Task):
            return iter(())
        access = open_access(self._options, patience_s=TASK_PATIENCE_S)
        target = to_arrow_schema(self._schema, timezone="UTC")
        return read_pieces(access, partition.pieces, target, fail_on_data_loss=self._options.fail_on_data_loss)
