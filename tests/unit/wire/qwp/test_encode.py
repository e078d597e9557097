"""Entries to QWP messages: golden bytes, every Arrow type that has a form there, and what has none."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import InvalidBatch
from holdfast.model.frame import Entry
from holdfast.wire import qwp
from holdfast.wire.qwp.reader import Reader
from holdfast.wire.qwp.values import varints
from tests.unit.wire.qwp.raw import LIMITS, decode, longs, message, number, table
from tests.unit.wire.qwp.test_decode import GOLDEN

US = pa.timestamp("us", "UTC")


def encoded(array: pa.Array, **options: Any) -> bytes:
    return qwp.encode([Entry("t", pa.record_batch({"c": array}))], None, **options)


def back(array: pa.Array, **options: Any) -> pa.Array:
    return decode(encoded(array, **options)).entries[0].batch.column("c")


def test_golden_message_is_written_as_a_real_client_writes_it() -> None:
    dictionary = qwp.SymbolDictionary()
    dictionary.intern(["ETH", "BTC", "sell"])
    (entry,) = decode(GOLDEN).entries
    theirs = qwp.encode([entry], None, designated="timestamp")
    assert decode(theirs).entries[0].batch == entry.batch
    assert sorted(theirs) == sorted(GOLDEN)  # only the order in which new symbols are numbered is free
    later = qwp.encode([entry], dictionary, designated="timestamp")
    assert later[12:14] == b"\3\0"
    assert later[14:] == GOLDEN[27:]


def test_numbers_are_written_as_these_bytes() -> None:
    expected = message(table("t", 2, ("c", 0x05, longs(1, -1))))
    assert encoded(pa.array([1, -1])) == expected


def test_nulls_are_written_as_a_bitmap() -> None:
    expected = message(table("t", 3, ("c", 0x05, b"\1\x05" + longs(7)[1:])))
    assert encoded(pa.array([None, 7, None], pa.int64())) == expected


def test_designated_column_loses_its_name() -> None:
    raw = encoded(pa.array([5], US), designated="c")
    assert raw == message(table("t", 1, ("", 0x0A, longs(5))))
    assert decode(raw).entries[0].batch.schema.names == ["timestamp"]


def test_deferred_message_has_its_flag() -> None:
    assert qwp.encode([], None, deferred=True) == message(flags=0x09)
    assert qwp.encode([], None) == message(flags=0x08)


SAME = {
    "bool": pa.array([True, None, False]),
    "int8": pa.array([1, None, -128], pa.int8()),
    "int16": pa.array([1, None, -32768], pa.int16()),
    "int32": pa.array([1, None, -(1 << 31)], pa.int32()),
    "int64": pa.array([1, None, -(1 << 63)], pa.int64()),
    "int64, sentinel": pa.array([1, -(1 << 63)], pa.int64()),
    "int32, sentinel": pa.array([-(1 << 31)], pa.int32()),
    "float32": pa.array([1.5, None, math.inf], pa.float32()),
    "float64": pa.array([1.5, None, -math.inf], pa.float64()),
    "string": pa.array(["a", None, "é€"]),
    "binary": pa.array([b"\xff", None, b""]),
    "us": pa.array([1, None, -(1 << 63) + 1], US),
    "us, sentinel": pa.array([1, -(1 << 63)], pa.int64()).view(US),
    "ns": pa.array([1, None], pa.timestamp("ns", "UTC")),
    "ms": pa.array([1, None], pa.timestamp("ms", "UTC")),
    "uuid": pa.array([bytes(range(16)), None], pa.binary(16)),
    "long256": pa.array([bytes(range(32)), None], pa.binary(32)),
    "decimal128": pa.array([Decimal("1.25"), None, Decimal("-3.5")], pa.decimal128(38, 2)),
    "decimal256": pa.array([Decimal("1.25"), None], pa.decimal256(76, 3)),
    "doubles": pa.array([[1.0, math.inf], None, []], pa.list_(pa.float64())),
    "longs": pa.array([[[1, 2], [3, 4]], None, [[5]]], pa.list_(pa.list_(pa.int64()))),
    "symbols": pa.array(["a", None, "b", "a"]).dictionary_encode().cast(pa.dictionary(pa.int32(), pa.string())),
}


@pytest.mark.parametrize("name", SAME)
@pytest.mark.parametrize("slice_from", [0, 1])
def test_array_of_a_type_that_qwp_has_comes_back(name: str, slice_from: int) -> None:
    array = pa.concat_arrays([SAME[name]] * 5)[slice_from:]
    found = back(array, gorilla=True)
    if pa.types.is_dictionary(array.type):
        assert found.to_pylist() == array.to_pylist()
    else:
        assert found.equals(array)


WIDER = {
    "uint8": (pa.array([255, None], pa.uint8()), pa.int16()),
    "uint16": (pa.array([65535], pa.uint16()), pa.int32()),
    "uint32": (pa.array([(1 << 32) - 1], pa.uint32()), pa.int64()),
    "uint64": (pa.array([(1 << 63) - 1], pa.uint64()), pa.int64()),
    "half float": (pa.array(np.array([1.5], np.float16)), pa.float32()),
    "date32": (pa.array([3, None], pa.date32()), pa.timestamp("ms", "UTC")),
    "date64": (pa.array([86_400_000], pa.date64()), pa.timestamp("ms", "UTC")),
    "seconds": (pa.array([5], pa.timestamp("s", "UTC")), US),
    "large string": (pa.array(["x", None], pa.large_string()), pa.string()),
    "string view": (pa.array(["a text of more than twelve"], pa.string_view()), pa.string()),
    "large binary": (pa.array([b"x"], pa.large_binary()), pa.binary()),
    "fixed binary": (pa.array([b"xyz", None], pa.binary(3)), pa.binary()),
    "decimal32": (pa.array([Decimal("1.5")], pa.decimal32(5, 1)), pa.decimal128(38, 1)),
    "decimal64": (pa.array([Decimal("1.5")], pa.decimal64(18, 1)), pa.decimal128(38, 1)),
    "numbers with a dictionary": (pa.array([7, 8, 7]).dictionary_encode(), pa.int64()),
    "large list": (pa.array([[1.0], [2.0, 3.0]], pa.large_list(pa.float64())), pa.list_(pa.float64())),
    "fixed list": (pa.array([[1, 2], [3, 4]], pa.list_(pa.int64(), 2)), pa.list_(pa.int64())),
}


@pytest.mark.parametrize("name", WIDER)
def test_array_of_a_type_that_qwp_lacks_comes_back_in_a_wider_one(name: str) -> None:
    array, data_type = WIDER[name]
    found = back(array)
    assert found.type == data_type
    plain = array.dictionary_decode() if pa.types.is_dictionary(array.type) else array
    if pa.types.is_date(plain.type):
        plain = plain.cast(pa.timestamp("ms"))
    assert found.equals(plain.cast(data_type))


def test_nan_is_not_taken_for_a_null() -> None:
    found = back(pa.array([math.nan, 1.0]))
    assert found.null_count == 0
    assert math.isnan(found[0].as_py())


def test_null_among_the_values_of_a_dictionary_is_a_null() -> None:
    array = pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None]))
    assert back(array).to_pylist() == ["a", None, None]


def test_symbols_that_no_row_uses_are_not_sent() -> None:
    dictionary = qwp.SymbolDictionary()
    array = pa.DictionaryArray.from_arrays(pa.array([2]), pa.array(["a", "b", "c"]))
    qwp.encode([Entry("t", pa.record_batch({"c": array}))], dictionary)
    assert dictionary.encoded(0, dictionary.size) == [b"c"]


def test_column_of_the_null_type_is_left_out() -> None:
    batch = pa.record_batch({"n": pa.nulls(2), "c": pa.array([1, 2])})
    (entry,) = decode(qwp.encode([Entry("t", batch)], None)).entries
    assert entry.batch.schema.names == ["c", "timestamp"]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (pa.array([{"a": 1}]), "no form in QWP"),
        (pa.array([1], pa.duration("us")), "no form in QWP"),
        (pa.array([1 << 63], pa.uint64()), "does not fit"),
        (pa.array([Decimal("100")], pa.decimal128(5, -2)), "scale -2"),
        (pa.array([["a"]]), "arrays of float64"),
        (pa.array([[1.0, None]]), "without nulls"),
        (pa.array([[[1.0], None]]), "null inside"),
        (pa.array([[[1.0], [2.0, 3.0]]]), "different lengths"),
    ],
)
def test_values_without_a_form_in_qwp_are_refused(array: pa.Array, reason: str) -> None:
    with pytest.raises(InvalidBatch, match=reason) as caught:
        encoded(array)
    assert "column 'c'" in caught.value.reason


def test_names_and_sizes_beyond_the_limits_are_not_written() -> None:
    one = pa.array([1])
    for batch in (pa.record_batch({"x" * 128: one}), pa.record_batch({f"c{i}": one for i in range(2049)})):
        with pytest.raises(InvalidBatch):
            qwp.encode([Entry("t", batch)], None)
    with pytest.raises(InvalidBatch, match="1000001 rows"):
        qwp.encode([Entry("t", pa.record_batch({"c": pa.nulls(1_000_001, pa.int8())}))], None)
    with pytest.raises(InvalidBatch, match="tables"):
        qwp.encode([Entry("t", pa.record_batch({"c": one}))] * 10_001, None)
    with pytest.raises(InvalidBatch, match="designated"):
        encoded(one, designated="c")


@pytest.mark.parametrize("name", SAME)
def test_column_of_nulls_alone_comes_back(name: str) -> None:
    found = back(pa.nulls(3, SAME[name].type))
    assert found.null_count == 3
    assert found.type in {SAME[name].type, pa.null()}


def test_message_whose_symbols_do_not_fit_the_dictionary_is_not_written() -> None:
    batch = pa.record_batch({"c": pa.array(["a", "b"]).dictionary_encode()})
    with pytest.raises(InvalidBatch, match="at most 1 are allowed"):
        qwp.encode([Entry("t", batch)], qwp.SymbolDictionary(entries_max=1))


def test_many_varints_are_written_like_single_ones() -> None:
    values = [0, 127, 128, 16383, 16384, (1 << 21) - 1, 1 << 21, (1 << 32) - 1, 5]
    raw = varints(np.array(values))
    assert raw == b"".join(number(value) for value in values)
    assert Reader(pa.py_buffer(raw), LIMITS, offset=0).ids(len(values)).tolist() == values
