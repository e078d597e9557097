"""How a channel's schema grows, and how a batch is made to fit it.

A channel's schema starts as `channel_schema(first batch)` and only ever grows. What `merge_schemas` may do:

    column is new                       appended, nullable          column is missing      becomes nullable
    int8 < int16 < int32 < int64        uint8 < … < uint64          uintN -> next wider signed int
    float16 < float32 < float64         8, 16 bit int -> float32    32 bit int -> float64
    decimal: more digits, same scale    null -> anything            not null -> nullable
    string -> large_string, binary -> large_binary, list -> large_list, views -> string or binary
    dictionary -> wider index           dictionary -> its plain value type           struct, list, map: the same inside

Every step keeps every stored value exactly, in whatever order batches arrive; everything else raises `SchemaMismatch`.
Time types never change: a finer unit overflows. Metadata never takes part: it describes one batch (pandas index, polars
categories), not the channel, and becomes untrue as soon as another producer writes.
"""

from __future__ import annotations

import pyarrow as pa
from pyarrow import lib

from holdfast.errors import InvalidBatch, SchemaMismatch
from holdfast.model.columns import (
    BINARIES,
    DECIMALS,
    FLOATS,
    INTS,
    LISTS,
    NESTED,
    TEXTS,
    VIEWS,
    child_arrays,
    children,
    count_fields,
    field_form,
    forbidden_null,
    forbids_null,
    list_type,
    map_type,
    null_bytes,
    viewed_bytes,
    with_children,
    with_wide_index,
)

COLUMNS_MAX = 2048  # nested ones included; a segment of such a schema still has a footer below 1 MiB
EXPANSION_BYTES_MAX = 1 << 28  # what one column may grow to when it is decoded or filled with nulls

_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_UNSIGNED = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
_FLOAT_OF = {16: pa.float16(), 32: pa.float32(), 64: pa.float64()}
_FLOAT_BITS_FOR_INT = {8: 32, 16: 32, 32: 64}
_DECIMAL_OF = {32: pa.decimal32, 64: pa.decimal64, 128: pa.decimal128, 256: pa.decimal256}


class _Misfit(Exception):
    """One column does not fit; the door adds the channel's name."""

    def __init__(self, path: str, *, expected: object, found: object, reason: str) -> None:
        super().__init__(path)
        self.path = path
        self.expected = str(expected)
        self.found = str(found)
        self.reason = reason

    def at(self, channel: str) -> SchemaMismatch:
        return SchemaMismatch(
            channel=channel, column=self.path, expected=self.expected, found=self.found, reason=self.reason
        )


# -------------------------------------------------------------------------------------------------------------- growing


def channel_schema(schema: pa.Schema) -> pa.Schema:
    """The schema a new channel starts with: no metadata, and dictionary indices of at least 32 bits.

    One segment holds the values of many batches in one dictionary, so an index sized for one batch would overflow.
    """
    return pa.schema([pa.field(f.name, map_type(f.type, with_wide_index), f.nullable) for f in schema])


def merge_schemas(
    channel: str, current: pa.Schema, incoming: pa.Schema, *, columns_max: int = COLUMNS_MAX
) -> pa.Schema:
    """The smallest schema that holds both; `current` itself when it already does."""
    if incoming is current or incoming.equals(current):
        return current
    arriving = {field.name: field for field in incoming}
    before = list(current)
    try:
        fields = [_join_field(field.name, field, arriving.pop(field.name, None)) for field in before]
    except _Misfit as misfit:
        raise misfit.at(channel) from None
    if not arriving and all(new is old for new, old in zip(fields, before, strict=True)):
        return current
    merged = pa.schema(fields + [_new_field(field) for field in arriving.values()], metadata=current.metadata)
    if (count := count_fields(merged)) > columns_max:
        raise SchemaMismatch(
            channel=channel,
            column=next(iter(arriving), merged.names[-1]),
            expected=f"at most {columns_max} columns, nested ones included",
            found=str(count),
            reason="the channel's schema is full",
        )
    return merged


def require_same(channel: str, current: pa.Schema, incoming: pa.Schema) -> None:
    """Mode `strict`: the same columns with the same types, in any order. `conform` looks for nulls."""
    if incoming is current or incoming.equals(current):
        return
    arriving = {field.name: field for field in incoming}
    reason = "the channel is strict"
    for field in current:
        other = arriving.pop(field.name, None)
        if other is None or field_form(field, nulls=False) != field_form(other, nulls=False):
            found = "nothing" if other is None else other.type
            raise _Misfit(field.name, expected=field.type, found=found, reason=reason).at(channel)
    for name, field in arriving.items():
        raise _Misfit(name, expected="no such column", found=field.type, reason=reason).at(channel)


def _new_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, map_type(field.type, with_wide_index), nullable=True)


