"""Pipelines for programs.

    Pipeline.from_file("trades.yaml").run()

    pipeline = (
        Pipeline.builder("trades", checkpoint="./checkpoints", trigger="available_now")
        .source("trades", channel="trades", path="./data")
        .step("dear", filter="price > 100")
        .output("lake", format="parquet", path="./lake")
        .build()
    )

A builder takes the keys that a file has; functions may be given themselves instead of `module:name`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast.clock import Clock, SystemClock
from holdfast.spark.pipeline.board import Board, OutputStatus
from holdfast.spark.pipeline.building import Building
from holdfast.spark.pipeline.metrics import served
from holdfast.spark.pipeline.model import OTLP, PipelineSpec
from holdfast.spark.pipeline.picture import draw
from holdfast.spark.pipeline.reading import read_mapping, read_pipeline
from holdfast.spark.pipeline.running import Runner, Stopping
from holdfast.spark.pipeline.shipping import ship
from holdfast.spark.starting import session

OnLook = Callable[[list[OutputStatus]], None]


class Pipeline:
    """A pipeline that fits together; what it is made of is `spec`."""

    def __init__(self, spec: PipelineSpec, *, clock: Clock | None = None) -> None:
        self.spec = spec
        self.board = Board(spec.outputs)
        self.stopping = Stopping()
        self._clock = clock or SystemClock()

    @classmethod
    def from_file(cls, path: str | Path, *, environ: Mapping[str, str] | None = None) -> Pipeline:
        """The pipeline in a YAML file; `BadPipeline` has all that is wrong with it."""
        return cls(read_pipeline(Path(path), environ=environ))

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Pipeline:
        """The same out of a mapping with the keys of a file."""
        return cls(read_mapping(values))

    @staticmethod
    def builder(name: str, **settings: object) -> Builder:
        """A pipeline made by calls; `settings` are the top keys of a file, such as `checkpoint` and `trigger`."""
        return Builder({"name": name, **settings})

    def graph(self) -> str:
        """Its picture."""
        return draw(self.spec)

    def session(self, master: str | None = None) -> SparkSession:
        """A Spark session as the pipeline asks for it, with its files on the executors."""
        spark = session(self.spec.name, master=master or self.spec.master or None, conf=self.spec.conf)
        for path in self.spec.py_files:
            ship(spark, Path(path))
        return spark

    def plan(self, spark: SparkSession) -> None:
        """Have Spark's analyser look at all outputs; raises `InvalidConfig`. Nothing is read or written."""
        building = Building(spark, self.spec)
        for output in self.spec.outputs.values():
            frame = building.frame(output)
            building.check_streaming(output, frame)
            if output.format == OTLP:
                building.check_otlp(output, frame)
            if output.function is not None:
                building.function(output.function, f"outputs.{output.name}.foreach_batch")

    def run(self, spark: SparkSession | None = None, *, on_look: OnLook = lambda _: None) -> list[OutputStatus]:
        """Run until all queries have ended, or until `stop` was called; returns how each output ended.

        `spark` is the session to use; without it one is made, and stopped at the end.
        """
        own = spark is None
        chosen = spark or self.session()
        try:
            with served(self.spec.metrics, self.spec.name, self.board):
                Runner(chosen, self.spec, self.board, clock=self._clock, stopping=self.stopping).run(on_look)
        finally:
            if own:
                chosen.stop()
        return self.board.statuses()

    def stop(self) -> None:
        """From any thread, or a signal handler: finish the batches in hand and return; the second time, at once."""
        self.stopping.ask()


class Builder:
    """Collects the keys of a pipeline. A step follows the one before it unless `from_` says otherwise."""

    def __init__(self, values: dict[str, object]) -> None:
        self._values = values
        self._sources: dict[str, object] = {}
        self._steps: list[dict[str, object]] = []
        self._outputs: dict[str, object] = {}

    def source(self, name: str, **keys: object) -> Builder:
        """A source."""
        self._sources[name] = keys
        return self

    def step(self, name: str, *, from_: str | list[str] | None = None, **verb: object) -> Builder:
        """A step."""
        self._steps.append({"name": name, "from": from_, **verb})
        return self

    def output(self, name: str, *, from_: str | None = None, **keys: object) -> Builder:
        """An output, by default of the last step or of the first source."""
        last: Any = self._steps[-1]["name"] if self._steps else next(iter(self._sources), None)
        self._outputs[name] = {"from": from_ or last, **keys}
        return self

    def build(self) -> Pipeline:
        """The pipeline; `BadPipeline` has all that is wrong with it."""
        parts = {"sources": self._sources, "steps": self._steps, "outputs": self._outputs}
        return Pipeline.from_mapping({**self._values, **parts})
