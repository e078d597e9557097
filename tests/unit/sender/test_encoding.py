"""From what producers hand over to Arrow, and from Arrow to frames of a bounded size."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadRequest, FrameTooLarge, InvalidBatch, SchemaMismatch
from holdfast.model.frame import Entry
from holdfast.sender.encoding import (
    FRAME_BYTES_GOOD,
    ArrowEncoder,
    QwpEncoder,
    frames,
    time_us,
    to_batches,
    with_time,
)
from holdfast.sender.pending import CONVERTED_ROWS_MIN, Pending
from holdfast.sender.rows import AT_TYPE, RowShape, kind_of, size_of, size_of_batch
from holdfast.sender.segment import FRAME_HEADER_BYTES, HEADER_BYTES, OVERHEAD_BYTES
from holdfast.wire import hfa
from holdfast.wire.limits import FrameLimits

SLOT = bytes(range(1, 17))
SEGMENT_BYTES = 4 << 20
PLACE = ("t", ())
NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


def batch_of(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Rows through everything that rows go through."""
    pending = Pending()
    for row in rows:
        pending.add_rows(PLACE, [row])
    (entry,) = pending.entries()
    return entry.batch


# --- rows -----------------------------------------------------------------------------------------------------------


def test_rows_become_columns_with_fixed_types() -> None:
    row = {
        "i": 1,
        "f": 2.5,
        "t": "x",
        "b": True,
        "raw": b"\0",
        "day": dt.date(2026, 1, 1),
        "at": NOON,
        "naive": dt.datetime(2026, 1, 1),
        "took": dt.timedelta(seconds=1),
        "clock": dt.time(12),
        "none": None,
    }
    batch = batch_of(row, row)
    assert dict(zip(batch.schema.names, map(str, batch.schema.types), strict=True)) == {
        "i": "int64",
        "f": "double",
        "t": "string",
        "b": "bool",
        "raw": "binary",
        "day": "date32[day]",
        "at": "timestamp[us, tz=UTC]",
        "naive": "timestamp[us]",
        "took": "duration[us]",
        "clock": "time64[ns]",
        "none": "null",
    }
    assert batch.to_pylist() == [row, row]


def test_missing_and_new_columns_are_null_elsewhere() -> None:
    assert batch_of({"a": 1}, {"b": "x"}, {"a": 2, "b": "y", "c": None}).to_pylist() == [
        {"a": 1, "b": None, "c": None},
        {"a": None, "b": "x", "c": None},
        {"a": 2, "b": "y", "c": None},
    ]


def test_whole_numbers_and_fractions_become_fractions() -> None:
    batch = batch_of({"a": 1}, {"a": 2.5}, {"a": 3})
    assert batch.schema.field("a").type == pa.float64()
    assert batch.column("a").to_pylist() == [1.0, 2.5, 3.0]


def test_lists_dicts_and_decimals_take_their_type_from_values() -> None:
    rows = [{"l": [1, 2], "d": {"k": "v"}, "m": Decimal("1.50")}, {"l": [], "d": {"k": None}, "m": Decimal("22.5")}]
    assert batch_of(*rows).to_pylist() == [rows[0], {**rows[1], "m": Decimal("22.50")}]


def test_numpy_scalars_count_as_what_they_hold() -> None:
    assert kind_of(np.int32(1)) == kind_of(1)
    assert kind_of(np.float32(1)) == kind_of(1.0)
    assert kind_of(np.bool_(True)) == kind_of(True)
    assert batch_of({"a": np.int64(3)}, {"a": 4}).column("a").to_pylist() == [3, 4]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (1, "x"),
        (True, 1),
        (1.5, True),
        ("x", b"x"),
        (dt.date(2026, 1, 1), dt.datetime(2026, 1, 1)),
        (dt.datetime(2026, 1, 1), NOON),
        ([1], {"a": 1}),
        (Decimal(1), 1.0),
    ],
)
def test_clashing_types_are_refused_by_the_call_that_brings_them(first: object, second: object) -> None:
    pending = Pending()
    pending.add_rows(PLACE, [{"ok": 1, "a": first}])
    with pytest.raises(SchemaMismatch) as caught:
        pending.add_rows(PLACE, [{"ok": 2, "a": second}])
    error = caught.value
    assert (error.channel, error.column, error.expected, error.found) == ("t", "a", kind_of(first), kind_of(second))
    assert "row 1" in str(error)
    assert pending.rows == 1
    pending.add_rows(PLACE, [{"ok": 3, "a": first}])
    assert pending.entries()[0].batch.column("ok").to_pylist() == [1, 3]


def test_clash_inside_a_list_takes_none_of_its_rows() -> None:
    pending = Pending()
    pending.add_rows(PLACE, [{"a": 1}])
    with pytest.raises(SchemaMismatch, match="row 3"):
        pending.add_rows(PLACE, [{"a": 2}, {"new": 1}, {"a": "x"}])
    assert pending.rows == 1
    assert pending.entries()[0].batch.schema.names == ["a"]


