"""The Arrow streams inside one gRPC stream, on the sending side.

Promise: what `write` returns is read by a `StreamReader` that has read all that this writer returned before, in order.
A new gRPC stream needs a new writer. Texts that repeat have dictionaries that only grow, so that a batch sends what is
new in it; a dictionary that has become too large begins anew under another schema id, and a column whose values do not
repeat has none from then on.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.wire.otap.messages import ROOTS, ArrowPayload, Batch, Payload, write_batch
from holdfast.wire.otap.reading import Tables
from holdfast.wire.otlp.signals import Signal

VALUES_MAX = 1 << 16
"""What a key of 16 bits can name."""
DICTIONARY_BYTES_MAX = 1 << 20
"""Of one column: names and keys that repeat are far below."""
COMPRESSIONS = ("none", "zstd", "lz4")
_KEY = pa.uint16()
_REPEATING = {
    "key",
    "name",
    "version",
    "schema_url",
    "severity_text",
    "event_name",
    "description",
    "unit",
    "status_message",
}
"""Columns of texts that repeat, in tables and in structs."""


class _Overflow(Exception):
    """The dictionary of a column has become too large."""

    def __init__(self, column: str, *, alone: bool) -> None:
        super().__init__(column)
        self.column = column
        self.alone = alone
        """Even the values of this one batch are too many."""


class _Out:
    """Where Arrow writes; what it wrote is taken away after each batch."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        found = b"".join(self._parts)
        self._parts.clear()
        return found

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class _IpcStream:
    """One Arrow stream: its schema, and the dictionaries so far."""

    def __init__(self, schema_id: str, plain: set[str], options: pa.ipc.IpcWriteOptions) -> None:
        self.schema_id = schema_id
        self._plain = plain
        self._options = options
        self._known: dict[str, pa.Array] = {}
        self._out = _Out()
        self._writer: pa.ipc.RecordBatchStreamWriter | None = None

    def write(self, table: pa.RecordBatch) -> bytes:
        fields = [self._field(field, column) for field, column in zip(table.schema, table.columns, strict=True)]
        schema = pa.schema([field for field, _ in fields])
        if self._writer is None:
            self._writer = pa.ipc.new_stream(pa.PythonFile(self._out, "w"), schema, options=self._options)
        self._writer.write_batch(pa.RecordBatch.from_arrays([column for _, column in fields], schema=schema))
        return self._out.taken()

    def _field(self, field: pa.Field, column: pa.Array, within: str = "") -> tuple[pa.Field, pa.Array]:
        if pa.types.is_struct(field.type) and not within:
            inner = [self._field(item, column.field(item.name), field.name) for item in field.type]
            arrays, fields = [array for _, array in inner], [item for item, _ in inner]
            mask = column.is_null() if column.null_count else None
            made = pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)
            return field.with_type(made.type), made
        path = f"{within}.{field.name}" if within else field.name
        if field.name not in _REPEATING or not pa.types.is_string(field.type) or path in self._plain:
            return field, column
        made = self._with_dictionary(path, column)
        return field.with_type(made.type), made

    def _with_dictionary(self, path: str, column: pa.Array) -> pa.DictionaryArray:
        own = column.dictionary_encode()
        known = self._known.get(path, pa.array([], pa.string()))
        new = own.dictionary.filter(pc.invert(pc.is_in(own.dictionary, known)))
        grown = pa.concat_arrays([known, new]) if len(new) else known
        if len(grown) > VALUES_MAX or grown.nbytes > DICTIONARY_BYTES_MAX:
            alone = len(own.dictionary) > VALUES_MAX or own.dictionary.nbytes > DICTIONARY_BYTES_MAX
            raise _Overflow(path, alone=alone)
        self._known[path] = grown
        keys = pc.index_in(own.dictionary, grown).cast(_KEY).take(own.indices)
        return pa.DictionaryArray.from_arrays(keys, grown)


class StreamWriter:
    """Writes the batches of one gRPC stream of one signal."""

    def __init__(self, signal: Signal, *, compression: str = "none") -> None:
        self.signal = signal
        self._root = ROOTS[signal]
        self._options = pa.ipc.IpcWriteOptions(
            emit_dictionary_deltas=True, compression=None if compression == "none" else compression
        )
        self._streams: dict[Payload, _IpcStream] = {}
        self._plain: dict[Payload, set[str]] = {}
        self._begun: dict[Payload, int] = {}
        self._batches = 0

    def write(self, tables: Tables, *, key: str = "") -> tuple[int, bytes]:
        """The id and the bytes of the next batch."""
        self._batches += 1
        payloads = [self._payload(kind, tables[kind]) for kind in self._ordered(tables)]
        return self._batches, write_batch(Batch(self._batches, payloads, key))

    def _ordered(self, tables: Tables) -> Iterator[Payload]:
        """The root first, as receivers expect it."""
        yield self._root
        yield from sorted(kind for kind in tables if kind != self._root)

    def _payload(self, kind: Payload, table: pa.RecordBatch) -> ArrowPayload:
        if kind not in self._streams:
            self._begin(kind)
        while True:
            stream = self._streams[kind]
            try:
                return ArrowPayload(stream.schema_id, kind, stream.write(table))
            except _Overflow as overflow:
                if overflow.alone:
                    self._plain.setdefault(kind, set()).add(overflow.column)
                self._begin(kind)

    def _begin(self, kind: Payload) -> None:
        number = self._begun[kind] = self._begun.get(kind, 0) + 1
        schema_id = f"{kind.name.lower()}/{number}"
        self._streams[kind] = _IpcStream(schema_id, self._plain.setdefault(kind, set()), self._options)
