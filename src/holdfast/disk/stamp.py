"""A checksum over a whole SQLite file, kept in the file while nobody has it open.

SQLite has no checksum for its pages, and a row that cannot be found any more cannot be compared with one. So whoever
closes a database for good stamps it, in two fields of the header that mean nothing to SQLite:

    60  4  CRC32C of all bytes of the file, with zeros in these two fields; big-endian, never zero (`user_version`)
    68  4  its complement (`application_id`)

If the two do not fit each other, there is no stamp, and nobody can tell. If they do, the file is as it was closed, or
it is damaged: the first change ends the stamp, because `SqliteDatabase.transaction` sets the first field to zero in the
same transaction. While SQLite's log stands beside the file, as after a kill, the stamp says nothing.

Writing it is one write and no sync: a power cut leaves the stamp, no stamp, or a part of it, which is none.

Relies on the caller for this: nobody in this process has the database open, because closing a descriptor would drop
SQLite's locks; and the call to `stamp` comes after the database was closed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Bytes, File, Filesystem, Mode
from holdfast.errors import CorruptData

SIDE_FILES = ("-wal", "-journal")
"""While one of them has content, the newest state is not in the database's file alone."""

PIECE_BYTES = 1 << 20
"""Read at a time: some milliseconds, and no burden for memory."""

_HEADER_BYTES = 100
_STAMP, _COMPLEMENT = slice(60, 64), slice(68, 72)
_ALL_ONES = 0xFFFF_FFFF
_MAGIC = b"SQLite format 3\0"
_VERSIONS = slice(18, 20)  # who may write it, who may read it: 1 with a rollback journal, 2 with a write-ahead log


def is_stamped(filesystem: Filesystem, path: Path) -> bool:
    """Whether the file is bit by bit what was closed. False if nobody can tell: not there, empty, or not closed.

    Raises `CorruptData` if it is something else.
    """
    if not filesystem.exists(path) or any(_has_content(filesystem, path, suffix) for suffix in SIDE_FILES):
        return False
    file = filesystem.open(path, Mode.READ)
    try:
        return check_stamp(path, _pieces(file))
    finally:
        file.close()


def check_stamp(path: Path, pieces: Iterable[bytes]) -> bool:
    """The same for bytes that were read; the first piece holds the header. Only for a file without side files."""
    header, found = _summed(pieces)
    if not header:
        return False
    if header[: len(_MAGIC)] != _MAGIC or len(header) < _HEADER_BYTES:
        raise CorruptData(file=path, offset_bytes=0, reason="file is not a database")
    if any(version not in (1, 2) for version in header[_VERSIONS]):
        versions = "/".join(map(str, header[_VERSIONS]))
        reason = f"no version of SQLite has written this: format {versions}"
        raise CorruptData(file=path, offset_bytes=_VERSIONS.start, reason=reason)
    kept, complement = (int.from_bytes(header[place], "big") for place in (_STAMP, _COMPLEMENT))
    if not kept or kept ^ complement != _ALL_ONES:
        return False
    if kept != found:
        reason = f"its bytes have the checksum {found:08x}; {kept:08x} was noted when it was closed"
        raise CorruptData(file=path, offset_bytes=_STAMP.start, reason=reason)
    return True


def stamp(filesystem: Filesystem, path: Path) -> None:
    """Note the checksum of a database that was closed; nothing if SQLite left its log beside it."""
    if any(_has_content(filesystem, path, suffix) for suffix in SIDE_FILES):
        return
    file = filesystem.open(path, Mode.WRITE)
    try:
        header, found = _summed(_pieces(file))
        if header:
            between = header[_STAMP.stop : _COMPLEMENT.start]
            fields = [found.to_bytes(4, "big"), between, (found ^ _ALL_ONES).to_bytes(4, "big")]
            file.pwritev([b"".join(fields)], _STAMP.start)
    finally:
        file.close()


def _summed(pieces: Iterable[bytes]) -> tuple[bytes, int]:
    """The header, and the checksum of all without the stamp; never zero."""
    header, value = b"", 0
    for piece in pieces:
        rest: Bytes = piece
        if not header:
            header = piece[:_HEADER_BYTES]
            value = crc32c(_without_stamp(header))
            rest = memoryview(piece)[_HEADER_BYTES:]
        value = crc32c(rest, value)
    return header, value or 1


def _without_stamp(header: bytes) -> bytes:
    between, rest = header[_STAMP.stop : _COMPLEMENT.start], header[_COMPLEMENT.stop :]
    return header[: _STAMP.start] + bytes(4) + between + bytes(4) + rest


def _pieces(file: File) -> Iterator[bytes]:
    size = file.size_bytes()
    for at in range(0, size, PIECE_BYTES):
        yield file.pread(min(PIECE_BYTES, size - at), at)


def _has_content(filesystem: Filesystem, path: Path, suffix: str) -> bool:
    beside = path.with_name(path.name + suffix)
    if not filesystem.exists(beside):
        return False
    file = filesystem.open(beside, Mode.READ)
    try:
        return file.size_bytes() > 0
    finally:
        file.close()
