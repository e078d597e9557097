"""`.symbol-dict` of other clients' slots: the symbols that their QWP frames name by number.

    "SYD1" | u8 version 1 | 3 zeros | chunk*
    chunk:  varint entries | varint bytes | entries x (varint length, UTF-8) | u32 crc32c of all before it in the chunk

Ids count from 0 in file order. A client writes a chunk before the frame that needs it, so the tail may be torn:
reading ends at the first chunk that is not intact. We only read: our own frames carry what they need.
"""

from __future__ import annotations

import struct
from pathlib import Path

from holdfast.disk.checksum import crc32c
from holdfast.disk.filesystem import Filesystem
from holdfast.disk.smallfiles import read_whole

NAME = ".symbol-dict"
MAGIC = b"SYD1"
VERSION = 1
HEADER_BYTES = 8
ENTRIES_MAX = 2_000_000
"""As many as a server keeps for one connection."""

_CRC = struct.Struct("<I")
_VARINT_BYTES_MAX = 10


class _Torn(Exception):
    """The bytes end, or are not a chunk."""


def read_symbols(filesystem: Filesystem, directory: Path) -> list[str]:
    """Every symbol that the file holds intact, by id; none without a file."""
    return decode(read_whole(filesystem, directory / NAME) or b"")


def decode(data: bytes) -> list[str]:
    """The symbols of the intact chunks at the start of `data`."""
    symbols: list[str] = []
    if data[: len(MAGIC) + 1] != MAGIC + bytes([VERSION]):
        return symbols
    at = HEADER_BYTES
    while at < len(data) and len(symbols) <= ENTRIES_MAX:
        try:
            chunk, at = _chunk(data, at)
        except _Torn:
            break
        symbols += chunk
    return symbols


def _chunk(data: bytes, start: int) -> tuple[list[str], int]:
    count, at = _varint(data, start)
    size, at = _varint(data, at)
    end = at + size
    if end + _CRC.size > len(data) or _CRC.unpack_from(data, end)[0] != crc32c(data[start:end]):
        raise _Torn
    entries: list[str] = []
    while at < end:
        length, at = _varint(data, at)
        try:
            entries.append(data[at : at + length].decode())
        except UnicodeDecodeError:
            raise _Torn from None
        at += length
    if len(entries) != count or at != end:
        raise _Torn
    return entries, end + _CRC.size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        if at + place >= len(data):
            break
        byte = data[at + place]
        value |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return value, at + place + 1
    raise _Torn
