"""From a pipeline to DataFrames, one per output, which Spark's analyser has accepted.

Promise: what the analyser objects to is `InvalidConfig` with file, line and key of the step. A server that is away is
`ServerAway`. Every output reads its sources with subscribers of its own. Views that SQL steps need exist only while
the step is analysed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from holdfast.clock import NS_PER_S
from holdfast.errors import BadRequest, InvalidConfig, ServerAway
from holdfast.spark.pipeline.decoders import DECODERS
from holdfast.spark.pipeline.fields import line_of
from holdfast.spark.pipeline.model import (
    Aggregate,
    Decode,
    Deduplicate,
    Filter,
    Function,
    Output,
    PipelineSpec,
    Python,
    Select,
    Source,
    Sql,
    Step,
    Verb,
    Watermark,
    Window,
    WithColumn,
)
from holdfast.spark.reasons import kind_of, reason_of

_SLOT = "_holdfast_slot_id"


class Building:
    """Builds the outputs of one pipeline in one session."""

    def __init__(self, spark: SparkSession, spec: PipelineSpec) -> None:
        self._spark = spark
        self._spec = spec

    def frame(self, output: Output) -> DataFrame:
        """What an output writes."""
        sources, steps = self._spec.needed_for(output)
        views = {source.name: self._read(source, output) for source in sources}
        for step in steps:
            views[step.name] = self._applied(step, {name: views[name] for name in step.inputs})
        return views[output.input]

    def check_streaming(self, output: Output, frame: DataFrame) -> None:
        """What Spark would object to only when the query starts: operations and modes that do not go together."""
        jvm = self._spark._jvm
        assert jvm is not None
        checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
        modes = jvm.org.apache.spark.sql.streaming.OutputMode
        mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[output.mode]()
        with self._objecting(f"outputs.{output.name}"):
            checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), mode)

    def check_otlp(self, output: Output, frame: DataFrame) -> None:
        """Whether rows are telemetry."""
        with self._objecting(f"outputs.{output.name}"):
            otlp_sink().check_columns(frame.columns)

    def function(self, function: Function, key: str) -> Callable[..., Any]:
        """A function of the user's."""
        if function.call is not None:
            return function.call
        folder = str(self._spec.folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            found = getattr(import_module(function.module), function.name)
        except (ImportError, AttributeError) as error:
            raise self._refused(key, f"{function} cannot be had: {error}") from None
        if not callable(found):
            raise self._refused(key, f"{function} is not a function")
        made: Callable[..., Any] = found
        return made

    def _read(self, source: Source, output: Output) -> DataFrame:
        reader = self._spark.readStream.format("holdfast")
        reader = reader.options(**source.reader_options(self._spec.subscriber_of(source, output)))
        with self._objecting(f"sources.{source.name}"):
            return (reader.schema(source.schema) if source.schema else reader).load()

    def _applied(self, step: Step, inputs: dict[str, DataFrame]) -> DataFrame:
        verb = step.verb
        with self._objecting(f"{step.key}.{_KEYS[type(verb)]}" if step.key else step.name):
            if isinstance(verb, Sql):
                return self._sql(verb.text, inputs)
            (frame,) = inputs.values()
            if isinstance(verb, Python):
                return self._called(verb.function, frame, f"{step.key}.python")
            return apply(verb, frame)

    def _sql(self, text: str, inputs: dict[str, DataFrame]) -> DataFrame:
        for name, frame in inputs.items():
            frame.createOrReplaceTempView(name)
        try:
            return self._spark.sql(text)
        finally:
            for name in inputs:
                self._spark.catalog.dropTempView(name)

    def _called(self, function: Function, frame: DataFrame, key: str) -> DataFrame:
        made = self.function(function, key)(frame)
        if not isinstance(made, DataFrame):
            raise self._refused(key, f"{function} gave {type(made).__name__}, not a DataFrame")
        return made

    @contextmanager
    def _objecting(self, key: str) -> Iterator[None]:
        """What Spark objects to, told with its place."""
        try:
            yield
        except (PySparkException, BadRequest) as error:
            if isinstance(error, InvalidConfig):
                raise
            reason = reason_of(error)
            if kind_of(error) is ServerAway:
                raise ServerAway(addr=key, reason=reason, waited_s=0.0) from None
            raise self._refused(key, reason) from None

    def _refused(self, key: str, reason: str) -> InvalidConfig:
        spec = self._spec
        return InvalidConfig(key=key, reason=reason, file=spec.file, line=line_of(key, spec.lines))


def apply(verb: Verb, frame: DataFrame) -> DataFrame:
    """A step that needs nothing but its one input."""
    match verb:
        case Filter(condition):
            made = frame.where(condition)
        case Select(expressions):
            made = frame.selectExpr(*expressions)
        case WithColumn(columns):
            made = frame.withColumns({name: sf.expr(text) for name, text in columns.items()})
        case Watermark(column, delay_ns):
            made = frame.withWatermark(column, interval(delay_ns))
        case Deduplicate(names, within):
            made = _deduplicated(frame, _event_key(names, frame.columns), within=within)
        case Aggregate():
            made = _aggregated(verb, frame)
        case Decode(kind):
            made = DECODERS[kind](frame)
        case _:
            raise AssertionError(f"{verb} needs more than its input")
    return made


def _event_key(names: Sequence[str], columns: Sequence[str]) -> list[str]:
    """The columns to compare. Slot and number name a frame; with channel and place in it they name an event."""
    if not {"_slot_id", "_fsn"} <= set(names):
        return list(names)
    if "_frame_index" not in columns:
        raise BadRequest("_slot_id and _fsn name a frame, not an event: keep _frame_index up to here, too")
    return list(dict.fromkeys([*names, "_frame_index", *({"_channel"} & set(columns))]))


def _deduplicated(frame: DataFrame, key: list[str], *, within: bool) -> DataFrame:
    """The first of equal rows. Events without a slot are repeats of none, but to Spark nulls are equal.

    So they get a name each in place of a slot, and lose it again. It is the same when the batch runs again, so that
    rows stay in their partitions, as sinks need. The columns of the key stay as they were, so that checkpoints fit.
    Servers may count alike, even at the same time, so all of the row is part of the name.
    """
    if "_slot_id" in key:
        if "_committed_id" not in frame.columns:
            raise BadRequest("_committed_id tells events without a slot apart: keep it up to here, too")
        texts = [frame[f"`{name}`"].cast("string") for name in frame.columns]
        alone = sf.concat_ws("/", sf.lit("none"), frame["_committed_id"].cast("string"), sf.hex(sf.xxhash64(*texts)))
        named = sf.coalesce(frame["_slot_id"], alone.cast(frame.schema["_slot_id"].dataType))
        frame = frame.withColumns({_SLOT: frame["_slot_id"], "_slot_id": named})
    once = frame.dropDuplicatesWithinWatermark(key) if within else frame.dropDuplicates(key)
    return once.withColumn("_slot_id", sf.col(_SLOT)).drop(_SLOT) if "_slot_id" in key else once


def _aggregated(verb: Aggregate, frame: DataFrame) -> DataFrame:
    groups: list[Column] = [sf.expr(text) for text in verb.by]
    if verb.window is not None:
        groups.insert(0, _windowed(verb.window))
    return frame.groupBy(*groups).agg(*(sf.expr(text).alias(name) for name, text in verb.values.items()))


def _windowed(window: Window) -> Column:
    return sf.window(sf.col(window.column), interval(window.length_ns), interval(window.slide_ns)).alias("window")


def otlp_sink() -> Any:
    """The module that sends OTLP, which needs an extra."""
    try:
        return import_module("holdfast.spark.otlpsink")
    except ModuleNotFoundError as error:
        raise BadRequest(f'format otlp: {error.name} is not installed; run: pip install "holdfast[otlp]"') from error


def interval(time_ns: int) -> str:
    """A time as Spark writes it; it counts no finer than microseconds."""
    whole_s, rest_ns = divmod(time_ns, NS_PER_S)
    return f"{whole_s} seconds {rest_ns // 1000} microseconds"


_KEYS: dict[type[Verb], str] = {
    Sql: "sql",
    Filter: "filter",
    Select: "select",
    WithColumn: "with_column",
    Watermark: "watermark",
    Aggregate: "aggregate",
    Deduplicate: "deduplicate",
    Decode: "decode",
    Python: "python",
}
