"""How a channel's schema grows: what is widened, what is refused, and that no value changes on the way."""

from __future__ import annotations

from decimal import Decimal
from itertools import permutations
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import InvalidBatch, SchemaMismatch
from holdfast.model.evolution import channel_schema, conform, merge_schemas, require_same

WIDENED = [
    (pa.int8(), pa.int16(), pa.int16()),
    (pa.int16(), pa.int64(), pa.int64()),
    (pa.uint8(), pa.uint32(), pa.uint32()),
    (pa.uint8(), pa.int8(), pa.int16()),
    (pa.uint16(), pa.int64(), pa.int64()),
    (pa.uint32(), pa.int8(), pa.int64()),
    (pa.float16(), pa.float32(), pa.float32()),
    (pa.float32(), pa.float64(), pa.float64()),
    (pa.int8(), pa.float16(), pa.float32()),
    (pa.uint16(), pa.float32(), pa.float32()),
    (pa.int32(), pa.float32(), pa.float64()),
    (pa.uint32(), pa.float64(), pa.float64()),
    (pa.decimal32(5, 2), pa.decimal64(10, 2), pa.decimal64(10, 2)),
    (pa.decimal128(10, 2), pa.decimal128(20, 2), pa.decimal128(20, 2)),
    (pa.decimal128(38, 2), pa.decimal256(40, 2), pa.decimal256(40, 2)),
    (pa.string(), pa.large_string(), pa.large_string()),
    (pa.string_view(), pa.string(), pa.string()),
    (pa.binary_view(), pa.large_binary(), pa.large_binary()),
    (pa.binary(), pa.large_binary(), pa.large_binary()),
    (pa.null(), pa.timestamp("ns", "UTC"), pa.timestamp("ns", "UTC")),
    (pa.null(), pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int8())])),
    (pa.list_(pa.int8()), pa.list_(pa.int32()), pa.list_(pa.int32())),
    (pa.list_(pa.null()), pa.large_list(pa.string()), pa.large_list(pa.string())),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int64(), 2), pa.list_(pa.int64(), 2)),
    (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int16()), pa.map_(pa.string(), pa.int16())),
    (
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int64(), pa.large_string()),
        pa.dictionary(pa.int64(), pa.large_string()),
    ),
    (pa.dictionary(pa.int32(), pa.string()), pa.string(), pa.string()),
    (pa.dictionary(pa.int32(), pa.int8()), pa.int64(), pa.int64()),
]

INCOMPATIBLE = [
    (pa.int64(), pa.uint64()),
    (pa.int64(), pa.float64()),
    (pa.uint64(), pa.float32()),
    (pa.int64(), pa.string()),
    (pa.string(), pa.binary()),
    (pa.bool_(), pa.int8()),
    (pa.timestamp("s"), pa.timestamp("ns")),
    (pa.timestamp("ns"), pa.timestamp("ns", "UTC")),
    (pa.date32(), pa.timestamp("s")),
    (pa.date32(), pa.date64()),
    (pa.decimal128(10, 2), pa.decimal128(10, 3)),
    (pa.binary(4), pa.binary(5)),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)),
    (pa.list_(pa.int8(), 2), pa.list_(pa.int8())),
    (pa.list_(pa.int8()), pa.struct([("a", pa.int8())])),
    (pa.map_(pa.string(), pa.int8()), pa.list_(pa.int8())),
    (pa.dictionary(pa.int32(), pa.string()), pa.int64()),
]


def schema(data_type: pa.DataType, *, nullable: bool = True) -> pa.Schema:
    return pa.schema([pa.field("x", data_type, nullable)])


def array_of(values: list[Any], data_type: pa.DataType) -> pa.Array:
    if not pa.types.is_dictionary(data_type):
        return pa.array(values, data_type)
    encoded = pa.array(values).dictionary_encode()
    indices, dictionary = encoded.indices.cast(data_type.index_type), encoded.dictionary.cast(data_type.value_type)
    return pa.DictionaryArray.from_arrays(indices, dictionary)


def one(array: pa.Array) -> pa.RecordBatch:
    return pa.record_batch([array], ["x"])


# -------------------------------------------------------------------------------------------------------------- merging


@pytest.mark.parametrize(("narrow", "other", "expected"), WIDENED, ids=str)
def test_two_types_meet_in_the_same_wider_one(narrow: pa.DataType, other: pa.DataType, expected: pa.DataType) -> None:
    for current, incoming in ((narrow, other), (other, narrow)):
        merged = merge_schemas("trades", schema(current), schema(incoming))
        assert merged.equals(schema(expected))


