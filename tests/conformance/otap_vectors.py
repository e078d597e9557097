"""Makes the OTAP vectors: an OTLP request on the first line, then the batches of a stream that carry the same twice.

    python -m tests.conformance.otap_vectors DIRECTORY

`otap-<signal>.base64` are ours. `otap-logs-sorted.base64` is as collectors write: no metadata, attributes sorted and
quasi-delta-encoded, columns without data left out, dictionaries replaced instead of grown, and a schema reset between
its two batches.
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from holdfast.wire.otap import ids
from holdfast.wire.otap.encode import encode
from holdfast.wire.otap.messages import ArrowPayload, Batch, Payload, write_batch
from holdfast.wire.otap.tables import equals_last
from holdfast.wire.otap.writing import StreamWriter
from holdfast.wire.otlp.decode import decode_rows
from holdfast.wire.otlp.signals import Signal
from tests.unit.dataflow.otlp_samples import logs_request, sample

KEY = "0123456789abcdef0123456789abcdef"
_VALUES = ("str", "int", "double", "bool", "bytes", "ser")


def own(signal: Signal) -> list[bytes]:
    """A request, and what our exporter makes of it."""
    request: bytes = sample(signal).SerializeToString()
    rows = decode_rows(signal, pa.array([request], pa.binary()))
    writer = StreamWriter(signal, compression="zstd" if signal is Signal.LOGS else "none")
    return [request, *(writer.write(encode(signal, rows), key=KEY)[1] for _ in range(2))]


def sorted_logs() -> list[bytes]:
    """A request, and what a collector might make of it."""
    request: bytes = logs_request(4).SerializeToString()
    tables = encode(Signal.LOGS, decode_rows(Signal.LOGS, pa.array([request], pa.binary())))
    found = [request]
    for number, width in ((1, pa.uint8()), (2, pa.uint16())):
        payloads = []
        for kind, table in tables.items():
            plain = table if kind is Payload.LOGS else _sorted(table)
            record = _written(_packed(plain, width))
            payloads.append(ArrowPayload(f"{kind.name}:{width}", kind, record))
        payloads.sort(key=lambda payload: payload.kind != Payload.LOGS)
        found.append(write_batch(Batch(number, payloads)))
    return found


def _sorted(table: pa.RecordBatch) -> pa.RecordBatch:
    """Attributes sorted by type, key, value and parent, their parents encoded anew."""
    keys, codes = table.column("key"), np.asarray(table.column("type"))
    texts = pa.array([str([table.column(name)[at].as_py() for name in _VALUES]) for at in range(table.num_rows)])
    equal = equals_last(keys, texts) & ~np.isin(codes, (0, 5, 6))
    parents = ids.from_quasi_delta(table.column("parent_id"), equal)
    order = sorted(range(len(codes)), key=lambda at: (codes[at], keys[at].as_py(), texts[at].as_py(), parents[at]))
    moved = table.take(pa.array(order))
    equal = equals_last(moved.column("type"), moved.column("key"), texts.take(pa.array(order)))
    equal &= ~np.isin(codes[order], (0, 5, 6))
    encoded = pa.array(ids.to_quasi_delta(parents[order], equal), table.column("parent_id").type)
    return moved.set_column(0, "parent_id", encoded)


def _packed(table: pa.RecordBatch, width: pa.DataType) -> pa.RecordBatch:
    """Without metadata and columns without data; texts with dictionaries."""
    columns: dict[str, pa.Array] = {}
    for field, column in zip(table.schema, table.columns, strict=True):
        if column.null_count < len(column):
            is_text = pa.types.is_string(column.type)
            columns[field.name] = _with_dictionary(column, width) if is_text else _bare(column, width)
    return pa.RecordBatch.from_pydict(columns)


def _bare(column: pa.Array, width: pa.DataType) -> pa.Array:
    if not pa.types.is_struct(column.type):
        return column
    names = [field.name for field in column.type]
    inner = [column.field(name) for name in names]
    arrays = [_with_dictionary(part, width) if pa.types.is_string(part.type) else part for part in inner]
    return pa.StructArray.from_arrays(arrays, names=names)


def _with_dictionary(column: pa.Array, width: pa.DataType) -> pa.DictionaryArray:
    return column.dictionary_encode().cast(pa.dictionary(width, pa.string()))


def _written(table: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_batch(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data[:-8]  # the stream goes on: no mark of its end


def main(directory: Path) -> None:
    """Write all files."""
    files = {f"otap-{signal.value}": own(signal) for signal in Signal} | {"otap-logs-sorted": sorted_logs()}
    for name, lines in files.items():
        text = "\n".join(base64.b64encode(line).decode() for line in lines)
        (directory / f"{name}.base64").write_text(text + "\n", encoding="ascii")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
