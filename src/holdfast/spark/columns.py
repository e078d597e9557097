"""Channel columns as Spark columns: which type each becomes, and the casts.

Promise: every type that a channel may have arrives; values are kept exactly, except that times lose what is finer than
a microsecond, which Spark cannot hold. `conform` makes a batch of exactly the schema that Spark compares.

| Arrow | Spark |
|---|---|
| uint8, uint16, uint32 | short, int, long |
| uint64 | decimal(20,0) |
| float16 | float |
| large, view and fixed-size text and bytes | string, binary |
| dictionary | the type of its values |
| date64 | date |
| timestamp with a zone, any unit | timestamp |
| timestamp without a zone, any unit | timestamp_ntz |
| time32, time64 | time(6) |
| duration | interval day to second |
| decimal32, decimal64, decimal256 up to 38 digits | decimal |
| decimal256 of more digits | string |
| large_list, fixed_size_list | array |

All columns are nullable: a column that is not null today is missing in the events of another channel or version.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from holdfast.errors import ColumnWidened, SchemaMismatch
from holdfast.spark.naming import meant, spelled

DECIMAL_DIGITS_MAX = 38

_FLAT: dict[int, pa.DataType] = {
    pa.uint8().id: pa.int16(),
    pa.uint16().id: pa.int32(),
    pa.uint32().id: pa.int64(),
    pa.uint64().id: pa.decimal128(20, 0),
    pa.float16().id: pa.float32(),
    pa.large_string().id: pa.string(),
    pa.string_view().id: pa.string(),
    pa.large_binary().id: pa.binary(),
    pa.binary_view().id: pa.binary(),
    pa.binary(1).id: pa.binary(),
    pa.date64().id: pa.date32(),
    pa.time32("s").id: pa.time64("ns"),
    pa.time64("ns").id: pa.time64("ns"),
    pa.duration("us").id: pa.duration("us"),
}
_AS_IT_IS = {
    kind.id
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string()),
        *(pa.binary(), pa.date32(), pa.null()),
    )
}
_SHAPES: tuple[tuple[Callable[[pa.DataType], bool], Callable[[str, pa.DataType], pa.DataType]], ...] = (
    (pa.types.is_dictionary, lambda path, kind: _spark_type(path, kind.value_type)),
    (pa.types.is_timestamp, lambda _path, kind: pa.timestamp("us", "UTC" if kind.tz else None)),
    (pa.types.is_decimal, lambda _path, kind: _decimal(kind)),
    (pa.types.is_struct, lambda path, kind: pa.struct([_spark_field(f"{path}.{f.name}", f) for f in kind.fields])),
    (
        pa.types.is_map,
        lambda path, kind: pa.map_(
            _spark_type(f"{path}.key", kind.key_type), _spark_type(f"{path}.value", kind.item_type)
        ),
    ),
    (
        lambda kind: pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind),
        lambda path, kind: pa.list_(_spark_type(f"{path}.item", kind.value_type)),
    ),
)


def spark_schema(schema: pa.Schema) -> StructType:
    """The Spark schema of a channel; a type that Spark cannot hold is `SchemaMismatch`."""
    return from_arrow_schema(pa.schema([_spark_field(field.name, field) for field in schema]))


def _spark_field(path: str, field: pa.Field) -> pa.Field:
    return pa.field(field.name, _spark_type(path, field.type), nullable=True)


def _spark_type(path: str, kind: pa.DataType) -> pa.DataType:
    if kind.id in _AS_IT_IS:
        return kind
    if kind.id in _FLAT:
        return _FLAT[kind.id]
    for fits, change in _SHAPES:
        if fits(kind):
            return change(path, kind)
    reason = "name the columns to read with .schema(…), without this one"
    raise SchemaMismatch(channel="", column=path, expected="a type that Spark holds", found=str(kind), reason=reason)


def _decimal(kind: pa.DataType) -> pa.DataType:
    exact = kind.precision <= DECIMAL_DIGITS_MAX and 0 <= kind.scale <= kind.precision
    return pa.decimal128(kind.precision, kind.scale) if exact else pa.string()


def conform(batch: pa.RecordBatch, target: pa.Schema, *, channel: str, stored: bool = False) -> pa.RecordBatch:
    """The batch with the columns of `target`, in that order; those it does not have are null.

    A value that does not fit is `SchemaMismatch`. `stored`: it is read from a channel. Its schema may have grown since
    `target` was made, so that is `ColumnWidened`; and names are compared without case, as Spark does.
    """
    there = batch.schema.names
    names = meant(target.names, there, channel=channel) if stored else {name: name for name in there}
    columns = []
    for field in target:
        name = names.get(field.name)
        columns.append(
            pa.nulls(batch.num_rows, field.type) if name is None else _cast(batch.column(name), field, channel, stored)
        )
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _cast(array: pa.Array, field: pa.Field, channel: str, stored: bool) -> pa.Array:
    if array.type.equals(field.type):
        return array
    kind = spelled(array.type, field.type, channel=channel) if stored else array.type
    try:
        array = array if kind.equals(array.type) else array.view(kind)
        return pc.cast(array, options=pc.CastOptions(target_type=field.type, allow_time_truncate=True))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        refusal = ColumnWidened if stored else SchemaMismatch
        grown = "; the channel may have grown: start the query again to take its schema of now" if stored else ""
        raise refusal(
            channel=channel,
            column=field.name,
            expected=str(field.type),
            found=str(array.type),
            reason=f"{error}{grown}",
        ) from None