@pytest.mark.parametrize(("narrow", "other", "expected"), WIDENED, ids=str)
def test_a_schema_that_holds_the_incoming_one_stays_the_same_object(
    narrow: pa.DataType, other: pa.DataType, expected: pa.DataType
) -> None:
    wide = schema(expected)
    assert merge_schemas("trades", wide, schema(narrow)) is wide
    assert merge_schemas("trades", wide, schema(other)) is wide


@pytest.mark.parametrize(("current", "incoming"), INCOMPATIBLE, ids=str)
def test_types_without_an_exact_common_one_are_refused_by_name(current: pa.DataType, incoming: pa.DataType) -> None:
    for first, second in ((current, incoming), (incoming, current)):
        with pytest.raises(SchemaMismatch) as caught:
            merge_schemas("trades", schema(first), schema(second))
        error = caught.value
        assert (error.channel, error.column, error.expected, error.found) == ("trades", "x", str(first), str(second))


def test_order_metadata_and_missing_nullable_columns_change_nothing() -> None:
    current = pa.schema([("a", pa.int8()), ("b", pa.string()), ("c", pa.int8())])
    incoming = pa.schema([pa.field("b", pa.string(), metadata={"k": "v"}), ("a", pa.int8())], metadata={"k": "v"})
    assert merge_schemas("trades", current, incoming) is current


def test_a_new_column_is_appended_as_nullable() -> None:
    incoming = pa.schema([pa.field("b", pa.int8(), nullable=False), ("a", pa.int8())])
    merged = merge_schemas("trades", pa.schema([("a", pa.int8())]), incoming)
    assert merged.equals(pa.schema([("a", pa.int8()), ("b", pa.int8())]))


def test_a_required_column_becomes_nullable_when_it_is_missing_or_may_be_null() -> None:
    required = pa.schema([pa.field("x", pa.int8(), nullable=False), ("y", pa.int8())])
    relaxed = pa.schema([("x", pa.int8()), ("y", pa.int8())])
    for incoming in (pa.schema([("y", pa.int8())]), schema(pa.int8()), schema(pa.null())):
        assert merge_schemas("trades", required, incoming).equals(relaxed)


def test_a_struct_grows_by_fields_and_inside_them() -> None:
    current = schema(pa.struct([pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.list_(pa.int8()))]))
    incoming = schema(pa.struct([("b", pa.list_(pa.int16())), ("c", pa.string())]))
    expected = schema(pa.struct([("a", pa.int8()), ("b", pa.list_(pa.int16())), ("c", pa.string())]))
    assert merge_schemas("trades", current, incoming).equals(expected)


def test_a_mismatch_deep_inside_names_the_whole_path() -> None:
    current = schema(pa.struct([("a", pa.list_(pa.struct([("b", pa.int64())])))]))
    incoming = schema(pa.struct([("a", pa.list_(pa.struct([("b", pa.string())])))]))
    with pytest.raises(SchemaMismatch) as caught:
        merge_schemas("trades", current, incoming)
    assert caught.value.column == "x.a.value.b"
    assert "channel 'trades'" in str(caught.value)


def test_a_schema_does_not_grow_beyond_its_bound() -> None:
    current = pa.schema([(f"c{i}", pa.int8()) for i in range(4)])
    with pytest.raises(SchemaMismatch, match="the channel's schema is full"):
        merge_schemas("trades", current, pa.schema([("d", pa.int8())]), columns_max=4)


def test_the_answer_does_not_depend_on_the_order_of_batches() -> None:
    parts = [pa.int8(), pa.uint16(), pa.float32(), pa.null(), pa.int32()]
    answers = set()
    for order in permutations(parts):
        merged = schema(order[0])
        for data_type in order[1:]:
            merged = merge_schemas("trades", merged, schema(data_type))
        answers.add(str(merged.field("x").type))
    assert answers == {"double"}


def test_a_new_channel_has_wide_dictionary_indices_and_no_metadata() -> None:
    narrow = pa.dictionary(pa.int8(), pa.string(), ordered=True)
    first = pa.schema(
        [pa.field("d", narrow, metadata={"_PL_ENUM_VALUES": "1;a"}), ("l", pa.list_(narrow)), ("n", pa.int8())],
        metadata={"pandas": "{}"},
    )
    wide = pa.dictionary(pa.int32(), pa.string(), ordered=True)
    expected = pa.schema([("d", wide), ("l", pa.list_(wide)), ("n", pa.int8())])
    assert channel_schema(first).equals(expected, check_metadata=True)


