"""A store on the crash disk, without threads, in time that moves by hand: one tick, segment, lease at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from holdfast import Store
from holdfast.store.subscribers.subscriber import ChannelLag, Lease, Subscriber
from holdfast.testing import CrashFilesystem, ManualClock

STORE = Path("/data/store")
SMALL: dict[str, object] = {
    "segment.target_size": "4KiB",
    "wal.rotation_size": "64KiB",
    "wal.max_size": "1MiB",
    "memory_limit": "64KiB",
    "frame.max_size": "32KiB",
}


class Bench:
    """A store, its disk and its clock, opened again as often as needed."""

    def __init__(self, **settings: object) -> None:
        self.disk = CrashFilesystem()
        self.clock = ManualClock()
        self.settings = {key.replace("__", "."): value for key, value in settings.items()}
        self.store = self.open()

    def open(self, **settings: object) -> Store:
        """Open the store, with these settings changed for good; the one before was closed or lost its power."""
        self.settings |= {key.replace("__", "."): value for key, value in settings.items()}
        config = {**SMALL, **self.settings}
        self.store = Store.open(STORE, config, filesystem=self.disk, clock=self.clock, inline=True)
        return self.store

    def reopen(self, **settings: object) -> Store:
        """Close in order and open again."""
        self.store.close()
        return self.open(**settings)

    def lose_power(self, seed: int = 0, **settings: object) -> Store:
        """Power loss, then open what is left."""
        self.disk = self.disk.after_power_cut(seed)
        return self.open(**settings)

    def publish(self, channel: str = "trades", *, events: int = 10, segments: int = 1, size: int = 0) -> None:
        """Add segments of so many events each; `size` adds so many bytes to an event."""
        for _ in range(segments):
            self.store.commit(channel, batch(events, size=size))
            self.store.flush()

    def tick(self, seconds: float = 1.0) -> None:
        """Let time pass, and retention look."""
        self.clock.advance(seconds)
        self.store.flush()

    def segments(self, channel: str = "trades") -> list[int]:
        """First seqs of the segment files of a channel that are there, in order."""
        rows = self.store._catalog.segments(self.store._channels.find(channel).id)
        first_seqs = {row.meta.segment_seq: row.meta.first_seq for row in rows}
        files = {path.name for path in self.disk.paths() if path.parent == STORE / "channels" / channel}
        arrows = {name for name in files if name.endswith(".arrow")}
        assert arrows == {f"seg-{number}.arrow" for number in first_seqs}, "the catalog and the disk disagree"
        return sorted(first_seqs.values())


def batch(events: int, *, size: int = 0) -> pa.RecordBatch:
    """So many events."""
    columns: dict[str, pa.Array] = {"n": pa.array(range(events), pa.int64())}
    if size:
        columns["body"] = pa.array([b"x" * size] * events, pa.binary())
    return pa.record_batch(columns)


def seqs(lease: Lease) -> list[int]:
    """The events a lease reads."""
    return [seq for part in lease.read(system=("_seq",)) for seq in part.column("_seq").to_pylist()]


def spans(leases: Iterator[Lease] | list[Lease]) -> list[tuple[int, int]]:
    """First and last seq of each."""
    return [(lease.first_seq, lease.last_seq) for lease in leases]


def read_seqs(store: Store, channel: str = "trades") -> list[int]:
    """What a plain reader sees."""
    return [seq for part in store.read(channel, system=("_seq",)) for seq in part.column("_seq").to_pylist()]


def take(subscriber: Subscriber) -> Lease:
    """The next lease, which must be there."""
    lease = subscriber.poll(0.0)
    assert lease is not None, "nothing is free"
    return lease


def lag(subscriber: Subscriber, channel: str = "trades") -> ChannelLag:
    """How far it is behind in a channel."""
    (found,) = [item for item in subscriber.lag() if item.channel == channel]
    return found
