"""The Arrow streams inside one gRPC stream, on the receiving side.

    payload type ──► one IPC stream at a time: schema | dictionaries, whole or deltas | batch | deltas | batch | …
                     another schema_id ends it and begins the next one

Promise: `read` gives the tables of a batch, or raises. `WireError` with `broken` still empty is about this batch alone:
every Arrow stream has taken its part, the next batch can be read. Once `broken` says why, the state is lost: the gRPC
stream must end, and batches behind the bad one are `StreamBroken`, which is no fault of theirs.

Lengths and what compressed buffers claim are looked at before Arrow sees the bytes; dictionaries are counted for as
long as they are kept. Values are checked in full.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.errors import Category, HoldfastError, LimitReached, StreamBroken, WireError
from holdfast.model.columns import any_field
from holdfast.wire.arrowstream import BATCH, DICTIONARY, SCHEMA, Malformed, Message, is_extension, read_parts
from holdfast.wire.otap.limits import ROWS_MAX, Limits
from holdfast.wire.otap.messages import ALLOWED, ROOTS, ArrowPayload, Batch, Payload
from holdfast.wire.otlp.signals import Signal

MESSAGES_MAX = 256
"""In one payload: a schema, a dictionary or two for each column, a batch."""
SCHEMA_ID_CHARS_MAX = 64 << 10
_ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError, OverflowError, StopIteration)

Tables = dict[Payload, pa.RecordBatch]


class _Feeder:
    """What Arrow reads from: the bytes of the payloads so far, and not one more."""

    closed = False

    def __init__(self) -> None:
        self._data = memoryview(b"")

    def feed(self, data: bytes) -> None:
        self._data = memoryview(bytes(self._data) + data if len(self._data) else data)

    def read(self, size: int = -1) -> bytes:
        size = len(self._data) if size < 0 else size
        found, self._data = self._data[:size], self._data[size:]
        return bytes(found)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self._data = memoryview(b"")


@dataclass(slots=True)
class _IpcStream:
    schema_id: str
    feeder: _Feeder = field(default_factory=_Feeder)
    reader: Any = None
    dictionaries: dict[int, int] = field(default_factory=dict)
    """Bytes by id."""


class StreamReader:
    """The state of one gRPC stream of one signal."""

    def __init__(self, signal: Signal, limits: Limits) -> None:
        self.broken = ""
        self._signal = signal
        self._limits = limits
        self._streams: dict[Payload, _IpcStream] = {}

    def read(self, batch: Batch) -> Tables:
        """The tables of a batch that have rows."""
        if self.broken:
            raise StreamBroken(reason=self.broken)
        tables: Tables = {}
        objections: list[HoldfastError] = []
        left_bytes = self._limits.batch_bytes
        for payload in batch.payloads:
            kind = self._kind(payload)
            if isinstance(kind, WireError):
                objections.append(kind)
                continue
            try:
                table, inflated_bytes = self._take(kind, payload, left_bytes)
            except (WireError, LimitReached, StreamBroken) as error:
                self.broken = str(error)
                raise
            left_bytes -= inflated_bytes
            if kind in tables:
                objections.append(_bad("is there twice in one batch", kind.name))
            if table is not None and table.num_rows:
                tables[kind] = table
        self._check_values(tables, objections)
        return tables

    def _check_values(self, tables: Tables, objections: list[HoldfastError]) -> None:
        root = ROOTS[self._signal]
        if tables and root not in tables:
            objections.append(_bad(f"has tables but no {root.name}", "a batch"))
        for kind, table in tables.items():
            try:
                table.validate(full=True)
            except pa.ArrowInvalid as error:
                objections.append(_bad(str(error), kind.name))
        if objections:
            raise objections[0]

    def _kind(self, payload: ArrowPayload) -> Payload | WireError:
        allowed = ALLOWED[self._signal]
        try:
            kind = Payload(payload.kind)
        except ValueError:
            return _bad("is not a payload type that this version knows", f"payload type {payload.kind}")
        return kind if kind in allowed else _bad(f"does not belong to {self._signal.value}", kind.name)

    def _take(self, kind: Payload, payload: ArrowPayload, left_bytes: int) -> tuple[pa.RecordBatch | None, int]:
        """Hand a payload to its Arrow stream: the table if there is one, and what it takes inflated."""
        if len(payload.schema_id) > SCHEMA_ID_CHARS_MAX:
            raise _bad(f"a schema id of more than {SCHEMA_ID_CHARS_MAX} characters", kind.name)
        stream = self._streams.get(kind)
        if stream is None or stream.schema_id != payload.schema_id:
            stream = self._streams[kind] = _IpcStream(payload.schema_id)
        try:
            messages = read_parts(memoryview(payload.record), MESSAGES_MAX)
            self._check_order(kind, stream, messages)
            inflated_bytes = sum(message.inflated_bytes or message.end - message.start for message in messages)
            if inflated_bytes > left_bytes:
                raise LimitReached(what="a batch, inflated", limit="bytes", allowed=self._limits.batch_bytes)
            self._count_dictionaries(stream, messages)
            return _fed(stream, payload.record, messages), inflated_bytes
        except Malformed as error:
            raise _bad(error.reason, f"byte {error.offset} of {kind.name}") from None
        except _ARROW_ERRORS as error:
            raise _bad(f"arrow cannot read it: {' '.join(str(error).split())[:200]}", kind.name) from None

    def _check_order(self, kind: Payload, stream: _IpcStream, messages: list[Message]) -> None:
        kinds = [message.kind for message in messages]
        if (kinds and (kinds[0] == SCHEMA) != (stream.reader is None)) or SCHEMA in kinds[1:]:
            reason = "begins without its schema" if stream.reader is None else "has a second schema"
            raise _bad(f"the stream of schema {stream.schema_id[:64]!r} {reason}", kind.name)
        if kinds.count(BATCH) > 1 or (BATCH in kinds and kinds[-1] != BATCH):
            raise _bad("a payload has one batch, as its last message", kind.name)
        rows = max([message.rows for message in messages], default=0)
        if rows > ROWS_MAX:
            raise LimitReached(what=f"a table {kind.name}", limit="rows", allowed=ROWS_MAX)

    def _count_dictionaries(self, stream: _IpcStream, messages: list[Message]) -> None:
        for message in messages:
            if message.kind == DICTIONARY:
                size_bytes = message.inflated_bytes or message.end - message.start
                before = stream.dictionaries.get(message.dictionary_id, 0) if message.is_delta else 0
                stream.dictionaries[message.dictionary_id] = before + size_bytes
        kept = sum(sum(one.dictionaries.values()) for one in self._streams.values())
        if kept > self._limits.state_bytes:
            raise StreamBroken(reason=f"its dictionaries have more than {self._limits.state_bytes} bytes")


def _fed(stream: _IpcStream, record: bytes, messages: list[Message]) -> pa.RecordBatch | None:
    stream.feeder.feed(record)
    if stream.reader is None and messages:
        stream.reader = pa.ipc.open_stream(pa.PythonFile(stream.feeder, "r"))
        for item in stream.reader.schema:
            if any_field(item, _is_unfit):
                raise ValueError(f"column {item.name!r} has an extension type: send its storage type")
    if not messages or messages[-1].kind != BATCH:
        return None
    return stream.reader.read_next_batch()


def _is_unfit(item: pa.Field) -> bool:
    """Whether a column is an extension; raises `UnicodeDecodeError` over a name that is no text."""
    return item.name is None or is_extension(item)


def _bad(reason: str, place: str) -> WireError:
    return WireError(category=Category.PARSE_ERROR, reason=reason, place=place)
