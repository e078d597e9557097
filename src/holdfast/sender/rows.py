"""Rows to columns: what the columns of a channel's rows are, kept from batch to batch, and rows that do not fit found
when they come.

Every value has a kind, by its Python type. A column keeps one kind; `None` fits everywhere, and numbers with and
without a fraction become numbers with one. Everything else is a clash: it is refused by the call that brings it, naming
row, column and both types, and nothing of that call is taken. A look at a row costs one set lookup if a row with the
same names and types came before. Arrow is asked to convert whole columns, never to guess between clashing values: it
would turn a time into a date, or text into bytes, without a word.

What a kind becomes in Arrow is fixed, so that one row after the other has the same schema. Only of decimals, lists and
dicts the type is taken from the values.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from holdfast.errors import InvalidBatch, SchemaMismatch

Row: TypeAlias = Mapping[str, Any]

AT_COLUMN = "timestamp"
"""Where the time of an event stands that was given as `at`; the name QWP's timestamp without a name has too."""
AT_TYPE = pa.timestamp("us", "UTC")
"""As servers, Spark and Python's own datetime have times."""
SIGNATURES_MAX = 1024
"""Combinations of names and types that are remembered per channel; beyond, they are forgotten and learnt again."""
NAME_BYTES_MAX = 127
"""Of a column; what `max_name_len` says if it says nothing."""
COLUMNS_MAX = 2048
"""What a store takes."""

_KINDS: dict[type, str] = {
    bool: "bool", int: "int", float: "float", str: "text", bytes: "bytes", bytearray: "bytes", memoryview: "bytes",
    dt.date: "date", dt.time: "time", dt.timedelta: "duration", Decimal: "decimal",
    list: "list", tuple: "list", dict: "struct", type(None): "",
}  # fmt: skip
_TYPES: dict[str, pa.DataType | None] = {
    "": pa.null(), "bool": pa.bool_(), "int": pa.int64(), "float": pa.float64(), "text": pa.string(),
    "bytes": pa.binary(), "date": pa.date32(), "time": pa.time64("ns"), "duration": pa.duration("us"),
    "instant": pa.timestamp("us", "UTC"), "datetime": pa.timestamp("us"), "at": AT_TYPE,
}  # fmt: skip
_FLAT = frozenset({*_TYPES, "decimal"})
_NUMPY_KINDS = {"b": "bool", "i": "int", "u": "int", "f": "float", "U": "text", "S": "bytes"}
_SIZED = frozenset({str, bytes, bytearray, memoryview})
_NESTED = frozenset({list, tuple})
_ARROW_ERRORS = (pa.ArrowException, OverflowError, ValueError, TypeError)


def kind_of(value: object) -> str:
    """What a value counts as; a kind of its own for types that only Arrow may know."""
    cls = type(value)
    if cls is dt.datetime:
        return "datetime" if value.tzinfo is None else "instant"  # type: ignore[attr-defined]
    kind = _KINDS.get(cls)
    if kind is not None:
        return kind
    if cls.__module__ == "numpy" and hasattr(value, "dtype"):
        return _NUMPY_KINDS.get(value.dtype.kind, cls.__name__)
    if isinstance(value, dt.datetime):
        return "datetime" if value.tzinfo is None else "instant"
    return next((_KINDS[parent] for parent in cls.__mro__[1:] if parent in _KINDS), cls.__name__)


def check_names(channel: str, names: Iterable[object], bytes_max: int) -> None:
    """Refuse columns whose names are not text, or longer than servers allow."""
    for name in names:
        if not isinstance(name, str):
            raise InvalidBatch(channel=channel, reason=f"a column's name is text, this one is {name!r}")
        if len(name.encode(errors="replace")) > bytes_max:
            raise InvalidBatch(channel=channel, reason=f"column {name!r} is longer than max_name_len={bytes_max}")


def size_of(row: Row) -> int:
    """About how many bytes a row has; numbers count eight."""
    return 8 * len(row) + sum([_bytes_of(value) for value in row.values() if value.__class__ not in _PLAIN])


def load_conversions() -> None:
    """Have pyarrow load what it converts with. With the first array of Python's values it loads pandas, where that is
    installed: it takes a second, and a signal handler in the middle of it that sends too would wait for ever."""
    pa.array([])


def size_of_batch(batch: pa.RecordBatch) -> int:
    """About how many bytes a batch has. Slices count what they show, unless what they are cut from is small anyway."""
    held_bytes: int = batch.get_total_buffer_size()
    return held_bytes if held_bytes <= _MEASURED_BYTES_MIN else batch.nbytes


_MEASURED_BYTES_MIN = 4096
"""Measuring what a slice shows takes longer than a small batch is worth."""
_PLAIN = frozenset({bool, int, float, type(None), dt.datetime, dt.date})


def _bytes_of(value: Any) -> int:
    cls = value.__class__
    if cls in _SIZED:
        return len(value)
    if cls in _NESTED:
        return sum(8 + _bytes_of(item) for item in value)
    return size_of(value) if cls is dict else 8


