"""Gorilla timestamps: golden bits, every code, and places where pieces meet."""

from __future__ import annotations

import struct

import numpy as np
import pyarrow as pa
import pytest

from holdfast.wire.qwp import gorilla
from holdfast.wire.qwp.reader import Numbers, Reader
from tests.unit.wire.qwp.raw import LIMITS, column, message, refusal_of, table

EDGES = [0, 1, -1, 63, 64, -64, -65, 255, 256, -256, -257, 2047, 2048, -2048, -2049, (1 << 31) - 1, -(1 << 31)]


def with_changes(*changes: int) -> Numbers:
    """Timestamps whose differences change by these."""
    differences = 1000 + np.cumsum(np.array([0, *changes], np.int64))
    return np.cumsum(np.concatenate(([1_700_000_000_000_000], differences)))


def read(raw: bytes, count: int) -> list[int]:
    reader = Reader(pa.py_buffer(raw), LIMITS, offset=0)
    values = gorilla.decode(reader, count).tolist()
    assert reader.rest_bytes == 0
    return [int(value) for value in values]


@pytest.mark.parametrize(
    ("changes", "bits"),
    [
        ([0], "0"),
        ([1], "10" + "1000000"),
        ([-1], "10" + "1111111"),
        ([-64], "10" + "0000001"),
        ([64], "110" + "000000100"),
        ([256], "1110" + "000000001000"),
        ([2048], "1111" + "00000000000100000000000000000000"),
        ([0, 0, 1, 0], "0" + "0" + "10" + "1000000" + "0"),
    ],
)
def test_changes_are_written_as_these_bits(changes: list[int], bits: str) -> None:
    values = with_changes(*changes)
    tail = bytes(int(bits[i : i + 8][::-1], 2) for i in range(0, len(bits), 8))
    raw = struct.pack("<qq", values[0], values[1]) + tail
    assert gorilla.encode(values) == raw
    assert read(raw, len(values)) == values.tolist()


@pytest.mark.parametrize("change", EDGES)
def test_every_edge_of_a_code_comes_back(change: int) -> None:
    values = with_changes(change, -change if change > -(1 << 31) else 5, change, 0, change)
    raw = gorilla.encode(values)
    if raw is None:
        values = with_changes(change)
        raw = gorilla.encode(values)
    assert raw is not None
    assert read(raw, len(values)) == values.tolist()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_timestamps_are_written_plain(count: int) -> None:
    values = np.arange(count, dtype=np.int64)
    assert gorilla.encode(values) is None
    assert read(values.astype("<i8").tobytes(), count) == values.tolist()


def test_change_of_more_than_32_bits_is_not_written() -> None:
    assert gorilla.encode(with_changes(1 << 31)) is None
    assert gorilla.encode(with_changes(-(1 << 31) - 1)) is None


@pytest.mark.parametrize("piece_bytes", [5, 6, 7, 13, 64])
def test_codes_that_cross_a_piece_are_found(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gorilla, "PIECE_BYTES", piece_bytes)
    chance = np.random.default_rng(piece_bytes)
    values = with_changes(*chance.choice(EDGES[:-2], 500).tolist())
    raw = gorilla.encode(values)
    assert raw is not None
    assert read(raw, len(values)) == values.tolist()


def test_column_of_gorilla_timestamps_keeps_its_nulls() -> None:
    values = with_changes(0, 5, -3)
    raw = gorilla.encode(values)
    assert raw is not None
    found = column(0x0A, 7, b"\1\x22\1" + raw, flags=0x0C)
    assert found.type == pa.timestamp("us", "UTC")
    expected = values.tolist()
    assert found.cast(pa.int64()).to_pylist() == [expected[0], None, *expected[1:4], None, expected[4]]


def test_plain_timestamps_under_the_gorilla_flag_are_read() -> None:
    found = column(0x10, 2, b"\0\0" + struct.pack("<qq", 5, -(1 << 63)), flags=0x0C)
    assert found.cast(pa.int64()).to_pylist() == [5, None]


def test_dates_are_never_gorilla() -> None:
    assert column(0x0B, 1, b"\0" + struct.pack("<q", 7), flags=0x0C).cast(pa.int64()).to_pylist() == [7]


def test_unknown_encoding_of_timestamps_is_refused() -> None:
    error = refusal_of(message(table("t", 1, ("c", 0x0A, b"\0\2" + bytes(8))), flags=0x0C))
    assert "encoding 2" in error.reason


def test_differences_wrap_like_the_reference() -> None:
    raw = struct.pack("<qq", -(1 << 62), (1 << 62) + 5) + b"\0"
    first, second = -(1 << 62), (1 << 62) + 5
    third = (second + (second - first) + (1 << 63)) % (1 << 64) - (1 << 63)
    assert read(raw, 3) == [first, second, third]


def test_claim_of_more_timestamps_than_there_are_bits_is_refused() -> None:
    raw = message(table("t", 1_000_000, ("c", 0x0A, b"\0\1" + bytes(16 + 1000))), flags=0x0C)
    assert "1000000" not in refusal_of(raw).place
    short = message(table("t", 100, ("c", 0x0A, b"\0\1" + bytes(16) + b"\xff" * 14)), flags=0x0C)
    assert "ends inside a timestamp" in refusal_of(short).reason
