"""Every Arrow type arrives as a type that Spark holds, with its values."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from holdfast.errors import ColumnWidened, SchemaMismatch
from holdfast.spark.columns import conform, spark_schema

WHEN = datetime(2026, 1, 31, 12, 0, 0, 123456)
COLUMNS: dict[str, tuple[pa.Array, str, object]] = {
    "i8": (pa.array([-8], pa.int8()), "tinyint", -8),
    "i64": (pa.array([2**63 - 1], pa.int64()), "bigint", 2**63 - 1),
    "u8": (pa.array([255], pa.uint8()), "smallint", 255),
    "u16": (pa.array([2**16 - 1], pa.uint16()), "int", 2**16 - 1),
    "u32": (pa.array([2**32 - 1], pa.uint32()), "bigint", 2**32 - 1),
    "u64": (pa.array([2**64 - 1], pa.uint64()), "decimal(20,0)", Decimal(2**64 - 1)),
    "f16": (pa.array([1.5], pa.float16()), "float", 1.5),
    "f64": (pa.array([0.1], pa.float64()), "double", 0.1),
    "flag": (pa.array([True]), "boolean", True),
    "text": (pa.array(["é"], pa.large_string()), "string", "é"),
    "bytes": (pa.array([b"\0"], pa.large_binary()), "binary", b"\0"),
    "uuid": (pa.array([b"0123456789abcdef"], pa.binary(16)), "binary", b"0123456789abcdef"),
    "symbol": (pa.array(["x"]).dictionary_encode(), "string", "x"),
    "day": (pa.array([date(2026, 1, 31)], pa.date32()), "date", date(2026, 1, 31)),
    "day64": (pa.array([date(2026, 1, 31)], pa.date64()), "date", date(2026, 1, 31)),
    "at_s": (pa.array([WHEN.replace(microsecond=0)], pa.timestamp("s")), "timestamp_ntz", WHEN.replace(microsecond=0)),
    "at_ns": (pa.array([WHEN], pa.timestamp("ns", "Europe/Berlin")), "timestamp", WHEN.replace(tzinfo=UTC)),
    "clock": (pa.array([time(1, 2, 3)], pa.time32("s")), "time(6)", time(1, 2, 3)),
    "span": (pa.array([timedelta(seconds=5)], pa.duration("ns")), "interval day to second", timedelta(seconds=5)),
    "money": (pa.array([Decimal("1.50")], pa.decimal128(10, 2)), "decimal(10,2)", Decimal("1.50")),
    "wide": (pa.array([Decimal(10) ** 45], pa.decimal256(50, 0)), "string", str(10**45)),
    "list": (pa.array([[1, None]], pa.large_list(pa.uint8())), "array<smallint>", [1, None]),
    "fixed": (pa.array([[1, 2]], pa.list_(pa.uint16(), 2)), "array<int>", [1, 2]),
    "struct": (pa.array([{"a": 7}], pa.struct([("a", pa.uint64())])), "struct<a:decimal(20,0)>", {"a": Decimal(7)}),
    "map": (
        pa.array([[("k", 1)]], pa.map_(pa.large_string(), pa.uint8())),
        "map<string,smallint>",
        [("k", 1)],
    ),
    "nothing": (pa.nulls(1), "void", None),
}


def everything() -> pa.RecordBatch:
    """One event with a column of each type."""
    return pa.record_batch({name: array for name, (array, _, _) in COLUMNS.items()})


@pytest.mark.parametrize("name", COLUMNS)
def test_each_arrow_type_becomes_a_spark_type_with_its_value(name: str) -> None:
    array, spark_type, value = COLUMNS[name]
    batch = pa.record_batch({name: array})
    schema = spark_schema(batch.schema)
    assert schema[name].dataType.simpleString() == spark_type
    target = to_arrow_schema(schema, timezone="UTC")
    fitted = conform(batch, target, channel="t")
    assert fitted.schema.equals(target)
    assert fitted.column(0).to_pylist() == [value]


def test_columns_that_are_missing_are_null_and_others_are_left_out() -> None:
    target = pa.schema([("b", pa.string()), ("a", pa.int64())])
    fitted = conform(pa.record_batch({"a": [1], "c": [2]}), target, channel="t")
    assert fitted.to_pylist() == [{"b": None, "a": 1}]


def test_a_column_that_grew_beside_one_of_its_name_is_not_taken_for_it() -> None:
    """An older segment has `n` only; `N` came later."""
    target = pa.schema([("n", pa.int64()), ("N", pa.int64())])
    assert conform(pa.record_batch({"n": [1]}), target, channel="t", stored=True).to_pylist() == [{"n": 1, "N": None}]


def test_names_inside_of_columns_are_compared_without_case() -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.large_list(pa.struct([("c", pa.string())])))])
    kind = pa.struct([*kind, ("m", pa.map_(pa.string(), pa.struct([("v", pa.int64())])))])
    stored = pa.record_batch({"s": pa.array([{"a": 1, "b": [{"c": "x"}], "m": [("k", {"v": 2})]}, None], kind)})
    inner = [("B", pa.list_(pa.struct([("C", pa.string())]))), ("A", pa.int64())]
    target = pa.schema([("S", pa.struct([*inner, ("M", pa.map_(pa.string(), pa.struct([("V", pa.int64())])))]))])
    rows = conform(stored, target, channel="t", stored=True).to_pylist()
    assert rows == [{"S": {"B": [{"C": "x"}], "A": 1, "M": [("k", {"V": 2})]}}, {"S": None}]


def test_a_value_that_does_not_fit_is_refused_with_its_column() -> None:
    large, small = pa.record_batch({"a": [2**40]}), pa.schema([("a", pa.int32())])
    with pytest.raises(ColumnWidened, match=r"channel 't', column 'a'.*start the query again"):
        conform(large, small, channel="t", stored=True)
    with pytest.raises(SchemaMismatch, match=r"channel 't', column 'a'.*not in range: -?\d+ to \d+$") as caught:
        conform(large, small, channel="t")
    assert not isinstance(caught.value, ColumnWidened), "rows on their way to a sink do not change by a new start"


def test_a_time_that_overflows_is_refused_instead_of_wrapped() -> None:
    far = pa.record_batch({"a": pa.array([2**62], pa.timestamp("s"))})
    with pytest.raises(SchemaMismatch):
        conform(far, to_arrow_schema(spark_schema(far.schema), timezone="UTC"), channel="t")