class RowShape:
    """The columns of one channel's rows."""

    def __init__(self, channel: str, *, name_bytes_max: int = NAME_BYTES_MAX) -> None:
        self._channel = channel
        self._name_bytes_max = name_bytes_max
        self._kinds: dict[str, str] = {}
        self._signatures: set[object] = set()
        self._inferred: dict[str, pa.DataType] = {}
        self._struct: pa.StructType | None = None
        """All columns, if each has a fixed type: then rows are converted in one step."""
        self._is_inferred = False
        self._has_nested = False

    @property
    def has_nested(self) -> bool:
        """Whether a value may be a list or a dict, which its owner may change."""
        return self._has_nested

    def check(self, rows: Sequence[Row], *, place: int, is_at: bool = False) -> None:
        """Refuse rows that do not fit those before, all of them; `place` is how many there are that were not sent."""
        kinds = self._kinds.copy() if len(rows) > 1 else None
        try:
            for number, row in enumerate(rows, place):
                signature = (is_at, *row, *map(type, row.values()))
                if signature not in self._signatures:
                    self._learn(row, number, is_at=is_at)
                    if dt.datetime not in signature and len(self._signatures) < SIGNATURES_MAX:
                        self._signatures.add(signature)
        except BaseException:
            if kinds is not None and kinds != self._kinds:
                self.forget()
                self._kinds = kinds
            raise

    def _learn(self, row: Row, place: int, *, is_at: bool) -> None:
        if not row:
            raise InvalidBatch(channel=self._channel, reason=f"row {place} has no columns")
        changes: dict[str, str] = {}
        check_names(self._channel, row, self._name_bytes_max)
        for name, value in row.items():
            found = "at" if is_at and name == AT_COLUMN else kind_of(value)
            before = self._kinds.get(name)
            kind = _merged(before, found)
            if kind is None:
                assert before is not None
                raise self._clash(name, before, found, place)
            if kind != before:
                changes[name] = kind
        if len(self._kinds) + len(changes) > COLUMNS_MAX:
            reason = f"row {place}: more than {COLUMNS_MAX} columns"
            raise InvalidBatch(channel=self._channel, reason=reason)
        if changes:
            self._kinds.update(changes)
            self._struct, self._is_inferred = None, False
            self._has_nested = not _FLAT.issuperset(self._kinds.values())

    def _clash(self, name: str, before: str, found: str, place: int) -> SchemaMismatch:
        return SchemaMismatch(
            channel=self._channel,
            column=name,
            expected=before,
            found=found,
            reason=f"row {place} of those not yet sent; nothing of this call was taken",
        )

    def forget(self) -> None:
        """Start anew: the next rows may have other columns and types."""
        self._kinds, self._inferred = {}, {}
        self._signatures.clear()
        self._struct, self._is_inferred = None, False

    # --- columns ---------------------------------------------------------------------------------------------------

    def batch(self, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
        """All rows as columns; they have been checked. `InvalidBatch` names a value that Arrow cannot take."""
        if self._struct is None and not self._is_inferred:
            self._settle()
        if self._struct is not None:
            try:
                return pa.RecordBatch.from_struct_array(pa.array(rows, self._struct))
            except _ARROW_ERRORS:
                pass  # again, column by column, to name the place
        arrays = [self._array(name, [row.get(name) for row in rows]) for name in self._kinds]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._kinds))

    def _settle(self) -> None:
        types = [_TYPES.get(kind) for kind in self._kinds.values()]
        self._is_inferred = None in types
        if not self._is_inferred:
            self._struct = pa.struct(list(zip(self._kinds, types, strict=True)))

    def _array(self, name: str, values: Sequence[Any]) -> pa.Array:
        kind = self._kinds[name]
        wanted = _TYPES.get(kind) or self._inferred.get(name)
        try:
            return pa.array(values, wanted)
        except _ARROW_ERRORS as error:
            if wanted is None or kind in _TYPES:
                raise self._misfit(name, values, wanted, error) from None
        try:
            array = pa.array(values)
        except _ARROW_ERRORS as error:
            raise self._misfit(name, values, None, error) from None
        self._inferred[name] = array.type
        return array

    def _misfit(self, name: str, values: Sequence[Any], wanted: pa.DataType | None, error: Exception) -> InvalidBatch:
        for place, value in enumerate(values):
            try:
                pa.array([value], wanted)
            except _ARROW_ERRORS as own:
                reason = f"column {name!r}, row {place}: {_one_line(own)}"
                return InvalidBatch(channel=self._channel, reason=reason)
        return InvalidBatch(channel=self._channel, reason=f"column {name!r}: {_one_line(error)}")


def _merged(before: str | None, found: str) -> str | None:
    """The kind of a column that had one kind and gets another; None if they clash."""
    if before in (None, "", found):
        return found
    if not found:
        return before
    return "float" if {before, found} == {"int", "float"} else None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
