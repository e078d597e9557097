"""QWP with arbitrary batches on one connection, and with arbitrary bytes."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import WireError
from holdfast.model.frame import Entry
from holdfast.wire import qwp
from holdfast.wire.limits import FrameLimits

LIMITS = FrameLimits()
LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
SYMBOL = pa.dictionary(pa.int32(), pa.string())

COLUMNS = st.sampled_from([
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int16(), st.integers(-32768, 32767)),
    (pa.int32(), st.integers(-(1 << 31), (1 << 31) - 1)),
    (pa.int64(), LONGS),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (SYMBOL, st.sampled_from(["", "a", "é", "long symbol"]) | st.text(max_size=3)),
    (pa.timestamp("us", "UTC"), LONGS),
    (pa.timestamp("ns", "UTC"), st.integers(0, 1 << 40)),
    (pa.timestamp("ms", "UTC"), LONGS),
    (pa.binary(16), st.binary(min_size=16, max_size=16)),
    (pa.binary(32), st.binary(min_size=32, max_size=32)),
    (pa.string(), st.text(max_size=9)),
    (pa.binary(), st.binary(max_size=9)),
    (pa.decimal128(38, 4), st.decimals(-10_000, 10_000, places=4)),
    (pa.decimal256(76, 2), st.decimals(-10_000, 10_000, places=2)),
    (pa.list_(pa.float64()), st.lists(st.floats(), max_size=4)),
    (pa.list_(pa.list_(pa.int64())), st.integers(1, 3).flatmap(
        lambda width: st.lists(st.lists(LONGS, min_size=width, max_size=width), max_size=3))),
])  # fmt: skip


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.integers(1, 20))
    columns = {"at": pa.array(draw(st.lists(st.integers(0, 1 << 45), min_size=rows, max_size=rows)), pa.int64())}
    columns["at"] = columns["at"].view(pa.timestamp("us", "UTC"))
    for number, (data_type, values) in enumerate(draw(st.lists(COLUMNS, max_size=6))):
        drawn = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[f"c{number}"] = as_array(drawn, data_type)
    return pa.record_batch(columns).slice(draw(st.integers(0, rows - 1)))


def as_array(drawn: list[object], data_type: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(data_type):
        return pa.array(drawn, pa.int64()).view(data_type)
    return pa.array(drawn, data_type)


def values_of(array: pa.Array) -> str:
    """Values as text, with NaN equal to NaN."""
    return repr((array.view(pa.int64()) if pa.types.is_timestamp(array.type) else array).to_pylist())


messages = st.lists(st.tuples(st.lists(batches(), max_size=3), st.booleans(), st.booleans()), min_size=1, max_size=4)


@given(sent=messages, with_dictionary=st.booleans())
def test_any_messages_of_one_connection_come_back(
    sent: list[tuple[list[pa.RecordBatch], bool, bool]], with_dictionary: bool
) -> None:
    ours, theirs = qwp.SymbolDictionary(), qwp.SymbolDictionary()
    for tables, deferred, gorilla in sent:
        raw = qwp.encode(
            [Entry("t", batch) for batch in tables],
            ours if with_dictionary else None,
            deferred=deferred,
            designated="at",
            gorilla=gorilla,
        )
        found = qwp.decode(raw, theirs, LIMITS, now_us=0)
        assert found.deferred == deferred
        for entry, batch in zip(found.entries, tables, strict=True):
            entry.batch.validate(full=True)
            assert entry.batch.schema.names == ["timestamp", *batch.schema.names[1:]]
            assert [values_of(c) for c in entry.batch.columns] == [values_of(c) for c in batch.columns]
            kept = [(a.type, b.type) for a, b in zip(entry.batch.columns, batch.columns, strict=True)]
            assert all(a == b or a == pa.null() for a, b in kept)
    if with_dictionary:
        assert theirs.encoded(0, theirs.size) == ours.encoded(0, ours.size)


def header(payload: bytes, flags: int, tables: int) -> bytes:
    return b"QWP1\1" + bytes([flags]) + tables.to_bytes(2, "little") + len(payload).to_bytes(4, "little") + payload


@given(payload=st.binary(max_size=200), flags=st.sampled_from([0, 8, 9, 12, 13]), tables=st.integers(0, 3))
def test_any_bytes_behind_a_header_are_read_or_refused(payload: bytes, flags: int, tables: int) -> None:
    dictionary = qwp.SymbolDictionary()
    dictionary.intern(["a", "b"])
    try:
        found = qwp.decode(header(payload, flags, tables), dictionary, LIMITS, now_us=0)
    except WireError:
        assert dictionary.encoded(0, dictionary.size) == [b"a", b"b"]
        return
    for entry in found.entries:
        entry.batch.validate()


@given(
    tables=st.lists(batches(), min_size=1, max_size=2),
    gorilla=st.booleans(),
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=4)), min_size=1),
)
def test_damaged_message_is_read_or_refused_and_leaves_no_symbol(
    tables: list[pa.RecordBatch], gorilla: bool, damage: list[tuple[float, bytes]]
) -> None:
    raw = bytearray(qwp.encode([Entry("t", batch) for batch in tables], None, designated="at", gorilla=gorilla))
    for where, part in damage:
        start = 12 + int(where * (len(raw) - 12))
        raw[start : start + len(part)] = part[: len(raw) - start]
    dictionary = qwp.SymbolDictionary()
    try:
        found = qwp.decode(bytes(raw), dictionary, LIMITS, now_us=0)
    except WireError:
        assert dictionary.size == 0
        return
    for entry in found.entries:
        entry.batch.validate()
