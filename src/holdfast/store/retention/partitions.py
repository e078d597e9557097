"""What the partitions of a `limits` channel still need.

An event may belong to several partitions; one that belongs to none belongs to the partition `""`. A partition advances
when whoever keeps it (the sync protocol) says that nobody will ask for its events below a seq. An event is *passed*
when every partition it belongs to has advanced past it; a segment, when all its events are.

Promises: a partition never moves back, across restarts. A partition that nobody advanced needs everything.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from holdfast.errors import DamagedObject, OnlyInTier, TierRefused, TierUnavailable
from holdfast.store.catalog import Catalog, PublishedSegment
from holdfast.store.channels import Channel
from holdfast.store.reading import Reader
from holdfast.telemetry import event

SEGMENTS_REMEMBERED_MAX = 10_000
"""Segments whose partitions are remembered; the others are read again when a partition advances."""


class PartitionFloors:
    """Per channel and partition the first seq it still needs. Thread-safe."""

    def __init__(self, catalog: Catalog, reader: Reader) -> None:
        self._catalog = catalog
        self._reader = reader
        self._lock = threading.Lock()
        self._floors: dict[int, dict[str, int]] = {}
        self._ends: OrderedDict[int, dict[str, int]] = OrderedDict()  # segment -> partition -> its last seq there
        for channel_id, partition, first_seq in catalog.partition_floors():
            self._floors.setdefault(channel_id, {})[partition] = first_seq

    def advance(self, channel: Channel, partition: str, first_seq: int) -> bool:
        """The partition needs nothing below `first_seq`; durable when this returns. False if it was there before."""
        with self._lock:
            if self._floors.get(channel.id, {}).get(partition, 1) >= first_seq:
                return False
            self._catalog.set_partition_floor(channel.id, partition, first_seq)
            self._floors.setdefault(channel.id, {})[partition] = first_seq
            return True

    def highest(self, channel: Channel) -> int:
        """No segment that begins here or later is passed."""
        with self._lock:
            return max(self._floors.get(channel.id, {}).values(), default=1)

    def passed(self, channel: Channel, segment: PublishedSegment) -> bool:
        """Whether no partition needs any event of the segment; False if that cannot be found out now."""
        try:
            ends = self._ends_of(segment)
        except (TierUnavailable, TierRefused, DamagedObject, OnlyInTier) as error:
            event("store.retention.postpone", segment=segment.meta.segment_seq, reason=error)
            return False
        with self._lock:
            floors = self._floors.get(channel.id, {})
            return bool(ends) and all(last_seq < floors.get(partition, 1) for partition, last_seq in ends.items())

    def _ends_of(self, segment: PublishedSegment) -> dict[str, int]:
        number = segment.meta.segment_seq
        known = self._ends.get(number)
        if known is None:
            known = {}
            for run in self._reader.run_table(segment, segment.meta.channel) or ():
                for partition in run.partitions or ("",):
                    known[partition] = run.first_seq + run.rows - 1
            self._ends[number] = known
            if len(self._ends) > SEGMENTS_REMEMBERED_MAX:
                self._ends.popitem(last=False)
        return known
