"""A pipeline as values: channels in, steps, outputs out (pure).

    source ──► step ──► step ──┬──► output     each output is a query of its own, with a checkpoint of its own
                               └──► output     and, at a server, a subscriber of its own

A step makes a view out of views. Names of sources and steps are one namespace, the one that SQL steps see. Values are
frozen; `reading.py` makes them out of a file, `builder.py` out of calls, and `checking.py` says whether they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from holdfast.config.values import MINUTE, SECOND

OutputMode: TypeAlias = Literal["append", "update", "complete"]
MODES: tuple[OutputMode, ...] = ("append", "update", "complete")

CHANNEL, PARQUET, DELTA, ICEBERG, CONSOLE = "channel", "parquet", "delta", "iceberg", "console"
FOREACH_BATCH = "foreach_batch"
OTLP = "otlp"
TABLES = (PARQUET, DELTA, ICEBERG)
"""Formats that are written by this package, each batch once, whoever reads them."""


@dataclass(frozen=True)
class Function:
    """A Python function, by where it is: `module:name`; or the function itself, given by a program."""

    module: str
    name: str
    call: Callable[..., Any] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"


@dataclass(frozen=True)
class Source:
    """Channels of one store."""

    name: str
    channels: tuple[str, ...]
    addr: str = ""
    path: str = ""
    tier: str = ""
    subscriber: str = ""
    """What names of subscribers begin with; the name of the pipeline if it is empty."""
    schema: str = ""
    """Columns as DDL; those of the channels if it is empty."""
    options: Mapping[str, str] = field(default_factory=dict)
    token: str = field(default="", repr=False)
    token_file: str = ""

    def reader_options(self, subscriber: str = "") -> dict[str, str]:
        """What `spark.readStream.format("holdfast")` is given."""
        named = {
            "channel": ",".join(self.channels),
            "addr": self.addr,
            "path": self.path,
            "tier": self.tier,
            "token": self.token,
            "tokenFile": self.token_file,
            "subscriber": subscriber,
        }
        return {**{key: value for key, value in named.items() if value}, **self.options}


# ---------------------------------------------------------------------------------------------------------------- steps


@dataclass(frozen=True)
class Sql:
    """A query over views."""

    text: str


@dataclass(frozen=True)
class Filter:
    """Rows for which a condition holds."""

    condition: str


@dataclass(frozen=True)
class Select:
    """Expressions become the columns."""

    expressions: tuple[str, ...]


@dataclass(frozen=True)
class WithColumn:
    """Columns added or replaced, by name."""

    columns: Mapping[str, str]


@dataclass(frozen=True)
class Watermark:
    """How late events may come, by a column of times."""

    column: str
    delay_ns: int


@dataclass(frozen=True)
class Window:
    """Stretches of time into which events are put; they overlap if they begin more often than they are long."""

    column: str
    length_ns: int
    slide_ns: int


@dataclass(frozen=True)
class Aggregate:
    """One row for each group, and each window if there is one."""

    values: Mapping[str, str]
    by: tuple[str, ...] = ()
    window: Window | None = None


@dataclass(frozen=True)
class Deduplicate:
    """The first of the rows that are equal in these columns."""

    columns: tuple[str, ...]
    within_watermark: bool = False
    """Forget what is older than the watermark, so that the state is bounded."""


@dataclass(frozen=True)
class Decode:
    """Payloads of a known kind become columns (`decoders.py`)."""

    kind: str


@dataclass(frozen=True)
class Python:
    """A function from DataFrame to DataFrame."""

    function: Function


Verb: TypeAlias = Sql | Filter | Select | WithColumn | Watermark | Aggregate | Deduplicate | Decode | Python


@dataclass(frozen=True)
class Step:
    """A view made out of views."""

    name: str
    inputs: tuple[str, ...]
    verb: Verb
    key: str = ""
    """Where it stands in the file, as errors write it."""


# -------------------------------------------------------------------------------------------------------------- outputs


@dataclass(frozen=True)
class Trigger:
    """When a query takes its next batch."""

    kind: Literal["soon", "every", "available_now", "once"] = "soon"
    every_ns: int = 0

    @property
    def ends(self) -> bool:
        """Whether the query ends by itself."""
        return self.kind in ("available_now", "once")


@dataclass(frozen=True)
class Output:
    """Where a view goes."""

    name: str
    input: str
    format: str
    path: str = ""
    channel: str = ""
    addr: str = ""
    mode: OutputMode = "append"
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    function: Function | None = None
    trigger: Trigger | None = None
    checkpoint: str = ""
    token: str = field(default="", repr=False)
    token_file: str = ""

    def writer_options(self) -> dict[str, str]:
        """What `writeStream.format("holdfast")` is given; empty for formats that others write."""
        if self.format in TABLES:
            named = {"table": self.format, "path": self.path}
        elif self.format == CHANNEL:
            named = {"addr": self.addr, "channel": self.channel, "token": self.token, "tokenFile": self.token_file}
        else:
            return {}
        return {**{key: value for key, value in named.items() if value}, **self.options}


@dataclass(frozen=True)
class Restart:
    """When a query that failed is started again (`restarting.py`)."""

    max_restarts: int = 10
    """In a row: a query that ran for `reset_after` begins to count anew. More than these is no hiccup."""
    backoff_ns: int = SECOND
    backoff_max_ns: int = MINUTE
    reset_after_ns: int = 10 * MINUTE


@dataclass(frozen=True)
class PipelineSpec:
    """A whole pipeline."""

    name: str
    sources: Mapping[str, Source]
    steps: tuple[Step, ...]
    outputs: Mapping[str, Output]
    checkpoint: str
    trigger: Trigger = Trigger()
    restart: Restart = Restart()
    master: str = ""
    conf: Mapping[str, str] = field(default_factory=dict)
    py_files: tuple[str, ...] = ()
    metrics: str = ""
    """`host:port` where Prometheus finds figures."""
    file: Path | None = None
    lines: Mapping[str, int] = field(default_factory=dict, repr=False)
    """The line of each key, as errors write it."""

    def trigger_of(self, output: Output) -> Trigger:
        """Its own, or the one of the pipeline."""
        return output.trigger or self.trigger

    def checkpoint_of(self, output: Output) -> str:
        """Its own, or a folder in the one of the pipeline."""
        return output.checkpoint or f"{self.checkpoint.rstrip('/')}/{output.name}"

    def subscriber_of(self, source: Source, output: Output) -> str:
        """The subscriber that stands for one query at one source. Without a server there is none."""
        return f"{source.subscriber or self.name}.{source.name}.{output.name}" if source.addr else ""

    @property
    def folder(self) -> Path:
        """Where Python modules are looked for first."""
        return self.file.absolute().parent if self.file is not None else Path.cwd()

    def inputs_of(self, name: str) -> tuple[str, ...]:
        """The views that a view is made of; none for a source."""
        return next((step.inputs for step in self.steps if step.name == name), ())

    def needed_for(self, output: Output) -> tuple[list[Source], list[Step]]:
        """What an output is made of, each behind what it needs. The pipeline has no cycle."""
        order: list[str] = []
        waiting = [(output.input, False)]
        while waiting:
            name, ready = waiting.pop()
            if ready and name not in order:
                order.append(name)
            elif not ready and name not in order:
                waiting.append((name, True))
                waiting += [(needed, False) for needed in reversed(self.inputs_of(name))]
        steps = {step.name: step for step in self.steps}
        return [self.sources[name] for name in order if name in self.sources], [
            steps[name] for name in order if name in steps
        ]
