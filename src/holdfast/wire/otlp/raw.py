"""Requests as rows of their own: the bytes as they came, and enough beside them to look without opening them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.errors import SchemaMismatch
from holdfast.wire.otlp.decode import SCHEMAS, decode_rows
from holdfast.wire.otlp.signals import Signal

REQUEST = "request"
SCHEMA = pa.schema(
    [
        (REQUEST, pa.binary()),
        ("signal", pa.string()),
        ("protocol", pa.string()),
        ("records", pa.int64()),
        ("size_bytes", pa.int64()),
    ]
)


class RawRequest(msgspec.Struct, frozen=True, gc=False):
    """One request; always protobuf, whatever it came as."""

    request: bytes
    protocol: str
    records: int


def raw_rows(signal: Signal, requests: Sequence[RawRequest]) -> pa.RecordBatch:
    """One row per request."""
    columns = [
        requests_array([item.request for item in requests]),
        pa.repeat(pa.scalar(signal.value, pa.string()), len(requests)),
        pa.array([item.protocol for item in requests], pa.string()),
        pa.array([item.records for item in requests], pa.int64()),
        pa.array([len(item.request) for item in requests], pa.int64()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def requests_array(requests: Sequence[bytes]) -> pa.BinaryArray:
    """Requests as a column, copied once; growing a column value by value copies large ones several times."""
    offsets = np.zeros(len(requests) + 1, np.int32)
    np.cumsum([len(request) for request in requests], out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(requests))]
    return pa.BinaryArray.from_buffers(pa.binary(), len(requests), buffers)


def is_raw(schema: pa.Schema) -> bool:
    """Whether rows of a channel are requests."""
    return set(SCHEMA.names) <= set(schema.names)


def signal_of(schema: pa.Schema) -> Signal | None:
    """The signal whose columns these are; None for raw rows and for rows of something else."""
    names = set(schema.names)
    return next((signal for signal, columns in SCHEMAS.items() if set(columns.names) <= names), None)


def decoded(rows: pa.RecordBatch, *, channel: str) -> pa.RecordBatch:
    """The records in raw rows, which must all be of one signal."""
    signals = rows.column("signal").unique().to_pylist()
    if len(signals) != 1 or signals[0] not in {signal.value for signal in Signal}:
        found = ", ".join(sorted(str(signal) for signal in signals))
        raise SchemaMismatch(
            channel=channel, column="signal", expected="logs, traces or metrics", found=found, reason="one in a batch"
        )
    return decode_rows(Signal(signals[0]), rows.column(REQUEST).cast(pa.binary()))
