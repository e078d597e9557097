"""Which batches may be stored.

Pure: nothing here reads or writes. What a producer sends passes three gates, in this order:

1. `check_schema`: only types every Arrow reader knows, bounded in number, depth and width, with names that are free.
2. `check_batch`: bounded in rows and bytes *before* any byte is looked at closely, then every value is validated.
3. `merge_schemas` and `conform` (mode `evolve`), or `require_same` and `conform` (mode `strict`); see `evolution`.

`schema_hash` is over names, types and nullability; metadata takes no part.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import NoReturn

import pyarrow as pa
from pyarrow import lib

from holdfast.errors import InvalidBatch
from holdfast.model.columns import (
    FLAT,
    NESTED,
    any_field,
    children,
    count_fields,
    field_form,
    forbidden_null,
    forbids_null,
    has_hidden_bytes,
    hidden_bytes,
    map_type,
    null_bytes,
)
from holdfast.model.evolution import COLUMNS_MAX, channel_schema, conform, merge_schemas, require_same

__all__ = [
    "COLUMNS_MAX",
    "SYSTEM_COLUMNS",
    "BatchLimits",
    "CheckedSchema",
    "SchemaMode",
    "channel_schema",
    "check_batch",
    "check_schema",
    "conform",
    "decode_schema",
    "encode_schema",
    "merge_schemas",
    "require_same",
    "schema_hash",
]

SYSTEM_COLUMNS = ("_seq", "_committed_id", "_ingested_at", "_channel", "_slot_id", "_fsn", "_frame_index")
"""Columns a reader may ask for; no event may bring its own."""

SMALL_ROWS, SMALL_COLUMNS = 1024, 16
"""Up to here, looking at every value costs no more than measuring first: each call into Arrow lets other threads in."""

RESERVED_PREFIX = "_holdfast"
NAME_BYTES_MAX = 1024  # names are repeated in every segment and every error text
METADATA_BYTES_MAX = 1 << 20  # pandas describes 2,048 columns in about 400 KiB
ROW_BYTES_MAX = 1 << 20  # fixed-width bytes of one row: a missing column is filled with that much per row


class SchemaMode(StrEnum):
    """What a channel does with a batch whose schema differs."""

    EVOLVE = "evolve"  # grow where no stored value changes
    STRICT = "strict"  # refuse
    ANY = "any"  # take it as it is; the next segment has another schema


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How large a batch may be. `columns_max` counts nested fields too."""

    rows_max: int
    bytes_max: int
    columns_max: int = COLUMNS_MAX
    depth_max: int = 16


@dataclass(frozen=True, slots=True)
class CheckedSchema:
    """A schema that passed, with what `check_batch` must know about it."""

    schema: pa.Schema
    required: tuple[int, ...]
    """Columns in which a null is forbidden somewhere."""
    hidden: tuple[int, ...]
    """Columns that stand for more bytes than their IPC message holds: dictionaries, views, values without bytes."""


class _Refusal(Exception):
    """Why; the door adds the channel's name."""


# -------------------------------------------------------------------------------------------------------------- schemas


def check_schema(
    channel: str, schema: pa.Schema, limits: BatchLimits, *, known: CheckedSchema | None = None
) -> CheckedSchema:
    """Raise `InvalidBatch` unless events of this schema may be stored.

    Pass the last answer as `known`: an equal schema then costs one comparison and gives the same object back.
    """
    if known is not None and (known.schema is schema or known.schema.equals(schema, check_metadata=True)):
        return known
    try:
        _check_columns(schema, limits)
    except _Refusal as refusal:
        raise InvalidBatch(channel=channel, reason=str(refusal)) from None
    except UnicodeDecodeError:
        raise InvalidBatch(channel=channel, reason="a column name or time zone is not UTF-8") from None
    return CheckedSchema(
        schema,
        required=tuple(i for i, field in enumerate(schema) if forbids_null(field)),
        hidden=tuple(i for i, field in enumerate(schema) if any_field(field, has_hidden_bytes)),
    )


def _check_columns(schema: pa.Schema, limits: BatchLimits) -> None:
    if len(schema) == 0:
        raise _Refusal("it has no columns")
    _check_names(schema.names, inside="")
    for name in schema.names:
        if name.lower() in SYSTEM_COLUMNS or name.lower().startswith(RESERVED_PREFIX):
            raise _Refusal(f"column name {name!r} is reserved for holdfast")
    metadata_bytes = sum(len(k) + len(v) for part in (schema, *schema) for k, v in (part.metadata or {}).items())
    _check_bound("bytes of metadata", metadata_bytes, METADATA_BYTES_MAX)
    for field in schema:
        _check_field(field.name, field, depth_left=limits.depth_max)
    _check_bound("columns, nested ones included", count_fields(schema), limits.columns_max)
    _check_bound("bytes of fixed width in a row", sum(null_bytes(field.type) for field in schema), ROW_BYTES_MAX)


def _check_bound(what: str, found: int, allowed: int) -> None:
    if found > allowed:
        raise _Refusal(f"it has {found} {what}; at most {allowed} are allowed")


def _check_names(names: list[str], *, inside: str) -> None:
    where = f" inside column {inside!r}" if inside else ""
    for name in names:
        if not name or "\0" in name or len(name.encode()) > NAME_BYTES_MAX:
            raise _Refusal(f"column name {name[:40]!r}{where} is empty, too long or has a zero character")
    for name in names if len(set(names)) < len(names) else ():
        if names.count(name) > 1:
            raise _Refusal(f"column name {name!r} appears twice{where}")


