"""The limits of each channel: settings for all channels, narrowed by patterns, down to one name.

Promise: `resolve` says for any channel name what holds for it, always the same for one configuration. A setting comes
from the narrowest pattern under `channels` that means the channel and states that setting; if none does, from the
setting for all channels. So an override changes only what it states. The order of patterns, widest to narrowest, is
total (holdfast/config/patterns.py): from the left, `>` before `*` before a literal.

    all channels ──► `>` ──► `foo.>` ──► `foo.*` or `foo.bar.>` ──► `foo.bar`, `foo.bar.baz`

In the result 0 is no limit. Two things are worked out rather than read:

- Slices. A slice is a segment. Where no slice limit holds but channel limits do, a slice gets a quarter of the
  channel's, so that what a limit deletes is never most of the channel. The default of `file_slice_max_bytes` counts as
  no limit here, unless an override states it.
- `segment.target_size` bounds the bytes of a slice always, so `slice_max_bytes` is never 0.

Pure: it decides nothing by time or disk. Enforcing is left to others. Thread-safe: at worst a name is worked out twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.config import SECOND, ChannelOverride, Pattern, Setting, StoreConfig
from holdfast.model.schema import SchemaMode

SLICES_PER_LIMIT = 4
"""Automatic slices of a channel at its limit: deleting one keeps three quarters."""
SLICE_AGE_MIN_NS = SECOND
"""Automatic slices are not shorter: a channel with a `max_age` of a second would be files of a few events."""
NAMES_CACHED_MAX = 100_000
"""Names remembered; beyond it all are forgotten and worked out again. Ten times the default of `max_channels`."""

ALL_CHANNELS = "(all channels)"
DEFAULT = "(default)"
AUTOMATIC = "(automatic)"
TARGET_SIZE = "(segment.target_size)"
"""Where a value may come from besides a pattern; no pattern looks like this."""

_Found = dict[str, tuple[Any, str]]  # key -> value, where it comes from


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLimits:
    """What holds for one channel. 0 is no limit."""

    max_subs: int
    max_msgs: int
    max_bytes: int
    max_age_ns: int
    max_inactivity_ns: int
    discard: Literal["old", "new"]
    retention_mode: Literal["acked", "limits"]
    slice_max_msgs: int
    slice_max_bytes: int
    slice_max_age_ns: int
    archive_script: str
    schema_mode: SchemaMode
    event_time_column: str
    signal: str
    compression: str
    dedup_keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LimitRow:
    """One setting of one pattern or channel, for people."""

    pattern: str
    key: str
    value: int | str
    text: str
    """The value as a person would say it: `64MiB`, `unlimited`."""
    inherited_from: str | None
    """None where the pattern states it itself; else a pattern, or one of the words in brackets above."""


class LimitsTree:
    """The limits of every channel there may be, under one configuration."""

    def __init__(self, config: StoreConfig) -> None:
        rows = config.rows()
        self._rows: Mapping[str, Setting] = {row.key: row for row in rows.values() if row.per_channel}
        self._all: _Found = {
            row.key: (getattr(config, name), DEFAULT if getattr(config, name) == row.default else ALL_CHANNELS)
            for name, row in rows.items()
            if row.per_channel
        }
        self._target_bytes = config.segment_target_bytes
        self._overrides = sorted(config.channels, key=lambda override: override.pattern.order)
        self._wildcards = [override for override in self._overrides if not override.pattern.is_literal]
        self._literals = {
            override.pattern.text: override for override in self._overrides if override.pattern.is_literal
        }
        self._by_name: dict[str, ChannelLimits] = {}
        self._by_chain: dict[tuple[str, ...], ChannelLimits] = {}

    def resolve(self, channel: str) -> ChannelLimits:
        """What holds for the channel. Channels with the same overrides share one object."""
        known = self._by_name.get(channel)
        if known is not None:
            return known
        chain = self._chain(channel)
        names = tuple(override.pattern.text for override in chain)
        limits = self._by_chain.get(names)
        if limits is None:
            limits = self._by_chain[names] = _limits(self._find(chain))
        if len(self._by_name) >= NAMES_CACHED_MAX:
            self._by_name.clear()
            self._by_chain.clear()
        self._by_name[channel] = limits
        return limits

    def describe(self, channel: str) -> list[LimitRow]:
        """What holds for the channel and where each value comes from."""
        return self._table(channel, self._find(self._chain(channel)))

    def tree(self) -> list[LimitRow]:
        """What holds for all channels and for each pattern, widest first, and where each value comes from.

        A pattern inherits from the patterns that cover it. A channel may be meant by others too that merely overlap:
        `describe` knows.
        """
        rows = self._table(ALL_CHANNELS, self._find([]))
        for override in self._overrides:
            rows += self._table(override.pattern.text, self._find(self._covering(override.pattern)))
        return rows

    def _chain(self, channel: str) -> list[ChannelOverride]:
        """The overrides that mean the channel, widest first."""
        literal = self._literals.get(channel)
        chain = [override for override in self._wildcards if override.pattern.matches(channel)]
        return chain if literal is None else [*chain, literal]

    def _covering(self, pattern: Pattern) -> list[ChannelOverride]:
        """The overrides that hold for every channel the pattern means, widest first, its own last."""
        if pattern.is_literal:
            return self._chain(pattern.text)
        return [override for override in self._wildcards if override.pattern.covers(pattern)]

    def _find(self, chain: Iterable[ChannelOverride]) -> _Found:
        found = dict(self._all)
        for override in chain:
            found.update((key, (value, override.pattern.text)) for key, value in override.values)
        if not _slices_are_set(found):
            found |= _automatic_slices(found)
        if not 0 < found["file_slice_max_bytes"][0] <= self._target_bytes:
            found["file_slice_max_bytes"] = (self._target_bytes, TARGET_SIZE)
        return found

    def _table(self, pattern: str, found: _Found) -> list[LimitRow]:
        return [
            LimitRow(pattern, key, value, self._rows[key].text_of(value), None if origin == pattern else origin)
            for key, (value, origin) in found.items()
        ]


def _slices_are_set(found: _Found) -> bool:
    return any(
        found[key][0] > 0 and found[key][1] != DEFAULT
        for key in ("file_slice_max_msgs", "file_slice_max_bytes", "file_slice_max_age")
    )


def _automatic_slices(found: _Found) -> _Found:
    """A quarter of each limit the channel has."""
    slices: _Found = {}
    for key, limit, least in (
        ("file_slice_max_msgs", found["max_msgs"][0], 1),
        ("file_slice_max_bytes", found["max_bytes"][0], 1),
        ("file_slice_max_age", found["max_age"][0], SLICE_AGE_MIN_NS),
    ):
        if limit:
            slices[key] = (max(least, limit // SLICES_PER_LIMIT), AUTOMATIC)
    return slices


def _limits(found: _Found) -> ChannelLimits:
    values = {key: value for key, (value, _) in found.items()}
    return ChannelLimits(
        max_subs=values["max_subs"],
        max_msgs=values["max_msgs"],
        max_bytes=values["max_bytes"],
        max_age_ns=values["max_age"],
        max_inactivity_ns=values["max_inactivity"],
        discard=values["discard"],
        retention_mode=values["retention.mode"],
        slice_max_msgs=values["file_slice_max_msgs"],
        slice_max_bytes=values["file_slice_max_bytes"],
        slice_max_age_ns=values["file_slice_max_age"],
        archive_script=values["archive_script"],
        schema_mode=SchemaMode(values["schema"]),
        event_time_column=values["event_time"],
        signal=values["signal"],
        compression=values["segment.compression"],
        dedup_keys=tuple(filter(None, map(str.strip, values["dedup_keys"].split(",")))),
    )
