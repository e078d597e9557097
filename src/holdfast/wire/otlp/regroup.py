"""Which neighbouring rows came from one resource, one scope, one metric: where any of some columns changes.

Whole columns at a time, maps and lists too: a list equals the one before it if it is as long and each of its items
equals the item that many places before.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Flags = npt.NDArray[np.bool_]
Numbers = npt.NDArray[np.int64]


def changes(rows: pa.RecordBatch, names: Iterable[str]) -> Flags:
    """For each row, whether it differs from the one before in any of the columns; the first one does."""
    found = np.zeros(rows.num_rows, bool)
    found[:1] = True
    for name in names:
        found[1:] |= _differs(rows.column(name))
    return found


def starts(flags: Flags) -> Numbers:
    """Where groups begin."""
    return np.flatnonzero(flags)


def offsets(inner: Numbers, outer: Numbers) -> pa.Array:
    """How inner groups lie in outer ones: offsets of a list; both are rows at which groups begin."""
    return pa.array(np.append(np.searchsorted(inner, outer), len(inner)), pa.int32())


def _differs(column: pa.Array) -> Flags:
    """For each row but the first, whether it differs from the one before."""
    if pa.types.is_map(column.type):
        return _lists_differ(column, [column.keys, column.items])
    if pa.types.is_list(column.type):
        return _lists_differ(column, [column.values])
    return _unequal(column.slice(1), column.slice(0, len(column) - 1))


def _unequal(left: pa.Array, right: pa.Array) -> Flags:
    both_null = pc.and_(left.is_null(), right.is_null())
    equal = pc.or_(pc.equal(left, right).fill_null(False), both_null)
    return ~np.asarray(equal, dtype=bool)


def _lists_differ(column: pa.Array, children: list[pa.Array]) -> Flags:
    begins = np.asarray(column.offsets).astype(np.int64)
    sizes = np.diff(begins)
    differs: Flags = sizes[1:] != sizes[:-1]
    row_of = np.repeat(np.arange(len(sizes)), sizes)
    items = np.flatnonzero((row_of > 0) & ~np.append(True, differs)[row_of])  # those that have one to compare with
    before = items - sizes[row_of[items]]
    for child in children:
        unequal = _unequal(child.take(pa.array(items)), child.take(pa.array(before)))
        differs[row_of[items[unequal]] - 1] = True
    return differs
