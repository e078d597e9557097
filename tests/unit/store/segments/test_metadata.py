"""What a segment says of itself, and how event times are found."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest

from holdfast.store.segments.metadata import FORMAT_VERSION, SegmentMeta, event_time_range, time_column

META = SegmentMeta("ab" * 16, "trades", 7, 101, 103, 500, 510, 1_000, 2_000, None, None, "cd" * 16, 3)
DAY_NS = 86_400 * 10**9


TIMED = replace(META, first_event_time_ns=-5, last_event_time_ns=0, event_time_column="at", signal="logs")


@pytest.mark.parametrize("meta", [META, TIMED])
def test_metadata_comes_back_from_the_footer_unchanged(meta: SegmentMeta) -> None:
    entries = meta.to_footer()
    assert entries["holdfast.format"] == str(FORMAT_VERSION)
    assert SegmentMeta.from_footer({"other.key": "x", **entries}) == meta


@pytest.mark.parametrize("name", ["store_id", "channel", "segment_seq", "first_seq", "schema_hash", "rows", "signal"])
def test_a_missing_footer_entry_raises_value_error_by_name(name: str) -> None:
    entries = META.to_footer()
    del entries[f"holdfast.{name}"]
    with pytest.raises(ValueError, match=f"holdfast.{name} is missing"):
        SegmentMeta.from_footer(entries)


@pytest.mark.parametrize(("key", "value"), [("rows", "x"), ("rows", "4"), ("rows", "0"), ("last_seq", "1")])
def test_footer_entries_that_contradict_raise_value_error(key: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"rows|invalid literal"):
        SegmentMeta.from_footer(META.to_footer() | {f"holdfast.{key}": value})


@pytest.mark.parametrize(
    ("values", "data_type", "expected"),
    [
        ([3, None, 1, 2], pa.timestamp("ns"), (1, 3)),
        ([3, 1], pa.timestamp("s", "UTC"), (10**9, 3 * 10**9)),
        ([3, -1], pa.timestamp("ms"), (-(10**6), 3 * 10**6)),
        ([date(1970, 1, 3), date(1970, 1, 2)], pa.date32(), (DAY_NS, 2 * DAY_NS)),
        ([datetime(1970, 1, 2, tzinfo=UTC)], pa.date64(), (DAY_NS, DAY_NS)),
        ([30, 20], pa.int64(), (20, 30)),
        ([30, 20], pa.uint8(), (20, 30)),
        ([2**64 - 1, 0], pa.uint64(), (0, 2**63 - 1)),
        ([-(2**62), 2**62], pa.timestamp("s"), (-(2**63), 2**63 - 1)),
        ([None, None], pa.timestamp("ns"), (None, None)),
        (["2020-01-01"], pa.string(), (None, None)),
        ([1.5], pa.float64(), (None, None)),
    ],
    ids=str,
)
def test_event_times_are_found_in_nanoseconds(values: list[Any], data_type: pa.DataType, expected: object) -> None:
    batches = [pa.record_batch([pa.array([value], data_type)], ["t"]) for value in values]
    assert event_time_range(batches, "t") == expected
    assert event_time_range([pa.record_batch([pa.array(values, data_type)], ["t"])], "t") == expected


def test_without_the_column_there_are_no_event_times() -> None:
    assert event_time_range([pa.record_batch({"a": [1]})], "t") == (None, None)
    assert event_time_range([], "t") == (None, None)


def test_only_a_column_of_times_is_named_as_that_of_the_range() -> None:
    kinds = {"at": pa.timestamp("ns"), "day": pa.date32(), "n": pa.int64(), "text": pa.string()}
    schema = pa.schema(list(kinds.items()))
    assert [time_column(schema, name) for name in (*kinds, "none", "")] == ["at", "day", None, None, None, None]
