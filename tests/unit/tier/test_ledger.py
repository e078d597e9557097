"""The ledger: what may be listed, and how far channels are durable."""

from __future__ import annotations

from holdfast.store.catalog import PublishedSegment
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.store.units import UNKNOWN_BOUNDS, FrameBounds
from holdfast.tier.ledger import Ledger
from holdfast.tier.manifest import SegmentNote

NEVER = 10**9


def segment(number: int, channel: str, seqs: tuple[int, int], committed: tuple[int, int]) -> PublishedSegment:
    meta = SegmentMeta("00", channel, number, *seqs, *committed, 5, 5, None, None, "h", seqs[1] - seqs[0] + 1)
    return PublishedSegment(1, meta, False, 100, 7)


def note(item: PublishedSegment) -> SegmentNote:
    return SegmentNote(item.channel_id, "key", item.size_bytes, item.crc32c, "sha", item.has_guids, item.meta)


def whole(item: PublishedSegment) -> FrameBounds:
    """No frame of the segment has parts elsewhere."""
    return FrameBounds(item.meta.first_committed_id, None)


def listable(ledger: Ledger, committed_end: int) -> list[SegmentNote]:
    return ledger.listable(ledger.border(committed_end))


FIRST = segment(1, "a", (1, 10), (1, 10))
SECOND = segment(2, "a", (11, 20), (16, 25))
OTHER = segment(3, "b", (1, 5), (11, 15))


def test_nothing_is_listable_before_it_was_read_back() -> None:
    ledger = Ledger()
    ledger.add(FIRST, whole(FIRST))
    assert listable(ledger, NEVER) == []
    ledger.verify(note(FIRST))
    assert listable(ledger, NEVER) == [note(FIRST)]


def test_a_segment_waits_for_everything_committed_before_its_end() -> None:
    ledger = Ledger()
    for item in (FIRST, SECOND, OTHER):
        ledger.add(item, whole(item))
    ledger.verify(note(FIRST))
    ledger.verify(note(SECOND))
    assert listable(ledger, NEVER) == [note(FIRST)]
    ledger.verify(note(OTHER))
    assert listable(ledger, NEVER) == [note(FIRST), note(SECOND), note(OTHER)]


def test_a_frame_that_ends_in_an_unverified_segment_holds_its_beginning_back() -> None:
    ledger = Ledger()
    ledger.add(FIRST, FrameBounds(1, 9))
    ledger.add(OTHER, FrameBounds(9, 9))  # the frame that begins at 9 lies in both
    ledger.verify(note(FIRST))
    assert listable(ledger, NEVER) == []
    ledger.verify(note(OTHER))
    assert listable(ledger, NEVER) == [note(FIRST), note(OTHER)]


def test_segments_of_an_earlier_process_are_listed_together() -> None:
    ledger = Ledger()
    ledger.add(FIRST, UNKNOWN_BOUNDS)
    ledger.add(OTHER, UNKNOWN_BOUNDS)
    ledger.verify(note(FIRST))
    assert listable(ledger, NEVER) == []
    ledger.verify(note(OTHER))
    assert listable(ledger, NEVER) == [note(FIRST), note(OTHER)]


def test_events_that_are_in_no_segment_hold_later_ones_back() -> None:
    ledger = Ledger()
    ledger.add(SECOND, whole(SECOND))
    ledger.verify(note(SECOND))
    assert listable(ledger, 25) == []
    assert listable(ledger, 26) == [note(SECOND)]


def test_the_watermark_stops_before_the_first_segment_not_listed() -> None:
    ledger = Ledger()
    ledger.add(FIRST, whole(FIRST))
    ledger.add(SECOND, whole(SECOND))
    ledger.settle(note(FIRST))
    assert ledger.news() == {"a": 10}
    assert ledger.news() == {}
    ledger.settle(note(SECOND))
    assert ledger.news() == {"a": 20}


def test_a_segment_that_has_to_wait_holds_back_what_shares_frames_with_it() -> None:
    """Else one part of a frame would be listed and the other not, and a wipe would lose it."""
    ledger = Ledger()
    long = segment(4, "b", (1, 30), (3, 40))
    for item, shared in ((FIRST, 1), (long, 1), (segment(5, "c", (1, 1), (50, 50)), None)):
        ledger.add(item, FrameBounds(item.meta.first_committed_id, shared))
        ledger.verify(note(item))
    assert listable(ledger, 20) == []
    assert ledger.is_tied
    assert listable(ledger, 41) == [note(FIRST), note(long)]
    assert not ledger.is_tied


def test_a_segment_that_has_to_wait_holds_back_through_others() -> None:
    ledger = Ledger()
    for item, shared in ((FIRST, 8), (OTHER, 8), (segment(4, "c", (1, 9), (14, 22)), 14)):
        ledger.add(item, FrameBounds(item.meta.first_committed_id, shared))
        ledger.verify(note(item))
    assert listable(ledger, 20) == []
    assert listable(ledger, 23) == [note(FIRST), note(OTHER), *listable(ledger, 23)[2:]]


def test_a_segment_of_whole_frames_that_has_to_wait_holds_nothing_back() -> None:
    ledger = Ledger()
    long = segment(4, "b", (1, 30), (3, 40))
    for item in (FIRST, long):
        ledger.add(item, whole(item))
        ledger.verify(note(item))
    assert listable(ledger, 20) == [note(FIRST)]


SLOTS = {"aa": [(3, 7)]}


def test_a_segment_evicted_before_it_was_listed_is_passed_with_its_frames() -> None:
    ledger = Ledger()
    ledger.add(FIRST, whole(FIRST))
    ledger.add(SECOND, whole(SECOND))
    ledger.forget(2, SLOTS)
    ledger.settle(note(FIRST))
    assert ledger.news() == {"a": 10}
    assert ledger.passable(ledger.border(25)) == {}
    assert ledger.passable(ledger.border(26)) == {2: SLOTS}
    ledger.let_go(2)
    assert ledger.news() == {"a": 20}
    assert ledger.pending == 0


def test_an_evicted_part_of_a_frame_is_passed_together_with_the_others() -> None:
    ledger = Ledger()
    ledger.add(FIRST, FrameBounds(1, 9))
    ledger.add(OTHER, FrameBounds(9, 9))
    ledger.forget(1, SLOTS)
    assert ledger.passable(ledger.border(NEVER)) == {}
    ledger.verify(note(OTHER))
    assert ledger.passable(ledger.border(NEVER)) == {1: SLOTS}


def test_a_copy_of_an_evicted_segment_is_handed_back_for_removal() -> None:
    ledger = Ledger()
    ledger.add(FIRST, whole(FIRST))
    ledger.verify(note(FIRST))
    assert ledger.forget(1, SLOTS) == note(FIRST)
    ledger.verify(note(FIRST))
    assert listable(ledger, NEVER) == []
