"""HFA1 frames: identity, channels, bounds, and what a stranger may not send."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import Category, HoldfastError, InvalidBatch, InvalidName, WireError
from holdfast.model.frame import Entry
from holdfast.model.schema import BatchLimits, check_batch
from holdfast.wire import arrowstream, hfa
from holdfast.wire.limits import FrameLimits

SLOT = bytes(range(1, 17))
LIMITS = FrameLimits()
STORE = BatchLimits(rows_max=1_000_000, bytes_max=64 << 20)
ROWS = pa.record_batch({"n": pa.array([1, None, 3], pa.int64()), "s": ["a", "bc", None]})
SYMBOLS = pa.record_batch({"s": pa.array(["a", "b", None, "a"]).dictionary_encode()})


def frame(*entries: Entry, slot_id: bytes | None = None, fsn: int = 0, guid: bytes | None = None) -> bytes:
    return b"".join(hfa.encode(entries, slot_id=slot_id, fsn=fsn, guid=guid))


def stream(schema: pa.Schema, *batches: pa.RecordBatch, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def around(*streams: bytes) -> bytes:
    """A frame with a hand-made stream per entry, all for channel `c`."""
    head = struct.pack("<4sBBH16sQ", b"HFA1", 1, 0, len(streams), bytes(16), 0)
    return head + b"".join(struct.pack("<HHI8s", 1, 0, len(s), b"c") + s for s in streams)


def refusal_of(message: bytes, limits: FrameLimits = LIMITS) -> WireError:
    with pytest.raises(WireError) as caught:
        hfa.decode(message, limits)
    assert caught.value.category is Category.PARSE_ERROR
    return caught.value


# ---------------------------------------------------------------------------------------------------------- round trips


def test_frame_with_a_slot_comes_back() -> None:
    entries = (Entry("trades", ROWS, ("eu", "gold")), Entry("quotes.x-1", SYMBOLS))
    found = hfa.decode(frame(*entries, slot_id=SLOT, fsn=2**63 - 1), LIMITS)
    assert (found.slot_id, found.fsn, found.guid) == (SLOT, 2**63 - 1, None)
    assert [(e.channel, e.partitions) for e in found.entries] == [("trades", ("eu", "gold")), ("quotes.x-1", ())]
    assert [e.batch for e in found.entries] == [ROWS, SYMBOLS]


def test_frame_with_a_guid_comes_back() -> None:
    found = hfa.decode(frame(Entry("a", ROWS), guid=SLOT), LIMITS)
    assert (found.slot_id, found.fsn, found.guid) == (None, 0, SLOT)


def test_frame_without_identity_comes_back() -> None:
    found = hfa.decode(frame(Entry("a", ROWS)), LIMITS)
    assert (found.slot_id, found.fsn, found.guid) == (None, 0, None)


def test_frame_is_read_from_any_kind_of_bytes() -> None:
    message = frame(Entry("a", ROWS))
    for kind in (bytes, bytearray, memoryview):
        assert hfa.decode(kind(message), LIMITS).entries[0].batch == ROWS


def test_batch_is_a_view_of_the_message() -> None:
    numbers = pa.record_batch({"n": np.arange(1000)})
    message = frame(Entry("a", numbers))
    whole = pa.py_buffer(message)
    values = hfa.decode(message, LIMITS).entries[0].batch.column(0).buffers()[1]
    assert whole.address <= values.address < whole.address + whole.size


def test_every_part_of_a_frame_begins_at_a_multiple_of_eight() -> None:
    message = frame(Entry("abc", ROWS, ("p",)), Entry("d", ROWS))
    assert len(message) % 8 == 0
    offset = hfa.HEADER_BYTES
    for channel, names in (("abc", 3 + 2 + 1), ("d", 1)):
        channel_bytes, _, stream_bytes = struct.unpack_from("<HHI", message, offset)
        assert channel_bytes == len(channel)
        start = offset + 8 + (names + 7) // 8 * 8
        assert message[start : start + 4] == b"\xff\xff\xff\xff"
        offset = start + stream_bytes
    assert offset == len(message)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compressed_frame_comes_back(compression: str) -> None:
    zeros = pa.record_batch({"n": np.zeros(10_000)})
    parts = hfa.FrameEncoder(compression=compression).encode([Entry("a", zeros), Entry("b", SYMBOLS)])
    assert sum(len(part) for part in parts) < 10_000
    assert [e.batch for e in hfa.decode(b"".join(parts), LIMITS).entries] == [zeros, SYMBOLS]


def test_several_batches_of_a_stream_become_one() -> None:
    found = hfa.decode(around(stream(ROWS.schema, ROWS, ROWS.slice(1), ROWS.slice(0, 0))), LIMITS)
    assert found.entries[0].batch == pa.concat_batches([ROWS, ROWS.slice(1)])


def test_batches_with_different_dictionaries_become_one() -> None:
    other = pa.record_batch({"s": pa.array(["z", "a"]).dictionary_encode()})
    found = hfa.decode(around(stream(SYMBOLS.schema, SYMBOLS, other)), LIMITS).entries[0].batch
    assert found.column(0).to_pylist() == ["a", "b", None, "a", "z", "a"]


def test_batch_without_rows_comes_back() -> None:
    assert hfa.decode(frame(Entry("a", ROWS.slice(0, 0))), LIMITS).entries[0].batch.num_rows == 0


def test_same_schema_gives_the_same_object_again() -> None:
    first, second = (hfa.decode(frame(Entry("a", ROWS)), LIMITS).entries[0].batch for _ in range(2))
    assert first.schema == second.schema
    arrowstream._known_schema.cache_clear()
    for _ in range(3):
        hfa.decode(frame(Entry("a", ROWS)), LIMITS)
    assert arrowstream._known_schema.cache_info().hits == 2


# -------------------------------------------------------------------------------------------------------------- encoder


def test_encoder_follows_a_channel_whose_schema_changes() -> None:
    encoder = hfa.FrameEncoder()
    wider = ROWS.append_column("x", pa.array([1.0, 2.0, 3.0]))
    noted = ROWS.replace_schema_metadata({"k": "v"})
    for batch in (ROWS, wider, ROWS, noted, SYMBOLS, ROWS.slice(1, 1)):
        found = hfa.decode(b"".join(encoder.encode([Entry("a", batch)])), LIMITS).entries[0].batch
        assert found.equals(batch, check_metadata=True)


def test_encoder_follows_partitions_that_change() -> None:
    encoder = hfa.FrameEncoder()
    for partitions in ((), ("a",), ("b", "é"), ()):
        found = hfa.decode(b"".join(encoder.encode([Entry("a", ROWS, partitions)])), LIMITS)
        assert found.entries[0].partitions == partitions


def test_encoder_forgets_channels_beyond_its_bound() -> None:
    encoder = hfa.FrameEncoder()
    for number in range(hfa.CHANNELS_KNOWN_MAX + 10):
        encoder.encode([Entry(f"c{number}", ROWS)])
    assert len(encoder._channels) <= hfa.CHANNELS_KNOWN_MAX


def test_second_frame_of_a_channel_has_the_same_bytes_as_the_first() -> None:
    encoder = hfa.FrameEncoder()
    first, second = (b"".join(encoder.encode([Entry("a", ROWS)], slot_id=SLOT, fsn=1)) for _ in range(2))
    assert first == second == frame(Entry("a", ROWS), slot_id=SLOT, fsn=1)


def test_stamp_writes_the_identity_that_encode_would_have_written() -> None:
    plain = bytearray(frame(Entry("a", ROWS)))
    hfa.stamp(plain, SLOT, 77)
    assert plain == frame(Entry("a", ROWS), slot_id=SLOT, fsn=77)
    hfa.stamp(memoryview(plain), SLOT[::-1], 78)
    assert hfa.decode(plain, LIMITS).slot_id == SLOT[::-1]


@pytest.mark.parametrize("message", [frame(Entry("a", ROWS), guid=SLOT), bytes(64), b"QWP1" + bytes(60)])
def test_stamp_refuses_what_is_not_a_frame_without_identity(message: bytes) -> None:
    with pytest.raises(ValueError, match="not a frame to stamp"):
        hfa.stamp(bytearray(message), SLOT, 1)


@pytest.mark.parametrize(
    "identity",
    [
        {"slot_id": SLOT, "guid": SLOT},
        {"slot_id": bytes(16)},
        {"slot_id": b"short"},
        {"guid": bytes(16)},
        {"guid": b"short"},
        {"fsn": 1},
        {"slot_id": SLOT, "fsn": 2**63},
        {"slot_id": SLOT, "fsn": -1},
    ],
)
def test_identity_that_cannot_be_read_back_is_not_written(identity: dict[str, bytes | int]) -> None:
    with pytest.raises(ValueError, match=r"slot id|guid|fsn"):
        hfa.encode([Entry("a", ROWS)], **identity)  # type: ignore[arg-type]


def test_frame_without_entries_is_not_written() -> None:
    with pytest.raises(InvalidBatch, match="1 to 65535"):
        hfa.encode([])


def test_name_that_is_no_channel_is_not_written() -> None:
    with pytest.raises(InvalidName):
        hfa.encode([Entry("a/b", ROWS)])


def test_partition_that_is_too_long_is_not_written() -> None:
    with pytest.raises(InvalidBatch, match="partition"):
        hfa.encode([Entry("a", ROWS, ("x" * 70_000,))])


# ------------------------------------------------------------------------------------------------------------- refusals


def patched(message: bytes, offset: int, raw: bytes) -> bytes:
    return message[:offset] + raw + message[offset + len(raw) :]


PLAIN = frame(Entry("abc", ROWS, ("p",)))
STAMPED = frame(Entry("abc", ROWS), slot_id=SLOT, fsn=9)


@pytest.mark.parametrize(
    ("message", "place", "reason"),
    [
        (b"", "byte 0", "0 bytes"),
        (patched(PLAIN, 0, b"QWP1"), "byte 0", "51575031"),
        (patched(PLAIN, 4, b"\2"), "byte 4", "version 2"),
        (patched(PLAIN, 5, b"\3"), "byte 5", "0x03"),
        (patched(PLAIN, 5, b"\4"), "byte 5", "0x04"),
        (patched(PLAIN, 5, b"\1"), "byte 8", "zeros"),
        (patched(PLAIN, 8, b"\1"), "byte 8", "other bytes"),
        (patched(PLAIN, 24, b"\1"), "byte 24", "fsn 1"),
        (patched(STAMPED, 31, b"\x80"), "byte 24", "out of range"),
        (patched(STAMPED, 5, b"\2"), "byte 24", "without a slot"),
        (patched(PLAIN, 6, b"\0\0"), "byte 6", "0 entries"),
        (patched(PLAIN, 6, b"\1\4"), "byte 6", "1025 entries"),
        (patched(PLAIN, 6, b"\2\0"), "byte", "ends inside an entry"),
        (patched(PLAIN, 32, b"\xff\xff"), "byte 32", "65535"),
        (patched(PLAIN, 34, b"\xff\xff"), "byte 34", "65535 partitions"),
        (patched(PLAIN, 36, b"\xf8\xff\xff\xff"), "byte 36", "reaches beyond"),
        (patched(PLAIN, 36, b"\x01"), "byte 36", "multiple of 8"),
        (patched(PLAIN, 40, b"a/c"), "byte 40", "'a/c'"),
        (patched(PLAIN, 40, b"\xff"), "byte 40", "channel name"),
        (patched(PLAIN, 43, b"\xff\xff"), "byte 45", "65535"),
        (patched(PLAIN, 45, b"\xff"), "byte 45", "UTF-8"),
        (patched(PLAIN, 47, b"x"), "byte 46", "not zeros"),
        (PLAIN + bytes(8), "byte", "8 bytes behind"),
    ],
)
def test_malformed_frame_is_refused_with_place_and_reason(message: bytes, place: str, reason: str) -> None:
    error = refusal_of(message)
    assert error.place.startswith(place)
    assert reason in error.reason


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "outside of the stream"),
        (stream(ROWS.schema), "does not end with a batch"),
        (stream(ROWS.schema, ROWS)[:-8], "outside of the stream"),
        (stream(ROWS.schema, ROWS) + bytes(8), "behind the end"),
        (stream(ROWS.schema, ROWS)[8:], "no arrow message"),
        (bytes(ROWS.serialize()) + arrowstream.END_OF_STREAM, "beyond the stream"),
        (bytes(ROWS.schema.serialize()) * 2 + arrowstream.END_OF_STREAM, "second schema"),
        (arrowstream.END_OF_STREAM, "no arrow message"),
        (stream(pa.schema([("u", pa.uuid())]), pa.record_batch({"u": pa.array([b"x" * 16], pa.uuid())})), "extension"),
    ],
)
def test_malformed_stream_is_refused_with_its_reason(raw: bytes, reason: str) -> None:
    error = refusal_of(around(raw))
    assert reason in error.reason
    assert "channel 'c'" in error.place


def test_dictionary_that_extends_another_is_refused() -> None:
    longer = pa.record_batch({"s": pa.DictionaryArray.from_arrays(pa.array([2]), pa.array(["a", "b", "c"]))})
    shorter = pa.record_batch({"s": pa.DictionaryArray.from_arrays(pa.array([1]), pa.array(["a", "b"]))})
    raw = stream(longer.schema, shorter, longer, emit_dictionary_deltas=True)
    assert "send it whole" in refusal_of(around(raw)).reason


def test_stream_that_inflates_too_far_is_refused_before_it_is_inflated() -> None:
    bomb = stream(*_schema_and(pa.record_batch({"n": np.zeros(1_000_000)})), compression="zstd")
    assert len(bomb) < 10_000
    allocated = pa.total_allocated_bytes()
    error = refusal_of(around(bomb), FrameLimits(decoded_bytes=7_999_999))
    assert "8000000 bytes" in error.reason
    assert pa.total_allocated_bytes() == allocated
    assert hfa.decode(around(bomb), FrameLimits(decoded_bytes=8_000_000)).entries[0].batch.num_rows == 1_000_000


def test_streams_of_one_frame_share_what_they_may_inflate_to() -> None:
    raw = stream(*_schema_and(pa.record_batch({"n": np.zeros(1000)})), compression="lz4")
    assert len(hfa.decode(around(raw, raw), FrameLimits(decoded_bytes=16_000)).entries) == 2
    assert "16000 bytes" in refusal_of(around(raw, raw), FrameLimits(decoded_bytes=15_999)).reason


def test_compressed_buffer_that_claims_more_than_it_holds_is_refused() -> None:
    raw = bytearray(around(stream(*_schema_and(pa.record_batch({"n": np.zeros(1000)})), compression="lz4")))
    place = raw.index(struct.pack("<q", 8000) + b"\x04\x22\x4d\x18")
    for claim in (8001, 1 << 60, -2, -(1 << 63)):
        struct.pack_into("<q", raw, place, claim)
        refusal_of(bytes(raw))


def test_rows_and_batches_of_a_stream_are_bounded() -> None:
    nothing = pa.record_batch({"n": pa.nulls(1_000_001)})
    assert "1000001 rows" in refusal_of(around(stream(nothing.schema, nothing))).reason
    many = stream(ROWS.schema, *[ROWS] * 5)
    assert "5 batches" in refusal_of(around(many), FrameLimits(batches=4)).reason
    assert "more than 4 messages" in refusal_of(around(many), FrameLimits(batches=3, columns=1)).reason


def test_schema_of_many_bytes_is_read_up_to_its_bound() -> None:
    wide = pa.record_batch({f"column number {i}": pa.array([i]) for i in range(300)})
    assert len(wide.schema.serialize()) > arrowstream.SCHEMA_BYTES_CACHED
    assert hfa.decode(frame(Entry("a", wide)), LIMITS).entries[0].batch == wide
    huge = ROWS.replace_schema_metadata({"k": "v" * arrowstream.SCHEMA_BYTES_MAX})
    assert "the schema has" in refusal_of(frame(Entry("a", huge))).reason


def test_frame_of_too_many_bytes_is_refused() -> None:
    assert "at most 100" in refusal_of(PLAIN, FrameLimits(message_bytes=100)).reason


def test_joining_checks_values_that_would_be_trusted() -> None:
    rows = pa.record_batch({"s": ["fine"]})
    raw = stream(rows.schema, rows, rows)
    torn = patched(raw, raw.rindex(struct.pack("<ii", 0, 4)), struct.pack("<ii", 0, 1 << 30))
    assert "malformed" in refusal_of(around(torn)).reason


def _schema_and(batch: pa.RecordBatch) -> tuple[pa.Schema, pa.RecordBatch]:
    return batch.schema, batch


# --------------------------------------------------------------------------------------------------------------- damage


def nested() -> pa.RecordBatch:
    return pa.record_batch(
        {
            "l": pa.array([[1, 2], None, []], pa.list_(pa.int16())),
            "t": pa.array([{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}]),
            "v": pa.array(["short", "a text of more than twelve", None], pa.string_view()),
            "d": pa.array([b"x", None, b"x"]).dictionary_encode(),
        }
    )


DAMAGED: dict[str, Callable[[], bytes]] = {
    "plain": lambda: frame(Entry("a", ROWS.slice(0, 2), ("p",)), slot_id=SLOT, fsn=3),
    "two entries": lambda: frame(Entry("a", ROWS.slice(0, 1)), Entry("b", SYMBOLS)),
    "nested": lambda: frame(Entry("a", nested())),
    "compressed": lambda: b"".join(hfa.FrameEncoder(compression="zstd").encode([Entry("a", ROWS)])),
    "several batches": lambda: around(stream(ROWS.schema, ROWS.slice(0, 1), ROWS.slice(1))),
}


def take(message: bytes) -> None:
    """What a server does with a message: decode it, and let the store look at every value."""
    for entry in hfa.decode(message, LIMITS).entries:
        check_batch(entry.channel, entry.batch, STORE)


@pytest.mark.parametrize("name", DAMAGED)
def test_every_truncation_of_a_frame_is_refused(name: str) -> None:
    message = DAMAGED[name]()
    take(message)
    for size in range(len(message)):
        refusal_of(message[:size])


@pytest.mark.parametrize("name", DAMAGED)
def test_every_bit_flip_of_a_frame_is_taken_or_refused(name: str) -> None:
    message = DAMAGED[name]()
    refused = 0
    for bit in range(len(message) * 8):
        flipped = bytearray(message)
        flipped[bit // 8] ^= 1 << (bit % 8)
        try:
            take(bytes(flipped))
        except HoldfastError:
            refused += 1
    assert refused > len(message)
    assert pa.total_allocated_bytes() < 64 << 20
