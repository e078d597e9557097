"""The queries of a pipeline: started, watched, started again, stopped.

    starting ──► running ──► done         its trigger ends by itself
        ▲           │  └────► stopped     asked to; the batch in hand is finished first
        └─ pause ◄──┴────► failed         not worth another try, or tried often enough; all others are stopped

Promise: when `run` returns, or raises, no query of the pipeline is active. `run` raises `QueryFailed` for the first
output that failed for good, and `InvalidConfig` when the pipeline does not pass Spark's analyser. A query is started
again from its checkpoint, so nothing is lost or written twice by it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # it has none
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.clock import NS_PER_S, Clock
from holdfast.errors import HoldfastError, InvalidConfig, QueryFailed
from holdfast.spark.options import read_addresses
from holdfast.spark.pipeline.board import Board, OutputStatus
from holdfast.spark.pipeline.building import Building
from holdfast.spark.pipeline.listening import BoardListener
from holdfast.spark.pipeline.model import Output, PipelineSpec
from holdfast.spark.pipeline.outputs import query_name, start
from holdfast.spark.pipeline.restarting import Attempts
from holdfast.spark.reasons import is_retriable, reason_of
from holdfast.spark.reporting import Destination, Reporter, ReportListener
from holdfast.telemetry import event

LOOK_EVERY_S = 0.1
FINISH_S = 60.0
"""How long a batch may take to finish after somebody asked to stop; it is run again at the next start otherwise."""
_BETWEEN_BATCHES = ("Getting offsets", "Getting start offset", "Waiting for", "Initializing", "Stopped")


@dataclass
class Stopping:
    """How a pipeline is asked to stop: `soon` finishes the batches in hand, `now` does not."""

    soon: threading.Event = field(default_factory=threading.Event)
    now: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        """The first time it is asked to finish, the second time to leave."""
        if self.soon.is_set():
            self.now.set()
        self.soon.set()


class _Query:
    """One output."""

    def __init__(self, output: Output, attempts: Attempts) -> None:
        self.output = output
        self.attempts = attempts
        self.active: StreamingQuery | None = None
        self.started_at_ns = 0
        self.due_at_ns = 0
        self.ended = False


class Runner:
    """Runs one pipeline in one session, once."""

    def __init__(
        self, spark: SparkSession, spec: PipelineSpec, board: Board, *, clock: Clock, stopping: Stopping
    ) -> None:
        self._spark = spark
        self._spec = spec
        self._board = board
        self._clock = clock
        self._stopping = stopping
        self._building = Building(spark, spec)
        self._queries = [_Query(output, Attempts(spec.restart)) for output in spec.outputs.values()]

    def run(self, on_look: Callable[[list[OutputStatus]], None] = lambda _statuses: None) -> None:
        """Until all queries have ended or somebody asked to stop; `on_look` is called some times in a second."""
        names = {query_name(self._spec, query.output): query.output.name for query in self._queries}
        reporters = {name: Reporter(found) for name, found in self._told().items()}
        listeners: list[StreamingQueryListener] = [BoardListener(self._board, names)]
        listeners += [ReportListener(reporter, frozenset({name})) for name, reporter in reporters.items()]
        for listener in listeners:
            self._spark.streams.addListener(listener)
        try:
            while not all(query.ended for query in self._queries):
                if self._stopping.soon.is_set():
                    break
                for query in self._queries:
                    self._look_at(query)
                on_look(self._board.statuses())
                self._stopping.soon.wait(LOOK_EVERY_S)
            self._finish(on_look)
        finally:
            for query in self._queries:
                self._stop(query)
            for listener in listeners:
                with suppress(PySparkException, Py4JError):
                    self._spark.streams.removeListener(listener)
            for reporter in reporters.values():
                reporter.close()
            on_look(self._board.statuses())

    def _told(self) -> dict[str, list[Destination]]:
        """The servers whose consoles show a query, by its name: those that it reads from."""
        found = {}
        for query in self._queries:
            sources, _ = self._spec.needed_for(query.output)
            told = [
                Destination(addr, source.channels, token=source.token, token_file=source.token_file)
                for source in sources
                for addr in read_addresses(source.addr)
            ]
            if told:
                found[query_name(self._spec, query.output)] = told
        return found

    # -- one query --------------------------------------------------------------------------------------------------

    def _look_at(self, query: _Query) -> None:
        if query.ended:
            return
        if query.active is None:
            if self._clock.monotonic_ns() >= query.due_at_ns:
                self._start(query)
            return
        if query.active.isActive:
            return
        error = query.active.exception()
        for progress in query.active.recentProgress:  # the listener may hear of the last batches after the end
            self._board.report(query.output.name, json.loads(progress.json))
        query.active = None
        if error is not None:
            self._failed(query, error)
        else:
            query.ended = True
            self._board.change(query.output.name, "done")

    def _start(self, query: _Query) -> None:
        output = query.output
        query.started_at_ns = self._clock.monotonic_ns()
        try:
            frame = self._building.frame(output)
            key = f"outputs.{output.name}.foreach_batch"
            function = self._building.function(output.function, key) if output.function is not None else None
            query.active = start(self._spec, output, frame, function)
        except InvalidConfig:
            raise
        except (PySparkException, Py4JJavaError, HoldfastError) as error:  # the second: a worker died while planning
            self._failed(query, error)
            return
        self._board.change(output.name, "running")
        event("pipeline.query.start", pipeline=self._spec.name, output=output.name)

    def _failed(self, query: _Query, error: BaseException) -> None:
        output, now_ns = query.output.name, self._clock.monotonic_ns()
        reason = reason_of(error)
        pause_ns = query.attempts.pause_ns(ran_ns=now_ns - query.started_at_ns) if is_retriable(error) else None
        event("pipeline.query.fail", pipeline=self._spec.name, output=output, again=pause_ns is not None, reason=reason)
        if pause_ns is None:
            query.ended = True
            self._board.change(output, "failed", error=reason)
            restarts = next(status.restarts for status in self._board.statuses() if status.output == output)
            raise QueryFailed(output=output, reason=reason, restarts=restarts)
        query.due_at_ns = now_ns + pause_ns
        self._board.change(output, "restarting", error=reason, restarted=True)

    # -- the end ----------------------------------------------------------------------------------------------------

    def _finish(self, on_look: Callable[[list[OutputStatus]], None]) -> None:
        """Let each query come to the end of the batch it is in."""
        reports = {query.output.name: self._board.reports(query.output.name) for query in self._queries}
        deadline_ns = self._clock.monotonic_ns() + round(FINISH_S * NS_PER_S)
        waiting = [query for query in self._queries if query.active is not None]
        while waiting and self._clock.monotonic_ns() < deadline_ns:
            for query in list(waiting):
                committed = self._board.reports(query.output.name) != reports[query.output.name]
                if committed or _is_between_batches(query.active):
                    self._stop(query)
                    waiting.remove(query)
            on_look(self._board.statuses())
            if waiting and self._stopping.now.wait(LOOK_EVERY_S):
                return

    def _stop(self, query: _Query) -> None:
        if query.active is None:
            return
        with suppress(PySparkException, Py4JError):
            query.active.stop()
        query.active = None
        if not query.ended:
            query.ended = True
            self._board.change(query.output.name, "stopped")
            event("pipeline.query.stop", pipeline=self._spec.name, output=query.output.name)


def _is_between_batches(query: StreamingQuery | None) -> bool:
    """Whether nothing is under way whose interruption would cost work."""
    if query is None or not query.isActive:
        return True
    status = query.status
    return not status["isTriggerActive"] or str(status["message"]).startswith(_BETWEEN_BATCHES)
