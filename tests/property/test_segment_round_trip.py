"""Any batches, combined, written and read back by any range and projection, are the events that went in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.disk.filesystem import Mode
from holdfast.model.schema import BatchLimits, check_batch, check_schema
from holdfast.store.segments.combine import SegmentSizes
from holdfast.store.segments.reader import SegmentReader
from holdfast.store.segments.writer import Compression, write_segment
from tests.unit.store.segments.samples import FIRST_SEQ, disk, meta_of, runs_of

LIMITS = BatchLimits(rows_max=1000, bytes_max=1 << 20)


@dataclass(frozen=True)
class Kind:
    """A type and the values it takes; for a dictionary, the values are those of its dictionary."""

    data_type: pa.DataType
    values: st.SearchStrategy[Any]


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TINY_TEXT = st.sampled_from([f"v{i}" for i in range(300)])  # more than an index of 8 bits can hold

FLAT = [
    Kind(pa.null(), st.none()),
    Kind(pa.bool_(), st.booleans()),
    Kind(pa.int8(), st.integers(-128, 127)),
    Kind(pa.uint64(), st.integers(0, 2**64 - 1)),
    Kind(pa.float64(), st.floats(allow_nan=False)),
    Kind(pa.decimal128(20, 3), st.decimals(-(10**15), 10**15, places=3)),
    Kind(pa.timestamp("ms", "UTC"), st.integers(0, 10**12)),
    Kind(pa.date32(), st.dates()),
    Kind(pa.string(), TEXT),
    Kind(pa.large_string(), TEXT),
    Kind(pa.string_view(), TEXT),
    Kind(pa.binary(), st.binary(max_size=20)),
    Kind(pa.binary(3), st.binary(min_size=3, max_size=3)),
    Kind(pa.dictionary(pa.int8(), pa.string()), TINY_TEXT),
    Kind(pa.dictionary(pa.int32(), pa.int64()), st.integers(0, 5)),
]


def nested(inner: st.SearchStrategy[Kind]) -> st.SearchStrategy[Kind]:
    return st.one_of(
        inner.map(lambda kind: Kind(pa.list_(kind.data_type), st.lists(maybe(kind), max_size=3))),
        inner.map(lambda kind: Kind(pa.large_list(kind.data_type), st.lists(maybe(kind), max_size=3))),
        inner.map(lambda kind: Kind(pa.list_(kind.data_type, 2), st.lists(maybe(kind), min_size=2, max_size=2))),
        inner.map(
            lambda kind: Kind(
                pa.map_(pa.string(), kind.data_type),
                st.lists(st.tuples(TEXT, maybe(kind)), max_size=3, unique_by=lambda pair: pair[0]),
            )
        ),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: Kind(
                pa.struct([(f"f{i}", kind.data_type) for i, kind in enumerate(kinds)]),
                st.fixed_dictionaries({f"f{i}": maybe(kind) for i, kind in enumerate(kinds)}),
            )
        ),
    )


def maybe(kind: Kind) -> st.SearchStrategy[Any]:
    return st.none() | kind.values


KINDS = st.recursive(st.sampled_from(FLAT), nested, max_leaves=4)


@st.composite
def batches_of_one_schema(draw: st.DrawFn) -> list[pa.RecordBatch]:
    kinds = draw(st.lists(KINDS, min_size=1, max_size=4))
    names = [f"c{i}" for i in range(len(kinds))]
    batches = []
    for rows in draw(st.lists(st.integers(1, 8), min_size=1, max_size=6)):
        columns = [
            pa.array(draw(st.lists(maybe(kind), min_size=rows, max_size=rows)), kind.data_type) for kind in kinds
        ]
        start = draw(st.integers(0, rows - 1))
        batches.append(pa.record_batch(columns, names).slice(start, draw(st.integers(1, rows - start))))
    assume(all(is_valid(batch) for batch in batches))
    return batches


def is_valid(batch: pa.RecordBatch) -> bool:
    """Arrow's own builder makes invalid dictionaries under null lists of fixed size."""
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


SIZES = st.builds(SegmentSizes, st.integers(1, 30), st.integers(1, 2000), st.integers(1, 1000))
COMPRESSION: st.SearchStrategy[Compression] = st.sampled_from([None, "lz4", "zstd"])


@given(batches_of_one_schema(), SIZES, COMPRESSION, st.data())
def test_any_range_of_any_segment_is_what_was_written(
    batches: list[pa.RecordBatch], sizes: SegmentSizes, compression: Compression, data: st.DataObject
) -> None:
    rows = [row for batch in batches for row in batch.to_pylist()]
    schema, runs = batches[0].schema, runs_of(batches)
    checked = check_schema("trades", schema, LIMITS)
    for batch in batches:
        check_batch("trades", batch, LIMITS, checked=checked)
    filesystem, path = disk()
    write_segment(
        filesystem,
        path,
        meta=meta_of(schema, runs),
        schema=schema,
        batches=batches,
        runs=runs,
        compression=compression,
        sizes=sizes,
    )
    with SegmentReader.open(filesystem.open(path, Mode.READ)) as reader:
        assert reader.runs == runs
        for _ in range(3):
            first = data.draw(st.integers(FIRST_SEQ - 2, FIRST_SEQ + len(rows) + 1), label="first seq")
            last = data.draw(st.integers(first - 1, FIRST_SEQ + len(rows) + 1), label="last seq")
            columns = data.draw(st.none() | st.permutations(schema.names).map(lambda names: names[:2]), label="columns")
            assert read(reader, first, last, columns) == expected(rows, first, last, columns or schema.names)


def read(reader: SegmentReader, first: int, last: int, columns: list[str] | None) -> list[tuple[int, dict[str, Any]]]:
    found = []
    for seq, batch in reader.batches(first, last, columns=columns):
        batch.validate(full=True)
        found += list(enumerate(batch.to_pylist(), start=seq))
    return found


def expected(rows: list[dict[str, Any]], first: int, last: int, columns: list[str]) -> list[tuple[int, dict[str, Any]]]:
    numbered = enumerate(rows, start=FIRST_SEQ)
    return [(seq, {name: row[name] for name in columns}) for seq, row in numbered if first <= seq <= last]
