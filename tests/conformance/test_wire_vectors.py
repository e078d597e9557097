"""Golden vectors of the ingest wire: messages a real client sent, and our own frames, which are read for ever.

The messages of the file `qwp1-questdb-6.0.0.hex` were recorded from that client; what they must mean stands here.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.model.frame import Entry
from holdfast.wire import hfa, qwp, replies
from holdfast.wire.limits import FrameLimits

VECTORS = Path(__file__).parent / "vectors"
LIMITS = FrameLimits()
NOW_US = 1_700_000_000_000_000
SLOT = bytes(range(1, 17))


def vectors(file: str) -> list[tuple[str, bytes]]:
    lines = (VECTORS / file).read_text(encoding="ascii").splitlines()
    return [
        (name, bytes.fromhex(raw)) for name, raw in (line.split(": ") for line in lines if not line.startswith("#"))
    ]


CLIENT = vectors("qwp1-questdb-6.0.0.hex")
FRAMES = dict(vectors("hfa1.hex"))


def columns_of(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    """Values by column; times as the numbers they were sent as."""
    return {
        name: (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    }


def read_case(case: str) -> list[qwp.QwpMessage]:
    """The messages of a case, behind those that came before it on its connection."""
    dictionary = qwp.SymbolDictionary()
    found = []
    for name, raw in CLIENT:
        if name == case or (case.startswith("frame ") and name.startswith("frame ")):
            message = qwp.decode(raw, dictionary, LIMITS, now_us=NOW_US)
            found += [message] if name == case else []
    return found


DAYS = [1_704_067_200_000_000, 1_704_153_600_000_000, 1_704_240_000_000_000]
THREE: dict[str, list[Any]] = {"timestamp": [1, 2, 1], "d": [None, 1, None]}
LONG256 = bytes(range(1, 33))
MEANT: dict[str, dict[str, list[Any]]] = {
    "rows": {
        "sym": ["ETH", "BTC", "ETH"],
        "sy2": ["sell", None, None],
        "b": [True, False, False],
        "i": [7, None, None],
        "f": [1.5, None, None],
        "s": ["héllo", None, None],
        "ts": [1_700_000_000_000_001, None, None],
        "tn": [1_700_000_000_000_000_002, None, None],
        "dt": [1_704_164_645_000_006, None, None],
        "arr": [[1.0, 2.0, 3.0], None, None],
        "arr2": [[[1.0, 2.0], [3.0, 4.0]], None, None],
        "dec": [Decimal("12.345"), None, Decimal("-1.500")],
        "timestamp": [1_700_000_000_123_456_789, 1_700_000_000_123_456_790, 1_700_000_000_123_456_791],
    },
    "microseconds": {"i": [1, 2], "timestamp": [1, DAYS[0]]},
    "server time": {"i": [1], "timestamp": [NOW_US]},
    "uuid": {"c": [bytes.fromhex("00112233445566778899aabbccddeeff")], "timestamp": [1]},
    "ipv4": {"c": ["1.2.3.4"], "timestamp": [1]},
    "bytes": {"c": [b"\x00\x01\xff"], "timestamp": [1]},
    "char": {"c": ["é", None, "é"], **THREE},
    "date": {"c": [1_700_000_000_123, None, 1_700_000_000_123], **THREE},
    "long256": {"c": [LONG256, None, LONG256], **THREE},
    "geohash of 8 bits": {"c": ["##10110101", None, "##10110101"], **THREE},
    "geohash of 3 bits": {"c": ["##101", None, "##101"], **THREE},
    "boolean": {"c": [True, False, True], **THREE},
    "frame i8": {"c": [1, -2, 3], "timestamp": DAYS},
    "frame i64": {"c": [1, -2, 3], "timestamp": DAYS},
    "frame f32": {"c": [1.5, None, 3.0], "timestamp": DAYS},
    "frame f64": {"c": [1.5, None, 3.0], "timestamp": DAYS},
    "frame bool": {"c": [True, False, True], "timestamp": DAYS},
    "frame Int64": {"c": [1, None, 3], "timestamp": DAYS},
    "frame str": {"c": ["a", None, "ccc"], "timestamp": DAYS},
    "frame cat": {"c": ["a", None, "b"], "timestamp": DAYS},
    "frame dec": {"c": [Decimal("1.25"), None, Decimal("-3.50")], "timestamp": DAYS},
}


def test_every_recorded_case_has_a_meaning() -> None:
    assert {name for name, _ in CLIENT} == set(MEANT)


@pytest.mark.parametrize("case", MEANT)
def test_message_of_the_real_client_means_what_was_sent(case: str) -> None:
    first = read_case(case)[0]
    (entry,) = first.entries
    entry.batch.validate(full=True)
    assert columns_of(entry.batch) == MEANT[case]


def test_column_the_client_no_longer_fills_fits_the_channel_it_filled_before() -> None:
    before, after = (message.entries[0].batch for message in read_case("rows"))
    types = {name: (before.schema.field(name).type, after.schema.field(name).type) for name in before.schema.names}
    assert after.schema.names == before.schema.names
    assert {name for name, (one, other) in types.items() if one != other} == {"arr", "arr2", "dec"}
    assert {after.schema.field(name).type for name in ("arr", "arr2", "dec")} == {pa.null()}


def test_data_frame_is_deferred_and_closed_by_an_empty_message() -> None:
    for case in ("frame i64", "frame cat"):
        rows, end = read_case(case)
        assert (rows.deferred, end) == (True, qwp.QwpMessage((), tables=0, deferred=False))


def test_message_of_the_real_client_is_written_the_same() -> None:
    for case in ("microseconds", "uuid", "bytes", "date", "long256"):
        (raw,) = [raw for name, raw in CLIENT if name == case]
        (entry,) = read_case(case)[0].entries
        ours = qwp.encode([entry], None, designated="timestamp")
        again = qwp.decode(ours, qwp.SymbolDictionary(), LIMITS, now_us=0).entries[0].batch
        assert again == entry.batch
        if case in {"microseconds", "uuid", "bytes"}:  # the client says nulls of integers by a sentinel, we by a bitmap
            assert ours == raw


# ----------------------------------------------------------------------------------------------------------------- HFA1

ROWS = pa.record_batch({"n": pa.array([1, None, 3], pa.int64()), "s": pa.array(["a", None, "ccc"])})
SYMBOLS = ["a", "b", None, "a"]


def test_frame_vectors_are_read_back() -> None:
    slot = hfa.decode(FRAMES["slot"], LIMITS)
    assert (slot.slot_id, slot.fsn, slot.guid) == (SLOT, 77, None)
    assert slot.entries == (Entry("trades", ROWS, ("eu", "gold")),)
    guid = hfa.decode(FRAMES["guid"], LIMITS)
    assert (guid.slot_id, guid.fsn, guid.guid, guid.entries[0].batch) == (None, 0, SLOT, ROWS)
    plain = hfa.decode(FRAMES["no identity, two channels"], LIMITS)
    assert (plain.slot_id, plain.guid) == (None, None)
    assert [entry.channel for entry in plain.entries] == ["a", "b.c-d"]
    assert plain.entries[1].batch.column("s").to_pylist() == SYMBOLS
    for case in ("zstd", "lz4"):
        assert hfa.decode(FRAMES[case], LIMITS).entries[0].batch.column("n").to_pylist() == [7] * 200


def test_frame_vector_has_its_fields_where_the_picture_says() -> None:
    raw = FRAMES["slot"]
    assert struct.unpack_from("<4sBBH16sQ", raw) == (b"HFA1", 1, 1, 1, SLOT, 77)
    channel_bytes, partitions, stream_bytes = struct.unpack_from("<HHI", raw, 32)
    assert (channel_bytes, partitions, stream_bytes) == (6, 2, len(raw) - 56)
    assert raw[40:56] == b"trades\x02\x00eu\x04\x00gold"
    assert pa.ipc.open_stream(raw[56:]).read_all().to_batches() == [ROWS]


def test_frame_is_written_with_the_head_of_its_vector() -> None:
    raw = b"".join(hfa.encode([Entry("trades", ROWS, ("eu", "gold"))], slot_id=SLOT, fsn=77))
    assert raw[:36] == FRAMES["slot"][:36]  # behind it stands a length, and then what Arrow writes
    assert raw[40:56] == FRAMES["slot"][40:56]


def test_stamp_makes_the_vector_of_a_slot_from_one_without() -> None:
    frame = bytearray(FRAMES["slot"])
    frame[5:6], frame[8:32] = b"\0", bytes(24)
    assert hfa.decode(frame, LIMITS).slot_id is None
    hfa.stamp(frame, SLOT, 77)
    assert frame == FRAMES["slot"]


# -------------------------------------------------------------------------------------------------------------- replies


def test_replies_are_the_bytes_the_real_client_takes() -> None:
    assert replies.encode_ok(3, []).hex() == "0003000000000000000000"
    assert replies.encode_ok(1, [("t", 9)]).hex() == "0001000000000000000100" + "010074" + "0900000000000000"
    assert replies.encode_durable_ack([("t", 9)]).hex() == "020100" + "010074" + "0900000000000000"
    refusal = replies.encode_refusal(replies.Category.DICTIONARY_GAP, 2, "gap")
    assert refusal.hex() == "0d0200000000000000" + "0300" + "676170"
