"""From the values of a file to nodes; every objection is noted with its place, and reading goes on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from holdfast.config.values import show
from holdfast.config.yamltext import Document
from holdfast.dataflow import plugins
from holdfast.dataflow.nodes import Node
from holdfast.dataflow.plugins import NodeKind, Plugin
from holdfast.dataflow.settings import NodeSettings, require_address, require_protected
from holdfast.errors import InvalidConfig
from holdfast.model.names import SUBSCRIBER_NAME

NODES_MAX = 1000
"""Nodes a person can still look through."""
TOP_KEYS = ("nodes", "admin")
NODE_KEYS = ("kind", "plugin_urn", "out_ports", "config")
PORT_KEYS = ("destinations", "dispatch_strategy")
STRATEGIES = ("round_robin", "random", "broadcast")
_NAME = re.compile(SUBSCRIBER_NAME, re.ASCII)


class Reader:
    """Reads one file."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.found: list[InvalidConfig] = []

    def object_to(self, key: str, reason: str) -> None:
        """Note what is wrong at a key."""
        line = _line_of(key, self._document.lines)
        self.found.append(InvalidConfig(key=key, reason=reason, file=self._document.file, line=line))

    def in_order(self) -> list[InvalidConfig]:
        """What was found, by line."""
        return sorted(self.found, key=lambda error: error.line)

    # -- the file ---------------------------------------------------------------------------------------------------

    def nodes(self) -> dict[str, Node]:
        """The nodes that could be read."""
        values = self._document.values
        self._only(values, TOP_KEYS, "")
        raw = values.get("nodes")
        if not isinstance(raw, Mapping) or not raw:
            self.object_to("nodes", "is not a mapping from names to nodes; a graph has at least a receiver")
            return {}
        if len(raw) > NODES_MAX:
            self.object_to("nodes", f"has {len(raw)} nodes, at most {NODES_MAX} are allowed")
            return {}
        found = {str(name): self._node(str(name), value) for name, value in raw.items()}
        return {name: node for name, node in found.items() if node is not None}

    def admin(self) -> str:
        """The address of the admin HTTP; empty if there is none."""
        raw = self._document.values.get("admin")
        if raw is None:
            return ""
        if not isinstance(raw, Mapping) or not isinstance(raw.get("listening_addr"), str):
            self.object_to("admin", "is a mapping with listening_addr: host:port")
            return ""
        self._only(raw, ("listening_addr",), "admin")
        address = str(raw["listening_addr"])
        try:
            require_protected(address, key="admin.listening_addr", protected=False)
            require_address(address, key="admin.listening_addr")
        except InvalidConfig as error:
            self.object_to(error.key, error.reason)
        return address

    def check_readers(self, nodes: Mapping[str, Node], admin_addr: str) -> None:
        """Nodes that read stores need an address, and one that stays: what they note down names it."""
        for node in nodes.values():
            if node.settings.reads_stores and (not admin_addr or admin_addr.endswith(":0")):
                reason = "is read by node {!r}, whose progress names its port; give a host and a port other than 0"
                self.object_to("admin.listening_addr", reason.format(node.name))

    # -- a node -----------------------------------------------------------------------------------------------------

    def _node(self, name: str, raw: object) -> Node | None:
        place, before = f"nodes.{name}", len(self.found)
        if _NAME.fullmatch(name) is None:
            self.object_to(place, "a node's name is a subscriber's name: letters, digits, '.', '_' and '-'")
        if not isinstance(raw, Mapping):
            self.object_to(place, f"{show(raw)} is not a mapping with {', '.join(NODE_KEYS)}")
            return None
        self._only(raw, NODE_KEYS, place)
        plugin = self._plugin(raw, place)
        destinations, strategy = self._ports(raw.get("out_ports"), place)
        settings = self._settings(plugin, raw.get("config"), place) if plugin is not None else None
        if plugin is None or settings is None or len(self.found) > before:
            return None
        return Node(name, plugin.kind, plugin, settings, destinations, strategy)

    def _plugin(self, raw: Mapping[object, object], place: str) -> Plugin | None:
        kind = raw.get("kind")
        if kind not in list(NodeKind):
            self.object_to(f"{place}.kind", f"{show(kind)} is not one of {', '.join(NodeKind)}")
            return None
        try:
            plugin = plugins.find(raw.get("plugin_urn"), NodeKind(str(kind)))
            plugin.load()
        except ValueError as error:
            self.object_to(f"{place}.plugin_urn", str(error))
            return None
        return plugin

    def _settings(self, plugin: Plugin, raw: object, place: str) -> NodeSettings | None:
        if raw is not None and not isinstance(raw, Mapping):
            self.object_to(f"{place}.config", f"{show(raw)} is not a mapping of keys to values")
            return None
        folder = self._document.file.absolute().parent
        try:
            settings: NodeSettings = plugin.load().read_settings(_texts(raw or {}), folder)
        except InvalidConfig as error:
            self.object_to(f"{place}.config.{error.key}", error.reason)
            return None
        return settings

    def _ports(self, raw: object, place: str) -> tuple[tuple[str, ...], str]:
        place = f"{place}.out_ports"
        if raw is None:
            return (), STRATEGIES[0]
        if not isinstance(raw, Mapping) or len(raw) != 1:
            self.object_to(place, "is a mapping with one port: its destinations and its dispatch_strategy")
            return (), STRATEGIES[0]
        port, body = next(iter(raw.items()))
        return self._port(body, f"{place}.{port}")

    def _port(self, raw: object, place: str) -> tuple[tuple[str, ...], str]:
        if not isinstance(raw, Mapping):
            self.object_to(place, f"{show(raw)} is not a mapping with {', '.join(PORT_KEYS)}")
            return (), STRATEGIES[0]
        self._only(raw, PORT_KEYS, place)
        destinations = raw.get("destinations")
        if not isinstance(destinations, list) or not destinations or not all(isinstance(d, str) for d in destinations):
            self.object_to(f"{place}.destinations", "is not a list of names of nodes")
            destinations = []
        if len(set(destinations)) < len(destinations):
            self.object_to(f"{place}.destinations", "names a node twice")
        strategy = raw.get("dispatch_strategy", STRATEGIES[0])
        if strategy not in STRATEGIES:
            self.object_to(f"{place}.dispatch_strategy", f"{show(strategy)} is not one of {', '.join(STRATEGIES)}")
        return tuple(destinations), str(strategy)

    def _only(self, raw: Mapping[object, object] | Mapping[str, object], allowed: tuple[str, ...], place: str) -> None:
        for key in raw:
            if key not in allowed:
                close = difflib.get_close_matches(str(key), allowed, n=1)
                hint = f"did you mean {close[0]}?" if close else f"allowed are {', '.join(allowed)}"
                self.object_to(f"{place}.{key}" if place else str(key), f"is not known; {hint}")


def _texts(raw: Mapping[object, object]) -> dict[str, object]:
    return {str(key): value for key, value in raw.items()}


def _line_of(key: str, lines: Mapping[str, int]) -> int:
    """The line of the key, or of the nearest section around it."""
    parts = re.split(r"(?=[.\[])", key)
    return next((lines[at] for n in range(len(parts), 0, -1) if (at := "".join(parts[:n])) in lines), 0)
