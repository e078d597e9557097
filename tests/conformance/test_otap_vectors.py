"""Recorded OTAP streams are read as they were written, whichever version reads them. The files stay for ever."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.wire.otap.decode import decode
from holdfast.wire.otap.limits import Limits
from holdfast.wire.otap.messages import read_batch
from holdfast.wire.otap.reading import StreamReader
from holdfast.wire.otlp.decode import decode_rows
from holdfast.wire.otlp.signals import Signal
from tests.conformance.otap_vectors import KEY

VECTORS = Path(__file__).parent / "vectors"
LIMITS = Limits(1 << 20)


def recorded(name: str) -> tuple[bytes, list[bytes]]:
    """The OTLP request of a file, and its batches."""
    lines = (VECTORS / f"{name}.base64").read_text(encoding="ascii").split()
    request, *batches = (base64.b64decode(line) for line in lines)
    return request, batches


@pytest.mark.parametrize("signal", list(Signal), ids=lambda signal: signal.value)
def test_recorded_batches_give_the_rows_of_their_request(signal: Signal) -> None:
    request, batches = recorded(f"otap-{signal.value}")
    rows = decode_rows(signal, pa.array([request], pa.binary()))
    reader = StreamReader(signal, LIMITS)
    for number, data in enumerate(batches, start=1):
        batch = read_batch(data)
        assert (batch.batch_id, batch.key) == (number, KEY)
        assert decode(signal, reader.read(batch), LIMITS).rows.equals(rows)
    assert len(batches) == 2


def ordered(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows whose attributes have no order."""
    found: list[dict[str, Any]] = rows.to_pylist()
    for row in found:
        for name in ("", "resource_", "scope_"):
            pairs = zip(row[f"{name}attributes"], row.pop(f"{name}attribute_types"), strict=True)
            row[f"{name}attributes"] = sorted((key, text, code) for (key, text), code in pairs)
    return found


def test_a_recorded_stream_with_sorted_attributes_and_a_schema_reset_gives_its_records() -> None:
    request, batches = recorded("otap-logs-sorted")
    rows = decode_rows(Signal.LOGS, pa.array([request], pa.binary()))
    reader = StreamReader(Signal.LOGS, LIMITS)
    schemas = []
    for data in batches:
        batch = read_batch(data)
        schemas.append([payload.schema_id for payload in batch.payloads])
        assert ordered(decode(Signal.LOGS, reader.read(batch), LIMITS).rows) == ordered(rows)
    assert schemas[0][0] != schemas[1][0]
