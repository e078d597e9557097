"""JSON rows become a batch, column-wise, by Arrow's reader.

Columns that the channel has are read as the channel's types where JSON can say them; others are inferred (whole numbers
as int64, others as float64, objects as structs; texts that are times as `holdfast.model.times` says). A column that is
null in every row and unknown to the channel is left out: nothing can be said of its type; such a null inside a list or
an object is refused. A whole number that no int64 holds is refused, unless the channel's type holds it.
Rows are objects; what is wrong is told with the row, counted from 1, and the column.

Arrow's reader trusts its input: it overruns the stack on deep nesting, and gives every row a place in every column. So
depth, columns and cells are bounded before it sees the body, by what can be counted without reading it row by row. That
counting holds the interpreter, hence the small `BODY_BYTES_MAX`; whoever has more to send uses an Arrow stream. It also
guesses the unit of a time by the digits of the values, and drops its zone: so it is given times as texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from holdfast.errors import InvalidBatch, SchemaMismatch
from holdfast.model.times import POINT_IN_TIME, are_zoned_times, as_type, what_fits
from holdfast.server.admin.envelope import Refused

BODY_BYTES_MAX = 4 << 20
DEPTH_MAX = 32
COLUMNS_MAX = 2048
"""As many as a frame may have."""
CELLS_MAX = 8 << 20
"""Rows times columns: 64 MiB of numbers."""

_QUOTE, _BACKSLASH, _COLON, _BRACE = b'"\\:{'
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"{[")], _STEPS[list(b"}]")] = 1, -1

_SAID_IN_JSON = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_timestamp,
    pa.types.is_date32,
    pa.types.is_date64,
    pa.types.is_time,
    pa.types.is_decimal,
)
_ROW = re.compile(r"in row (\d+)")
_COLUMN = re.compile(r"Column\(/?([^)]*)\)")
_CLASH = re.compile(r"Column\(/([^)/]*)[^)]*\) changed from \w+ to (\w+)")
_INT64_MAX = (1 << 63) - 1


def _above(bound: int) -> str:
    """A pattern for whole numbers above a bound: longer ones, or larger at some digit."""
    digits = str(bound)
    larger = [
        f"{digits[:at]}[{int(digit) + 1}-9]\\d{{{len(digits) - at - 1}}}"
        for at, digit in enumerate(digits)
        if digit != "9"
    ]
    return "|".join([rf"\d{{{len(digits) + 1},}}", *larger])


_TOO_LARGE = re.compile(
    rf"(?<![\d.eE+-])(?:(?:{_above(_INT64_MAX)})|-(?:{_above(_INT64_MAX + 1)}))(?![\d.eE])".encode()
)


def lines_of_array(body: bytes) -> bytes:
    """The elements of a JSON array, one after the other."""
    check_shape(body)
    try:
        rows = msgspec.json.decode(body, type=list[msgspec.Raw])
    except msgspec.DecodeError as error:
        raise Refused(400, "bad_json", f"the body is not a JSON array of rows: {error}") from None
    return b"\n".join(map(bytes, rows))


def check_shape(body: bytes) -> None:
    """Refuse what Arrow's reader would not survive, or would need too much memory for."""
    if len(body) > BODY_BYTES_MAX:
        raise Refused(413, "too_large", f"JSON has at most {BODY_BYTES_MAX} bytes; send more as an Arrow stream")
    text = np.frombuffer(body, np.uint8)
    quotes = _quotes(text)
    outside = _outside(text, quotes)
    depth = np.cumsum(_STEPS[text] * outside, dtype=np.int32)
    depth -= np.minimum.accumulate(np.minimum(depth, 0))  # closing what was never opened leaves no credit
    if depth.max(initial=0) > DEPTH_MAX:
        raise Refused(400, "bad_json", f"the rows are nested deeper than {DEPTH_MAX}")
    columns = _count_keys(body, quotes, np.flatnonzero((text == _COLON) & outside))
    if columns > COLUMNS_MAX:
        raise Refused(400, "bad_json", f"the rows have {columns} different keys, at most {COLUMNS_MAX} are allowed")
    rows = int(np.count_nonzero((depth <= 2) & (text == _BRACE) & outside))  # a row, or one in an array
    if rows * columns > CELLS_MAX:
        reason = f"{rows} rows with {columns} different keys are more than {CELLS_MAX} values; send fewer at once"
        raise Refused(413, "too_large", reason)


def _quotes(text: npt.NDArray[np.uint8]) -> npt.NDArray[np.intp]:
    """Where strings begin and end: quotes with an even number of backslashes before them."""
    quotes: npt.NDArray[np.intp] = np.flatnonzero(text == _QUOTE)
    if not (text == _BACKSLASH).any():
        return quotes
    others = np.flatnonzero(text != _BACKSLASH)
    at = np.searchsorted(others, quotes)  # a quote is no backslash itself, so `others[at]` is the quote
    before = np.where(at > 0, others[at - 1], -1) if len(others) else quotes - 1
    unescaped: npt.NDArray[np.intp] = quotes[(quotes - before) % 2 == 1]
    return unescaped


