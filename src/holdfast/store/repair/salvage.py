"""What can still be read of damaged files: bytes, and the intact records of a log with the holes between them.

Promise: nothing is written. A record is taken only if its checksum is right and it stands where it says it stands, so
what comes out was written. Bytes that the disk refuses to give read as zeros, in blocks of 4 KiB; zeros are never a
record. A log file whose header is damaged is read all the same: every record repeats what is needed of it.

A *hole* is a place where records stood that cannot be read. A hole with `ended` is one where the file ends inside a
record and nothing follows: what an interrupted write or a copy that stopped early leaves. The torn tail of the last
file of a log is not a hole; opening a store cuts it off.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from holdfast.disk import records
from holdfast.disk.appendlog import HEADER_BYTES, KIND_CLOSE, FileHeader
from holdfast.disk.filesystem import File, Filesystem, Mode
from holdfast.disk.records import END_MARK, Flaw, Record
from holdfast.errors import CorruptData

PIECE_BYTES = 1 << 20
BLOCK_BYTES = 1 << 12
"""What a disk loses at once, at least, when a sector goes bad."""

_NUMBER = re.compile(r"[a-z]+-(\d{10})\.log")
_PLACE = struct.Struct("<QQ")  # file id and position, at byte 16 of a record


@dataclass(frozen=True, slots=True)
class Hole:
    """A place of a log file where records stood that cannot be read."""

    offset_bytes: int
    end_bytes: int
    reason: str
    dump: str
    ended: bool


@dataclass(frozen=True, slots=True)
class FoundLog:
    """A log file, read around its damage."""

    path: Path
    number: int
    size_bytes: int
    header: FileHeader | None
    """As the file says, or as its records do; None when neither can be read."""
    header_damage: str
    foreign: str
    """Why this is not a file of this log; "" if it is. Nothing is taken from a foreign file."""
    records: tuple[Record, ...] = ()
    holes: tuple[Hole, ...] = ()
    end_offset: int = 0
    closed: bool = False
    """Whether the log was closed in order here."""
    torn_bytes: int = 0
    """Bytes of a write that was never finished, at the end of the last file."""
    rotated: bool = False
    """Whether the process that wrote this file went on in the next one, as far as the file tells."""

    @property
    def ends_in_hole(self) -> bool:
        """Whether nothing can be read behind the last hole."""
        return bool(self.holes) and self.holes[-1].end_bytes >= self.end_offset

    @property
    def weak(self) -> bool:
        """Whether answers were given before the sync; assumed where nobody can tell."""
        return self.header is None or self.header.weak

    @property
    def end_position(self) -> int:
        """Where the next file of the log begins, if this one is whole."""
        return (self.header.start_position if self.header else 0) + self.end_offset

    @property
    def start_position(self) -> int | None:
        """Where the file begins in the endless log, if anything tells."""
        return self.header.start_position if self.header is not None and not self.foreign else None

    def without_records(self) -> FoundLog:
        """The same without the bytes of the file."""
        return replace(self, records=())


def read_damaged(filesystem: Filesystem, path: Path) -> bytes:
    """All bytes of a file; those that the disk does not give are zeros."""
    return b"".join(damaged_pieces(filesystem, path))


def damaged_pieces(filesystem: Filesystem, path: Path) -> Iterator[bytes]:
    """The same, a megabyte at a time."""
    file = filesystem.open(path, Mode.READ)
    try:
        size = file.size_bytes()
        for at in range(0, size, PIECE_BYTES):
            yield _piece(file, at, min(PIECE_BYTES, size - at))
    finally:
        file.close()


def _piece(file: File, offset: int, count: int) -> bytes:
    try:
        return file.pread(count, offset).ljust(count, b"\0")
    except OSError:
        return b"".join(
            _block(file, at, min(BLOCK_BYTES, offset + count - at)) for at in range(offset, offset + count, BLOCK_BYTES)
        )


def _block(file: File, offset: int, count: int) -> bytes:
    try:
        return file.pread(count, offset).ljust(count, b"\0")
    except OSError:
        return bytes(count)


# ----------------------------------------------------------------------------------------------------------------- logs


def find_log(filesystem: Filesystem, path: Path, *, name: str, store_id: bytes | None, last: bool) -> FoundLog:
    """Read one file of log `name` as far as it can be read. `store_id` None takes it from any store."""
    data = read_damaged(filesystem, path)
    number = log_number(path)
    header, damage = _header(path, data, name=name, number=number, store_id=store_id or bytes(16))
    if header is None:
        end = len(data.rstrip(b"\0"))
        hole = Hole(0, end, damage, records.dump(data, offset=0), ended=len(data) < HEADER_BYTES or end == 0)
        return FoundLog(path, number, len(data), None, damage, "", holes=(hole,), end_offset=end)
    foreign = _foreign(header, name=name, number=number, store_id=None if damage else store_id)
    if foreign:
        return FoundLog(path, number, len(data), header, damage, foreign)
    intact, holes, end = _read(pa.py_buffer(data), header, last=last)
    torn = len(data[end:].rstrip(b"\0"))
    closed = bool(intact) and intact[-1].kind == KIND_CLOSE and not (holes and holes[-1].end_bytes >= end)
    return FoundLog(
        path,
        number,
        len(data),
        header,
        damage,
        "",
        tuple(intact),
        tuple(holes),
        end,
        closed,
        torn,
        not closed and _was_rotated(intact),
    )


def _was_rotated(intact: list[Record]) -> bool:
    """A file that a start mended says of each record that all before it was synced; a living one does not."""
    return any(record.synced != record.position for record in intact)


def log_number(path: Path) -> int:
    """The number in the name of a log file."""
    match = _NUMBER.fullmatch(path.name)
    assert match is not None, f"{path} is not named like a log file"
    return int(match[1])


def _header(path: Path, data: bytes, *, name: str, number: int, store_id: bytes) -> tuple[FileHeader | None, str]:
    try:
        return FileHeader.decode(path, data[:HEADER_BYTES]), ""
    except CorruptData as error:
        reason = error.reason
    buffer = pa.py_buffer(data)
    view = memoryview(buffer)
    for at in _record_starts(data):
        file_id, position = _PLACE.unpack_from(data, at + 16)
        if isinstance(records.decode(buffer, view, at, file_id=file_id, position=position), Record) and position >= at:
            return FileHeader(store_id, number, position - at, file_id, True, name), reason
    return None, reason


def _record_starts(data: bytes) -> Iterator[int]:
    """Places where a record may begin: behind the header, and behind every end mark."""
    at = HEADER_BYTES
    while 0 <= at <= len(data) - records.HEADER_BYTES:
        yield at
        mark = data.find(END_MARK, at)
        at = mark + len(END_MARK) if mark >= 0 else -1


def _foreign(header: FileHeader, *, name: str, number: int, store_id: bytes | None) -> str:
    if store_id is not None and header.store_id != store_id:
        return f"belongs to store {header.store_id.hex()}, this is store {store_id.hex()}"
    if header.name != name or header.number != number:
        return f"is file {header.number} of log {header.name!r} under another name"
    return ""


def _read(buffer: pa.Buffer, header: FileHeader, *, last: bool) -> tuple[list[Record], list[Hole], int]:
    """Intact records, the holes between them, and where the data end."""
    intact: list[Record] = []
    holes: list[Hole] = []
    file_id, start = header.file_id, header.start_position
    offset = HEADER_BYTES
    while True:
        reason = ""
        for found in records.scan(buffer, file_id=file_id, start_position=start, offset=offset):
            if isinstance(found, str):
                reason = found
            else:
                intact.append(found)
                offset += found.size_bytes
        flaw = _classify(buffer, header, offset, reason) if reason else None
        if flaw is None or (flaw.torn and last):
            return intact, holes, offset
        following = _next_record(buffer, header, offset)
        end = following if following is not None else len(bytes(memoryview(buffer)).rstrip(b"\0"))
        dump = records.dump(buffer, offset=offset)
        holes.append(Hole(offset, end, flaw.reason, dump, ended=following is None and flaw.torn))
        if following is None:
            return intact, holes, end
        offset = following


def _classify(buffer: pa.Buffer, header: FileHeader, offset: int, reason: str) -> Flaw | None:
    return records.classify(
        buffer, file_id=header.file_id, start_position=header.start_position, offset=offset, reason=reason
    )


def _next_record(buffer: pa.Buffer, header: FileHeader, offset: int) -> int | None:
    """Where the next valid record stands; every record repeats the file's id."""
    view = memoryview(buffer)
    data, pattern = bytes(view), struct.pack("<Q", header.file_id)
    hit = data.find(pattern, offset + 17)
    while hit >= 0:
        at = hit - 16
        if isinstance(
            records.decode(buffer, view, at, file_id=header.file_id, position=header.start_position + at), Record
        ):
            return at
        hit = data.find(pattern, hit + 1)
    return None
