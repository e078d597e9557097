"""OTLP requests from rows, whichever way they are kept.

A raw row is a request as it came. Rows of columns become requests again, in groups of `ROWS_MAX`. Rows of neither kind
are not telemetry; they are rejected.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pyarrow as pa

from holdfast.dataflow.exporters.parcels import Parcel, Span
from holdfast.wire.otlp.encode import encode
from holdfast.wire.otlp.raw import REQUEST, is_raw, signal_of
from holdfast.wire.otlp.signals import Signal

ROWS_MAX = 8192
"""Records of one request made from columns; what collectors send at most."""


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """One request, and the events it carries."""

    span: Span
    signal: Signal
    body: bytes


class Unfit(Exception):
    """Rows that are not telemetry, and why."""


def requests_of(parcel: Parcel) -> Iterator[Outgoing]:
    """The requests of a parcel, in order."""
    for seqs, _, rows in parcel.parts():
        if is_raw(rows.schema):
            yield from _raw(seqs, rows)
        else:
            yield from _columns(parcel.channel, seqs, rows)


def _raw(seqs: pa.Array, rows: pa.RecordBatch) -> Iterator[Outgoing]:
    signals = {signal.value: signal for signal in Signal}
    bodies, names = rows.column(REQUEST), rows.column("signal").to_pylist()
    for at, (seq, name) in enumerate(zip(seqs.to_pylist(), names, strict=True)):
        if name not in signals:
            raise Unfit(f"signal {name!r} is not one of {', '.join(signals)}")
        yield Outgoing((seq, seq), signals[name], bodies[at].as_py())


def _columns(channel: str, seqs: pa.Array, rows: pa.RecordBatch) -> Iterator[Outgoing]:
    signal = signal_of(rows.schema)
    if signal is None:
        raise Unfit(f"channel {channel!r} has neither OTLP requests nor their columns")
    for start in range(0, rows.num_rows, ROWS_MAX):
        part = rows.slice(start, ROWS_MAX)
        first, last = seqs[start].as_py(), seqs[start + part.num_rows - 1].as_py()
        yield Outgoing((first, last), signal, encode(signal, part))
