"""Plain frames are recognised by comparing bytes; whatever differs is left to the decoder that says why."""

from __future__ import annotations

import random
import struct

import pyarrow as pa
import pytest

from holdfast.errors import WireError
from holdfast.model.frame import Entry, Guid, PlainFrame, SlotFrame
from holdfast.model.positions import Fsn
from holdfast.wire import hfa
from holdfast.wire.limits import FrameLimits
from holdfast.wire.plain import PLAIN_BYTES_MAX, SHAPES_MAX, PlainReader

SLOT = bytes(range(16))
LIMITS = FrameLimits()


def batch(*numbers: int, text: str = "abc") -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), "text": pa.array([text] * len(numbers))})


def frame(*entries: Entry, fsn: int | None = 1, guid: bytes | None = None) -> bytes:
    return b"".join(hfa.encode(entries, slot_id=None if fsn is None else SLOT, fsn=fsn or 0, guid=guid))


def reader(*taught: bytes, limits: FrameLimits = LIMITS) -> PlainReader:
    made = PlainReader(limits)
    for message in taught or (frame(Entry("trades", batch(1))),):
        made.learn(message, hfa.decode(message, limits))
    return made


def batch_of(plain: PlainFrame) -> pa.RecordBatch:
    return pa.ipc.read_record_batch(pa.py_buffer(plain.message), plain.schema)


def test_frame_like_one_before_is_read_as_the_decoder_reads_it() -> None:
    plain = reader().read(frame(Entry("trades", batch(4, 5, 6, text="something longer")), fsn=7))
    assert plain is not None
    assert (plain.channel, plain.rows, plain.identity) == ("trades", 3, SlotFrame(SLOT, Fsn(7)))
    assert batch_of(plain).equals(batch(4, 5, 6, text="something longer"))


def test_frames_of_one_layout_differ_in_identity_and_values_only() -> None:
    known = reader()
    messages = [frame(Entry("trades", batch(n, -n, text="xyz" if n % 2 else "abc")), fsn=n) for n in range(1, 50)]
    assert len({len(message) for message in messages}) == 1
    found = [known.read(message) for message in messages]
    assert [plain and plain.identity for plain in found] == [SlotFrame(SLOT, Fsn(n)) for n in range(1, 50)]
    for plain, message in zip(found, messages, strict=True):
        assert plain is not None
        assert batch_of(plain).equals(hfa.decode(message, LIMITS).entries[0].batch)


def test_layouts_of_many_sizes_and_channels_do_not_mix() -> None:
    channels = [f"channel-{n}" for n in range(5)]
    known = reader(*[frame(Entry(channel, batch(1))) for channel in channels])
    for turn in range(3):
        for rows in range(1, 40):
            for channel in channels:
                sent = batch(*range(rows), text=f"{turn}")
                plain = known.read(frame(Entry(channel, sent), fsn=rows))
                assert plain is not None
                assert (plain.channel, plain.rows) == (channel, rows)
                assert batch_of(plain).equals(sent)


def test_first_frame_of_a_channel_is_not_plain() -> None:
    assert PlainReader(LIMITS).read(frame(Entry("trades", batch(1)))) is None
    assert reader().read(frame(Entry("quotes", batch(1)))) is None


def test_every_kind_of_identity_is_kept() -> None:
    entry = Entry("trades", batch(1))
    found = [reader().read(frame(entry, fsn=None, guid=guid)) for guid in (None, SLOT)]
    assert [plain and plain.identity for plain in found] == [None, Guid(SLOT)]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(frame(Entry("trades", batch(1)), Entry("trades", batch(2))), id="two entries"),
        pytest.param(frame(Entry("trades", batch(1), ("eu",))), id="partitions"),
        pytest.param(frame(Entry("trades", batch())), id="no rows"),
        pytest.param(frame(Entry("trades", batch(1, text="x" * PLAIN_BYTES_MAX))), id="large"),
        pytest.param(frame(Entry("trades", pa.record_batch({"n": pa.array([1])}))), id="another schema"),
        pytest.param(
            b"".join(hfa.FrameEncoder(compression="lz4").encode([Entry("trades", batch(1))], slot_id=SLOT)),
            id="compressed",
        ),
        pytest.param(b"", id="nothing"),
        pytest.param(b"QWP1" + bytes(100), id="another payload"),
    ],
)
def test_frame_that_is_not_plain_is_left_to_the_decoder(other: bytes) -> None:
    assert reader().read(other) is None


