"""Model mode: the payload of an event fits the JSON Schema of its type.

Schemas are files in a folder: `<type>.json` is for every version of a type, `<type>@<version>.json` for one, and wins.
An event of snake_case clients is `{type: "event", payload: {schema, data, meta?}}`: its type is `schema`, and `data` is
what is checked. Other clients name the type of the model, and its version, themselves.

Promise: a type without a schema is refused. Schemas are read once, when the server starts; one that is no schema is an
`InvalidConfig` that names its file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema_rs

from holdfast.errors import InvalidConfig
from holdfast.sync.validation.actions import Nonsense
from holdfast.sync.validation.shapes import check_envelope
from holdfast.wire.sync import Code, Committed, Item, Refusal

SCHEMAS_MAX = 10_000
MESSAGE_CHARS_MAX = 512
"""Of what a schema says is wrong: it repeats the value."""

ENVELOPE_TYPE = "event"


class ModelValidator:
    """On the writer's thread; knows no state."""

    def __init__(self, schemas: Mapping[tuple[str, int], Any]) -> None:
        """By type and version; version 0 is for every version."""
        self.schemas = schemas

    def begin(self) -> None:
        """Nothing to prepare."""

    def judge(self, item: Item) -> Refusal | None:
        """Whether the payload fits."""
        try:
            name, data, place = _modelled(item)
        except Nonsense as error:
            return Refusal(Code.VALIDATION_FAILED, error.message, error.field)
        schema = self.schemas.get((name, item.schema_version)) or self.schemas.get((name, 0))
        if schema is None:
            version = f" version {item.schema_version}" if item.schema_version else ""
            return Refusal(Code.VALIDATION_FAILED, f"there is no schema for {name[:64]!r}{version}", "type")
        fault = next(schema.iter_errors(data), None)
        if fault is None:
            return None
        path = ".".join([*([place] if place else []), *map(str, fault.instance_path)])
        return Refusal(Code.VALIDATION_FAILED, str(fault.message)[:MESSAGE_CHARS_MAX], path)

    def keep(self, _committed: Sequence[Committed]) -> None:
        """Nothing to remember."""


def read_schemas(folder: Path) -> dict[tuple[str, int], Any]:
    """The schemas in a folder, compiled."""
    key = "sync.schemas"
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == ".json")
    except OSError as error:
        raise InvalidConfig(key=key, reason=f"{folder} cannot be read: {error.strerror}") from None
    if not paths or len(paths) > SCHEMAS_MAX:
        raise InvalidConfig(key=key, reason=f"{folder} holds {len(paths)} schemas; 1 to {SCHEMAS_MAX} are allowed")
    found: dict[tuple[str, int], Any] = {}
    for path in paths:
        name, _, version = path.stem.rpartition("@") if "@" in path.stem else (path.stem, "", "0")
        if not version.isdecimal() or not name:
            raise InvalidConfig(key=key, reason=f"{path} is not named <type>.json or <type>@<version>.json")
        try:
            found[name, int(version)] = jsonschema_rs.validator_for(json.loads(path.read_bytes()))
        except (ValueError, OSError, jsonschema_rs.ReferencingError) as error:
            raise InvalidConfig(key=key, reason=f"{path} is no JSON Schema: {error}") from None
    return found


def _modelled(item: Item) -> tuple[str, Any, str]:
    """Type, what its schema is for, and where that is in the payload."""
    if item.type == ENVELOPE_TYPE:
        check_envelope(item.value)
        return item.value["schema"], item.value["data"], "data"
    if not item.meta:  # only clients with an envelope send none
        raise Nonsense("type", f"type is {ENVELOPE_TYPE!r}, with schema and data in its payload")
    return item.type, item.value, ""
