"""How many resources, scopes, records and points a large request has, before it is parsed in full.

Two bytes of a request can stand for an empty record, which takes more than a hundred once it is parsed. So large
requests are first taken apart level by level with nested messages left as bytes, which costs little whatever they are.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from holdfast.errors import LimitReached
from holdfast.wire.otlp.signals import Signal

SMALL_BYTES = 256 << 10
"""Requests up to this size cannot take much memory, and are not looked at."""
ITEMS_MAX = 1 << 19
"""On each level: what 20 MiB hold at 40 bytes a record, less than any real record has."""

_RECORDS = (("f1",), ("f2",), ("f2",))
_PATHS = {
    Signal.LOGS: _RECORDS,
    Signal.TRACES: _RECORDS,
    Signal.METRICS: (*_RECORDS, ("f5", "f7", "f9", "f10", "f11"), ("f1",)),
}
"""The numbers of the repeated fields on the way to a record."""


def _level() -> Any:
    """A message with `bytes` under every number of `_PATHS`."""
    file = descriptor_pb2.FileDescriptorProto(name="holdfast/level.proto", package="holdfast", syntax="proto3")
    message = file.message_type.add(name="Level")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number in (1, 2, 5, 7, 9, 10, 11):
        message.field.add(name=f"f{number}", number=number, type=kinds.TYPE_BYTES, label=kinds.LABEL_REPEATED)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("holdfast.Level"))


_LEVEL = _level()


def check_envelopes(signal: Signal, request: bytes) -> None:
    """Raise `LimitReached` if a level of a large request has too many items; what is malformed is left to others."""
    if len(request) <= SMALL_BYTES:
        return
    items = [request]
    try:
        for names in _PATHS[signal]:
            found: list[bytes] = []
            for item in items:
                level = _LEVEL.FromString(item)
                for name in names:
                    inner = getattr(level, name)
                    if len(found) + len(inner) > ITEMS_MAX:
                        raise LimitReached(what=f"a request of {signal.value}", limit="records", allowed=ITEMS_MAX)
                    found.extend(inner)
            items = found
    except DecodeError:
        return
