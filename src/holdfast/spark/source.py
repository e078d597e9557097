"""The data source `holdfast`: the class that Spark finds by name."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from holdfast.spark.batch import BatchReader
from holdfast.spark.options import SourceOptions, read_options
from holdfast.spark.resolving import infer_schema
from holdfast.spark.stream import StreamReader


class HoldfastSource(DataSource):
    """Name: `holdfast`.

    Options: docs/reference/spark.md lists them; `holdfast.spark.options` checks them.

    Examples:
        spark.read.format("holdfast").option("path", "./data").option("channel", "trades").load()
        spark.readStream.format("holdfast").option("addr", "http://127.0.0.1:9001").option("channel", "trades")
    """

    @classmethod
    def name(cls) -> str:
        """What `format` takes."""
        return "holdfast"

    def _read(self) -> SourceOptions:
        return read_options(dict(self.options))

    def schema(self) -> StructType:
        """The columns of the channels as they are now."""
        return infer_schema(self._read())

    def reader(self, schema: StructType) -> DataSourceReader:
        """For a batch; `schema` has the columns to read."""
        return BatchReader(schema, self._read().check_batch())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For a stream; `schema` has the columns to read."""
        return StreamReader(schema, self._read().check_stream())