def test_dictionaries_are_never_learnt() -> None:
    coded = pa.record_batch({"n": pa.array(["a", "b"]).dictionary_encode()})
    message = frame(Entry("trades", coded))
    assert reader(message).read(message) is None


def test_more_rows_than_allowed_are_left_to_the_decoder() -> None:
    small = FrameLimits(rows=2)
    known = reader(frame(Entry("trades", batch(1))), limits=small)
    assert known.read(frame(Entry("trades", batch(1, 2)))) is not None
    assert known.read(frame(Entry("trades", batch(1, 2, 3)))) is None


def test_batch_whose_buffers_share_bytes_is_left_to_the_decoder() -> None:
    """Such a batch is larger in memory than on the wire."""
    wide = pa.record_batch({"a": pa.array([1, 2], pa.int64()), "b": pa.array([3, 4], pa.int64())})
    message = frame(Entry("trades", wide))
    known = reader(message)
    layout = struct.pack("<8q", 0, 0, 0, 16, 16, 0, 16, 16)  # offset and length: no nulls, a, no nulls, b
    assert message.count(layout) == 1
    assert known.read(message) is not None
    shared = message.replace(layout, struct.pack("<8q", 0, 0, 0, 32, 0, 0, 0, 32))
    assert known.read(shared) is None
    misaligned = message.replace(layout, struct.pack("<8q", 0, 0, 4, 16, 16, 0, 16, 16))
    assert known.read(misaligned) is None
    negative = message.replace(layout, struct.pack("<8q", 0, -64, 0, 16, 16, 0, 16, 16))
    assert known.read(negative) is None


def test_more_channels_than_remembered_are_learnt_again() -> None:
    known = reader(*[frame(Entry(f"c{n}", batch(n))) for n in range(SHAPES_MAX + 1)])
    assert known.read(frame(Entry("c0", batch(1)))) is None
    assert known.read(frame(Entry(f"c{SHAPES_MAX}", batch(1)))) is not None


def agrees(known: PlainReader, message: bytes) -> bool:
    """Whether what is taken as plain, and is sound, is what the decoder finds too."""
    plain = known.read(message)
    if plain is None:
        return True
    try:
        found = batch_of(plain)
        found.validate(full=True)
    except (pa.ArrowException, OSError):
        return True  # whoever stores it finds out
    try:
        decoded = hfa.decode(message, LIMITS)
    except WireError:
        return False
    (entry,) = decoded.entries
    identity = SlotFrame(decoded.slot_id, Fsn(decoded.fsn)) if decoded.slot_id else None
    if decoded.guid:
        return plain.identity == Guid(decoded.guid) and entry.batch.equals(found)
    return plain.identity == identity and entry.channel == plain.channel and entry.batch.equals(found)


def test_every_flipped_bit_and_every_cut_is_read_as_the_decoder_reads_it() -> None:
    message = frame(Entry("trades", batch(1, 2, 3)))
    known = reader(message)
    for place in range(len(message)):
        assert agrees(known, message[:place]), f"cut at {place}"
        for bit in range(8):
            broken = bytearray(message)
            broken[place] ^= 1 << bit
            assert agrees(known, bytes(broken)), f"bit {bit} of byte {place}"


def test_random_changes_are_read_as_the_decoder_reads_them() -> None:
    chance = random.Random(7)
    message = frame(Entry("trades", batch(*range(20))))
    known = reader(message)
    for _ in range(3000):
        broken = bytearray(message)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(0, len(broken) - 8, 4)
            broken[at : at + 8] = struct.pack(
                "<q", chance.choice([-1, 0, 1, 7, 8, 64, 1 << 31, chance.getrandbits(62)])
            )
        assert agrees(known, bytes(broken))


def test_stream_of_a_length_that_the_decoder_refuses_is_not_plain() -> None:
    """A batch without the padding of its one value: some word of its metadata says that it has 4 bytes, not 8."""
    whole = frame(Entry("trades", pa.record_batch({"n": pa.array([1], pa.int32())})))
    known = reader(whole)
    stream_bytes_at, padding_at = 36, len(whole) - 12
    for place in (at for at in range(len(whole) - 8) if whole[at : at + 8] == struct.pack("<q", 8)):
        cut = bytearray(whole)
        struct.pack_into("<q", cut, place, 4)
        struct.pack_into("<I", cut, stream_bytes_at, struct.unpack_from("<I", whole, stream_bytes_at)[0] - 4)
        del cut[padding_at : padding_at + 4]
        with pytest.raises(WireError, match="not a multiple of 8"):
            hfa.decode(bytes(cut), LIMITS)
        assert known.read(bytes(cut)) is None
