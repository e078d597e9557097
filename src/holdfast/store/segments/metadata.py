"""What a segment says of itself, in its footer and in the catalog.

Promise: `SegmentMeta.from_footer(meta.to_footer()) == meta`; what is missing or malformed raises `ValueError`. Times
are nanoseconds since 1970 UTC; ranges are inclusive; an absent event-time range means that no event has an event time.
`event_time_column` is there only if the range is that of this column for every event.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

FORMAT_VERSION = 1
KEY_PREFIX = "holdfast."
FORMAT_KEY = KEY_PREFIX + "format"

_TEXT_FIELDS = frozenset({"store_id", "channel", "signal", "schema_hash", "event_time_column"})
_OPTIONAL_FIELDS = frozenset({"first_event_time_ns", "last_event_time_ns", "event_time_column"})
_UNIT_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_DAY_NS = 86_400 * 10**9
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class SegmentMeta:
    """Whose segment, which events, when they came and when they happened."""

    store_id: str
    channel: str
    segment_seq: int
    first_seq: int
    last_seq: int
    first_committed_id: int
    last_committed_id: int
    first_ingested_at_ns: int
    last_ingested_at_ns: int
    first_event_time_ns: int | None
    last_event_time_ns: int | None
    schema_hash: str
    rows: int
    signal: str = "events"
    event_time_column: str | None = None
    """Segments of before 20 November 2026 do not say it, nor do those whose column holds no times."""

    def to_footer(self) -> dict[str, str]:
        """Footer entries; None is left out."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        entries = {KEY_PREFIX + name: str(value) for name, value in values.items() if value is not None}
        return {FORMAT_KEY: str(FORMAT_VERSION), **entries}

    @classmethod
    def from_footer(cls, entries: Mapping[str, str]) -> SegmentMeta:
        """The values back; entries of others are passed over."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            text = entries.get(KEY_PREFIX + field.name)
            if text is None and field.name not in _OPTIONAL_FIELDS:
                raise ValueError(f"footer entry {KEY_PREFIX}{field.name} is missing")
            values[field.name] = text if text is None or field.name in _TEXT_FIELDS else int(text)
        meta = cls(**values)
        if meta.rows < 1 or meta.last_seq - meta.first_seq + 1 != meta.rows:
            raise ValueError(f"seqs {meta.first_seq}..{meta.last_seq} are not {meta.rows} rows")
        return meta


def event_time_range(batches: Iterable[pa.RecordBatch], column: str) -> tuple[int, int] | tuple[None, None]:
    """Earliest and latest value of a time column in nanoseconds: timestamp, date, or integer nanoseconds.

    The batches have one schema and are looked at one at a time.
    (None, None) when there is no such column, it is of another type, or every value is null. A time beyond what 64 bits
    of nanoseconds hold (1677 to 2262) counts as the end of that range.
    """
    if not column:
        return None, None
    import pyarrow.compute as pc  # 7 MB that few channels need

    ends: list[int] = []
    for batch in batches:
        if column not in batch.schema.names:
            return None, None
        values = batch.column(column)
        unit_ns = _nanoseconds_per_unit(values.type)
        if unit_ns is None:
            return None, None
        found = pc.min_max(values)
        if found["min"].is_valid:
            ends += [_nanoseconds(found["min"], unit_ns), _nanoseconds(found["max"], unit_ns)]
    return (min(ends), max(ends)) if ends else (None, None)


def time_column(schema: pa.Schema, column: str) -> str | None:
    """The column, if it is there and holds times; what a range of integers counts, only their owner knows."""
    if column not in schema.names:
        return None
    kind = schema.field(column).type
    return column if pa.types.is_timestamp(kind) or pa.types.is_date(kind) else None


def _nanoseconds_per_unit(data_type: pa.DataType) -> int | None:
    if pa.types.is_timestamp(data_type):
        return _UNIT_NS[data_type.unit]
    if pa.types.is_date(data_type):
        return _DAY_NS if pa.types.is_date32(data_type) else _UNIT_NS["ms"]
    return 1 if pa.types.is_integer(data_type) else None


def _nanoseconds(value: pa.Scalar, unit_ns: int) -> int:
    count = value.as_py() if pa.types.is_integer(value.type) else value.value
    return min(max(int(count) * unit_ns, _INT64_MIN), _INT64_MAX)
