"""What JSON values become: times by one rule, whole numbers as they are, refusals that name type, row and column."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.times import POINT_IN_TIME
from holdfast.server.admin.envelope import Refused
from holdfast.server.admin.jsonrows import read_rows

NOTHING = pa.schema([])


def rows_with(*values: object, column: str = "t") -> bytes:
    return b"\n".join(json.dumps({column: value}).encode() for value in values)


def read(*values: object, schema: pa.Schema = NOTHING) -> pa.Array:
    return read_rows(rows_with(*values), channel="c", schema=schema).column(0)


def refusal(*values: object, schema: pa.Schema = NOTHING) -> Refused:
    with pytest.raises(Refused) as found:
        read(*values, schema=schema)
    return found.value


ZONED = ["2024-01-01T10:00:00Z", "2024-01-01T10:00:00.5Z", "2024-01-01 10:00:00.123456-03", "2024-01-01T12:00+02:00"]


@pytest.mark.parametrize("first", ZONED)
def test_times_with_a_zone_are_one_type_whatever_their_digits(first: str) -> None:
    found = read(None, first, "2024-01-01T12:00:00.25+02:00")
    assert found.type == POINT_IN_TIME
    assert found[2].as_py() == datetime(2024, 1, 1, 10, 0, 0, 250_000, UTC)
    again = read(*ZONED, schema=pa.schema([("t", found.type)]))
    assert (again.type, again.null_count) == (POINT_IN_TIME, 0)


@given(st.lists(st.datetimes(timezones=st.just(UTC)), min_size=1, max_size=4), st.integers(-14 * 60, 14 * 60))
def test_any_moment_is_stored_as_it_was_meant(moments: list[datetime], offset_minutes: int) -> None:
    zone = timezone(timedelta(minutes=offset_minutes))
    kept = [moment for moment in moments if 2 < moment.year < 9998] or [datetime(2024, 1, 1, tzinfo=UTC)]
    found = read(*[moment.astimezone(zone).isoformat() for moment in kept])
    assert found.type == POINT_IN_TIME
    assert found.to_pylist() == kept


@pytest.mark.parametrize(
    "values",
    [
        ("2024-01-01T10:00:00",),
        ("2024-01-01",),
        ("2024-01-01T10:00:00Z", "2024-01-01T10:00:00"),
        ("2024-01-01T10:00:00Z", "soon"),
        ("2024-01-01T10:00:00.123456789",),
    ],
)
def test_columns_with_times_without_a_zone_or_other_texts_stay_text(values: tuple[str, ...]) -> None:
    found = read(*values)
    assert (found.type, found.to_pylist()) == (pa.string(), list(values))


def test_times_inside_of_new_objects_and_lists_stay_text() -> None:
    value = {"at": "2024-01-01T10:00:00Z", "all": ["2024-01-01T10:00:00+02:00"]}
    assert read(value).to_pylist() == [value]


@pytest.mark.parametrize("text", ["2024-01-01T10:00:00.1234567Z", "2024-13-01T10:00:00Z", "2024-01-01T25:00:00Z"])
def test_time_that_microseconds_cannot_hold_is_refused_with_its_place(text: str) -> None:
    error = refusal("2024-01-01T10:00:00Z", text)
    assert (error.status_code, error.code, error.where) == (
        400,
        "schema_mismatch",
        {"channel": "c", "column": "t", "row": 2},
    )
    assert "at most 6 digits" in str(error)


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (pa.timestamp("us", "UTC"), "2024-01-01T10:00:00.5+02:00", "2024-01-01T10:00:00"),
        (pa.timestamp("us"), "2024-01-01T10:00:00.5", "2024-01-01T10:00:00Z"),
        (pa.timestamp("ns", "UTC"), "2024-01-01T10:00:00.123456789Z", "2024-01-01"),
        (pa.timestamp("s", "UTC"), "2024-01-01T10:00:00Z", "2024-01-01T10:00:00.5Z"),
    ],
    ids=str,
)
def test_times_of_a_known_column_are_read_as_its_type_or_refused(kind: pa.DataType, good: str, bad: str) -> None:
    schema = pa.schema([("t", kind)])
    assert read(good, None, schema=schema).type == kind
    error = refusal(good, bad, schema=schema)
    assert (error.code, error.where) == ("schema_mismatch", {"channel": "c", "column": "t", "row": 2})
    assert f"expected {kind}" in str(error)


def test_known_text_column_keeps_times_as_texts() -> None:
    assert read("2024-01-01T10:00:00Z", schema=pa.schema([("t", pa.string())])).type == pa.string()


def test_times_inside_of_known_columns_are_read_as_their_types() -> None:
    inner = pa.struct([("at", POINT_IN_TIME), ("all", pa.list_(POINT_IN_TIME))])
    schema = pa.schema([("t", inner)])
    moment = datetime(2024, 1, 1, 8, tzinfo=UTC)
    value = {"at": "2024-01-01T10:00:00+02:00", "all": ["2024-01-01T08:00:00Z", None]}
    found = read(value, None, {"at": None, "all": None}, schema=schema)
    assert found.type == inner
    assert found.to_pylist() == [{"at": moment, "all": [moment, None]}, None, {"at": None, "all": None}]
    assert refusal({"at": "2024-01-01T10:00:00"}, schema=schema).code == "schema_mismatch"


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 2**64, 10**25])
@pytest.mark.parametrize("around", [lambda n: n, lambda n: [1, n], lambda n: {"a": [{"b": n}]}])
def test_whole_number_that_no_int64_holds_is_refused_with_its_place(number: int, around: object) -> None:
    error = refusal(*[around(n) for n in (1, number, 2)])  # type: ignore[operator]
    assert (error.code, error.where) == ("bad_json", {"channel": "c", "row": 2, "column": "t"})
    assert str(number) in str(error)


def test_large_number_is_named_by_its_own_column() -> None:
    body = b'{"a": 1e300, "s": "99999999999999999999", "b": 1}\n{"a": 2.5, "s": "x", "b": 9223372036854775808}'
    with pytest.raises(Refused) as found:
        read_rows(body, channel="c", schema=NOTHING)
    assert found.value.where == {"channel": "c", "row": 2, "column": "b"}


@given(st.integers(-(2**66), 2**66))
def test_any_whole_number_is_kept_or_refused(number: int) -> None:
    if -(2**63) <= number < 2**63:
        assert read(number).to_pylist() == [number]
    else:
        assert refusal(number).code == "bad_json"


def test_large_fractions_and_texts_are_no_whole_numbers() -> None:
    values = [1e300, 9.3e18, 2.0**63, -1.5]
    assert read(*values).to_pylist() == values
    assert read("99999999999999999999").to_pylist() == ["99999999999999999999"]
    assert read(2**64 - 1, schema=pa.schema([("t", pa.uint64())])).to_pylist() == [2**64 - 1]


@pytest.mark.parametrize(
    ("kind", "good", "bad", "found"),
    [
        (pa.int64(), 1, "x", "string"),
        (pa.int64(), 1, True, "boolean"),
        (pa.float64(), 1.5, {"a": 1}, "object"),
        (pa.string(), "x", 1, "number"),
        (pa.bool_(), True, "x", "string"),
        (POINT_IN_TIME, "2024-01-01T10:00:00Z", 1, "number"),
    ],
    ids=str,
)
def test_value_of_another_kind_names_the_type_of_its_column(
    kind: pa.DataType, good: object, bad: object, found: str
) -> None:
    error = refusal(good, bad, schema=pa.schema([("t", kind)]))
    assert (error.status_code, error.code, error.where) == (
        400,
        "schema_mismatch",
        {"channel": "c", "column": "t", "row": 2},
    )
    assert f"expected {kind}, found {found}" in str(error)
    assert refusal(bad, schema=pa.schema([("t", kind)])).code == "schema_mismatch"
