"""The ledger: what may be listed, and how far channels are durable."""

from __future__ import annotations

from holdfast.store.catalog import PublishedSegment
from holdfast.store.segments.metadata import SegmentMeta
from holdfast.tier.ledger import Ledger
from holdfast.tier.manifest import SegmentNote

NEVER = 10**9


def segment(number: int, channel: str, seqs: tuple[int, int], committed: tuple[int, int]) -> PublishedSegment:
    meta = SegmentMeta("00", channel, number, *seqs, *committed, 5, 5, None, None, "h", seqs[1] - seqs[0] + 1)
    return PublishedSegment(1, meta, False, 100, 7)


def note(item: PublishedSegment) -> SegmentNote:
    return SegmentNote(item.channel_id, "key", item.size_bytes, item.crc32c, "sha", item.has_guids, item.meta)


FIRST = segment(1, "a", (1, 10), (1, 10))
SECOND = segment(2, "a", (11, 20), (16, 25))
OTHER = segment(3, "b", (1, 5), (11, 15))


def test_nothing_is_listable_before_it_was_read_back() -> None:
    ledger = Ledger()
    ledger.add(FIRST, frame_start=FIRST.meta.first_committed_id)
    assert ledger.listable(NEVER) == []
    ledger.verify(note(FIRST))
    assert ledger.listable(NEVER) == [note(FIRST)]


def test_a_segment_waits_for_everything_committed_before_its_end() -> None:
    ledger = Ledger()
    for item in (FIRST, SECOND, OTHER):
        ledger.add(item, frame_start=item.meta.first_committed_id)
    ledger.verify(note(FIRST))
    ledger.verify(note(SECOND))
    assert ledger.listable(NEVER) == [note(FIRST)]
    ledger.verify(note(OTHER))
    assert ledger.listable(NEVER) == [note(FIRST), note(SECOND), note(OTHER)]


def test_a_frame_that_ends_in_an_unverified_segment_holds_its_beginning_back() -> None:
    ledger = Ledger()
    ledger.add(FIRST, frame_start=1)
    ledger.add(OTHER, frame_start=9)  # the frame that begins at 9 lies in both
    ledger.verify(note(FIRST))
    assert ledger.listable(NEVER) == []
    ledger.verify(note(OTHER))
    assert ledger.listable(NEVER) == [note(FIRST), note(OTHER)]


def test_segments_of_an_earlier_process_are_listed_together() -> None:
    ledger = Ledger()
    ledger.add(FIRST, frame_start=0)
    ledger.add(OTHER, frame_start=0)
    ledger.verify(note(FIRST))
    assert ledger.listable(NEVER) == []
    ledger.verify(note(OTHER))
    assert ledger.listable(NEVER) == [note(FIRST), note(OTHER)]


def test_events_that_are_in_no_segment_hold_later_ones_back() -> None:
    ledger = Ledger()
    ledger.add(SECOND, frame_start=SECOND.meta.first_committed_id)
    ledger.verify(note(SECOND))
    assert ledger.listable(committed_end=25) == []
    assert ledger.listable(committed_end=26) == [note(SECOND)]


def test_the_watermark_stops_before_the_first_segment_not_listed() -> None:
    ledger = Ledger()
    ledger.add(FIRST, frame_start=FIRST.meta.first_committed_id)
    ledger.add(SECOND, frame_start=SECOND.meta.first_committed_id)
    ledger.settle(note(FIRST))
    assert ledger.news() == {"a": 10}
    assert ledger.news() == {}
    ledger.settle(note(SECOND))
    assert ledger.news() == {"a": 20}


def test_a_segment_evicted_before_it_was_listed_holds_nothing_back() -> None:
    ledger = Ledger()
    ledger.add(FIRST, frame_start=FIRST.meta.first_committed_id)
    ledger.add(SECOND, frame_start=SECOND.meta.first_committed_id)
    ledger.forget(2)
    assert ledger.news() == {}
    ledger.settle(note(FIRST))
    assert ledger.news() == {"a": 20}


def test_a_copy_of_an_evicted_segment_is_handed_back_for_removal() -> None:
    ledger = Ledger()
    ledger.add(FIRST, frame_start=FIRST.meta.first_committed_id)
    assert ledger.forget(9) is None
    ledger.verify(note(FIRST))
    assert ledger.forget(1) == note(FIRST)
    assert ledger.pending == 0
