"""Times in filters are compared to the microsecond, whatever they are."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, LessThanOrEqual

from holdfast.clock import wall_ns_of
from holdfast.spark.access import SegmentRef
from holdfast.spark.planning import Piece
from holdfast.spark.pruning import bounds_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.integers(-(2**63) // 1000 + 1, 2**63 // 1000 - 1).map(lambda us: (us, EPOCH + timedelta(microseconds=us)))


@example((1_092_193_371_282_039, datetime(2004, 8, 11, 3, 2, 51, 282039, tzinfo=UTC)), UTC)
@given(MOMENTS, ZONES)
def test_a_segment_with_an_event_at_the_very_time_of_a_filter_is_read(
    moment: tuple[int, datetime], zone: timezone
) -> None:
    us, time = moment[0], moment[1].astimezone(zone)
    assert wall_ns_of(time) == us * 1000
    at = us * 1000
    segment = SegmentRef(
        "t", 1, 1, 1, 10, 0, 1, at, first_ingested_at_ns=at, first_event_time_ns=at, last_event_time_ns=at
    )
    for column in ("at", "_ingested_at"):
        for item in (EqualTo((column,), time), GreaterThanOrEqual((column,), time), In((column,), (time,))):
            assert bounds_of([item], event_time="at").cut([Piece(segment, 1, 1)]), item
        assert bounds_of([LessThanOrEqual((column,), time)], event_time="at").cut([Piece(segment, 1, 1)])
