"""Id columns: how they are encoded on the way, and which children belong to which parent. Whole columns at a time.

    plain        the ids
    delta        each is added to the one before; nulls are skipped
    quasidelta   a row that equals the one before in some columns is added to its id, any other row has its own

The metadata `encoding` of a field says which; without it, the encoding that the specification names for the column. Ids
here are int64 arrays; -1 is null, a row without children.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.errors import Category, WireError

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
PLAIN, DELTA, QUASI_DELTA = "plain", "delta", "quasidelta"
ENCODING = b"encoding"
NONE = -1


def encoding_of(field: pa.Field, default: str) -> str:
    """How the ids of a field are encoded."""
    found: str = (field.metadata or {}).get(ENCODING, default.encode()).decode("utf-8", "replace")
    if found not in (PLAIN, DELTA, QUASI_DELTA):
        reason = f"encoding {found!r} is not one of {PLAIN}, {DELTA}, {QUASI_DELTA}"
        raise WireError(category=Category.PARSE_ERROR, reason=reason, place=f"column {field.name!r}")
    return found


def from_delta(column: pa.Array) -> Numbers:
    """Ids of a delta-encoded column."""
    ids = _wrapped(np.cumsum(_filled(column)), column)
    return _with_nulls(ids, column)


def from_quasi_delta(column: pa.Array, equals_last: Flags) -> Numbers:
    """Ids of a quasi-delta-encoded column; `equals_last` says which rows are to be added."""
    values = _filled(column)
    totals = np.cumsum(values)
    starts = np.flatnonzero(~equals_last)
    before = totals[starts] - values[starts]
    ids = totals - np.repeat(before, np.diff(np.append(starts, len(values))))
    return _with_nulls(_wrapped(ids, column), column)


def from_plain(column: pa.Array) -> Numbers:
    """Ids that stand as they are."""
    return _with_nulls(_filled(column), column)


def to_delta(ids: Numbers) -> Numbers:
    """The inverse; ids are ascending and none is null."""
    return np.diff(ids, prepend=0)


def to_quasi_delta(ids: Numbers, equals_last: Flags) -> Numbers:
    """The inverse; ids are ascending and none is null."""
    return np.where(equals_last, to_delta(ids), ids)


def _filled(column: pa.Array) -> Numbers:
    filled: Numbers = np.asarray(column.fill_null(0) if column.null_count else column).astype(np.int64)
    return filled


def _wrapped(ids: Numbers, column: pa.Array) -> Numbers:
    """Ids wrap at the width of their column, as those who write them let them."""
    ids &= (1 << column.type.bit_width) - 1
    return ids


def _with_nulls(ids: Numbers, column: pa.Array) -> Numbers:
    if column.null_count:
        ids[np.asarray(column.is_null())] = NONE
    return ids


class Children(NamedTuple):
    """Rows of a child table in the order of their parents: `rows[offsets[n]:offsets[n + 1]]` are those of parent n."""

    rows: Numbers
    offsets: pa.Array


def children(parents: Numbers, of: Numbers, *, table: str) -> Children:
    """Which rows of a child table belong to which parent. Rows of no parent are of nobody, and left out."""
    order = np.argsort(of, kind="stable") if len(of) > 1 and (of[1:] < of[:-1]).any() else np.arange(len(of))
    ordered = of[order]
    first, end = np.searchsorted(ordered, parents, "left"), np.searchsorted(ordered, parents, "right")
    counts = np.where(parents == NONE, 0, end - first)
    offsets = np.append(0, np.cumsum(counts))
    if offsets[-1] > len(of):
        raise WireError(category=Category.PARSE_ERROR, reason="an id is there twice", place=f"the parents of {table}")
    rows = order[np.repeat(first - offsets[:-1], counts) + np.arange(offsets[-1])]
    return Children(rows, pa.array(offsets, pa.int32()))
