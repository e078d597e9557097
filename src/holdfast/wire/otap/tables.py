"""A table as it came: its columns by name, plain and of the type they must have.

OTAP leaves senders much freedom: columns without data may be missing, texts and numbers may have dictionaries. Here
every column is asked for by name and type; what is missing is null, and what is of another kind is `WireError`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Category, WireError
from holdfast.wire.otap import ids
from holdfast.wire.otap.ids import Flags, Numbers
from holdfast.wire.otap.limits import Budget

_FAMILIES: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_boolean,
    lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind),
    lambda kind: pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind),
    pa.types.is_timestamp,
    pa.types.is_duration,
    pa.types.is_struct,
)


class Table:
    """One table of a batch, or one struct in it."""

    def __init__(self, name: str, batch: pa.RecordBatch, budget: Budget) -> None:
        self.name = name
        self.rows: int = batch.num_rows
        self._batch = batch
        self._budget = budget
        self._places = {field.name: at for at, field in enumerate(batch.schema)}

    def has(self, name: str) -> bool:
        """Whether a column is there."""
        return name in self._places

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """A column; nulls if it is not there."""
        if name not in self._places:
            return pa.nulls(self.rows, kind)
        found = self._plain(self._batch.column(self._places[name]), name)
        return found if found.type == kind else self._cast(found, name, kind)

    def number(self, name: str, kind: pa.DataType) -> pa.Array:
        """A column of numbers whose default is zero."""
        return self.column(name, kind).fill_null(pa.scalar(0, kind))

    def nanos(self, name: str) -> pa.Array:
        """Times as nanoseconds since 1970; zero if not known."""
        found = self.column(name, pa.timestamp("ns"))
        return found.view(pa.int64()).fill_null(0)

    def data(self, name: str) -> pa.Array:
        """Bytes, none as empty ones."""
        return self.column(name, pa.binary()).fill_null(b"")

    def struct(self, name: str) -> Table:
        """The columns inside a struct; none if it is not there."""
        if name not in self._places:
            return Table(f"{self.name}.{name}", pa.RecordBatch.from_arrays([_rows(self.rows)], ["-"]), self._budget)
        found = self._batch.column(self._places[name])
        if not pa.types.is_struct(found.type):
            raise self.bad(name, f"is {found.type}, not a struct")
        fields = [found.type.field(at) for at in range(found.type.num_fields)]
        arrays = [*found.flatten(), _rows(self.rows)]
        schema = pa.schema([*fields, pa.field("-", pa.bool_())])
        return Table(f"{self.name}.{name}", pa.RecordBatch.from_arrays(arrays, schema=schema), self._budget)

    def is_valid(self, name: str) -> pa.Array:
        """Which rows of a column have a value."""
        if name not in self._places:
            return pa.repeat(False, self.rows)
        return self._batch.column(self._places[name]).is_valid()

    def lists(self, name: str, kind: pa.DataType) -> pa.ListArray:
        """Lists of values of one type; what is null is an empty list."""
        if name not in self._places:
            offsets = pa.array(np.zeros(self.rows + 1), pa.int32())
            return pa.ListArray.from_arrays(offsets, pa.array([], kind))
        found = self._batch.column(self._places[name])
        if not pa.types.is_list(found.type):
            raise self.bad(name, f"is {found.type}, not a list")
        sizes = pc.list_value_length(found).fill_null(0)
        items = self._plain(found.flatten(), name)
        items = items if items.type == kind else self._cast(items, name, kind)
        return pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(np.asarray(sizes))), pa.int32()), items)

    def ids(self, name: str, default: str, equals_last: Callable[[], Flags] | None = None) -> Numbers:
        """An id column; -1 for null, and for a column that is not there."""
        if name not in self._places:
            return np.full(self.rows, ids.NONE, np.int64)
        field = self._batch.schema.field(self._places[name])
        encoding = ids.encoding_of(field, default)
        column = self._plain(self._batch.column(self._places[name]), name)
        if not pa.types.is_unsigned_integer(column.type):
            raise self.bad(name, f"is {column.type}, not an unsigned integer")
        if encoding == ids.PLAIN:
            return ids.from_plain(column)
        if encoding == ids.DELTA or equals_last is None:
            return ids.from_delta(column)
        return ids.from_quasi_delta(column, equals_last())

    def parents(self, default: str, equals_last: Callable[[], Flags] | None = None) -> Numbers:
        """The column that says whose each row is; it must be there, without nulls."""
        found = self.ids("parent_id", default, equals_last)
        if len(found) and found.min() == ids.NONE:
            raise self.bad("parent_id", "is missing or null")
        return found

    def bad(self, name: str, reason: str) -> WireError:
        """What is wrong with a column."""
        return WireError(category=Category.PARSE_ERROR, reason=reason, place=f"column {name!r} of {self.name}")

    def _plain(self, column: pa.Array, name: str) -> pa.Array:
        if not pa.types.is_dictionary(column.type):
            return column
        if pa.types.is_struct(column.type.value_type) or not _is_known(column.type.value_type):
            raise self.bad(name, f"has a dictionary of {column.type.value_type}")
        return self._budget.decode(column)

    def _cast(self, column: pa.Array, name: str, kind: pa.DataType) -> pa.Array:
        if pa.types.is_null(column.type):
            return pa.nulls(len(column), kind)
        if not any(family(column.type) and family(kind) for family in _FAMILIES):
            raise self.bad(name, f"is {column.type}, not {kind}")
        try:
            return column.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self.bad(name, str(error)) from None


def _is_known(kind: pa.DataType) -> bool:
    """Whether a type is of a kind that tables have."""
    return any(family(kind) for family in _FAMILIES)


def _rows(count: int) -> pa.Array:
    """A column that only says how many rows there are."""
    return pa.repeat(False, count)


def equals_last(*columns: pa.Array) -> Flags:
    """For each row, whether all columns have the value of the row before; nulls equal nothing."""
    found = np.zeros(len(columns[0]), bool)
    found[1:] = True
    for column in columns:
        equal = pc.equal(column.slice(1), column.slice(0, max(0, len(column) - 1))).fill_null(False)
        found[1:] &= np.asarray(equal, dtype=bool)
    return found
