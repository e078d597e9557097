"""Texts that are times: one rule for JSON and CSV, wherever they come in. Pure.

A column of texts of which every one is an ISO 8601 time with its zone (`2026-01-02T03:04:05.5+02:00`) becomes points in
time, in microseconds: as our Sender, Spark and Python have them, and enough for every year from 1 to 9999. A time
without a zone is no point in time, so its column stays text, exactly as it came; so does a column with anything else
in it. What decides is the form of all values, not how many digits the first one has.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

POINT_IN_TIME = pa.timestamp("us", "UTC")
DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
"""How many digits of a second each unit holds."""
_ZONED = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}(:?\d{2})?)$"


def are_zoned_times(texts: pa.Array | pa.ChunkedArray) -> bool:
    """Whether every text that is there has the form of a time with its zone, and there is one."""
    if texts.null_count == len(texts):
        return False
    return bool(pc.all(pc.match_substring_regex(texts, _ZONED)).as_py())


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts as the times of a type, at any depth; `ArrowInvalid` if one is no such time, or has digits it cannot hold.

    A time for a type with a zone has one, and one for a type without has none.
    """
    if array.type == kind:
        return array
    if pa.types.is_struct(kind):
        children = [as_type(child, kind.field(at).type) for at, child in enumerate(array.flatten())]
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=array.is_null())
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(
            array.offsets, as_type(array.values, kind.value_type), type=kind, mask=array.is_null()
        )
    return array.cast(kind)


def what_fits(kind: pa.TimestampType) -> str:
    """For people: how a time for a type is written."""
    zone = "with its zone, like Z or +02:00" if kind.tz else "without a zone"
    return f"a time {zone}, and with at most {DIGITS[kind.unit]} digits behind the second"
