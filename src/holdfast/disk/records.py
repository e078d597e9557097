"""One checksummed record, the unit of every append log, and the rule that tells a torn tail from damage.

    0        4        8      10     12       16        24         32        40
    +--------+--------+------+------+--------+---------+----------+---------+---------+-----+--------+
    | crc32c | length | kind | zero |  zero  | file id | position | synced  | payload | pad | "HFr\\xff"
    +--------+--------+------+------+--------+---------+----------+---------+---------+-----+--------+
     u32      u32      u16    u16    u32      u64       u64        u64       length    0..7  4 bytes

Little-endian; the whole record is a multiple of 8 bytes. `crc32c` covers the payload, then bytes 4..40: a caller
checksums its payload once and the log adds the header. `file id` is random per file and `position` is the record's
place in the endless log, so a block written to the wrong place, or left over from another file, is not a record here.
`synced` is the log position known to be on disk when the record was written.

Zero bytes are never a record: `kind` 0 does not exist.

The rule (`classify`). Scanning stops at the first place X that holds no valid record. In the last file of a log:

1. only zeros follow X: the end of the log;
2. a valid record follows with `synced` > X: X was accepted, so it is damage;
3. valid records follow, none with `synced` > X: they were written together with X. If a 512-byte sector between X and
   the first of them is zero, that sector was never written, so nobody was answered: a torn tail; otherwise damage;
4. no valid record follows: if the bytes from X to the last non-zero one were written completely (they end with the end
   mark, or with one damaged byte in it, and no sector of them is zero): damage; otherwise a torn tail.

A file is zero before it is written, so a write that did not arrive is a zero sector, or, at the end, any cut. Rules 3
and 4 cannot tell that from damage to the last group of a log if the damaged record itself holds a zero sector.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Bytes

HEADER_BYTES = 40
ALIGN_BYTES = 8
END_MARK = b"HFr\xff"
SECTOR_BYTES = 512
RECORD_BYTES_MAX = 1 << 30
"""No record is longer; a larger length is damage. Twice the largest frame, also of those that are larger than
`frame.max_size`."""

_CRC = struct.Struct("<I")
_BODY = struct.Struct("<IHHIQQQ")
_TAILS = tuple(b"\0" * pad + END_MARK for pad in range(ALIGN_BYTES))


class Record(msgspec.Struct, frozen=True, gc=False):
    """A record read back and found intact."""

    kind: int
    payload: pa.Buffer
    position: int
    synced: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Flaw:
    """The first place of a file that holds no valid record, though it is not the end."""

    offset_bytes: int
    reason: str
    torn: bool


def record_bytes(payload_bytes: int) -> int:
    """Size on disk of a record with such a payload."""
    return (HEADER_BYTES + payload_bytes + len(END_MARK) + ALIGN_BYTES - 1) & -ALIGN_BYTES


def encode(
    kind: int, payload_bytes: int, payload_crc: int, *, file_id: int, position: int, synced: int
) -> tuple[bytes, bytes]:
    """What stands before and after the payload."""
    body = _BODY.pack(payload_bytes, kind, 0, 0, file_id, position, synced)
    return _CRC.pack(crc32c(body, payload_crc)) + body, _TAILS[
        -(HEADER_BYTES + payload_bytes + len(END_MARK)) % ALIGN_BYTES
    ]


def decode(
    buffer: pa.Buffer, view: memoryview, offset: int, *, file_id: int, position: int, verify: bool = True
) -> Record | str:
    """The record at `offset`, or why there is none. `verify` False believes the payload whatever its checksum says."""
    if len(view) - offset < HEADER_BYTES:
        return "the file ends inside a record header"
    crc = _CRC.unpack_from(view, offset)[0]
    length, kind, zero16, zero32, found_id, found_position, synced = _BODY.unpack_from(view, offset + 4)
    if found_id != file_id or kind == 0 or zero16 or zero32 or length > RECORD_BYTES_MAX:
        return "no record header"
    size = record_bytes(length)
    if found_position != position or len(view) - offset < size:
        return f"a header of position {found_position} and {size} bytes stands at position {position}"
    payload = buffer.slice(offset + HEADER_BYTES, length)
    computed = crc32c(view[offset + 4 : offset + HEADER_BYTES], crc32c(payload)) if verify else crc
    if computed != crc:
        return f"checksum is {computed:08x}, the record says {crc:08x}"
    if (
        bytes(view[offset + HEADER_BYTES + length : offset + size])
        != _TAILS[size - HEADER_BYTES - length - len(END_MARK)]
    ):
        return "the end mark is missing"
    return Record(kind, payload, position, synced, size)


def scan(
    buffer: pa.Buffer, *, file_id: int, start_position: int, offset: int, verify: bool = True
) -> Iterator[Record | str]:
    """Records from `offset` on; the last item is a text: why there is no further one, "" at the end of the data."""
    view = memoryview(buffer)
    while offset < len(view):
        found = decode(buffer, view, offset, file_id=file_id, position=start_position + offset, verify=verify)
        yield found
        if isinstance(found, str):
            return
        offset += found.size_bytes
    yield ""


def classify(buffer: pa.Buffer, *, file_id: int, start_position: int, offset: int, reason: str) -> Flaw | None:
    """What the bytes from `offset` on are, where no valid record stands: None for the end of the log."""
    view = memoryview(buffer)
    end = _end_of_data(view, offset)
    if end == offset:
        return None
    later = list(_records_after(buffer, offset, file_id=file_id, start_position=start_position))
    if later:
        accepted = max(record.synced for record in later) > start_position + offset
        torn = not accepted and has_zero_sector(view, offset, later[0].position - start_position)
        return Flaw(offset, f"{reason}; intact records follow", torn=torn)
    complete = _ends_with_mark(view, end) and not has_zero_sector(view, offset, end)
    return Flaw(offset, reason, torn=not complete)


def synced_after(buffer: pa.Buffer, *, file_id: int, start_position: int, offset: int) -> int:
    """The highest position that an intact record behind a flaw at `offset` says was on disk; 0 if there is none."""
    later = _records_after(buffer, offset, file_id=file_id, start_position=start_position)
    return max((record.synced for record in later), default=0)


def _ends_with_mark(view: memoryview, end: int) -> bool:
    """Whether the last bytes are an end mark, whole or with one damaged byte; not if it is cut short."""
    at = (end + ALIGN_BYTES - 1) // ALIGN_BYTES * ALIGN_BYTES - len(END_MARK)
    found = bytes(view[at : at + len(END_MARK)]).ljust(len(END_MARK), b"\0")
    matching = sum(map(int.__eq__, found, END_MARK))
    return matching >= len(END_MARK) - 1 and found != END_MARK[:-1] + b"\0"


def _end_of_data(view: memoryview, offset: int) -> int:
    """One past the last non-zero byte at or after `offset`."""
    step = 1 << 20
    for start in range(offset + (len(view) - offset - 1) // step * step, offset - 1, -step):
        piece = bytes(view[start : start + step]).rstrip(b"\0")
        if piece:
            return start + len(piece)
    return offset


def has_zero_sector(view: memoryview, start: int, end: int) -> bool:
    """Whether a sector of a file, as far as it lies between these offsets, was never written."""
    zero = bytes(SECTOR_BYTES)
    first = start // SECTOR_BYTES * SECTOR_BYTES
    return any(
        bytes(view[max(start, at) : min(end, at + SECTOR_BYTES)])
        == zero[: min(end, at + SECTOR_BYTES) - max(start, at)]
        for at in range(first, end, SECTOR_BYTES)
    )


def _records_after(buffer: pa.Buffer, offset: int, *, file_id: int, start_position: int) -> Iterator[Record]:
    view = memoryview(buffer)
    pattern = struct.pack("<Q", file_id)
    data = bytes(view[offset:])
    hit = data.find(pattern, 17)
    while hit >= 0:
        at = offset + hit - 16
        found = decode(buffer, view, at, file_id=file_id, position=start_position + at)
        if isinstance(found, Record):
            yield found
        hit = data.find(pattern, hit + 1)


def dump(data: Bytes, *, offset: int, count: int = 64) -> str:
    """A hex dump of the first bytes of a bad record, for the operator's eyes."""
    piece = bytes(memoryview(data)[offset : offset + count])
    rows = [piece[at : at + 16] for at in range(0, len(piece), 16)]
    return "\n".join(
        f"  {offset + 16 * n:010x}  {row.hex(' '):<47}  {''.join(chr(b) if 32 <= b < 127 else '.' for b in row)}"
        for n, row in enumerate(rows)
    )
