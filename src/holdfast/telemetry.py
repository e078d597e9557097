"""Log events: one line, one fixed name, fields as `key=value`.

Promise: an event's name never changes with its values, so that `grep store.recovery.wal` finds every one of them.
Values are quoted so that a name or a path can never forge a line.
"""

from __future__ import annotations

import logging

_LOGGER = logging.getLogger("holdfast")
_LOGGER.addHandler(logging.NullHandler())


def event(name: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Log one event. `name` is `part.thing.verb`."""
    if _LOGGER.isEnabledFor(level):
        _LOGGER.log(level, "%s", " ".join([name, *(f"{key}={_quoted(value)}" for key, value in fields.items())]))


def _quoted(value: object) -> str:
    text = str(value)
    plain = text.isascii() and text.isprintable() and not any(c in text for c in " \"'=\\")
    return text if plain and text else ascii(text)
