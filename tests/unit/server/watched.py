"""A real disk that notes which threads touch it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from holdfast.disk.filesystem import Database, File, Mode, SqlRow, SqlValue, Transaction
from holdfast.disk.local import LocalFilesystem


class WatchedFilesystem(LocalFilesystem):
    """A real disk that notes who touches it: the names of the threads."""

    def __init__(self) -> None:
        super().__init__()
        self.touched_by: set[str] = set()

    def note(self) -> None:
        self.touched_by.add(threading.current_thread().name)

    def open(self, path: Path, mode: Mode) -> File:  # type: ignore[override]
        self.note()
        return super().open(path, mode)

    def sync_dir(self, path: Path) -> None:
        self.note()
        super().sync_dir(path)

    def database(self, path: Path) -> Database:  # type: ignore[override]
        self.note()
        return WatchedDatabase(super().database(path), self)


class WatchedDatabase:
    """A database of a watched disk."""

    def __init__(self, database: Database, filesystem: WatchedFilesystem) -> None:
        self._database = database
        self._filesystem = filesystem

    def query(self, sql: str, values: Sequence[SqlValue] = ()) -> list[SqlRow]:
        self._filesystem.note()
        return self._database.query(sql, values)

    def transaction(self) -> AbstractContextManager[Transaction]:
        self._filesystem.note()
        return self._database.transaction()

    def close(self) -> None:
        self._database.close()
