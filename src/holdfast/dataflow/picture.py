"""A graph drawn for people: every receiver, and below it where its data goes."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.dataflow.graph import Graph
from holdfast.dataflow.nodes import Node
from holdfast.dataflow.plugins import NodeKind


def picture(graph: Graph) -> str:
    """The picture. A node that several lead to is drawn below the first; the others refer to it."""
    drawn: set[str] = set()
    lines: list[str] = []
    for node in graph.of_kind(NodeKind.RECEIVER):
        lines.append(_title(node))
        lines += _below(graph, node, "", drawn)
    return "\n".join(lines) + "\n"


def _below(graph: Graph, node: Node, indent: str, drawn: set[str]) -> Iterator[str]:
    for at, name in enumerate(node.destinations):
        last = at == len(node.destinations) - 1
        child = graph.nodes[name]
        known = name in drawn
        drawn.add(name)
        yield f"{indent}{'└' if last else '├'}─► {name + ' (see above)' if known else _title(child)}"
        if not known:
            yield from _below(graph, child, indent + ("    " if last else "│   "), drawn)


def _title(node: Node) -> str:
    words = [f"{node.name}  [{node.kind}, {node.plugin.urn}]", *node.settings.shown()]
    if len(node.destinations) > 1 and node.kind is NodeKind.RECEIVER:
        words.append(f"dispatch={node.strategy}")
    return "  ".join(words)
