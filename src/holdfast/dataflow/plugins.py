"""Which kinds of nodes there are, by URN or short name, and where their code is.

A plugin's module is imported when a file names it, so that a graph without gRPC needs none. It offers

    read_settings(raw, folder)                    the settings from `config`: a `NodeSettings`, for receivers a
                                                  `ReceiverSettings`, for exporters an `ExporterSettings`
    make(name, settings, sink, shared=…)          a receiver: `start(tasks)`, `stop()`, `ports`, `statistics()`
    make(settings, filesystem=…, clock=…)         an exporter; one that reads the stores itself has none

A name whose module is not there, or whose packages are not installed, is an error that says so.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module, util
from types import ModuleType

from holdfast.config.values import show


class NodeKind(StrEnum):
    """What a node does in the graph."""

    RECEIVER = "receiver"
    PROCESSOR = "processor"
    EXPORTER = "exporter"


@dataclass(frozen=True, slots=True)
class Plugin:
    """One kind of node."""

    urn: str
    short: str
    kind: NodeKind
    module: str
    extra: str = "otlp"
    """Of the package, which its code needs."""

    @property
    def is_there(self) -> bool:
        """Whether this release has it."""
        return util.find_spec(self.module) is not None

    def load(self) -> ModuleType:
        """Its code. Raises `ValueError` with the reason if it cannot be had."""
        if not self.is_there:
            raise ValueError(f"{self.urn} is not part of this release; there are {', '.join(names_there())}")
        try:
            return import_module(self.module)
        except ImportError as error:
            reason = f"{self.urn} needs a package that is missing: {error}; install holdfast[{self.extra}]"
            raise ValueError(reason) from None


PERSISTENCE = "urn:otap:processor:persistence"
_HOME = "holdfast.dataflow"
PLUGINS = (
    Plugin("urn:otel:otlp:receiver", "otlp", NodeKind.RECEIVER, f"{_HOME}.receivers.otlp"),
    Plugin("urn:otel:otap:receiver", "otap", NodeKind.RECEIVER, f"{_HOME}.receivers.otap"),
    Plugin(PERSISTENCE, "persistence", NodeKind.PROCESSOR, f"{_HOME}.persistence"),
    Plugin("urn:otel:otlp:exporter", "otlp", NodeKind.EXPORTER, f"{_HOME}.exporters.otlp"),
    Plugin("urn:otel:otap:exporter", "otap", NodeKind.EXPORTER, f"{_HOME}.exporters.otap"),
    Plugin("urn:holdfast:parquet:exporter", "parquet", NodeKind.EXPORTER, f"{_HOME}.exporters.parquet"),
    Plugin("urn:holdfast:console:exporter", "console", NodeKind.EXPORTER, f"{_HOME}.exporters.console"),
    Plugin("urn:holdfast:spark:exporter", "spark", NodeKind.EXPORTER, f"{_HOME}.sparknode", extra="spark"),
)


def names_there(kind: NodeKind | None = None) -> list[str]:
    """The URNs of this release, of one kind or of all."""
    return [plugin.urn for plugin in PLUGINS if plugin.is_there and kind in (None, plugin.kind)]


def find(name: object, kind: NodeKind) -> Plugin:
    """The plugin of a URN or short name; `ValueError` with what is allowed."""
    by_name = {word: plugin for plugin in PLUGINS if plugin.kind is kind for word in (plugin.urn, plugin.short)}
    if isinstance(name, str) and name in by_name:
        return by_name[name]
    other = next((plugin for plugin in PLUGINS if plugin.urn == name), None)
    if other is not None:
        raise ValueError(f"{other.urn} is a {other.kind}, and kind says {kind}")
    close = difflib.get_close_matches(name, by_name, n=1) if isinstance(name, str) else []
    hint = f"did you mean {close[0]}?" if close else f"{kind}s are {', '.join(names_there(kind))}"
    raise ValueError(f"{show(name)} is not a plugin; {hint}")
