"""What may be stored: schemas and batches that pass, and the text with which others are refused."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import InvalidBatch
from holdfast.model.schema import (
    SYSTEM_COLUMNS,
    BatchLimits,
    SchemaMode,
    check_batch,
    check_schema,
    decode_schema,
    encode_schema,
    schema_hash,
)

LIMITS = BatchLimits(rows_max=1000, bytes_max=1 << 16, columns_max=32, depth_max=4)

ACCEPTED = [
    pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(),
    pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(),
    pa.decimal32(5, 2), pa.decimal64(10, 2), pa.decimal128(38, -3), pa.decimal256(76, 9),
    pa.date32(), pa.date64(), pa.time32("ms"), pa.time64("ns"), pa.timestamp("us"), pa.timestamp("ns", "Europe/Berlin"),
    pa.duration("s"), pa.month_day_nano_interval(),
    pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(16),
    pa.list_(pa.int8()), pa.large_list(pa.string()), pa.list_(pa.float32(), 3), pa.map_(pa.string(), pa.int64()),
    pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]), pa.struct([]),
    pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.uint32(), pa.large_string(), ordered=True),
    pa.list_(pa.dictionary(pa.int16(), pa.decimal128(5, 1))),
]  # fmt: skip

REFUSED = [
    pa.sparse_union([pa.field("a", pa.int8())]), pa.dense_union([pa.field("a", pa.int8())]),
    pa.run_end_encoded(pa.int32(), pa.string()), pa.list_view(pa.int8()), pa.large_list_view(pa.int8()),
    pa.dictionary(pa.int8(), pa.list_(pa.int8())), pa.dictionary(pa.int8(), pa.null()),
    pa.dictionary(pa.int8(), pa.dictionary(pa.int8(), pa.string())),
]  # fmt: skip


def refusal(schema: pa.Schema) -> str:
    with pytest.raises(InvalidBatch) as caught:
        check_schema("trades", schema, LIMITS)
    return caught.value.reason


def batch_refusal(batch: pa.RecordBatch, limits: BatchLimits = LIMITS) -> str:
    with pytest.raises(InvalidBatch) as caught:
        check_batch("trades", batch, limits)
    assert caught.value.channel == "trades"
    return caught.value.reason


# -------------------------------------------------------------------------------------------------------------- schemas


@pytest.mark.parametrize("data_type", ACCEPTED, ids=str)
def test_a_type_every_reader_knows_is_accepted(data_type: pa.DataType) -> None:
    check_schema("trades", pa.schema([("x", data_type)]), LIMITS)
    check_batch("trades", pa.record_batch([pa.nulls(3, data_type)], ["x"]), LIMITS)


@pytest.mark.parametrize("data_type", REFUSED, ids=str)
def test_a_type_some_readers_lack_is_refused_by_name(data_type: pa.DataType) -> None:
    reason = refusal(pa.schema([("ok", pa.int8()), ("x", data_type)]))
    assert "column 'x'" in reason
    assert "not accepted" in reason


def test_a_refused_type_is_found_inside_nested_columns() -> None:
    inner = pa.struct([pa.field("deep", pa.list_(pa.field("item", pa.list_view(pa.int8()))))])
    assert "column 'x.deep.item'" in refusal(pa.schema([("x", inner)]))


@pytest.mark.parametrize(("data_type", "storage"), [(pa.uuid(), "fixed_size_binary[16]"), (pa.json_(), "string")])
def test_a_registered_extension_type_is_refused_with_its_storage_type(data_type: pa.DataType, storage: str) -> None:
    reason = refusal(pa.schema([("x", data_type)]))
    assert data_type.extension_name in reason
    assert f"storage type {storage}" in reason


def test_an_unregistered_extension_type_is_refused_with_its_storage_type() -> None:
    field = pa.field("x", pa.binary(4), metadata={"ARROW:extension:name": "acme.ipv4"})
    assert "extension type acme.ipv4" in refusal(pa.schema([field]))
    assert "fixed_size_binary[4]" in refusal(pa.schema([pa.field("s", pa.struct([field]))]))


def test_a_schema_without_columns_is_refused() -> None:
    assert refusal(pa.schema([])) == "it has no columns"


@pytest.mark.parametrize("name", [*SYSTEM_COLUMNS, "_SEQ", "_holdfast", "_holdfast_anything"])
def test_a_name_of_holdfast_itself_is_refused(name: str) -> None:
    assert refusal(pa.schema([(name, pa.int8())])) == f"column name {name!r} is reserved for holdfast"


def test_a_system_name_inside_a_struct_is_free() -> None:
    check_schema("trades", pa.schema([("x", pa.struct([("_seq", pa.int64())]))]), LIMITS)


def test_a_column_name_that_appears_twice_is_refused() -> None:
    assert "'a' appears twice" in refusal(pa.schema([("a", pa.int8()), ("b", pa.int8()), ("a", pa.int8())]))
    twins = pa.struct([pa.field("a", pa.int8()), pa.field("a", pa.int8())])
    assert refusal(pa.schema([("x", twins)])) == "column name 'a' appears twice inside column 'x'"


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 1025])
def test_a_name_nobody_can_use_is_refused(name: str) -> None:
    assert "is empty, too long or has a zero character" in refusal(pa.schema([(name, pa.int8())]))


def test_a_name_or_time_zone_that_is_not_utf8_is_refused() -> None:
    data = pa.schema([("abcd", pa.timestamp("s", "ZONE"))]).serialize().to_pybytes()
    for good in (b"abcd", b"ZONE"):
        schema = pa.ipc.read_schema(pa.py_buffer(data.replace(good, b"\xff\xfe\xfd\xfc")))
        assert refusal(schema) == "a column name or time zone is not UTF-8"


def test_a_null_column_declared_not_null_is_refused() -> None:
    assert "can only hold nulls" in refusal(pa.schema([pa.field("x", pa.null()).with_nullable(False)]))


def test_a_time_zone_of_many_characters_is_refused() -> None:
    assert "time zone of 2000 characters" in refusal(pa.schema([("t", pa.timestamp("s", "Z" * 2000))]))


def test_nesting_is_accepted_up_to_the_limit_and_refused_beyond() -> None:
    data_type = pa.int8()
    for _ in range(LIMITS.depth_max - 1):
        data_type = pa.list_(data_type)
    check_schema("trades", pa.schema([("x", data_type)]), LIMITS)
    assert "nested too deeply" in refusal(pa.schema([("x", pa.list_(data_type))]))


def test_the_number_of_columns_counts_nested_ones() -> None:
    wide = pa.struct([(f"f{i}", pa.int8()) for i in range(31)])
    check_schema("trades", pa.schema([("x", wide)]), LIMITS)
    assert "33 columns, nested ones included; at most 32" in refusal(pa.schema([("x", wide), ("y", pa.int8())]))


def test_a_row_of_enormous_fixed_width_is_refused() -> None:
    assert "bytes of fixed width in a row" in refusal(pa.schema([("x", pa.binary(1 << 21))]))
    assert "bytes of fixed width in a row" in refusal(pa.schema([("x", pa.list_(pa.list_(pa.null(), 2048), 2048))]))


def test_enormous_metadata_is_refused_wherever_it_is() -> None:
    large = {"note": "x" * (1 << 20)}
    assert "bytes of metadata" in refusal(pa.schema([("x", pa.int8())], metadata=large))
    assert "bytes of metadata" in refusal(pa.schema([pa.field("x", pa.int8(), metadata=large)]))


def test_an_equal_schema_gives_the_known_answer_back() -> None:
    first = check_schema("trades", pa.schema([("x", pa.int8())]), LIMITS)
    assert check_schema("trades", pa.schema([("x", pa.int8())]), LIMITS, known=first) is first
    assert check_schema("trades", pa.schema([("x", pa.int16())]), LIMITS, known=first) is not first


def test_extension_metadata_is_seen_although_the_schema_was_known_without() -> None:
    known = check_schema("trades", pa.schema([("x", pa.binary(4))]), LIMITS)
    field = pa.field("x", pa.binary(4), metadata={"ARROW:extension:name": "acme.ipv4"})
    with pytest.raises(InvalidBatch):
        check_schema("trades", pa.schema([field]), LIMITS, known=known)


# -------------------------------------------------------------------------------------------------------------- batches


def test_a_batch_of_no_rows_passes_the_check() -> None:
    check_batch("trades", pa.record_batch({"x": pa.array([], pa.int64())}), LIMITS)


def test_a_batch_of_too_many_rows_is_refused_with_both_numbers() -> None:
    assert batch_refusal(pa.record_batch([pa.nulls(1001)], ["x"])) == "it has 1001 rows; at most 1000 are allowed"


def test_a_batch_of_too_many_bytes_is_refused_with_both_numbers() -> None:
    reason = batch_refusal(pa.record_batch({"x": ["y" * 70_000]}))
    assert "bytes when stored; at most 65536 are allowed" in reason


def test_many_columns_over_one_buffer_count_each_time() -> None:
    one = pa.array(np.zeros(1000, np.int64))
    batch = pa.record_batch([one] * 20, [f"c{i}" for i in range(20)])
    assert batch.get_total_buffer_size() < LIMITS.bytes_max
    assert "bytes when stored" in batch_refusal(batch)


def test_a_list_of_countless_nulls_is_refused() -> None:
    offsets = pa.py_buffer(struct.pack("<ii", 0, 2**31 - 1))
    bomb = pa.Array.from_buffers(pa.list_(pa.null()), 1, [None, offsets], children=[pa.nulls(2**31 - 1)])
    assert "bytes when stored" in batch_refusal(pa.record_batch([bomb], ["x"]))


def test_countless_views_of_one_large_value_are_refused() -> None:
    value = pa.array(["v" * 1000], pa.string_view())
    views = value.buffers()[1].to_pybytes() * 1000
    bomb = pa.Array.from_buffers(pa.string_view(), 1000, [None, pa.py_buffer(views), value.buffers()[2]])
    assert "it has 1" in batch_refusal(pa.record_batch([bomb], ["x"]))


def test_a_dictionary_larger_than_the_batch_counts() -> None:
    values = pa.array(["v" * 1000 + str(i) for i in range(100)])
    batch = pa.record_batch([pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), values)], ["x"])
    assert pa.ipc.get_record_batch_size(batch) < 1000
    assert "bytes when stored" in batch_refusal(batch)


def test_text_that_is_not_utf8_is_refused_with_its_column() -> None:
    offsets = pa.py_buffer(struct.pack("<ii", 0, 2))
    bad = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])
    reason = batch_refusal(pa.record_batch([pa.array([1]), bad], ["ok", "name"]))
    assert "column 'name' is malformed" in reason
    assert "UTF8" in reason


def test_offsets_outside_of_the_data_are_refused_with_their_column() -> None:
    for wrong in ((0, 1, 100), (0, 1, -1), (2, 1, 3), (0, 3, 2)):
        offsets = np.array([0, 1, 3], np.int32)
        column = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"abc")])
        batch = pa.record_batch([column], ["name"])
        offsets[:] = wrong  # after Arrow's own look at it, as it would come from a hostile sender
        assert "column 'name' is malformed" in batch_refusal(batch)


def test_a_dictionary_index_outside_of_the_dictionary_is_refused() -> None:
    bad = pa.DictionaryArray.from_arrays(pa.array([7], pa.int8()), pa.array(["a"]), safe=False)
    assert "column 'name' is malformed" in batch_refusal(pa.record_batch([bad], ["name"]))


def test_a_null_where_the_schema_forbids_it_is_refused_with_its_path() -> None:
    flat = pa.schema([pa.field("x", pa.int8(), nullable=False)])
    batch = pa.RecordBatch.from_arrays([pa.array([1, None], pa.int8())], schema=flat)
    assert batch_refusal(batch) == "column 'x' is declared not null and holds a null"
    strict_list = pa.list_(pa.field("item", pa.int8(), nullable=False))
    buffers = pa.array([[1, None]]).buffers()[:2]
    array = pa.Array.from_buffers(strict_list, 1, buffers, children=[pa.array([1, None], pa.int8())])
    assert "'l.item'" in batch_refusal(pa.record_batch([array], ["l"]))


def test_a_null_struct_excuses_the_nulls_under_it() -> None:
    inner = pa.field("a", pa.int8(), nullable=False)
    values = pa.array([1, None], pa.int8())
    excused = pa.StructArray.from_arrays([values], fields=[inner], mask=pa.array([False, True]))
    check_batch("trades", pa.record_batch([excused], ["s"]), LIMITS)
    guilty = pa.StructArray.from_arrays([values], fields=[inner])
    assert "'s.a'" in batch_refusal(pa.record_batch([guilty], ["s"]))


def test_a_null_inside_a_required_dictionary_is_refused() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    field = pa.field("x", array.type, nullable=False)
    assert "'x'" in batch_refusal(pa.RecordBatch.from_arrays([array], schema=pa.schema([field])))


def test_a_null_outside_of_the_slice_does_not_count() -> None:
    field = pa.field("m", pa.map_(pa.string(), pa.field("value", pa.int8(), nullable=False)))
    array = pa.MapArray.from_arrays([0, 1, 2], pa.array(["a", "b"]), pa.array([None, 1], pa.int8()), field.type)
    batch = pa.RecordBatch.from_arrays([array], schema=pa.schema([field]))
    assert "'m.value'" in batch_refusal(batch)
    check_batch("trades", batch.slice(1), LIMITS)


# ---------------------------------------------------------------------------------------------------------------- names


def test_the_hash_of_a_schema_never_changes() -> None:
    """The text form is ours: these digits hold for every Arrow version, or old segments become strangers."""
    fields = [pa.field(f"c{i}", t, nullable=i % 2 == 0) for i, t in enumerate(ACCEPTED)]
    assert schema_hash(pa.schema(fields)) == "2fa5a8a630e9aef15b6594bc3ef40d6e"


def test_the_hash_ignores_metadata_and_names_of_list_items() -> None:
    plain = pa.schema([("x", pa.list_(pa.int8())), ("y", pa.string())])
    dressed = pa.schema(
        [pa.field("x", pa.list_(pa.field("element", pa.int8())), metadata={"a": "b"}), ("y", pa.string())],
        metadata={"pandas": "{}"},
    )
    assert schema_hash(plain) == schema_hash(dressed)


def test_the_hash_tells_order_nullability_and_parameters_apart() -> None:
    schemas = [
        pa.schema([("a", pa.int8()), ("b", pa.int8())]),
        pa.schema([("b", pa.int8()), ("a", pa.int8())]),
        pa.schema([("a", pa.int8()), pa.field("b", pa.int8(), nullable=False)]),
        pa.schema([("a", pa.int8()), ("b", pa.timestamp("s"))]),
        pa.schema([("a", pa.int8()), ("b", pa.timestamp("ms"))]),
        pa.schema([("a", pa.int8()), ("b", pa.timestamp("s", "UTC"))]),
        pa.schema([("a", pa.int8()), ("b", pa.list_(pa.int8(), 2))]),
        pa.schema([("a", pa.int8()), ("b", pa.list_(pa.int8(), 3))]),
        pa.schema([("a", pa.int8()), ("b", pa.struct([pa.field("c", pa.int8())]))]),
        pa.schema([("a", pa.int8()), ("b", pa.struct([pa.field("d", pa.int8())]))]),
    ]
    assert len({schema_hash(schema) for schema in schemas}) == len(schemas)


def test_an_encoded_schema_comes_back_without_metadata() -> None:
    fields = [pa.field(f"c{i}", t, nullable=i % 2 == 0, metadata={"k": "v"}) for i, t in enumerate(ACCEPTED)]
    schema = pa.schema(fields, metadata={"pandas": "{}"})
    back = decode_schema(encode_schema(schema))
    assert back.equals(schema)
    assert back.metadata is None
    assert all(field.metadata is None for field in back)


def test_schema_modes_are_their_names_in_settings() -> None:
    assert [SchemaMode(text) for text in ("evolve", "strict", "any")] == list(SchemaMode)
