"""One node of a graph, read and checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from holdfast.dataflow.plugins import NodeKind, Plugin
from holdfast.dataflow.settings import NodeSettings


@dataclass(frozen=True, slots=True)
class Node:
    """One node, read and checked."""

    name: str
    kind: NodeKind
    plugin: Plugin
    settings: NodeSettings
    destinations: tuple[str, ...] = ()
    strategy: str = "round_robin"

    @property
    def module(self) -> Any:
        """The code of its plugin."""
        return self.plugin.load()