def test_next_batch_may_have_other_types() -> None:
    pending = Pending()
    pending.add_rows(PLACE, [{"a": 1}])
    pending.entries()
    pending.clear()
    pending.add_rows(PLACE, [{"a": "x"}])
    assert pending.entries()[0].batch.to_pylist() == [{"a": "x"}]


def test_value_that_arrow_cannot_take_names_column_and_row() -> None:
    pending = Pending()
    pending.add_rows(PLACE, [{"a": 1}, {"a": 2**70}])
    with pytest.raises(InvalidBatch, match="column 'a', row 1"):
        pending.entries()
    assert pending.rows == 2
    assert pending.take("t") == [{"a": 1}, {"a": 2**70}]
    assert (pending.rows, pending.size_bytes) == (0, 0)


@pytest.mark.parametrize("row", [{}, {1: 2}])
def test_rows_without_named_columns_are_refused(row: dict[Any, Any]) -> None:
    with pytest.raises(InvalidBatch):
        Pending().add_rows(PLACE, [row])


def test_caller_may_change_a_row_after_it_was_taken() -> None:
    pending = Pending()
    row: dict[str, Any] = {"a": 1, "l": [1]}
    pending.add_rows(PLACE, [row])
    row["a"] = 2
    row["l"].append(9)
    assert pending.entries()[0].batch.to_pylist() == [{"a": 1, "l": [1]}]


def test_rows_and_batches_of_a_channel_keep_their_order() -> None:
    pending = Pending()
    pending.add_rows(PLACE, [{"n": 0}])
    pending.add_batches(PLACE, [pa.record_batch({"n": [1, 2]})])
    pending.add_rows(PLACE, [{"n": 3}])
    pending.add_rows(PLACE, [{"n": n} for n in range(4, 4 + CONVERTED_ROWS_MIN)])
    values = [value for entry in pending.entries() for value in entry.batch.column("n").to_pylist()]
    assert values == list(range(4 + CONVERTED_ROWS_MIN))


def test_what_found_no_room_goes_before_what_came_since() -> None:
    pending = Pending()
    pending.add_rows(PLACE, [{"n": 9}])
    pending.restore([Entry("t", pa.record_batch({"n": [7, 8]}))])
    values = [value for entry in pending.entries() for value in entry.batch.column("n").to_pylist()]
    assert values == [7, 8, 9]
    assert pending.rows == 3


@given(
    st.lists(
        st.dictionaries(st.sampled_from("abcd"), st.none() | st.integers(-(2**63), 2**63 - 1), min_size=1), min_size=1
    )
)
def test_any_rows_of_whole_numbers_come_back_as_they_went(rows: list[dict[str, int | None]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    assert batch_of(*rows).to_pylist() == [{name: row.get(name) for name in names} for row in rows]


def test_size_of_a_row_counts_texts_and_nested_values() -> None:
    assert size_of({"a": 1, "b": "x" * 100}) >= 100
    assert size_of({"a": ["x" * 100, {"k": b"y" * 100}]}) >= 200


def test_shape_is_learnt_once_per_combination_of_types() -> None:
    shape = RowShape("t")
    shape.check([{"a": 1, "b": "x"}], place=0)
    schema = shape.batch([{"a": 1, "b": "x"}]).schema
    shape.check([{"a": 2, "b": "y"}], place=1)
    assert shape.batch([{"a": 2, "b": "y"}]).schema is schema or shape.batch([{"a": 2, "b": "y"}]).schema == schema


# --- other data -----------------------------------------------------------------------------------------------------


class OffersArray:
    """Something that only offers the Arrow C array interface."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return pa.record_batch({"n": [1, 2]}).__arrow_c_array__(requested_schema)


class OffersStream:
    """Something that only offers the Arrow C stream interface."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.table({"n": [1, 2]}).__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "data",
    [
        pa.record_batch({"n": [1, 2]}),
        pa.table({"n": [1, 2]}),
        pa.concat_tables([pa.table({"n": [1]}), pa.table({"n": [2]})]),
        pl.DataFrame({"n": [1, 2]}),
        OffersArray(),
        OffersStream(),
    ],
    ids=["batch", "table", "chunks", "polars", "c-array", "c-stream"],
)
def test_every_kind_of_data_becomes_batches(data: object) -> None:
    values = [value for batch in to_batches("t", data) for value in batch.column("n").to_pylist()]
    assert values == [1, 2]


def test_pandas_frames_become_batches_without_metadata() -> None:
    pandas = pytest.importorskip("pandas")
    (batch,) = to_batches("t", pandas.DataFrame({"n": [1, 2], "s": ["a", None]}))
    assert batch.schema.metadata is None
    assert batch.column("n").to_pylist() == [1, 2]


@pytest.mark.parametrize("data", ["text", 7, object(), {1, 2}])
def test_other_objects_are_refused_with_what_is_allowed(data: object) -> None:
    with pytest.raises(InvalidBatch, match="__arrow_c_stream__"):
        to_batches("t", data)


def test_time_of_events_becomes_a_column() -> None:
    batch = with_time("t", pa.record_batch({"n": [1, 2]}), time_us(NOON))
    assert batch.schema.field("timestamp").type == AT_TYPE
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [time_us(NOON)] * 2


def test_time_is_kept_to_the_microsecond_or_refused() -> None:
    assert time_us(1_234_567_890_123_456_789) == 1_234_567_890_123_456
    assert time_us(dt.datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=dt.UTC)) == 1_000_005
    with pytest.raises(BadRequest, match="time zone"):
        time_us(dt.datetime(2026, 1, 1))
    with pytest.raises(BadRequest):
        time_us("now")  # type: ignore[arg-type]


