"""What the parts of one open store stand on: the same disk, directory, settings, clocks, index, channels and tail."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from holdfast.clock import Clock
from holdfast.config import StoreConfig
from holdfast.disk.filesystem import Filesystem
from holdfast.store.catalog import Catalog
from holdfast.store.channels import ChannelTable
from holdfast.store.retention.timekeeping import TrustedTime
from holdfast.store.source import SegmentSource
from holdfast.store.tail import Tail

LOCK_NAME = "lock"
WAL_DIR = "wal"
ACK_DIR = "ack"
CHANNELS_DIR = "channels"
QUARANTINE_DIR = "quarantine"
CACHE_DIR = "cache"
"""Copies of segments that are only in the tier; may be deleted at any time."""
WITNESS_NAME = ".truncate-bad-tail"
"""There while the last start was given `truncate_bad_tail`."""


@dataclass(frozen=True, slots=True)
class Ground:
    """Shared by reference; each part has its own lock, or uses the tail's."""

    filesystem: Filesystem
    directory: Path
    config: StoreConfig
    clock: Clock
    time: TrustedTime
    store_id: bytes
    catalog: Catalog
    channels: ChannelTable
    tail: Tail
    source: SegmentSource | None = None
    """Where segments can be had again; a tier."""
    made: set[str] = field(default_factory=set)
    """Channels whose directories this process has made, or found."""

    @property
    def channels_directory(self) -> Path:
        """Where the segments are."""
        return self.directory / CHANNELS_DIR

    def channel_directory(self, channel: str) -> Path:
        """Where the segments of a channel are; its name survives a power cut when this returns."""
        directory = self.channels_directory / channel
        if channel not in self.made:
            self.filesystem.makedir(directory)
            self.filesystem.sync_dir(self.channels_directory)
            self.made.add(channel)
        return directory


def make_directory(filesystem: Filesystem, directory: Path) -> None:
    """Make a directory and those above it that are missing, durably."""
    missing = [path for path in (directory, *directory.parents) if not filesystem.exists(path)]
    for path in reversed(missing):
        filesystem.makedir(path)
        filesystem.sync_dir(path.parent)
