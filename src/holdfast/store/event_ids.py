"""Event ids as fixed-size digests, for channels whose events carry an id of their own.

A digest is 16 bytes of BLAKE2b over the id's bytes: two different ids with one digest will not be met.
"""

from __future__ import annotations

import hashlib

import pyarrow as pa

from holdfast.errors import InvalidBatch


def digests_of(batch: pa.RecordBatch, column: str, *, channel: str = "") -> tuple[bytes, ...]:
    """One digest per event; the column holds text, bytes or integers, and no nulls."""
    index = batch.schema.get_field_index(column)
    if index < 0:
        raise InvalidBatch(channel=channel, reason=f"there is no id column {column!r}")
    array = batch.column(index)
    if array.null_count:
        raise InvalidBatch(channel=channel, reason=f"id column {column!r} holds {array.null_count} nulls")
    return tuple(_digest(value, column, channel) for value in array.to_pylist())


def _digest(value: object, column: str, channel: str) -> bytes:
    if isinstance(value, bytes):
        data = b"b" + value
    elif isinstance(value, str):
        data = b"s" + value.encode()
    elif isinstance(value, int):
        data = b"i%d" % value
    else:
        raise InvalidBatch(
            channel=channel, reason=f"id column {column!r} holds {type(value).__name__}, not text, bytes or integers"
        )
    return hashlib.blake2b(data, digest_size=16).digest()
