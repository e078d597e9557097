"""JSON rows become a batch, column-wise, by Arrow's reader.

Columns that the channel has are read as the channel's types where JSON can say them; others are inferred (whole numbers
as int64, others as float64, ISO 8601 times as timestamps, objects as structs). A column that is null in every row and
unknown to the channel is left out: nothing can be said of its type; such a null inside a list or an object is refused.
Rows are objects; what is wrong is told with the row, counted from 1, and the column.

Arrow's reader trusts its input: it overruns the stack on deep nesting, and gives every row a place in every column. So
depth, columns and cells are bounded before it sees the body, by what can be counted without reading it row by row. That
counting holds the interpreter, hence the small `BODY_BYTES_MAX`; whoever has more to send uses an Arrow stream.
"""

from __future__ import annotations

import re

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json as pj

from holdfast.errors import InvalidBatch
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
    marks = np.zeros(len(text), np.int8)
    marks[quotes] = 1
    outside = np.logical_xor.accumulate(marks != 0) ^ True  # not in a string; its closing quote counts as outside
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
    known = pa.schema([field for field in schema if _is_said_in_json(field.type)])
    try:
        table = _parse(body, known)
    except pa.ArrowInvalid as error:
        if len(known) == 0 or _ROW.search(str(error)):  # bad JSON in itself
            raise _refusal(str(error), channel) from None
        table = _parse_loosely(body, known, channel)
    given = [field.name for field in table.schema if not pa.types.is_null(field.type)]
    for name in given:
        if _has_null_inside(table.schema.field(name).type):
            reason = "holds an empty list or nothing but null somewhere inside, which has no type"
            raise Refused(400, "bad_json", f"column {name}: {reason}", where={"channel": channel, "column": name})
    batches = _sound(table.select(given), body).combine_chunks().to_batches()
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
