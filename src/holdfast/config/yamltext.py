"""YAML as plain values with the line of each key: the small part of YAML that settings need.

Promise: whatever the bytes are, the answer is mappings, lists, texts, whole numbers, `true`, `false` and nothing, each
with its line, or `InvalidConfig` naming file and line; never another exception, never a value in the error. A key that
comes twice is an error, where YAML libraries keep the last. Anchors, aliases and tags are refused: settings need none,
and they make small files large.

Plain words stay texts, unlike in YAML 1.1: `no`, `1:30` and `2026-01-02` are what they look like; only `true`, `false`,
`null` and whole numbers become values. `${NAME}` in a text, not in a key, is replaced by that environment variable; a
variable that is not set is an error; `$${` stands for `${`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from yaml.composer import Composer
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from holdfast.config.principals import FromEnvironment
from holdfast.config.values import show
from holdfast.errors import InvalidConfig

FILE_BYTES_MAX = 1 << 20
"""A file of settings that a person wrote."""
DEPTH_MAX = 16
"""Deeper than any setting."""

TOP = "(file)"
"""The key of errors that no key is to blame for."""

_WHOLE = re.compile(r"-?\d{1,19}", re.ASCII)
_WORDS = {"true": True, "false": False, "null": None, "~": None, "": None}
_VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


@dataclass(slots=True)
class Document:
    """A file as values; `lines` has the line of each key as errors write it: `wal.max_size`, `access[0].allow`."""

    file: Path
    values: dict[str, object] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)


class _Composer(Reader, Scanner, Parser, Composer, BaseResolver):
    """Nodes with their places, without anchors, and not too deep."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self._depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """One node and what is in it."""
        ahead = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(ahead, yaml.events.AliasEvent) or getattr(ahead, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(problem="anchors and aliases are not allowed", problem_mark=ahead.start_mark)
        if getattr(ahead, "tag", None) is not None:
            raise yaml.MarkedYAMLError(problem="tags are not allowed", problem_mark=ahead.start_mark)
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise yaml.MarkedYAMLError(problem=f"is nested deeper than {DEPTH_MAX}", problem_mark=ahead.start_mark)
        node: Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


def read_yaml(file: Path, data: bytes, environ: Mapping[str, str]) -> Document:
    """The document in the bytes of a file; an empty one is no settings."""
    if len(data) > FILE_BYTES_MAX:
        raise InvalidConfig(key=TOP, reason=f"has {len(data)} bytes, at most {FILE_BYTES_MAX} are allowed", file=file)
    try:
        node = _Composer(data.decode()).get_single_node()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InvalidConfig(key=TOP, reason="is not UTF-8 text", file=file, line=line) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = f"is not YAML that can be read: {error.problem or 'it is broken'}"
        raise InvalidConfig(key=TOP, reason=reason, file=file, line=mark.line + 1 if mark else 0) from None
    except yaml.YAMLError:  # a character that YAML does not allow
        raise InvalidConfig(key=TOP, reason="has characters that YAML does not allow", file=file) from None
    document = Document(file)
    if node is not None and not _is_nothing(node):
        if not isinstance(node, MappingNode):
            raise InvalidConfig(key=TOP, reason="is not a mapping of keys to values", file=file, line=_line(node))
        document.values = _Reading(document, environ).mapping(node, "")
    return document


def _is_nothing(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.style is None and _WORDS.get(str(node.value), node) is None


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


class _Reading:
    """Turns nodes into values and notes their lines."""

    def __init__(self, document: Document, environ: Mapping[str, str]) -> None:
        self._document = document
        self._environ = environ

    def mapping(self, node: MappingNode, place: str) -> dict[str, object]:
        """Keys are texts, each once."""
        values: dict[str, object] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, ScalarNode):
                raise self._refused(place or TOP, key_node, "a key is a text, not a list or a mapping")
            key = str(key_node.value)
            name = f"{place}.{key}" if place else key
            if key in values:
                raise self._refused(name, key_node, f"is given twice, first in line {self._document.lines[name]}")
            self._document.lines.setdefault(name, _line(key_node))
            values[key] = self._value(value_node, name)
        return values

    def _value(self, node: Node, place: str) -> object:
        if isinstance(node, MappingNode):
            return self.mapping(node, place)
        if isinstance(node, SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                name = f"{place}[{index}]"
                self._document.lines[name] = _line(item)
                items.append(self._value(item, name))
            return items
        return self._scalar(node, place)

    def _scalar(self, node: Node, place: str) -> object:
        text = str(node.value)
        if isinstance(node, ScalarNode) and node.style is None:
            if text in _WORDS:
                return _WORDS[text]
            if _WHOLE.fullmatch(text):
                return int(text)
        return self._filled(text, node, place) if "${" in text else text

    def _filled(self, text: str, node: Node, place: str) -> str:
        used = False

        def replacement(match: re.Match[str]) -> str:
            nonlocal used
            name = match[1]
            if name is None:
                return "${"
            if not match[0].endswith("}") or _NAME.fullmatch(name) is None:
                raise self._refused(place, node, "'${' is not followed by the name of a variable and '}'")
            if name not in self._environ:
                raise self._refused(place, node, f"the environment variable {name} is not set")
            used = True
            return self._environ[name]

        filled = _VARIABLE.sub(replacement, text)
        return FromEnvironment(filled, text) if used else filled

    def _refused(self, place: str, node: Node, reason: str) -> InvalidConfig:
        return InvalidConfig(key=show(place)[1:-1], reason=reason, file=self._document.file, line=_line(node))
