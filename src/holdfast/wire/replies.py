"""What the server answers on the ingest wire, both directions.

    OK            u8 0x00 | i64 sequence | u16 channels | per channel: u16 name bytes | name | i64 seq
    DURABLE_ACK   u8 0x02 | u16 channels | the same per channel
    refusal       u8 status | i64 sequence | u16 text bytes (at most 1024) | UTF-8 text

Little-endian. OK is cumulative: it accepts every message of the connection up to and including its sequence.
DURABLE_ACK is cumulative per channel. Reading is as strict as the strictest client known: a byte too many or too few,
an empty name or text that is not UTF-8 is a `WireError`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from holdfast.errors import Category, WireError

__all__ = [
    "TEXT_BYTES_MAX",
    "Category",
    "DurableAck",
    "Ok",
    "Refusal",
    "decode",
    "encode_durable_ack",
    "encode_ok",
    "encode_refusal",
]

STATUS_OK = 0x00
STATUS_DURABLE_ACK = 0x02
TEXT_BYTES_MAX = 1024
"""Clients drop the connection at a longer text."""

_OK = struct.Struct("<BqH")
_DURABLE_ACK = struct.Struct("<BH")
_REFUSAL = struct.Struct("<BqH")
_U16 = struct.Struct("<H")
_I64 = struct.Struct("<q")
_CATEGORIES = {category.value: category for category in Category if category.value > 0}


class Ok(msgspec.Struct, frozen=True):
    """Every message up to `wire_seq` is accepted; the highest seq of each channel they touched."""

    wire_seq: int
    channels: tuple[tuple[str, int], ...] = ()


class DurableAck(msgspec.Struct, frozen=True):
    """Each channel is in the object store up to this seq."""

    channels: tuple[tuple[str, int], ...]


class Refusal(msgspec.Struct, frozen=True):
    """Message `wire_seq` is refused as a whole. `status` is the byte as it came, also when its category is unknown."""

    status: int
    category: Category
    wire_seq: int
    message: str


# -------------------------------------------------------------------------------------------------------------- writing


def encode_ok(wire_seq: int, channels: Sequence[tuple[str, int]]) -> bytes:
    """Accept everything up to `wire_seq`."""
    if not channels:
        return _OK.pack(STATUS_OK, wire_seq, 0)
    return b"".join([_OK.pack(STATUS_OK, wire_seq, len(channels)), *_marks(channels)])


def encode_durable_ack(channels: Sequence[tuple[str, int]]) -> bytes:
    """Say how far each channel is in the object store."""
    return b"".join([_DURABLE_ACK.pack(STATUS_DURABLE_ACK, len(channels)), *_marks(channels)])


def encode_refusal(category: Category, wire_seq: int, message: str) -> bytes:
    """Refuse one message. A long text is cut at a character; a category without a status byte is a `ValueError`."""
    if category.value < 0:
        raise ValueError(f"{category.name} is not sent as a refusal: close the connection")
    text = message.encode(errors="replace")
    if len(text) > TEXT_BYTES_MAX:
        text = text[:TEXT_BYTES_MAX].decode(errors="ignore").encode()
    return _REFUSAL.pack(category.value, wire_seq, len(text)) + text


def _marks(channels: Sequence[tuple[str, int]]) -> list[bytes]:
    parts: list[bytes] = []
    for name, seq in channels:
        raw = name.encode()
        parts += (_U16.pack(len(raw)), raw, _I64.pack(seq))
    return parts


# -------------------------------------------------------------------------------------------------------------- reading


def decode(message: bytes | bytearray | memoryview) -> Ok | DurableAck | Refusal:
    """One reply; `WireError` unless it is exactly one."""
    view = memoryview(message).cast("B")
    try:
        return _decode(view)
    except struct.error:
        raise _violation(len(view), "the reply ends in the middle of a field") from None


def _decode(view: memoryview) -> Ok | DurableAck | Refusal:
    if len(view) == 0:
        raise _violation(0, "the reply is empty")
    status = view[0]
    if status == STATUS_OK:
        _, wire_seq, count = _OK.unpack_from(view)
        if wire_seq < 0:
            raise _violation(1, f"sequence {wire_seq} is negative")
        return Ok(wire_seq, _read_marks(view, _OK.size, count))
    if status == STATUS_DURABLE_ACK:
        _, count = _DURABLE_ACK.unpack_from(view)
        return DurableAck(_read_marks(view, _DURABLE_ACK.size, count))
    return _read_refusal(view, status)


def _read_refusal(view: memoryview, status: int) -> Refusal:
    _, wire_seq, text_bytes = _REFUSAL.unpack_from(view)
    if text_bytes > TEXT_BYTES_MAX:
        raise _violation(9, f"the text has {text_bytes} bytes, at most {TEXT_BYTES_MAX} are allowed")
    end = _REFUSAL.size + text_bytes
    _require_end(view, end)
    return Refusal(status, _CATEGORIES.get(status, Category.UNKNOWN), wire_seq, _text(view, _REFUSAL.size, end))


def _read_marks(view: memoryview, offset: int, count: int) -> tuple[tuple[str, int], ...]:
    marks: list[tuple[str, int]] = []
    for _ in range(count):
        (name_bytes,) = _U16.unpack_from(view, offset)
        if name_bytes == 0:
            raise _violation(offset, "a channel name is empty")
        start, offset = offset + 2, offset + 2 + name_bytes
        (seq,) = _I64.unpack_from(view, offset)
        marks.append((_text(view, start, offset), seq))
        offset += 8
    _require_end(view, offset)
    return tuple(marks)


def _require_end(view: memoryview, end: int) -> None:
    if len(view) != end:
        raise _violation(min(end, len(view)), f"the reply has {len(view)} bytes, its fields {end}")


def _text(view: memoryview, start: int, end: int) -> str:
    try:
        return str(view[start:end], "utf-8")
    except UnicodeDecodeError:
        raise _violation(start, "a text is not UTF-8") from None


def _violation(offset: int, reason: str) -> WireError:
    return WireError(category=Category.PROTOCOL_VIOLATION, reason=reason, place=f"reply, byte {offset}")
