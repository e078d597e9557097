"""Attribute values: the columns of OTAP to and from a text and its kind.

    type   0 empty   1 text   2 whole number   3 number   4 true or false   5 map   6 list   7 bytes
    in     -         str      int              double     bool              ser     ser      bytes

The numbers are those of OTAP's implementations and of our columns; a table in the specification has others. `ser` is
CBOR, in our columns it is JSON. A value that is null in a column that is there is the default of its kind; if the whole
column is missing, the value is empty.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import Category, WireError
from holdfast.wire.otap import cbor
from holdfast.wire.otap.ids import QUASI_DELTA, Flags, Numbers, children
from holdfast.wire.otap.tables import Table, equals_last
from holdfast.wire.otlp.parts import Columns, json_text

Codes = npt.NDArray[np.int8]
EMPTY, TEXT, WHOLE, NUMBER, FLAG, MAP, LIST, BYTES = range(8)
COLUMNS: dict[int, tuple[str, pa.DataType]] = {
    TEXT: ("str", pa.string()),
    WHOLE: ("int", pa.int64()),
    NUMBER: ("double", pa.float64()),
    FLAG: ("bool", pa.bool_()),
    MAP: ("ser", pa.binary()),
    LIST: ("ser", pa.binary()),
    BYTES: ("bytes", pa.binary()),
}
_DEFAULTS: dict[int, object] = {TEXT: "", WHOLE: 0, NUMBER: 0.0, FLAG: False, MAP: b"\xa0", LIST: b"\x80", BYTES: b""}


class Values(NamedTuple):
    """Texts, their kinds, and which were null where a value should be."""

    texts: pa.Array
    codes: Codes
    missing: Flags


def read_values(table: Table) -> Values:
    """The values of a table of attributes, or of a body."""
    codes = np.asarray(table.number("type", pa.uint8())).astype(np.int8)
    if len(codes) and (codes.min() < 0 or codes.max() > BYTES):
        raise table.bad("type", "is not between 0 and 7")
    missing = np.zeros(len(codes), bool)
    texts: list[pa.Array] = []
    for code in (code for code in np.unique(codes).tolist() if code != EMPTY):
        mine = codes == code
        name, kind = COLUMNS[code]
        if not table.has(name):
            codes[mine] = EMPTY
            continue
        column = table.column(name, kind)
        if column.null_count:
            missing |= mine & np.asarray(column.is_null())
            column = column.fill_null(pa.scalar(_DEFAULTS[code], kind))
        if not mine.all():
            column = pc.if_else(pa.array(mine), column, pa.scalar(None, kind))
        texts.append(_TO_TEXT[code](column))
    if not texts:
        return Values(pa.nulls(len(codes), pa.string()), codes, missing)
    return Values(texts[0] if len(texts) == 1 else pc.coalesce(*texts), codes, missing)


def attributes(parents: Numbers, table: Table | None, prefix: str = "") -> Columns:
    """The attributes of each parent as a map of texts and a list of codes."""
    if table is None:
        offsets = pa.array(np.zeros(len(parents) + 1), pa.int32())
        keys, texts, codes = pa.array([], pa.string()), pa.array([], pa.string()), pa.array([], pa.int8())
        return _columns(prefix, offsets, (keys, texts, codes))
    keys = table.column("key", pa.string())
    if keys.null_count:
        raise table.bad("key", "is missing or null")
    values = read_values(table)

    def same() -> Flags:
        found = equals_last(keys, values.texts, pa.array(values.codes))
        found &= ~values.missing & ~np.isin(values.codes, (EMPTY, MAP, LIST))
        return found

    found = children(parents, table.parents(QUASI_DELTA, same), table=table.name)
    codes = pa.array(values.codes)
    if len(found.rows) == table.rows and (found.rows == np.arange(table.rows)).all():
        return _columns(prefix, found.offsets, (keys, values.texts, codes))
    at = pa.array(found.rows)
    return _columns(prefix, found.offsets, (keys.take(at), values.texts.take(at), codes.take(at)))


def _columns(prefix: str, offsets: pa.Array, parts: tuple[pa.Array, pa.Array, pa.Array]) -> Columns:
    keys, texts, codes = parts
    return {
        f"{prefix}attributes": pa.MapArray.from_arrays(offsets, keys, texts),
        f"{prefix}attribute_types": pa.ListArray.from_arrays(offsets, codes),
    }


def write_values(texts: pa.Array, codes: pa.Array) -> dict[str, pa.Array]:
    """The columns of the values; those that no value needs are null."""
    found: dict[str, pa.Array] = {"type": codes.fill_null(EMPTY).cast(pa.uint8())}
    present = set(codes.unique().to_pylist()) - {EMPTY, None}
    for code, (name, kind) in COLUMNS.items():
        own = pa.nulls(len(texts), kind)
        if code in present:
            own = _FROM_TEXT[code](pc.if_else(pc.equal(codes, code), texts, pa.scalar(None, pa.string())))
        found[name] = own if name not in found else pc.coalesce(found[name], own)
    return found


def _plain(column: pa.Array) -> pa.Array:
    return column.cast(pa.string())


def _each_distinct(column: pa.Array, convert: Callable[[object], object], kind: pa.DataType) -> pa.Array:
    encoded = column.dictionary_encode()
    return pa.array([convert(value) for value in encoded.dictionary.to_pylist()], kind).take(encoded.indices)


def _from_cbor(kind: type) -> Callable[[object], object]:
    def convert(data: object) -> object:
        value = cbor.read(data) if isinstance(data, bytes) else None
        if not isinstance(value, kind):
            reason = f"is a {type(value).__name__}, not a {kind.__name__}"
            raise WireError(category=Category.PARSE_ERROR, reason=reason, place="a CBOR value")
        return json_text(value)

    return convert


def _base64(data: object) -> object:
    return base64.b64encode(data).decode() if isinstance(data, bytes) else None


def _unbase64(text: object) -> object:
    try:
        return base64.b64decode(str(text))
    except binascii.Error:
        return str(text).encode()


def _to_cbor(text: object) -> object:
    return cbor.write(json.loads(str(text)))


_TO_TEXT: dict[int, Callable[[pa.Array], pa.Array]] = {
    TEXT: _plain,
    WHOLE: _plain,
    NUMBER: _plain,
    FLAG: _plain,
    MAP: lambda column: _each_distinct(column, _from_cbor(dict), pa.string()),
    LIST: lambda column: _each_distinct(column, _from_cbor(list), pa.string()),
    BYTES: lambda column: _each_distinct(column, _base64, pa.string()),
}
_FROM_TEXT: dict[int, Callable[[pa.Array], pa.Array]] = {
    TEXT: lambda texts: texts,
    WHOLE: lambda texts: texts.cast(pa.int64()),
    NUMBER: lambda texts: texts.cast(pa.float64()),
    FLAG: lambda texts: texts.cast(pa.bool_()),
    MAP: lambda texts: _each_distinct(texts, _to_cbor, pa.binary()),
    LIST: lambda texts: _each_distinct(texts, _to_cbor, pa.binary()),
    BYTES: lambda texts: _each_distinct(texts, _unbase64, pa.binary()),
}
