"""Filters: what passes, what is unknown, and texts that cannot be read."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.delivery.filterparser import OPERATORS_MAX, parse
from holdfast.delivery.filters import Filter
from holdfast.errors import InvalidFilter
from holdfast.store.segments.runs import Run, RunTable

BATCH = pa.record_batch(
    {
        "n": pa.array([1, 2, None, 4], pa.int64()),
        "s": ["a", "b", "c", None],
        "d": pa.array(["x", "y", "x", "y"]).dictionary_encode(),
        "t": pa.array([1, 2, 3, 4], pa.timestamp("us", "UTC")),
        "at": pa.array([{"k": 1}, {"k": 2}, None, {"k": 4}]),
        "a b": [True, False, None, True],
    }
)


def passing(text: str) -> list[int]:
    mask = Filter(text).mask(BATCH, first_seq=1, runs=None)
    return [row for row, passes in enumerate(mask.tolist(), start=1) if passes]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [1, 2, 3, 4]),
        ("n > 1", [2, 4]),
        ("n >= 2 and n < 4", [2]),
        ("n + 1 == 3 or s = 'c'", [2, 3]),
        ("not (n > 1)", [1]),
        ("!(n > 1) || s == 'b'", [1, 2]),
        ("s in ('a', 'c')", [1, 3]),
        ("s not in ('a')", [2, 3]),
        ("n in (1, 'z', -4, 4)", [1, 4]),
        ("n is null", [3]),
        ("n is not null && d = 'x'", [1]),
        ("exists(n) and exists(s)", [1, 2]),
        ("at.k >= 2", [2, 4]),
        ('"a b"', [1, 4]),
        ("-n < -2", [4]),
        ("n * 2 - 1 = 3", [2]),
        ("n / 2 = 0.5", [1]),
        ("t > '1970-01-01T00:00:00.000002Z'", [3, 4]),
        ("1 + 2 * 3 = 7", [1, 2, 3, 4]),
        ("true", [1, 2, 3, 4]),
        ("s = 'it''s'", []),
    ],
)
def test_an_expression_lets_these_rows_pass(text: str, rows: list[int]) -> None:
    assert passing(text) == rows


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("missing = 1", []),
        ("not (missing = 1)", []),
        ("missing = 1 or n = 4", [4]),
        ("n = 'a'", []),
        ("s > 1", []),
        ("s", []),
        ("n + s = 1", []),
        ("at.nothing = 1", []),
        ("n / 0 < 0", []),
        ("exists(missing)", []),
        ("missing is null", [1, 2, 3, 4]),
    ],
)
def test_what_cannot_be_worked_out_does_not_pass(text: str, rows: list[int]) -> None:
    assert passing(text) == rows


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("n >", 3),
        ("(n = 1", 6),
        ("n = 'x", 4),
        ("n = 1 #", 6),
        ("n in ()", 6),
        ("a b", 2),
        ("n in (n)", 7),
        ("a..b", 2),
        ("__import__('os')", 10),
        ("n = 1234567890123456789", 4),
        ("(" * 40 + "1", 32),
        ("+".join(["1"] * (OPERATORS_MAX + 2)), 129),
    ],
)
def test_a_text_that_cannot_be_read_names_the_character(text: str, at: int) -> None:
    with pytest.raises(InvalidFilter) as caught:
        parse(text)
    assert caught.value.at == at


@given(st.text(st.sampled_from("n s'\"()+-*/=<>!&|.,019 andorntisulex"), max_size=40))
def test_any_text_is_read_and_evaluated_or_refused(text: str) -> None:
    with suppress(InvalidFilter):
        assert len(passing(text)) <= 4


def test_partitions_choose_the_frames_of_any_of_them() -> None:
    runs = RunTable.from_runs(
        [
            Run(1, 2, 1, 0, partitions=("eu", "us")),
            Run(3, 1, 3, 0, partitions=("asia",)),
            Run(4, 1, 4, 0),
        ]
    )

    def mask(*partitions: str, first_seq: int = 1) -> list[bool]:
        rows = BATCH.slice(first_seq - 1)
        found: list[bool] = Filter("", partitions).mask(rows, first_seq=first_seq, runs=runs).tolist()
        return found

    assert mask("us") == [True, True, False, False]
    assert mask("asia", "eu") == [True, True, True, False]
    assert mask("") == [False, False, False, True]
    assert mask("asia", "", first_seq=2) == [False, True, True]
    assert mask("none") == [False] * 4


def test_partition_and_expression_must_both_agree() -> None:
    runs = RunTable.from_runs([Run(1, 3, 1, 0, partitions=("eu",)), Run(4, 1, 4, 0)])
    assert Filter("n >= 2", ("eu",)).mask(BATCH, first_seq=1, runs=runs).tolist() == [False, True, False, False]
