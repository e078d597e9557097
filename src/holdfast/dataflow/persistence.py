"""The persistence node: a store between receivers and exporters.

Its settings are `path` and every setting of a store, under the same names (`segment.target_size`, `wal.max_size`,
`retention.size_cap_policy`, …). The store of a process is `<path>/core-<k>`. Where a file does not say otherwise a
frame may be 32 MiB, so that the largest OTLP request fits, and memory follows `segment.target_size`.

`wal.flush_interval` has an effect only with `wal.flush: interval`: by default a request is answered after its sync.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from holdfast.config.patterns import Pattern
from holdfast.config.reading import ChannelOverride
from holdfast.config.table import StoreConfig
from holdfast.config.values import MIB, Kind, format_value, setting
from holdfast.dataflow.settings import NodeSettings
from holdfast.disk.filesystem import Filesystem
from holdfast.errors import InvalidConfig

_CORE = re.compile(r"core-(0|[1-9]\d{0,5})")
FRAME_BYTES = 32 * MIB
"""An OTLP request of 20 MiB, which receivers allow by default, with room for its row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(NodeSettings):
    """Where the store is, and its settings."""

    path: str = setting("path", Kind.TEXT, "", why="directory of the store; required, since only its owner knows")
    store: StoreConfig = field(default_factory=StoreConfig)

    def check_relations(self) -> None:
        """A path is needed."""
        if not self.path:
            raise InvalidConfig(key="path", reason="is required: the directory in which data is kept")

    def owned(self) -> list[tuple[str, str]]:
        """The directory."""
        return [("path", self.path)]

    def core_path(self, core: int = 0) -> Path:
        """The directory of one process's store."""
        return Path(self.path) / f"core-{core}"

    @property
    def room_path(self) -> Path:
        """Where the stores of several processes share `retention.size_cap`."""
        return Path(self.path) / "room"

    def too_small_for(self, cores: int) -> str | None:
        """Why the size cap is not enough for so many stores; None if it is."""
        config = self.store
        least = cores * (config.wal_max_bytes + 2 * config.segment_target_bytes)
        if not config.retention_size_cap_bytes or config.retention_size_cap_bytes >= least:
            return None
        text = format_value(Kind.SIZE, least)
        return f"is shared by {cores} cores and must be at least {text}: a log and two segments for each"

    def cores_there(self, filesystem: Filesystem) -> list[int]:
        """The numbers of the stores below `path`, whoever made them."""
        if not filesystem.exists(Path(self.path)):
            return []
        matches = (_CORE.fullmatch(entry.name) for entry in filesystem.listdir(Path(self.path)) if entry.is_dir)
        return sorted(int(match[1]) for match in matches if match)


def read_settings(raw: Mapping[str, object], folder: Path) -> Settings:
    """Settings of the node; a path is relative to the folder of the file."""
    rest = dict(raw)
    path = Settings.rows()["path"].parse(rest.pop("path", ""))
    return Settings(path=str(folder / path) if path else "", store=StoreConfig.from_mapping(_with_defaults(rest)))


def _with_defaults(settings: dict[str, object]) -> dict[str, object]:
    """Settings that follow from others, where the file does not give them."""
    if not _has(settings, "frame.max_size") and not _has(settings, "wal.rotation_size"):
        settings["frame.max_size"] = FRAME_BYTES
    if _has(settings, "segment.target_size") and not _has(settings, "memory_limit"):
        target = StoreConfig.from_mapping({**_only(settings, "segment.target_size"), "memory_limit": 1 << 44})
        settings["memory_limit"] = max(StoreConfig().memory_limit_bytes, target.segment_target_bytes * 5 // 4)
    return settings


def with_signals(config: StoreConfig, channels: Iterable[tuple[str, str]]) -> StoreConfig:
    """The settings with each channel's signal, which segments carry; what the file says of a channel stays."""
    known = {override.pattern.text for override in config.channels}
    added = [
        ChannelOverride(Pattern.parse(channel), (("signal", signal),))
        for channel, signal in dict(channels).items()
        if channel not in known
    ]
    return replace(config, channels=tuple(sorted((*config.channels, *added), key=lambda item: item.pattern.order)))


def _has(settings: Mapping[str, object], key: str) -> bool:
    return bool(_only(settings, key))


def _only(settings: Mapping[str, object], key: str) -> dict[str, object]:
    """The one setting, flat, if it is given flat or nested."""
    section, _, name = key.partition(".")
    inside = settings.get(section)
    if key in settings:
        return {key: settings[key]}
    return {key: inside[name]} if name and isinstance(inside, Mapping) and name in inside else {}
