"""One Arrow IPC stream from a stranger, bounded before anything is inflated.

    stream    schema message | dictionary messages* | batch messages, at least one | ff ff ff ff 00 00 00 00
    message   ff ff ff ff | i32 metadata bytes | metadata (flatbuffer) | body

`read_stream` walks the messages first and looks only at lengths: where each ends, how many rows it claims, and what
its compressed buffers claim to inflate to. Only then does Arrow see the bytes, and Arrow verifies each flatbuffer
before it believes it. Values are not looked at: `model.schema.check_batch` does that for whoever stores them. Several
batches become one, and are checked first, because joining trusts them.

A schema that came before is not parsed again: the same bytes give the same `pa.Schema`, which also lets a store see at
a glance that nothing has changed.
"""

from __future__ import annotations

import struct
from functools import lru_cache, reduce
from operator import or_
from typing import NamedTuple

import pyarrow as pa

from holdfast.errors import Category, InvalidBatch, WireError
from holdfast.model.columns import any_field, has_dictionary
from holdfast.model.schema import BatchLimits, check_batch
from holdfast.wire.limits import FrameLimits

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
SCHEMA_BYTES_MAX = 4 << 20
"""2,048 columns with the longest names and all metadata a store takes."""
SCHEMA_BYTES_CACHED = 8 << 10
SCHEMAS_CACHED = 512
KEPT_BYTES_MIN = 32 << 10
"""Below this, writing a message anew costs no more than looking whether it can be kept."""
PLAIN_BUFFERS_MAX = 1024
"""Of a batch that is kept as it came; one of more columns is not small."""
LAYOUTS_CACHED = 64

_CONTINUATION = 0xFFFFFFFF
SCHEMA, DICTIONARY, BATCH = 1, 2, 3
"""Kinds of messages."""
_PREFIX = struct.Struct("<Ii")
_I64 = struct.Struct("<q")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_U16 = struct.Struct("<H")
_BUFFER = struct.Struct("<qq")
_SLOTS = [struct.Struct(f"<{count}H") for count in range(6)]
_NOT_SET = (0, 0, 0, 0, 0)
_NOT_COMPRESSED = -1
_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, OverflowError)