def _join_field(path: str, current: pa.Field, incoming: pa.Field | None) -> pa.Field:
    """`current`, itself when nothing changes, wide enough for `incoming` too."""
    if incoming is None:
        return current if current.nullable else current.with_nullable(True)
    joined = _join_type(path, current.type, incoming.type)
    nullable = current.nullable or incoming.nullable or incoming.type.id == lib.Type_NA
    if joined.equals(current.type) and nullable == current.nullable:
        return current
    return pa.field(current.name, joined, nullable, current.metadata)


def _join_type(path: str, current: pa.DataType, incoming: pa.DataType) -> pa.DataType:
    if current.equals(incoming) or incoming.id == lib.Type_NA:
        return current
    if current.id == lib.Type_NA:
        return map_type(incoming, with_wide_index)
    if lib.Type_DICTIONARY in {current.id, incoming.id}:
        joined = _join_dictionaries(current, incoming)
    elif current.id in NESTED and incoming.id in NESTED:
        joined = _join_nested(path, current, incoming)
    else:
        joined = _join_flat(current, incoming)
    if joined is None:
        raise _Misfit(path, expected=current, found=incoming, reason="no type holds the values of both exactly")
    return joined


def _join_dictionaries(current: pa.DataType, incoming: pa.DataType) -> pa.DataType | None:
    one, other = (t.value_type if t.id == lib.Type_DICTIONARY else t for t in (current, incoming))
    value_type = one if one.equals(other) else _join_flat(one, other)
    if value_type is None or current.id != incoming.id:
        return value_type
    index_type = _join_index(current.index_type, incoming.index_type)
    return pa.dictionary(index_type, value_type, current.ordered and incoming.ordered)


def _join_index(current: pa.DataType, incoming: pa.DataType) -> pa.DataType:
    """The wider one. Signedness is free: a dictionary of more than 2^31 values does not fit a batch."""
    return incoming if incoming.bit_width > current.bit_width else current


def _join_nested(path: str, current: pa.DataType, incoming: pa.DataType) -> pa.DataType | None:
    def inside(name: str) -> pa.Field:
        return _join_field(f"{path}.{name}", getattr(current, f"{name}_field"), getattr(incoming, f"{name}_field"))

    if current.id == incoming.id == lib.Type_STRUCT:
        return _join_structs(path, current, incoming)
    if current.id == incoming.id == lib.Type_MAP:
        return pa.map_(inside("key"), inside("item"), current.keys_sorted and incoming.keys_sorted)
    if current.id in LISTS and incoming.id in LISTS:
        wide = max(current.id, incoming.id, key=lambda type_id: LISTS[type_id])
        return list_type(wide, inside("value"))
    if current.id == incoming.id == lib.Type_FIXED_SIZE_LIST and current.list_size == incoming.list_size:
        return pa.list_(inside("value"), current.list_size)
    return None


def _join_structs(path: str, current: pa.DataType, incoming: pa.DataType) -> pa.DataType:
    arriving = {field.name: field for field in incoming}
    fields = [_join_field(f"{path}.{field.name}", field, arriving.pop(field.name, None)) for field in current]
    return pa.struct(fields + [_new_field(field) for field in arriving.values()])


