"""Values of Arrow columns as JSON can say them: times in ISO 8601, bytes in base64, decimals as texts.

Pure. Long texts and bytes can be cut; then their length stands beside them.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal

_WORDS: tuple[tuple[tuple[type, ...], Callable[..., object]], ...] = (
    ((datetime, date, time), lambda value: value.isoformat()),
    ((timedelta,), lambda value: value.total_seconds()),
    ((Decimal,), str),
    ((memoryview, bytearray), bytes),
)


def as_json_value(value: object, *, longest: int | None = None) -> object:
    """A value as JSON has them; texts and bytes beyond `longest` are cut."""
    for kinds, say in _WORDS:
        if isinstance(value, kinds):
            value = say(value)
    if isinstance(value, dict):
        return {str(key): as_json_value(item, longest=longest) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json_value(item, longest=longest) for item in value]
    if isinstance(value, bytes):
        shown = base64.b64encode(value[:longest]).decode()
        return shown if longest is None or len(value) <= longest else f"{shown}… ({len(value)} bytes)"
    if isinstance(value, str) and longest is not None and len(value) > longest:
        return f"{value[:longest]}… ({len(value)} characters)"
    return value
