"""Starting the query of one output.

| format | how it is written |
|---|---|
| parquet, delta, iceberg | `format("holdfast")` with `table`: each batch once, whoever reads the folder |
| channel | `format("holdfast")` with `channel`: each batch once |
| otlp | in `foreachBatch`: OTLP over HTTP, at least once; with a key that makes repeats harmless at our receivers |
| foreach_batch | the user's function gets (DataFrame, batch id); a batch may come twice with the same id |
| any other | as Spark writes it, with its promises |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast.spark.pipeline.building import interval, otlp_sink
from holdfast.spark.pipeline.model import FOREACH_BATCH, OTLP, Output, PipelineSpec, Trigger

OURS = "holdfast"


def start(spec: PipelineSpec, output: Output, frame: DataFrame, function: Callable[..., Any] | None) -> StreamingQuery:
    """The running query; `function` is the one of `foreach_batch`."""
    writer = frame.writeStream.queryName(query_name(spec, output)).outputMode(output.mode)
    writer = writer.option("checkpointLocation", spec.checkpoint_of(output))
    writer = _triggered(writer, spec.trigger_of(output))
    if output.format == FOREACH_BATCH:
        assert function is not None
        return writer.options(**output.options).foreachBatch(function).start()
    if output.format == OTLP:
        sink = otlp_sink()
        sink.check_columns(frame.columns)
        target = sink.OtlpTarget(output.addr, token=output.token, token_file=output.token_file)
        return writer.foreachBatch(sink.writer(target)).start()
    ours = output.writer_options()
    if ours:
        return writer.format(OURS).options(**ours).start()
    if output.partition_by:
        writer = writer.partitionBy(*output.partition_by)
    writer = writer.format(output.format).options(**output.options)
    return writer.start(output.path) if output.path else writer.start()


def query_name(spec: PipelineSpec, output: Output) -> str:
    """How Spark, its listeners and its UI call the query."""
    return f"{spec.name}.{output.name}"


def _triggered(writer: DataStreamWriter, trigger: Trigger) -> DataStreamWriter:
    if trigger.kind == "available_now":
        return writer.trigger(availableNow=True)
    if trigger.kind == "once":
        return writer.trigger(once=True)
    return writer.trigger(processingTime=interval(trigger.every_ns))
