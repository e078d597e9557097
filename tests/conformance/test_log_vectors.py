"""Golden vectors of the log format: these bytes are read for ever, and written as long as the version is 1."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa

from holdfast.disk.appendlog import FileHeader
from holdfast.disk.checksum import crc32c
from holdfast.disk.records import Record, decode, encode

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
