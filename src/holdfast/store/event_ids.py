"""Event ids as fixed-size digests, for channels whose events carry an id of their own or are unique by some columns.

A digest is 16 bytes of BLAKE2b: two different ids with one digest will not be met. Which columns were used stands in
the log as one text: the name of an id column, or, for `dedup_keys`, each name behind a zero character, which no name
has.

A key is what a person would call equal: the same number, text or moment, whatever width or unit the column has by now,
and whether it holds integers or floats, so that a channel whose schema grows (`model/evolution.py`) keeps its keys. A
null equals a null, 0.0 equals -0.0, and what is not a number equals what is not a number.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import msgspec
import pyarrow as pa
from pyarrow import types

from holdfast.errors import InvalidBatch
from holdfast.model.frame import EventIds, Identity

KEY = "\0"
"""Before the name of each key column."""
INT_END = 1 << 63
"""Floats below are told as the integers they equal; no integer that widens to a float reaches so far."""
_NOT_A_NUMBER = float("nan")
_NS_PER_UNIT = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def id_column_of(identity: Identity, dedup_keys: Sequence[str]) -> str:
    """How the log names the columns that identify the events of a frame; empty if none do.

    A frame with an identity of its own is recognised by it, so keys are only for those without.
    """
    if isinstance(identity, EventIds):
        return identity.column
    return "".join([KEY + name for name in dedup_keys]) if dedup_keys and identity is None else ""


def digests_of(batch: pa.RecordBatch, column: str, *, channel: str = "") -> tuple[bytes, ...]:
    """One digest per event. An id column holds text, bytes or integers, and no nulls; key columns hold plain values."""
    if column.startswith(KEY):
        return _digests_of_keys(batch, column.split(KEY)[1:], channel)
    index = batch.schema.get_field_index(column)
    if index < 0:
        raise InvalidBatch(channel=channel, reason=f"there is no id column {column!r}")
    array = batch.column(index)
    if array.null_count:
        raise InvalidBatch(channel=channel, reason=f"id column {column!r} holds {array.null_count} nulls")
    return tuple(_digest(value, column, channel) for value in array.to_pylist())


def keep_rows(batch: pa.RecordBatch, keep: Sequence[bool]) -> pa.RecordBatch:
    """Only these rows; of every type that a store takes."""
    try:
        return batch.filter(pa.array(keep, pa.bool_()))
    except pa.ArrowNotImplementedError:  # views; Arrow can put slices of them together
        starts = [row for row, kept in enumerate(keep) if kept and (row == 0 or not keep[row - 1])]
        ends = [row + 1 for row, kept in enumerate(keep) if kept and (row + 1 == len(keep) or not keep[row + 1])]
        runs = [batch.slice(start, end - start) for start, end in zip(starts, ends, strict=True)]
        return pa.concat_batches(runs) if runs else batch.slice(0, 0)


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


def _digests_of_keys(batch: pa.RecordBatch, names: Sequence[str], channel: str) -> tuple[bytes, ...]:
    columns = [_values(batch, name, channel) for name in names]
    encode, blake2b = msgspec.msgpack.encode, hashlib.blake2b
    return tuple([blake2b(encode(key), digest_size=16).digest() for key in zip(*columns, strict=True)])


def _values(batch: pa.RecordBatch, name: str, channel: str) -> list[object]:
    """The values of a key column in a form that does not depend on width, unit or encoding."""
    index = batch.schema.get_field_index(name)
    if index < 0:
        raise InvalidBatch(channel=channel, reason=f"there is no column {name!r}, which dedup_keys names")
    array = batch.column(index)
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    kind = array.type
    if types.is_timestamp(kind) or types.is_duration(kind) or types.is_time(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        factor = _NS_PER_UNIT[kind.unit]
        return [value if value is None else value * factor for value in array.view(width).to_pylist()]
    if types.is_decimal(kind) or types.is_date(kind):
        return [value if value is None else str(value) for value in array.to_pylist()]
    if types.is_floating(kind):
        return [value if value is None else _number(float(value)) for value in array.to_pylist()]
    if types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind) or _is_text(kind):
        values: list[object] = array.to_pylist()
        return values
    raise InvalidBatch(channel=channel, reason=f"column {name!r} has type {kind}, which cannot be one of dedup_keys")


def _number(value: float) -> int | float:
    """The integer that a float equals, if there is one; a column of integers may become one of floats."""
    if value.is_integer() and -INT_END <= value < INT_END:
        return int(value)
    return _NOT_A_NUMBER if math.isnan(value) else value


def _is_text(kind: pa.DataType) -> bool:
    checks = (
        types.is_string,
        types.is_large_string,
        types.is_string_view,
        types.is_binary_view,
        types.is_binary,
        types.is_large_binary,
        types.is_fixed_size_binary,
    )
    return any(check(kind) for check in checks)
