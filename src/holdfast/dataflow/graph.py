"""The node graph of a file: receivers, persistence, exporters, and how they are joined.

    nodes:
      otlp_receiver: {kind: receiver, plugin_urn: …, out_ports: {out_port: {destinations: [persistence]}}, config: {…}}
      persistence:   {kind: processor, …}
      parquet:       {kind: exporter, …}
    admin: {listening_addr: "127.0.0.1:9001"}       optional: metrics, health and the HTTP that Spark and people read

Promise: `load` gives a graph that can be run, or raises `InvalidConfig` with file, line, node, key and what is allowed;
`problems` gives all of them. Nothing is ignored. Nothing is opened here.

What leaves a persistence node goes to every destination, whatever its `dispatch_strategy`: each is a subscriber of its
own. What leaves a receiver goes to one of its destinations (`round_robin`, `random`) or to all (`broadcast`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.config.yamltext import FILE_BYTES_MAX, TOP, Document, read_yaml
from holdfast.dataflow.joints import check_joints
from holdfast.dataflow.nodes import Node
from holdfast.dataflow.plugins import NodeKind
from holdfast.dataflow.reading import Reader
from holdfast.errors import BadRequest, InvalidConfig

NODES = "nodes"


@dataclass(frozen=True, slots=True)
class Graph:
    """A graph that can be run. Nodes are in the order of the file."""

    file: Path
    nodes: Mapping[str, Node]
    admin_addr: str = ""
    lines: Mapping[str, int] = field(default_factory=dict)

    def of_kind(self, kind: NodeKind) -> list[Node]:
        """The nodes of one kind."""
        return [node for node in self.nodes.values() if node.kind is kind]

    def feeding(self, name: str) -> list[Node]:
        """The nodes that a node gets its data from."""
        return [node for node in self.nodes.values() if name in node.destinations]


def is_graph_file(path: Path) -> bool:
    """Whether a file is a node graph rather than something else in YAML; unreadable files are not."""
    try:
        return NODES in _document(path, os.environ).values
    except (BadRequest, OSError):
        return False


def load(path: Path, *, environ: Mapping[str, str] | None = None) -> Graph:
    """The graph in a file."""
    graph, found = _read(path, environ)
    if graph is None:
        raise found[0]
    return graph


def problems(path: Path, *, environ: Mapping[str, str] | None = None) -> list[InvalidConfig]:
    """Everything that is wrong with a file, by line; nothing if it can be run."""
    try:
        return _read(path, environ)[1]
    except InvalidConfig as error:
        return [error]


def _read(path: Path, environ: Mapping[str, str] | None) -> tuple[Graph | None, list[InvalidConfig]]:
    document = _document(path, os.environ if environ is None else environ)
    reader = Reader(document)
    nodes = reader.nodes()
    admin_addr = reader.admin()
    if not reader.found:
        check_joints(nodes, reader.object_to)
        reader.check_readers(nodes, admin_addr)
    if reader.found:
        return None, reader.in_order()
    return Graph(path, nodes, admin_addr, document.lines), []


def _document(path: Path, environ: Mapping[str, str]) -> Document:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig(key=TOP, reason=f"cannot be read: {error.strerror}", file=path) from None
    return read_yaml(path, data, environ)
