"""What all signals share: resource and scope, attributes, values, ids, times. Whole columns at a time.

An attribute value is any of seven things. As a column it is its text and, beside it, a code of what it was, so that it
can be queried as it stands and still be sent on as it came:

    code   0 empty   1 text   2 whole number   3 number   4 true or false   5 map   6 list   7 bytes
    text   null      itself   decimal          decimal    true, false       JSON    JSON     base64

Ids are lower-case hex, as people search for them; an absent id is null. Times are UTC with nanoseconds; zero, OTLP's
"unknown", is null, and what lies beyond the year 2262 is that year's last.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.common.v1 import common_pb2

from holdfast.errors import Category, WireError

TIME = pa.timestamp("ns", "UTC")
TEXTS = pa.map_(pa.string(), pa.string())
CODES = pa.list_(pa.int8())
INT64_MAX = 2**63 - 1

ATTRIBUTES = [("attributes", TEXTS), ("attribute_types", CODES)]
CONTEXT = pa.schema(
    [
        ("service_name", pa.string()),
        *((f"resource_{name}", kind) for name, kind in ATTRIBUTES),
        ("resource_dropped_attributes_count", pa.int64()),
        ("resource_schema_url", pa.string()),
        ("scope_name", pa.string()),
        ("scope_version", pa.string()),
        *((f"scope_{name}", kind) for name, kind in ATTRIBUTES),
        ("scope_dropped_attributes_count", pa.int64()),
        ("scope_schema_url", pa.string()),
    ]
)
"""Columns that say where a record comes from; the same for all signals."""

_CODES = {
    "string_value": 1,
    "int_value": 2,
    "double_value": 3,
    "bool_value": 4,
    "kvlist_value": 5,
    "array_value": 6,
    "bytes_value": 7,
}

Columns = dict[str, pa.Array]
ColumnsOf = Callable[[pa.StructArray], Columns]


def attributes(pairs: pa.ListArray, prefix: str = "") -> Columns:
    """A list of keys and values per row as a map of texts and a list of codes."""
    inside = pairs.flatten()
    texts, codes = values(inside.field("value"))
    offsets = _offsets(pairs)
    return {
        f"{prefix}attributes": pa.MapArray.from_arrays(offsets, inside.field("key"), texts),
        f"{prefix}attribute_types": pa.ListArray.from_arrays(offsets, codes),
    }


def _offsets(lists: pa.ListArray) -> pa.Array:
    """Offsets into `lists.flatten()`."""
    first = lists.offsets[0]
    return pc.subtract(lists.offsets, first) if first.as_py() else lists.offsets


def relisted(lists: pa.ListArray, items: pa.Array) -> pa.ListArray:
    """The same lists with other items."""
    return pa.ListArray.from_arrays(_offsets(lists), items)


def values(found: pa.StructArray) -> tuple[pa.Array, pa.Array]:
    """Attribute values or bodies as text and code."""
    codes = np.zeros(len(found), np.int8)
    texts: list[pa.Array] = []
    for name, code in _CODES.items():
        part = found.field(name)
        if part.null_count == len(part):
            continue
        codes[(codes == 0) & np.asarray(part.is_valid())] = (
            code  # of two values of one, the first counts, as its text does
        )
        texts.append(_AS_TEXT.get(name, _plain)(part))
    if not texts:
        return pa.nulls(len(found), pa.string()), pa.array(codes)
    return (texts[0] if len(texts) == 1 else pc.coalesce(*texts)), pa.array(codes)


def _plain(part: pa.Array) -> pa.Array:
    return part.cast(pa.string())


def _each_distinct(part: pa.Array, text_of: Callable[[bytes], str]) -> pa.Array:
    encoded = part.dictionary_encode()
    texts = pa.array([text_of(value) for value in encoded.dictionary.to_pylist()], pa.string())
    return texts.take(encoded.indices)


def _list_text(data: bytes) -> str:
    return json_text([_natural(item) for item in _parsed(common_pb2.ArrayValue, data).values])


def _map_text(data: bytes) -> str:
    return json_text({pair.key: _natural(pair.value) for pair in _parsed(common_pb2.KeyValueList, data).values})


def _parsed(message: Any, data: bytes) -> Any:
    try:
        return message.FromString(data)
    except DecodeError as error:
        raise WireError(category=Category.PARSE_ERROR, reason=str(error), place="an attribute value") from None


def _natural(value: Any) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_natural(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {pair.key: _natural(pair.value) for pair in value.kvlist_value.values}
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, kind) if kind is not None else None


def json_text(value: object) -> str:
    """A list or a map as one text, the same wherever it came from."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_AS_TEXT: dict[str, Callable[[pa.Array], pa.Array]] = {
    "array_value": lambda part: _each_distinct(part, _list_text),
    "kvlist_value": lambda part: _each_distinct(part, _map_text),
    "bytes_value": lambda part: _each_distinct(part, lambda data: base64.b64encode(data).decode()),
}


def hex_ids(ids: pa.BinaryArray) -> pa.Array:
    """Bytes as hex, none as null."""
    starts = np.frombuffer(ids.buffers()[1], np.int32, len(ids) + 1, ids.offset * 4) if len(ids) else np.zeros(1, "i4")
    data = ids.buffers()[2]
    text = data.slice(int(starts[0]), int(starts[-1] - starts[0])).to_pybytes().hex().encode() if data else b""
    offsets = ((starts - starts[0]) * 2).astype(np.int32)
    hexed = pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(text))
    return pc.if_else(pc.equal(pc.binary_length(ids), 0), pa.scalar(None, pa.string()), hexed)


def times(nanos: pa.Array) -> pa.Array:
    """Nanoseconds since 1970 as a time."""
    signed = counts(nanos)
    return pc.if_else(pc.equal(signed, 0), pa.scalar(None, pa.int64()), signed).cast(TIME)


def counts(numbers: pa.Array) -> pa.Array:
    """Unsigned numbers as signed ones, which every engine has; those that do not fit are the largest."""
    try:
        return numbers.cast(pa.int64())
    except pa.ArrowInvalid:
        largest = pa.scalar(INT64_MAX, pa.uint64())
        return pc.min_element_wise(numbers, largest, skip_nulls=False).cast(pa.int64())


def nothing_if_empty(texts: pa.Array) -> pa.Array:
    """An empty text is one that was not sent."""
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def context(resources: pa.StructArray, scopes: pa.StructArray, resource_of_scope: pa.Array) -> Columns:
    """The columns of `CONTEXT`, one row per scope."""
    resource, scope = resources.field("resource"), scopes.field("scope")
    named = attributes(resource.field("attributes"), "resource_")
    columns = {
        "service_name": pc.map_lookup(named["resource_attributes"], "service.name", "first"),
        **named,
        "resource_dropped_attributes_count": _number(resource.field("dropped_attributes_count")),
        "resource_schema_url": nothing_if_empty(resources.field("schema_url")),
    }
    return {
        **{name: column.take(resource_of_scope) for name, column in columns.items()},
        "scope_name": _text(scope.field("name")),
        "scope_version": _text(scope.field("version")),
        **attributes(scope.field("attributes"), "scope_"),
        "scope_dropped_attributes_count": _number(scope.field("dropped_attributes_count")),
        "scope_schema_url": nothing_if_empty(scopes.field("schema_url")),
    }


def _number(numbers: pa.Array) -> pa.Array:
    return numbers.cast(pa.int64()).fill_null(0)


def _text(texts: pa.Array) -> pa.Array:
    return nothing_if_empty(texts)
