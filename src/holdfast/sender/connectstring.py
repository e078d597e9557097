"""The grammar of a connect string, without knowing any key.

    schema::key=value;key=value;

Schema and keys are ASCII letters, digits and `_`; keys are case-sensitive. A value is any text without control
characters (U+0000..1F, U+007F..9F); a `;` in it is written `;;`. The last `;` may be left out.

Promise: `split` gives the pairs in order, or `InvalidConfig` that names the place. Errors never repeat a value: it
may be a secret, or what is left of one whose `;` was not doubled.
"""

from __future__ import annotations

import re

from holdfast.errors import InvalidConfig

WHOLE = "connect string"
"""The key that errors name when no single key is to blame."""

CHARS_MAX = 65536
"""No honest connect string is longer, and a file that was taken for one is refused at once."""

_SCHEMA = re.compile(r"([A-Za-z0-9_]+)::", re.ASCII)
_KEY = re.compile(r"([A-Za-z0-9_]+)=", re.ASCII)
_VALUE = re.compile(r"(?:[^;]|;;)*")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def split(conf: str) -> tuple[str, list[tuple[str, str]]]:
    """Schema and pairs."""
    if not isinstance(conf, str):
        raise InvalidConfig(key=WHOLE, reason=f"expected a text, found {type(conf).__name__}")
    if len(conf) > CHARS_MAX:
        raise InvalidConfig(key=WHOLE, reason=f"{len(conf)} characters are more than the {CHARS_MAX} allowed")
    start = _SCHEMA.match(conf)
    if start is None:
        raise InvalidConfig(key=WHOLE, reason="expected it to start with ws:: or wss::, as in ws::addr=localhost:9000;")
    pairs: list[tuple[str, str]] = []
    at = start.end()
    while at < len(conf):
        key, value, at = _pair(conf, at, pairs[-1][0] if pairs else "")
        pairs.append((key, value))
    return start[1], pairs


def _pair(conf: str, at: int, before: str) -> tuple[str, str, int]:
    match = _KEY.match(conf, at)
    if match is None:
        place = f"after the value of {before}" if before else "after the schema"
        reason = f"expected key=value at character {at + 1}, {place}; a ; inside a value is written ;;"
        raise InvalidConfig(key=WHOLE, reason=reason)
    found = _VALUE.match(conf, match.end())
    assert found is not None, "an empty value matches too"
    control = CONTROL.search(found[0])
    if control is not None:
        place = f"character {found.start() + control.start() + 1}"
        raise InvalidConfig(key=match[1], reason=f"{place} is the control character U+{ord(control[0]):04X}")
    return match[1], found[0].replace(";;", ";"), found.end() + 1
