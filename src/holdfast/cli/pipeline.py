"""`holdfast pipeline`: run, validate and draw pipelines.

Promise: `validate` says everything that is wrong with a file, one line each with file, line and key, and starts
nothing; with `--plan` Spark is asked for the formats, and its analyser looks too. `run` prints how each output is
doing: a live table on a terminal, a line for each change elsewhere, one document at the end with `--json`. SIGTERM and
SIGINT finish the batches in hand and end with 0; a second one does not wait. While Spark starts, the first one ends it.
Exit codes: 2 the pipeline is wrong, 3 it cannot listen, 4 a query failed or Spark did not start.
"""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has none
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from holdfast.cli.answer import ExitCode, answer_json, print_json
from holdfast.cli.display import count, make_console, make_table, several, size
from holdfast.errors import BadPipeline, InvalidConfig, QueryFailed
from holdfast.spark.pipeline import OutputStatus, Pipeline
from holdfast.spark.pipeline.checking import check_formats
from holdfast.spark.pipeline.model import PipelineSpec, Trigger
from holdfast.spark.reasons import reason_of
from holdfast.telemetry import logging_to_stderr

LOOKS_PER_SECOND = 4


def run_validate(path: Path, *, plan: bool, master: str | None, as_json: bool) -> ExitCode:
    """Say what is wrong with a pipeline."""
    try:
        pipeline = Pipeline.from_file(path)
        if plan:
            _plan(pipeline, master)
    except BadPipeline as error:
        return _refuse(error.problems, as_json=as_json)
    except InvalidConfig as error:
        return _refuse((error,), as_json=as_json)
    spec = pipeline.spec
    if as_json:
        parts = {"sources": list(spec.sources), "steps": [step.name for step in spec.steps]}
        answer_json("pipeline validate", {"file": str(path), "name": spec.name, **parts, "outputs": list(spec.outputs)})
        return ExitCode.DONE
    amount = f"{several(len(spec.sources), 'source')}, {several(len(spec.steps), 'step')}"
    looked = "and Spark's analyser agrees" if plan else "Spark was not asked (--plan)"
    make_console().print(f"{path}: {spec.name} is well: {amount}, {several(len(spec.outputs), 'output')}; {looked}.")
    return ExitCode.DONE


def _refuse(problems: tuple[InvalidConfig, ...], *, as_json: bool) -> ExitCode:
    if as_json:
        facts = [
            {"file": str(problem.file or ""), "line": problem.line, "key": problem.key, "reason": problem.reason}
            for problem in problems
        ]
        error = {"type": type(problems[0]).__name__, "message": str(problems[0]), "problems": facts}
        print_json("pipeline validate", {"error": error}, ok=False)
    for problem in problems:
        sys.stderr.write(f"holdfast: {problem}\n")
    return ExitCode.USAGE


def _plan(pipeline: Pipeline, master: str | None) -> None:
    spark = pipeline.session(master)
    try:
        check_formats(pipeline.spec, partial(_objection, spark))
        pipeline.plan(spark)
    finally:
        spark.stop()


def _objection(spark: SparkSession, name: str) -> str:
    """Why Spark has no format of this name; empty if it has."""
    jvm = spark._jvm
    assert jvm is not None
    source = jvm.org.apache.spark.sql.execution.datasources.DataSource
    try:
        source.lookupDataSource(name, spark._jsparkSession.sessionState().conf())
    except (PySparkException, Py4JError) as error:
        return reason_of(error)
    return ""


def run_graph(path: Path, *, as_json: bool) -> ExitCode:
    """Draw a pipeline."""
    pipeline = Pipeline.from_file(path)
    if as_json:
        spec = pipeline.spec
        edges = [[name, step.name] for step in spec.steps for name in step.inputs]
        edges += [[output.input, f"outputs.{output.name}"] for output in spec.outputs.values()]
        answer_json("pipeline graph", {"name": spec.name, "edges": edges, "picture": pipeline.graph()})
    else:
        make_console().print(escape(pipeline.graph()), soft_wrap=True)
    return ExitCode.DONE


# ------------------------------------------------------------------------------------------------------------------ run


