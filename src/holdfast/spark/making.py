"""What the data source makes for Spark, from the options of a query."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import replace

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
)
from pyspark.sql.types import StructType

from holdfast.errors import InvalidConfig
from holdfast.spark.batch import BatchReader, PruningReader
from holdfast.spark.descriptors import DESCRIPTORS
from holdfast.spark.options import read_options
from holdfast.spark.resolving import infer_schema
from holdfast.spark.sink import ChannelBatchWriter, ChannelStreamWriter, check_columns
from holdfast.spark.sinkoptions import read_sink_options
from holdfast.spark.stream import StreamReader
from holdfast.spark.tables.writers import TableBatchWriter, TableStreamWriter


def schema(given: Mapping[str, str]) -> StructType:
    """The columns of the channels as they are now, or those of descriptors."""
    options = read_options(given)
    return DESCRIPTORS if options.emit == "segments" else infer_schema(options)


def reader(given: Mapping[str, str], columns: StructType) -> DataSourceReader:
    """Of a batch."""
    options = read_options(given).check_batch()
    return PruningReader(columns, options) if options.pushdown else BatchReader(columns, options)


def stream_reader(given: Mapping[str, str], columns: StructType) -> DataSourceStreamReader:
    """Of a stream."""
    return StreamReader(columns, read_options(given).check_stream())


def writer(given: Mapping[str, str], columns: StructType, overwrite: bool) -> DataSourceArrowWriter:
    """Of a batch."""
    if overwrite:
        raise InvalidConfig(key="mode", reason="overwrite is not possible: what is stored stays; use append")
    options = read_sink_options(given)
    options = options if options.identity else replace(options, identity=uuid.uuid4().hex)
    if options.table:
        return TableBatchWriter(options, columns)
    check_columns(columns)
    return ChannelBatchWriter(options)


def stream_writer(given: Mapping[str, str], columns: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:
    """Of a stream, in output mode append."""
    if overwrite:
        raise InvalidConfig(key="outputMode", reason="complete is not possible: what is stored stays; use append")
    options = read_sink_options(given).check_stream()
    if options.table:
        return TableStreamWriter(options, columns)
    check_columns(columns)
    return ChannelStreamWriter(options)
