"""What a store has done since it was opened, and what it holds, as one value for people, metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.model.frame import Durability
from holdfast.store.retention.evict import EvictionStatistics
from holdfast.store.scrub import ScrubStatistics
from holdfast.store.tail import TailStatistics


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """What a store has done since it was opened, and what it holds."""

    durability: Durability
    failed: str | None
    channels: int
    groups: int
    frames: int
    events: int
    syncs: int
    next_committed_id: int
    segments: int
    segment_events: int
    segment_bytes: int
    sealed_segments: int
    seal_postponed: str | None
    wal_bytes: int
    slots: int
    """Of producers, whose frame numbers are in memory."""
    guids: int
    guids_forgotten_early: int
    tail: TailStatistics
    retention: EvictionStatistics
    clock_jumps: int
    size_emergencies: int
    ack_records: int
    ack_syncs: int
    scrub: ScrubStatistics
    verified: bool
    """False with `verify_crc: no`: damaged bytes are delivered as events."""
