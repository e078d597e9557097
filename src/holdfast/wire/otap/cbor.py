"""CBOR (RFC 8949), as far as attribute values go: maps, lists, texts, bytes, numbers, true, false and null.

Promise: any bytes give a value, or `WireError`. Nesting and lengths are bounded before anything is built. Bytes inside
of a value become base64 texts, as in JSON; that is how a channel keeps them. Tags are skipped.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator

from holdfast.errors import Category, WireError

DEPTH_MAX = 64
"""Values nest a few levels; each level costs a call."""
_UNSIGNED, _NEGATIVE, _BYTES, _TEXT, _LIST, _MAP, _TAG, _SIMPLE = range(8)
_OPEN = 31
_SIMPLES = {20: False, 21: True, 22: None, 23: None}
_FLOATS = {25: struct.Struct(">e"), 26: struct.Struct(">f"), 27: struct.Struct(">d")}
_DOUBLE = _FLOATS[27]
_SIZES = {24: 1, 25: 2, 26: 4, 27: 8}
_END = object()


def read(data: bytes) -> object:
    """The one value in the bytes."""
    reader = _Reader(data)
    try:
        value = reader.value(0)
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise _bad(f"ends too early or is malformed: {error}") from None
    if reader.at != len(data):
        raise _bad(f"{len(data) - reader.at} bytes behind the value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.at = 0
        self._data = data

    def value(self, depth: int) -> object:
        """The next value; `_END` is none."""
        found = self._any(depth)
        if found is _END:
            raise _bad("an end where a value should be")
        return found

    def _any(self, depth: int) -> object:
        if depth > DEPTH_MAX:
            raise _bad(f"nested deeper than {DEPTH_MAX} levels")
        kind, info = self._data[self.at] >> 5, self._data[self.at] & 31
        self.at += 1
        if kind == _SIMPLE:
            return self._simple(info)
        if info == _OPEN:
            return self._open(kind, depth)
        count = self._count(info)
        if kind in (_UNSIGNED, _NEGATIVE):
            if count >= 1 << 63:
                raise _bad("a number of more than 63 bits")
            return count if kind == _UNSIGNED else -1 - count
        return self.value(depth + 1) if kind == _TAG else self._sized(kind, count, depth)

    def _sized(self, kind: int, count: int, depth: int) -> object:
        left = len(self._data) - self.at
        if count > left:  # each item has a byte at least
            raise _bad(f"claims {count} items or bytes, {left} bytes are left")
        if kind in (_BYTES, _TEXT):
            part = self._data[self.at : self.at + count]
            self.at += count
            return part.decode() if kind == _TEXT else base64.b64encode(part).decode()
        if kind == _LIST:
            return [self.value(depth + 1) for _ in range(count)]
        return _map([self.value(depth + 1) for _ in range(2 * count)])

    def _open(self, kind: int, depth: int) -> object:
        """A value without a length: it ends at a mark."""
        if kind not in (_BYTES, _TEXT, _LIST, _MAP):
            raise _bad("a number without an end")
        found: list[object] = []
        while (value := self._any(depth + 1)) is not _END:
            found.append(value)
        if kind == _LIST:
            return found
        if kind == _MAP:
            return _map(found)
        if not all(isinstance(part, str) for part in found):
            raise _bad("a text in parts that are no texts")
        if kind == _TEXT:
            return "".join(str(part) for part in found)
        try:
            return base64.b64encode(b"".join(base64.b64decode(str(part)) for part in found)).decode()
        except ValueError:
            raise _bad("bytes in parts that are no bytes") from None

    def _simple(self, info: int) -> object:
        if info == _OPEN:
            return _END
        if info in _FLOATS:
            kind = _FLOATS[info]
            self.at += kind.size
            return kind.unpack_from(self._data, self.at - kind.size)[0]
        if info in _SIMPLES:
            return _SIMPLES[info]
        raise _bad(f"simple value {info} is not one of false, true, null")

    def _count(self, info: int) -> int:
        if info < 24:
            return info
        size = _SIZES.get(info, 0)
        part = self._data[self.at : self.at + size]
        if not size or len(part) < size:
            raise _bad("a length is cut off or reserved")
        self.at += size
        return int.from_bytes(part, "big")


def _map(found: list[object]) -> dict[str, object]:
    if len(found) % 2 or not all(isinstance(key, str) for key in found[::2]):
        raise _bad("a map whose keys are not texts")
    return {str(key): value for key, value in zip(found[::2], found[1::2], strict=True)}


def write(value: object) -> bytes:
    """The value as bytes; what JSON can say."""
    return b"".join(_write(value))


def _write(value: object) -> Iterator[bytes]:
    if value is None or isinstance(value, bool):
        yield {None: b"\xf6", True: b"\xf5", False: b"\xf4"}[value]
    elif isinstance(value, int):
        yield _head(_UNSIGNED, value) if value >= 0 else _head(_NEGATIVE, -1 - value)
    elif isinstance(value, float):
        yield b"\xfb" + _DOUBLE.pack(value)
    elif isinstance(value, str):
        data = value.encode("utf-8", "replace")
        yield _head(_TEXT, len(data)) + data
    elif isinstance(value, list):
        yield _head(_LIST, len(value))
        for item in value:
            yield from _write(item)
    elif isinstance(value, dict):
        yield _head(_MAP, len(value))
        for key, item in value.items():
            yield from _write(str(key))
            yield from _write(item)
    else:
        raise TypeError(type(value).__name__)


def _head(kind: int, count: int) -> bytes:
    if count < 24:
        return bytes([kind << 5 | count])
    for info, size in _SIZES.items():
        if count < 1 << 8 * size:
            return bytes([kind << 5 | info]) + count.to_bytes(size, "big")
    raise OverflowError("a number of more than 64 bits")


def _bad(reason: str) -> WireError:
    return WireError(category=Category.PARSE_ERROR, reason=reason, place="a CBOR value")
