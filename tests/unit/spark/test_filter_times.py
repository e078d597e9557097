"""Times in filters are compared to the microsecond, whatever they are."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta, timezone

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, GreaterThanOrEqual, In, LessThan, LessThanOrEqual

from holdfast.clock import wall_ns_of
from holdfast.spark.access import SegmentRef
from holdfast.spark.planning import Piece
from holdfast.spark.pruning import bounds_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
MOMENTS = st.integers(-(2**63) // 1000 + 1, 2**63 // 1000 - 1).map(lambda us: (us, EPOCH + timedelta(microseconds=us)))


def segment_at(ns: int) -> SegmentRef:
    """One event that came in and happened then."""
    return SegmentRef(
        "t",
        1,
        first_seq=1,
        last_seq=1,
        size_bytes=10,
        crc32c=0,
        first_committed_id=1,
        last_ingested_at_ns=ns,
        first_ingested_at_ns=ns,
        first_event_time_ns=ns,
        last_event_time_ns=ns,
        event_time_column="at",
    )


@example((1_092_193_371_282_039, datetime(2004, 8, 11, 3, 2, 51, 282039, tzinfo=UTC)), UTC)
@given(MOMENTS, ZONES)
def test_a_segment_with_an_event_at_the_very_time_of_a_filter_is_read(
    moment: tuple[int, datetime], zone: timezone
) -> None:
    us, time = moment[0], moment[1].astimezone(zone)
    assert wall_ns_of(time) == us * 1000
    at = us * 1000
    segment = segment_at(at)
    for column in ("at", "_ingested_at"):
        for item in (EqualTo((column,), time), GreaterThanOrEqual((column,), time), In((column,), (time,))):
            assert bounds_of([item], event_time="at").cut([Piece(segment, 1, 1)]), item
        assert bounds_of([LessThanOrEqual((column,), time)], event_time="at").cut([Piece(segment, 1, 1)])


def passed_by(value: datetime | date, step: timedelta) -> Iterator[Filter]:
    """Filters that an event of this value passes."""
    yield from (EqualTo(("at",), value), In(("at",), (value,)))
    yield from (LessThanOrEqual(("at",), value), GreaterThanOrEqual(("at",), value))
    yield from (LessThan(("at",), value + step), GreaterThan(("at",), value - step))


@example(-1_999)
@example(-1)
@given(st.integers(-(10**18), 10**18))
def test_an_event_finer_than_a_microsecond_passes_as_spark_sees_it_also_before_1970(ns: int) -> None:
    cut = pc.CastOptions(target_type=pa.timestamp("us", "UTC"), allow_time_truncate=True)
    seen = pc.cast(pa.array([ns], pa.timestamp("ns", "UTC")), options=cut)[0].as_py()
    for item in passed_by(seen, timedelta(microseconds=1)):
        assert bounds_of([item], event_time="at").cut([Piece(segment_at(ns), 1, 1)]), item


@example(-1)
@given(st.integers(-(10**18), 10**18))
def test_a_time_that_is_read_as_a_date_passes_on_its_day(ns: int) -> None:
    cut = pc.CastOptions(target_type=pa.date32(), allow_time_truncate=True)
    seen = pc.cast(pa.array([ns], pa.timestamp("ns")), options=cut)[0].as_py()
    for item in passed_by(seen, timedelta(days=1)):
        assert bounds_of([item], event_time="at").cut([Piece(segment_at(ns), 1, 1)]), item
