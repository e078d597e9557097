"""Which rows of a batch a subscription wants: by partition, and by an expression over columns.

Promise: one answer for a whole batch, by Arrow's kernels. What cannot be worked out (a column that is not there, a
null, types that do not compare) is unknown, and a row passes only if its whole expression is true. Nothing raises
because of what a batch holds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.delivery.filterparser import Binary, Column, Literal, Node, OneOf, Unary, Value, parse
from holdfast.store.segments.runs import RunTable

Mask = npt.NDArray[np.bool_]

_UNKNOWN = pa.nulls(1, pa.bool_())[0]
_KERNELS = {
    "==": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
    "and": "and_kleene",
    "or": "or_kleene",
    "+": "add",
    "-": "subtract",
    "*": "multiply",
    "/": "divide",
}
_ARITHMETIC = {"+", "-", "*", "/"}
_ERRORS = (pa.ArrowException, TypeError, ValueError, KeyError, OverflowError, ArithmeticError)


class Filter:
    """A compiled filter. `InvalidFilter` when it is made from a text that cannot be read."""

    def __init__(self, text: str = "", partitions: tuple[str, ...] = ()) -> None:
        self.text = text
        self.partitions = partitions
        self._tree = parse(text) if text.strip() else None
        self._wanted = frozenset(partitions)

    @property
    def passes_all(self) -> bool:
        """Whether there is nothing to look at."""
        return self._tree is None and not self._wanted

    @property
    def needs_runs(self) -> bool:
        """Whether partitions are asked for."""
        return bool(self._wanted)

    def mask(self, batch: pa.RecordBatch, *, first_seq: int, runs: RunTable | None) -> Mask:
        """Which rows pass; `runs` are needed if partitions are asked for."""
        rows = batch.num_rows
        passing: Mask = np.ones(rows, np.bool_)
        if self._tree is not None:
            passing = _as_mask(_evaluate(self._tree, batch), rows)
        if self._wanted:
            inside = runs.in_partitions(self._wanted, first_seq=first_seq, rows=rows) if runs is not None else False
            passing = passing & inside
        return passing


def _as_mask(found: Any, rows: int) -> Mask:
    if not pa.types.is_boolean(found.type):
        return np.zeros(rows, np.bool_)
    if isinstance(found, pa.Scalar):
        return np.full(rows, found.as_py() is True, np.bool_)
    values: Mask = pc.fill_null(found, fill_value=False).to_numpy(zero_copy_only=False)
    return values


def _evaluate(node: Node, batch: pa.RecordBatch) -> Any:
    """An array, a scalar, or what is unknown."""
    try:
        return _value_of(node, batch)
    except _ERRORS:
        return _UNKNOWN


def _value_of(node: Node, batch: pa.RecordBatch) -> Any:
    if isinstance(node, Literal):
        return pa.scalar(node.value) if node.value is not None else _UNKNOWN
    if isinstance(node, Column):
        return _column(node, batch)
    if isinstance(node, Unary):
        return _unary(node, batch)
    if isinstance(node, OneOf):
        return _one_of(_evaluate(node.of, batch), node.values)
    return _binary(node, batch)


def _column(node: Column, batch: pa.RecordBatch) -> Any:
    whole = ".".join(node.path)
    if whole in batch.schema.names:
        found = batch.column(whole)
    else:
        found = batch.column(node.path[0])
        for name in node.path[1:]:
            found = pc.struct_field(found, name)
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def _unary(node: Unary, batch: pa.RecordBatch) -> Any:
    value = _evaluate(node.of, batch)
    if node.name == "exists":
        return pc.is_valid(value)
    if node.name == "is null":
        return pc.is_null(value)
    if node.name == "-":
        return pc.negate(value)
    return pc.invert(value)


def _binary(node: Binary, batch: pa.RecordBatch) -> Any:
    left, right = _evaluate(node.left, batch), _evaluate(node.right, batch)
    if node.name in {"and", "or"}:
        left, right = _truth(left), _truth(right)
    elif node.name == "/":
        left, right = left.cast(pa.float64()), right.cast(pa.float64())  # of whole numbers, by zero, Arrow refuses all
    elif node.name not in _ARITHMETIC:
        left, right = _like(left, right), _like(right, left)
    return pc.call_function(_KERNELS[node.name], [left, right])


def _truth(value: Any) -> Any:
    return value if pa.types.is_boolean(value.type) else _UNKNOWN


def _like(value: Any, other: Any) -> Any:
    """A text beside a time or a decimal is read as one."""
    if not isinstance(value, pa.Scalar) or not pa.types.is_string(value.type):
        return value
    if pa.types.is_temporal(other.type) or pa.types.is_decimal(other.type):
        return value.cast(other.type)
    return value


def _one_of(value: Any, values: tuple[Value, ...]) -> Any:
    """True for a value of the list. Values of other types are in no list; null is unknown."""
    found: Any = _UNKNOWN if not values else pc.and_kleene(pc.is_null(value), _UNKNOWN)
    for item in values:
        if item is None:
            continue
        try:
            same = pc.equal(value, _like(pa.scalar(item), value))
        except _ERRORS:
            continue
        found = pc.or_kleene(found, same)
    return found
