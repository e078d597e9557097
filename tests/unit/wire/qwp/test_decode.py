"""QWP messages as a whole: header, tables, timestamps, limits."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.errors import Category, WireError
from holdfast.wire import qwp
from holdfast.wire.limits import FrameLimits
from tests.unit.wire.qwp.raw import (
    LONG,
    NOW_US,
    SYMBOL,
    TIMESTAMP,
    decode,
    delta,
    longs,
    message,
    number,
    refusal_of,
    symbols_of,
    table,
)

ONE = table("t", 1, ("c", LONG, longs(7)))
GOLDEN = bytes.fromhex(
    "515750310108010084000000000303455448034254430473656c6c0674726164657302070373796d0904736964650905707269636507016e"
    "0501730f016201000a00000100020200000000000000f83f00000000000004400007000000000000000800000000000000000000000006"
    "0000000700000068c3a96c6c6f7800010000401e18240a060040822d18240a0600"
)


def patched(raw: bytes, offset: int, part: bytes) -> bytes:
    return raw[:offset] + part + raw[offset + len(part) :]


def test_message_of_a_real_client_is_read_as_it_was_meant() -> None:
    dictionary = qwp.SymbolDictionary()
    found = decode(GOLDEN, dictionary)
    (entry,) = found.entries
    assert (found.deferred, entry.channel, entry.partitions) == (False, "trades", ())
    rows = entry.batch.set_column(6, "timestamp", entry.batch.column("timestamp").cast(pa.int64())).to_pydict()
    assert rows == {
        "sym": ["ETH", "BTC"],
        "side": ["sell", "sell"],
        "price": [1.5, 2.5],
        "n": [7, 8],
        "s": ["héllo", "x"],
        "b": [True, False],
        "timestamp": [1_700_000_000_000_000, 1_700_000_001_000_000],
    }
    assert symbols_of(dictionary) == [b"ETH", b"BTC", b"sell"]


def test_column_without_a_name_becomes_the_timestamp_wherever_it_stands() -> None:
    (entry,) = decode(
        message(table("t", 1, ("a", LONG, longs(1)), ("", 0x10, longs(5)), ("b", LONG, longs(2))))
    ).entries
    assert entry.batch.schema.names == ["a", "timestamp", "b"]
    assert entry.batch.schema.field("timestamp").type == pa.timestamp("ns", "UTC")


def test_rows_without_a_timestamp_get_the_time_of_the_server() -> None:
    (entry,) = decode(message(table("t", 2, ("a", LONG, longs(1, 2))))).entries
    assert entry.batch.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert entry.batch.column("timestamp").cast(pa.int64()).to_pylist() == [NOW_US, NOW_US]


def test_column_called_timestamp_is_kept_as_it_is() -> None:
    (entry,) = decode(message(table("t", 1, ("timestamp", LONG, longs(1))))).entries
    assert entry.batch.column("timestamp").to_pylist() == [1]


def test_tables_become_entries_in_their_order() -> None:
    blocks = [table(name, 1, ("c", LONG, longs(1))) for name in ("b", "a", "b")]
    assert [entry.channel for entry in decode(message(*blocks)).entries] == ["b", "a", "b"]


def test_table_without_rows_is_no_entry() -> None:
    empty = table("t", 0, ("c", LONG, b"\0"), ("s", SYMBOL, b"\1"), ("v", 0x0F, b"\0" + bytes(4)))
    assert decode(message(empty, ONE)).entries[0].batch.num_rows == 1
    assert len(decode(message(empty)).entries) == 0


def test_message_without_tables_says_only_whether_it_defers() -> None:
    assert decode(message(flags=0x09)) == qwp.QwpMessage((), tables=0, deferred=True)
    assert decode(message(flags=0x08)) == qwp.QwpMessage((), tables=0, deferred=False)
    assert decode(message(flags=0x00)) == qwp.QwpMessage((), tables=0, deferred=False)


def test_gorilla_flag_changes_nothing_where_there_is_no_timestamp() -> None:
    assert decode(message(ONE, flags=0x0C)).entries[0].batch.column("c").to_pylist() == [7]


def test_deferred_message_says_so() -> None:
    assert decode(message(ONE, flags=0x09)).deferred


@pytest.mark.parametrize(
    ("raw", "place", "reason"),
    [
        (b"", "byte 0", "0 bytes"),
        (GOLDEN[:11], "byte 11", "header"),
        (patched(GOLDEN, 0, b"HFA1"), "byte 0", "48464131"),
        (patched(GOLDEN, 4, b"\2"), "byte 4", "version 2"),
        (patched(GOLDEN, 5, b"\x18"), "byte 5", "0x18"),
        (patched(GOLDEN, 5, b"\x0a"), "byte 5", "0x0a"),
        (GOLDEN + b"\0", "byte 8", "133"),
        (message(ONE, tables=0), "byte", "behind the last table"),
        (message(ONE, tables=2), "byte", "message ends"),
        (message(ONE, tables=1025), "byte 6", "1025 tables"),
        (message(table("", 1, ("c", LONG, longs(1)))), "byte", "empty"),
        (message(table("a/b", 1, ("c", LONG, longs(1)))), "byte", "'a/b'"),
        (message(table("x" * 128, 1, ("c", LONG, longs(1)))), "byte", "at most 127"),
        (message(table(b"\xff", 1, ("c", LONG, longs(1)))), "byte", "UTF-8"),
        (message(table("t", 1, (b"\xff", LONG, longs(1)))), "byte", "UTF-8"),
        (message(table("t", 1, ("", LONG, longs(1)))), "byte", "LONG without a name"),
        (message(table("t", 1, ("c", 0x08, longs(1)))), "byte", "0x08"),
        (message(table("t", 1, ("c", 0x19, longs(1)))), "byte", "0x19"),
        (message(table("t", 1, ("c", 0xFF, longs(1)))), "byte", "0xff"),
        (message(table("t", 1, ("c", LONG, longs(1)), ("c", LONG, longs(1)))), "byte", "'c' appears twice"),
        (message(table("t", 1, ("timestamp", LONG, longs(1)), ("", TIMESTAMP, longs(1)))), "byte", "appears twice"),
        (message(table("t", 1_000_001)), "byte", "1000001 rows"),
        (message(table("t", 1 << 63)), "byte", "rows"),
        (message(b"\1t" + b"\xff" * 10), "byte", "does not end"),
        (message(b"\1t\1" + number(2049)), "byte", "2049 columns"),
    ],
)
def test_malformed_message_is_refused_with_place_and_reason(raw: bytes, place: str, reason: str) -> None:
    error = refusal_of(raw)
    assert error.place.startswith(place)
    assert reason in error.reason


def test_error_names_byte_and_table_and_column() -> None:
    error = refusal_of(message(ONE, table("quotes", 1, ("price", 0x07, b"\0\0"))))
    assert error.place == "byte 47, table 'quotes', column 'price'"
    assert str(error) == "byte 47, table 'quotes', column 'price': 1 values of 8 bytes, but only 1 are left"


def test_limits_of_the_caller_hold() -> None:
    two = message(ONE, ONE)
    assert len(decode(two, limits=FrameLimits(tables=2)).entries) == 2
    for limits in (FrameLimits(tables=1), FrameLimits(entries=1), FrameLimits(message_bytes=len(two) - 1)):
        refusal_of(two, limits=limits)
    refusal_of(message(ONE), limits=FrameLimits(columns=0))
    refusal_of(message(table("t", 2, ("c", LONG, longs(1, 2)))), limits=FrameLimits(rows=1))
    refusal_of(message(table("tt", 1, ("c", LONG, longs(1)))), limits=FrameLimits(name_bytes=1))


def test_rows_without_columns_count_against_the_memory_of_a_message() -> None:
    raw = message(*[table("t", 1_000_000)] * 9)
    assert len(raw) < 100
    assert "in memory" in refusal_of(raw).reason
    assert decode(message(table("t", 3))).entries[0].batch.num_rows == 3


def test_columns_count_against_the_memory_of_a_message() -> None:
    wide = table("t", 1, *[(f"c{i}", 0x02, b"\0\0") for i in range(2000)])
    assert "in memory" in refusal_of(message(*[wide] * 40)).reason
    assert len(decode(message(*[wide] * 3)).entries) == 3


# --------------------------------------------------------------------------------------------------------------- damage

DAMAGED = {
    "golden": GOLDEN,
    "own symbols": message(
        table(
            "t",
            3,
            ("s", SYMBOL, b"\1\2\2\1a\1b\0\1"),
            ("u", 0x0C, b"\1\6" + bytes(16)),
            ("g", 0x0E, b"\0\x05\1\2\3"),
        ),
        flags=0,
    ),
    "gorilla": message(table("t", 5, ("", TIMESTAMP, b"\0\1" + bytes(16) + b"\x0a\x00")), flags=0x0D),
    "arrays": message(
        table(
            "t",
            2,
            ("a", 0x11, b"\0\1\1\0\0\0" + bytes(8) + b"\1\2\0\0\0" + bytes(16)),
            ("d", 0x14, b"\1\1\3" + bytes(16)),
        )
    ),
    "texts": message(table("t", 2, ("c", 0x16, b"\0A\0\xe9\0"), ("b", 0x01, b"\1\1\1"), ("i", 0x18, b"\1\2\1\2\3\4"))),
    "symbols": message(table("t", 2, ("s", SYMBOL, b"\0\x01\x80\x00")), symbols=delta(0, "é", "b")),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_every_truncation_of_a_message_is_refused_and_leaves_no_symbol(name: str) -> None:
    decode(DAMAGED[name])
    for size in range(len(DAMAGED[name])):
        for raw in (DAMAGED[name][:size], relabelled(DAMAGED[name][:size])):
            dictionary = qwp.SymbolDictionary()
            refusal_of(raw, dictionary)
            assert dictionary.size == 0


@pytest.mark.parametrize("name", DAMAGED)
def test_every_bit_flip_of_a_message_is_read_or_refused(name: str) -> None:
    for bit in range(len(DAMAGED[name]) * 8):
        flipped = bytearray(DAMAGED[name])
        flipped[bit // 8] ^= 1 << (bit % 8)
        dictionary = qwp.SymbolDictionary()
        try:
            qwp.decode(bytes(flipped), dictionary, FrameLimits(), now_us=0)
        except WireError:
            assert dictionary.size == 0


def relabelled(raw: bytes) -> bytes:
    """The same bytes with a header that agrees with their length."""
    return patched(raw, 8, (len(raw) - 12).to_bytes(4, "little")) if len(raw) >= 12 else raw


def test_gap_in_the_dictionary_has_its_own_category() -> None:
    error = refusal_of(message(symbols=delta(1, "a")), category=Category.DICTIONARY_GAP)
    assert "begin at id 1, but the dictionary has 0" in error.reason
