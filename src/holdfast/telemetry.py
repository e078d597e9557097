"""Log events: one line, one fixed name, fields as `key=value`.

Promise: an event's name never changes with its values, so that `grep store.recovery.wal` finds every one of them.
Values are quoted so that a name or a path can never forge a line.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_LOGGER = logging.getLogger("holdfast")
_LOGGER.addHandler(logging.NullHandler())


def event(name: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Log one event. `name` is `part.thing.verb`."""
    if _LOGGER.isEnabledFor(level):
        _LOGGER.log(level, "%s", " ".join([name, *(f"{key}={_quoted(value)}" for key, value in fields.items())]))


@contextmanager
def logging_to_stderr(who: str = "", *, level: int = logging.INFO) -> Iterator[None]:
    """The log lines of this process, with its name, on what is standard error now; not once the block is left."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(f"%(asctime)s {who}%(levelname)s %(message)s"))
    before = _LOGGER.level
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(level)
    try:
        yield
    finally:
        _LOGGER.setLevel(before)
        _LOGGER.removeHandler(handler)


def _quoted(value: object) -> str:
    text = str(value)
    plain = text.isascii() and text.isprintable() and not any(c in text for c in " \"'=\\")
    return text if plain and text else ascii(text)
