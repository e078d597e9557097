"""One small file with two checksummed records, of which the newest valid one counts: `.ack-watermark`,
`sf-manifest.bin`.

    0       4         8            16       24                60       64       4096             8192
    +-------+---------+------------+--------+- - - - - - - - -+--------+- - - - +- - - - - - - - +
    | magic | version | generation | values | zeros           | crc32c | zeros  | second record  |
    +-------+---------+------------+--------+- - - - - - - - -+--------+- - - - +- - - - - - - - +
     u32     u32 = 1   i64          i64 ...                    u32 of 0..60

Little-endian. A write goes to record `generation & 1`, so it never touches the record that counts until then: a
write that is torn leaves the one before. The two stand in blocks of their own, so no disk writes them together.

Promise: `read` gives the values that were written last, or those before them, or None; never a mixture.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import File

BLOCK_BYTES = 4096
FILE_BYTES = 2 * BLOCK_BYTES
RECORD_BYTES = 64
VERSION = 1

_HEAD = struct.Struct("<4sIq")
_CRC = struct.Struct("<I")
_CRC_AT = RECORD_BYTES - _CRC.size


@dataclass(frozen=True, slots=True)
class DualRecord:
    """What the newest valid record says."""

    generation: int
    values: tuple[int, ...]


def encode(magic: bytes, generation: int, values: tuple[int, ...]) -> bytes:
    """The 64 bytes of one record."""
    body = _HEAD.pack(magic, VERSION, generation) + struct.pack(f"<{len(values)}q", *values)
    body = body.ljust(_CRC_AT, b"\0")
    return body + _CRC.pack(crc32c(body))


def decode(data: bytes, magic: bytes, count: int) -> DualRecord | None:
    """The record in these 64 bytes, or None when they are not one."""
    if len(data) != RECORD_BYTES or _CRC.unpack_from(data, _CRC_AT)[0] != crc32c(data[:_CRC_AT]):
        return None
    found, version, generation = _HEAD.unpack_from(data)
    if found != magic or version != VERSION or generation < 0:
        return None
    return DualRecord(generation, struct.unpack_from(f"<{count}q", data, _HEAD.size))


def read(file: File, magic: bytes, count: int) -> DualRecord | None:
    """The record that counts in a file of the right size."""
    found = [decode(file.pread(RECORD_BYTES, at), magic, count) for at in (0, BLOCK_BYTES)]
    valid = [record for record in found if record is not None]
    return max(valid, key=lambda record: record.generation, default=None)


def write(file: File, magic: bytes, record: DualRecord) -> None:
    """Write the record into its half. The caller syncs."""
    file.pwritev([encode(magic, record.generation, record.values)], (record.generation & 1) * BLOCK_BYTES)