def _outside(text: npt.NDArray[np.uint8], quotes: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """What is not in a string; its closing quote counts as outside."""
    marks = np.zeros(len(text), np.bool_)
    marks[quotes] = True
    outside: npt.NDArray[np.bool_] = ~np.logical_xor.accumulate(marks)
    return outside


def _count_keys(body: bytes, quotes: npt.NDArray[np.intp], colons: npt.NDArray[np.intp]) -> int:
    """How many different texts stand before colons, at any depth."""
    starts, ends = quotes[0::2], quotes[1::2]
    at = np.searchsorted(ends, colons) - 1
    at = at[at >= 0]
    return len({body[start:end] for start, end in zip(starts[at].tolist(), ends[at].tolist(), strict=True)})


def read_rows(body: bytes, *, channel: str, schema: pa.Schema) -> pa.RecordBatch:
    """Rows, one object after the other, as a batch for a channel with that schema of now.

    A column whose values are not of the channel's type is read as what it is; the store then widens or refuses it.
    """
    check_shape(body)
    _check_text(body, channel)
    known = pa.schema([field.with_type(_spoken(field.type)) for field in schema if _is_said_in_json(field.type)])
    try:
        table = _parse(body, known)
    except pa.ArrowInvalid as error:
        _check_kind(str(error), schema, channel)
        if len(known) == 0 or _ROW.search(str(error)):  # bad JSON in itself
            raise _refusal(str(error), channel) from None
        table = _parse_loosely(body, known, channel)
    table = _as_written(table, body)
    given = [field.name for field in table.schema if not pa.types.is_null(field.type)]
    for name in given:
        if _has_null_inside(table.schema.field(name).type):
            reason = "holds an empty list or nothing but null somewhere inside, which has no type"
            raise Refused(400, "bad_json", f"column {name}: {reason}", where={"channel": channel, "column": name})
    table = _sound(table.select(given), body).combine_chunks()
    _check_numbers(table.select([name for name in given if name not in known.names]), body, channel)
    batches = _with_times(table, schema, channel).to_batches()
    if not batches or not given:
        raise InvalidBatch(channel=channel, reason="no row has a value")
    return batches[0]


def _check_text(body: bytes, channel: str) -> None:
    """Arrow takes bytes that are not UTF-8 into names and values."""
    try:
        body.decode()
    except UnicodeDecodeError as error:
        row = body.count(b"\n", 0, error.start) + 1
        reason = f"channel {channel}, row {row}: byte {error.start} of the body is not UTF-8 text ({error.reason})"
        raise Refused(400, "bad_json", reason, where={"channel": channel, "row": row}) from None


def _sound(table: pa.Table, body: bytes) -> pa.Table:
    """Arrow 26 loses nulls at the head of a list whose type it infers; told the type, it reads them."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        table = _parse(body, table.schema).select(table.schema.names)
        table.validate(full=True)
    return table


def _is_said_in_json(kind: pa.DataType) -> bool:
    if pa.types.is_nested(kind):
        inner = [kind.field(at).type for at in range(kind.num_fields)]
        return (pa.types.is_list(kind) or pa.types.is_struct(kind)) and all(map(_is_said_in_json, inner))
    return any(says(kind) for says in _SAID_IN_JSON)


def _spoken(kind: pa.DataType) -> pa.DataType:
    """The type with times as texts, as JSON has them."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_spoken(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_spoken(kind.value_type)))
    return pa.string() if pa.types.is_timestamp(kind) else kind


def _has_null_inside(kind: pa.DataType) -> bool:
    """Arrow makes broken arrays of such types."""
    return pa.types.is_null(kind) or any(_has_null_inside(kind.field(at).type) for at in range(kind.num_fields))


def _parse(body: bytes, known: pa.Schema) -> pa.Table:
    parsing = pj.ParseOptions(
        explicit_schema=known if len(known) else None, newlines_in_values=True, unexpected_field_behavior="infer"
    )
    # One block: rows are then counted from the start of the body.
    reading = pj.ReadOptions(use_threads=False, block_size=len(body) + 1)
    return pj.read_json(pa.BufferReader(body), reading, parsing)


def _parse_loosely(body: bytes, known: pa.Schema, channel: str) -> pa.Table:
    """With the channel's types only for those columns whose values fit them."""
    try:
        inferred = _parse(body, pa.schema([]))
        fitting = pa.schema([field for field in known if unfit_row(inferred, field) is None])
        return _parse(body, fitting)
    except pa.ArrowInvalid as error:
        raise _refusal(str(error), channel) from None


def _as_written(table: pa.Table, body: bytes) -> pa.Table:
    """With texts where Arrow saw times without being told."""
    spoken = pa.schema([field.with_type(_spoken(field.type)) for field in table.schema])
    if spoken.equals(table.schema):
        return table
    told = pa.schema([field for field in spoken if not _has_null_inside(field.type)])
    return _parse(body, told).select(table.schema.names)


def _with_times(table: pa.Table, schema: pa.Schema, channel: str) -> pa.Table:
    """With the channel's times, and with points in time where a new column says nothing else."""
    for at, field in enumerate(table.schema):
        is_known = field.name in schema.names
        kind = schema.field(field.name).type if is_known else POINT_IN_TIME
        if field.type != _spoken(kind) or field.type == kind:
            continue
        column = table.column(at).combine_chunks()
        if not is_known and not are_zoned_times(column):
            continue
        try:
            table = table.set_column(at, field.with_type(kind), as_type(column, kind))
        except pa.ArrowInvalid as error:
            raise _no_time(table, field.with_type(kind), channel, error) from None
    return table


def _no_time(table: pa.Table, field: pa.Field, channel: str, error: pa.ArrowInvalid) -> Refused:
    is_flat = pa.types.is_timestamp(field.type)
    reason = what_fits(field.type) if is_flat else str(error).partition(". If")[0]
    return _mismatch(field, "string", unfit_row(table, field) if is_flat else None, reason, channel=channel)


def _mismatch(field: pa.Field, found: str, row: int | None, reason: str, *, channel: str) -> Refused:
    error = SchemaMismatch(channel=channel, column=field.name, expected=str(field.type), found=found, reason=reason)
    where: dict[str, object] = {"channel": channel, "column": field.name}
    if row is not None:
        where["row"] = row
    return Refused(400, "schema_mismatch", f"row {row}: {error}" if row else str(error), where=where)


def _check_kind(text: str, schema: pa.Schema, channel: str) -> None:
    """Refuse a value of another kind than the channel's column, as Arrow's reader tells it."""
    clash, row = _CLASH.search(text), _ROW.search(text)
    if clash and row and clash[1] in schema.names:
        reason = "a value of the channel's type is needed"
        raise _mismatch(schema.field(clash[1]), clash[2], int(row[1]) + 1, reason, channel=channel)


def _check_numbers(table: pa.Table, body: bytes, channel: str) -> None:
    """Refuse whole numbers that no int64 holds: Arrow's reader makes floats of them, which have other values."""
    suspects = [
        name
        for name in table.schema.names
        if any((pc.max(pc.abs(floats)).as_py() or 0.0) > _INT64_MAX - 1024 for floats in _floats(table.column(name)))
    ]
    if not suspects:
        return
    text = np.frombuffer(body, np.uint8)
    text = np.where(_outside(text, _quotes(text)), text, np.uint8(ord(" ")))
    found = _TOO_LARGE.search(text.tobytes())
    if found is None:
        return
    before = text[: found.start()]
    row = int(np.count_nonzero((np.cumsum(_STEPS[before], dtype=np.int32) == 1) & (before == _BRACE)))
    value = pa.scalar(float(found[0]))
    named = [
        name
        for name in suspects
        if any(pc.index(x, value).as_py() >= 0 for x in _floats(table[name].slice(row - 1, 1)))
    ]
    column = (named or suspects)[0]
    reason = f"{found[0].decode()} is not between -2^63 and 2^63-1; send it as text, or in an Arrow stream"
    where: dict[str, object] = {"channel": channel, "row": row, "column": column}
    raise Refused(400, "bad_json", f"channel {channel}, row {row}, column {column}: {reason}", where=where)


def _floats(column: pa.Array | pa.ChunkedArray) -> Iterator[pa.Array]:
    """The floats of a column, at any depth."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_floating(array.type):
        yield array
    elif pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from _floats(child)
    elif pa.types.is_list(array.type):
        yield from _floats(array.flatten())


def unfit_row(table: pa.Table | pa.RecordBatch, field: pa.Field) -> int | None:
    """The first row, from 1, whose value is not of the field's type; found by halving."""
    if field.name not in table.schema.names:
        return None
    column = table.column(field.name)
    if _casts(column, field.type):
        return None
    good, bad = 0, len(column)
    while bad - good > 1:
        middle = (good + bad) // 2
        if _casts(column.slice(0, middle), field.type):
            good = middle
        else:
            bad = middle
    return bad


def _casts(column: pa.ChunkedArray | pa.Array, kind: pa.DataType) -> bool:
    try:
        column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _refusal(text: str, channel: str) -> Refused:
    row, column = _ROW.search(text), _COLUMN.search(text)
    where: dict[str, object] = {"channel": channel}
    if row:
        where["row"] = int(row[1]) + 1
    if column and column[1]:
        where["column"] = column[1]
    reason = _ROW.sub("", text.partition("\n")[0].removeprefix("JSON parse error: ")).strip()
    if column and not column[1]:
        reason = "a row is a JSON object"
    place = ", ".join(f"{name} {value}" for name, value in where.items())
    return Refused(400, "bad_json", f"{place}: {reason}", where=where)