def test_time_beside_a_column_of_that_name_is_refused() -> None:
    with pytest.raises(InvalidBatch, match="timestamp"):
        with_time("t", pa.record_batch({"timestamp": [1]}), 1)


# --- frames ---------------------------------------------------------------------------------------------------------


def decoded(parts: list[Any]) -> hfa.HfaFrame:
    return hfa.decode(b"".join(parts), FrameLimits())


@given(
    sizes=st.lists(st.lists(st.integers(0, 300), min_size=1, max_size=40), min_size=1, max_size=6),
    room=st.integers(1_500, 6_000),
)
def test_frames_hold_everything_in_order_within_their_room(sizes: list[list[int]], room: int) -> None:
    numbers = iter(range(10_000))
    entries = [
        Entry(
            f"c{place % 2}", pa.record_batch({"n": [next(numbers) for _ in rows], "pad": ["x" * size for size in rows]})
        )
        for place, rows in enumerate(sizes)
    ]
    expected: dict[str, list[int]] = {}
    for entry in entries:
        expected.setdefault(entry.channel, []).extend(entry.batch.column("n").to_pylist())
    found: dict[str, list[int]] = {}
    for _, parts in frames(entries, ArrowEncoder(SLOT).encode, room):
        assert sum(memoryview(part).nbytes for part in parts) <= room
        for entry in decoded(parts).entries:
            found.setdefault(entry.channel, []).extend(entry.batch.column("n").to_pylist())
    assert found == expected


def test_large_data_become_good_frames_of_which_four_fill_a_segment() -> None:
    batch = pa.record_batch({"n": range(6000), "pad": ["x" * 1000] * 6000})
    sizes, numbers = [], []
    for _, parts in frames([Entry("t", batch)], ArrowEncoder(SLOT).encode, SEGMENT_BYTES - OVERHEAD_BYTES):
        sizes.append(sum(memoryview(part).nbytes for part in parts))
        numbers += decoded(parts).entries[0].batch.column("n").to_pylist()
    assert numbers == list(range(6000))
    assert max(sizes) <= FRAME_BYTES_GOOD
    assert min(sizes) > FRAME_BYTES_GOOD // 2
    assert 4 * (FRAME_HEADER_BYTES + FRAME_BYTES_GOOD) + HEADER_BYTES <= SEGMENT_BYTES


def test_one_row_may_fill_a_frame_up_to_its_limit() -> None:
    rows = [Entry("t", pa.record_batch({"pad": ["x" * 3_000_000]})), Entry("t", pa.record_batch({"pad": ["y"]}))]
    found = [group for group, _ in frames(rows, ArrowEncoder(SLOT).encode, SEGMENT_BYTES - OVERHEAD_BYTES)]
    assert [len(group) for group in found] == [1, 1]


@pytest.mark.parametrize("rows", [1, 3, 4000])
def test_size_of_a_slice_is_what_it_shows(rows: int) -> None:
    whole = pa.record_batch({"n": range(10_000), "pad": ["x" * 100] * 10_000})
    assert size_of_batch(whole.slice(5000, rows)) == pytest.approx(rows * 112, rel=0.1)
    assert size_of_batch(pa.record_batch({"n": [1]})) <= 64


def test_one_row_that_no_frame_holds_is_refused() -> None:
    entry = Entry("t", pa.record_batch({"pad": ["x" * 10_000]}))
    with pytest.raises(FrameTooLarge):
        list(frames([entry], ArrowEncoder(SLOT).encode, 5_000))


def test_frames_are_stamped_in_their_first_part() -> None:
    encoder = ArrowEncoder(SLOT)
    parts = encoder.encode([Entry("t", pa.record_batch({"n": [1]}))])
    assert encoder.stamp is not None
    encoder.stamp(memoryview(parts[0]), 77)
    frame = decoded(parts)
    assert (frame.slot_id, frame.fsn) == (SLOT, 77)


def test_partitions_have_no_form_in_qwp() -> None:
    with pytest.raises(InvalidBatch, match="partitions"):
        QwpEncoder().encode([Entry("t", pa.record_batch({"n": [1]}), ("p",))])


def test_columns_without_a_type_are_left_out_in_qwp() -> None:
    batch = pa.record_batch({"n": [1], "nothing": pa.nulls(1)})
    assert QwpEncoder().encode([Entry("t", batch)]) == QwpEncoder().encode([Entry("t", batch.select(["n"]))])
