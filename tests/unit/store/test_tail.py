"""The events between log and segments, and the bounds on them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.config import KIB, SECOND, StoreConfig
from holdfast.errors import Backpressure, Closed, StoreFailed
from holdfast.model.frame import Guid, SlotFrame
from holdfast.model.positions import ChannelId, Fsn
from holdfast.store.channels import Channel
from holdfast.store.limits import LimitsTree
from holdfast.store.tail import Tail
from holdfast.store.units import Chunk, Unit, make_run
from holdfast.store.wal.codec import encode_batch
from holdfast.store.wal.log import SchemaVersion
from holdfast.testing import ManualClock


class Rig:
    """A tail and channels that fill it."""

    def __init__(self, **settings: Any) -> None:
        self.config = StoreConfig(
            **{
                "segment_target_bytes": 8 * KIB,
                "memory_limit_bytes": 64 * KIB,
                "wal_rotation_bytes": 64 * KIB,
                "wal_max_bytes": 1024 * KIB,
                "frame_bytes_max": 32 * KIB,
                **settings,
            }
        )
        self.clock = ManualClock()
        self.tail = Tail(self.config, self.clock)
        self.limits = LimitsTree(self.config)
        self.channels: dict[str, Channel] = {}
        self.versions: dict[tuple[str, int], SchemaVersion] = {}
        self.next_committed_id = 1

    def channel(self, name: str) -> Channel:
        return self.channels.setdefault(
            name, Channel(ChannelId(len(self.channels) + 1), name, self.limits.resolve(name))
        )

    def add(self, name: str, size: int, *, wal_file: int = 1, version: int = 1, wal_bytes: int = 0) -> Chunk:
        """One event of about that many bytes."""
        channel = self.channel(name)
        batch = pa.record_batch({"body": pa.array([b"x" * size])})
        schema = self.versions.setdefault(
            (name, version),
            SchemaVersion(len(self.versions) + 1, channel.id, name, batch.schema, False),
        )
        run = make_run(
            channel.next_seq, 1, committed_id=self.next_committed_id, ingested_at_ns=5, identity=None, partitions=()
        )
        chunk = Chunk(run, encode_batch(batch, has_dictionaries=False), schema, wal_file)
        channel.next_seq += 1
        self.next_committed_id += 1
        self.tail.append([(channel, chunk)], queued_bytes=0, wal_bytes=wal_bytes)
        return chunk

    def publish(self, units: list[Unit]) -> None:
        self.tail.published(units, [unit.bytes for unit in units])

    def bytes(self) -> int:
        found = self.tail.statistics()
        return found.queued_bytes + found.open_bytes + found.cut_bytes


# --- cutting --------------------------------------------------------------------------------------------------------


def test_unit_is_cut_when_it_reaches_the_target_size() -> None:
    rig = Rig()
    for _ in range(3):
        rig.add("a", 3 * KIB)
    statistics = rig.tail.statistics()
    assert (statistics.open_units, statistics.cut_units) == (0, 1)
    assert [unit.rows for unit in rig.tail.take(10)] == [3]


def test_unit_is_cut_when_it_has_been_open_too_long() -> None:
    rig = Rig()
    rig.add("a", 100)
    rig.clock.advance(4.9)
    rig.tail.cut_expired()
    assert rig.tail.take(10) == []
    rig.clock.advance(0.1)
    rig.tail.cut_expired()
    assert len(rig.tail.take(10)) == 1


def test_unit_is_cut_when_the_schema_changes() -> None:
    rig = Rig()
    rig.add("a", 100)
    rig.add("a", 100, version=2)
    assert [unit.rows for unit in rig.tail.take(10)] == [1]
    assert rig.tail.statistics().open_units == 1


def test_unit_is_cut_when_numbers_were_skipped() -> None:
    rig = Rig()
    rig.add("a", 100)
    rig.channel("a").next_seq += 1_000_000
    rig.add("a", 100)
    assert [(unit.first_seq, unit.end_seq) for unit in rig.tail.take(10)] == [(1, 2)]


def test_full_memory_cuts_the_largest_units_first() -> None:
    rig = Rig(segment_target_bytes=64 * KIB)
    rig.add("small", KIB)
    rig.add("large", 40 * KIB)
    rig.add("middle", 16 * KIB)
    assert [unit.channel.name for unit in rig.tail.take(10)] == ["large"]


def test_full_log_cuts_what_pins_its_oldest_file() -> None:
    rig = Rig()
    rig.add("old", 100, wal_file=1)
    rig.add("new", 100, wal_file=2, wal_bytes=1000 * KIB)
    assert [unit.channel.name for unit in rig.tail.take(10)] == ["old"]


def test_small_units_are_taken_together_and_a_large_one_alone() -> None:
    rig = Rig(memory_limit_bytes=64 * KIB * KIB, segment_target_bytes=8 * KIB * KIB)
    for name, size in (("a", 100), ("b", 100), ("c", 5 * KIB * KIB), ("d", 100)):
        rig.add(name, size)
    rig.tail.cut_all()
    assert [unit.channel.name for unit in rig.tail.take(64)] == ["a", "b"]
    rig.publish(rig.tail.take(64))
    assert [unit.channel.name for unit in rig.tail.take(64)] == ["c"]


def test_units_are_taken_again_until_they_are_published() -> None:
    rig = Rig()
    rig.add("a", 9 * KIB)
    first = rig.tail.take(10)
    assert rig.tail.take(10) == first
    assert not rig.tail.drained()
    rig.publish(first)
    assert rig.tail.take(10) == []
    assert rig.tail.drained()


# --- what the log must keep -----------------------------------------------------------------------------------------


@pytest.mark.guarantee("G1")
def test_oldest_file_is_the_one_of_the_oldest_event_not_yet_published() -> None:
    rig = Rig()
    rig.add("quiet", 100, wal_file=3)
    rig.add("busy", 9 * KIB, wal_file=4)
    (busy,) = rig.tail.take(10)
    assert rig.tail.oldest_file(active=9) == 3
    assert rig.tail.oldest_file(active=9, without=[busy]) == 3
    rig.publish([busy])
    rig.tail.cut_all()
    (quiet,) = rig.tail.take(10)
    assert rig.tail.oldest_file(active=9, without=[quiet]) == 9
    rig.publish([quiet])
    assert rig.tail.oldest_file(active=9) == 9


def test_unit_keeps_the_file_of_its_first_event() -> None:
    rig = Rig()
    rig.add("a", 100, wal_file=1)
    rig.add("a", 100, wal_file=2)
    assert rig.tail.oldest_file(active=2) == 1


# --- bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.guarantee("G11")
def test_reservation_beyond_the_memory_limit_is_refused_by_name() -> None:
    rig = Rig()
    rig.tail.reserve(40 * KIB, wait=False)
    with pytest.raises(Backpressure) as caught:
        rig.tail.reserve(30 * KIB, wait=False)
    assert (caught.value.bound, caught.value.used_bytes, caught.value.cap_bytes) == ("memory_limit", 40 * KIB, 64 * KIB)
    rig.tail.release(40 * KIB)
    rig.tail.reserve(30 * KIB, wait=False)
    assert rig.tail.statistics().throttled == 1


@pytest.mark.guarantee("G11")
def test_reservation_beyond_the_log_limit_is_refused_by_name() -> None:
    rig = Rig()
    rig.add("a", 100, wal_bytes=1020 * KIB)
    with pytest.raises(Backpressure) as caught:
        rig.tail.reserve(10 * KIB, wait=False)
    assert caught.value.bound == "wal.max_size"
    rig.publish(rig.tail.take(10))
    rig.tail.note_wal_bytes(0)
    rig.tail.reserve(10 * KIB, wait=False)


def test_frame_larger_than_memory_passes_when_there_is_nothing_else() -> None:
    """Otherwise it would wait for ever."""
    rig = Rig()
    rig.tail.reserve(100 * KIB, wait=False)
    assert rig.bytes() == 100 * KIB


@pytest.mark.guarantee("G11")
def test_frame_larger_than_an_ordinary_one_passes_once_half_of_the_memory_is_free() -> None:
    rig = Rig(frame_bytes_max=16 * KIB)
    rig.tail.reserve(33 * KIB, wait=False)
    with pytest.raises(Backpressure):
        rig.tail.reserve(200 * KIB, wait=False)
    rig.tail.release(KIB)
    rig.tail.reserve(200 * KIB, wait=False)
    with pytest.raises(Backpressure):
        rig.tail.reserve(1, wait=False)


@pytest.mark.guarantee("G11")
def test_frame_larger_than_an_ordinary_one_passes_once_half_of_the_log_is_free() -> None:
    rig = Rig(memory_limit_bytes=64 << 20)
    rig.add("a", 100, wal_bytes=513 * KIB)
    with pytest.raises(Backpressure):
        rig.tail.reserve(2000 * KIB, wait=False)
    rig.tail.note_wal_bytes(512 * KIB)
    rig.tail.reserve(2000 * KIB, wait=False)
    with pytest.raises(Backpressure):
        rig.tail.reserve(1, wait=False)


def test_asking_again_for_room_in_the_log_does_not_cut_what_gives_none() -> None:
    """What is in the newest file is cut once, since files below it go when it is published."""
    rig = Rig(memory_limit_bytes=64 << 20)
    rig.add("old", 100, wal_file=1)
    rig.add("new", 100, wal_file=2, wal_bytes=600 * KIB)
    cut = []
    for _ in range(5):
        assert not rig.tail.has_room(512 * KIB, capped=True)
        found = rig.tail.take(10)
        cut += [unit.channel.name for unit in found]
        rig.publish(found)
        rig.add("new", 100, wal_file=2, wal_bytes=600 * KIB)
    assert cut == ["old", "new"]
    rig.add("newer", 100, wal_file=3, wal_bytes=600 * KIB)
    assert not rig.tail.has_room(512 * KIB, capped=True)
    assert [unit.channel.name for unit in rig.tail.take(10)] == ["new"]


def test_full_log_that_nobody_pins_lets_a_frame_pass() -> None:
    rig = Rig()
    rig.tail.note_wal_bytes(2000 * KIB)
    rig.tail.reserve(10 * KIB, wait=False)


def test_waiting_for_room_ends_with_the_timeout() -> None:
    rig = Rig(commit_timeout_ns=0)
    rig.tail.reserve(60 * KIB, wait=True)
    with pytest.raises(Backpressure):
        rig.tail.reserve(60 * KIB, wait=True)


def test_failed_store_lets_nobody_wait_or_reserve() -> None:
    rig = Rig(commit_timeout_ns=3600 * SECOND)
    rig.tail.reserve(60 * KIB, wait=True)
    failure = StoreFailed(file=Path("x"), reason="broken")
    rig.tail.fail(failure)
    rig.tail.fail(StoreFailed(file=Path("y"), reason="later"))
    for size in (1, 60 * KIB):
        with pytest.raises(StoreFailed) as caught:
            rig.tail.reserve(size, wait=True)
        assert caught.value is failure, "the first reason stays"
    with pytest.raises(StoreFailed):
        rig.tail.check()


def test_closed_tail_refuses_to_be_used() -> None:
    rig = Rig()
    rig.tail.check()
    rig.tail.closed = True
    with pytest.raises(Closed):
        rig.tail.check()


def test_bytes_are_counted_once_on_their_way() -> None:
    rig = Rig()
    chunk = rig.add("a", 9 * KIB)
    size = chunk.payload.buffer.size
    assert rig.bytes() == size
    assert rig.tail.statistics().cut_bytes == size
    rig.publish(rig.tail.take(10))
    assert rig.bytes() == 0


# --- readers --------------------------------------------------------------------------------------------------------


def test_picture_holds_everything_above_the_published_border() -> None:
    rig = Rig()
    rig.add("a", 9 * KIB)
    rig.add("a", 100)
    border, chunks = rig.tail.snapshot(rig.channel("a"))
    assert (border, [chunk.run.first_seq for chunk in chunks]) == (1, [1, 2])
    rig.publish(rig.tail.take(10))
    border, chunks = rig.tail.snapshot(rig.channel("a"))
    assert (border, [chunk.run.first_seq for chunk in chunks]) == (2, [2])


def test_run_spells_out_the_identity_of_its_frame() -> None:
    def run(identity: Any) -> Any:
        return make_run(1, 2, committed_id=3, ingested_at_ns=4, identity=identity, partitions=("p",))

    slot = run(SlotFrame(b"s" * 16, Fsn(9)))
    assert (slot.slot_id, slot.fsn, slot.guid) == (b"s" * 16, 9, None)
    assert run(Guid(b"g" * 16)).guid == b"g" * 16
    assert (run(None).slot_id, run(None).fsn, run(None).partitions) == (None, None, ("p",))
