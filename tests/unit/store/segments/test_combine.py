"""Joining batches: sizes, copies, order, and one dictionary per column whatever came in."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from holdfast.store.segments.combine import DEFAULT_SIZES, combine

LARGE_BYTES, BYTES_TARGET = DEFAULT_SIZES.large_bytes, DEFAULT_SIZES.bytes_target
ROWS_TARGET = DEFAULT_SIZES.rows_target


def rows_of(batches: list[pa.RecordBatch]) -> list[object]:
    return list(pa.Table.from_batches(batches).to_pylist())


def dictionary(indices: list[int | None], values: list[str | None], index_type: pa.DataType | None = None) -> pa.Array:
    return pa.DictionaryArray.from_arrays(pa.array(indices, index_type or pa.int8()), pa.array(values))


def combined(arrays: list[pa.Array]) -> tuple[list[pa.RecordBatch], pa.Table]:
    """The arrays as batches of one column, combined, with the rows they must still have."""
    batches = [pa.record_batch([array], ["x"]) for array in arrays]
    out = combine(batches, batches[0].schema)
    expected = [value for array in arrays for value in array.to_pylist()]
    assert [row["x"] for row in rows_of(out)] == expected  # type: ignore[index]
    for batch in out:
        batch.validate(full=True)
    return out, pa.Table.from_batches(out)


def test_small_batches_are_joined_by_rows() -> None:
    batches = [pa.record_batch({"x": np.arange(1000, dtype=np.int8) % 100}) for _ in range(200)]
    out = combine(batches, batches[0].schema)
    assert [batch.num_rows for batch in out] == [66_000, 66_000, 66_000, 2_000]
    assert all(batch.num_rows >= ROWS_TARGET for batch in out[:-1])


def test_small_batches_are_joined_by_bytes() -> None:
    batches = [pa.record_batch({"x": [b"y" * 100_000]}) for _ in range(25)]
    out = combine(batches, batches[0].schema)
    assert [batch.num_rows for batch in out] == [11, 11, 3]
    assert all(batch.nbytes >= BYTES_TARGET for batch in out[:-1])


def test_large_batches_are_passed_on_without_a_copy() -> None:
    large = pa.record_batch({"x": np.zeros(LARGE_BYTES // 8, np.int64)})
    small = pa.record_batch({"x": np.ones(3, np.int64)})
    out = combine([small, small, large, small, large, large], small.schema)
    assert [batch.num_rows for batch in out] == [6, large.num_rows, 3, large.num_rows, large.num_rows]
    assert out[1] is large


def test_a_small_slice_of_a_large_batch_is_small() -> None:
    whole = pa.record_batch({"x": np.arange(LARGE_BYTES, dtype=np.int64)})
    out = combine([whole.slice(i, 2) for i in range(0, 20, 2)], whole.schema)
    assert [batch.num_rows for batch in out] == [20]


def test_batches_without_rows_disappear() -> None:
    batch = pa.record_batch({"x": [1, 2]})
    assert combine([batch.slice(0, 0), batch, batch.slice(0, 0)], batch.schema) == [batch]


def large_batch(array: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([array, pa.array([b"y" * LARGE_BYTES] * len(array))], ["x", "pad"])


def test_dictionaries_of_all_batches_become_one() -> None:
    arrays = [dictionary([0, None], ["a"]), dictionary([0, 1], ["b", "c"]), dictionary([1, 0], ["c", "d"])]
    batches = [large_batch(array) for array in arrays]
    table = pa.Table.from_batches(combine(batches, batches[0].schema))
    assert table.column("x").to_pylist() == ["a", None, "b", "c", "d", "c"]
    dictionaries = [chunk.dictionary for chunk in table.column("x").chunks]
    assert len(dictionaries) == 3
    assert all(one.equals(other) for one, other in pairwise(dictionaries))
    pads = [chunk.buffers()[2].address for chunk in table.column("pad").chunks]
    assert pads == [batch.column("pad").buffers()[2].address for batch in batches], "other columns are not copied"


def test_a_dictionary_shared_by_all_batches_is_not_touched() -> None:
    batch = large_batch(dictionary([0, 1], ["b", "c"]))
    out = combine([batch, batch], batch.schema)
    assert out[0].column("x").indices.buffers()[1].address == batch.column("x").indices.buffers()[1].address


@pytest.mark.parametrize("count", [2, 3])
def test_an_index_too_narrow_for_all_values_becomes_wide(count: int) -> None:
    arrays = [dictionary(list(range(100)), [f"{k}-{i}" for i in range(100)]) for k in range(count)]
    _, table = combined(arrays)
    assert table.schema.field("x").type == pa.dictionary(pa.int32(), pa.string())


def test_an_index_too_narrow_inside_a_nested_column_becomes_wide() -> None:
    arrays = [dictionary(list(range(100)), [f"{k}-{i}" for i in range(100)]) for k in range(3)]
    lists = [pa.ListArray.from_arrays(pa.array([0, 50, 100], pa.int32()), array) for array in arrays]
    fields = [pa.field("d", arrays[0].type), pa.field("l", lists[0].type)]
    structs = [pa.StructArray.from_arrays([a[:2], b], fields=fields) for a, b in zip(arrays, lists, strict=True)]
    wide = pa.dictionary(pa.int32(), pa.string())
    _, table = combined(structs)
    assert table.schema.field("x").type == pa.struct([("d", wide), ("l", pa.list_(wide))])


def test_a_null_inside_a_dictionary_becomes_a_null_index() -> None:
    arrays = [dictionary([0, 1, 2, None], ["a", None, "b"]), dictionary([0, 1], [None, "c"])]
    _, table = combined(arrays)
    assert table.column("x").null_count == 3
    assert all(chunk.dictionary.null_count == 0 for chunk in table.column("x").chunks)


def test_a_widened_required_column_stays_required() -> None:
    field = pa.field("x", pa.dictionary(pa.int8(), pa.string()), nullable=False, metadata={"k": "v"})
    schema = pa.schema([field], metadata={"s": "t"})
    arrays = [dictionary(list(range(100)), [f"{k}-{i}" for i in range(100)]) for k in range(2)]
    out = combine([pa.RecordBatch.from_arrays([array], schema=schema) for array in arrays], schema)
    expected = field.with_type(pa.dictionary(pa.int32(), pa.string()))
    assert out[0].schema.equals(pa.schema([expected], metadata={"s": "t"}), check_metadata=True)


def test_values_that_appear_twice_in_a_dictionary_stay_right() -> None:
    combined([dictionary([0, 1, 2], ["a", "a", "b"]), dictionary([1, 0], ["b", "c"])])
