"""JSON from strangers: strict to read, kept as it was sent, comparable whatever its spelling.

Promises:

- `parse` takes what RFC 8259 allows and every reader understands alike; all else raises `BadJson` with the reason: not
  UTF-8, NaN and infinities, numbers beyond a double, two members of one name, half a surrogate pair, nesting beyond
  `DEPTH_MAX`. No input raises anything else.
- `members` and `elements` give the text of values as it was sent, so that numbers come back as they came.
- `canonical` is the same for texts that mean the same: members sorted, numbers as doubles, as RFC 8785 compares them.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from typing import Any

import msgspec

DEPTH_MAX = 128
"""Levels of nesting: far beyond real documents, far below what exhausts a stack anywhere."""
INTEGER_DIGITS_MAX = 310
"""No double has more before its point."""
SAFE_INTEGER = 2**53
"""Above it a double does not hold every integer."""

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements = msgspec.json.Decoder(list[msgspec.Raw])


class BadJson(ValueError):
    """What is wrong with a text."""


def parse(data: bytes) -> Any:
    """The value of a text."""
    try:
        text = data.decode("utf-8")
        value = _decoder.decode(text)
    except UnicodeDecodeError:
        raise BadJson("the message is not UTF-8") from None
    except RecursionError:
        raise BadJson(f"nested deeper than {DEPTH_MAX} levels") from None
    except json.JSONDecodeError as error:
        raise BadJson(f"not JSON: {error.msg} at character {error.pos}") from None
    if text.count("[") + text.count("{") > DEPTH_MAX and _is_deep(value):
        raise BadJson(f"nested deeper than {DEPTH_MAX} levels")
    if _SURROGATE.search(text):
        _check_text(value)
    return value


def members(data: bytes | msgspec.Raw) -> dict[str, bytes]:
    """The text of each member of an object that `parse` took."""
    return {name: bytes(raw) for name, raw in _members.decode(data).items()}


def elements(data: bytes | msgspec.Raw) -> list[bytes]:
    """The text of each element of an array that `parse` took."""
    return [bytes(raw) for raw in _elements.decode(data)]


def canonical(value: object) -> bytes:
    """One spelling for all texts of a value; the value comes from `parse`."""
    return json.dumps(_plain(value), sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode()


def quoted(value: object) -> bytes:
    """A value of ours as JSON."""
    return msgspec.json.encode(value)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= SAFE_INTEGER:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > SAFE_INTEGER:
        return float(value)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise BadJson(f"member {twice[:64]!a} comes twice")
    return found


def _constant(name: str) -> Any:
    raise BadJson(f"{name} is no JSON number")


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise BadJson(f"number {text[:32]} does not fit a double")
    return value


def _int(text: str) -> int:
    if len(text) <= INTEGER_DIGITS_MAX:
        value = int(text)
        try:
            float(value)
        except OverflowError:
            pass
        else:
            return value
    raise BadJson(f"number {text[:32]}… does not fit a double")


_decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant, parse_float=_float, parse_int=_int)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
        if not level:
            return False
    return any(isinstance(inner, dict | list) for inner in level)


def _check_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise BadJson("a text holds half a surrogate pair") from None