def run_run(path: Path, *, master: str | None, metrics: str | None, once: bool, as_json: bool) -> ExitCode:
    """Run a pipeline until it ends or a signal comes."""
    pipeline = Pipeline.from_file(path)
    pipeline.spec = _adjusted(pipeline, metrics=metrics, once=once)
    view = _view(pipeline, as_json=as_json)
    try:
        with _on_signals(_leave):
            spark = pipeline.session(master)
    except _Left:
        return _done(pipeline, as_json=as_json)
    try:
        warnings = logging_to_stderr("holdfast ", level=logging.WARNING)
        with _on_signals(pipeline.stop), view, warnings:  # again: Spark takes SIGINT for itself when it starts
            pipeline.run(spark, on_look=view.look)
    except QueryFailed as error:
        if as_json:
            failure = {"type": "QueryFailed", "message": str(error)}
            print_json("pipeline run", {"error": failure, "outputs": _facts(pipeline.board.statuses())}, ok=False)
        sys.stderr.write(f"holdfast: {error}\n")
        return ExitCode.FAILED
    finally:
        spark.stop()
    return _done(pipeline, as_json=as_json)


def _done(pipeline: Pipeline, *, as_json: bool) -> ExitCode:
    if as_json:
        answer_json("pipeline run", {"pipeline": pipeline.spec.name, "outputs": _facts(pipeline.board.statuses())})
    return ExitCode.DONE


def _adjusted(pipeline: Pipeline, *, metrics: str | None, once: bool) -> PipelineSpec:
    """The pipeline with what the command line says."""
    spec = pipeline.spec
    if metrics is not None:
        spec = replace(spec, metrics=metrics)
    if once:
        outputs = {name: replace(output, trigger=Trigger("available_now")) for name, output in spec.outputs.items()}
        spec = replace(spec, outputs=outputs)
    return spec


def _facts(statuses: list[OutputStatus]) -> list[Mapping[str, object]]:
    return [asdict(status) for status in statuses]


class _Left(BaseException):
    """A signal came while Spark was starting. No `Exception`: py4j takes those for its own."""


def _leave() -> None:
    """Nothing is in hand yet, and a cluster may let one wait for long."""
    raise _Left


@contextmanager
def _on_signals(act: Callable[[], None]) -> Iterator[None]:
    """What SIGTERM and SIGINT do while the block runs."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: act()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---------------------------------------------------------------------------------------------------------------- views


class View:
    """Shows nothing: the answer comes at the end."""

    def __enter__(self) -> View:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def look(self, statuses: list[OutputStatus]) -> None:
        """How the outputs are now."""


class LiveView(View):
    """A table that changes, on a terminal."""

    def __init__(self, console: Console, title: str) -> None:
        self._title = title
        self._live = Live(console=console, refresh_per_second=LOOKS_PER_SECOND, transient=False)

    def __enter__(self) -> View:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def look(self, statuses: list[OutputStatus]) -> None:
        """Show them."""
        self._live.update(table_of(self._title, statuses))


class LineView(View):
    """A line whenever an output has a new batch or another state."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: dict[str, OutputStatus] = {}

    def look(self, statuses: list[OutputStatus]) -> None:
        """Print what is new."""
        for status in statuses:
            before = self._seen.get(status.output)
            if before is None or (before.state, before.batches) != (status.state, status.batches):
                self._console.print(escape(line_of(status)), soft_wrap=True)
                self._console.file.flush()
            self._seen[status.output] = status


def _view(pipeline: Pipeline, *, as_json: bool) -> View:
    if as_json:
        return View()
    console = make_console()
    return LiveView(console, pipeline.spec.name) if console.is_terminal else LineView(console)


def line_of(status: OutputStatus) -> str:
    """An output in one line."""
    parts = [f"{status.output}: {status.state}"]
    if status.batch >= 0:
        parts.append(f"batch {status.batch} in {status.batch_s:.2f} s")
        parts.append(f"{count(status.rows)} rows, {status.rows_per_s:,.0f}/s")
        parts.append(f"{count(status.lag_events)} behind")
    if status.lost_events:
        parts.append(f"{count(status.lost_events)} lost")
    if status.state_rows:
        parts.append(f"state {count(status.state_rows)} rows, {size(status.state_bytes)}")
    if status.restarts:
        parts.append(several(status.restarts, "restart"))
    if status.error:
        parts.append(status.error)
    return ", ".join(parts)


def table_of(title: str, statuses: list[OutputStatus]) -> Table:
    """All outputs."""
    numbers = ("batch", "rows", "rows/s", "batch time", "behind", "state", "restarts")
    table = make_table("output", "is", *numbers, "last error", title=title, right=numbers)
    for status in statuses:
        table.add_row(
            escape(status.output),
            status.state,
            str(status.batch) if status.batch >= 0 else "–",
            count(status.rows),
            f"{status.rows_per_s:,.0f}",
            f"{status.batch_s:.2f} s",
            count(status.lag_events),
            f"{count(status.state_rows)} rows, {size(status.state_bytes)}",
            str(status.restarts),
            escape(status.error),
        )
    return table
