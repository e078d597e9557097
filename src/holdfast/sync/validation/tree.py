"""Tree mode: an event is an action on the document of each of its partitions; it must make sense in all of them.

The document of a partition is what the actions of the log made of it, from an empty one on, or from a snapshot.
Documents in use are kept, bounded in bytes; others are made again from the log.

Promises: items of a batch are judged one after the other, each against what the ones before it leave; what was judged
counts once it is committed, and not before. A project's partitions have documents of their own.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.sync.validation.actions import Document, Nonsense, apply
from holdfast.sync.validation.shapes import check_action
from holdfast.telemetry import event
from holdfast.wire.sync import PROJECT_PREFIX, Code, Committed, Item, Refusal
from holdfast.wire.sync.jsontext import parse

DOCUMENTS_BYTES_MAX = 256 << 20
"""Of documents kept, as JSON; in memory they take a few times as much."""
Key = tuple[str, str]
"""Scope, and partition in it; the same but for projects."""


@dataclass(slots=True)
class Kept:
    """The document of a partition after `committed_id`."""

    document: Document
    committed_id: int
    size_bytes: int
    events: int = 0
    """Applied since the last snapshot."""
    last_id: str = ""


Rebuild = Callable[[Key], tuple[Kept, Iterable[Committed]]]
"""Where to begin, and what came after it."""


class TreeValidator:
    """On the writer's thread."""

    def __init__(self, rebuild: Rebuild, *, strict: bool, bytes_max: int = DOCUMENTS_BYTES_MAX) -> None:
        self._rebuild = rebuild
        self._strict = strict
        self._bytes_max = bytes_max
        self._bytes = 0
        self._kept: OrderedDict[Key, Kept] = OrderedDict()
        self._tried: dict[Key, Document] = {}

    def begin(self) -> None:
        """What was judged before and not kept did not happen."""
        self._tried = {}

    def judge(self, item: Item) -> Refusal | None:
        """Whether the action makes sense in every partition of the item."""
        try:
            check_action(item.type, item.value)
            changed = {
                key: apply(self._document(key), item.type, item.value, strict=self._strict) for key in keys_of(item)
            }
        except Nonsense as error:
            return Refusal(Code.VALIDATION_FAILED, error.message, error.field)
        self._tried.update(changed)
        return None

    def keep(self, committed: Sequence[Committed]) -> None:
        """What was judged good is in the log."""
        for key, document in self._tried.items():
            kept = self._kept.get(key)
            if kept is not None:
                kept.document = document
        for one in committed:
            for key in keys_of(one):
                kept = self._kept.get(key)
                if kept is not None:
                    kept.committed_id, kept.last_id = one.committed_id, one.id
                    kept.events += 1
                    kept.size_bytes += len(one.payload)
                    self._bytes += len(one.payload)
        self._tried = {}
        self._forget()

    def due(self, every: int) -> list[tuple[Key, Kept]]:
        """Documents that so many events have changed since their last snapshot."""
        return [(key, kept) for key, kept in self._kept.items() if kept.events >= every]

    def document(self, key: Key) -> Document:
        """The document of a partition as committed."""
        return self._committed(key).document

    def _document(self, key: Key) -> Document:
        tried = self._tried.get(key)
        return tried if tried is not None else self._committed(key).document

    def _committed(self, key: Key) -> Kept:
        kept = self._kept.get(key)
        if kept is None:
            kept = self._kept[key] = self._made_again(key)
            self._bytes += kept.size_bytes
        self._kept.move_to_end(key)
        return kept

    def _made_again(self, key: Key) -> Kept:
        kept, events = self._rebuild(key)
        for one in events:
            if key not in keys_of(one):
                continue
            try:
                kept.document = apply(kept.document, one.type, parse(one.payload), strict=False)
            except (Nonsense, KeyError, TypeError, AttributeError) as error:
                # Committed under other settings: whoever applies it has to leave it out as well.
                event("sync.tree.skip", level=logging.WARNING, id=one.id, reason=error)
            kept.committed_id, kept.last_id = one.committed_id, one.id
            kept.size_bytes += len(one.payload)
            kept.events += 1
        return kept

    def _forget(self) -> None:
        while self._bytes > self._bytes_max and len(self._kept) > 1:
            self._bytes -= self._kept.popitem(last=False)[1].size_bytes


def keys_of(item: Item | Committed) -> list[Key]:
    """The documents that an event is about."""
    project = item.scopes[0] if item.scopes and item.scopes[0].startswith(PROJECT_PREFIX) else ""
    return [(project or name, name) for name in item.partitions]
