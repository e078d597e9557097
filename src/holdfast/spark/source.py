"""The data source `holdfast`: the class that Spark finds by name.

Spark imports it in every session that uses a data source in Python, whosever that is. So it imports no other part of
ours before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

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

    def schema(self) -> StructType:
        """The columns of the channels as they are now, or those of descriptors."""
        found: StructType = self._made("schema")
        return found

    def reader(self, schema: StructType) -> DataSourceReader:
        """For a batch; `schema` has the columns to read."""
        made: DataSourceReader = self._made("reader", schema)
        return made

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """For a stream; `schema` has the columns to read."""
        made: DataSourceStreamReader = self._made("stream_reader", schema)
        settle()  # in the process that plans a query, where this object was not made
        return made

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """For a batch. Channels and tables are only appended to."""
        made: DataSourceArrowWriter = self._made("writer", schema, overwrite)
        return made

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
        """For a stream, in output mode append."""
        made: DataSourceStreamArrowWriter = self._made("stream_writer", schema, overwrite)
        return made

    def _made(self, what: str, *arguments: object) -> Any:
        return getattr(import_module("holdfast.spark.making"), what)(dict(self.options), *arguments)
