"""The symbol dictionary of a connection: deltas, gaps, meanings said anew, catch-up."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import Category
from holdfast.model.frame import Entry
from holdfast.wire import qwp
from holdfast.wire.qwp import symbols
from tests.unit.wire.qwp.raw import LIMITS, SYMBOL, decode, delta, message, refusal_of, symbols_of, table

BROKEN = table("t", 1, ("s", SYMBOL, b"\0\x63"))


def use(*ids: int) -> bytes:
    return table("t", len(ids), ("s", SYMBOL, b"\0" + bytes(ids)))


def known(*texts: str) -> qwp.SymbolDictionary:
    dictionary = qwp.SymbolDictionary()
    decode(message(symbols=delta(0, *texts)), dictionary)
    return dictionary


def test_delta_extends_the_dictionary_of_the_connection() -> None:
    dictionary = known("a", "b")
    found = decode(message(use(2, 0), symbols=delta(2, "c")), dictionary)
    assert found.entries[0].batch.column("s").to_pylist() == ["c", "a"]
    assert symbols_of(dictionary) == [b"a", b"b", b"c"]


def test_gap_is_refused_and_changes_nothing() -> None:
    dictionary = known("a")
    error = refusal_of(message(symbols=delta(2, "c")), dictionary, category=Category.DICTIONARY_GAP)
    assert "begin at id 2, but the dictionary has 1" in error.reason
    assert symbols_of(dictionary) == [b"a"]


def test_empty_delta_beyond_the_end_is_a_gap_too() -> None:
    refusal_of(message(symbols=delta(1)), known(), category=Category.DICTIONARY_GAP)


def test_delta_below_the_end_says_anew_what_ids_mean() -> None:
    dictionary = known("a", "b", "c")
    found = decode(message(use(0, 1, 2, 3), symbols=delta(1, "B", "C", "D")), dictionary)
    assert found.entries[0].batch.column("s").to_pylist() == ["a", "B", "C", "D"]
    decode(message(symbols=delta(0, "longer than before")), dictionary)
    assert symbols_of(dictionary) == [b"longer than before", b"B", b"C", b"D"]


@pytest.mark.parametrize("first", [0, 1, 2])
def test_empty_delta_changes_nothing(first: int) -> None:
    dictionary = known("a", "b")
    decode(message(symbols=delta(first)), dictionary)
    assert symbols_of(dictionary) == [b"a", b"b"]


def test_message_without_the_delta_flag_leaves_the_dictionary_alone() -> None:
    dictionary = known("a")
    body = table("t", 1, ("s", SYMBOL, b"\0\1\1z\0"))
    assert decode(message(body, flags=0), dictionary).entries[0].batch.column("s").to_pylist() == ["z"]
    assert symbols_of(dictionary) == [b"a"]


@pytest.mark.parametrize("change", [delta(2, "c"), delta(0, "x", "y", "z"), delta(1, "q")])
def test_message_refused_later_takes_its_symbols_back(change: bytes) -> None:
    dictionary = known("a", "b")
    refusal_of(message(use(0), BROKEN, symbols=change), dictionary)
    assert symbols_of(dictionary) == [b"a", b"b"]
    assert dictionary.size_bytes == 2
    decode(message(use(2), symbols=delta(2, "c")), dictionary)
    assert symbols_of(dictionary) == [b"a", b"b", b"c"]


def test_symbols_may_be_empty_or_equal() -> None:
    dictionary = known("", "a", "a")
    found = decode(message(use(0, 1, 2)), dictionary)
    assert found.entries[0].batch.column("s").to_pylist() == ["", "a", "a"]


def test_symbol_that_is_not_utf8_is_refused() -> None:
    dictionary = known("a")
    assert "UTF-8" in refusal_of(message(symbols=delta(1, b"\xff")), dictionary).reason
    assert "UTF-8" in refusal_of(message(symbols=delta(1, b"\xc3", b"\xa9")), dictionary).reason
    assert dictionary.size == 1


@pytest.mark.parametrize(
    ("dictionary", "change", "reason"),
    [
        (qwp.SymbolDictionary(entries_max=2), delta(0, "a", "b", "c"), "3 symbols, at most 2"),
        (qwp.SymbolDictionary(bytes_max=4), delta(0, "abc", "de"), "more than 4 bytes"),
        (qwp.SymbolDictionary(), b"\0\xff\xff\xff\xff\x0f", "at most 2000000"),
        (qwp.SymbolDictionary(), b"\0\x64", "100 symbols"),
        (qwp.SymbolDictionary(), b"\0\x01\x7f", "127 bytes"),
        (qwp.SymbolDictionary(), b"\0\x01" + b"\xff" * 9 + b"\x01", "only 0 are left"),
    ],
)
def test_dictionary_is_bounded_in_symbols_and_bytes(
    dictionary: qwp.SymbolDictionary, change: bytes, reason: str
) -> None:
    assert reason in refusal_of(message(symbols=change), dictionary).reason
    assert dictionary.size == 0


def test_bytes_of_replaced_symbols_do_not_count() -> None:
    dictionary = qwp.SymbolDictionary(bytes_max=4)
    for text in ("abcd", "efgh", "ijkl"):
        decode(message(symbols=delta(0, text)), dictionary)
    assert dictionary.size_bytes == 4


def test_meanings_said_anew_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbols, "SLACK_BYTES", 64)
    dictionary = known(*"abcdefgh")
    for turn in range(200):
        decode(message(use(7, 3), symbols=delta(0, *[f"{turn}-{i}" for i in range(8)])), dictionary)
        assert len(dictionary._data) < 1000
    assert symbols_of(dictionary) == [f"199-{i}".encode() for i in range(8)]


@pytest.mark.parametrize("limit_bytes", [64, 100, 1000, 1 << 20])
def test_catch_up_teaches_a_new_connection_everything(limit_bytes: int) -> None:
    dictionary = known(*[f"s{i}" for i in range(500)], "", "é" * 10)
    messages = qwp.catch_up(dictionary, limit_bytes)
    fresh = qwp.SymbolDictionary()
    for raw in messages:
        assert len(raw) <= limit_bytes
        assert decode(raw, fresh) == qwp.QwpMessage((), tables=0, deferred=False)
    assert symbols_of(fresh) == symbols_of(dictionary)
    assert (len(messages) > 1) == (limit_bytes < 1 << 20)


def test_catch_up_of_nothing_is_no_message() -> None:
    assert qwp.catch_up(qwp.SymbolDictionary(), 1000) == []


def test_catch_up_cannot_split_a_symbol() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        qwp.catch_up(known("x" * 100), 100)


def test_catch_up_is_written_as_a_real_client_writes_it() -> None:
    assert qwp.catch_up(known("ETH", "BTC"), 1000)[0].hex() == "515750310108" + "0000" + "0a000000" + "0002" + (
        "03455448" + "03425443"
    )


# -------------------------------------------------------------------------------------------------------------- writing


def rows(*texts: str | None) -> pa.RecordBatch:
    return pa.record_batch({"s": pa.array(texts, pa.string()).dictionary_encode()})


def test_message_carries_only_symbols_new_to_the_connection() -> None:
    ours, theirs = qwp.SymbolDictionary(), qwp.SymbolDictionary()
    sizes = []
    for batch in (rows("a", "b", None), rows("b", "a"), rows("c", "a"), rows()):
        raw = qwp.encode([Entry("t", batch)], ours)
        sizes.append(ours.size)
        found = qwp.decode(raw, theirs, LIMITS, now_us=0)
        if batch.num_rows:
            assert found.entries[0].batch.column("s").to_pylist() == batch.column("s").to_pylist()
        assert symbols_of(theirs) == symbols_of(ours)
    assert sizes == [2, 2, 3, 3]


def test_message_without_a_dictionary_stands_alone() -> None:
    raw = qwp.encode([Entry("t", rows("a", "b")), Entry("u", rows("b"))], None)
    for _ in range(2):
        found = decode(raw, known("x", "y", "z"))
        assert [entry.batch.column("s").to_pylist() for entry in found.entries] == [["a", "b"], ["b"]]


def test_message_that_cannot_be_written_adds_no_symbol() -> None:
    dictionary = known("a")
    bad = pa.record_batch({"x": pa.array([{"y": 1}])})
    with pytest.raises(Exception, match="no form in QWP"):
        qwp.encode([Entry("t", rows("new")), Entry("u", bad)], dictionary)
    assert symbols_of(dictionary) == [b"a"]
    assert dictionary.intern(["b", "a", "b"]) == [1, 0, 1]


def test_truncate_takes_back_the_symbols_of_a_message_never_sent() -> None:
    dictionary = known("a")
    qwp.encode([Entry("t", rows("b", "c"))], dictionary)
    dictionary.truncate(1)
    assert (symbols_of(dictionary), dictionary.size_bytes) == ([b"a"], 1)
    assert dictionary.intern(["c", "b"]) == [1, 2]
    dictionary.truncate(5)
    assert dictionary.size == 3


def test_full_dictionary_refuses_to_intern_and_stays_usable() -> None:
    dictionary = qwp.SymbolDictionary(entries_max=2)
    with pytest.raises(ValueError, match="at most 2"):
        dictionary.intern(["a", "b", "c"])
    assert dictionary.size == 0
    assert dictionary.intern(["x", "y", "x"]) == [0, 1, 0]


def test_long_symbols_are_gathered_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.wire.qwp.reader.GATHER_BYTES", 10)
    texts = ["x" * (i * 7 % 23) + str(i) for i in range(60)]
    dictionary = known(*texts)
    assert dictionary.take(np.arange(59, -1, -1)).to_pylist() == texts[::-1]
