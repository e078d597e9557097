"""The table that the options name, in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from holdfast.clock import SystemClock
from holdfast.disk.local import LocalFilesystem
from holdfast.errors import SchemaMismatch
from holdfast.spark.tables.commits import Table
from holdfast.spark.tables.manifest import ManifestTable
from holdfast.tier.folder import FolderObjects
from holdfast.tier.objects import Objects


class OpenTable(NamedTuple):
    """A table, and where its files are."""

    table: Table
    objects: Objects


def open_folder(path: str) -> Objects:
    """The folder of a table, made if it is missing."""
    filesystem, folder = LocalFilesystem(), Path(path).absolute()
    for place in reversed([folder, *folder.parents]):
        if not filesystem.exists(place):
            filesystem.makedir(place)
            filesystem.sync_dir(place.parent)
    return FolderObjects(filesystem, folder)


def open_table(kind: str, path: str) -> OpenTable:
    """For the driver. `kind` is `parquet`, `delta` or `iceberg`."""
    filesystem, folder, objects = LocalFilesystem(), Path(path).absolute(), open_folder(path)
    if kind == "parquet":
        return OpenTable(ManifestTable(objects), objects)
    if kind == "delta":
        from holdfast.spark.tables.delta import DeltaLog  # noqa: PLC0415  # 0.3 s of imports, in every task

        return OpenTable(DeltaLog(filesystem, folder, clock=SystemClock()), objects)
    from holdfast.spark.tables.iceberg import IcebergLog  # noqa: PLC0415  # the same

    return OpenTable(IcebergLog(filesystem, folder, objects=objects), objects)


def table_schema(schema: pa.Schema) -> pa.Schema:
    """Spark's columns as tables have them: all nullable, times of day in microseconds, zones as UTC."""
    return pa.schema([pa.field(field.name, _table_type(field.type), nullable=True) for field in schema])


def _table_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_time(kind):
        return pa.time64("us")
    return pa.timestamp(kind.unit, "UTC") if pa.types.is_timestamp(kind) and kind.tz is not None else kind


def check_types(kind: str, path: str, schema: pa.Schema) -> None:
    """Raise `SchemaMismatch` for the first column that this kind of table cannot hold."""
    for field in schema:
        try:
            _convert(kind, pa.schema([field]))
        except Exception as error:  # what the libraries raise has no common root
            reason = str(error).partition("\n")[0]
            raise SchemaMismatch(
                channel=path, column=field.name, expected=f"a type of {kind}", found=str(field.type), reason=reason
            ) from None


def _convert(kind: str, schema: pa.Schema) -> None:
    if kind == "delta":
        from deltalake import Schema  # noqa: PLC0415  # the same

        Schema.from_arrow(schema)
    elif kind == "iceberg":
        from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids  # noqa: PLC0415  # the same

        _pyarrow_to_schema_without_ids(schema)
