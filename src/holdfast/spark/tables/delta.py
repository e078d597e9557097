"""A Delta table, through `deltalake`; no Java.

A commit is one entry of the Delta log. It carries the transaction (identity, batch) of the application, which Delta
keeps per application for ever, so a repeat is known. New columns are added to the table before, in an entry of their
own: a crash between the two leaves a column without values. A column of another type is refused.

The files are synced when they are listed. The entry itself is written by `deltalake`, which does not sync it: it is
synced here, after it counts. A power cut in between is the one case that this table leaves to the filesystem.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, create_table_with_add_actions

from holdfast.clock import Clock
from holdfast.disk.filesystem import Filesystem, Mode
from holdfast.errors import SchemaMismatch
from holdfast.spark.tables.commits import Commit

LOG = "_delta_log"
NS_PER_MS = 1_000_000


class DeltaLog:
    """Appends to a Delta table in a folder."""

    def __init__(self, filesystem: Filesystem, folder: Path, *, clock: Clock) -> None:
        self._filesystem = filesystem
        self._folder = folder
        self._clock = clock

    def last_batch(self, identity: str) -> int | None:
        """The version of its last transaction."""
        table = self._open()
        return None if table is None else table.transaction_version(identity)

    def append(self, commit: Commit) -> bool:
        """One entry of the log."""
        properties = CommitProperties(app_transactions=[Transaction(commit.identity, commit.batch)])
        table = self._open()
        try:
            if table is None:
                schema = Schema.from_arrow(commit.schema)
                where = str(self._folder)
                create_table_with_add_actions(where, schema, self._actions(commit), commit_properties=properties)
            else:
                self._widen(table, commit.schema)
                schema = Schema.from_arrow(commit.schema)
                table.create_write_transaction(
                    list(self._actions(commit)), "append", schema, commit_properties=properties
                )
        except (CommitFailedError, DeltaError):
            if table is None and self._open() is not None:
                return False  # somebody else has created it meanwhile
            raise
        self._sync()
        return True

    def _open(self) -> DeltaTable | None:
        try:
            return DeltaTable(str(self._folder))
        except TableNotFoundError:
            return None

    def _actions(self, commit: Commit) -> list[AddAction]:
        now_ms = self._clock.wall_ns() // NS_PER_MS
        return [
            AddAction(file.key, file.size_bytes, {}, now_ms, True, json.dumps({"numRecords": file.rows}))
            for file in commit.files
        ]

    def _widen(self, table: DeltaTable, schema: pa.Schema) -> None:
        wanted = {field.name: field for field in Schema.from_arrow(schema).fields}
        there = {field.name: field for field in table.schema().fields}
        for name in wanted.keys() & there.keys():
            if wanted[name].type != there[name].type:
                raise SchemaMismatch(
                    channel=str(self._folder),
                    column=name,
                    expected=str(there[name].type),
                    found=str(wanted[name].type),
                    reason="a column of a Delta table keeps its type; cast it, or write to a new table",
                )
        new = [field for name, field in wanted.items() if name not in there]
        if new:
            table.alter.add_columns(new)
            self._sync()

    def _sync(self) -> None:
        """Make the newest entry survive a power cut."""
        folder = self._folder / LOG
        entries = [entry.name for entry in self._filesystem.listdir(folder) if entry.name.endswith(".json")]
        file = self._filesystem.open(folder / max(entries), Mode.WRITE)
        try:
            file.sync()
        finally:
            file.close()
        self._filesystem.sync_dir(folder)
        self._filesystem.sync_dir(self._folder)
