"""From what a file or a caller wrote to pairs of setting and value: flat and nested keys, unknown keys, overrides.

Promise: every key that is not in the table, every key given twice and every bad value raises `InvalidConfig` naming the
key as it was written: `wal.max_size`, or `channels.orders.*.max_msgs` inside an override. Nothing is ignored.

A mapping is followed only into sections of the table, so its depth is bounded by the table's. The keys of `channels`
are patterns, which have dots of their own; they are never taken apart.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.config.patterns import Pattern
from holdfast.config.values import Setting, show
from holdfast.errors import InvalidConfig

CHANNELS = "channels"
"""The key whose value is a mapping from pattern to settings."""

WILDCARDS_MAX = 1000
"""Overrides with a wildcard in one store: a new channel is compared with each of them."""


@dataclass(frozen=True, slots=True)
class ChannelOverride:
    """What `channels:` says of one pattern: only the settings that were written there, by key, in program units."""

    pattern: Pattern
    values: tuple[tuple[str, Any], ...]


def require_mapping(raw: object, *, key: str) -> Mapping[object, object]:
    """`raw`, if it is a mapping."""
    if not isinstance(raw, Mapping):
        raise InvalidConfig(key=key, reason=f"{show(raw)} is not a mapping of keys to values")
    return raw


def read_pairs(
    mapping: Mapping[object, object], rows: Mapping[str, Setting], *, prefix: str = ""
) -> dict[str, tuple[Setting, object]]:
    """Row and raw value of each key in a flat or nested mapping; `prefix` goes before keys in errors."""
    pairs: dict[str, tuple[Setting, object]] = {}
    for key, raw in _flatten(mapping, "", _sections(rows)):
        if key not in rows:
            raise InvalidConfig(key=prefix + key, reason=f"unknown setting{_suggestion(key, rows)}")
        if key in pairs:
            raise InvalidConfig(key=prefix + key, reason="is given twice, flat and nested")
        pairs[key] = (rows[key], raw)
    return pairs


def _sections(rows: Mapping[str, Setting]) -> set[str]:
    return {".".join(parts[:n]) for parts in (key.split(".") for key in rows) for n in range(1, len(parts))}


def _flatten(mapping: Mapping[object, object], prefix: str, sections: set[str]) -> Iterator[tuple[str, object]]:
    for key, value in mapping.items():
        name = prefix + (key if isinstance(key, str) and key else show(key))
        if name in sections and isinstance(value, Mapping):
            yield from _flatten(value, f"{name}.", sections)
        else:
            yield name, value


def _suggestion(key: str, rows: Mapping[str, Setting]) -> str:
    if key.startswith(f"{CHANNELS}."):
        return f"; overrides are a mapping from pattern to settings under the key {CHANNELS}"
    if key in _sections(rows):
        return f"; it is a section with the settings {', '.join(row for row in rows if row.startswith(f'{key}.'))}"
    close = difflib.get_close_matches(key, [*rows, *_sections(rows)], n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(sorted(rows))}"


def read_overrides(raw: object, rows: Mapping[str, Setting]) -> tuple[ChannelOverride, ...]:
    """The overrides under `channels:`, widest pattern first."""
    overrides = [
        _read_override(pattern, values, rows) for pattern, values in require_mapping(raw, key=CHANNELS).items()
    ]
    return tuple(sorted(overrides, key=lambda override: override.pattern.order))


def _read_override(raw_pattern: object, raw_values: object, rows: Mapping[str, Setting]) -> ChannelOverride:
    place = f"{CHANNELS}.{raw_pattern if isinstance(raw_pattern, str) else show(raw_pattern)}"
    if not isinstance(raw_pattern, str):
        raise InvalidConfig(key=place, reason="a pattern is a text; write it in quotes")
    try:
        pattern = Pattern.parse(raw_pattern)
    except ValueError as error:
        raise InvalidConfig(key=place, reason=str(error)) from None
    pairs = read_pairs(require_mapping(raw_values, key=place), rows, prefix=f"{place}.")
    for key, (row, _) in pairs.items():
        require_per_channel(row, key=f"{place}.{key}")
    values = tuple((key, pairs[key][0].parse(pairs[key][1], prefix=f"{place}.")) for key in rows if key in pairs)
    return ChannelOverride(pattern, values)


def require_per_channel(row: Setting, *, key: str) -> None:
    """Refuse a setting that only the whole store can have."""
    if not row.per_channel:
        raise InvalidConfig(key=key, reason=f"{row.key} is store-wide; it cannot be set for a channel")


def check_overrides(overrides: object, rows: Mapping[str, Setting]) -> None:
    """What `read_overrides` ensures, for overrides that a program made itself."""
    if not isinstance(overrides, tuple) or not all(isinstance(item, ChannelOverride) for item in overrides):
        raise InvalidConfig(key=CHANNELS, reason=f"{show(overrides)} is not a tuple of ChannelOverride")
    patterns: set[str] = set()
    for override in overrides:
        place = f"{CHANNELS}.{override.pattern.text}"
        if override.pattern.text in patterns:
            raise InvalidConfig(key=place, reason="is given twice")
        patterns.add(override.pattern.text)
        for key, value in override.values:
            if key not in rows:
                raise InvalidConfig(key=f"{place}.{key}", reason=f"unknown setting{_suggestion(key, rows)}")
            require_per_channel(rows[key], key=f"{place}.{key}")
            rows[key].check(value, prefix=f"{place}.")
    if sum(not override.pattern.is_literal for override in overrides) > WILDCARDS_MAX:
        raise InvalidConfig(key=CHANNELS, reason=f"has more than {WILDCARDS_MAX} patterns with wildcards")
