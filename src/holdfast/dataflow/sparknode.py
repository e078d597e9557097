"""The Spark node: a pipeline of `holdfast.spark` that reads the stores of the graph, in a process of its own.

    landing: {kind: exporter, plugin_urn: spark, config: {pipeline: ./landing.yaml}}

The pipeline's file is one that `holdfast pipeline run` takes as well. `${HOLDFAST_ADMIN}` in it is the admin address of
the graph, of all its cores; a source with this `addr` reads the persistence node before the Spark node.

Promises: the subscribers of the pipeline are there before anything is accepted, so that nothing goes before Spark has
read it. The process is started again when it fails, with pauses as those of exporters, and ends before the stores do:
its batch in hand is finished. It ends by itself when the graph's process is gone, which it sees by a link that breaks.
With several cores there is one process for all of them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from holdfast.clock import NS_PER_S
from holdfast.config.values import Kind, setting
from holdfast.dataflow.graph import Graph
from holdfast.dataflow.nodes import Node
from holdfast.dataflow.plugins import NodeKind
from holdfast.dataflow.settings import ExporterSettings, read_node
from holdfast.errors import BadPipeline, BadRequest, InvalidConfig
from holdfast.model.backoff import Backoff
from holdfast.spark.pipeline.model import PipelineSpec
from holdfast.spark.pipeline.reading import read_pipeline
from holdfast.telemetry import event

ADMIN = "HOLDFAST_ADMIN"
COMMAND = (sys.executable, "-m", "holdfast.cli.sparkprocess")
_UNKNOWN_YET = "http://127.0.0.1:1"
"""Stands for the address while a file is checked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(ExporterSettings):
    """Settings of a Spark node."""

    pipeline: str = setting("pipeline", Kind.TEXT, "", why="file of the pipeline; required")
    subscribers: tuple[tuple[str, tuple[str, ...]], ...] = field(default=())
    """Names of the pipeline's subscribers at the graph, and their channels."""

    @property
    def reads_stores(self) -> bool:
        """Through the admin HTTP."""
        return True

    def check_relations(self) -> None:
        """A file is needed; it says which channels."""
        ExporterSettings.check_relations(self)
        if not self.pipeline:
            raise InvalidConfig(key="pipeline", reason="is required: the file of a pipeline")
        if self.channels:
            raise InvalidConfig(key="channels", reason="is for the sources of the pipeline to say")

    def shown(self) -> list[str]:
        """Which pipeline."""
        return [f"pipeline={self.pipeline}"]


def read_settings(raw: Mapping[str, object], folder: Path) -> Settings:
    """Settings of the node; the pipeline is read and checked, too."""
    path = raw.get("pipeline")
    settings = read_node(Settings, {**raw, "pipeline": str(folder / path)} if isinstance(path, str) and path else raw)
    try:
        spec = read_pipeline(Path(settings.pipeline), environ={**os.environ, ADMIN: _UNKNOWN_YET})
    except BadPipeline as error:
        raise InvalidConfig(key="pipeline", reason="; ".join(map(str, error.problems))) from None
    except BadRequest as error:
        raise InvalidConfig(key="pipeline", reason=str(error)) from None
    subscribers = _subscribers(spec)
    if not subscribers:
        reason = f"no source of {settings.pipeline} reads this graph; give one of them addr: ${{{ADMIN}}}"
        raise InvalidConfig(key="pipeline", reason=reason)
    return replace(settings, subscribers=subscribers)


def _subscribers(spec: PipelineSpec) -> tuple[tuple[str, tuple[str, ...]], ...]:
    ours = [source for source in spec.sources.values() if source.addr == _UNKNOWN_YET]
    return tuple(
        (spec.subscriber_of(source, output), source.channels) for source in ours for output in spec.outputs.values()
    )


class SparkProcesses:
    """The processes of all Spark nodes of a graph. Made and used on one event loop."""

    def __init__(self, graph: Graph, *, chance: random.Random | None = None) -> None:
        self._nodes = [node for node in graph.of_kind(NodeKind.EXPORTER) if isinstance(node.settings, Settings)]
        self._chance = chance or random.Random()
        self._stopping = asyncio.Event()
        self._processes: dict[str, Process] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, tasks: asyncio.TaskGroup, addresses: Sequence[str]) -> None:
        """Begin; these are the admin addresses of all cores."""
        self._tasks = [tasks.create_task(self._keep(node, addresses)) for node in self._nodes]

    async def stop(self) -> None:
        """Let each finish its batch; returns when all have ended."""
        self._stopping.set()
        self._send(signal.SIGTERM)
        for task in self._tasks:
            await task

    def kill(self) -> None:
        """Do not wait for batches in hand: they are done again at the next start."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)  # `send_signal` would look first, and take the exit code with it

    async def _keep(self, node: Node, addresses: Sequence[str]) -> None:
        settings, failures = node.settings, 0
        assert isinstance(settings, Settings)
        backoff = Backoff(settings.retry_initial_ns / NS_PER_S, settings.retry_max_ns / NS_PER_S, spread=-0.5)
        while not self._stopping.is_set():
            code = await self._live(node.name, settings.pipeline, addresses)
            if code == 0 or self._stopping.is_set():
                event("dataflow.spark.end", node=node.name, code=code)
                return
            failures += 1
            pause_s = backoff.pause_s(failures, self._chance)
            event("dataflow.spark.restart", level=logging.ERROR, node=node.name, code=code, pause_s=f"{pause_s:.3f}")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), pause_s)

    async def _live(self, name: str, pipeline: str, addresses: Sequence[str]) -> int:
        environ = {**os.environ, ADMIN: ",".join(addresses)}
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                order = msgspec.json.encode({"pipeline": pipeline, "link": theirs.fileno()}).decode()
                process = await asyncio.create_subprocess_exec(
                    *COMMAND, order, env=environ, stdout=sys.stderr, pass_fds=(theirs.fileno(),)
                )
            self._processes[name] = process
            try:
                return await process.wait()
            finally:
                del self._processes[name]
