"""A batch as slices of a bounded size: the same rows in the same order, and no more bytes than they need."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.store.slicing import in_slices, stored_bytes

LIMIT = 16 << 10


def slices_of(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    found = list(in_slices(batch, bytes_max=LIMIT))
    for part in found:
        part.validate(full=True)
        assert part.schema == batch.schema
    rows = [row for part in found for row in part.to_pylist()]
    assert rows == batch.to_pylist()
    return found


def test_batch_that_fits_is_not_touched() -> None:
    batch = pa.record_batch({"n": list(range(1000))})
    assert slices_of(batch) == [batch]


@pytest.mark.parametrize(
    "column",
    [
        pa.array(range(20_000), pa.int64()),
        pa.array([n % 3 == 0 for n in range(500_000)]),
        pa.array([None if n % 5 == 0 else f"text {n}" for n in range(5_000)]),
        pa.array([[n] * (n % 4) for n in range(5_000)]),
        pa.array([{"a": n, "b": str(n)} for n in range(5_000)]),
    ],
    ids=lambda column: str(column.type),
)
def test_every_slice_is_within_the_bound_and_few_are_small(column: pa.Array) -> None:
    batch = pa.record_batch({"c": column})
    parts = slices_of(batch)
    assert max(map(stored_bytes, parts)) <= LIMIT
    assert len(parts) <= 2 + 2 * stored_bytes(batch) // LIMIT


def test_rows_of_very_different_size_are_halved_until_they_fit() -> None:
    texts = ["x" * (9_000 if n >= 990 else 1) for n in range(1_000)]
    assert max(map(stored_bytes, slices_of(pa.record_batch({"c": texts})))) <= LIMIT


def test_row_that_is_larger_than_a_slice_stands_alone() -> None:
    parts = slices_of(pa.record_batch({"c": ["a", "x" * 100_000, "b"]}))
    assert max([part.num_rows for part in parts if stored_bytes(part) > LIMIT]) == 1


@pytest.mark.parametrize("with_nulls", [False, True])
def test_large_dictionary_is_cut_down_to_what_each_slice_uses(with_nulls: bool) -> None:
    words = pa.array([f"a word that stands once {n}" for n in range(4_000)])
    mask = np.arange(4_000) % 7 == 0 if with_nulls else None
    indices = pa.array(np.arange(4_000, dtype=np.int32)[::-1].copy(), mask=mask)
    batch = pa.record_batch({"c": pa.DictionaryArray.from_arrays(indices, words)})
    parts = slices_of(batch)
    assert max(map(stored_bytes, parts)) <= LIMIT
    assert sum(map(stored_bytes, parts)) < 2 * stored_bytes(batch)


def test_small_dictionary_is_repeated_as_it_is() -> None:
    batch = pa.record_batch({"c": pa.array([str(n % 3) for n in range(20_000)]).dictionary_encode()})
    assert {tuple(part.column(0).dictionary.to_pylist()) for part in slices_of(batch)} == {("0", "1", "2")}


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
def test_slices_of_views_keep_only_what_they_point_to(kind: pa.DataType) -> None:
    texts = pa.array([None if n % 5 == 0 else f"{n} " + "x" * 200 for n in range(2_000)], pa.string())
    batch = pa.record_batch({"c": texts.cast(pa.binary()).cast(kind) if kind == pa.binary_view() else texts.cast(kind)})
    parts = slices_of(batch)
    assert max(map(stored_bytes, parts)) <= LIMIT
    assert sum(map(stored_bytes, parts)) < 2 * stored_bytes(batch)
