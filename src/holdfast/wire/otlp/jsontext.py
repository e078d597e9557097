"""OTLP's JSON: requests to protobuf, answers to JSON.

It is protobuf's JSON with exceptions of its own: trace and span ids are hex, enums are numbers only, unknown fields are
ignored, 64-bit numbers are texts or numbers. Tables made from the descriptors drive one walk over the values.

Promise: what is not such JSON is `WireError` with the path to the value; never another exception. JSON is walked value
by value in Python, so it is some ten times slower than protobuf; it is for clients that cannot do better.
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Callable
from typing import Any

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor  # type: ignore[import-untyped]

from holdfast.errors import Category, WireError
from holdfast.wire.otlp.signals import Signal
from holdfast.wire.otlp.varint import varint

DEPTH_MAX = 64
"""Below what protobuf's own parser allows; every level of an attribute value is two."""
_HEX_FIELDS = frozenset({"trace_id", "span_id", "parent_span_id"})
_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

_URL_SAFE = bytes.maketrans(b"-_", b"+/")

_Encoder = Callable[[Any], bytes]
_FieldEncoder = Callable[[Any, int], bytes]
_FIELDS: dict[Descriptor, dict[str, _FieldEncoder]] = {}


class _Bad(Exception):
    """What is wrong, and the path to it, innermost last."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


def to_protobuf(signal: Signal, text: bytes) -> bytes:
    """The request in a JSON text."""
    try:
        value = msgspec.json.decode(text)
        return _message(signal.request.DESCRIPTOR, value, 0)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _refused(str(error) or "is nested too deep", "the body") from None
    except _Bad as bad:
        raise _refused(bad.reason, ".".join(reversed(bad.path)) or "the body") from None


def _refused(reason: str, place: str) -> WireError:
    return WireError(category=Category.PARSE_ERROR, reason=reason, place=place)


# -------------------------------------------------------------------------------------------------------------- walking


def _message(kind: Descriptor, value: object, depth: int) -> bytes:
    if not isinstance(value, dict):
        raise _Bad("is not an object")
    if depth > DEPTH_MAX:
        raise _Bad(f"is nested deeper than {DEPTH_MAX}")
    fields = _FIELDS.get(kind) or _fields(kind)
    out = []
    for name, item in value.items():
        encode = fields.get(name)
        if encode is None or item is None:
            continue
        try:
            out.append(encode(item, depth))
        except _Bad as bad:
            bad.path.append(name)
            raise
    return b"".join(out)


def _fields(kind: Descriptor) -> dict[str, _FieldEncoder]:
    """How each field is written; made once, since looking at descriptors takes longer than writing a value."""
    made = _FIELDS[kind] = {name: _field(field) for field in kind.fields for name in (field.json_name, field.name)}
    return made


def _field(field: FieldDescriptor) -> _FieldEncoder:
    one = _one(field)
    if not field.is_repeated:
        return one
    if field.message_type is None and field.type not in _LENGTHS:
        return _packed(field)

    def many(value: object, depth: int) -> bytes:
        if not isinstance(value, list):
            raise _Bad("is not a list")
        return b"".join([one(item, depth) for item in value])

    return many


def _one(field: FieldDescriptor) -> _FieldEncoder:
    kind, tag = field.message_type, varint(field.number << 3 | _BYTES)
    if kind is not None:

        def message(value: object, depth: int) -> bytes:
            data = _message(kind, value, depth + 1)
            return tag + varint(len(data)) + data

        return message
    if field.type in _LENGTHS:
        bytes_of = _bytes_of(field)

        def text(value: object, _depth: int) -> bytes:
            data = bytes_of(value)
            return tag + varint(len(data)) + data

        return text
    wire_type, encode = _SCALARS[field.type]
    number_tag = varint(field.number << 3 | wire_type)
    return lambda value, _depth: number_tag + encode(value)


def _packed(field: FieldDescriptor) -> _FieldEncoder:
    encode, tag = _SCALARS[field.type][1], varint(field.number << 3 | _BYTES)

    def packed(value: object, _depth: int) -> bytes:
        if not isinstance(value, list):
            raise _Bad("is not a list")
        data = b"".join([encode(item) for item in value])
        return tag + varint(len(data)) + data

    return packed


def _bytes_of(field: FieldDescriptor) -> _Encoder:
    if field.type == FieldDescriptor.TYPE_STRING:
        return _utf8
    return _from_hex if field.name in _HEX_FIELDS else _from_base64


def _utf8(value: object) -> bytes:
    if not isinstance(value, str):
        raise _Bad("is not a text")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise _Bad("is not UTF-8") from None


def _from_hex(value: object) -> bytes:
    try:
        return bytes.fromhex(_utf8(value).decode())
    except ValueError:
        raise _Bad("is not hex") from None


def _from_base64(value: object) -> bytes:
    plain = _utf8(value).translate(_URL_SAFE)
    try:
        return base64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except binascii.Error:
        raise _Bad("is not base64") from None


# -------------------------------------------------------------------------------------------------------------- numbers


def _whole(value: object, low: int, high: int) -> int:
    if isinstance(value, str) and len(value) <= 24:
        try:
            value = int(value)
        except ValueError:
            raise _Bad("is not a whole number") from None
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _Bad("is not a whole number")
    if not low <= value <= high:
        raise _Bad(f"is outside {low} … {high}")
    return value


def _integer(low: int, high: int, pack: Callable[[int], bytes]) -> _Encoder:
    return lambda value: pack(_whole(value, low, high))


def _zigzag(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _signed(value: int) -> bytes:
    return varint(value & (2**64 - 1))


def _double(value: object) -> bytes:
    if isinstance(value, str):
        if value not in _WORDS:
            try:
                return struct.pack("<d", float(value))
            except ValueError:
                raise _Bad("is not a number") from None
        value = _WORDS[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _Bad("is not a number")
    try:
        return struct.pack("<d", value)
    except OverflowError:
        raise _Bad("is not a number that fits") from None


def _flag(value: object) -> bytes:
    if not isinstance(value, bool):
        raise _Bad("is not true or false")
    return b"\x01" if value else b"\x00"


_LENGTHS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)
_SCALARS: dict[int, tuple[int, _Encoder]] = {
    FieldDescriptor.TYPE_DOUBLE: (_FIXED64, _double),
    FieldDescriptor.TYPE_BOOL: (_VARINT, _flag),
    FieldDescriptor.TYPE_ENUM: (_VARINT, _integer(-(2**31), 2**31 - 1, _signed)),
    FieldDescriptor.TYPE_INT32: (_VARINT, _integer(-(2**31), 2**31 - 1, _signed)),
    FieldDescriptor.TYPE_INT64: (_VARINT, _integer(-(2**63), 2**63 - 1, _signed)),
    FieldDescriptor.TYPE_UINT32: (_VARINT, _integer(0, 2**32 - 1, varint)),
    FieldDescriptor.TYPE_UINT64: (_VARINT, _integer(0, 2**64 - 1, varint)),
    FieldDescriptor.TYPE_SINT32: (_VARINT, _integer(-(2**31), 2**31 - 1, _zigzag)),
    FieldDescriptor.TYPE_FIXED32: (_FIXED32, _integer(0, 2**32 - 1, lambda value: struct.pack("<I", value))),
    FieldDescriptor.TYPE_FIXED64: (_FIXED64, _integer(0, 2**64 - 1, lambda value: struct.pack("<Q", value))),
    FieldDescriptor.TYPE_SFIXED64: (_FIXED64, _integer(-(2**63), 2**63 - 1, lambda value: struct.pack("<q", value))),
}
