"""A catalog of one Iceberg table in a folder, as Hadoop tables are laid out; no database and no server.

    metadata/v<number>.metadata.json     the table as of one commit
    metadata/version-hint.text           a number to start looking from, for other readers

Promise: a version is created only if nobody has its number, so of two commits one is told so and begins anew. What the
version points to (lists of manifests, manifests) is synced before it is created. Readers find the table by its folder
(DuckDB, Spark's Hadoop catalog, `pyiceberg`'s StaticTable).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import AddSnapshotUpdate, TableRequirement, TableUpdate, update_table_metadata

from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.spark.tables.commits import create_in_turn
from holdfast.tier.objects import Objects

METADATA = "metadata"
HINT = "version-hint.text"
SUFFIX = ".metadata.json"


class FolderCatalog(NoopCatalog):
    """Loads, creates and commits the one table."""

    def __init__(self, filesystem: Filesystem, folder: Path, *, objects: Objects) -> None:
        super().__init__("holdfast")
        self._filesystem = filesystem
        self._folder = folder
        self._objects = objects
        self._io = PyArrowFileIO()

    def find(self) -> Table | None:
        """The table as of now; None if there is none yet."""
        number = self._newest()
        if not number:
            return None
        place = self._place(number)
        metadata = FromInputFile.table_metadata(self._io.new_input(place))
        return Table((self._folder.name,), metadata, place, self._io, self)

    def create(self, schema: Schema) -> bool:
        """Make an empty table; False if there is one."""
        properties = {"format-version": "2", "write.parquet.compression-codec": "zstd"}
        metadata = new_table_metadata(
            schema=schema,
            partition_spec=UNPARTITIONED_PARTITION_SPEC,
            sort_order=UNSORTED_SORT_ORDER,
            location=f"file://{self._folder}",
            properties=properties,
        )
        return self._publish(1, metadata)

    def load_table(self, identifier: Any) -> Table:
        """For `Table.refresh`."""
        table = self.find()
        assert table is not None, f"{identifier} was there a moment ago"
        return table

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """The next version, if what the change was made for still holds."""
        current = self.load_table(table.name())
        for requirement in requirements:
            requirement.validate(current.metadata)
        place = current.metadata_location
        changed = update_table_metadata(current.metadata, updates, metadata_location=place)
        for update in updates:
            if isinstance(update, AddSnapshotUpdate):
                self._sync_snapshot(update.snapshot)
        number = _number_of(place) + 1
        if not self._publish(number, changed):
            raise CommitFailedException(f"version {number} of {self._folder} was created by another writer")
        return CommitTableResponse(metadata=changed, metadata_location=self._place(number))  # type: ignore[call-arg]

    def _publish(self, number: int, metadata: TableMetadata) -> bool:
        key = f"{METADATA}/v{number}{SUFFIX}"
        if not create_in_turn(self._objects, key, metadata.model_dump_json(exclude_none=True).encode()):
            return False
        self._hint(number)
        return True

    def _hint(self, number: int) -> None:
        """Only a hint: an old one costs its readers some looks ahead."""
        folder = self._folder / METADATA
        temporary = folder / f".{HINT}.{number}"
        if self._filesystem.exists(temporary):
            self._filesystem.unlink(temporary)
        file = self._filesystem.open(temporary, Mode.CREATE)
        try:
            file.pwritev([str(number).encode()], 0)
            file.sync()
        finally:
            file.close()
        self._filesystem.rename(temporary, folder / HINT)

    def _newest(self) -> int:
        return max((_number_of(name) for name in self._objects.names(METADATA) if name.endswith(SUFFIX)), default=0)

    def _place(self, number: int) -> str:
        return f"file://{self._folder}/{METADATA}/v{number}{SUFFIX}"

    def _sync_snapshot(self, snapshot: Any) -> None:
        files = [snapshot.manifest_list]
        files += [manifest.manifest_path for manifest in snapshot.manifests(self._io)]
        for place in files:
            file = self._filesystem.open(Path(place.removeprefix("file://")), Mode.WRITE)
            try:
                file.sync()
            finally:
                file.close()
        self._filesystem.sync_dir(self._folder / METADATA)


def _number_of(place: str) -> int:
    digits = place.rpartition("/v")[2].removesuffix(SUFFIX)
    return int(digits) if digits.isdigit() else 0