def test_a_column_that_arrives_later_has_wide_dictionary_indices_too() -> None:
    narrow, wide = pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.string())
    incoming = pa.schema([("x", narrow), ("y", pa.struct([("z", narrow)]))])
    merged = merge_schemas("trades", schema(pa.null()), incoming)
    assert merged.equals(pa.schema([("x", wide), ("y", pa.struct([("z", wide)]))]))


# --------------------------------------------------------------------------------------------------------------- strict


def test_a_strict_channel_takes_the_same_columns_in_any_order() -> None:
    current = pa.schema([pa.field("a", pa.int8(), nullable=False), ("b", pa.list_(pa.int8()))])
    require_same("trades", current, pa.schema([("b", pa.list_(pa.field("element", pa.int8()))), ("a", pa.int8())]))


@pytest.mark.parametrize(
    ("incoming", "column", "found"),
    [
        (pa.schema([("a", pa.int16()), ("b", pa.int8())]), "a", "int16"),
        (pa.schema([("a", pa.int8())]), "b", "nothing"),
        (pa.schema([("a", pa.int8()), ("b", pa.int8()), ("c", pa.string())]), "c", "string"),
    ],
)
def test_a_strict_channel_names_the_first_difference(incoming: pa.Schema, column: str, found: str) -> None:
    with pytest.raises(SchemaMismatch, match="strict") as caught:
        require_same("trades", pa.schema([("a", pa.int8()), ("b", pa.int8())]), incoming)
    assert (caught.value.column, caught.value.found) == (column, found)


# ----------------------------------------------------------------------------------------------------------- conforming


def test_a_batch_that_already_fits_is_the_same_object() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([1])], schema=schema(pa.int64()).with_metadata({"k": "v"}))
    assert conform(batch, schema(pa.int64()), channel="trades") is batch


def test_columns_are_reordered_and_missing_ones_filled() -> None:
    batch = pa.record_batch({"b": ["x", "y"], "a": pa.array([1, 2], pa.int8())})
    target = pa.schema([("a", pa.int32()), ("z", pa.struct([("q", pa.int8())])), ("b", pa.string())])
    conformed = conform(batch, target, channel="trades")
    assert conformed.schema.equals(target)
    assert conformed.to_pylist() == [{"a": 1, "z": None, "b": "x"}, {"a": 2, "z": None, "b": "y"}]


def test_rows_without_columns_become_rows_of_nulls() -> None:
    bare = pa.record_batch({"x": [1, 2, 3]}).select([])
    assert conform(bare, schema(pa.string()), channel="trades").to_pylist() == [{"x": None}] * 3


SAMPLES: list[tuple[pa.DataType, pa.DataType, list[Any]]] = [
    (pa.int8(), pa.int64(), [1, None, -128]),
    (pa.uint8(), pa.int16(), [255, None, 0]),
    (pa.int32(), pa.float64(), [2**31 - 1, None, -(2**31)]),
    (pa.int16(), pa.float32(), [32767, None, -32768]),
    (pa.float32(), pa.float64(), [1.5, None, float("inf")]),
    (pa.decimal32(5, 2), pa.decimal256(60, 2), [Decimal("123.45"), None, Decimal("-0.01")]),
    (pa.string(), pa.large_string(), ["a", None, "ü" * 20]),
    (pa.string_view(), pa.string(), ["a", None, "ü" * 20]),
    (pa.binary_view(), pa.large_binary(), [b"a", None, b"x" * 20]),
    (pa.null(), pa.list_(pa.int8()), [None, None, None]),
    (pa.list_(pa.int8()), pa.large_list(pa.int64()), [[1, None], None, [2, 3]]),
    (pa.large_list(pa.string()), pa.large_list(pa.large_string()), [["a"], None, []]),
    (pa.list_(pa.int8(), 2), pa.list_(pa.float32(), 2), [[1, None], None, [2, 3]]),
    (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int64()), [[("a", 1)], None, [("b", None), ("c", 3)]]),
    (
        pa.struct([("b", pa.list_(pa.int8())), ("a", pa.int8())]),
        pa.struct([("a", pa.int64()), ("n", pa.string()), ("b", pa.list_(pa.int16()))]),
        [{"a": 1, "n": None, "b": [1]}, None, {"a": None, "n": None, "b": None}],
    ),
    (pa.struct([]), pa.struct([("a", pa.int8())]), [{"a": None}, None, {"a": None}]),
    (pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.large_string()), ["a", None, "b"]),
    (pa.dictionary(pa.int8(), pa.string()), pa.large_string(), ["a", None, "b"]),
    (pa.dictionary(pa.uint8(), pa.string_view()), pa.string(), ["a", None, "b"]),
    (pa.dictionary(pa.int8(), pa.int8()), pa.int64(), [5, None, 6]),
    (pa.list_(pa.dictionary(pa.int8(), pa.string())), pa.list_(pa.string()), [["a", None], None, ["a", "b"]]),
]


