"""OTLP's messages as columns see them.

Attribute values are recursive, which columns cannot be. So a copy of the descriptors is made in which a value that is a
list or a map is `bytes`: the same on the wire, opened later where somebody wants it. Fields that only profiles use, and
entity references, are left out, so that decoding skips them; the raw request keeps them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import ptars
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool  # type: ignore[import-untyped]

from holdfast.errors import Category, WireError
from holdfast.wire.otlp.signals import Signal

_NESTED = ("array_value", "kvlist_value")
_LEFT_OUT = {
    "AnyValue": ("string_value_strindex",),
    "KeyValue": ("key_strindex",),
    "Resource": ("entity_refs",),
}


@cache
def handler(signal: Signal) -> Any:
    """Converts requests to columns and back. Thread-safe; made once, since that takes milliseconds."""
    pool = descriptor_pool.DescriptorPool()
    _add(pool, signal.request.DESCRIPTOR.file, set())
    found = pool.FindMessageTypeByName(signal.request.DESCRIPTOR.full_name)
    return ptars.HandlerPool([found.file]).get_for_message(found)


def _add(pool: descriptor_pool.DescriptorPool, file: Any, known: set[str]) -> None:
    if file.name in known:
        return
    known.add(file.name)
    for dependency in file.dependencies:
        _add(pool, dependency, known)
    copy = descriptor_pb2.FileDescriptorProto()
    file.CopyToProto(copy)
    for message in copy.message_type:
        _trim(message)
    pool.Add(copy)


def _trim(message: descriptor_pb2.DescriptorProto) -> None:
    gone = _LEFT_OUT.get(message.name, ())
    kept = [field for field in message.field if field.name not in gone]
    if len(kept) < len(message.field):
        copies = [descriptor_pb2.FieldDescriptorProto.FromString(field.SerializeToString()) for field in kept]
        del message.field[:]
        message.field.extend(copies)
    for field in message.field:
        if message.name == "AnyValue" and field.name in _NESTED:
            field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")


def to_columns(signal: Signal, requests: pa.Array) -> pa.Array:
    """Requests, an array of bytes, as the list of their resources: one list per request."""
    try:
        return handler(signal).array_to_record_batch(requests).column(0)
    except BaseException as error:
        if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":
            raise  # a panic of ptars, over a number that is cut off, is about the bytes too
        raise WireError(
            category=Category.PARSE_ERROR, reason=str(error), place=f"a request of {signal.value}"
        ) from None


def to_requests(signal: Signal, resources: pa.Array) -> pa.Array:
    """The inverse: an array of bytes."""
    found = handler(signal)
    schema = found.schema()
    fitting = resources.cast(schema.field(0).type)
    return found.record_batch_to_array(pa.RecordBatch.from_arrays([fitting], schema=schema))
