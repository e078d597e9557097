"""HFA1 with arbitrary batches and arbitrary bytes."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import HoldfastError, WireError
from holdfast.model.frame import Entry
from holdfast.model.schema import BatchLimits, check_batch
from holdfast.wire import hfa
from holdfast.wire.limits import FrameLimits

LIMITS = FrameLimits()
STORE = BatchLimits(rows_max=1_000_000, bytes_max=64 << 20)
IDS = st.binary(min_size=16, max_size=16).filter(any)
NAMES = st.from_regex(r"[a-z][a-z0-9._-]{0,20}[a-z0-9]", fullmatch=True).filter(lambda name: ".." not in name)

COLUMNS = st.sampled_from([
    (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    (pa.float32(), st.floats(width=32)),
    (pa.bool_(), st.booleans()),
    (pa.string(), st.text(max_size=20)),
    (pa.binary(), st.binary(max_size=20)),
    (pa.timestamp("us", "UTC"), st.integers(0, 1 << 50)),
    (pa.list_(pa.int16()), st.lists(st.integers(-5, 5), max_size=4)),
    (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["a", "b", "ccc"])),
    (pa.struct([("x", pa.int8()), ("y", pa.string())]), st.fixed_dictionaries({"x": st.integers(0, 9)})),
    (pa.null(), st.none()),
])  # fmt: skip


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    rows = draw(st.integers(0, 8))
    columns = {}
    for number, (data_type, values) in enumerate(draw(st.lists(COLUMNS, min_size=1, max_size=5))):
        drawn = draw(st.lists(st.none() | values, min_size=rows, max_size=rows))
        columns[f"c{number}"] = pa.array(drawn, data_type)
    batch = pa.record_batch(columns)
    return batch.slice(draw(st.integers(0, rows)))


entries = st.lists(
    st.builds(Entry, NAMES, batches(), st.lists(st.text(max_size=9), max_size=3).map(tuple)), min_size=1, max_size=4
)


def same(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    """Equal, with NaN equal to NaN."""
    pairs = zip(one.columns, other.columns, strict=True)
    return one.schema.equals(other.schema) and all(
        a.to_pylist().__repr__() == b.to_pylist().__repr__() for a, b in pairs
    )


@given(
    frames=st.lists(st.tuples(entries, IDS, st.integers(0, (1 << 63) - 1)), min_size=1, max_size=3),
    compression=st.sampled_from([None, "lz4", "zstd"]),
)
def test_any_frame_of_one_encoder_comes_back(
    frames: list[tuple[list[Entry], bytes, int]], compression: str | None
) -> None:
    encoder = hfa.FrameEncoder(compression=compression)
    for sent, slot_id, fsn in frames:
        found = hfa.decode(b"".join(encoder.encode(sent, slot_id=slot_id, fsn=fsn)), LIMITS)
        assert (found.slot_id, found.fsn) == (slot_id, fsn)
        assert [(e.channel, e.partitions) for e in found.entries] == [(e.channel, e.partitions) for e in sent]
        assert all(same(a.batch, b.batch) for a, b in zip(found.entries, sent, strict=True))


@given(st.binary(max_size=300))
def test_any_bytes_behind_the_magic_are_refused(tail: bytes) -> None:
    for raw in (tail, b"HFA1" + tail, b"HFA1\1\0\1\0" + bytes(24) + tail):
        try:
            hfa.decode(raw, LIMITS)
        except WireError:
            continue
        raise AssertionError(f"{raw.hex()} was taken")


@given(
    sent=entries,
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=8)), min_size=1),
)
def test_damaged_frame_is_taken_or_refused(sent: list[Entry], damage: list[tuple[float, bytes]]) -> None:
    raw = bytearray(b"".join(hfa.encode(sent)))
    for where, part in damage:
        start = int(where * len(raw))
        raw[start : start + len(part)] = part[: len(raw) - start]
    try:
        for entry in hfa.decode(bytes(raw), LIMITS).entries:
            check_batch(entry.channel, entry.batch, STORE)
    except HoldfastError:
        return
