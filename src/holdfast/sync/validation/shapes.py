"""What the payload of each action on a tree holds, and the envelope of a modelled event. Pure.

Promise: a payload that passes has every part its action needs, of the right kind, and no other part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.sync.validation.actions import Nonsense

TARGET_PARTS_MAX = 64
"""Names in a path: as deep as a document may be."""

_Check = Callable[[Any, str], None]


def check_action(action: str, payload: Any) -> None:
    """Raise `Nonsense` unless the payload fits the action."""
    parts = _PAYLOADS.get(action)
    if parts is None:
        raise Nonsense("type", f"unknown type {action[:64]!r}; there are {', '.join(_PAYLOADS)}")
    _check_object(payload, "", parts)


def check_envelope(payload: Any) -> None:
    """Raise `Nonsense` unless it is `{schema, data, meta?}`."""
    _check_object(payload, "", {"schema": (_name, True), "data": (_anything, True), "meta": (_object, False)})


def _check_object(value: Any, place: str, parts: Mapping[str, tuple[_Check, bool]]) -> None:
    _object(value, place)
    for name in value:
        if name not in parts:
            raise Nonsense(f"{place}{name}"[:128], f"unknown; there are {', '.join(parts)}")
    for name, (check, required) in parts.items():
        if name in value:
            check(value[name], f"{place}{name}")
        elif required:
            raise Nonsense(f"{place}{name}", "is required")


def _anything(_value: Any, _place: str) -> None:
    """Whatever JSON allows."""


def _object(value: Any, place: str) -> None:
    if not isinstance(value, dict):
        raise Nonsense(place.rstrip("."), "is an object")


def _name(value: Any, place: str) -> None:
    if not isinstance(value, str) or not value:
        raise Nonsense(place, "is a text that is not empty")


def _target(value: Any, place: str) -> None:
    _name(value, place)
    if value.count(".") >= TARGET_PARTS_MAX:
        raise Nonsense(place, f"has more than {TARGET_PARTS_MAX} parts")


def _flag(value: Any, place: str) -> None:
    if not isinstance(value, bool):
        raise Nonsense(place, "is true or false")


def _item(value: Any, place: str) -> None:
    _object(value, place)
    _name(value.get("id"), f"{place}.id")


def _position(value: Any, place: str) -> None:
    if value in ("first", "last"):
        return
    if not isinstance(value, dict) or len(value) != 1 or not value.keys() <= {"after", "before"}:
        raise Nonsense(place, "is first, last, {after: id} or {before: id}")
    for name, sibling in value.items():
        _name(sibling, f"{place}.{name}")


def _options(required: bool, **parts: tuple[_Check, bool]) -> tuple[_Check, bool]:
    return (lambda value, place: _check_object(value, f"{place}.", parts)), required


_TARGET: dict[str, tuple[_Check, bool]] = {"target": (_target, True)}
_PLACE = {"parent": (_name, False), "position": (_position, False)}
_ID = {"id": (_name, True)}

_PAYLOADS: dict[str, dict[str, tuple[_Check, bool]]] = {
    "set": {**_TARGET, "value": (_anything, True), "options": _options(False, replace=(_flag, False))},
    "unset": _TARGET,
    "init": {"value": (_object, True)},
    "treePush": {**_TARGET, "value": (_item, True), "options": _options(False, **_PLACE)},
    "treeDelete": {**_TARGET, "options": _options(True, **_ID)},
    "treeUpdate": {**_TARGET, "value": (_object, True), "options": _options(True, **_ID, replace=(_flag, False))},
    "treeMove": {**_TARGET, "options": _options(True, **_ID, **_PLACE)},
}
