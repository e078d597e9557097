"""What Spark calls to write a table: tasks write files, the driver commits them.

The rows are what Spark hands over, or, for `land`, descriptors of segments, whose events the task reads itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.spark.columns import conform
from holdfast.spark.landed import landed_batches, landed_schema
from holdfast.spark.sink import Origin, task_origin
from holdfast.spark.sinkoptions import SinkOptions
from holdfast.spark.tables.commits import Commit, DataFile, commit, discard, folder_of
from holdfast.spark.tables.files import write_files
from holdfast.spark.tables.opening import check_types, open_folder, open_table, table_schema
from holdfast.spark.worker import settle


@dataclass
class Written(WriterCommitMessage):
    """The files of a task, and who it was; the driver does not know the query's id."""

    identity: str
    files: list[DataFile]


class _TableWriter:
    """Both kinds of writers."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        rows = landed_schema(options) if options.source else schema
        self._rows = rows
        check_types(options.table, options.path, self._target())

    def _target(self) -> pa.Schema:
        return table_schema(to_arrow_schema(self._rows, timezone="UTC"))

    def _write(self, rows: Iterator[pa.RecordBatch], origin: Origin) -> Written:
        settle()
        options, target = self._options, self._target()
        plain = (conform(batch, target, channel=options.path) for batch in rows)
        batches = landed_batches(options, rows, target) if options.source else plain
        folder = folder_of(origin.identity, origin.batch)
        size = options.file_bytes_max
        files = write_files(open_folder(options.path), folder, target, batches, file_bytes_max=size)
        return Written(origin.identity, files)

    def _commit(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        found = [message for message in messages if isinstance(message, Written)]
        files = tuple(file for message in found for file in message.files)
        if not files:
            return
        opened = open_table(self._options.table, self._options.path)
        change = Commit(found[0].identity, batch, self._target(), files)
        commit(opened.table, opened.objects, change)

    def _abort(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Remove the files, unless the commit took place and only its answer was lost."""
        found = [message for message in messages if isinstance(message, Written) and message.files]
        if found:
            opened = open_table(self._options.table, self._options.path)
            last = opened.table.last_batch(found[0].identity)
            if last is None or last < batch:
                discard(opened.objects, [file.key for message in found for file in message.files])


class TableStreamWriter(_TableWriter, DataSourceStreamArrowWriter):
    """Of one query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: its files are on the disk when this returns, and in no table."""
        return self._write(iterator, task_origin(self._options, streaming=True))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: all files at once."""
        self._commit(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver: the batch will run again."""
        self._abort(messages, batchId)


class TableBatchWriter(_TableWriter, DataSourceArrowWriter):
    """Of one job."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task: its files are on the disk when this returns, and in no table."""
        return self._write(iterator, task_origin(self._options, streaming=False))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: all files at once."""
        self._commit(messages, self._options.batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: nothing of the job is in the table."""
        self._abort(messages, self._options.batch)
