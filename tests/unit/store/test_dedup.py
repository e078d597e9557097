"""Which frames were accepted: slots for ever, GUIDs for a while."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import MINUTE, StoreConfig
from holdfast.model.frame import Durability, EventIds, FrameReceipt, Guid, Identity, PlainFrame, Receipt, SlotFrame
from holdfast.model.positions import CommittedId, Fsn, Seq
from holdfast.store import dedup as module
from holdfast.store.catalog import Catalog, CatalogChannel, Publication, PublishedSegment
from holdfast.store.dedup import Dedup, as_duplicate, merge_ranges
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.testing import CrashFilesystem, ManualClock

SLOT = b"sixteen bytes ok"


class Rig:
    """A dedup with its clock; what is looked up in segments is noted."""

    def __init__(self, *, dedup_guids_max: int = 1000) -> None:
        disk = CrashFilesystem()
        disk.write_bytes(Path("/store/made"), b"")
        self.clock = ManualClock()
        self.looked_up: list[SlotFrame] = []
        self.catalog = Catalog(disk, Path("/store"))
        config = StoreConfig(dedup_window_ns=5 * MINUTE, dedup_guids_max=dedup_guids_max)
        self.dedup = Dedup(config, self.clock, catalog=self.catalog, find_original=self._find_original)

    def _find_original(self, frame: SlotFrame) -> FrameReceipt:
        self.looked_up.append(frame)
        return receipt(999)


def receipt(seq: int) -> FrameReceipt:
    entry = Receipt("a", Seq(seq), Seq(seq), CommittedId(seq), duplicate=False, durability=Durability.SYNCED)
    return FrameReceipt((entry,), duplicate=False, durability=Durability.SYNCED)


def guid(number: int) -> Guid:
    return Guid(number.to_bytes(16, "little"))


def frame(fsn: int, slot: bytes = SLOT) -> SlotFrame:
    return SlotFrame(slot, Fsn(fsn))


@pytest.mark.guarantee("G3")
def test_slot_frame_is_known_by_slot_and_number() -> None:
    rig = Rig()
    assert rig.dedup.find(frame(1)) is None
    rig.dedup.remember(frame(1), receipt(7))
    assert rig.dedup.find(frame(1)) == as_duplicate(receipt(7))
    assert rig.dedup.find(frame(2)) is None
    assert rig.dedup.find(frame(1, b"another slot 16b")) is None


@pytest.mark.guarantee("G3")
def test_slot_frame_is_never_forgotten() -> None:
    rig = Rig()
    rig.dedup.remember(frame(1), receipt(7))
    rig.clock.advance(10 * 365 * 86400)
    assert rig.dedup.find(frame(1)) == as_duplicate(receipt(7))


@pytest.mark.guarantee("G3")
def test_receipt_that_is_no_longer_in_memory_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RECENT_MAX", 3)
    rig = Rig()
    for fsn in range(5):
        rig.dedup.remember(frame(fsn), receipt(fsn))
    assert rig.dedup.find(frame(4)) == as_duplicate(receipt(4))
    assert rig.looked_up == []
    assert rig.dedup.find(frame(0)) == as_duplicate(receipt(999))
    assert rig.looked_up == [frame(0)]


def test_frames_out_of_order_are_each_known() -> None:
    rig = Rig()
    for fsn in (5, 1, 3):
        rig.dedup.remember(frame(fsn), receipt(fsn))
    assert [fsn for fsn in range(7) if rig.dedup.find(frame(fsn)) is not None] == [1, 3, 5]


@pytest.mark.guarantee("G3")
@given(
    st.lists(
        st.tuples(st.integers(0, 6), st.sampled_from([SLOT, bytes(reversed(SLOT))])) | st.integers(0, 6), max_size=20
    )
)
def test_frames_of_a_group_are_known_as_if_each_had_come_alone(drawn: list[tuple[int, bytes] | int]) -> None:
    identities = [guid(found) if isinstance(found, int) else frame(*found) for found in drawn]
    accepted: dict[Identity, FrameReceipt] = {
        identity: receipt(seq + 1) for seq, identity in enumerate(dict.fromkeys(identities))
    }
    together, alone = Rig(), Rig()
    together.dedup.remember_all(accepted)
    for identity, found in accepted.items():
        alone.dedup.remember(identity, found)
    for number in range(8):
        for identity in (guid(number), frame(number), frame(number, bytes(reversed(SLOT)))):
            assert together.dedup.find(identity) == alone.dedup.find(identity)
            asked = [PlainFrame("a", pa.schema([]), b"", 1, identity)]
            assert together.dedup.any_known(asked) == alone.dedup.any_known(asked)
            assert together.dedup.any_known(asked * 2)


def test_guid_is_known_until_its_window_ends() -> None:
    rig = Rig()
    rig.dedup.remember(guid(1), receipt(1))
    rig.clock.advance(299.999)
    assert rig.dedup.find(guid(1)) == as_duplicate(receipt(1))
    rig.clock.advance(0.001)
    assert rig.dedup.find(guid(1)) is None


def test_jump_of_the_wall_clock_forgets_no_guid() -> None:
    rig = Rig()
    rig.dedup.remember(guid(1), receipt(1))
    rig.clock.jump_wall(86400)
    assert rig.dedup.find(guid(1)) is not None


def test_age_at_start_counts_against_the_window() -> None:
    rig = Rig()
    rig.dedup.remember(guid(1), receipt(1), age_ns=4 * MINUTE)
    rig.dedup.remember(guid(2), receipt(2), age_ns=5 * MINUTE)
    rig.dedup.remember(guid(3), receipt(3), age_ns=-MINUTE)
    assert (rig.dedup.find(guid(1)), rig.dedup.find(guid(2))) == (as_duplicate(receipt(1)), None)
    rig.clock.advance(60)
    assert rig.dedup.find(guid(1)) is None
    rig.clock.advance(239)
    assert rig.dedup.find(guid(3)) is not None, "a time in the future counts as now"


@pytest.mark.guarantee("G11")
def test_more_guids_than_allowed_forget_the_oldest_and_count_it() -> None:
    rig = Rig(dedup_guids_max=3)
    for number in range(5):
        rig.dedup.remember(guid(number), receipt(number))
    assert rig.dedup.guid_count() == 3
    assert rig.dedup.guids_forgotten_early == 2
    assert [number for number in range(5) if rig.dedup.find(guid(number)) is not None] == [2, 3, 4]


@pytest.mark.guarantee("G3")
def test_guid_that_expired_and_came_again_is_the_youngest() -> None:
    rig = Rig(dedup_guids_max=2)
    rig.dedup.remember(guid(1), receipt(1))
    rig.clock.advance(200)
    rig.dedup.remember(guid(2), receipt(2))
    rig.clock.advance(101)
    rig.dedup.remember(guid(1), receipt(3))
    rig.dedup.remember(guid(3), receipt(4))
    assert rig.dedup.find(guid(1)) == as_duplicate(receipt(3)), "the older one had to go"
    assert rig.dedup.find(guid(2)) is None


def test_expired_guids_leave_memory_when_others_come() -> None:
    rig = Rig()
    for number in range(100):
        rig.dedup.remember(guid(number), receipt(number))
    rig.clock.advance(301)
    rig.dedup.remember(guid(1000), receipt(1))
    assert rig.dedup.guid_count() == 1
    assert rig.dedup.guids_forgotten_early == 0


def test_frames_without_identity_or_with_event_ids_are_not_known_here() -> None:
    rig = Rig()
    for identity in (None, EventIds("id")):
        rig.dedup.remember(identity, receipt(1))
        assert rig.dedup.find(identity) is None


def test_single_numbers_become_ranges() -> None:
    assert merge_ranges([5, 1, 2, 3, 9, 5]) == [(1, 3), (5, 5), (9, 9)]
    assert merge_ranges([]) == []


def slot(number: int) -> bytes:
    return number.to_bytes(16, "big")


def publication(segment_seq: int, slots: dict[bytes, list[tuple[int, int]]]) -> Publication:
    """A segment that holds these frames."""
    meta = SegmentMeta(
        store_id="00" * 16,
        channel="a",
        segment_seq=segment_seq,
        first_seq=segment_seq,
        last_seq=segment_seq,
        first_committed_id=segment_seq,
        last_committed_id=segment_seq,
        first_ingested_at_ns=0,
        last_ingested_at_ns=0,
        first_event_time_ns=None,
        last_event_time_ns=None,
        schema_hash="hash",
        rows=1,
    )
    segment = PublishedSegment(1, meta, False, 100, 0)
    return Publication(segment, CatalogChannel(1, "a", segment_seq + 1, b"schema"), slots, [])


def publish(rig: Rig, segment_seq: int, *slots: bytes) -> None:
    """What the sealer does: frame 1 of these slots is in a segment."""
    rig.catalog.publish([publication(segment_seq, {found: [(1, 1)] for found in slots})], wal_cursor=0)


@pytest.mark.guarantee("G3")
@pytest.mark.guarantee("G11")
def test_slots_in_memory_are_bounded_and_a_forgotten_one_is_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOTS_MAX", 4)
    monkeypatch.setattr(module, "RECENT_MAX", 1)
    rig = Rig()
    for number in range(1, 50):
        rig.dedup.remember(frame(1, slot(number)), receipt(number))
        publish(rig, number, slot(number))
        assert rig.dedup.slot_count() <= 6
    assert rig.dedup.needs_disk(frame(1, slot(1)))
    assert rig.dedup.any_known([PlainFrame("a", pa.schema([]), b"", 1, frame(1, slot(1)))])
    for number in range(1, 50):
        assert rig.dedup.find(frame(1, slot(number))) is not None
        assert rig.dedup.find(frame(2, slot(number))) is None
        assert rig.dedup.slot_count() <= 6


@pytest.mark.guarantee("G3")
def test_slot_with_a_frame_that_no_segment_has_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOTS_MAX", 2)
    rig = Rig()
    rig.dedup.remember(frame(1, slot(1)), receipt(1))
    publish(rig, 1, slot(1))
    rig.dedup.remember(frame(5, slot(1)), receipt(1))
    for number in range(2, 40):
        rig.dedup.remember(frame(1, slot(number)), receipt(number))
        publish(rig, number, slot(number))
    assert not rig.dedup.needs_disk(frame(5, slot(1))), "only memory knows it"
    assert rig.dedup.find(frame(5, slot(1))) is not None
    for number in range(2, 40):
        assert rig.dedup.find(frame(1, slot(number))) is not None


@pytest.mark.guarantee("G11")
def test_slots_that_are_only_asked_for_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOTS_MAX", 4)
    rig = Rig()
    for number in range(3):
        rig.dedup.remember(frame(1, slot(number)), receipt(number))  # in the tail
    for number in range(100, 300):
        assert rig.dedup.find(frame(1, slot(number))) is None
        assert rig.dedup.slot_count() <= 8


@pytest.mark.guarantee("G3")
@given(
    st.lists(
        st.tuples(st.sampled_from(["accept", "ask", "publish"]), st.integers(0, 7), st.integers(0, 3)), max_size=80
    )
)
def test_bound_on_slots_changes_no_answer(drawn: list[tuple[str, int, int]]) -> None:
    rig, accepted, waiting, segment = Rig(), set[SlotFrame](), set[SlotFrame](), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SLOTS_MAX", 2)
        patch.setattr(module, "RECENT_MAX", 2)
        for what, number, fsn in drawn:
            asked = frame(fsn, slot(number))
            if what == "publish" and waiting:
                segment += 1
                slots: dict[bytes, list[tuple[int, int]]] = {}
                for found in waiting:
                    slots.setdefault(found.slot_id, []).append((found.fsn, found.fsn))
                rig.catalog.publish([publication(segment, slots)], wal_cursor=0)
                waiting.clear()
            assert (rig.dedup.find(asked) is not None) == (asked in accepted)
            if what == "accept" and asked not in accepted:
                rig.dedup.remember(asked, receipt(1))
                accepted.add(asked)
                waiting.add(asked)
