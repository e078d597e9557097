"""Messages that are joined by numpy hold what Arrow finds in them one by one, and are as sound."""

from __future__ import annotations

import struct
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.frame import PlainFrame
from holdfast.store.prepare import _are_sound
from holdfast.store.wal.alike import ALIKE_MIN, join_alike
from holdfast.wire.arrowstream import plain_rows

COUNT = ALIKE_MIN + 1
TYPES = {
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.timestamp("us", "UTC"): st.integers(-(2**50), 2**50),
    pa.date64(): st.integers(0, 20_000).map(lambda day: day * 86_400_000),
    pa.time32("s"): st.integers(0, 86_399),
    pa.decimal128(5, 2): st.integers(-99_999, 99_999).map(lambda cents: Decimal(cents) / 100),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.string(): st.text(max_size=6),
    pa.binary(): st.binary(max_size=6),
}


@st.composite
def trains(draw: st.DrawFn) -> tuple[pa.Schema, list[bytes]]:
    """Messages of one schema; those of nearly all draws are alike, since values are given again and again."""
    types = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=4))
    schema = pa.schema([(f"c{n}", kind) for n, kind in enumerate(types)])
    rows = draw(st.integers(1, 9))
    kinds = []
    for _ in range(draw(st.integers(1, 3))):
        columns = []
        for kind in types:
            values = TYPES[kind] if draw(st.booleans()) else st.none() | TYPES[kind]
            columns.append(pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind))
        kinds.append(bytes(pa.record_batch(columns, schema=schema).serialize()))
    of_one_size = [message for message in kinds if len(message) == len(kinds[0])]
    return schema, draw(st.lists(st.sampled_from(of_one_size), min_size=COUNT, max_size=COUNT))


def one_by_one(messages: list[bytes], schema: pa.Schema) -> pa.Table | None:
    """What Arrow reads; None if it finds something wrong."""
    try:
        batches = [pa.ipc.read_record_batch(pa.py_buffer(message), schema) for message in messages]
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError):
        return None
    return pa.Table.from_batches(batches)


@given(trains())
def test_joined_messages_hold_what_arrow_reads_one_by_one(train: tuple[pa.Schema, list[bytes]]) -> None:
    schema, messages = train
    joined = join_alike(messages, schema)
    if joined is not None:
        joined.validate(full=True)
        assert pa.Table.from_batches([joined]).equals(one_by_one(messages, schema))


def sample(first: int) -> pa.RecordBatch:
    """One of every form a column has: fixed, bits, strings, and nulls."""
    return pa.record_batch(
        {
            "n": pa.array([first, None, 7], pa.int32()),
            "ok": pa.array([True, False, first % 2 == 0]),
            "day": pa.array([0, 86_400_000, 172_800_000], pa.date64()),
            "text": pa.array(["käse"[: first % 5], "x" * (4 - first % 5), ""]),
        }
    )


def test_columns_of_every_form_are_joined_and_not_left_to_arrow() -> None:
    messages = [bytes(sample(3).serialize())] * COUNT
    joined = join_alike(messages, sample(0).schema)
    assert joined is not None
    assert pa.Table.from_batches([joined]).equals(one_by_one(messages, sample(0).schema))


def test_strings_of_other_lengths_are_joined_if_they_take_the_same_room() -> None:
    batches = [pa.record_batch({"a": ["", "abcd"]}), pa.record_batch({"a": ["abc", "d"]})]
    messages = [bytes(batches[n % 2].serialize()) for n in range(COUNT)]
    joined = join_alike(messages, batches[0].schema)
    assert joined is not None
    assert joined.column(0).to_pylist() == [text for n in range(COUNT) for text in batches[n % 2].column(0).to_pylist()]


@pytest.mark.guarantee("G4")
def test_nulls_stay_nulls_where_no_message_says_how_many_there_are() -> None:
    schema, batch = pa.schema({"n": pa.int64()}), pa.record_batch({"n": pa.array([None, 5, 6], pa.int64())})
    message = bytes(batch.serialize()).replace(struct.pack("<qq", 3, 1), struct.pack("<qq", 3, -1))
    read = pa.ipc.read_record_batch(whole := pa.py_buffer(message), schema)
    bitmap_at = read.column(0).buffers()[0].address - whole.address
    without_nulls = message[:bitmap_at] + b"\x07" + message[bitmap_at + 1 :]
    messages = [without_nulls] + [message] * (COUNT - 1)
    joined, expected = join_alike(messages, schema), one_by_one(messages, schema)
    assert expected is not None
    assert expected.column("n").null_count == COUNT - 1
    assert joined is None or pa.Table.from_batches([joined]).equals(expected)


def rows_said(message: bytes) -> int:
    """What the reader at the door believes."""
    try:
        return plain_rows(message, 0, len(message))
    except (struct.error, IndexError):
        return 0


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("place", [0, 5], ids=["in the first message", "in a later message"])
def test_a_flipped_bit_is_taken_or_refused_as_arrow_alone_would(place: int) -> None:
    schema, good = sample(0).schema, bytes(sample(3).serialize())
    for bit in range(len(good) * 8):
        bent = bytearray(good)
        bent[bit // 8] ^= 1 << bit % 8
        if rows_said(bytes(bent)) != 3:
            continue  # never gets as far as this
        messages = [good] * place + [bytes(bent)] + [good] * (COUNT - 1 - place)
        found = one_by_one(messages, schema)
        is_sound = found is not None
        frames = [PlainFrame("trades", schema, message, 3, None) for message in messages]
        assert _are_sound(frames) == is_sound, bit
        joined = join_alike(messages, schema)
        if is_sound and joined is not None:
            assert pa.Table.from_batches([joined]).equals(found), bit


@pytest.mark.parametrize(
    "messages",
    [
        [b""] * COUNT,
        [b"\xff" * 16] * COUNT,
        [b"\xff\xff\xff\xff\x00\x00\x00\x00"] * COUNT,
        [bytes(sample(3).serialize())[:-8]] * COUNT,
        [bytes(sample(3).slice(0, 0).serialize())] * COUNT,
    ],
    ids=["empty", "no metadata", "end of stream", "cut", "no rows"],
)
def test_what_is_no_message_of_rows_is_left_to_arrow(messages: list[bytes]) -> None:
    assert join_alike(messages, sample(0).schema) is None


def test_types_with_more_than_values_and_offsets_are_left_to_arrow() -> None:
    batch = pa.record_batch({"list": pa.array([[1, 2], []], pa.list_(pa.int64()))})
    assert join_alike([bytes(batch.serialize())] * COUNT, batch.schema) is None
