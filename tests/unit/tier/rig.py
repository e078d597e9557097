"""A store and a tier in one hand: no threads, a clock that is set by hand, objects in memory."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from holdfast import Store
from holdfast.config import StoreConfig
from holdfast.config.tier import TierConfig
from holdfast.disk.filesystem import Filesystem
from holdfast.disk.local import LocalFilesystem
from holdfast.model.frame import Entry, FrameReceipt, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.store.subscribers.subscriber import Lease, Subscriber
from holdfast.testing import ManualClock
from holdfast.tier import Tier
from holdfast.tier.objects import Objects
from holdfast.tier.uploader import UploadStatistics

SLOT = b"0123456789abcdef"


def rows(*values: int) -> pa.RecordBatch:
    """A batch with these values."""
    return pa.record_batch({"value": pa.array(values, pa.int64())})


def lease_of(subscriber: Subscriber) -> Lease:
    """The next lease; there must be one."""
    lease = subscriber.poll()
    assert lease is not None
    return lease


def values_of(store: Store, channel: str) -> list[int]:
    """Everything a channel holds."""
    return [value for batch in store.read(channel) for value in batch.column("value").to_pylist()]


class Rig:
    """One life of a server: a tier, a store in a directory, and what was told as durable."""

    def __init__(
        self,
        directory: Path,
        objects: Objects,
        *,
        clock: ManualClock | None = None,
        filesystem: Filesystem | None = None,
        store: Mapping[str, object] | None = None,
        **tier: object,
    ) -> None:
        self.clock = clock or ManualClock()
        self.directory = directory
        self.durable: dict[str, int] = {}
        self.filesystem = filesystem = filesystem or LocalFilesystem()
        config = TierConfig.from_mapping({"tier": {"url": "file:///unused", **tier}})
        self.tier = Tier(
            config, objects, filesystem=filesystem, clock=self.clock, chance=random.Random(7), pause=self._pause
        )
        self.tier.load()
        settings = StoreConfig.from_mapping(store or {})
        self.restored = self.tier.restore_if_empty(directory, keep_bytes=settings.retention_local_bytes)
        self.store = Store.open(
            directory, settings, filesystem=filesystem, clock=self.clock, inline=True, source=self.tier
        )
        self.tier.on_durable(self.durable.update)
        try:
            self.tier.attach(self.store.port, threads=False)
        except BaseException:
            self.store.close()
            raise

    def _pause(self, seconds: float) -> bool:
        self.clock.advance(seconds)
        return False

    def send(self, fsn: int, *channels: str) -> FrameReceipt:
        """A frame of a slot with one event per channel; its value is the frame's number."""
        return self.store.commit_frame(
            [Entry(channel, rows(fsn)) for channel in channels], identity=SlotFrame(SLOT, Fsn(fsn))
        )

    def upload(self) -> None:
        """Seal everything and let it become durable."""
        self.store.flush()
        self.tier.turn()

    def tick(self, seconds: float = 2.0) -> None:
        """Let time pass, so that retention looks."""
        self.clock.advance(seconds)
        self.store.flush()

    def files(self, channel: str) -> list[str]:
        """The segment files of a channel that are on the disk."""
        folder = self.directory / "channels" / channel
        entries = self.filesystem.listdir(folder) if self.filesystem.exists(folder) else []
        return sorted(entry.name for entry in entries if entry.name.endswith(".arrow"))

    def remote(self, channel: str) -> list[int]:
        """The first seqs of its segments that are only in the tier."""
        segments = self.store.listing.segments(channel, from_seq=1, limit=1000)
        return [segment.meta.first_seq for segment in segments if segment.remote]

    @property
    def uploads(self) -> UploadStatistics:
        """How far the uploader is."""
        found = self.tier.statistics().upload
        assert found is not None
        return found

    def close(self) -> None:
        """End in order, without uploading what is left."""
        self.tier.close()
        self.store.close()
