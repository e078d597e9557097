"""Plans of the source that were made before segments were put together."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Store
from holdfast.errors import EventsGone
from holdfast.spark.access import SegmentRef
from holdfast.spark.admission import admit
from holdfast.spark.options import Limits
from holdfast.store.compaction import compact
from tests.spark.stores import batch_of, between, made, stream_of


@pytest.mark.guarantee("G8")
def test_a_plan_from_before_a_compaction_reads_each_event_once(tmp_path: Path) -> None:
    options = made(tmp_path, segments=5, events=10)
    reader = batch_of({**options, "startingOffsets": '{"t": 5}'})
    tasks = reader.partitions()
    with Store.open(tmp_path) as store:
        assert compact(store, "t").segments_before == 5
    found = [n for task in tasks for part in reader.read(task) for n in part.column("n").to_pylist()]
    assert found == list(range(5, 51))


@pytest.mark.guarantee("G8")
def test_a_batch_of_a_stream_is_the_same_after_a_compaction(tmp_path: Path) -> None:
    reader = stream_of(made(tmp_path, segments=5, events=10))
    before = between(reader, {"t": 13}, {"t": 38})
    with Store.open(tmp_path) as store:
        compact(store, "t")
    assert between(reader, {"t": 13}, {"t": 38}) == before == list(range(13, 38))


def test_a_file_that_is_gone_without_a_compaction_is_still_lost(tmp_path: Path) -> None:
    reader = batch_of(made(tmp_path, segments=2, events=10))
    tasks = reader.partitions()
    (tmp_path / "channels" / "t" / "seg-2.arrow").unlink()
    with pytest.raises(EventsGone, match=r"events 11\.\.20"):
        [list(reader.read(task)) for task in tasks]


def test_events_that_two_pages_list_are_taken_once() -> None:
    def ref(number: int, first: int, last: int) -> SegmentRef:
        return SegmentRef("t", number, first, last, 100, 0, first, 0)

    overlapping = [ref(1, 1, 10), ref(9, 1, 30), ref(2, 11, 20)]
    limits = Limits(events=25, size_bytes=0, segments=0)
    assert admit({"t": 1}, {"t": 31}, limits, segments=lambda _channel, _seq: overlapping) == {"t": 26}
