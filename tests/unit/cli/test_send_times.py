"""What `holdfast send` makes of texts that are times, in lines and in CSV: the rule of the HTTP API."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from holdfast.cli.send import BLOCK_BYTES, pieces
from holdfast.errors import BadRequest
from holdfast.model.times import POINT_IN_TIME

MOMENT = datetime(2024, 1, 1, 10, 0, 0, 500_000, UTC)


def lines(*values: object) -> io.BytesIO:
    return io.BytesIO(b"".join(json.dumps({"t": value}).encode() + b"\n" for value in values))


def sent(*values: object) -> list[object]:
    return [row["t"] for rows in pieces(lines(*values), "ndjson") for row in rows]


def csv_column(*values: str) -> pa.ChunkedArray:
    text = "\n".join(["t,n", *(f"{value},1" for value in values)])
    return pa.Table.from_batches(pieces(io.BytesIO(text.encode()), "csv")).column("t")


def test_lines_with_zoned_times_become_points_in_time_in_every_block() -> None:
    many = ["2024-01-01T12:00:00.5+02:00"] * (2 * BLOCK_BYTES // 30)
    assert set(sent(None, "2024-01-01T10:00:00.500Z", *many)) == {None, MOMENT}


@pytest.mark.parametrize(
    "values",
    [("2024-01-01T10:00:00",), ("soon", "2024-01-01T10:00:00Z"), (1, 2), ("2024-01-01T10:00:00Z", 5), ({"a": "x"},)],
)
def test_lines_with_anything_else_are_sent_as_they_are(values: tuple[object, ...]) -> None:
    assert sent(*values) == list(values)


@pytest.mark.parametrize("first", ["2024-01-01T10:00:00Z", "2024-01-01 10:00:00.25Z", "2024-01-01T12:00+02:00"])
def test_csv_with_zoned_times_has_one_type_whatever_their_digits(first: str) -> None:
    found = csv_column(first, "", "2024-01-01T12:00:00.5+02:00")
    assert found.type == POINT_IN_TIME
    assert found[2].as_py() == MOMENT


def test_csv_with_times_without_a_zone_keeps_the_text() -> None:
    assert csv_column("2024-01-01T10:00:00", "2024-01-01T10:00:00.5").to_pylist() == [
        "2024-01-01T10:00:00",
        "2024-01-01T10:00:00.5",
    ]


def test_value_that_is_no_time_behind_times_is_named() -> None:
    with pytest.raises(BadRequest, match=r"column 't': '2024-01-01T10:00:00.1234567Z' is not a time with its zone"):
        sent("2024-01-01T10:00:00.1234567Z")
    later = ["2024-01-01T10:00:00Z"] * (BLOCK_BYTES // 20)
    with pytest.raises(BadRequest, match=r"column 't': 'soon' is not a time with its zone"):
        sent(*later, "soon")
    with pytest.raises(BadRequest, match=r"column 't': '2024-01-01T10:00:00.1234567Z' is not"):
        csv_column("2024-01-01T10:00:00.1234567Z")
