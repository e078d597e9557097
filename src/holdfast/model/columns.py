"""Walking Arrow types and arrays: what is inside a column, what it weighs, and how to build it again.

Pure, and free of policy: `schema` decides what may be stored, `evolution` how a channel's schema grows; both look at
columns through the functions here. A field's children are, in this order:

    struct: its fields      map: key, item      list, large_list, fixed_size_list: the value      anything else: none

`type_form` is the text form under `schema_hash`. It is ours, so that the hash does not change with the Arrow library;
the child of a list or map has no name in it, because Arrow calls two lists equal whatever their child is called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import lib

INTS: dict[int, tuple[bool, int]] = {
    lib.Type_INT8: (True, 8), lib.Type_INT16: (True, 16), lib.Type_INT32: (True, 32), lib.Type_INT64: (True, 64),
    lib.Type_UINT8: (False, 8), lib.Type_UINT16: (False, 16),
    lib.Type_UINT32: (False, 32), lib.Type_UINT64: (False, 64),
}  # fmt: skip
"""Type id of each integer: whether it is signed, and its bits."""

FLOATS = {lib.Type_HALF_FLOAT: 16, lib.Type_FLOAT: 32, lib.Type_DOUBLE: 64}
DECIMALS = {lib.Type_DECIMAL32: 32, lib.Type_DECIMAL64: 64, lib.Type_DECIMAL128: 128, lib.Type_DECIMAL256: 256}
TIMES = frozenset({
    lib.Type_DATE32, lib.Type_DATE64, lib.Type_TIME32, lib.Type_TIME64, lib.Type_TIMESTAMP, lib.Type_DURATION,
    lib.Type_INTERVAL_MONTH_DAY_NANO,
})  # fmt: skip
TEXTS = {lib.Type_STRING_VIEW: 0, lib.Type_STRING: 1, lib.Type_LARGE_STRING: 2}
BINARIES = {lib.Type_BINARY_VIEW: 0, lib.Type_BINARY: 1, lib.Type_LARGE_BINARY: 2}
VIEWS = frozenset({lib.Type_STRING_VIEW, lib.Type_BINARY_VIEW})
FLAT = frozenset({
    lib.Type_NA, lib.Type_BOOL, lib.Type_FIXED_SIZE_BINARY, *INTS, *FLOATS, *DECIMALS, *TIMES, *TEXTS, *BINARIES,
})  # fmt: skip
LISTS = {lib.Type_LIST: 1, lib.Type_LARGE_LIST: 2}
NESTED = frozenset({*LISTS, lib.Type_FIXED_SIZE_LIST, lib.Type_STRUCT, lib.Type_MAP})


# ---------------------------------------------------------------------------------------------------------------- types


def children(data_type: pa.DataType) -> list[pa.Field]:
    """The fields inside a nested type; none for any other."""
    if data_type.id == lib.Type_STRUCT:
        return list(data_type)
    if data_type.id == lib.Type_MAP:
        return [data_type.key_field, data_type.item_field]
    return [data_type.value_field] if data_type.id in NESTED else []


def count_fields(schema: pa.Schema) -> int:
    """Columns, nested ones included."""

    def count(field: pa.Field) -> int:
        return 1 + sum(count(child) for child in children(field.type))

    return sum(count(field) for field in schema)


def any_field(field: pa.Field, test: Callable[[pa.Field], bool]) -> bool:
    """Whether `test` holds for the field or one inside it."""
    return test(field) or any(any_field(child, test) for child in children(field.type))


def has_dictionary(schema: pa.Schema) -> bool:
    """Whether any column is or contains a dictionary."""
    return any(any_field(field, lambda f: f.type.id == lib.Type_DICTIONARY) for field in schema)


def forbids_null(field: pa.Field) -> bool:
    """Whether a null is forbidden in the field or somewhere inside it. Map keys do not count: Arrow forbids those."""
    inner = children(field.type)[1:] if field.type.id == lib.Type_MAP else children(field.type)
    return not field.nullable or any(forbids_null(child) for child in inner)


def map_type(data_type: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """`data_type` with every flat or dictionary type in it replaced by `change` of it; field metadata is dropped."""

    def inner(field: pa.Field) -> pa.Field:
        return pa.field(field.name, map_type(field.type, change), field.nullable)

    if data_type.id == lib.Type_STRUCT:
        return pa.struct([inner(child) for child in data_type])
    if data_type.id == lib.Type_MAP:
        return pa.map_(inner(data_type.key_field), inner(data_type.item_field), data_type.keys_sorted)
    if data_type.id == lib.Type_FIXED_SIZE_LIST:
        return pa.list_(inner(data_type.value_field), data_type.list_size)
    if data_type.id in LISTS:
        return list_type(data_type.id, inner(data_type.value_field))
    return change(data_type)


def list_type(type_id: int, value_field: pa.Field) -> pa.DataType:
    """A list or large_list of `value_field`."""
    return (pa.list_ if type_id == lib.Type_LIST else pa.large_list)(value_field)


def with_wide_index(data_type: pa.DataType) -> pa.DataType:
    """A dictionary type with an index of at least 32 bits; any other type as it is."""
    if data_type.id != lib.Type_DICTIONARY or data_type.index_type.bit_width >= 32:
        return data_type
    return pa.dictionary(pa.int32(), data_type.value_type, data_type.ordered)


def null_bytes(data_type: pa.DataType) -> int:
    """Bytes one null of this type takes in an array; 0 for what takes none or less than one."""
    if data_type.id == lib.Type_FIXED_SIZE_LIST:
        return int(data_type.list_size) * max(1, null_bytes(data_type.value_type))
    if data_type.id == lib.Type_STRUCT:
        return sum(null_bytes(child.type) for child in data_type)
    if data_type.id == lib.Type_DICTIONARY:
        return int(data_type.index_type.bit_width) // 8
    if data_type.id in VIEWS:
        return 16
    if data_type.id in NESTED or data_type.id in TEXTS or data_type.id in BINARIES:
        return 8
    return 0 if data_type.id == lib.Type_NA else int(data_type.bit_width) // 8


def field_form(field: pa.Field, *, named: bool = True, nulls: bool = True) -> list[Any]:
    """`[name, "null" or "not null", type…]`; without `nulls`, nullability is left out here and below."""
    nullable = field.nullable or not nulls
    return [field.name if named else "", "null" if nullable else "not null", *type_form(field.type, nulls=nulls)]


def type_form(data_type: pa.DataType, *, nulls: bool = True) -> list[Any]:
    """A type as nested lists of words and numbers."""
    type_id = data_type.id
    if type_id == lib.Type_DICTIONARY:
        return ["dictionary", data_type.ordered, *(type_form(t) for t in (data_type.index_type, data_type.value_type))]
    if type_id not in NESTED:
        return _flat_form(data_type)
    inner = [field_form(c, named=type_id == lib.Type_STRUCT, nulls=nulls) for c in children(data_type)]
    if type_id == lib.Type_STRUCT:
        return ["struct", *inner]
    if type_id == lib.Type_MAP:
        return ["map", data_type.keys_sorted, *inner]
    if type_id == lib.Type_FIXED_SIZE_LIST:
        return ["fixed_size_list", data_type.list_size, *inner]
    return ["list" if type_id == lib.Type_LIST else "large_list", *inner]


def _flat_form(data_type: pa.DataType) -> list[Any]:
    type_id = data_type.id
    if type_id in DECIMALS:
        return [_FLAT_NAMES[type_id], data_type.precision, data_type.scale]
    if type_id == lib.Type_FIXED_SIZE_BINARY:
        return [_FLAT_NAMES[type_id], data_type.byte_width]
    if type_id == lib.Type_TIMESTAMP:
        return [_FLAT_NAMES[type_id], data_type.unit, data_type.tz or ""]
    if type_id in {lib.Type_TIME32, lib.Type_TIME64, lib.Type_DURATION}:
        return [_FLAT_NAMES[type_id], data_type.unit]
    return [_FLAT_NAMES[type_id]]


_FLAT_NAMES = {
    **{type_id: f"{'int' if signed else 'uint'}{bits}" for type_id, (signed, bits) in INTS.items()},
    **{type_id: f"float{bits}" for type_id, bits in FLOATS.items()},
    **{type_id: f"decimal{bits}" for type_id, bits in DECIMALS.items()},
    lib.Type_NA: "null", lib.Type_BOOL: "bool", lib.Type_DATE32: "date32", lib.Type_DATE64: "date64",
    lib.Type_TIME32: "time32", lib.Type_TIME64: "time64", lib.Type_TIMESTAMP: "timestamp",
    lib.Type_DURATION: "duration", lib.Type_INTERVAL_MONTH_DAY_NANO: "month_day_nano_interval",
    lib.Type_STRING: "string", lib.Type_LARGE_STRING: "large_string", lib.Type_STRING_VIEW: "string_view",
    lib.Type_BINARY: "binary", lib.Type_LARGE_BINARY: "large_binary", lib.Type_BINARY_VIEW: "binary_view",
    lib.Type_FIXED_SIZE_BINARY: "fixed_size_binary",
}  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- arrays


def child_arrays(array: pa.Array) -> list[pa.Array]:
    """The arrays inside a nested one, as `with_children` takes them back; none for a flat one."""
    type_id = array.type.id
    if type_id == lib.Type_STRUCT:
        return [array.field(i) for i in range(array.type.num_fields)]
    if type_id == lib.Type_MAP:
        return [array.keys, array.items]
    return [array.values] if type_id in NESTED else []


def with_children(array: pa.Array, data_type: pa.DataType, inner: list[pa.Array]) -> pa.Array:
    """A nested array with the shape and nulls of `array`, of `data_type`, around other children."""
    if len(array) == 0:
        return pa.nulls(0, data_type)
    if data_type.id == lib.Type_STRUCT:
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(inner, fields=list(data_type), mask=mask) if inner else array
    buffers = array.buffers()[: 1 if data_type.id == lib.Type_FIXED_SIZE_LIST else 2]
    if data_type.id == lib.Type_LARGE_LIST and array.type.id == lib.Type_LIST:
        narrow = pa.Array.from_buffers(pa.int32(), array.offset + len(array) + 1, [None, buffers[1]])
        buffers[1] = narrow.cast(pa.int64()).buffers()[1]
    if data_type.id == lib.Type_MAP:
        inner = [pa.StructArray.from_arrays(inner, fields=children(data_type))]
    return pa.Array.from_buffers(data_type, len(array), buffers, array.null_count, array.offset, inner)


def has_hidden_bytes(field: pa.Field) -> bool:
    """Whether `pa.ipc.get_record_batch_size` says less than the column stands for."""
    data_type = field.type
    if data_type.id in {lib.Type_STRUCT, lib.Type_FIXED_SIZE_LIST, lib.Type_FIXED_SIZE_BINARY}:
        return null_bytes(data_type) == 0
    return data_type.id in VIEWS or data_type.id in {lib.Type_DICTIONARY, lib.Type_NA}


def hidden_bytes(array: pa.Array) -> int:
    """Bytes this array stands for beyond those its IPC message holds; a value without bytes counts as one bit."""
    if array.type.id == lib.Type_DICTIONARY:
        return int(array.dictionary.nbytes) + hidden_bytes(array.dictionary)
    if array.type.id in VIEWS:
        return viewed_bytes(array)
    own = (len(array) + 7) // 8 if array.type.id in FLAT | NESTED and null_bytes(array.type) == 0 else 0
    return own + sum(hidden_bytes(child) for child in child_arrays(array))


def viewed_bytes(array: pa.Array) -> int:
    """The lengths of all views together: many of them may point at the same bytes."""
    views = array.buffers()[1]
    if len(array) == 0 or views is None:
        return 0
    lengths = np.frombuffer(views, np.uint32, views.size // 4)[array.offset * 4 : (array.offset + len(array)) * 4 : 4]
    if array.null_count:
        lengths = lengths[array.is_valid().to_numpy(zero_copy_only=False)]
    return int(lengths.sum(dtype=np.int64))


def forbidden_null(field: pa.Field, array: pa.Array, path: str = "", parent: pa.Array | None = None) -> str | None:
    """Path of the first field that is declared not null and holds a null where its parent holds a value."""
    path = f"{path}.{field.name}" if path else field.name
    if not field.nullable and _null_under_value(array, parent):
        return path
    for inner_field, inner, owner in _required_children(array):
        found = forbidden_null(inner_field, inner, path, owner)
        if found is not None:
            return found
    return None


def _required_children(array: pa.Array) -> list[tuple[pa.Field, pa.Array, pa.Array | None]]:
    if not any(forbids_null(child) for child in children(array.type)):
        return []
    if array.type.id == lib.Type_STRUCT:
        return [(child, array.field(i), array) for i, child in enumerate(array.type)]
    if array.type.id == lib.Type_MAP:
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return [(array.type.item_field, array.items[start:end], None)]
    return [(array.type.value_field, array.flatten(), None)]


def _null_under_value(array: pa.Array, parent: pa.Array | None) -> bool:
    if array.type.id == lib.Type_DICTIONARY and array.dictionary.null_count:
        return True  # an index that points at a null is a null, too
    if array.null_count == 0:
        return False
    if parent is None or parent.null_count == 0:
        return True
    import pyarrow.compute as pc  # 7 MB that few batches need

    return bool(pc.any(pc.and_(array.is_null(), parent.is_valid())).as_py())