class Malformed(Exception):
    """What is wrong, and at which byte of the stream; the door adds the rest."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


class Message(NamedTuple):
    """Where a message lies, and what it claims."""

    kind: int
    start: int
    end: int
    rows: int
    inflated_bytes: int
    dictionary_id: int = 0
    is_delta: bool = False


def read_stream(
    stream: pa.Buffer, limits: FrameLimits, *, channel: str, inflated_bytes: int
) -> tuple[pa.RecordBatch, pa.Buffer | None, int]:
    """The batch of a stream, and what was inflated in all; `Malformed` if it is anything but one stream.

    The batch is a view of `stream` where that is not compressed. Between them stands the message the batch is in, if it
    is large and can be stored as it came. `inflated_bytes` is what other streams of the same frame took of
    `limits.decoded_bytes` before.
    """
    view = memoryview(stream).cast("B")  # Arrow says its bytes are signed
    try:
        schema, has_dictionaries, start = _read_schema(view)
        messages = _walk(view, start, limits.batches + limits.columns)
        inflated_bytes += sum([message.inflated_bytes for message in messages])
        _check_bounds(messages, inflated_bytes, limits)
        if len(messages) > 1 or has_dictionaries:
            return _read_many(stream, limits, channel), None, inflated_bytes
        (only,) = messages
        message = stream.slice(only.start, only.end - only.start)
        batch = pa.ipc.read_record_batch(message, schema)
        is_kept = message.size >= KEPT_BYTES_MIN and plain_rows(view, only.start, only.end) > 0
        return batch, message if is_kept else None, inflated_bytes
    except (struct.error, IndexError):
        raise Malformed(0, "a length or an offset points outside of the stream") from None
    except InvalidBatch as error:
        raise Malformed(0, error.reason) from None
    except _ARROW_ERRORS as error:
        raise Malformed(0, f"arrow cannot read it: {' '.join(str(error).split())[:200]}") from None


def _check_bounds(messages: list[Message], inflated_bytes: int, limits: FrameLimits) -> None:
    if not messages or messages[-1].kind != BATCH:
        raise Malformed(messages[-1].start if messages else 0, "the stream does not end with a batch")
    start = messages[0].start
    if inflated_bytes > limits.decoded_bytes:
        raise Malformed(
            start, f"the frame inflates to {inflated_bytes} bytes, at most {limits.decoded_bytes} are allowed"
        )
    batches = [message.rows for message in messages if message.kind == BATCH]
    if len(batches) > limits.batches or sum(batches) > limits.rows:
        allowed = f"at most {limits.rows} in {limits.batches} are allowed"
        raise Malformed(start, f"the stream has {sum(batches)} rows in {len(batches)} batches, {allowed}")


def _read_many(stream: pa.Buffer, limits: FrameLimits, channel: str) -> pa.RecordBatch:
    with pa.ipc.open_stream(stream) as reader:
        batches = list(reader)
    return batches[0] if len(batches) == 1 else _join(batches, limits, channel)


def _join(batches: list[pa.RecordBatch], limits: FrameLimits, channel: str) -> pa.RecordBatch:
    bounds = BatchLimits(rows_max=limits.rows, bytes_max=limits.decoded_bytes, columns_max=limits.columns)
    for batch in batches:
        check_batch(channel, batch, bounds)
    return pa.concat_batches(batches)


def read_parts(view: memoryview, messages_max: int) -> list[Message]:
    """The messages in a part of a stream that goes on elsewhere; `Malformed` unless they fill it.

    Arrow has not seen them; only lengths and claims were looked at. Dictionaries may extend earlier ones.
    """
    messages: list[Message] = []
    offset = 0
    try:
        while offset < len(view):
            mark, metadata_bytes = _PREFIX.unpack_from(view, offset)
            if mark != _CONTINUATION or metadata_bytes <= 0:
                raise Malformed(offset, "no arrow message begins here")
            if len(messages) >= messages_max:
                raise Malformed(offset, f"more than {messages_max} messages")
            messages.append(_read_message(view, offset, offset + 8 + metadata_bytes))
            if messages[-1].kind == SCHEMA and metadata_bytes > SCHEMA_BYTES_MAX:
                raise Malformed(offset, f"the schema has {metadata_bytes} bytes, {SCHEMA_BYTES_MAX} are allowed")
            offset = messages[-1].end
    except (struct.error, IndexError):
        raise Malformed(offset, "a length or an offset points outside of the stream") from None
    return messages


# --------------------------------------------------------------------------------------------------------------- schema


def _read_schema(view: memoryview) -> tuple[pa.Schema, bool, int]:
    """The schema a stream begins with, whether it has dictionaries, and where it ends."""
    mark, metadata_bytes = _PREFIX.unpack_from(view)
    end = 8 + metadata_bytes
    if mark != _CONTINUATION or metadata_bytes <= 0 or end > len(view):
        raise Malformed(0, "no arrow message begins here")
    if end > SCHEMA_BYTES_MAX:
        raise Malformed(0, f"the schema has {end} bytes, at most {SCHEMA_BYTES_MAX} are allowed")
    raw = bytes(view[:end])
    schema, has_dictionaries = _known_schema(raw) if end <= SCHEMA_BYTES_CACHED else _parse_schema(raw)
    return schema, has_dictionaries, end


def _parse_schema(raw: bytes) -> tuple[pa.Schema, bool]:
    message = _read_message(memoryview(raw), 0, len(raw))
    if message.kind != SCHEMA or message.end != len(raw):
        raise Malformed(0, "the stream does not begin with a schema")
    schema = pa.ipc.read_schema(pa.py_buffer(raw))
    for field in schema:
        if any_field(field, is_extension):
            raise Malformed(0, f"column {field.name!r} has an extension type: send its storage type")
    return schema, has_dictionary(schema)


_known_schema = lru_cache(SCHEMAS_CACHED)(_parse_schema)


def is_extension(field: pa.Field) -> bool:
    marked = field.metadata is not None and b"ARROW:extension:name" in field.metadata
    return marked or isinstance(field.type, pa.BaseExtensionType)


# ------------------------------------------------------------------------------------------------------------- messages


def _walk(view: memoryview, offset: int, messages_max: int) -> list[Message]:
    """Every message up to the end mark, which must be the last thing in the stream."""
    messages: list[Message] = []
    while True:
        mark, metadata_bytes = _PREFIX.unpack_from(view, offset)
        if mark != _CONTINUATION or metadata_bytes < 0:
            raise Malformed(offset, "no arrow message begins here")
        if metadata_bytes == 0:
            break
        message = _read_message(view, offset, offset + 8 + metadata_bytes)
        if message.kind == SCHEMA or len(messages) >= messages_max:
            raise Malformed(offset, f"a second schema, or more than {messages_max} messages, in one stream")
        if message.is_delta:
            raise Malformed(offset, "a dictionary that extends an earlier one; send it whole")
        messages.append(message)
        offset = message.end
    if offset + 8 != len(view):
        raise Malformed(offset + 8, f"{len(view) - offset - 8} bytes behind the end of the stream")
    return messages


def _read_message(view: memoryview, start: int, body: int) -> Message:
    if body > len(view):
        raise Malformed(start, "metadata reach beyond the stream")
    at = start + 8 + _U32.unpack_from(view, start + 8)[0]
    _, kind_slot, header_slot, length_slot, _ = _slots(view, at)
    body_bytes = _I64.unpack_from(view, at + length_slot)[0] if length_slot else 0
    end = body + body_bytes
    if body_bytes < 0 or end > len(view):
        raise Malformed(start, f"a body of {body_bytes} bytes reaches beyond the stream")
    kind = view[at + kind_slot] if kind_slot else 0
    if kind == SCHEMA:
        return Message(kind, start, end, 0, 0)
    if kind not in {DICTIONARY, BATCH}:
        raise Malformed(start, f"a message of kind {kind}; allowed are schema, dictionary and batch")
    at = _target(view, at, header_slot)
    dictionary_id, is_delta = 0, False
    if kind == DICTIONARY:
        id_slot, batch_slot, delta_slot, _, _ = _slots(view, at)
        is_delta = bool(delta_slot and view[at + delta_slot])
        dictionary_id = _I64.unpack_from(view, at + id_slot)[0] if id_slot else 0
        at = _target(view, at, batch_slot)
    rows_slot, _, buffers_slot, compression_slot, _ = _slots(view, at)
    rows = _I64.unpack_from(view, at + rows_slot)[0] if rows_slot else 0
    if rows < 0:
        raise Malformed(start, f"a batch of {rows} rows")
    inflated_bytes = 0
    if compression_slot:
        inflated_bytes = _inflated_bytes(view, _target(view, at, buffers_slot), body, body_bytes)
    return Message(kind, start, end, rows, inflated_bytes, dictionary_id, is_delta)


def plain_rows(data: memoryview | bytes, start: int, end: int) -> int:
    """The rows of the one batch message that fills `start..end`; 0 unless it can be kept as it is.

    That is: not compressed, begun at multiples of 8, and without a byte of its body in two buffers, so that it never
    stands for more memory than it has bytes. Arrow has not seen it.
    """
    mark, metadata_bytes = _PREFIX.unpack_from(data, start)
    body = start + 8 + metadata_bytes
    if mark != _CONTINUATION or metadata_bytes <= 0 or body > end or metadata_bytes & 7:
        return 0
    at = start + 8 + _U32.unpack_from(data, start + 8)[0]
    _, kind_slot, header_slot, length_slot, _ = _slots(data, at)
    if not (kind_slot and length_slot) or data[at + kind_slot] != BATCH:
        return 0
    if _I64.unpack_from(data, at + length_slot)[0] != end - body:
        return 0
    at = _target(data, at, header_slot)
    rows_slot, _, buffers_slot, compression_slot, views_slot = _slots(data, at)
    if compression_slot or views_slot or not rows_slot:
        return 0
    buffers = _target(data, at, buffers_slot)
    layout = _layout(_U32.unpack_from(data, buffers)[0]).unpack_from(data, buffers + 4)
    if min(layout, default=0) < 0 or reduce(or_, layout[::2], 0) & 7 or sum(layout[1::2]) > end - body:
        return 0
    return max(0, int(_I64.unpack_from(data, at + rows_slot)[0]))


@lru_cache(LAYOUTS_CACHED)
def _layout(buffers: int) -> struct.Struct:
    """Offset and length of so many buffers."""
    if buffers > PLAIN_BUFFERS_MAX:
        raise struct.error("more buffers than a plain batch has")
    return struct.Struct(f"<{2 * buffers}q")


def _inflated_bytes(view: memoryview, buffers: int, body: int, body_bytes: int) -> int:
    """What the compressed buffers of a batch claim to become: Arrow allocates as much as they claim."""
    total = 0
    (count,) = _U32.unpack_from(view, buffers)
    for offset, length in _BUFFER.iter_unpack(view[buffers + 4 : buffers + 4 + count * _BUFFER.size]):
        if length == 0:
            continue
        if offset < 0 or length < 8 or offset + length > body_bytes:
            raise Malformed(body, "a compressed buffer lies outside of its message")
        (claim,) = _I64.unpack_from(view, body + offset)
        if claim < _NOT_COMPRESSED:
            raise Malformed(body + offset, f"a compressed buffer claims {claim} bytes")
        total += max(0, claim)
    return total


def _slots(view: memoryview | bytes, at: int) -> tuple[int, int, int, int, int]:
    """The first five fields of the flatbuffer table at `at`, each as its distance from there; 0 if it is not set."""
    table = at - _I32.unpack_from(view, at)[0]
    if table < 0:
        raise struct.error("an offset before the stream")  # a negative one would count from the end
    count = max(0, min(5, (_U16.unpack_from(view, table)[0] - 4) // 2))
    one, two, three, four, five = _SLOTS[count].unpack_from(view, table + 4) + _NOT_SET[count:]
    return one, two, three, four, five


def _target(view: memoryview | bytes, at: int, slot: int) -> int:
    """Where the table or vector lies that a field points at."""
    if not slot:
        raise struct.error("a field that must be there is missing")
    return at + slot + int(_U32.unpack_from(view, at + slot)[0])


def refusal(error: Malformed, *, base: int, channel: str) -> WireError:
    """The error as the other side is told it; `base` is where the stream begins in its frame."""
    place = f"byte {base + error.offset}, channel {channel!r}"
    return WireError(category=Category.PARSE_ERROR, reason=error.reason, place=place)
