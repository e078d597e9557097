"""Finding our entries in an Arrow footer without trusting its bytes.

Promise: any bytes give either the places of the entries or `FooterDamaged`; nothing is read outside the given bytes
and work is bounded. That is what lets a reader check a file's checksum *before* Arrow sees the file: Arrow's own reader
takes the bytes at their word, and a flipped bit can end the process.

The custom metadata of a footer, as the flatbuffer of Arrow's `File.fbs` lays it out (all little-endian):

    footer     u32 offset of the root table
    table      i32 distance back to its vtable; field k is at table + u16 vtable[4 + 2k], absent when 0
    Footer     field 4: u32 distance to a vector of KeyValue
    vector     u32 length, then one u32 distance to each table
    KeyValue   field 0, 1: u32 distance to key, value
    string     u32 length, then UTF-8
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from holdfast.disk.filesystem import File

MAGIC = b"ARROW1"
TRAILER_BYTES = 4 + len(MAGIC)  # footer length and magic
FOOTER_BYTES_MAX = 1 << 28  # run tables of real segments are below 2 MiB
ENTRIES_MAX = 256  # ours are 20

_CUSTOM_METADATA_FIELD = 4
_U32 = struct.Struct("<I")
_I32 = struct.Struct("<i")
_U16 = struct.Struct("<H")


class FooterDamaged(ValueError):
    """These bytes are not an Arrow footer; `offset_bytes` is where in the file that shows."""

    def __init__(self, reason: str, *, offset_bytes: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset_bytes = offset_bytes


@dataclass(frozen=True, slots=True)
class Footer:
    """The end of a file, from the footer to the last byte."""

    start: int
    """Offset in the file."""
    data: bytes
    spans: dict[str, slice]
    """Where in `data` the value of each entry is."""

    def value(self, key: str) -> bytes:
        """One entry, or `FooterDamaged`."""
        if key not in self.spans:
            raise FooterDamaged(f"the footer has no entry {key}", offset_bytes=self.start)
        return self.data[self.spans[key]]


def read_footer(file: File) -> Footer:
    """The footer of a file, read with `pread` only."""
    size_bytes = file.size_bytes()
    trailer = file.pread(TRAILER_BYTES, max(0, size_bytes - TRAILER_BYTES))
    if len(trailer) < TRAILER_BYTES or not trailer.endswith(MAGIC):
        raise FooterDamaged("the file does not end like an Arrow file", offset_bytes=size_bytes)
    footer_bytes = _U32.unpack_from(trailer)[0]
    start = size_bytes - TRAILER_BYTES - footer_bytes
    if footer_bytes > FOOTER_BYTES_MAX or start < len(MAGIC):
        place = size_bytes - TRAILER_BYTES
        raise FooterDamaged(f"a footer of {footer_bytes} bytes does not fit the file", offset_bytes=place)
    data = file.pread(size_bytes - start, start)
    try:
        return Footer(start, data, find_entries(data[:footer_bytes]))
    except FooterDamaged as error:
        raise FooterDamaged(error.reason, offset_bytes=start + error.offset_bytes) from None


def find_entries(footer: bytes) -> dict[str, slice]:
    """Where the value of each custom metadata entry is."""
    place = _field(footer, _follow(footer, 0), _CUSTOM_METADATA_FIELD)
    if place is None:
        return {}
    vector = _follow(footer, place)
    count = _read(_U32, footer, vector)
    if count > ENTRIES_MAX:
        raise FooterDamaged(f"the footer claims {count} entries, at most {ENTRIES_MAX} are allowed")
    entries: dict[str, slice] = {}
    for i in range(count):
        table = _follow(footer, vector + 4 + 4 * i)
        key = footer[_string(footer, table, 0)]
        entries[key.decode("utf-8", errors="replace")] = _string(footer, table, 1)
    return entries


def _read(kind: struct.Struct, data: bytes, at: int) -> int:
    if at < 0 or at + kind.size > len(data):
        raise FooterDamaged(f"an offset of the footer points outside of it, to {at}")
    value: int = kind.unpack_from(data, at)[0]
    return value


def _follow(data: bytes, at: int) -> int:
    return at + _read(_U32, data, at)


def _field(data: bytes, table: int, number: int) -> int | None:
    vtable = table - _read(_I32, data, table)
    if 4 + 2 * number + 2 > _read(_U16, data, vtable):
        return None
    offset = _read(_U16, data, vtable + 4 + 2 * number)
    return table + offset if offset else None


def _string(data: bytes, table: int, number: int) -> slice:
    place = _field(data, table, number)
    if place is None:
        raise FooterDamaged("an entry of the footer lacks its key or value")
    start = _follow(data, place) + 4
    end = start + _read(_U32, data, start - 4)
    if end > len(data):
        raise FooterDamaged("an entry of the footer runs beyond its end")
    return slice(start, end)
