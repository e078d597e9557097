"""The data source `holdfast`: the class that Spark finds by name."""

from __future__ import annotations

import uuid
from dataclasses import replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from holdfast.errors import InvalidConfig
from holdfast.spark.batch import BatchReader, PruningReader
from holdfast.spark.descriptors import DESCRIPTORS
from holdfast.spark.options import SourceOptions, read_options
from holdfast.spark.resolving import infer_schema
from holdfast.spark.sink import ChannelBatchWriter, ChannelStreamWriter, check_columns
from holdfast.spark.sinkoptions import read_sink_options
from holdfast.spark.stream import StreamReader
from holdfast.spark.tables.writers import TableBatchWriter, TableStreamWriter
from holdfast.spark.worker import settle


class HoldfastSource(DataSource):
    """Name: `holdfast`.

    Options: docs/reference/spark.md lists them; `holdfast.spark.options` checks them.

    Examples:
        spark.read.format("holdfast").option("path", "./data").option("channel", "trades").load()
        spark.readStream.format("holdfast").option("addr", "http://127.0.0.1:9001").option("channel", "trades")
        df.writeStream.format("holdfast").option("addr", "http://127.0.0.1:9001").option("channel", "alerts")
    """

    def __init__(self, options: dict[str, str]) -> None:
        """Made in each process of Spark's that plans for us."""
        super().__init__(options)
        settle()

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "holdfast"

    def _read(self) -> SourceOptions:
        return read_options(dict(self.options))

    def schema(self) -> StructType:
        """The columns of the channels as they are now, or those of descriptors."""
        options = self._read()
        return DESCRIPTORS if options.emit == "segments" else infer_schema(options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For a batch; `schema` has the columns to read."""
        options = self._read().check_batch()
        return PruningReader(schema, options) if options.pushdown else BatchReader(schema, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For a stream; `schema` has the columns to read."""
        settle()  # in the process that plans a query, where this object was not made
        return StreamReader(schema, self._read().check_stream())

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For a batch. Channels and tables are only appended to."""
        if overwrite:
            raise InvalidConfig(key="mode", reason="overwrite is not possible: what is stored stays; use append")
        options = read_sink_options(dict(self.options))
        options = options if options.identity else replace(options, identity=uuid.uuid4().hex)
        if options.table:
            return TableBatchWriter(options, schema)
        check_columns(schema)
        return ChannelBatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For a stream, in output mode append."""
        if overwrite:
            raise InvalidConfig(key="outputMode", reason="complete is not possible: what is stored stays; use append")
        options = read_sink_options(dict(self.options)).check_stream()
        if options.table:
            return TableStreamWriter(options, schema)
        check_columns(schema)
        return ChannelStreamWriter(options)