def _check_field(path: str, field: pa.Field, *, depth_left: int) -> None:
    if field.metadata and b"ARROW:extension:name" in field.metadata:
        name = field.metadata[b"ARROW:extension:name"].decode(errors="replace")
        _refuse_type(path, f"extension type {name}", f"send its storage type {field.type} without extension metadata")
    if field.type.id == lib.Type_NA and not field.nullable:
        raise _Refusal(f"column {path!r} can only hold nulls and is declared not null")
    _check_type(path, field.type, depth_left=depth_left)


def _check_type(path: str, data_type: pa.DataType, *, depth_left: int) -> None:
    if isinstance(data_type, pa.BaseExtensionType):
        instead = f"send its storage type {data_type.storage_type}"
        _refuse_type(path, f"extension type {data_type.extension_name}", instead)
    elif data_type.id == lib.Type_DICTIONARY:
        if data_type.value_type.id not in FLAT or data_type.value_type.id == lib.Type_NA:
            _refuse_type(path, f"a dictionary of {data_type.value_type}", "send plain values")
    elif data_type.id in NESTED:
        _check_nested(path, data_type, depth_left=depth_left - 1)
    elif data_type.id not in FLAT:
        _refuse_type(path, f"type {data_type}", "not every Arrow reader knows it; send a plain type")
    elif data_type.id == lib.Type_TIMESTAMP and len(data_type.tz or "") > NAME_BYTES_MAX:
        raise _Refusal(f"column {path!r} has a time zone of {len(data_type.tz)} characters")


def _check_nested(path: str, data_type: pa.DataType, *, depth_left: int) -> None:
    if depth_left < 1:
        raise _Refusal(f"column {path[:200]!r} is nested too deeply")
    if data_type.id == lib.Type_STRUCT:
        _check_names([child.name for child in data_type], inside=path)
    for child in children(data_type):
        _check_field(f"{path}.{child.name}", child, depth_left=depth_left)


def _refuse_type(path: str, what: str, instead: str) -> NoReturn:
    raise _Refusal(f"column {path!r} has {what}, which is not accepted: {instead}")


# -------------------------------------------------------------------------------------------------------------- batches


def check_batch(
    channel: str, batch: pa.RecordBatch, limits: BatchLimits, *, checked: CheckedSchema | None = None
) -> None:
    """Raise `InvalidBatch` unless every value may be stored. A batch of no rows passes.

    The order matters: shallow structure, then size, then every value. A small message that claims to be huge is
    refused before anything is done in proportion to its claim. A batch of few rows and columns cannot claim much and is
    measured last, unless it is within bounds even if every column used all of its buffers.
    """
    checked = check_schema(channel, batch.schema, limits, known=checked)
    try:
        _check_bound("rows", batch.num_rows, limits.rows_max)
        is_small = batch.num_rows <= SMALL_ROWS and batch.num_columns <= SMALL_COLUMNS and not checked.hidden
        if not is_small:
            _validate(batch, full=False)  # without it, measuring could read outside of a buffer
            _check_size(batch, limits, checked)
        _validate(batch, full=True)
        if is_small and batch.get_total_buffer_size() * batch.num_columns > limits.bytes_max:
            _check_size(batch, limits, checked)
        for i in checked.required:
            path = forbidden_null(checked.schema.field(i), batch.column(i))
            if path is not None:
                raise _Refusal(f"column {path!r} is declared not null and holds a null")
    except _Refusal as refusal:
        raise InvalidBatch(channel=channel, reason=str(refusal)) from None


def _check_size(batch: pa.RecordBatch, limits: BatchLimits, checked: CheckedSchema) -> None:
    size_bytes = pa.ipc.get_record_batch_size(batch)
    if checked.hidden:
        size_bytes += sum(hidden_bytes(batch.column(i)) for i in checked.hidden)
    _check_bound("bytes when stored", size_bytes, limits.bytes_max)


def _validate(batch: pa.RecordBatch, *, full: bool) -> None:
    try:
        batch.validate(full=full)
    except (pa.ArrowInvalid, pa.ArrowIndexError, pa.ArrowNotImplementedError) as error:
        raise _Refusal(f"column {_first_bad_column(batch, full=full)!r} is malformed: {error}") from None


def _first_bad_column(batch: pa.RecordBatch, *, full: bool) -> str:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=full)
        except (pa.ArrowInvalid, pa.ArrowIndexError, pa.ArrowNotImplementedError):
            return str(name)
    return "?"


# ------------------------------------------------------------------------------------------------------ naming a schema


def schema_hash(schema: pa.Schema) -> str:
    """32 hex digits over names, types and nullability; the same for equal schemas, for ever."""
    text = json.dumps([field_form(field) for field in schema], separators=(",", ":"), ensure_ascii=True)
    return hashlib.blake2b(text.encode("ascii"), digest_size=16).hexdigest()


def encode_schema(schema: pa.Schema) -> bytes:
    """The schema without metadata as bytes, for the catalog."""
    bare = [pa.field(f.name, map_type(f.type, lambda data_type: data_type), f.nullable) for f in schema]
    return bytes(pa.schema(bare).serialize())


def decode_schema(data: bytes) -> pa.Schema:
    """The schema back. Only for bytes whose checksum was verified."""
    return pa.ipc.read_schema(pa.py_buffer(data))
