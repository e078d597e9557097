"""Every column type of QWP, from bytes written by hand to Arrow."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.model.schema import BatchLimits, check_batch
from holdfast.wire.limits import FrameLimits
from tests.unit.wire.qwp.raw import column, decode, message, named, number, refusal_of, table

UTC_US, UTC_NS, UTC_MS = (pa.timestamp(unit, "UTC") for unit in ("us", "ns", "ms"))
SYMBOL = pa.dictionary(pa.int32(), pa.string())
LOWEST = -(1 << 63)


def packed(form: str, *values: Any) -> bytes:
    return struct.pack("<" + form, *values)


def array(*shape: int, values: bytes) -> bytes:
    return bytes([len(shape)]) + packed(f"{len(shape)}i", *shape) + values


# one row per case: type code, Arrow type, rows, bytes from the null flag on
CASES: dict[str, tuple[int, pa.DataType, list[Any], bytes]] = {
    "boolean": (0x01, pa.bool_(), [True, False, True] + [False] * 5 + [True], b"\0\x05\x01"),
    "boolean, nulls": (0x01, pa.bool_(), [True, None, False, True], b"\1\x02\x05"),
    "byte": (0x02, pa.int8(), [1, -128, 0], b"\0\x01\x80\x00"),
    "byte, nulls": (0x02, pa.int8(), [None, 7, None], b"\1\x05\x07"),
    "short": (0x03, pa.int16(), [-32768, 258], b"\0\x00\x80\x02\x01"),
    "int": (0x04, pa.int32(), [1, None, -1], b"\0" + packed("iii", 1, -(1 << 31), -1)),
    "int, bitmap": (0x04, pa.int32(), [None, -(1 << 31)], b"\1\x01" + packed("i", -(1 << 31))),
    "long": (0x05, pa.int64(), [1, None, -1], b"\0" + packed("qqq", 1, LOWEST, -1)),
    "long, bitmap": (0x05, pa.int64(), [None, LOWEST, 5], b"\1\x01" + packed("qq", LOWEST, 5)),
    "long, any flag": (0x05, pa.int64(), [None, 5], b"\xff\x01" + packed("q", 5)),
    "float": (0x06, pa.float32(), [1.5, None], b"\0" + packed("ff", 1.5, float("nan"))),
    "double": (0x07, pa.float64(), [1.5, None, -0.0], b"\0" + packed("ddd", 1.5, float("nan"), -0.0)),
    "double, bitmap": (0x07, pa.float64(), [None, 2.5], b"\1\x01" + packed("d", 2.5)),
    "symbol, own": (0x09, SYMBOL, ["b", "a", None, "b"], b"\1\x04\x02" + named("a") + named("b") + b"\1\0\1"),
    "timestamp": (0x0A, UTC_US, [0, -1, None], b"\0" + packed("qqq", 0, -1, LOWEST)),
    "timestamp, nulls": (0x0A, UTC_US, [None, 8], b"\1\x01" + packed("q", 8)),
    "date": (0x0B, UTC_MS, [5, None], b"\0" + packed("qq", 5, LOWEST)),
    "uuid": (0x0C, pa.binary(16), [bytes(range(16)), None], b"\1\x02" + bytes(range(15, -1, -1))),
    "long256": (0x0D, pa.binary(32), [bytes(range(32))], b"\0" + bytes(range(31, -1, -1))),
    "geohash, letters": (0x0E, pa.string(), ["u33d", None], b"\0\x14" + bytes.fromhex("6c0c0d ffffff")),
    "geohash, bits": (0x0E, pa.string(), [None, "##101"], b"\1\x01\x03\x05"),
    "geohash, 60 bits": (0x0E, pa.string(), ["z" * 11 + "y", "0" * 12], b"\0\x3c" + packed("QQ", (1 << 60) - 2, 0)),
    "varchar": (0x0F, pa.string(), ["hé", "", "x"], b"\0" + packed("4I", 0, 3, 3, 4) + "héx".encode()),
    "varchar, nulls": (0x0F, pa.string(), [None, "a", None, ""], b"\1\x05" + packed("3I", 0, 1, 1) + b"a"),
    "varchar, only nulls": (0x0F, pa.string(), [None, None], b"\1\x03" + packed("I", 0)),
    "nanos": (0x10, UTC_NS, [1, None], b"\0" + packed("qq", 1, LOWEST)),
    "doubles": (
        0x11,
        pa.list_(pa.float64()),
        [[1.0, 2.0], []],
        b"\0" + array(2, values=packed("dd", 1, 2)) + array(0, values=b""),
    ),
    "longs": (
        0x12,
        pa.list_(pa.int64()),
        [[7], None, [8]],
        b"\1\x02" + array(1, values=packed("q", 7)) + array(1, values=packed("q", 8)),
    ),
    "matrix": (
        0x11,
        pa.list_(pa.list_(pa.float64())),
        [[[1.0, 2.0], [3.0, 4.0]], [[5.0]], [], None],
        b"\1\x08"
        + array(2, 2, values=packed("4d", 1, 2, 3, 4))
        + array(1, 1, values=packed("d", 5))
        + array(9, 0, values=b""),
    ),
    "cubes of one shape": (
        0x12,
        pa.list_(pa.list_(pa.list_(pa.int64()))),
        [[[[1, 2]], [[3, 4]]], [[[5, 6]], [[7, 8]]]],
        b"\0" + array(2, 1, 2, values=packed("4q", 1, 2, 3, 4)) + array(2, 1, 2, values=packed("4q", 5, 6, 7, 8)),
    ),
    "arrays, only nulls": (0x11, pa.null(), [None, None], b"\1\x03"),
    "decimal64": (
        0x13,
        pa.decimal128(18, 2),
        [Decimal("1.25"), None, Decimal("-3.50")],
        b"\1\x02\x02" + packed("qq", 125, -350),
    ),
    "decimal128": (0x14, pa.decimal128(38, 1), [Decimal("-0.1")], b"\0\x01" + b"\xff" * 16),
    "decimal256": (
        0x15,
        pa.decimal256(76, 0),
        [Decimal(-2), Decimal(1)],
        b"\0\0\xfe" + b"\xff" * 31 + b"\1" + bytes(31),
    ),
    "decimals, only nulls": (0x15, pa.null(), [None], b"\1\x01\x00"),
    "char": (0x16, pa.string(), ["A", None, "é", "€"], b"\0" + packed("4H", 65, 0, 0xE9, 0x20AC)),
    "char, bitmap": (0x16, pa.string(), [None, "\0"], b"\1\x01" + packed("H", 0)),
    "binary": (0x17, pa.binary(), [b"\xff\0", None], b"\1\x02" + packed("2I", 0, 2) + b"\xff\0"),
    "address": (0x18, pa.string(), ["1.2.3.4", "0.0.0.0"], b"\0\4\3\2\1\0\0\0\0"),
    "address, nulls": (0x18, pa.string(), [None, "255.0.10.200"], b"\1\x01\xc8\x0a\x00\xff"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_column_of_every_type_becomes_its_arrow_type(name: str) -> None:
    code, data_type, rows, body = CASES[name]
    found = column(code, len(rows), body, flags=0)
    expected = pa.array(rows, pa.string() if pa.types.is_dictionary(data_type) else data_type)
    assert found.type == data_type
    assert found.cast(expected.type).equals(expected)


@pytest.mark.parametrize("name", CASES)
def test_store_takes_every_column_as_it_comes(name: str) -> None:
    code, _, rows, body = CASES[name]
    (entry,) = decode(message(table("t", len(rows), ("c", code, body)), flags=0)).entries
    check_batch("t", entry.batch, BatchLimits(rows_max=1000, bytes_max=1 << 20))


@pytest.mark.parametrize("name", CASES)
def test_every_truncation_of_a_column_is_refused_with_its_name(name: str) -> None:
    code, _, rows, body = CASES[name]
    for size in range(len(body)):
        error = refusal_of(message(table("t", len(rows), ("c", code, body[:size])), flags=0))
        assert "table 't', column 'c'" in error.place


def test_nan_stays_nan_where_a_bitmap_speaks_for_nulls() -> None:
    found = column(0x07, 2, b"\1\x02" + packed("d", float("nan")))
    assert found.null_count == 1
    assert np.isnan(found[0].as_py())


@pytest.mark.parametrize(
    ("code", "rows", "body", "reason"),
    [
        (0x0E, 1, b"\0\x00", "no bits"),
        (0x0E, 1, b"\0\x3d" + bytes(8), "at most 60"),
        (0x0E, 1, b"\0\x14\x00\x00\x10", "more than its 20 bits"),
        (0x0F, 1, b"\0" + packed("II", 1, 1) + b"x", "begin at 0"),
        (0x0F, 2, b"\0" + packed("III", 0, 2, 1) + b"xx", "fall"),
        (0x0F, 1, b"\0" + packed("II", 0, 1 << 31), "left"),
        (0x0F, 1, b"\0" + packed("II", 0, 1) + b"\xff", "UTF-8"),
        (0x0F, 2, b"\0" + packed("III", 0, 1, 2) + "é".encode(), "UTF-8"),
        (0x09, 1, b"\0\x01\x01\xff\x00", "UTF-8"),
        (0x09, 1, b"\0\x01\x01a\x01", "symbol id 1"),
        (0x09, 1, b"\0\x00\x00", "has 0 symbols"),
        (0x11, 1, b"\0\x00", "0 dimensions"),
        (0x11, 1, b"\0" + array(*[1] * 16, values=bytes(8)), "16 dimensions"),
        (0x11, 1, b"\0" + array(-1, values=b""), "shape"),
        (0x11, 1, b"\0" + array(-1, -1, values=bytes(8)), "shape"),
        (0x11, 1, b"\0" + array(1 << 30, 1 << 30, values=bytes(8)), "left"),
        (0x11, 2, b"\0" + array(1, values=bytes(8)) + array(1, 1, values=bytes(8)), "2 dimensions"),
        (0x13, 1, b"\0\x13" + bytes(8), "scale 19"),
        (0x15, 1, b"\0\xff" + bytes(32), "scale 255"),
        (0x16, 1, b"\0" + packed("H", 0xD800), "surrogate"),
    ],
)
def test_values_that_mean_nothing_are_refused(code: int, rows: int, body: bytes, reason: str) -> None:
    error = refusal_of(message(table("t", rows, ("c", code, body)), flags=0))
    assert reason in error.reason


def test_shape_without_elements_stands_for_no_lists() -> None:
    found = column(0x11, 1, b"\0" + array(1 << 30, 0, values=b""))
    assert found.to_pylist() == [[]]


def test_symbols_of_a_batch_are_only_those_that_occur() -> None:
    symbols = number(0) + number(300) + b"".join(named(f"s{i}") for i in range(300))
    found = column(0x09, 4, b"\0" + number(299) + number(3) + number(299) + number(128), symbols=symbols)
    assert found.to_pylist() == ["s299", "s3", "s299", "s128"]
    assert found.dictionary.to_pylist() == ["s3", "s128", "s299"]


def test_symbol_ids_may_be_longer_than_they_need_to_be() -> None:
    assert column(0x09, 2, b"\0\x80\x80\x00\x81\x00", symbols=b"\0\2\1a\1b").to_pylist() == ["a", "b"]


@pytest.mark.parametrize("ids", [b"\x80\x80\x80\x80\x80\x00", b"\x80\x80\x80\x80\x80", b"\xff\xff\xff\xff\x7f"])
def test_symbol_ids_beyond_their_bound_are_refused(ids: bytes) -> None:
    refusal_of(message(table("t", 1, ("c", 0x09, b"\0" + ids)), symbols=b"\0\1\1a"))


def test_symbol_id_that_is_too_long_is_refused_among_others() -> None:
    raw = message(table("t", 2, ("c", 0x09, b"\0\x80\x80\x80\x80\x80\x00\x00")), symbols=b"\0\1\1a")
    assert "more than 5 bytes" in refusal_of(raw).reason


def test_rows_of_nulls_count_against_the_memory_of_a_message() -> None:
    rows = 1_000_000
    nulls = ("c%d", 0x0D, b"\1" + b"\xff" * (rows // 8))
    raw = message(*[table("t", rows, *[(f"c{i}", nulls[1], nulls[2]) for i in range(3)])])
    allocated = pa.total_allocated_bytes()
    assert "67108864 bytes in memory" in refusal_of(raw).reason
    assert pa.total_allocated_bytes() == allocated
    assert decode(raw, limits=FrameLimits(decoded_bytes=128 << 20)).entries[0].batch.num_rows == rows
