"""OTAP batches from rows, whichever way they are kept.

Rows of columns become batches of up to `ROWS_MAX` rows and about `BATCH_BYTES`. Raw rows, OTLP requests, are decoded
first; neighbouring ones share a batch, and a large one becomes several.

A batch has a key made of what it carries and where it stands in its store, so that a receiver that knows keys
recognises it when it comes again, on whichever stream. Where one batch ends depends on its own rows only: what comes
again after the first half of a parcel was taken is cut as before.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

import msgspec
import numpy as np
import pyarrow as pa

from holdfast.dataflow.exporters.parcels import Parcel, Span
from holdfast.dataflow.exporters.requests import Unfit
from holdfast.errors import WireError
from holdfast.wire.otap.encode import ROWS_MAX
from holdfast.wire.otap.limits import row_bytes
from holdfast.wire.otlp.decode import decode_rows
from holdfast.wire.otlp.parts import CONTEXT
from holdfast.wire.otlp.raw import REQUEST, is_raw, signal_of
from holdfast.wire.otlp.signals import Signal

KEY_BYTES = 16
BATCH_BYTES = 2 << 20
"""Of columns that do not repeat; with what Arrow adds it stays below the 4 MiB that gRPC servers take by default."""


class OtapBatch(msgspec.Struct, frozen=True, gc=False):
    """Rows of one batch, and the events they come from."""

    span: Span
    signal: Signal
    rows: pa.RecordBatch
    key: str


def batches_of(parcel: Parcel) -> Iterator[OtapBatch]:
    """The batches of a parcel, in order; `Unfit` if it is not telemetry."""
    for seqs, times, rows in parcel.parts():
        if is_raw(rows.schema):
            yield from _raw(parcel, seqs, times, rows)
        else:
            yield from _columns(parcel, seqs, times, rows)


def _columns(parcel: Parcel, seqs: pa.Array, times: pa.Array, rows: pa.RecordBatch) -> Iterator[OtapBatch]:
    signal = signal_of(rows.schema)
    if signal is None:
        raise Unfit(f"channel {parcel.channel!r} has neither OTLP requests nor their columns")
    for start, end in _pieces(rows):
        part = rows.slice(start, end - start)
        span = _span(seqs, start, part.num_rows)
        ends = part.take(pa.array([0, part.num_rows - 1]))
        content = [_own(part).serialize(), ends.serialize()]
        yield OtapBatch(span, signal, part, _key(parcel, span, times.slice(start, end - start), content))


def _raw(parcel: Parcel, seqs: pa.Array, times: pa.Array, rows: pa.RecordBatch) -> Iterator[OtapBatch]:
    for start, end in _groups(rows):
        part = rows.slice(start, end - start)
        signal = _signal(part)
        span = _span(seqs, start, part.num_rows)
        try:
            records = decode_rows(signal, part.column(REQUEST).cast(pa.binary()))
        except WireError as error:
            raise Unfit(f"events {span[0]} to {span[1]} cannot be decoded: {error}") from None
        key = _key(parcel, span, times.slice(start, end - start), [part.serialize()])
        for number, (first, last) in enumerate(_pieces(records)):
            yield OtapBatch(span, signal, records.slice(first, last - first), f"{key}-{number}" if number else key)


def _own(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that do not repeat."""
    return rows.select([name for name in rows.schema.names if name not in CONTEXT.names])


def _pieces(rows: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Where batches begin and end: each as long as it may be, and one row at least."""
    whole = _own(rows).take(pa.array(np.arange(rows.num_rows)))  # no column begins in the middle of its buffers
    ends = np.cumsum(row_bytes(whole))
    start = 0
    while start < rows.num_rows:
        before = ends[start - 1] if start else 0
        fitting = int(np.searchsorted(ends, before + BATCH_BYTES, "right"))
        end = max(start + 1, min(fitting, start + ROWS_MAX))
        yield start, end
        start = end


def _groups(rows: pa.RecordBatch) -> Iterator[tuple[int, int]]:
    """Neighbouring requests of one signal that fit into one batch together; a larger one is alone."""
    columns = (rows.column(name).to_pylist() for name in ("records", "size_bytes", "signal"))
    start, records, size_bytes, first = 0, 0, 0, None
    for at, (count, size, signal) in enumerate(zip(*columns, strict=True)):
        records, size_bytes = records + (count or 0), size_bytes + (size or 0)
        if at > start and (records > ROWS_MAX or size_bytes > BATCH_BYTES or signal != first):
            yield start, at
            start, records, size_bytes = at, count or 0, size or 0
        first = signal
    if rows.num_rows:
        yield start, rows.num_rows


def _signal(rows: pa.RecordBatch) -> Signal:
    name = rows.column("signal")[0].as_py()
    try:
        return Signal(name)
    except ValueError:
        raise Unfit(f"signal {name!r} is not one of {', '.join(signal.value for signal in Signal)}") from None


def _span(seqs: pa.Array, start: int, rows: int) -> Span:
    return seqs[start].as_py(), seqs[start + rows - 1].as_py()


def _key(parcel: Parcel, span: Span, times: pa.Array, content: list[pa.Buffer]) -> str:
    """Two batches with one key are the same events of the same store: seqs, times and content agree."""
    digest = blake2b(f"{parcel.channel}/{parcel.core}/{span[0]}/{span[1]}/".encode(), digest_size=KEY_BYTES)
    digest.update(np.asarray(times.view(pa.int64()).fill_null(0)).tobytes())
    for part in content:
        digest.update(part)
    return digest.hexdigest()
