"""Numbers and fields as protobuf writes them, for the few messages that are handled by hand."""

from __future__ import annotations

from collections.abc import Iterator

_SMALL = [bytes([value]) for value in range(0x80)]
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def varint(value: int) -> bytes:
    """A number that is not negative."""
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value of each field; ends at the first byte that cannot be one."""
    at = 0
    while at < len(data):
        tag, at = _number(data, at)
        kind, value = tag & 7, 0
        if kind == _VARINT:
            value, at = _number(data, at)
            yield tag >> 3, value
        elif kind == _BYTES:
            size, at = _number(data, at)
            yield tag >> 3, data[at : at + size]
            at += size
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        else:
            return


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            break
    return value, at
