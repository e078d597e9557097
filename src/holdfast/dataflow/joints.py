"""How nodes may be joined (pure).

    receiver ──► persistence ──► exporter …      or, without persistence,      receiver ──► exporter …

Every node but a receiver is fed, every node but an exporter leads somewhere, and nothing leads back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast.dataflow.plugins import NodeKind
from holdfast.dataflow.receivers.settings import ReceiverSettings

if TYPE_CHECKING:
    from holdfast.dataflow.nodes import Node

Objection = Callable[[str, str], None]


def check_joints(nodes: Mapping[str, Node], object_to: Objection) -> None:
    """Object to every edge and node that is not joined as it must be."""
    for node in nodes.values():
        _check_destinations(node, nodes, object_to)
    cycle = _cycle(nodes)
    if cycle:
        object_to(_edges(nodes[cycle[0]]), f"leads back to itself: {' → '.join([*cycle, cycle[0]])}")
        return
    for node in nodes.values():
        _check_feeding(node, nodes, object_to)
        if node.kind is NodeKind.PROCESSOR:
            _check_channels(node, nodes, object_to)
    _check_shared(nodes, object_to)


def _edges(node: Node) -> str:
    return f"nodes.{node.name}.out_ports"


def _check_destinations(node: Node, nodes: Mapping[str, Node], object_to: Objection) -> None:
    if node.kind is NodeKind.EXPORTER and node.destinations:
        object_to(_edges(node), "an exporter is an end; it has no destinations")
    if node.kind is not NodeKind.EXPORTER and not node.destinations:
        object_to(_edges(node), f"a {node.kind} needs at least one destination")
    for name in node.destinations:
        target = nodes.get(name)
        if target is None:
            object_to(_edges(node), f"{name!r} is not a node; nodes are {', '.join(nodes)}")
        elif target.kind is NodeKind.RECEIVER:
            object_to(_edges(node), f"{name!r} is a receiver, which takes nothing from other nodes")


def _check_feeding(node: Node, nodes: Mapping[str, Node], object_to: Objection) -> None:
    feeding = [other for other in nodes.values() if node.name in other.destinations]
    place = f"nodes.{node.name}"
    if node.kind is not NodeKind.RECEIVER and not feeding:
        object_to(place, "nothing leads to it; name it among the destinations of another node")
    stores = [other.name for other in feeding if other.kind is NodeKind.PROCESSOR]
    if node.settings.reads_stores and feeding and not stores:
        object_to(place, "reads a store; put a persistence node between it and the receiver")
    if node.kind is NodeKind.PROCESSOR and stores:
        object_to(place, f"is fed by {stores[0]!r}, which keeps the same data; feed it from a receiver")
    if node.kind is NodeKind.EXPORTER and stores and len(feeding) > 1:
        names = ", ".join(other.name for other in feeding)
        object_to(place, f"is fed by {names}; behind a persistence node an exporter has that one source only")


def _check_channels(store: Node, nodes: Mapping[str, Node], object_to: Objection) -> None:
    """A channel of a store has requests or columns, whoever writes it."""
    payloads: dict[str, tuple[str, str]] = {}
    for node in nodes.values():
        settings = node.settings
        if store.name in node.destinations and isinstance(settings, ReceiverSettings):
            for channel in settings.channels_by_signal().values():
                payload, first = payloads.setdefault(channel, (settings.payload, node.name))
                if payload != settings.payload:
                    reason = f"channel {channel!r} gets payload {payload} from node {first!r}; give it other channels"
                    object_to(f"nodes.{node.name}.config.payload", reason)
                    break


def _check_shared(nodes: Mapping[str, Node], object_to: Objection) -> None:
    """Two nodes may not own one address or one directory."""
    owners: dict[tuple[str, str], str] = {}
    for node in nodes.values():
        for key, value in node.settings.owned():
            first = owners.setdefault((key.rpartition("_")[2], value), node.name)
            if first != node.name:
                object_to(f"nodes.{node.name}.config.{key}", f"{value} is already that of node {first!r}")


def _cycle(nodes: Mapping[str, Node]) -> list[str]:
    """Names along a cycle; empty if there is none."""
    left = dict(nodes)
    while ends := [name for name, node in left.items() if not any(other in left for other in node.destinations)]:
        for name in ends:
            del left[name]
    path: list[str] = []
    at = next(iter(left), None)
    while at is not None and at not in path:
        path.append(at)
        at = next(other for other in left[at].destinations if other in left)
    return path[path.index(at) :] if at is not None else []