@pytest.mark.parametrize(("source", "target", "values"), SAMPLES, ids=str)
def test_widening_keeps_every_value_whole_and_in_slices(
    source: pa.DataType, target: pa.DataType, values: list[Any]
) -> None:
    given = [
        {k: v for k, v in value.items() if v is not None} if isinstance(value, dict) else value for value in values
    ]
    batch = one(array_of(given, source))
    for start in range(4):
        for end in range(start, 4):
            conformed = conform(batch.slice(start, end - start), schema(target), channel="trades")
            conformed.validate(full=True)
            assert conformed.schema.equals(schema(target))
            assert conformed.column("x").to_pylist() == values[start:end]


@pytest.mark.parametrize(
    ("array", "target"),
    [
        (pa.array([1.0]), pa.int64()),
        (pa.array([1]), pa.int8()),
        (pa.array(["1"]), pa.int64()),
        (pa.array([1]), pa.string()),
        (pa.array(["a"], pa.large_string()), pa.string()),
        (pa.array([[1]], pa.large_list(pa.int8())), pa.list_(pa.int8())),
        (pa.array([[1, 2]], pa.list_(pa.int8(), 2)), pa.list_(pa.int8(), 1)),
        (pa.array(["a"]), pa.dictionary(pa.int8(), pa.string())),
        (pa.array(["a"]).dictionary_encode(), pa.dictionary(pa.int32(), pa.string(), ordered=True)),
        (pa.array([{"a": 1, "b": 2}]), pa.struct([("a", pa.int64())])),
    ],
    ids=str,
)
def test_a_column_that_would_lose_something_is_refused(array: pa.Array, target: pa.DataType) -> None:
    with pytest.raises(SchemaMismatch) as caught:
        conform(one(array), schema(target), channel="trades")
    assert caught.value.channel == "trades"
    assert caught.value.column.startswith("x")


def test_a_dictionary_index_that_does_not_fit_is_refused() -> None:
    values = pa.array([str(i) for i in range(200)])
    array = pa.DictionaryArray.from_arrays(pa.array([199], pa.int16()), values)
    with pytest.raises(SchemaMismatch):
        conform(one(array), schema(pa.dictionary(pa.int8(), pa.string())), channel="trades")


def test_a_column_the_channel_lacks_is_refused_by_name() -> None:
    with pytest.raises(SchemaMismatch) as caught:
        conform(pa.record_batch({"x": [1], "y": [1]}), schema(pa.int64()), channel="trades")
    assert caught.value.column == "y"


def test_a_null_in_a_required_column_is_refused_by_path() -> None:
    required = pa.field("a", pa.int8(), nullable=False)
    for array, target, path in (
        (pa.array([1, None], pa.int8()), schema(pa.int16(), nullable=False), "x"),
        (pa.nulls(1), schema(pa.int8(), nullable=False), "x"),
        (pa.array([{"a": None}], pa.struct([("a", pa.int8())])), schema(pa.struct([required])), "x.a"),
        (pa.array([{}], pa.struct([])), schema(pa.struct([required])), "x.a"),
    ):
        with pytest.raises(SchemaMismatch) as caught:
            conform(one(array), target, channel="trades")
        assert (caught.value.column, caught.value.expected, caught.value.found) == (path, "not null", "null")


def test_a_required_column_without_nulls_passes_whatever_it_was_declared() -> None:
    conformed = conform(one(pa.array([1, 2], pa.int8())), schema(pa.int8(), nullable=False), channel="trades")
    assert conformed.schema.equals(schema(pa.int8(), nullable=False))


def test_a_column_that_would_explode_is_refused() -> None:
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int8()), pa.array(["v" * 1000]))
    views = pa.array(["v" * 100] * 100, pa.string_view())
    for array, target in (
        (repeated, pa.string()),
        (views, pa.string()),
        (pa.nulls(1000), pa.binary(1000)),
        (pa.array([[None] * 1000]), pa.list_(pa.binary(1000))),
    ):
        with pytest.raises(InvalidBatch, match="at most 5000 are allowed"):
            conform(one(array), schema(target), channel="trades", bytes_max=5000)
