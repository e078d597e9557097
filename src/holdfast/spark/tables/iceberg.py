"""An Iceberg table, through `pyiceberg`; no Java.

A commit is one snapshot, with `holdfast.identity` and `holdfast.batch` among its properties for people, and the table
property `holdfast.batch.<identity>` for us: properties stay when snapshots expire. New columns are added in the same
commit. A column of another type is refused, unless Iceberg can widen it.
"""

from __future__ import annotations

from pathlib import Path

from pyiceberg.exceptions import CommitFailedException, ValidationError
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.schema import assign_fresh_schema_ids

from holdfast.disk.filesystem import Filesystem
from holdfast.errors import SchemaMismatch
from holdfast.spark.tables.commits import Commit
from holdfast.spark.tables.folder_catalog import FolderCatalog
from holdfast.tier.objects import Objects

LAST_BATCH = "holdfast.batch."


class IcebergLog:
    """Appends to an Iceberg table in a folder."""

    def __init__(self, filesystem: Filesystem, folder: Path, *, objects: Objects) -> None:
        self._folder = folder
        self._catalog = FolderCatalog(filesystem, folder, objects=objects)

    def last_batch(self, identity: str) -> int | None:
        """From the table's properties."""
        table = self._catalog.find()
        found = table.properties.get(LAST_BATCH + identity) if table is not None else None
        return None if found is None else int(found)

    def append(self, commit: Commit) -> bool:
        """One snapshot."""
        table = self._catalog.find()
        if table is None:
            self._catalog.create(assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(commit.schema)))
            return False
        with_ids = {"holdfast.identity": commit.identity, "holdfast.batch": str(commit.batch)}
        places = [f"file://{self._folder}/{file.key}" for file in commit.files]
        try:
            with table.transaction() as transaction:
                with transaction.update_schema() as update:
                    update.union_by_name(commit.schema)
                transaction.set_properties({LAST_BATCH + commit.identity: str(commit.batch)})
                transaction.add_files(places, snapshot_properties=with_ids, check_duplicate_files=False)
        except CommitFailedException:
            return False
        except (TypeError, ValueError, ValidationError) as error:
            raise SchemaMismatch(
                channel=str(self._folder), column="", expected="columns of the table", found="others", reason=str(error)
            ) from None
        return True
