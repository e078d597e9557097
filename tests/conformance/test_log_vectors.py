"""Golden vectors of the log format: these bytes are read for ever, and written as long as the version is 1."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa

from holdfast.disk.appendlog import FileHeader
from holdfast.disk.checksum import crc32c
from holdfast.disk.records import Record, decode, encode
from holdfast.model.frame import SlotFrame
from holdfast.model.positions import ChannelId, Fsn
from holdfast.store.wal.codec import FORM_REFERENCE, NO_OPTIONS, EntryPlace, Reference, decode_frame, encode_frame

STORE_ID = bytes(range(16))
FILE_ID = 0x1122334455667789
PAYLOAD = b"hello, log"

RECORD = bytes.fromhex(
    "523f77730a000000030000000000000089776655443322110010000000000000a00f00000000000068656c6c6f2c206c6f670000484672ff"
)
HEADER = bytes.fromhex(
    "48464c4f47000d0a0100400001000000000102030405060708090a0b0c0d0e0f"
    "070000000000000040e2010000000000897766554433221177616c004fec2130"
)
REFERENCE = Reference(segment_seq=7, offset_bytes=184, size_bytes=1048960, crc32c=0x1234ABCD)
REFERRING_FRAME = bytes.fromhex(
    "0700000000000000b8000000000000008001100000000000cdab3412000000000500000002000000e9030000000000002c0100000200000000000000"
    "0000000020000000000000000201010000000000d10700000000000000002a36fe9c97170900000000000000000102030405060708090a0b0c0d0e0f"
)


def test_crc32c_is_the_castagnoli_checksum() -> None:
    """The check value of RFC 3720, B.4."""
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


def test_record_is_written_as_the_vector() -> None:
    before, after = encode(3, len(PAYLOAD), crc32c(PAYLOAD), file_id=FILE_ID, position=4096, synced=4000)
    assert before + PAYLOAD + after == RECORD


def test_record_vector_is_read_back() -> None:
    buffer = pa.py_buffer(RECORD)
    found = decode(buffer, memoryview(buffer), 0, file_id=FILE_ID, position=4096)
    assert isinstance(found, Record)
    assert (found.kind, found.position, found.synced, found.size_bytes) == (3, 4096, 4000, len(RECORD))
    assert found.payload.to_pybytes() == PAYLOAD


def test_record_vector_has_its_fields_where_the_picture_says() -> None:
    length, kind, zero16, zero32, file_id, position, synced = struct.unpack_from("<IHHIQQQ", RECORD, 4)
    assert (length, kind, zero16, zero32, file_id, position, synced) == (10, 3, 0, 0, FILE_ID, 4096, 4000)
    assert struct.unpack_from("<I", RECORD)[0] == crc32c(RECORD[4:40], crc32c(PAYLOAD))
    assert RECORD[40:50] == PAYLOAD
    assert RECORD[50:] == b"\0\0HFr\xff"
    assert len(RECORD) % 8 == 0


def test_file_header_is_written_as_the_vector() -> None:
    assert FileHeader(STORE_ID, 7, 123456, FILE_ID, weak=True, name="wal").encode() == HEADER


def test_file_header_vector_is_read_back() -> None:
    found = FileHeader.decode(Path("wal-0000000007.log"), HEADER)
    assert found == FileHeader(STORE_ID, 7, 123456, FILE_ID, weak=True, name="wal")


def test_file_header_vector_has_its_fields_where_the_picture_says() -> None:
    assert HEADER[:8] == b"HFLOG\0\r\n"
    assert struct.unpack_from("<HHI", HEADER, 8) == (1, 64, 1)
    assert HEADER[16:32] == STORE_ID
    assert struct.unpack_from("<QQQ", HEADER, 32) == (7, 123456, FILE_ID)
    assert HEADER[56:60] == b"wal\0"
    assert struct.unpack_from("<I", HEADER, 60)[0] == crc32c(HEADER[:60])


def test_frame_with_a_reference_is_written_as_the_vector() -> None:
    place = EntryPlace(ChannelId(5), 2, 1001, REFERENCE.payload(300), NO_OPTIONS)
    record = encode_frame(
        [place],
        identity=SlotFrame(STORE_ID, Fsn(9)),
        first_committed_id=2001,
        ingested_at_ns=1_700_000_000_000_000_000,
        payload_crc=crc32c(place.payload.buffer),
    )
    written = b"".join(record.buffers)
    assert written == REFERRING_FRAME
    assert (record.kind, record.payload_bytes, record.payload_crc) == (3, len(written), crc32c(written))


def test_frame_vector_with_a_reference_is_read_back() -> None:
    frame = decode_frame(pa.py_buffer(REFERRING_FRAME))
    (entry,) = frame.entries
    assert (frame.first_committed_id, frame.identity) == (2001, SlotFrame(STORE_ID, Fsn(9)))
    assert (entry.channel_id, entry.schema_id, entry.first_seq) == (5, 2, 1001)
    assert (entry.payload.form, entry.payload.rows, entry.payload.arrow_bytes) == (FORM_REFERENCE, 300, 1048960)
    assert entry.payload.reference == REFERENCE


def test_frame_vector_with_a_reference_has_its_fields_where_the_picture_says() -> None:
    assert struct.unpack_from("<QQQII", REFERRING_FRAME) == (7, 184, 1048960, 0x1234ABCD, 0)
    assert struct.unpack_from("<IIQIHHIIQ", REFERRING_FRAME, 32) == (5, 2, 1001, 300, 2, 0, 0, 0, 32)
    assert struct.unpack_from("<BBH", REFERRING_FRAME, 72) == (2, 1, 1)