def _join_flat(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds both exactly, or None."""
    if one.id in INTS and other.id in INTS:
        return _join_ints(INTS[one.id], INTS[other.id])
    if one.id in INTS.keys() | FLOATS.keys() and other.id in INTS.keys() | FLOATS.keys():
        widths = [_float_bits(one), _float_bits(other)]
        return None if None in widths else _FLOAT_OF[max(bits for bits in widths if bits is not None)]
    if one.id in DECIMALS and other.id in DECIMALS and one.scale == other.scale:
        bits = max(DECIMALS[one.id], DECIMALS[other.id])
        return _DECIMAL_OF[bits](max(one.precision, other.precision), one.scale)
    for family in (TEXTS, BINARIES):
        if one.id in family and other.id in family:
            return max(one, other, key=lambda data_type: family[data_type.id])
    return None


def _join_ints(one: tuple[bool, int], other: tuple[bool, int]) -> pa.DataType | None:
    if one[0] == other[0]:
        return (_SIGNED if one[0] else _UNSIGNED)[max(one[1], other[1])]
    bits = max(width if signed else width * 2 for signed, width in (one, other))
    return _SIGNED.get(bits)


def _float_bits(data_type: pa.DataType) -> int | None:
    """Bits of the float that holds every value of this type."""
    if data_type.id in FLOATS:
        return FLOATS[data_type.id]
    return _FLOAT_BITS_FOR_INT.get(INTS[data_type.id][1])


# ----------------------------------------------------------------------------------------------------------- conforming


class _TooLarge(Exception):
    """A column would grow beyond its bound."""


def conform(
    batch: pa.RecordBatch, schema: pa.Schema, *, channel: str, bytes_max: int = EXPANSION_BYTES_MAX
) -> pa.RecordBatch:
    """The same events in the columns of `schema`; the batch itself when it already has them.

    Columns are put in order, missing ones filled with nulls, narrower ones widened. A column that does not fit without
    losing anything, or a null where none is allowed, raises `SchemaMismatch`; a column that would grow beyond
    `bytes_max`, `InvalidBatch`.
    """
    if batch.schema is schema or batch.schema.equals(schema):
        return batch
    arriving = dict(zip(batch.schema.names, batch.columns, strict=True))
    try:
        columns = [_fit_column(field, arriving.pop(field.name, None), batch.num_rows, bytes_max) for field in schema]
        for name, array in arriving.items():
            raise _Misfit(name, expected="no such column", found=array.type, reason="the channel lacks it")
    except _Misfit as misfit:
        raise misfit.at(channel) from None
    except _TooLarge as error:
        raise InvalidBatch(channel=channel, reason=str(error)) from None
    return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else batch.select([])


def _fit_column(field: pa.Field, array: pa.Array | None, rows: int, bytes_max: int) -> pa.Array:
    source = pa.nulls(rows) if array is None else array
    fitted = _fit(field.name, source, field.type, bytes_max)
    path = forbidden_null(field, fitted) if forbids_null(field) else None
    if path is not None:
        raise _Misfit(path, expected="not null", found="null", reason="a value is missing")
    return fitted


def _bound(what: str, size_bytes: int, bytes_max: int) -> None:
    if size_bytes > bytes_max:
        raise _TooLarge(f"{what} takes {size_bytes} bytes, at most {bytes_max} are allowed")


def _fit(path: str, array: pa.Array, target: pa.DataType, bytes_max: int) -> pa.Array:
    source = array.type
    if source.equals(target):
        return array
    if source.id == lib.Type_NA:
        _bound(f"column {path!r}, filled with nulls,", len(array) * null_bytes(target), bytes_max)
        return pa.nulls(len(array), target)
    if source.id == lib.Type_DICTIONARY:
        return _fit_dictionary(path, array, target, bytes_max)
    if _same_shape(source, target):
        return _fit_nested(path, array, target, bytes_max)
    joined = _join_flat(target, source)
    if joined is None or not joined.equals(target):
        raise _misfit(path, target, source)
    if source.id in VIEWS:
        _bound(f"column {path!r}, decoded,", viewed_bytes(array), bytes_max)
    return array.cast(target)


def _same_shape(source: pa.DataType, target: pa.DataType) -> bool:
    if source.id in LISTS and target.id in LISTS:
        return LISTS[source.id] <= LISTS[target.id]
    if source.id == target.id == lib.Type_FIXED_SIZE_LIST:
        return bool(source.list_size == target.list_size)
    return source.id == target.id and source.id in NESTED


def _misfit(path: str, target: pa.DataType, source: pa.DataType) -> _Misfit:
    return _Misfit(path, expected=target, found=source, reason="the values would not be kept exactly")


def _fit_dictionary(path: str, array: pa.DictionaryArray, target: pa.DataType, bytes_max: int) -> pa.Array:
    if target.id == lib.Type_DICTIONARY:
        if target.ordered and not array.type.ordered:
            raise _misfit(path, target, array.type)
        values = _fit(path, array.dictionary, target.value_type, bytes_max)
        try:
            indices = array.indices.cast(target.index_type)
        except pa.ArrowInvalid:
            raise _misfit(path, target, array.type) from None
        return pa.DictionaryArray.from_arrays(indices, values, ordered=target.ordered)
    values = _fit(path, array.dictionary, _without_views(array.dictionary.type), bytes_max)
    value_bytes = null_bytes(values.type)
    if values.type.id in TEXTS or values.type.id in BINARIES:
        import pyarrow.compute as pc  # 7 MB that few batches need

        value_bytes += pc.max(pc.binary_length(values)).as_py() or 0
    _bound(f"column {path!r}, decoded,", len(array) * value_bytes, bytes_max)
    return _fit(path, values.take(array.indices), target, bytes_max)


def _without_views(data_type: pa.DataType) -> pa.DataType:
    if data_type.id not in VIEWS:
        return data_type
    return pa.string() if data_type.id == lib.Type_STRING_VIEW else pa.binary()


def _fit_nested(path: str, array: pa.Array, target: pa.DataType, bytes_max: int) -> pa.Array:
    inner = _fields_in_order(path, array, target) if target.id == lib.Type_STRUCT else child_arrays(array)
    pairs = zip(children(target), inner, strict=True)
    fitted = [_fit(f"{path}.{field.name}", child, field.type, bytes_max) for field, child in pairs]
    return with_children(array, target, fitted)


def _fields_in_order(path: str, array: pa.StructArray, target: pa.DataType) -> list[pa.Array]:
    arriving = {field.name: child for field, child in zip(array.type, child_arrays(array), strict=True)}
    inner = [arriving.pop(field.name, None) for field in target]
    for name, child in arriving.items():
        raise _Misfit(f"{path}.{name}", expected="no such field", found=child.type, reason="the channel lacks it")
    return [pa.nulls(len(array)) if child is None else child for child in inner]
